# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a containerd in memory, and the configuration that results from them."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.config import (
    CRI_TABLE,
    ContainerdFiles,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.plan import ContainerdPlanner
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.toml_plan import plain_copy
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Context, EnginePlan

NVIDIA = "/usr/bin/nvidia-container-runtime"
CRI_2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
# Tables of runtimes, as they stand in a file of version 2.
RUNTIME = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{0}]\n'
OPTIONS = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{0}.options]\n'


def runtime(name: str, program: str = "", kind: str = "io.containerd.runc.v2", **options: str) -> str:
    """Return the table of a runtime as text. The options are spelled as in TOML."""
    given = {"BinaryName": f'"{program}"'} if program else {}
    lines = "".join(f"{key} = {value}\n" for key, value in {**given, **options}.items())
    return f'{RUNTIME.format(name)}runtime_type = "{kind}"\n' + (OPTIONS.format(name) + lines if lines else "")


def default(name: str) -> str:
    return f'[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "{name}"\n'


class LinkedFiles(FakeFiles):
    """Files with linked directories: ``links`` maps the name of a link to its target."""

    links: t.Mapping[str, str] = {}

    def resolve(self, path: str) -> str:
        for link, target in self.links.items():
            if path == link or path.startswith(link + "/"):
                return self.resolve(target + path[len(link) :])
        return path

    def read(self, path: str) -> bytes | None:
        return super().read(self.resolve(path))

    def glob(self, pattern: str) -> list[str]:
        folder, name = posixpath.split(pattern)
        real = self.resolve(folder)
        found = super().glob(f"{real}/{name}")
        return found if real == folder else [folder + path[len(real) :] for path in found]


class Host:
    """One containerd. ``files`` maps paths to texts; MAIN is the main file."""

    def __init__(
        self,
        files: str | bytes | t.Mapping[str, t.Any] | None = None,
        version: tuple[int, ...] | None = None,
        links: t.Mapping[str, str] | None = None,
    ) -> None:
        self.files = LinkedFiles(files if isinstance(files, t.Mapping) else {MAIN: files}, "containerd")
        self.files.links = links or {}
        self.version = version
        self.same_program: t.Callable[[str, str], bool] = lambda one, other: one == other

    def context(self) -> Context:
        return self.files.context(MAIN, self.version)._replace(same_program=self.same_program)

    def plan(self, **asked: t.Any) -> EnginePlan:
        return ContainerdPlanner(self.context()).present(RuntimeRequest(**asked))

    def present(self, **asked: t.Any) -> EnginePlan:
        return self.files.apply(self.plan(**asked), MAIN)

    def absent(self) -> EnginePlan:
        return self.files.apply(ContainerdPlanner(self.context()).absent(), MAIN, removal=True)

    def text(self, path: str = MAIN) -> str:
        return self.files.content[path].decode()

    def drop_in(self) -> str:
        return self.text(DROP_IN)

    def edit(self, old: str, new: str, path: str = MAIN) -> None:
        """Change a file as a user or another tool does."""
        assert old in self.text(path)
        self.files.put(path, self.text(path).replace(old, new, 1))

    def add(self, text: str, path: str = MAIN) -> None:
        self.files.put(path, (self.text(path) if path in self.files.content else "") + text)

    @property
    def texts(self) -> dict[str, str]:
        """All files with their content."""
        return {path: content.decode() for path, content in self.files.content.items()}

    @property
    def effect(self) -> ContainerdFiles:
        """The configuration as containerd reads it."""
        return ContainerdFiles.of(self.context())

    @property
    def runtimes(self) -> dict[str, t.Any]:
        return self.effect.runtimes()

    @property
    def default(self) -> str | None:
        return self.effect.default_runtime()

    def everything_else(self, names: t.Container[str]) -> dict[str, t.Any]:
        """Return the whole configuration except what a request for the runtimes ``names`` may change."""
        files = self.effect
        cri = _copied(files.cri())
        cri.pop("enable_cdi", None)
        containerd = cri.get("containerd", {})
        containerd.pop("default_runtime_name", None)
        runtimes = containerd.get("runtimes", {})
        containerd["runtimes"] = {name: entry for name, entry in runtimes.items() if name not in names}
        rest: dict[str, t.Any] = {"the CRI": {**cri, "containerd": containerd}}
        for file in files.files:
            data = _copied(file.document.data)
            for name in ("version", "imports"):
                data.pop(name, None)
            for name, table in data.pop("plugins", {}).items():
                if ("plugins", name) not in CRI_TABLE.values():
                    rest.setdefault(name, {}).update(table)
            rest.update(data)
        return plain_copy(rest)


def _copied(data: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {name: _copied(value) if isinstance(value, dict) else value for name, value in data.items()}


def document(text: str, path: str = MAIN) -> TomlDocument:
    return TomlDocument.from_bytes(path, text.encode())
