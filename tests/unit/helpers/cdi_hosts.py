# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with GPUs on which nvidia_cdi_spec runs. Tests with them need the mark needs_root."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CdiOptions, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.write import SpecWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import VERSION, NodeTree, gpus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, gpu_host

if t.TYPE_CHECKING:
    from pathlib import Path

    import pytest

Data = t.Dict[str, t.Any]
HOOK = "/usr/bin/nvidia-cdi-hook"
SPEC_PATH, OTHER_PATH = "/etc/cdi/nvidia.yaml", "/etc/cdi/gpu-by-hand.yaml"
BACKUPS = "/var/lib/gpufleet-nvidia/backups"
# A specification that this collection did not write.
OTHER_SPEC = """\
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: all  # of them
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia0
"""
TOOLKIT_SERVICE, OWN_SERVICE = "nvidia-cdi-refresh.service", "gpufleet-nvidia-cdi.service"
# The flags of the own service.
OWN_FLAGS = f"--output={SPEC_PATH} --vendor=nvidia.com --class=gpu"
_UNIT = """\
[Service]
Type=oneshot
ExecStart=/usr/bin/nvidia-ctk cdi generate {flags}
[Install]
WantedBy=multi-user.target
"""


class CdiHost(NodeTree):
    """A directory tree with a driver and GPUs, and the module's runs on it."""

    def __init__(self, path: Path, count: int = 2, hook: bool = True) -> None:
        super().__init__(path)
        self.live = False
        self.commands: dict[str, tuple[int, str, str]] = {}
        self.ran: list[list[str]] = []
        self.devices = gpus(count)
        fakes = [FakeGpu(gpu.bus, gpu.minor, gpu.name, uuid=gpu.uuid) for gpu in self.devices]
        gpu_host(path, fakes, version=VERSION)
        self.driver()
        self.file("/usr/share/vulkan/icd.d/nvidia_icd.json", b'{"ICD": {"library_path": "libGLX_nvidia.so.0"}}')
        self.control_nodes()
        for gpu in self.devices:
            self.gpu(gpu)
        if hook:
            self.program(HOOK)

    def host(self) -> HostFS:
        return HostFS.of(str(self.path), live=self.live)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Return the result in ``commands``. Other programs do not exist."""
        arguments = [argument for argument in argv if argument not in ("chroot", str(self.path))]
        self.ran.append(arguments)
        return self.commands.get(arguments[0], (127, "", "there is no such program"))

    def pinned(self, argv: list[str]) -> tuple[int, str, str]:
        return self.run(argv)

    def cdi(self, check_mode: bool = False, request: Request | None = None, **options: t.Any) -> Data:
        cdi_options = CdiOptions(request=request or Request(), **options)
        return SpecWriter(cdi_options, self.host(), self.run, self.pinned).execute(check_mode)

    def document(self, path: str = SPEC_PATH) -> Data:
        """Return the parsed specification at ``path``."""
        found: Data = yaml_document.parse(path, self.read(path))
        return found

    def enable_refresh(self, monkeypatch: pytest.MonkeyPatch, name: str = TOOLKIT_SERVICE, flags: str = "") -> str:
        """Enable a refresh service, and return the output of its nvidia-ctk, which is that of the native backend."""
        self.live = True
        self.folder("/run")
        self.link("/var/run", "/run")
        self.cdi(use_nvml=False)
        printed = json.dumps(self.document())
        self.cdi(use_nvml=False, state="absent")
        self.file(f"/usr/lib/systemd/system/{name}", _UNIT.format(flags=flags).encode())
        self.link(f"/etc/systemd/system/multi-user.target.wants/{name}", f"/usr/lib/systemd/system/{name}")
        self.nvidia_ctk(monkeypatch, printed)
        return printed

    def nvidia_ctk(self, monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
        """Install a nvidia-ctk 1.20.0 that prints this specification."""

        def run(argv: list[str]) -> tuple[int, str, str]:
            return 0, "version 1.20.0" if "--version" in argv else printed, ""

        self.live = True
        self.program("/usr/bin/nvidia-ctk")
        monkeypatch.setattr(self, "pinned", run)
