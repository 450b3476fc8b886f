# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory trees on which nvidia_cdi_refresh runs."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.plan import RefreshOptions, Runners
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh.refresh import CdiRefresh
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Files

if t.TYPE_CHECKING:
    from pathlib import Path

VENDOR, LOCAL = "/usr/lib/systemd/system", "/etc/systemd/system"
SERVICE, PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
OWN_SERVICE, OWN_PATH = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "/var/run/cdi/nvidia.yaml"
GENERATOR, SPECIFICATION = "/usr/bin/nvidia-ctk", "/etc/cdi/nvidia.yaml"
WANTS = f"{LOCAL}/multi-user.target.wants"
# The links that enable the units of this collection.
OWN_LINKS = (f"{LOCAL}/basic.target.wants/{OWN_SERVICE}", f"{WANTS}/{OWN_PATH}")
DROP_IN = f"{LOCAL}/{SERVICE}.d/50-gpufleet-nvidia.conf"
# An environment file like that of the toolkit's package.
PACKAGED = "# Options of the generator.\n# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml\n"

Result = t.Dict[str, t.Any]


def toolkit_service(order: str = "") -> str:
    """Return a service like the toolkit's. ``order`` are lines of its section Unit."""
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


class RefreshTree(Files):
    """A host's directory tree with the toolkit's units or its program, and the module's runs on it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.live = False
        self.answers: t.Callable[[list[str]], tuple[int, str, str]] = lambda _argv: (127, "", "no such program")
        self.version = "1.20.0"
        self.ran: list[list[str]] = []

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        self.file(path, text.encode(), mode)

    def toolkit(self, order: str = "", folder: str = VENDOR) -> None:
        self.write(f"{folder}/{SERVICE}", toolkit_service(order))
        self.write(f"{folder}/{PATH}", TOOLKIT_PATH)
        self.write(ENVIRONMENT, PACKAGED)
        self.generator()

    def generator(self, path: str = GENERATOR) -> None:
        """Write the toolkit's program."""
        self.program(path)

    def host(self) -> HostFS:
        return HostFS.of(str(self.path), live=self.live)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        arguments = [argument for argument in argv if argument not in ("chroot", str(self.path))]
        self.ran.append(arguments)
        return self.answers(arguments)

    def run_pinned(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[-1] == "--version"
        return 0, f"NVIDIA Container Toolkit CLI version {self.version}\n", ""

    def refresh(
        self, check_mode: bool = False, request: Request | None = None, cdi: t.Any = None, **options: t.Any
    ) -> Result:
        cdi_options = CdiOptions(request=request or Request())._replace(**(cdi or {}))
        runners = Runners(self.run, self.run_pinned)
        return CdiRefresh(RefreshOptions(cdi=cdi_options, **options), self.host(), runners).execute(check_mode)
