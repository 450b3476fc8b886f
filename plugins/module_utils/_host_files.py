# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a host's files and the records of them, as the plans of one engine see them.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord, load_record

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Installation
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit


class HostFiles(t.NamedTuple):
    """The ``Files`` of one engine on one host."""

    host: HostRoot
    engine: str

    def read(self, path: str) -> bytes | None:
        return self.host.read(path)

    def record(self, path: str) -> FileRecord | None:
        return load_record(self.host, self.engine, self.host.resolve(path))

    def resolve(self, path: str) -> str:
        return self.host.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return self.host.glob(pattern)

    def walk(self, folder: str) -> list[str]:
        return self.host.walk(folder)

    def as_configured(self, installation: Installation, version: str | None) -> Context:
        """What the engine's configuration is read from, without what was recorded of it.

        That is of no concern to those who only read, and perhaps for root's eyes only.
        """
        path, unit = self.resolve(installation.config_path), installation.unit
        return Context(path, self.read(path), None, unit, parse_version(version or ""), self.host.same_program, self)

    def context(
        self, path: str, unit: Unit | None, version: tuple[int, ...] | None, recorded: tuple[str, ...] = ()
    ) -> Context:
        """Everything that a plan for the configuration in ``path`` (links resolved) may look at."""
        return Context(path, self.read(path), self.record(path), unit, version, self.host.same_program, self, recorded)
