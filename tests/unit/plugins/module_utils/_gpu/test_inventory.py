# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, Problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import (
    Gpu,
    GpuInventory,
    GpuProblem,
    MigDevice,
    mig_nodes,
    query_nvml,
    read_inventory,
    unusable_devices,
)
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
    compiled,
    gpu_host,
    mig_minors,
    mig_uuid,
    nvml_files,
    write,
)

if t.TYPE_CHECKING:
    from pathlib import Path

DIVIDED = SECOND._replace(mig=1, migs=(FakeMig(1, 7, 0, ONE_SLICE), FakeMig(4, 2, 1, THREE_GFX)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


def whole(fake: FakeGpu, index: int, bus: str = "") -> Gpu:
    return Gpu(index, fake.identity(), fake.minor, bus or fake.bus, fake.name, mig=False, migs=())


@pytest.fixture
def limit() -> t.Iterator[None]:
    """To open a named pipe takes until there is a writer: fail, where the test would wait for ever."""
    former = signal.signal(signal.SIGALRM, lambda *_arguments: pytest.fail("it waits"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.usefixtures("limit")
def test_a_named_pipe_in_the_place_of_a_gpu(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    (tmp_path / f"proc/driver/nvidia/gpus/{FIRST.bus}/information").unlink()
    os.mkfifo(tmp_path / f"proc/driver/nvidia/gpus/{FIRST.bus}/information")
    with pytest.raises(HostError, match="information is not a regular file"):
        read_inventory(host, use_nvml=False)


@pytest.mark.usefixtures("limit")
def test_a_named_pipe_in_the_place_of_capabilities(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [DIVIDED])
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").unlink()
    os.mkfifo(tmp_path / "proc/driver/nvidia-caps/mig-minors")
    gpu = whole(DIVIDED, 0)._replace(mig=True, migs=(MigDevice(1, "MIG-1", 7, 0, gfx=False),))
    with pytest.raises(HostError, match="mig-minors is not a regular file"):
        mig_nodes(host, GpuInventory(VERSION, (gpu,), "nvml", ()))


# -- NVML ------------------------------------------------------------------------------------------------------------


def test_nvml_and_proc_agree(tmp_path: Path, library: Path) -> None:
    fakes = [EXCLUDED, FIRST, SCREEN, SECOND, FAR]
    host = gpu_host(tmp_path, fakes)
    nvml_files(tmp_path, library, fakes)
    gpus = (whole(FIRST, 0), whole(SECOND, 2), whole(FAR, 3, "00010000:01:00.0"))
    assert read_inventory(host) == GpuInventory(VERSION, gpus, "nvml", ())
    assert read_inventory(host, use_nvml=False) == GpuInventory(VERSION, gpus, "proc", ())


def test_mig_devices(tmp_path: Path, library: Path) -> None:
    fakes = [FIRST._replace(mig=0), DIVIDED, FAR._replace(mig=1)]
    host = gpu_host(tmp_path, fakes)
    nvml_files(tmp_path, library, fakes)
    first, second = DIVIDED.migs
    migs = (
        MigDevice(1, mig_uuid(DIVIDED, first), 7, 0, gfx=False),
        MigDevice(4, mig_uuid(DIVIDED, second), 2, 1, gfx=True),
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
    assert found.gpus == (whole(FIRST, 0),)


@pytest.mark.parametrize("folder", [LIBRARY_FOLDER, "usr/lib64", f"{LIBRARY_FOLDER}/nvidia/current"])
def test_where_the_library_is(tmp_path: Path, library: Path, folder: str) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path / "run/driver", library, [FIRST, SECOND], folder=folder)
    assert read_inventory(host, "/run/driver").gpus == (whole(FIRST, 0), whole(SECOND, 1))
    assert read_inventory(host).source == "proc"


def test_a_folder_of_the_users_own(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], folder="opt/driver")
    assert read_inventory(host).source == "proc"
    assert read_inventory(host, library_folders=["/opt/driver"]).source == "nvml"


def test_a_library_that_cannot_be_used(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    without = "The GPUs are listed from /proc, by their PCI addresses. There is no libnvidia-ml.so.1 below /."
    assert read_inventory(host) == GpuInventory(VERSION, (whole(FIRST, 0),), "proc", (without,))
    write(tmp_path, {f"{LIBRARY_FOLDER}/libnvidia-ml.so.1": ""})
    found = read_inventory(host)
    assert found.source == "proc"
    assert f"{LIBRARY_FOLDER}/libnvidia-ml.so.1 cannot be used: " in found.warnings[0]


def test_the_first_library_that_can_be_used(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    write(tmp_path, {"usr/lib64/libnvidia-ml.so.1": "of another machine"})
    nvml_files(tmp_path, library, [FIRST])
    assert read_inventory(host).source == "nvml"


def test_a_library_without_a_function(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, compiled(tmp_path, "-DWITHOUT_PROFILES"), [FIRST])
    found = read_inventory(host)
    assert found.source == "proc"
    assert "nvmlDeviceGetGpuInstanceProfileInfo" in found.warnings[0]


def test_a_library_that_returns_an_error(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], "fail nvmlInit_v2 -1 18")
    with pytest.raises(HostError, match=r"NVML \(.*\): nvmlInit_v2 returned 18: .* different versions. Restart"):
        read_inventory(host)


def test_a_gpu_with_an_error(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST, SECOND])
    nvml_files(tmp_path, library, [FIRST, SECOND], "fail nvmlDeviceGetUUID 1 15")
    with pytest.raises(HostError, match=r"GPU 1 \(00000000:47:00.0\): nvmlDeviceGetUUID returned 15: the GPU is lost"):
        read_inventory(host)
    answer, refusal = query_nvml(host)
    assert refusal.message == ""
    assert answer is not None
    assert [bool(gpu.failure) for gpu in answer.gpus] == [False, True]


def test_a_gpu_that_cannot_be_found(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    nvml_files(tmp_path, library, [FIRST], "fail nvmlDeviceGetHandleByIndex_v2 0 999")
    with pytest.raises(HostError, match=r"GPU 0 \(unknown address\): nvmlDeviceGetHandleByIndex_v2"):
        read_inventory(host)


def test_an_address_that_is_none(tmp_path: Path, library: Path) -> None:
    host = gpu_host(tmp_path, [FIRST])
    place = nvml_files(tmp_path, library, []).with_name("nvml.conf")
    place.write_text(f"driver {VERSION}\ngpu {FIRST.identity()} 3 nowhere -1 {NAME}\n")
    with pytest.raises(HostError, match="reports the invalid PCI address 'nowhere' for GPU 0"):
        read_inventory(host)


# -- /proc -----------------------------------------------------------------------------------------------------------


def test_mig_devices_without_nvml(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST, DIVIDED])
    for use_nvml, reason in ((None, "There is no libnvidia-ml.so.1 below /."), (False, "NVML was not queried")):
        with pytest.raises(HostError, match=r"has MIG devices \(.*/gpu0/mig/gi2\), which only NVML") as caught:
            read_inventory(host, use_nvml=use_nvml)
        assert reason in str(caught.value)


def test_a_machine_that_could_have_mig_devices(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [FIRST._replace(mig=0)])
    for use_nvml in (None, False):
        found = read_inventory(host, use_nvml=use_nvml)
        assert found.gpus == (whole(FIRST, 0),)
        (warning,) = found.warnings
        assert "/proc shows neither MIG mode without MIG devices nor the UUIDs of MIG devices." in warning


def test_a_uuid_that_is_not_known_yet(tmp_path: Path) -> None:
    unknown = SECOND._replace(uuid=UNKNOWN_UUID)
    found = read_inventory(gpu_host(tmp_path, [FIRST, unknown, FAR._replace(uuid=UNKNOWN_UUID)]), use_nvml=False)
    assert [bool(gpu.uuid) for gpu in found.gpus] == [True, False, False]
    (warning,) = found.warnings
    assert warning.startswith("The driver has not read the UUID of GPU 1, 2 yet")


def test_no_driver(tmp_path: Path) -> None:
    host = gpu_host(tmp_path, [])
    assert read_inventory(host, use_nvml=False).gpus == ()
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: ?")
    with pytest.raises(HostError, match="contains no driver version"):
        read_inventory(host, use_nvml=False)
    (tmp_path / "proc/driver/nvidia/version").unlink()
    with pytest.raises(HostError, match=r"No NVIDIA driver is loaded: .* There is no libnvidia-ml.so.1"):
        read_inventory(host)


# -- what cannot be used ---------------------------------------------------------------------------------------------


def statuses(monkeypatch: pytest.MonkeyPatch, root: Path, nodes: t.Mapping[str, tuple[int, int]]) -> None:
    """Make ``nodes``, modes and minor numbers by path, look as if they were below ``root``: to make some takes root."""
    real = os.stat

    def told(path: t.Any, **options: t.Any) -> os.stat_result:
        name = os.path.relpath(path, root) if isinstance(path, str) else ""
        if name not in nodes:
            return real(path, **options)
        mode, minor = nodes[name]
        return os.stat_result((mode, *[0] * 9), {"st_rdev": os.makedev(195, minor)})

    monkeypatch.setattr(os, "stat", told)


def divided() -> GpuInventory:
    part = MigDevice(4, "MIG-1", 0, 1, gfx=False)
    return GpuInventory(VERSION, (whole(FIRST, 0), whole(SECOND, 2)._replace(mig=True, migs=(part,))), "nvml", ())


NODES = {
    "dev/nvidia3": (stat.S_IFCHR, 3),
    "dev/nvidia0": (stat.S_IFCHR, 0),
    "dev/nvidia-caps/nvidia-cap3": (stat.S_IFCHR, 3),
    "dev/nvidia-caps/nvidia-cap5": (stat.S_IFCHR, 5),
}


def test_nothing_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    statuses(monkeypatch, tmp_path, NODES)
    # Without /sys nobody knows what is on the bus.
    assert unusable_devices(host, divided()) == []
    write(tmp_path, {f"sys/bus/pci/devices/{gpu.bus}/vendor": "" for gpu in (FIRST, SECOND)})
    assert unusable_devices(host, divided()) == []


def fault(name: str, message: str, code: str = "node-unusable") -> GpuProblem:
    return GpuProblem(name, Problem(code, message))


@pytest.mark.parametrize(
    ("path", "node", "expected"),
    [
        ("dev/nvidia3", None, fault("0", "/dev/nvidia3 does not exist.")),
        ("dev/nvidia3", (stat.S_IFREG, 3), fault("0", "/dev/nvidia3 is not a character device.")),
        ("dev/nvidia0", (stat.S_IFCHR, 1), fault("2", "/dev/nvidia0 has the minor number 1, not 0.")),
        (
            "dev/nvidia-caps/nvidia-cap5",
            None,
            fault("2:4", "/dev/nvidia-caps/nvidia-cap5 does not exist.", "mig-node-unusable"),
        ),
    ],
)
def test_nodes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    node: tuple[int, int] | None,
    expected: GpuProblem,
) -> None:
    host = gpu_host(tmp_path, [])
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    others = {name: known for name, known in NODES.items() if name != path}
    statuses(monkeypatch, tmp_path, others if node is None else {**others, path: node})
    assert unusable_devices(host, divided()) == [expected]


def test_a_gpu_that_the_bus_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    gpus = (whole(FIRST, 0), whole(FAR, 1, "00010000:01:00.0"))
    statuses(monkeypatch, tmp_path, {**NODES, "dev/nvidia1": (stat.S_IFCHR, 1)})
    write(tmp_path, {f"sys/bus/pci/devices/{FAR.bus}/vendor": ""})
    (found,) = unusable_devices(host, GpuInventory(VERSION, gpus, "proc", ()))
    assert (found.name, found.problem.code) == ("0", "gpu-off-bus")
    assert "/sys/bus/pci/devices/0000:0f:00.0 does not exist" in found.problem.message


def test_a_capability_without_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_host(tmp_path, [])
    statuses(monkeypatch, tmp_path, NODES)
    (found,) = unusable_devices(host, divided())
    assert found.name == "2:4"
    assert "mig-minors does not exist" in found.problem.message
