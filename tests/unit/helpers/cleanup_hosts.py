# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts with leftovers of NVIDIA's tools, and runs of the cleanup on them."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.apply import ChangeWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.text import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import EnginePlan, HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.legacy_cleanup import LegacyCleanup
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

V2, V1 = "2.1.9", "1.7.24"
REQUEST = RuntimeRequest()


class Host:
    """One engine in a directory tree, and runs of this collection on it."""

    def __init__(self, tree: Tree, engine: str = "containerd", version: str = V2) -> None:
        self.tree = tree
        self.host = tree.host()
        self.engine = Target(engine).load()
        self.version = version

    def read(self, path: str) -> str | None:
        content = self.host.read(path)
        return None if content is None else content.decode()

    def context(self, removal: bool = False) -> Context:
        installation = self.engine.inspect(self.host)
        path = self.host.resolve(installation.config_path)
        recorded = [one for one in load_records(self.host, self.engine.key) if one.path != path]
        paths = tuple(one.path for one in recorded if removal or one.main == path)
        files = HostFiles(self.host, self.engine.key)
        return files.context(path, installation.unit, parse_version(self.version), paths)

    def cleanup(self, request: RuntimeRequest | None = REQUEST) -> LegacyCleanup:
        return LegacyCleanup(self.host, self.engine, self.context(request is None), request)

    def plan(self, request: RuntimeRequest | None = REQUEST, purge: bool = True) -> EnginePlan:
        def make(context: Context) -> EnginePlan:
            return self.engine.absent(context) if request is None else self.engine.present(request, context)

        return self.cleanup(request).plan(make) if purge else make(self.context(request is None))

    def run(self, request: RuntimeRequest | None = REQUEST, purge: bool = True) -> EnginePlan:
        """Plan and write, as the module does."""
        plan, writer = self.plan(request, purge), self.writer(request)
        if writer.has_work(plan.files):
            writer.apply(plan.files)
        return plan

    def writer(self, request: RuntimeRequest | None = REQUEST) -> ChangeWriter:
        main = self.context().path
        return ChangeWriter(self.host, self.engine.key, main, BACKUP_DIR, removal=request is None, purge=False)

    def files(self) -> dict[str, bytes]:
        """Return the content of all files except records, backups and links."""
        inner = {}
        for folder, _folders, names in os.walk(self.tree.path):
            for name in names:
                path = os.path.join(folder, name)[len(str(self.tree.path)) :]
                if not path.startswith("/var/lib/gpufleet") and not os.path.islink(str(self.tree.path) + path):
                    inner[path] = self.host.read(path) or b""
        return inner

    def backups(self) -> list[bytes]:
        names = [name for name in self.host.readable_entries(BACKUP_DIR) if name.endswith(".backup")]
        return [self.host.read(f"{BACKUP_DIR}/{name}") or b"" for name in names]
