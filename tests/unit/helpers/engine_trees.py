# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory tree of a host with one engine, on which the module runs with fake commands."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

NVIDIA = "/usr/bin/nvidia-container-runtime"


class EngineTree:
    """A host's directory tree, and the module's calls for one engine.

    ``answers`` maps a part of an argument to the result of commands with such an argument; others succeed without
    output. ``live`` is False for a tree in which no programs run.
    """

    def __init__(
        self,
        root: Path,
        engine: str = "containerd",
        flavor: str | None = None,
        files: t.Mapping[str, str] | None = None,
        live: bool = True,
    ) -> None:
        self.root = root
        self.options: dict[str, t.Any] = {"engine": engine, **({"flavor": flavor} if flavor else {})}
        self.live = live
        self.commands: list[list[str]] = []
        self.answers: dict[str, tuple[int, str, str]] = {}
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            self.write(name, text)

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, content: str | bytes = "", mode: int | None = None) -> Path:
        """Write a file. Without ``mode``, files in directories named bin are executable."""
        path = self.path(inner)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode or (0o755 if "/bin/" in inner else 0o644))
        return path

    def text(self, inner: str) -> str:
        return self.path(inner).read_text()

    @property
    def host(self) -> HostFS:
        return HostFS(str(self.root), self.live)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        found = (answer for part, answer in self.answers.items() if any(part in argument for argument in argv))
        return next(found, (0, "", ""))

    def configuration(self, request: RuntimeRequest | None, **options: t.Any) -> ConfigureEngine:
        return ConfigureEngine(Options(request=request, **{**self.options, **options}), self.host, self.run)

    def present(
        self, check_mode: bool = False, options: t.Mapping[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self.configuration(RuntimeRequest(**asked), **(options or {})).execute(check_mode)

    def absent(self, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        return self.configuration(None, **options).execute(check_mode)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of all files except records and backups."""
        paths = [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        found = {str(path.relative_to(self.root)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in paths}
        return {name: value for name, value in found.items() if not name.startswith("var/lib/gpufleet-nvidia/")}
