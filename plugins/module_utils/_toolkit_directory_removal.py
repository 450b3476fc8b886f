# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit in a directory goes, and what stood there before it comes back.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._configured_programs import (
    configured_programs,
    unsettled_engines,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import mentioning
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory import (
    DirectoryOutcome,
    DirectoryTask,
    lines_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_users import (
    SPECIFICATIONS_AND_HOOKS,
    mentioned_in,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Manifest


class DirectoryRemoval(DirectoryTask):
    """No toolkit behind ``dest``, nor a version of it beside."""

    def execute(self, check_mode: bool) -> DirectoryOutcome:
        """Remove what is there unless ``check_mode``.  Raises GpufleetError."""
        if not self._something():
            return DirectoryOutcome(changed=False)
        self._object(check_mode)
        if check_mode:
            return self._outcome(self.current())
        with host_lock(self.host):
            if not self._something():
                return DirectoryOutcome(changed=False)
            self._object(check_mode)
            return self._work()

    def _something(self) -> bool:
        store = self.store
        former = store.has_former() and store.foreign_entry_type() is None
        return former or bool(store.current() or store.names() or store.leftovers()) or store.is_empty()

    def _object(self, check_mode: bool) -> None:
        """Raise what speaks for containers and engines that need the toolkit."""
        if self.store.current() is None:
            return
        dest = self.store.dest
        folders = (dest, self.store.folder)
        # What earlier tasks of the play would have taken from the engines is there still in check mode.
        self._object_for_engines(folders, check_mode)
        self.guard(
            sorted({*mentioning(self.host, f"{dest}/"), *mentioning(self.host, f"{self.store.folder}/")}),
            f"run by what is in {dest}, or name it, so that no engine could stop or enter them any more.",
            "Remove them first",
            "End their processes and remove them by hand.",
        )
        named = mentioned_in(self.host, SPECIFICATIONS_AND_HOOKS, folders)
        if named:
            self.warn(f"{', '.join(named)} names programs in {dest}, which are gone then. Make it anew, or remove it.")

    def _object_for_engines(self, folders: t.Sequence[str], check_mode: bool) -> None:
        found = configured_programs(self.host, folders)
        if found:
            each = ", ".join(f"{engine} ({', '.join(programs)})" for engine, programs in found.items())
            problem = (
                f"Engines are configured with runtimes there, without which their containers do not start: {each}."
            )
            advice = "Run gpufleet.nvidia.nvidia_runtime_config with state: absent first"
        else:
            # A file says what an engine that starts would do, not what one does that runs.
            problem = " ".join(unsettled_engines(self.host, folders))
            advice = "Restart it first, so that it lets go of the runtimes there"
        if not problem:
            return
        warning = f"{self.store.dest} is still needed. {problem} {advice}."
        if check_mode and self.options.running_gpu_containers != "ignore":
            self.warn(warning)
        else:
            self.object_to(f"{self.store.dest} cannot be removed. {problem}", advice, warning)

    def _work(self) -> DirectoryOutcome:
        store, before = self.writing(), self.current()
        outcome = self._outcome(before)
        backups = []
        if before is not None:
            backups = self.save_config(before.name, store.damage(before, thorough=False))
        current = store.current()
        store.sweep()
        store.give_back()
        # The current one last, for a run that is cut off.
        for name in sorted(store.names(), key=lambda name: name == current):
            self.remove(name)
        store.remove_folder()
        return outcome._replace(backups=tuple(backups))

    def _outcome(self, before: Manifest | None) -> DirectoryOutcome:
        return DirectoryOutcome(
            changed=True,
            before=lines_of(before),
            removed=tuple(self.store.path(name) for name in self.store.names()),
        )
