# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, Problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory as gpu_inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import (
    Gpu,
    GpuInventory,
    GpuProblem,
    MigDevice,
    query_nvml,
    read_inventory,
    unusable_devices,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    EXCLUDED,
    FAR,
    FIRST,
    LIBRARY_FOLDER,
    NAME,
    ONE_SLICE,
    SCREEN,
    SECOND,
    THREE_GFX,
    UNKNOWN_UUID,
    VERSION,
    FakeGpu,
    FakeMig,
    gpu_host,
    mig_minors,
    mig_uuid,
    nvml_files,
    write,
)

if t.TYPE_CHECKING:
    from pathlib import Path

WITH_MIG = SECOND._replace(mig=1, migs=(FakeMig(1, 7, 0, ONE_SLICE), FakeMig(4, 2, 1, THREE_GFX)))


def expected_gpu(fake: FakeGpu, index: int, bus: str = "") -> Gpu:
    return Gpu(index, fake.identity(), fake.minor, bus or fake.bus, fake.name, mig=False, migs=())


# -- NVML ------------------------------------------------------------------------------------------------------------


def test_nvml_and_proc_agree(tmp_path: Path, library: Path) -> None:
    fakes = [EXCLUDED, FIRST, SCREEN, SECOND, FAR]
    host = gpu_host(tmp_path, fakes)
    nvml_files(tmp_path, library, fakes)
    gpus = (expected_gpu(FIRST, 0), expected_gpu(SECOND, 2), expected_gpu(FAR, 3, "10000:01:00.0"))
    assert read_inventory(host) == GpuInventory(VERSION, gpus, "nvml", ())
    assert read_inventory(host, use_nvml=False) == GpuInventory(VERSION, gpus, "proc", ())


def test_mig_devices(tmp_path: Path, library: Path) -> None:
    fakes = [FIRST._replace(mig=0), WITH_MIG, FAR._replace(mig=1)]
    host = gpu_host(tmp_path, fakes)
    nvml_files(tmp_path, library, fakes)
    first, second = WITH_MIG.migs
    migs = (
        MigDevice(1, mig_uuid(WITH_MIG, first), 7, 0, gfx=False),
        MigDevice(4, mig_uuid(WITH_MIG, second), 2, 1, gfx=True),
    )
    found = read_inventory(host)
    assert [(gpu.mig, gpu.migs) for gpu in found.gpus] == [(False, ()), (True, migs), (True, ())]
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("live", "use_nvml", "source"),
    [
        (True, None, "nvml"),
        (True, True, "nvml"),
        (True, False, "proc"),
        (False, None, "proc"),
        (False, True, "nvml"),
        (False, False, "proc"),
    ],
)
def test_when_nvml_is_used(tmp_path: Path, library: Path, live: bool, use_nvml: bool | None, source: str) -> None:
    host = gpu_host(tmp_path, [FIRST], live)
    nvml_files(tmp_path, library, [FIRST])
    found = read_inventory(host, use_nvml=use_nvml)
    assert found.source == source
    assert found.gpus == (expected_gpu(FIRST, 0),)


@pytest.mark.parametrize("folder", [LIBRARY_FOLDER, "usr/lib64", f"{LIBRARY_FOLDER}/nvidia/current"])
def test_directories_of_the_library(tmp_path: Path, library: Path, folder: str) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path / "run/driver", library, [FIRST, SECOND], folder=folder)
    assert read_inventory(host, "/run/driver").gpus == (expected_gpu(FIRST, 0), expected_gpu(SECOND, 1))
    assert read_inventory(host).source == "proc"


def test_given_directory_of_the_library(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], folder="opt/driver")
    assert read_inventory(host).source == "proc"
    assert read_inventory(host, library_folders=["/opt/driver"]).source == "nvml"


def test_unusable_library(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    without = "The GPUs are listed from /proc, sorted by PCI address. There is no libnvidia-ml.so.1 below /. Install"
    (warning,) = read_inventory(host).warnings
    assert warning.startswith(without)
    assert read_inventory(host) == GpuInventory(VERSION, (expected_gpu(FIRST, 0),), "proc", (warning,))
    write(tmp_path, {f"{LIBRARY_FOLDER}/libnvidia-ml.so.1": ""})
    found = read_inventory(host)
    assert found.source == "proc"
    assert f"{LIBRARY_FOLDER}/libnvidia-ml.so.1 cannot be used: " in found.warnings[0]


def test_uses_the_first_usable_library(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    write(tmp_path, {"usr/lib64/libnvidia-ml.so.1": "of another machine"})
    nvml_files(tmp_path, library, [FIRST])
    assert read_inventory(host).source == "nvml"


@pytest.mark.parametrize("name", [LIBRARY_FOLDER, f"{LIBRARY_FOLDER}/libnvidia-ml.so.{VERSION}"])
def test_a_library_that_others_can_write_is_not_loaded(tmp_path: Path, library: Path, name: str) -> None:
    """Code in the library would run as the user of the task, which is root."""
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST])
    (tmp_path / name).chmod(0o777)
    (warning,) = read_inventory(host).warnings
    assert f"libnvidia-ml.so.{VERSION} is not loaded, because another user could replace it: /{name} is wr" in warning
    (tmp_path / name).chmod(0o755)
    assert read_inventory(host).source == "nvml"


def test_library_returns_an_error(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], "fail nvmlInit_v2 -1 18")
    with pytest.raises(HostError, match=r"NVML \(.*\): nvmlInit_v2 returned 18: .* different versions. Restart"):
        read_inventory(host)


def test_gpu_returns_an_error(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST, SECOND])
    nvml_files(tmp_path, library, [FIRST, SECOND], "fail nvmlDeviceGetUUID 1 15")
    found = read_inventory(host)
    # The others can be used.
    assert (found.gpus, found.omitted) == ((expected_gpu(FIRST, 0),), (SECOND.bus,))
    (warning,) = found.warnings
    assert "GPU 1 (00000000:47:00.0) is left out: nvmlDeviceGetUUID returned 15: the GPU is lost" in warning
    result, reason = query_nvml(host)
    assert reason.message == ""
    assert result is not None
    assert [bool(gpu.failure) for gpu in result.gpus] == [False, True]
    for path in (tmp_path / LIBRARY_FOLDER).iterdir():
        path.unlink()
    nvml_files(tmp_path, library, [FIRST], "fail nvmlDeviceGetUUID 0 15")
    with pytest.raises(HostError, match=r"GPU 0 \(00000000:0F:00.0\): nvmlDeviceGetUUID returned 15: the GPU is lost"):
        read_inventory(host)


def test_graphics_of_mig_devices_are_unknown(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [WITH_MIG])
    nvml_files(tmp_path, library, [WITH_MIG], "fail nvmlDeviceGetGpuInstanceById -1 4")
    with pytest.raises(HostError, match=r"only root which MIG devices of GPU 0 have graphics\. Run the task as root"):
        read_inventory(host)


@pytest.mark.parametrize("use_nvml", [True, False])
def test_a_gpu_that_is_no_longer_on_the_bus(tmp_path: Path, library: Path, use_nvml: bool) -> None:
    host = gpu_host(tmp_path, [FIRST, SECOND])
    nvml_files(tmp_path, library, [FIRST, SECOND])
    (tmp_path / "sys/bus/pci/devices" / SECOND.bus).mkdir(parents=True)
    found = read_inventory(host, use_nvml=use_nvml)
    assert (found.gpus, found.omitted) == ((expected_gpu(SECOND, 1),), (FIRST.bus,))
    assert f"GPU 0 ({FIRST.bus}) is left out" in found.warnings[-1]
    # A kernel that lists none of them has another view of the bus.
    (tmp_path / "sys/bus/pci/devices" / SECOND.bus).rmdir()
    assert len(read_inventory(host, use_nvml=use_nvml).gpus) == 2


def test_gpu_without_address(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], "fail nvmlDeviceGetHandleByIndex_v2 0 999")
    with pytest.raises(HostError, match=r"GPU 0 \(unknown address\): nvmlDeviceGetHandleByIndex_v2"):
        read_inventory(host)


def test_invalid_address(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    place = nvml_files(tmp_path, library, []).with_name("nvml.conf")
    place.write_text(f"driver {VERSION}\ngpu {FIRST.identity()} 3 nowhere -1 {NAME}\n")
    with pytest.raises(HostError, match="reports the invalid PCI address 'nowhere' for GPU 0"):
        read_inventory(host)


# -- /proc -----------------------------------------------------------------------------------------------------------


def test_mig_devices_without_nvml(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST, WITH_MIG])
    for use_nvml, reason in ((None, "There is no libnvidia-ml.so.1 below /."), (False, "NVML was not queried")):
        with pytest.raises(HostError, match=r"has MIG devices \(.*/gpu0/mig/gi2\), which only NVML") as caught:
            read_inventory(host, use_nvml=use_nvml)
        assert reason in str(caught.value)


def test_mig_mode_is_unknown_without_nvml(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST._replace(mig=0)])
    for use_nvml in (None, False):
        found = read_inventory(host, use_nvml=use_nvml)
        assert found.gpus == (expected_gpu(FIRST, 0),)
        (warning,) = found.warnings
        assert "/proc shows neither MIG mode without MIG devices nor the UUIDs of MIG devices." in warning


def test_unknown_uuids(tmp_path: Path) -> None:
    unknown = SECOND._replace(uuid=UNKNOWN_UUID)
    found = read_inventory(gpu_host(tmp_path, [FIRST, unknown, FAR._replace(uuid=UNKNOWN_UUID)]), use_nvml=False)
    assert [bool(gpu.uuid) for gpu in found.gpus] == [True, False, False]
    (warning,) = found.warnings
    assert warning.startswith("The driver has not read the UUID of GPU 1, 2 yet")


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    assert read_inventory(host, use_nvml=False).gpus == ()
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: ?")
    with pytest.raises(HostError, match="contains no driver version"):
        read_inventory(host, use_nvml=False)
    (tmp_path / "proc/driver/nvidia/version").unlink()
    # Whatever the reason why NVML cannot be used, the advice is to load the driver.
    monkeypatch.setattr(
        gpu_inventory, "query_nvml", lambda *_arguments: (None, Problem("nvml-unusable", "Run modprobe nvidia."))
    )
    with pytest.raises(HostError, match="No NVIDIA driver is loaded: ") as error:
        read_inventory(host)
    assert str(error.value).count("modprobe") == 1


# -- unusable devices --------------------------------------------------------------------------------------------------


def inventory() -> GpuInventory:
    mig = MigDevice(4, "MIG-1", 0, 1, gfx=False)
    return GpuInventory(
        VERSION, (expected_gpu(FIRST, 0), expected_gpu(SECOND, 2)._replace(mig=True, migs=(mig,))), "nvml", ()
    )


NODES = {
    "/dev/nvidia3": (195, 3),
    "/dev/nvidia0": (195, 0),
    "/dev/nvidia-caps/nvidia-cap3": (235, 3),
    "/dev/nvidia-caps/nvidia-cap5": (235, 5),
}


def test_all_devices_are_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    FakeNodes(monkeypatch, tmp_path, NODES)
    # Without /sys, the bus is not checked.
    assert unusable_devices(host, inventory()) == []
    write(tmp_path, {f"sys/bus/pci/devices/{gpu.bus}/vendor": "" for gpu in (FIRST, SECOND)})
    assert unusable_devices(host, inventory()) == []


def problem(name: str, message: str, code: str = "node-unusable") -> GpuProblem:
    return GpuProblem(name, Problem(code, message))


def replacing(path: str) -> str:
    return f"Remove {path}, then run nvidia-smi as root, which creates it."


@pytest.mark.parametrize(
    ("path", "numbers", "expected"),
    [
        ("/dev/nvidia3", None, problem("0", "/dev/nvidia3 does not exist.")),
        ("/dev/nvidia0", (195, 1), problem("2", "/dev/nvidia0 has the minor number 1, not 0.")),
        (
            "/dev/nvidia-caps/nvidia-cap5",
            None,
            problem("2:4", "/dev/nvidia-caps/nvidia-cap5 does not exist.", "mig-node-unusable"),
        ),
    ],
)
def test_unusable_nodes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    numbers: tuple[int, int] | None,
    expected: GpuProblem,
) -> None:
    host = gpu_host(tmp_path, [])
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    fakes = FakeNodes(monkeypatch, tmp_path, NODES)
    del fakes.nodes[path]
    fakes.nodes.update({} if numbers is None else {path: numbers})
    wrong = expected.problem._replace(advice="" if numbers is None else replacing(path))
    assert unusable_devices(host, inventory()) == [expected._replace(problem=wrong)]
    fakes.block.add(path)
    fakes.nodes[path] = NODES[path]
    (found,) = unusable_devices(host, inventory())
    wrong = expected.problem._replace(message=f"{path} is not a character device.", advice=replacing(path))
    assert found == expected._replace(problem=wrong)


def test_gpu_is_off_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    gpus = (expected_gpu(FIRST, 0), expected_gpu(FAR, 1, "10000:01:00.0"))
    FakeNodes(monkeypatch, tmp_path, {**NODES, "/dev/nvidia1": (195, 1)})
    write(tmp_path, {f"sys/bus/pci/devices/{FAR.bus}/vendor": ""})
    (found,) = unusable_devices(host, GpuInventory(VERSION, gpus, "proc", ()))
    assert (found.name, found.problem.code) == ("0", "gpu-off-bus")
    assert "/sys/bus/pci/devices/0000:0f:00.0 does not exist" in found.problem.message


def test_minors_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    FakeNodes(monkeypatch, tmp_path, NODES)
    (found,) = unusable_devices(host, inventory())
    assert found.name == "2:4"
    assert "mig-minors does not exist" in found.problem.message
