# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit in a directory goes, and what stood there before it comes back.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._configured_programs import configured_programs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import mentioning
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory import (
    DirectoryOutcome,
    DirectoryTask,
    lines_of,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Manifest


class DirectoryRemoval(DirectoryTask):
    """No toolkit behind ``dest``, nor a version of it beside."""

    def execute(self, check_mode: bool) -> DirectoryOutcome:
        """Remove what is there unless ``check_mode``.  Raises GpufleetError."""
        if not self._something():
            return DirectoryOutcome(changed=False)
        self._object()
        if check_mode:
            return self._outcome(self._current())
        with host_lock(self.host):
            if not self._something():
                return DirectoryOutcome(changed=False)
            self._object()
            return self._work()

    def _something(self) -> bool:
        store = self.store
        former = store.has_former() and store.stranger() is None
        return former or bool(store.current() or store.names() or store.leftovers()) or store.is_empty()

    def _current(self) -> Manifest | None:
        name = self.store.current()
        return None if name is None else self.store.manifest(name)

    def _object(self) -> None:
        """Raise what speaks for containers and engines that need the toolkit."""
        if self.store.current() is None:
            return
        dest = self.store.dest
        found = configured_programs(self.host, dest)
        if found:
            each = ", ".join(f"{engine} ({', '.join(names)})" for engine, names in found.items())
            problem = (
                f"Engines are configured with runtimes in {dest}, without which their containers do not start: {each}."
            )
            if self.options.running_gpu_containers == "fail":
                raise HostError(
                    f"{problem} Run gpufleet.nvidia.nvidia_runtime_config with state: absent first;"
                    " running_gpu_containers: warn goes on nevertheless. Nothing was changed."
                )
            self.warn(problem)
        self.guard(
            sorted({*mentioning(self.host, f"{dest}/"), *mentioning(self.host, f"{self.store.folder}/")}),
            f"run by what is in {dest}, without which no engine can stop or enter them.",
            "Remove them first",
            "End their processes and remove them by hand.",
        )

    def _work(self) -> DirectoryOutcome:
        store, before = self.writing(), self._current()
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
