# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Enable the refresh units, and run the service.

To enable a unit, this file creates the links that systemctl enable would create. It does not run that command, which
also makes systemd reload all units: containers that got their GPUs from the legacy hook would lose the GPUs.
"""

from __future__ import annotations

import os
import posixpath
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers, systemctl

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_FAILED = "failed"


def create_links(host: hostfs.HostFS, links: t.Iterable[refresh_units.Link]) -> None:
    """Create the links. The caller holds the host's lock. Raises HostError."""
    for link in links:
        _create(host, link)


def remove_links(host: hostfs.HostFS, links: t.Iterable[refresh_units.Link]) -> None:
    """Remove the links, and the directories that are empty then. The caller holds the host's lock. Raises HostError."""
    for link in links:
        atomic_write.remove_entry(host, link.path)
    # A run that was killed may have left a directory without its link.
    atomic_write.remove_empty_directories(host, [posixpath.dirname(link.path) for link in refresh_units.OWN_LINKS])


def _create(host: hostfs.HostFS, link: refresh_units.Link) -> None:
    folder = posixpath.dirname(link.path)
    atomic_write.make_directories(host, folder, 0o755)
    try:
        process_path = host.real_path(link.path, last=False)
        os.symlink(link.target, process_path)
    except FileExistsError:
        return
    except OSError as error:
        raise errors.os_error(link.path, "created", error) from error
    atomic_write.sync_entry(link.path, process_path)


# -- the service on a running host -------------------------------------------------------------------------------------


class ServiceResult(t.NamedTuple):
    """The result of run_if_needed(); in check mode the predicted one.

    ``reasons`` are the reasons why the service must run. ``started`` is whether the service ran, and ``complete``
    whether it ran with the current files.
    """

    reasons: tuple[str, ...] = ()
    started: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()
    complete: bool = False


class RefreshService:
    """The units on a host that systemd runs, whose service writes ``output``.

    ``before_start`` is called before the service is started.
    """

    def __init__(
        self,
        output: str,
        host: hostfs.HostFS,
        run: core_plan.Runner,
        before_start: t.Callable[[], None],
    ) -> None:
        self._output = output
        self._host = host
        self._before_start = before_start
        self._service = systemctl.Systemctl(host, run, refresh_units.OWN_SERVICE)
        self._path_unit = systemctl.Systemctl(host, run, refresh_units.OWN_PATH_UNIT)
        self._toolkit_service = systemctl.Systemctl(host, run, refresh_units.SERVICE)

    def run_if_needed(self, changed: bool, start: bool, check_mode: bool) -> ServiceResult:
        """Start the path unit, and run the service if necessary.

        ``changed`` is whether the service has not run with the current files yet. Raises HostError with the last lines
        of the service's log if it fails.
        """
        loaded, warnings = self._reload_units(check_mode) if changed else (True, ())
        if not loaded:
            return ServiceResult(self._reasons(changed), warnings=warnings)
        path_unit_started = self._start_path_unit(check_mode)
        reasons = self._reasons(changed)
        if not reasons or not start:
            if reasons:
                warning = (
                    f"{' '.join(reasons)} {self._service.unit} was not started, because {errors.option:start} is"
                    f" false. It runs at the next boot. Run systemctl restart {self._service.unit} to start it now."
                )
                warnings = (*warnings, warning)
            return ServiceResult(reasons, started=False, changed=path_unit_started, warnings=warnings)
        if check_mode:
            return ServiceResult(reasons, started=False, changed=True)
        self._before_start()
        before = core_records.digest(self._host.read(self._output))
        failed = self._service.status().active == _FAILED
        self._start()
        rewritten = core_records.digest(self._host.read(self._output)) != before
        # A warning means that systemd did not reload its units, so the service ran with the previous ones.
        return ServiceResult(
            reasons,
            started=True,
            changed=path_unit_started or failed or rewritten,
            warnings=warnings,
            complete=not warnings,
        )

    def _reload_units(self, check_mode: bool) -> tuple[bool, tuple[str, ...]]:
        """Reload systemd's units if necessary and safe. Return whether systemd has loaded the units, and warnings.

        In check mode, nothing is reloaded.
        """
        units = [self._service, self._path_unit]
        states = [unit.status() for unit in units]
        is_current = all(state.loaded and not state.needs_reload for state in states)
        # A drop-in of the toolkit's service may be new.
        if is_current and not self._toolkit_service.status().needs_reload:
            return True, ()

        affected = gpu_containers.legacy_gpu_containers(self._host)
        if not affected:
            if not check_mode:
                self._service.daemon_reload()
            return True, ()
        warning = (
            f"systemd did not reload its units, because {', '.join(affected)} got their GPUs from the legacy hook and"
            " would lose them."
        )
        unknown = [unit.unit for unit, state in zip(units, states) if not state.loaded]
        if unknown:
            warning += f" systemd has not loaded {' and '.join(unknown)} yet, so {self._service.unit} was not started."
        return not unknown, (f"{warning} The changes take effect at the next boot or systemctl daemon-reload.",)

    def _start_path_unit(self, check_mode: bool) -> bool:
        """Start the path unit, which watches for changes of the driver. Return whether it was not active before."""
        if self._path_unit.status().active in systemctl.RUNNING_STATES:
            return False
        if not check_mode:
            self._path_unit.start()
        return True

    def _reasons(self, changed: bool) -> tuple[str, ...]:
        reasons = []
        if changed:
            reasons.append("The configuration of the service has changed.")
        if self._service.status().active == _FAILED:
            reasons.append("The last run of the service failed.")
        elif procfs.loaded_driver(self._host) is not None and not self._host.exists(self._output):
            # Without a driver, the service generates nothing.
            reasons.append(f"{self._output} does not exist.")
        return tuple(reasons)

    def _start(self) -> None:
        start_time = time.time()
        try:
            self._service.start_oneshot()
        except errors.HostError as error:
            log = " ".join(self._service.journal_tail(start_time)).rstrip(".")
            raise errors.HostError(
                f"{self._service.unit} failed: {log or str(error).rstrip('.')}. The unit stays installed. Fix the"
                " cause, then run this task again."
            ) from error
