# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the units that keep a CDI specification fresh, on a running host: whether they do, and
# what it takes.  systemd is told to read its units again only where it works with others than those on the disk, and
# where no container loses its GPUs by that.

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import UP, Systemctl

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_plans import RefreshPlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

_FAILED = "failed"


class ServiceOutcome(t.NamedTuple):
    """What was done on the running host, or would be in check mode.

    ``reasons`` say why the service had to run; ``started`` whether it did; ``settled`` whether it did by the files as
    they are now.
    """

    reasons: tuple[str, ...] = ()
    started: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()
    settled: bool = False


class RefreshService:
    """The units of ``plan`` on a host that systemd runs; ``ready`` is called before the service is started."""

    def __init__(self, plan: RefreshPlan, host: HostRoot, run: Runner, ready: t.Callable[[], None]) -> None:
        self._plan = plan
        self._host = host
        self._ready = ready
        self._service = Systemctl(host, run, plan.service)
        self._watcher = None if plan.watcher is None else Systemctl(host, run, plan.watcher)

    def settle(self, changed: bool, start: bool, check_mode: bool) -> ServiceOutcome:
        """Have the units work as their files say; ``changed``: whether the service has not yet run by them.

        Raises HostError where the service fails, with its last words.
        """
        known, warnings = self._read_units() if changed and not check_mode else (True, ())
        if not known:
            return ServiceOutcome(self._reasons(changed), warnings=warnings)
        watching = self._watch(check_mode)
        reasons = self._reasons(changed)
        if not reasons or not start:
            if reasons:
                warning = (
                    f"{' '.join(reasons)} {self._plan.service} was not started, as start is false. It runs at the next"
                    f" boot, or by systemctl restart {self._plan.service}."
                )
                warnings = (*warnings, warning)
            return ServiceOutcome(reasons, started=False, changed=watching, warnings=warnings)
        if check_mode:
            return ServiceOutcome(reasons, started=False, changed=True)
        self._ready()
        before = digest(self._host.read(self._plan.output))
        failed = self._service.status().active == _FAILED
        self._start()
        anew = digest(self._host.read(self._plan.output)) != before
        # A warning says that systemd still works by what the units were.
        return ServiceOutcome(
            reasons, started=True, changed=watching or failed or anew, warnings=warnings, settled=not warnings
        )

    def _read_units(self) -> tuple[bool, tuple[str, ...]]:
        """Have systemd read its units where it must, and may; whether it knows them then, and warnings."""
        units = [self._service] if self._watcher is None else [self._service, self._watcher]
        states = [unit.status() for unit in units]
        if all(state.loaded and not state.needs_reload for state in states):
            return True, ()
        # Who changes nothing need not wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import (  # noqa: PLC0415
            running,
        )

        hurt = running(self._host)
        if not hurt:
            self._service.daemon_reload()
            return True, ()
        warning = (
            f"systemd was not told to read its units anew, for {', '.join(hurt)} would lose their GPUs, which the"
            " legacy hook gave them."
        )
        unknown = [unit.unit for unit, state in zip(units, states) if not state.loaded]
        if unknown:
            warning += f" So it does not know {' and '.join(unknown)} yet, and {self._plan.service} was not started."
        return not unknown, (
            f"{warning} The new order counts from the next boot on, or after systemctl daemon-reload.",
        )

    def _watch(self, check_mode: bool) -> bool:
        """Have changes of the driver watched; whether that was not so."""
        if self._watcher is None or self._watcher.status().active in UP:
            return False
        if not check_mode:
            self._watcher.start()
        return True

    def _reasons(self, changed: bool) -> tuple[str, ...]:
        """Why the service has to run now."""
        reasons = []
        if changed:
            reasons.append("What the service does has changed.")
        if self._service.status().active == _FAILED:
            reasons.append("Its last run failed.")
        elif loaded_driver(self._host) is not None and not self._host.exists(self._plan.output):
            # Without a driver there is nothing to be made.
            reasons.append(f"{self._plan.output} is not there.")
        return tuple(reasons)

    def _start(self) -> None:
        begun = time.time()
        try:
            self._service.run_through()
        except HostError as error:
            words = " ".join(self._service.last_words(begun)).rstrip(".")
            raise HostError(
                f"{self._plan.service} failed: {words or str(error).rstrip('.')}. Its files are in place, and it is"
                " tried again at the next boot, and by the next run of this task."
            ) from error
