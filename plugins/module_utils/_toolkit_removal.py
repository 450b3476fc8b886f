# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the four packages go, and with them what their scripts made.  What they once replaced does
# not come back.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _toolkit_traces as traces
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Change, CommandError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import run_by_toolkit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_packages import (
    Outcome,
    State,
    ToolkitTask,
    explain_failure,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_versions import refuse_strangers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord


class Leavings(t.NamedTuple):
    """What is to go: packages, a config.toml that they made, files that the controller sent."""

    packages: tuple[str, ...]
    config: FileRecord | None
    cached: tuple[str, ...]

    @property
    def something(self) -> bool:
        return bool(self.packages or self.cached) or self.config is not None


class Removal(ToolkitTask):
    """None of the four packages on the host."""

    def execute(self, check_mode: bool) -> Outcome:
        """Remove what is there unless ``check_mode``.  Raises GpufleetError."""
        seen = self.look()
        if self.options.source == "existing":
            return Outcome(changed=False, before=seen, after=seen)
        leavings = self._leavings(seen)
        if not leavings.something:
            return Outcome(changed=False, before=seen, after=seen)
        if seen.packages:
            self.guard_containers()
            self.guard(
                run_by_toolkit(self.host),
                "run by a runtime of the toolkit, without which no engine can stop or enter them.",
                "Remove them first",
                "End their processes and remove them by hand.",
            )
        if check_mode:
            if leavings.packages and not self.manager.interrupted():
                self._preview(leavings)
            return self._outcome(seen, State({}, seen.former), leavings, foretold=True)
        with host_lock(self.host):
            # Another run may have worked since.
            seen = self.look()
            return self._work(seen, self._leavings(seen))

    def _leavings(self, seen: State) -> Leavings:
        config = traces.noted_config(self.host)
        if config is not None and traces.settings_are_written(self.host):
            self._warn_of_settings(config.path)
            config = None
        packages = (*seen.packages, *self.manager.leftovers(PACKAGES))
        cached = traces.stale_files(self.host, self.cache, ())
        return Leavings(packages, config, tuple(cached))

    def _warn_of_settings(self, path: str) -> None:
        warning = (
            f"{path} stays, since nvidia_toolkit_config has settings in it. Run that with state: absent first, then"
            " this again."
        )
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _preview(self, leavings: Leavings) -> None:
        preview = self.manager.preview(_purge(leavings))
        refuse_strangers(preview, PACKAGES, PACKAGES)

    def _work(self, before: State, leavings: Leavings) -> Outcome:
        if leavings.packages:
            self._remove_packages(before, leavings)
        backups: list[dict[str, str | None]] = []
        if leavings.config is not None:
            backups = traces.remove_config(self.host, leavings.config, self.backup_dir)
        if self.cache is not None and leavings.cached:
            traces.clean_cache(self.host, self.cache, leavings.cached)
        return self._outcome(before, self.look(), leavings)._replace(backups=tuple(backups))

    def _remove_packages(self, before: State, leavings: Leavings) -> None:
        whole = all(package.whole for package in before.packages.values())
        if self.manager.interrupted() or not whole:
            self.manager.mend(not whole)
        self._preview(leavings)
        held = {name: package.version for name, package in before.packages.items() if package.held}
        if held:
            # Or a lock would keep out what is installed one day.
            self.manager.unhold(list(held))
        try:
            self.manager.carry_out(_purge(leavings))
        except CommandError as error:
            after = self.look()
            if held and set(held) <= set(after.packages):
                self.manager.hold(held)
                after = self.look()
            raise explain_failure(error, before, after) from error

    def _outcome(self, before: State, after: State, leavings: Leavings, foretold: bool = False) -> Outcome:
        removed = [*leavings.cached, *([leavings.config.path] if leavings.config is not None else [])]
        return Outcome(changed=True, before=before, after=after, removed_files=tuple(removed), foretold=foretold)


def _purge(leavings: Leavings) -> Change:
    # One that is held is on its way to be released.
    return Change(remove=leavings.packages, change_held=True)
