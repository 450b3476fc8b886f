# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a new version of a toolkit in a directory, built and tried before anybody sees it.

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory_plan import directory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import ask
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_source import name_of, version_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_wrappers import CLI

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory import Tools
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_directory_plan import Design, Directory
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_source import Source
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_store import VersionStore


class VersionBuilder(t.NamedTuple):
    """Builds one version of ``source`` in ``store``."""

    store: VersionStore
    tools: Tools
    source: Source
    design: Design
    components: tuple[str, ...] | None

    def build(self, check_version: t.Callable[[str | None], None]) -> Manifest:
        """The manifest of the new version; if ``check_version`` or anything else raises, nothing is left of it."""
        contents = self.source.fetch()
        try:
            self.store.begin()
            entries = directory(self.source.parts, self.design, self.store.building_path)
            for name, entry in entries.entries.items():
                if entry.part:
                    self.store.copy(name, entry, contents[entry.part])
            version = self._try_programs(entries) if self.store.host.live else version_of(self.source)
            check_version(version)
            return self._finish(version)
        except GpufleetError:
            with contextlib.suppress(GpufleetError):
                self.store.sweep()
                self.store.remove_folder()
            raise

    def _finish(self, version: str | None) -> Manifest:
        name = self.store.new_name(name_of(self.source, self.design, version))
        final = directory(self.source.parts, self.design, self.store.path(name))
        for each, entry in final.entries.items():
            if not entry.part:
                self.store.put(each, entry)
        manifest = Manifest(
            name, version, self.store.current(), self.components, self.source.parts, self.source.sources, {}
        )
        return self.store.finish(manifest, final.entries, self.tools.label)

    def _try_programs(self, new: Directory) -> str | None:
        """The version that the new programs say they are of.  Raises GpufleetError."""
        folder, found = self.store.building_path, {}
        for name, entry in new.entries.items():
            if not entry.part or entry.part.startswith("lib"):
                continue
            argv = [f"{folder}/{name}"]
            if entry.part == CLI:
                # env(1) would take a path with "=" in it for a variable.
                argv = ["/bin/sh", "-c", 'export LD_LIBRARY_PATH="$0"; exec "$@"', folder, *argv]
            answer = ask(argv, self.store.host, self.tools.run)
            if answer.version is None and answer.status:
                raise HostError(
                    f"The new {entry.part} does not run on this host: {answer.words or answer.status}. Choose a toolkit"
                    f" for this host; {self.store.dest} is as it was."
                )
            found[entry.part] = answer.version
        versions = {version for version in found.values() if version is not None}
        if len(versions) > 1:
            each = ", ".join(f"{name} {version}" for name, version in found.items())
            raise GpufleetError(
                f"The source holds parts of several versions: {each}. They only work together; nothing was changed."
            )
        return versions.pop() if versions else None
