# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with GPUs, and the work of nvidia_cdi_spec on them; for tests with the mark makes_nodes."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import VERSION, NodeTree, gpus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, gpu_host

if t.TYPE_CHECKING:
    from pathlib import Path

Data = t.Dict[str, t.Any]
HOOK = "/usr/bin/nvidia-cdi-hook"


class CdiHost(NodeTree):
    """A tree whose GPUs are known from /proc, and the module's work on it."""

    def __init__(self, path: Path, count: int = 2, hook: bool = True) -> None:
        super().__init__(path)
        self.live = False
        self.commands: dict[str, tuple[int, str, str]] = {}
        self.ran: list[list[str]] = []
        self.devices = gpus(count)
        fakes = [FakeGpu(gpu.bus, gpu.minor, gpu.name, uuid=gpu.uuid) for gpu in self.devices]
        gpu_host(path, fakes, version=VERSION)
        self.driver()
        self.control_nodes()
        for gpu in self.devices:
            self.gpu(gpu)
        if hook:
            self.program(HOOK)

    def host(self) -> HostFS:
        return HostFS.of(str(self.path), live=self.live)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Only programs that a test has put into ``commands`` answer."""
        words = [word for word in argv if word != "chroot" and word != str(self.path)]
        self.ran.append(words)
        return self.commands.get(words[0], (127, "", "there is no such program"))

    def pinned(self, argv: list[str], environment: t.Mapping[str, str]) -> tuple[int, str, str]:
        return self.run([*argv, *(f"{name}={value}" for name, value in environment.items())][: len(argv)])

    def cdi(self, check_mode: bool = False, request: Request | None = None, **options: t.Any) -> Data:
        wanted = CdiOptions(request=request or Request(), **options)
        return SpecWriter(wanted, self.host(), self.run, self.pinned).execute(check_mode)

    def read(self, path: str) -> bytes:
        return (self.path / path.lstrip("/")).read_bytes()

    def has(self, path: str) -> bool:
        return os.path.lexists(self.path / path.lstrip("/"))

    def status(self, path: str) -> os.stat_result:
        return os.lstat(self.path / path.lstrip("/"))

    def contents(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Everything in the tree: mode, owner, group and content."""
        found = {}
        for place in sorted(self.path.rglob("*")):
            status = place.lstat()
            content = place.read_bytes() if place.is_file() and not place.is_symlink() else b""
            found[str(place.relative_to(self.path))] = (status.st_mode, status.st_uid, status.st_gid, content)
        return found
