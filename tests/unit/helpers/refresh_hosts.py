# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees with units that keep a CDI specification fresh, and the module's work on them."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import CdiRefresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh_plan import RefreshOptions, Runners
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

if t.TYPE_CHECKING:
    from pathlib import Path

VENDOR, LOCAL = "/usr/lib/systemd/system", "/etc/systemd/system"
SERVICE, PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
OWN_SERVICE, OWN_PATH = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "/var/run/cdi/nvidia.yaml"
GENERATOR, OWN_ENVIRONMENT = "/usr/bin/nvidia-ctk", "/etc/gpufleet-nvidia/cdi-refresh.env"
WANTS = f"{LOCAL}/multi-user.target.wants"
DROP_IN = f"{LOCAL}/{SERVICE}.d/50-gpufleet-nvidia.conf"
# What the toolkit's package brings, in words of our own.
PACKAGED = "# Options of the generator.\n# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n"

Result = t.Dict[str, t.Any]


def toolkit_service(order: str = "") -> str:
    """A unit with the keys of the toolkit's; ``order`` are lines of its first section."""
    return f"""\
[Unit]
Description=A stand-in
ConditionPathExists=/usr/bin/nvidia-ctk
{order}
[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH={OUTPUT}
EnvironmentFile=-{ENVIRONMENT}
ExecStart=/usr/bin/nvidia-ctk cdi generate

[Install]
WantedBy=multi-user.target
"""


TOOLKIT_PATH = """\
[Path]
PathChanged=/lib/modules/%v/modules.dep

[Install]
WantedBy=multi-user.target
"""


class RefreshTree:
    """A host's directory tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.live = False
        self.answers: t.Callable[[list[str]], tuple[int, str, str]] = lambda _argv: (127, "", "no such program")
        self.version = "1.20.0"
        self.ran: list[list[str]] = []

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)

    def link(self, path: str, target: str) -> None:
        place = self.path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def toolkit(self, order: str = "", folder: str = VENDOR) -> None:
        self.write(f"{folder}/{SERVICE}", toolkit_service(order))
        self.write(f"{folder}/{PATH}", TOOLKIT_PATH)
        self.write(ENVIRONMENT, PACKAGED)
        self.generator()

    def generator(self, path: str = GENERATOR) -> None:
        """The toolkit's program, without any unit."""
        self.write(path, "", 0o755)

    def text(self, path: str) -> str:
        return (self.path / path.lstrip("/")).read_text(encoding="utf-8")

    def content(self, path: str) -> bytes:
        return (self.path / path.lstrip("/")).read_bytes()

    def has(self, path: str) -> bool:
        return os.path.lexists(self.path / path.lstrip("/"))

    def mode(self, path: str) -> int:
        return (self.path / path.lstrip("/")).stat().st_mode & 0o7777

    def contents(self) -> dict[str, tuple[int, bytes]]:
        """Everything in the tree: mode, and content or target."""
        found = {}
        for place in sorted(self.path.rglob("*")):
            status = place.lstat()
            linked = place.is_symlink()
            content = os.readlink(place).encode() if linked else place.read_bytes() if place.is_file() else b""
            found[str(place.relative_to(self.path))] = (status.st_mode, content)
        return found

    def host(self) -> HostFS:
        return HostFS.of(str(self.path), live=self.live)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        words = [word for word in argv if word not in ("chroot", str(self.path))]
        self.ran.append(words)
        return self.answers(words)

    def run_pinned(self, argv: list[str], _environment: t.Mapping[str, str]) -> tuple[int, str, str]:
        assert argv[-1] == "--version"
        return 0, f"NVIDIA Container Toolkit CLI version {self.version}\n", ""

    def refresh(
        self, check_mode: bool = False, request: Request | None = None, cdi: t.Any = None, **options: t.Any
    ) -> Result:
        wanted = CdiOptions(request=request or Request())._replace(**(cdi or {}))
        runners = Runners(self.run, self.run_pinned)
        return CdiRefresh(RefreshOptions(cdi=wanted, **options), self.host(), runners).execute(check_mode)
