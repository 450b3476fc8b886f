# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: systemd's side of the units that keep a CDI specification fresh.  Links enable them, the
# same that systemctl would make, on a running host and in a tree alike: systemctl itself would have systemd reload its
# units at once, by which containers of the legacy hook lose their GPUs.  On a running host the service is started, and
# systemd reads its units again only where it works with others than those on the disk, and where no container loses its
# GPUs by that.

from __future__ import annotations

import json
import os
import posixpath
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import is_enabled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import check, load
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR, digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import UP, Systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import is_masked, load_unit, unit_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    explain,
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
    sync_folder,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_plan import RefreshPlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

_FAILED = "failed"
_FOLDER = "/etc/systemd/system"
# Which links this collection has made, so that only those are removed.  It is no record of a file, and its name does
# not end like one.
_NOTE = f"{STATE_DIR}/cdi.refresh.links"


class Link(t.NamedTuple):
    """A link that makes the start of one unit another's, and the unit's file that it leads to."""

    path: str
    target: str


def wanted_links(host: HostRoot, name: str) -> list[Link]:
    """The links that are missing for the unit ``name``, which has its file, to be enabled.

    Raises HostError for a masked unit.
    """
    path = unit_file(host, name)
    unit = load_unit(host, name)
    if path is not None and is_masked(host, path):
        raise HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, or use"
            " owner: collection."
        )
    if path is None or unit is None or is_enabled(host, name):
        return []
    return links_of(name, path, unit.wanted_by, unit.required_by)


def links_of(name: str, path: str, wanted_by: t.Iterable[str], required_by: t.Iterable[str] = ()) -> list[Link]:
    folders = [*(f"{unit}.wants" for unit in wanted_by), *(f"{unit}.requires" for unit in required_by)]
    return [Link(f"{_FOLDER}/{folder}/{name}", path) for folder in folders]


def our_links(host: HostRoot) -> list[Link]:
    """The links that earlier runs made and that are still there.  Raises HostError for a damaged note."""
    content = host.read(_NOTE)
    if content is None:
        return []
    try:
        links = [Link(*(check(text, str) for text in check(pair, list))) for pair in load(content)]
    except (TypeError, ValueError) as error:
        raise HostError(
            f"{_NOTE} is damaged. Move it away; which units this collection has enabled is then for you to decide."
        ) from error
    return [link for link in links if host.is_there(link.path)]


def change_links(host: HostRoot, made: t.Sequence[Link], removed: t.Sequence[Link]) -> None:
    """Make and remove links; the host's lock is held.  Raises HostError."""
    kept = [link for link in our_links(host) if link not in removed]
    if made:
        # First the note, so that what a killed run has made is known.
        _note(host, [*kept, *made])
    for link in removed:
        _remove(host, link.path)
    for link in made:
        _make(host, link)
    if not made:
        _note(host, kept)


def _note(host: HostRoot, links: t.Sequence[Link]) -> None:
    if links:
        make_directories(host, STATE_DIR, 0o700)
        text = json.dumps([list(link) for link in links], indent=2) + "\n"
        replace_file(host, _NOTE, text.encode("utf-8"), 0o600)
    elif host.is_there(_NOTE):
        remove_file(host, _NOTE)
        remove_empty_directories(host, [posixpath.dirname(STATE_DIR), STATE_DIR])


def _make(host: HostRoot, link: Link) -> None:
    folder = posixpath.dirname(link.path)
    make_directories(host, folder, 0o755)
    try:
        os.symlink(link.target, host.outer(link.path, last=False))
        sync_folder(host.outer(folder))
    except FileExistsError:
        return
    except OSError as error:
        raise explain(link.path, "made", error) from error


def _remove(host: HostRoot, path: str) -> None:
    try:
        os.unlink(host.outer(path, last=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(path, "removed", error) from error
    remove_empty_directories(host, [posixpath.dirname(path)])


# -- the service on a running host -------------------------------------------------------------------------------------


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

        Raises HostError where the service fails, with the last lines of its log.
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
            f"systemd did not read its units again, because {', '.join(hurt)} would lose their GPUs, which the"
            " legacy hook gave them."
        )
        unknown = [unit.unit for unit, state in zip(units, states) if not state.loaded]
        if unknown:
            warning += f" So it does not know {' and '.join(unknown)} yet, and {self._plan.service} was not started."
        return not unknown, (f"{warning} The changes count from the next boot on, or after systemctl daemon-reload.",)

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
            log = " ".join(self._service.last_words(begun)).rstrip(".")
            raise HostError(
                f"{self._plan.service} failed: {log or str(error).rstrip('.')}. Its files are in place, and it is"
                " tried again at the next boot, and by the next run of this task."
            ) from error
