# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory tree of a host with engines that run OCI hooks, and hooks of packages and instructions."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

USUAL = "/usr/share/containers/oci/hooks.d"
OVERRIDE = "/etc/containers/oci/hooks.d"
HOOK = f"{USUAL}/oci-nvidia-hook.json"
OVERRIDING = f"{OVERRIDE}/oci-nvidia-hook.json"
PROGRAM = "/usr/bin/nvidia-container-runtime-hook"

# The hook of the packages of toolkit 1.4 to 1.13, and of instructions for Podman.
PACKAGED = """\
{
    "version": "1.0.0",
    "hook": {
        "path": "/usr/bin/nvidia-container-toolkit",
        "args": ["nvidia-container-toolkit", "prestart"],
        "env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        ]
    },
    "when": {
        "always": true,
        "commands": [".*"]
    },
    "stages": ["prestart"]
}
"""
# The first version of the format.
FIRST = '{"hook": "/usr/bin/nvidia-container-runtime-hook", "arguments": ["prestart"], "stage": ["prestart"]}'
# The output of `nvidia-ctk runtime configure --config-mode=hook` (1.20).
GENERATED = """\
{
  "version": "1.0.0",
  "hook": {
    "path": "/usr/bin/nvidia-container-runtime-hook",
    "args": [
      "nvidia-container-runtime-hook",
      "prestart"
    ],
    "env": [
      "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ]
  },
  "when": {
    "always": true,
    "commands": [
      ".*"
    ]
  },
  "stages": [
    "prestart"
  ]
}
"""
FOREIGN = json.dumps({"version": "1.0.0", "hook": {"path": "/usr/bin/oci-umount"}, "when": {}, "stages": ["prestart"]})
# Content that is not an NVIDIA hook.
STRANGE: dict[str, bytes] = {
    "nothing": b"",
    "text": b"no JSON",
    "cut off": PACKAGED.encode()[:60],
    "not UTF-8": b'{"hook": "\xff"}',
    "a list": b'["nvidia-container-toolkit"]',
    "a number": b"1",
    "null": b"null",
    "path of a number": b'{"hook": {"path": 7}}',
    "path of a list": b'{"hook": {"path": ["/usr/bin/nvidia-container-toolkit"]}}',
    "hook of null": b'{"hook": null}',
    "deep": b"[" * 200000,
    "another program": FOREIGN.encode(),
    "a longer name": b'{"hook": {"path": "/usr/bin/my-nvidia-container-toolkit"}}',
    "only in arguments": b'{"hook": {"path": "/bin/sh", "args": ["nvidia-container-toolkit"]}}',
}


class HookHost:
    """The tree, and the module's calls for one of its engines. Programs only print their versions."""

    def __init__(self, root: Path, version: str = "5.8.0") -> None:
        self.root = root
        self.host = HostFS(str(root), live=True)
        self.version = version
        self.write("/tmp/keep")
        for name in ("crio", "podman", "nvidia-container-runtime-hook", "nvidia-container-runtime"):
            self.write(f"/usr/bin/{name}", mode=0o755)

    def write(self, inner: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        path = self.root / inner.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    def text(self, inner: str) -> str | None:
        path = self.root / inner.lstrip("/")
        return path.read_text() if path.exists() else None

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        argv = argv[2:]
        if argv[1:] == ["--validate"]:
            return 125, "", "Error: unknown flag: --validate\n"
        return 0, f"{argv[0]} version {self.version}\n" if argv[1:] == ["--version"] else "", ""

    def present(
        self, engine: str, check_mode: bool = False, options: dict[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self._execute(Options(engine, RuntimeRequest(**asked), **(options or {})), check_mode)

    def absent(self, engine: str, **options: t.Any) -> ConfigureResult:
        return self._execute(Options(engine, None, **options), False)

    def _execute(self, options: Options, check_mode: bool) -> ConfigureResult:
        return ConfigureEngine(options, self.host, self.run).execute(check_mode)

    def snapshot(self) -> dict[str, tuple[int, bytes | None]]:
        """Return everything on the host except backups and the lock."""
        found: dict[str, tuple[int, bytes | None]] = {}
        for place, folders, names in os.walk(self.root):
            for name in [*folders, *names]:
                path = os.path.join(place, name)
                inner = path[len(str(self.root)) :]
                if not inner.startswith(("/var/lib/gpufleet-nvidia", "/var/lib", "/run", "/var")):
                    content = None if os.path.isdir(path) else self._bytes(path)
                    found[inner] = (os.stat(path).st_mode & 0o7777, content)
        return found

    @staticmethod
    def _bytes(path: str) -> bytes:
        with open(path, "rb") as stream:
            return stream.read()
