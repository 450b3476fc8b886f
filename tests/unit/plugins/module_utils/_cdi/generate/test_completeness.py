# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No specification lacks a GPU or a library without a warning, also below a directory that is a link."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import completeness
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import ignored as cdi_ignored
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import DriverFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.file_lookup import CachedFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import GpuInventory, read_inventory
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import CdiHost
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import VERSION, needs_root
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import FakeGpu, gpu_host

if t.TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = FakeGpu("0000:07:00.0", 1), FakeGpu("10000:0f:00.0", 0)
CUDA = "usr/lib64/libcuda.so.550.163.01"


def document(*nodes: str, libraries: t.Sequence[str] = ()) -> dict[str, t.Any]:
    return {
        "devices": [{"name": node, "containerEdits": {"deviceNodes": [{"path": node}]}} for node in nodes],
        "containerEdits": {"mounts": [{"hostPath": f"/{path}", "containerPath": f"/{path}"} for path in libraries]},
    }


def warnings(host: HostFS, given: dict[str, t.Any], found: GpuInventory | None = None) -> list[str]:
    files = DriverFiles(CachedFS(host), "/")
    return completeness.warnings_of(given, files, found or read_inventory(host, use_nvml=False))


def test_gpus_of_proc(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST, SECOND])
    assert warnings(host, document("/dev/nvidia0", "/dev/nvidia1")) == []
    # NVML does not list it, or a generator skips it because of its PCI domain.
    (warning,) = warnings(host, document("/dev/nvidia1"))
    assert "10000:0f:00.0 (/dev/nvidia0)" in warning
    found = read_inventory(host, use_nvml=False)
    (warning,) = warnings(host, document("/dev/nvidia0"), found._replace(gpus=()))
    assert FIRST.bus in warning
    # Another warning names them.
    assert warnings(host, document("/dev/nvidia1"), found._replace(omitted=("10000:0f:00.0",))) == []
    in_mig_mode = tuple(gpu._replace(mig=True) for gpu in found.gpus)
    assert warnings(host, document(), found._replace(gpus=in_mig_mode)) == []


def test_drm_nodes_of_the_kernel(tmp_path: Path) -> None:
    # nvidia-ctk finds none for a GPU in a PCI domain above ffff.
    host = gpu_host(tmp_path, [FIRST, SECOND])
    nodes = ["/dev/nvidia0", "/dev/nvidia1"]
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/card1").write_text("")
    for bus, name in ((FIRST.bus, "card0"), (SECOND.bus, "card1")):
        (tmp_path / f"sys/bus/pci/devices/{bus}/drm/{name}").mkdir(parents=True)
    # The driver has made no node for card0.
    (warning,) = warnings(host, document(*nodes))
    assert "10000:0f:00.0 (/dev/dri/card1)" in warning
    assert warnings(host, document(*nodes, "/dev/dri/card1")) == []
    found = read_inventory(host, use_nvml=False)
    in_mig_mode = tuple(gpu._replace(mig=True) for gpu in found.gpus)
    assert warnings(host, document(*nodes), found._replace(gpus=in_mig_mode)) == []


def test_libraries_of_the_driver(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    other = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01"
    for path in (CUDA, other, "usr/lib64/libother.so.1"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    assert warnings(host, document("/dev/nvidia1", libraries=(CUDA, other))) == []
    (warning,) = warnings(host, document("/dev/nvidia1", libraries=(CUDA,)))
    assert f"/{other}" in warning
    assert CUDA not in warning


def test_roots_without_links(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=True)
    (tmp_path / "run/driver-2").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "run/driver").symlink_to("driver-2")
    (tmp_path / "run/loop").symlink_to("loop")
    given = Request(driver_root="/var/run/driver/", library_search_paths=("/var/run/driver/lib", "/opt/lib"))
    found = checked(given, host)
    assert (found.driver_root, found.dev_root) == ("/run/driver-2", "/run/driver-2")
    assert found.library_search_paths == ("/run/driver-2/lib", "/opt/lib")
    assert checked(found, host) == found
    for path in ("/", "/run/no", "/run/loop"):
        assert checked(Request(driver_root=path), host).driver_root == path
    assert checked(Request(library_search_paths=("/a",)), host).library_search_paths == ("/a",)


@needs_root
@pytest.mark.parametrize("links", [{"/snap/current": "/drv"}, {"/snap/current": "/snap/1", "/snap/1": "../drv"}])
def test_a_driver_root_that_is_a_link(tmp_path: Path, links: dict[str, str]) -> None:
    host = CdiHost(tmp_path / "host")
    for name in ("usr", "dev"):
        (host.path / "drv").mkdir(exist_ok=True)
        (host.path / name).rename(host.path / "drv" / name)
    host.program("/usr/bin/nvidia-cdi-hook")
    for path, target in links.items():
        host.link(path, target)
    host.file("/dev/null", b"")
    result = host.cdi(use_nvml=False, request=Request(driver_root="/snap/current"))
    mounts = host.document()["containerEdits"]["mounts"]
    (cuda,) = [mount for mount in mounts if mount["hostPath"].endswith(f"libcuda.so.{VERSION}")]
    assert cuda["hostPath"].startswith("/drv/usr/lib")
    assert cuda["containerPath"] == cuda["hostPath"][len("/drv") :]
    assert not [warning for warning in result["warnings"] if "lacks" in warning or "libcuda" in warning]


def test_files_that_engines_ignore(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    assert cdi_ignored.ignored_paths(host) == []
    folder = tmp_path / "etc/cdi"
    folder.mkdir(parents=True)
    for name in ("nvidia.yaml", "nvidia.yml", "note.txt"):
        (folder / name).write_text("")
    for name in ("old.yml", "keep.json"):
        (folder / name).mkdir(0o700)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/var/run")
    (folder / "nvidia.yaml").chmod(0o600)
    folder.chmod(0o755)
    found = [(one.path, one.kind) for one in cdi_ignored.ignored_paths(host)]
    assert found == [("/etc/cdi/nvidia.yml", "suffix"), ("/etc/cdi/nvidia.yaml", "unreadable")]
    folder.chmod(0o700)
    assert [one.path for one in cdi_ignored.ignored_paths(host)] == ["/etc/cdi/nvidia.yml", "/etc/cdi"]
    folder.rename(tmp_path / "cdi")
    folder.symlink_to("../cdi")
    assert [(one.path, one.kind) for one in cdi_ignored.ignored_paths(host)] == [("/etc/cdi", "linked")]
