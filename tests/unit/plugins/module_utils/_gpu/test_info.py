# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import Problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, inventory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml as gpu_nvml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.info import (
    DriverPlaces,
    describe_driver,
    describe_gpus,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import parse_minors
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    EXCLUDED,
    FAR,
    FIRST,
    NAME,
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

WITH_MIG = SECOND._replace(mig=1, migs=(FakeMig(1, 7, 0), FakeMig(4, 2, 1, THREE_GFX)))
CONTROL = {
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-uvm": (510, 0),
}
# The vendor and the class of a GPU in /sys/bus/pci/devices.
NVIDIA, DISPLAY = "0x10de\n", "0x030200\n"


def all_nodes(*gpus: FakeGpu) -> dict[str, tuple[int, int]]:
    minors = parse_minors(mig_minors())
    nodes = dict(CONTROL)
    for gpu in gpus:
        nodes[f"/dev/nvidia{gpu.minor}"] = (195, gpu.minor)
        for mig in gpu.migs:
            for name in (f"gi{mig.gi}/access", f"gi{mig.gi}/ci{mig.ci}/access"):
                minor = minors[f"gpu{gpu.minor}/{name}"]
                nodes[f"/dev/nvidia-caps/nvidia-cap{minor}"] = (511, minor)
    return nodes


def expected_gpu(gpu: FakeGpu, index: int | None, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "index": index,
        "uuid": gpu.identity(),
        "minor": gpu.minor,
        "bus_id": gpu.bus,
        "model": NAME,
        "mig_enabled": False,
        "mig_devices": [],
        "vgpu": None,
        "healthy": True,
        "reasons": [],
        **changes,
    }


def expected_mig(mig: FakeMig, uuid: str | None, profile: str | None, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "index": mig.slot if uuid else None,
        "uuid": uuid,
        "gpu_instance": mig.gi,
        "compute_instance": mig.ci,
        "profile": profile,
        "healthy": True,
        "reasons": [],
        **changes,
    }


def unusable(message: str) -> dict[str, str]:
    return {"code": "node-unusable", "message": message}


class GpuHost(t.NamedTuple):
    host: HostFS
    root: Path
    nodes: FakeNodes

    def report(self) -> dict[str, t.Any]:
        return describe_gpus(self.host)


@pytest.fixture
def make_host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., GpuHost]:
    """A function that returns a host with these GPUs and all device nodes."""

    def make(gpus: t.Sequence[FakeGpu], *rules: str, live: bool = True, nvml: bool = True) -> GpuHost:
        host = gpu_host(tmp_path, gpus, live)
        if nvml:
            nvml_files(tmp_path, library, gpus, *rules)
        return GpuHost(host, tmp_path, FakeNodes(monkeypatch, tmp_path, all_nodes(*gpus)))

    return make


def test_libraries_in_another_directory(make_host: t.Callable[..., GpuHost], library: Path) -> None:
    found = make_host([FIRST], nvml=False)
    assert found.report()["source"] == "proc"
    nvml_files(found.root, library, [FIRST], folder="opt/driver/usr/lib64")
    nvml_files(found.root, library, [FIRST], folder="opt/libraries")
    for places in (DriverPlaces(("/opt/driver",)), DriverPlaces(library_folders=("/opt/libraries",))):
        assert describe_gpus(found.host, places)["source"] == "nvml"
    # Another directory is not searched then.
    report = describe_gpus(found.host, DriverPlaces(("/opt/no",)))
    assert report["source"] == "proc"
    assert "/opt/no" in report["problems"][0]["message"]


def test_report(make_host: t.Callable[..., GpuHost]) -> None:
    gpus = [EXCLUDED, FIRST._replace(mig=0), SCREEN, WITH_MIG, FAR._replace(mig=1)]
    found = make_host(gpus)
    modules = {"nvidia": "42", "nvidia_uvm": "2", "gdrdrv": "0"}
    write(found.root, {f"sys/module/{name}/refcnt": f"{users}\n" for name, users in modules.items()})
    write(found.root, {f"sys/module/{name}/version": f"{VERSION}\n" for name in ("nvidia", "nvidia_uvm")})
    write(found.root, {"sys/module/nvidia_drm/parameters/modeset": "Y\n"})
    first, second = WITH_MIG.migs
    uuids = [mig_uuid(WITH_MIG, mig) for mig in WITH_MIG.migs]
    assert found.report() == {
        "driver_version": VERSION,
        "source": "nvml",
        "modules": {
            "nvidia": {"version": VERSION, "refcount": 42},
            "nvidia_uvm": {"version": VERSION, "refcount": 2},
            "gdrdrv": {"version": None, "refcount": 0},
        },
        "devices": [
            expected_gpu(FIRST, 0),
            expected_gpu(
                WITH_MIG,
                2,
                mig_enabled=True,
                mig_devices=[expected_mig(first, uuids[0], "1g"), expected_mig(second, uuids[1], "18g")],
            ),
            # Without MIG devices, no container can use it.
            expected_gpu(FAR, 3, bus_id="10000:01:00.0", mig_enabled=True),
        ],
        "advertised": [FIRST.identity(), *uuids],
        "missing_nodes": [],
        "problems": [],
    }


@pytest.mark.parametrize("live", [True, False])
def test_no_gpus(tmp_path: Path, live: bool) -> None:
    report = describe_gpus(HostFS(str(tmp_path), live))
    assert report == {
        "driver_version": None,
        "source": None,
        "modules": {},
        "devices": [],
        "advertised": [],
        "missing_nodes": [],
        "problems": [],
    }


def test_offline_tree(make_host: t.Callable[..., GpuHost], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_nvml, "query", lambda *_arguments: pytest.fail("NVML was queried"))
    report = make_host([FIRST, FAR], live=False).report()
    assert report["source"] == "proc"
    assert report["devices"] == [expected_gpu(FIRST, 0), expected_gpu(FAR, 1, bus_id="10000:01:00.0")]
    assert report["problems"] == []


def test_without_nvml(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST._replace(mig=0), WITH_MIG], nvml=False)
    report = found.report()
    parts = [expected_mig(mig, None, None) for mig in sorted(WITH_MIG.migs, key=lambda mig: mig.gi)]
    assert report["devices"] == [
        expected_gpu(FIRST, 0, mig_enabled=None),
        expected_gpu(WITH_MIG, 1, mig_enabled=True, mig_devices=parts),
    ]
    assert report["advertised"] == [FIRST.identity()]
    (problem,) = report["problems"]
    assert "/proc shows neither MIG mode without MIG devices nor the UUIDs of MIG devices." in problem["message"]
    assert "There is no libnvidia-ml.so.1 below /." in problem["message"]
    assert problem["advice"].startswith("Install the libraries of the loaded driver's version.")


def test_driver_container(make_host: t.Callable[..., GpuHost], library: Path) -> None:
    found = make_host([FIRST], nvml=False)
    nvml_files(found.root / "run/nvidia/driver", library, [FIRST])
    assert found.report()["source"] == "nvml"


@pytest.fixture
def containerized(make_host: t.Callable[..., GpuHost], library: Path) -> GpuHost:
    """A host with a driver container: the host's /dev has none of the driver's nodes."""
    found = make_host([WITH_MIG], nvml=False)
    nvml_files(found.root / "run/nvidia/driver", library, [WITH_MIG])
    found.nodes.nodes = {f"/run/nvidia/driver{path}": number for path, number in found.nodes.nodes.items()}
    return found


def test_nodes_of_a_driver_container(containerized: GpuHost, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[t.Any, ...]] = []
    query = gpu_nvml.query

    def record(library: str, skipped: t.Any, missing_nodes: t.Any, dev: str) -> gpu_nvml.NvmlResult:
        seen.append((missing_nodes, dev))
        return query(library, skipped, missing_nodes)

    monkeypatch.setattr(gpu_nvml, "query", record)
    report = containerized.report()
    assert (report["source"], report["missing_nodes"], report["problems"]) == ("nvml", [], [])
    assert [gpu["reasons"] for gpu in report["devices"]] == [[]]
    assert report["advertised"] == [mig_uuid(WITH_MIG, mig) for mig in WITH_MIG.migs]
    dev = f"{containerized.root}/run/nvidia/driver/dev"
    assert seen == [([], dev)]
    # NVML of another task, which may create nodes.
    inventory.read_inventory(containerized.host, "/run/nvidia/driver")
    assert seen[1:] == [(None, dev)]
    # Some packages have an NVML for the host, which needs the same nodes.
    nvml_files(containerized.root, library, [WITH_MIG])
    containerized.report()
    assert seen[2:] == [([], dev)]
    # The driver of this task is that of the host.
    report = describe_gpus(containerized.host, DriverPlaces(("/",)))
    assert "/dev/nvidiactl" in report["missing_nodes"]


def test_missing_nodes_of_a_driver_container(containerized: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_nvml, "change_dev", lambda *_arguments: "")
    root = "/run/nvidia/driver"
    for name in ("nvidia-uvm", "nvidia0"):
        del containerized.nodes.nodes[f"{root}/dev/{name}"]
    report = containerized.report()
    assert report["missing_nodes"] == [f"{root}/dev/nvidia-uvm", f"{root}/dev/nvidia0"]
    reasons = [unusable(f"{root}/dev/{name} does not exist.") for name in ("nvidia0", "nvidia-uvm")]
    assert report["devices"][0]["reasons"] == reasons
    containerized.nodes.nodes[f"{root}/dev/nvidia0"] = (195, 7)
    (reason, _uvm) = containerized.report()["devices"][0]["reasons"]
    advice = f"Remove {root}/dev/nvidia0, then run chroot {root} nvidia-smi as root, which creates it."
    assert reason["advice"] == advice


# -- problems ----------------------------------------------------------------------------------------------------------


def test_nvml_returns_an_error_for_a_gpu(make_host: t.Callable[..., GpuHost]) -> None:
    report = make_host([FIRST, SECOND], "fail nvmlDeviceGetUUID 1 15").report()
    first, second = report["devices"]
    assert first["healthy"]
    assert (second["index"], second["uuid"], second["minor"]) == (1, None, None)
    assert (second["healthy"], second["mig_enabled"]) == (False, None)
    (reason,) = second["reasons"]
    assert reason["code"] == "gpu-failed"
    assert "nvmlDeviceGetUUID returned 15: the GPU is lost" in reason["message"]
    assert report["advertised"] == [FIRST.identity()]
    assert report["problems"] == []


def test_problem_of_a_gpu_with_mig_devices(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([WITH_MIG])
    del found.nodes.nodes["/dev/nvidia0"]
    report = found.report()
    (gpu,) = report["devices"]
    assert [one["reasons"] for one in [gpu, *gpu["mig_devices"]]] == [[unusable("/dev/nvidia0 does not exist.")]] * 3
    assert report["advertised"] == []
    assert report["missing_nodes"] == ["/dev/nvidia0"]


def test_mig_devices_without_root(make_host: t.Callable[..., GpuHost]) -> None:
    report = make_host([WITH_MIG], "fail nvmlDeviceGetGpuInstanceById -1 4").report()
    assert [gpu["reasons"] for gpu in report["devices"]] == [[]]
    assert report["advertised"] == [mig_uuid(WITH_MIG, mig) for mig in WITH_MIG.migs]


def test_problem_of_a_mig_device(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([WITH_MIG])
    path = "/dev/nvidia-caps/nvidia-cap67"
    del found.nodes.nodes[path]
    report = found.report()
    (gpu,) = report["devices"]
    assert gpu["healthy"]
    assert [mig["reasons"] for mig in gpu["mig_devices"]] == [
        [{"code": "mig-node-unusable", "message": f"{path} does not exist."}],
        [],
    ]
    assert report["advertised"] == [mig_uuid(WITH_MIG, WITH_MIG.migs[1])]
    assert report["missing_nodes"] == [path]


def test_missing_control_node(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST, SECOND])
    del found.nodes.nodes["/dev/nvidia-uvm"]
    report = found.report()
    assert [gpu["reasons"] for gpu in report["devices"]] == [[unusable("/dev/nvidia-uvm does not exist.")]] * 2
    assert report["missing_nodes"] == ["/dev/nvidia-uvm"]


def test_nodes_of_loaded_modules(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST])
    write(found.root, {"proc/devices": "Character devices:\n195 nvidia\n510 nvidia-uvm\n"})
    write(found.root, {"proc/modules": "nvidia_modeset 1 0 - Live 0x0\n"})
    report = found.report()
    assert report["missing_nodes"] == ["/dev/nvidia-modeset", "/dev/nvidia-uvm-tools"]
    # Not every container needs these.
    assert report["devices"][0]["healthy"]


def test_nvml_returns_an_error(make_host: t.Callable[..., GpuHost]) -> None:
    report = make_host([FIRST, SECOND], "fail nvmlInit_v2 -1 18").report()
    (problem,) = report["problems"]
    assert problem["code"] == "driver-version-differs"
    assert "have different versions" in problem["message"]
    assert report["source"] == "proc"
    assert [gpu["uuid"] for gpu in report["devices"]] == [FIRST.identity(), SECOND.identity()]
    assert [gpu["reasons"] for gpu in report["devices"]] == [[problem]] * 2


def test_nvml_does_not_list_a_gpu(make_host: t.Callable[..., GpuHost], library: Path) -> None:
    found = make_host([FIRST, SECOND], nvml=False)
    nvml_files(found.root, library, [SECOND])
    advice = "Check the kernel's log for NVRM and Xid."
    reason = {"code": "gpu-not-listed", "message": "NVML does not list this GPU.", "advice": advice}
    assert found.report()["devices"] == [
        expected_gpu(SECOND, 0),
        expected_gpu(FIRST, None, healthy=False, reasons=[reason]),
    ]


def test_gpu_does_not_answer_the_driver(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST, SECOND], nvml=False)
    write(found.root, {f"proc/driver/nvidia/gpus/{FIRST.bus}/information": ""})
    first, second = found.report()["devices"]
    assert (first["index"], first["bus_id"], first["minor"], first["healthy"]) == (0, FIRST.bus, None, False)
    assert "the file is empty: the GPU does not answer the driver" in first["reasons"][0]["message"]
    assert second == expected_gpu(SECOND, 1)


def test_unknown_uuid(make_host: t.Callable[..., GpuHost]) -> None:
    report = make_host([FIRST._replace(uuid=UNKNOWN_UUID)], nvml=False).report()
    assert report["devices"][0]["uuid"] is None
    assert report["advertised"] == []
    assert "The driver has not read the UUID of GPU 0 yet" in report["problems"][1]["message"]


@pytest.mark.parametrize(
    ("driver", "code", "message"),
    [
        ("", "driver-not-loaded", "0000:47:00.0 (no driver)"),
        ("nouveau", "gpu-driven-by-nouveau", "0000:47:00.0 (driver nouveau)"),
        ("vfio-pci", "", ""),
        ("nvgrace_gpu_vfio_pci", "", ""),
    ],
)
@pytest.mark.parametrize("loaded", [True, False])
def test_gpu_without_driver(
    make_host: t.Callable[..., GpuHost], driver: str, code: str, message: str, loaded: bool
) -> None:
    found = make_host([EXCLUDED, FIRST])
    for gpu in (EXCLUDED, FIRST, SECOND):
        folder = f"sys/bus/pci/devices/{gpu.bus}"
        write(found.root, {f"{folder}/vendor": NVIDIA, f"{folder}/class": DISPLAY})
    if driver:
        os.symlink(f"../drivers/{driver}", found.root / f"sys/bus/pci/devices/{SECOND.bus}/driver")
    if not loaded:
        (found.root / "proc/driver/nvidia/version").unlink()
        for gpu in (EXCLUDED, FIRST):
            os.symlink("../drivers/pci-stub", found.root / f"sys/bus/pci/devices/{gpu.bus}/driver")
    problems = found.report()["problems"]
    assert [problem["code"] for problem in problems] == ([code] if code else [])
    assert all(message in problem["message"] for problem in problems)


@pytest.mark.parametrize("driver", ["nvidia", ""])
def test_virtual_functions(make_host: t.Callable[..., GpuHost], driver: str) -> None:
    found = make_host([FIRST])
    folders = [f"sys/bus/pci/devices/{address}" for address in (FIRST.bus, "0000:0f:00.4")]
    for folder in folders:
        write(found.root, {f"{folder}/vendor": NVIDIA, f"{folder}/class": DISPLAY})
    if driver:
        os.symlink(f"../drivers/{driver}", found.root / folders[1] / "driver")
    assert [problem["code"] for problem in found.report()["problems"]] == ["driver-not-loaded"]
    os.symlink(f"../{FIRST.bus}", found.root / folders[1] / "physfn")
    assert found.report()["problems"] == []


# -- device nodes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "missing", "expected"),
    [
        ("", [], []),
        ("", ["/dev/nvidia3", "/dev/nvidiactl"], ["/dev/nvidiactl", "/dev/nvidia3"]),
        ("", ["/dev/nvidia-uvm"], []),
        ("", ["/dev/nvidia-caps/nvidia-cap66"], ["/dev/nvidia-caps/nvidia-cap66"]),
        ("ModifyDeviceFiles: 0\n", ["/dev/nvidia3"], []),
    ],
)
def test_nodes_that_nvml_would_create(
    make_host: t.Callable[..., GpuHost],
    monkeypatch: pytest.MonkeyPatch,
    params: str,
    missing: list[str],
    expected: list[str],
) -> None:
    found = make_host([FIRST, WITH_MIG])
    write(found.root, {"proc/driver/nvidia/params": params})
    for path in missing:
        del found.nodes.nodes[path]
    seen = []

    def answer(*_arguments: object, missing_nodes: t.Sequence[str], **_options: object) -> tuple[None, Problem]:
        seen.append(list(missing_nodes))
        return None, Problem("nvml-unusable", "Not now.")

    monkeypatch.setattr(inventory, "query_nvml", answer)
    found.report()
    assert seen == [expected]


def test_does_not_query_nvml_that_would_create_nodes(
    make_host: t.Callable[..., GpuHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make_host([FIRST])
    monkeypatch.setattr(gpu_nvml, "change_dev", lambda *_arguments: "/dev is writable")
    assert found.report()["source"] == "nvml"
    del found.nodes.nodes["/dev/nvidia3"]
    report = found.report()
    assert report["source"] == "proc"
    assert "it would create /dev/nvidia3, and /dev is writable" in report["problems"][0]["message"]


def test_integrated_gpu(make_host: t.Callable[..., GpuHost], library: Path) -> None:
    """Orin has the driver of its screen, without nvidia-uvm, and NVML reports no PCI address for its GPU."""
    found = make_host([], nvml=False)
    found.nodes.nodes = {}
    write(found.root, {"proc/device-tree/compatible": "nvidia,p3737-0000\0nvidia,tegra234\0"})
    gpus = [FakeGpu("0000:00:00.0", 0, name) for name in ("Orin (nvgpu)", "Orin (nvgpu)", NAME)]
    rules = [f"fail nvmlDeviceGetPciInfo_v3 {index} {code}" for index, code in enumerate((3, 15, 3))]
    nvml_files(found.root, library, gpus, *rules)
    report = found.report()
    assert (report["missing_nodes"], report["problems"]) == ([], [])
    integrated, *others = report["devices"]
    expected = {"uuid": None, "minor": None, "bus_id": None, "model": "Orin (nvgpu)"}
    assert integrated == expected_gpu(gpus[0], 0, **expected)
    assert [gpu["reasons"][0]["code"] for gpu in others] == ["gpu-failed"] * 2


def test_integrated_gpu_on_the_pci_bus(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FakeGpu(FIRST.bus, 0, "NVIDIA Thor")], nvml=False)
    pci = f"sys/bus/pci/devices/{FIRST.bus}"
    files = {f"{pci}/vendor": "0x10de\n", f"{pci}/class": "0x030000\n"}
    write(found.root, {"proc/device-tree/compatible": "nvidia,tegra264\0", **files})
    del found.nodes.nodes["/dev/nvidia-uvm"]
    assert found.report()["missing_nodes"] == ["/dev/nvidia-uvm"]


def test_vgpu(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST, SECOND], "vgpu 0 2 1 0 1 NVIDIA vPC", "vgpu 1 2 0 0 0 x")
    assert [device["vgpu"] for device in found.report()["devices"]] == [
        {"product": "NVIDIA vPC", "licensed": False},
        {"product": None, "licensed": None},
    ]


# -- hostile hosts -----------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["", "9" * 5000, "Bus Location: 0000:01:00.0\nDevice Minor: 0\n", "gpu0/gi0/access x", "\0", "-1"]),
)
FILES = [
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
    "proc/driver/nvidia/gpus/\\x/information",
    "proc/driver/nvidia/capabilities/gpu0/mig/gi0/ci0/access",
    "proc/driver/nvidia-caps/mig-minors",
    "proc/devices",
    "proc/modules",
    "sys/module/nvidia/refcnt",
    "sys/module/nvidia/version",
    "sys/bus/pci/devices/x/vendor",
    "usr/lib64/libnvidia-ml.so.1",
    "dev/nvidia0",
]


@given(st.dictionaries(st.sampled_from(FILES), TEXTS, max_size=8), st.booleans())
def test_any_content(files: dict[str, str], live: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"proc/driver/nvidia/version": "NVRM version: x  1000.1 \n"})
        for path, text in files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode("utf-8", "replace"))
        report = describe_gpus(HostFS(folder, live))
    assert all({*problem, "advice"} == {"code", "message", "advice"} for problem in report["problems"])


def test_directories_instead_of_files(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path).mkdir(parents=True)
    report = describe_gpus(HostFS(str(tmp_path), live=True))
    assert [gpu["healthy"] for gpu in report["devices"]] == [False, False]


def test_unexpected_error_becomes_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> t.NoReturn:
        raise ValueError("too many digits")

    host = gpu_host(tmp_path, [FIRST], live=False)
    monkeypatch.setattr(device_nodes, "control_nodes", refuse)
    report = describe_gpus(host)
    message = "Some GPUs cannot be inspected: too many digits"
    assert report["problems"] == [{"code": "error", "message": message}]
    assert report["driver_version"] == VERSION


# -- kernel and services -------------------------------------------------------------------------------------------


def driver_report(found: GpuHost) -> dict[str, t.Any]:
    def run(argv: list[str]) -> tuple[int, str, str]:
        # A loaded module was accepted by the kernel.
        assert "modinfo" not in argv
        return (127, "", "")

    return describe_driver(found.host, run, found.report())


def test_kernel_and_services_of_a_loaded_driver(make_host: t.Callable[..., GpuHost]) -> None:
    found = make_host([FIRST])
    kernel = {"proc/sys/kernel/osrelease": "6.8", "lib/modules/6.8/modules.dep": "nvidia.ko.zst:"}
    write(found.root, {**kernel, "proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information": ""})
    report = driver_report(found)
    assert report["kernel"]["module"] == "/lib/modules/6.8/nvidia.ko.zst"
    assert report["fabric_manager"] == {"program": None, "version": None, "running": None}


def test_kernel_without_a_loaded_driver(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:0f:00.0"
    kernel = {"proc/sys/kernel/osrelease": "6.8", "lib/modules/6.8/modules.dep": "nvidia.ko:"}
    write(tmp_path, {f"{folder}/vendor": NVIDIA, f"{folder}/class": DISPLAY, **kernel})
    host = HostFS(str(tmp_path))
    report = describe_driver(host, lambda _argv: (1, "", "ERROR: x"), describe_gpus(host))
    assert (report["kernel"]["module"], report["fabric_manager"]) == ("/lib/modules/6.8/nvidia.ko", None)
    (problem,) = report["problems"]
    assert problem["code"] == "driver-not-loaded"
    assert problem["message"].endswith("0000:0f:00.0 (no driver). modinfo /lib/modules/6.8/nvidia.ko fails: ERROR: x.")


def test_no_kernel_without_a_gpu_or_in_an_offline_tree(make_host: t.Callable[..., GpuHost], tmp_path: Path) -> None:
    nothing: dict[str, t.Any] = {"kernel": None, "fabric_manager": None, "problems": []}
    host = HostFS(str(tmp_path / "empty"))
    assert describe_driver(host, lambda _argv: (127, "", ""), describe_gpus(host)) == nothing
    assert driver_report(make_host([FIRST], live=False, nvml=False)) == nothing
