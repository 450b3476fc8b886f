# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Enable the refresh units, and run the service.

This module creates the same links as systemctl enable. It does not run that command, which would reload all units:
containers that the legacy hook prepared would lose their GPUs.
"""

from __future__ import annotations

import json
import os
import posixpath
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_FAILED = "failed"
_FOLDER = "/etc/systemd/system"
# Lists the links that this collection created, so that a removal affects only those. The file is not a record, so its
# name does not end like one.
_NOTE = f"{core_records.STATE_DIR}/cdi.refresh.links"


def wanted_links(host: hostfs.HostFS, name: str) -> list[refresh_units.Link]:
    """Return the links that are missing to enable the unit ``name``, whose file exists.

    Raises HostError for a masked unit.
    """
    path = systemd_units.unit_file(host, name)
    unit = systemd_units.load_unit(host, name)
    if path is not None and systemd_units.is_masked(host, path):
        raise errors.HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, or use"
            " owner: collection."
        )
    if path is None or unit is None or refresh_units.is_enabled(host, name):
        return []
    return links_of(name, path, unit.wanted_by, unit.required_by)


def links_of(
    name: str, path: str, wanted_by: t.Iterable[str], required_by: t.Iterable[str] = ()
) -> list[refresh_units.Link]:
    folders = [*(f"{unit}.wants" for unit in wanted_by), *(f"{unit}.requires" for unit in required_by)]
    return [refresh_units.Link(f"{_FOLDER}/{folder}/{name}", path) for folder in folders]


def our_links(host: hostfs.HostFS) -> list[refresh_units.Link]:
    """Return the links that earlier runs created and that still exist. Raises HostError for a damaged list."""
    content = host.read(_NOTE)
    if content is None:
        return []
    try:
        links = [
            refresh_units.Link(*(json_data.check(text, str) for text in json_data.check(pair, list)))
            for pair in json_data.load(content)
        ]
    except (TypeError, ValueError) as error:
        raise errors.HostError(
            f"{_NOTE} is damaged. Move it away; which units this collection has enabled is then for you to decide."
        ) from error
    return [link for link in links if host.lexists(link.path)]


def change_links(
    host: hostfs.HostFS, made: t.Sequence[refresh_units.Link], removed: t.Sequence[refresh_units.Link]
) -> None:
    """Create and remove links. The caller holds the host's lock. Raises HostError."""
    kept = [link for link in our_links(host) if link not in removed]
    if made:
        # The list is written first, so that it also has the links of a run that is killed.
        _note(host, [*kept, *made])
    for link in removed:
        _remove(host, link.path)
    for link in made:
        _make(host, link)
    if not made:
        _note(host, kept)


def _note(host: hostfs.HostFS, links: t.Sequence[refresh_units.Link]) -> None:
    if links:
        atomic_write.make_directories(host, core_records.STATE_DIR, 0o700)
        text = json.dumps([list(link) for link in links], indent=2) + "\n"
        atomic_write.replace_file(host, _NOTE, text.encode("utf-8"), 0o600)
    elif host.lexists(_NOTE):
        atomic_write.remove_file(host, _NOTE)
        atomic_write.remove_empty_directories(host, [posixpath.dirname(core_records.STATE_DIR), core_records.STATE_DIR])


def _make(host: hostfs.HostFS, link: refresh_units.Link) -> None:
    folder = posixpath.dirname(link.path)
    atomic_write.make_directories(host, folder, 0o755)
    try:
        os.symlink(link.target, host.real_path(link.path, last=False))
        atomic_write.sync_folder(host.real_path(folder))
    except FileExistsError:
        return
    except OSError as error:
        raise atomic_write.os_error(link.path, "made", error) from error


def _remove(host: hostfs.HostFS, path: str) -> None:
    try:
        os.unlink(host.real_path(path, last=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise atomic_write.os_error(path, "removed", error) from error
    atomic_write.remove_empty_directories(host, [posixpath.dirname(path)])


# -- the service on a running host -------------------------------------------------------------------------------------


class ServiceOutcome(t.NamedTuple):
    """The changes on the running host, or, in check mode, the predicted changes.

    ``reasons`` say why the service must run. ``started`` is whether it ran. ``settled`` is whether it ran with the
    current files.
    """

    reasons: tuple[str, ...] = ()
    started: bool = False
    changed: bool = False
    warnings: tuple[str, ...] = ()
    settled: bool = False


class RefreshService:
    """The units of ``plan`` on a host that systemd runs. ``ready`` is called before the service is started."""

    def __init__(
        self, plan: refresh_units.RefreshPlan, host: hostfs.HostFS, run: core_plan.Runner, ready: t.Callable[[], None]
    ) -> None:
        self._plan = plan
        self._host = host
        self._ready = ready
        self._service = systemctl.Systemctl(host, run, plan.service)
        self._watcher = None if plan.watcher is None else systemctl.Systemctl(host, run, plan.watcher)

    def settle(self, changed: bool, start: bool, check_mode: bool) -> ServiceOutcome:
        """Start the path unit, and run the service if necessary.

        ``changed`` is whether the service has not run with the current files yet. Raises HostError with the last lines
        of the service's log if it fails.
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
        before = core_records.digest(self._host.read(self._plan.output))
        failed = self._service.status().active == _FAILED
        self._start()
        anew = core_records.digest(self._host.read(self._plan.output)) != before
        # With a warning, systemd still uses the previous units.
        return ServiceOutcome(
            reasons, started=True, changed=watching or failed or anew, warnings=warnings, settled=not warnings
        )

    def _read_units(self) -> tuple[bool, tuple[str, ...]]:
        """Reload systemd's units if necessary and safe. Return whether systemd knows the units, and warnings."""
        units = [self._service] if self._watcher is None else [self._service, self._watcher]
        states = [unit.status() for unit in units]
        if all(state.loaded and not state.needs_reload for state in states):
            return True, ()
        # An unchanged host does not need this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import (  # noqa: PLC0415
            gpu_containers,
        )

        hurt = gpu_containers.legacy_gpu_containers(self._host)
        if not hurt:
            self._service.daemon_reload()
            return True, ()
        warning = (
            f"systemd did not read its units again, because {', '.join(hurt)} would lose their GPUs, which the"
            " legacy hook gave them."
        )
        unknown = [unit.unit for unit, state in zip(units, states) if not state.loaded]
        if unknown:
            warning += f" So it does not know {' and '.join(unknown)} yet, and {self._plan.service} was not started."
        return not unknown, (f"{warning} The changes count from the next boot on, or after systemctl daemon-reload.",)

    def _watch(self, check_mode: bool) -> bool:
        """Start the path unit, which watches for changes of the driver. Return whether it was not active before."""
        if self._watcher is None or self._watcher.status().active in systemctl.RUNNING_STATES:
            return False
        if not check_mode:
            self._watcher.start()
        return True

    def _reasons(self, changed: bool) -> tuple[str, ...]:
        """Return the reasons to run the service now."""
        reasons = []
        if changed:
            reasons.append("What the service does has changed.")
        if self._service.status().active == _FAILED:
            reasons.append("Its last run failed.")
        elif gpu_detect.loaded_driver(self._host) is not None and not self._host.exists(self._plan.output):
            # Without a driver, the service generates nothing.
            reasons.append(f"{self._plan.output} is not there.")
        return tuple(reasons)

    def _start(self) -> None:
        begun = time.time()
        try:
            self._service.start_oneshot()
        except errors.HostError as error:
            log = " ".join(self._service.journal_tail(begun)).rstrip(".")
            raise errors.HostError(
                f"{self._plan.service} failed: {log or str(error).rstrip('.')}. Its files are in place, and it is"
                " tried again at the next boot, and by the next run of this task."
            ) from error
