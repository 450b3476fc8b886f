# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers as their engines report them, on hosts in directories, and the expected explanation.

Public reports describe containers of these kinds.
"""

from __future__ import annotations

import shutil
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    explain,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    host as explain_host,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import ContainerStatus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import gpu_hosts
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.container_reports import (
    ALL,
    ALL_MOUNTS,
    COMMON,
    CONFIG,
    FIRST,
    IN_MIG_MODE,
    LIBRARIES,
    SECOND,
    SPECIFICATION,
    VERSION,
    WITH_MIG,
    WITHOUT_GPUS,
    Report,
    verdict,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    Explanation = t.Dict[str, t.Any]


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
def test_a_healthy_container(report: Report, toolkit: str) -> None:
    report.toolkit = toolkit
    found = report.of_docker(ALL, mounts=ALL_MOUNTS)
    assert (*verdict(found), found["advice"]) == (True, "ok", "")
    assert "2 of 2 GPUs" in found["message"]
    assert verdict(report.of_docker(ALL)) == (True, "ok")


# -- runtimes of the engine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nvidia", "nvidia-cdi", "gpu"])
def test_a_runtime_that_docker_does_not_know(report: Report, name: str) -> None:
    report.runtimes = {"runc": "runc"}
    found = report.of_docker(ALL, runtime=name, error=f"unknown or invalid runtime name: {name}")
    assert verdict(found) == (False, "runtime-unknown")
    assert f"no runtime named {name}" in found["message"]
    assert "nvidia_runtime_config" in found["advice"]
    assert "--runtime" not in found["advice"]
    # Its option --gpus does not help.
    gpus = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]
    assert report.of_docker(runtime=name, DeviceRequests=gpus)["code"] == "runtime-unknown"


def test_a_pod_from_before_the_default_runtime(report: Report) -> None:
    info = {"pid": 0, "runtimeOptions": {}, "config": {}, "runtimeSpec": {"process": {"env": [ALL]}}}
    container = explain_container.from_cri("containerd", "ab", "ns/pod/c", ContainerStatus(2, info, ""), cdi=True)
    for default in (True, False, None):
        state = explain_host.ReportedEngine("2.1.4", cdi=True, default_nvidia=default)
        found = explain.explain(container, explain_host.read_host(container, state, None, report.host, report.run))
        assert verdict(found) == (False, "runtime-not-nvidia")
        assert ("Delete the pod" in found["advice"]) is (default is True)
        assert ("set_as_default" in found["advice"]) is (default is not True)


def test_a_docker_that_does_not_report_its_runtimes(report: Report) -> None:
    report.runtimes = {}
    assert verdict(report.of_docker(ALL)) == (None, "program-unknown")
    assert verdict(report.of_docker(ALL, runtime="runc")) == (False, "runtime-not-nvidia")


def test_a_shim_needs_no_registration(report: Report) -> None:
    assert report.of_docker(ALL, runtime="io.containerd.runc.v2")["code"] == "runtime-not-nvidia"


def test_a_runtime_named_nvidia_with_another_program(report: Report) -> None:
    report.runtimes["nvidia"] = "/usr/bin/runc"
    found = report.of_docker(ALL)
    assert verdict(found) == (False, "runtime-not-nvidia")
    assert "/usr/bin/runc" in found["message"]
    assert "Register" in found["advice"]


def test_a_runtime_that_podman_gets_from_containers_conf(report: Report) -> None:
    fields: dict[str, t.Any] = {
        "OCIRuntime": "nvidia",
        "Config": {"Env": [ALL], "CreateCommand": ["podman", "run", "x"]},
    }
    assert verdict(report.of_podman(**fields)) == (None, "program-unknown")
    for path in ("usr/share/containers/containers.conf", "etc/containers/containers.conf.d/nvidia.conf"):
        report.add(path, '[engine.runtimes]\nnvidia = ["/opt/no", "/usr/bin/nvidia-container-runtime"]\n')
        found = report.of_podman(**fields)
        assert verdict(found) == (True, "ok")
        assert found["mode"] == "jit-cdi"
        (report.root / path).unlink()


# -- GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mounts", [WITHOUT_GPUS, None])
@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
def test_a_host_without_a_gpu(tmp_path: Path, mounts: tuple[str, ...] | None, toolkit: str) -> None:
    report = Report(tmp_path, ())
    report.toolkit = toolkit
    found = report.of_docker(ALL, mounts=mounts)
    assert verdict(found) == (False, "no-usable-gpu")
    assert "This host has no usable GPU" in found["message"]


def test_a_specification_of_a_gpu_that_is_gone(tmp_path: Path) -> None:
    report = Report(tmp_path, (FIRST,))
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION)
    requests = [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]
    found = report.of_docker(runtime="runc", DeviceRequests=requests, mounts=ALL_MOUNTS)
    assert verdict(found) == (False, "gpu-unusable")
    assert "/dev/nvidia1" in found["message"]


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
@pytest.mark.parametrize("value", ["all", "0", IN_MIG_MODE.identity()])
def test_mig_mode_without_mig_devices(tmp_path: Path, toolkit: str, value: str) -> None:
    report = Report(tmp_path, (IN_MIG_MODE,), with_nvml=True)
    report.toolkit = toolkit
    found = report.of_docker(f"NVIDIA_VISIBLE_DEVICES={value}", mounts=WITHOUT_GPUS)
    assert verdict(found) == (False, "mig-mode")
    assert "GPU 0 is in MIG mode and has no MIG device" in found["message"]


def test_a_gpu_in_mig_mode_by_its_number(tmp_path: Path) -> None:
    report = Report(tmp_path, (WITH_MIG,), with_nvml=True)
    found = report.of_docker("NVIDIA_VISIBLE_DEVICES=0")
    assert verdict(found) == (False, "mig-mode")
    assert "MIG devices" in found["advice"]
    for value in ("0:0", "all", gpu_hosts.mig_uuid(WITH_MIG, WITH_MIG.migs[0])):
        assert verdict(report.of_docker(f"NVIDIA_VISIBLE_DEVICES={value}")) == (True, "ok")


def test_one_gpu_without_mig_devices_beside_others(tmp_path: Path) -> None:
    report = Report(tmp_path, (IN_MIG_MODE, SECOND._replace(mig=0)), with_nvml=True)
    found = report.of_docker(ALL)
    assert verdict(found) == (True, "ok")
    assert "1 of 1 GPUs" in found["message"]
    assert report.of_docker("NVIDIA_VISIBLE_DEVICES=0,1")["code"] == "mig-mode"


def test_a_gpu_that_fell_off_the_bus(report: Report) -> None:
    (report.root / "sys/bus/pci/devices" / FIRST.bus).mkdir(parents=True)
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (False, "gpu-unusable")
    assert verdict(report.of_docker("NVIDIA_VISIBLE_DEVICES=1")) == (False, "gpu-unusable")
    assert verdict(report.of_docker("NVIDIA_VISIBLE_DEVICES=0")) == (True, "ok")


def test_a_gpu_that_nvml_cannot_use(tmp_path: Path) -> None:
    report = Report(tmp_path)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (report.root / LIBRARIES / name).unlink()
    gpu_hosts.nvml_files(
        report.root, gpu_hosts.compiled(tmp_path), (FIRST, SECOND), "fail nvmlDeviceGetUUID 1 15", folder=LIBRARIES
    )
    found = report.of_docker(ALL, mounts=ALL_MOUNTS)
    assert verdict(found) == (False, "gpu-unusable")
    assert "GPU 1 cannot be used: " in found["message"]
    # NVML's own advice for this error.
    assert "A restart of the host usually helps" in found["advice"]
    assert verdict(report.of_docker("NVIDIA_VISIBLE_DEVICES=0")) == (True, "ok")


def test_mig_devices_of_a_specification(tmp_path: Path) -> None:
    report = Report(tmp_path, (WITH_MIG,), with_nvml=True)
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (30, 31)]
    nodes = ", ".join(f"{{path: {path}}}" for path in ("/dev/nvidia0", *caps))
    report.add(
        "etc/cdi/nvidia.yaml",
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
        f'- {{name: "0:0", containerEdits: {{deviceNodes: [{nodes}]}}}}\n'
        '- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}\n'
        f"{COMMON}",
    )
    for name, expected in (("0:0", (True, "ok")), ("0", (False, "mig-mode"))):
        requests = [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}"]}]
        found = report.of_docker(runtime="runc", DeviceRequests=requests, mounts=(*ALL_MOUNTS, *caps))
        assert verdict(found) == expected, found


# -- the driver --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
def test_a_library_of_another_version(report: Report, toolkit: str) -> None:
    report.toolkit = toolkit
    report.add_library("550.200.01")
    found = report.of_docker(ALL)
    assert verdict(found) == (False, "driver-library-differs")
    assert "550.200.01" in found["message"]
    assert VERSION in found["message"]
    assert "Restart the host" in found["advice"]
    # A container from before the update has the files of the loaded module.
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")
    stale = tuple(path.replace(VERSION, "550.200.01") for path in ALL_MOUNTS)
    assert report.of_docker(ALL, mounts=stale)["ok"] is False


@pytest.mark.parametrize("mounts", [None, ALL_MOUNTS])
def test_kernel_modules_of_several_versions(report: Report, mounts: tuple[str, ...] | None) -> None:
    for name, version in (("nvidia", VERSION), ("nvidia_uvm", "550.200.01")):
        report.add(f"sys/module/{name}/version", f"{version}\n")
        report.add(f"sys/module/{name}/refcnt", "1\n")
    assert verdict(report.of_docker(ALL, mounts=mounts)) == (False, "driver-modules-differ")


@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}"])
def test_the_library_is_gone(report: Report, name: str) -> None:
    (report.root / LIBRARIES / name).unlink()
    assert verdict(report.of_docker(ALL)) == (None, "library-unknown")
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")


def test_a_fabric_manager_that_does_not_run(report: Report) -> None:
    report.add("proc/driver/nvidia-nvswitch/devices/0000:05:00.0", "")
    report.add("proc/2/comm", "kthreadd\n")
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (False, "fabric-manager-missing")
    report.add("usr/bin/nv-fabricmanager", "", 0o755)
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (False, "fabric-manager-stopped")
    report.add("proc/9/comm", "nv-fabricmanage\n")
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")


def test_a_stale_specification(report: Report) -> None:
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION)
    requests = [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]
    found = report.of_docker(runtime="runc", DeviceRequests=requests)
    assert verdict(found) == (False, "cdi-stale")
    assert "/dev/nvidia0" in found["message"]
    assert "/dev/nvidia1" not in found["message"]


@pytest.mark.parametrize(
    ("toolkit", "removed"),
    [
        ("1.17.8", ("nvidia-container-cli",)),
        ("1.17.8", ("nvidia-container-runtime-hook",)),
        ("1.19.1", ("nvidia-ctk", "nvidia-cdi-hook")),
        ("1.19.1", ("runc", "crun")),
    ],
)
def test_missing_programs_of_a_mode(report: Report, toolkit: str, removed: tuple[str, ...]) -> None:
    report.add(CONFIG, "" if toolkit == "1.17.8" else '[nvidia-container-runtime]\nmode = "jit-cdi"\n')
    if toolkit == "1.17.8":
        report.toolkit = toolkit
    report.remove(*removed)
    assert verdict(report.of_docker(ALL)) == (False, "program-missing")


def test_a_host_with_only_the_base_package(report: Report) -> None:
    report.remove("nvidia-container-runtime-hook", "nvidia-container-cli")
    report.add(CONFIG, "")
    assert verdict(report.of_docker(ALL)) == (True, "ok")
    report.add(CONFIG, '[nvidia-container-runtime]\nmode = "legacy"\n')
    found = report.of_docker(ALL)
    assert verdict(found) == (False, "program-missing")
    assert "nvidia-container-runtime-hook" in found["message"]
    assert "Install all packages" in found["advice"]
    assert "CDI devices" in found["advice"]


def test_a_low_level_runtime_of_a_distribution(report: Report) -> None:
    """K3s has a runc of its own, which is not in the PATH of the host."""
    report.remove("runc", "crun")
    runtime = {"runtimeOptions": {"BinaryName": "/usr/bin/nvidia-container-runtime"}, "config": {}, "pid": 0}
    status = ContainerStatus(2, {**runtime, "runtimeSpec": {"process": {"env": [ALL]}}}, "")
    container = explain_container.from_cri("containerd", "ab", "ns/pod/c", status, cdi=True)
    assert verdict(report.explain(container, "2.1.4", None)) == (True, "ok")


def test_programs_of_another_mode_do_not_matter(report: Report) -> None:
    report.remove("nvidia-container-cli")
    assert verdict(report.of_docker(ALL)) == (True, "ok")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "legacy", "generated"),
    [
        ("0", True, True),
        ("00", True, True),
        ("0,1", True, True),
        ("ALL", True, False),
        ("+0", True, False),
        (FIRST.identity(), True, True),
        (FIRST.identity().lower(), True, False),
        (FIRST.bus, True, False),
        ("0:7:0", True, False),
        ("00000000:07:00.0", True, False),
        ("2", False, False),
        ("0:0", False, False),
        ("GPU-ffffffff-0000-0000-0000-000000000000", False, False),
        ("GPU-ff", False, False),
        ("nvidia0", False, False),
        ("0;1", False, False),
    ],
)
def test_names_of_gpus(report: Report, value: str, legacy: bool, generated: bool) -> None:
    for toolkit, expected in (("1.17.8", legacy), ("1.19.1", generated)):
        report.toolkit = toolkit
        # The driver reports all UUIDs here.
        found = report.of_docker(f"NVIDIA_VISIBLE_DEVICES={value}")
        assert verdict(found) == ((True, "ok") if expected else (False, "device-missing")), toolkit


def test_names_in_mode_cdi_are_those_of_the_specification(report: Report) -> None:
    report.add(CONFIG, '[nvidia-container-runtime]\nmode = "cdi"\n')
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION)
    for value in ("1", "ALL", FIRST.identity(), FIRST.bus):
        found = report.of_docker(f"NVIDIA_VISIBLE_DEVICES={value}", mounts=ALL_MOUNTS)
        assert verdict(found) == (False, "cdi-device-missing")
    for value in ("0", "all"):
        assert report.of_docker(f"NVIDIA_VISIBLE_DEVICES={value}", mounts=ALL_MOUNTS)["ok"] is True


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
@pytest.mark.parametrize("value", ["/var/run/nvidia-container-devices", "/var/run/nvidia-container-devices/"])
def test_the_directory_of_volume_mounts(report: Report, toolkit: str, value: str) -> None:
    report.toolkit = toolkit
    mount = {"source": "/dev/null", "destination": f"/var/run/nvidia-container-devices/{FIRST.identity()}"}
    spec = {"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={value}"]}, "mounts": [mount]}

    def explained() -> Explanation:
        info = {"pid": 0, "runtimeOptions": {"BinaryName": "/usr/bin/nvidia-container-runtime"}, "config": {}}
        status = ContainerStatus(2, {**info, "runtimeSpec": spec}, "")
        container = explain_container.from_cri("containerd", "ab", "ns/pod/c", status, cdi=True)
        return report.explain(container, "2.1.4", None)

    found = explained()
    assert verdict(found) == (False, "mounts-refused")
    assert "as-volume-mounts" in found["advice"]
    report.add(CONFIG, "accept-nvidia-visible-devices-as-volume-mounts = true\n")
    found = explained()
    assert (*verdict(found), found["requested"]) == (True, "ok", [FIRST.identity()])


# -- settings and features ---------------------------------------------------------------------------------------------


def test_no_cgroups(report: Report) -> None:
    report.add(CONFIG, "[nvidia-container-cli]\nno-cgroups = true\n")
    # Just-in-time CDI does not read it.
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")
    report.toolkit = "1.17.8"
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (False, "cgroups-off")


def test_a_driver_root_that_does_not_exist(report: Report) -> None:
    report.add(CONFIG, '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n')
    report.toolkit = "1.17.8"
    assert verdict(report.of_docker(ALL)) == (False, "driver-root-missing")


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
def test_imex_channels(report: Report, toolkit: str) -> None:
    report.toolkit = toolkit
    assert verdict(report.of_docker(ALL, "NVIDIA_IMEX_CHANNELS=0")) == (False, "imex-missing")
    report.add("dev/nvidia-caps-imex-channels/channel0", "")
    assert verdict(report.of_docker(ALL, "NVIDIA_IMEX_CHANNELS=0")) == (True, "ok")
    assert verdict(report.of_docker(ALL, "NVIDIA_IMEX_CHANNELS=0,3")) == (False, "imex-missing")
    found = report.of_docker(ALL, "NVIDIA_IMEX_CHANNELS=0", mounts=ALL_MOUNTS)
    assert (*verdict(found), "channel0" in found["message"]) == (False, "devices-missing", True)
    report.add(CONFIG, "features.ignore-imex-channel-requests = true\n")
    assert verdict(report.of_docker(ALL, "NVIDIA_IMEX_CHANNELS=0")) == (False, "imex-ignored")


@pytest.mark.parametrize(("variable", "node"), [("NVIDIA_GDS", "dev/nvidia-fs0"), ("NVIDIA_GDRCOPY", "dev/gdrdrv")])
def test_features_without_their_devices(report: Report, variable: str, node: str) -> None:
    assert verdict(report.of_docker(ALL, f"{variable}=enabled")) == (False, "feature-missing")
    assert verdict(report.of_docker(ALL, f"{variable}=disabled")) == (True, "ok")
    report.add(node, "")
    assert verdict(report.of_docker(ALL, f"{variable}=enabled")) == (True, "ok")


def test_tegra_without_lists_of_files(report: Report) -> None:
    shutil.rmtree(report.root / "proc/driver")
    report.add("proc/device-tree/compatible", "nvidia,tegra234\0")
    assert verdict(report.of_docker(ALL)) == (False, "csv-missing")
    report.add("etc/nvidia-container-runtime/host-files-for-container.d/drivers.csv", "dev, /dev/nvhost-ctrl\n")
    assert verdict(report.of_docker(ALL)) == (None, "driver-unknown")


def test_the_device_cgroup(report: Report) -> None:
    report.add("proc/488/cgroup", "12:pids:/x\n5:devices:/docker/ab12\n")
    report.add("sys/fs/cgroup/devices/docker/ab12/devices.list", "c 1:3 rwm\nc 195:255 rw\nc 195:0 rw\n")
    report.toolkit = "1.17.8"
    found = report.of_docker(ALL, mounts=ALL_MOUNTS)
    assert verdict(found) == (False, "cgroup-denied")
    assert "/dev/nvidia1" in found["message"]
    report.add("sys/fs/cgroup/devices/docker/ab12/devices.list", "a *:* rwm\n")
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")


# -- requests of engines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["", "something else"])
def test_a_container_of_podman_without_its_command_line(report: Report, error: str) -> None:
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION)
    found = report.of_podman(error)
    assert verdict(found) == ((False, "start-failed") if error else (None, "request-unknown"))
    assert "requests no GPU:" not in found["message"]
    nodes = {"linux": {"devices": [{"path": "/dev/nvidia0"}]}}
    assert "/dev/nvidia0" in report.of_podman(config=nodes)["message"]


def test_the_error_of_podman_names_the_device(report: Report) -> None:
    found = report.of_podman("setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all")
    assert (*verdict(found), found["requested"]) == (False, "cdi-device-missing", ["nvidia.com/gpu=all"])


@pytest.mark.parametrize(
    ("name", "advice", "not_advice"),
    [
        ("k8s.gpu.nvidia.com/claim=u1-gpu-0", "DRA driver", "nvidia_cdi_spec"),
        ("k8s.device-plugin.nvidia.com/gpu=GPU-1", "device plugin", "nvidia_cdi_spec"),
        ("management.nvidia.com/gpu=all", "mode: management", "again with nvidia_cdi_spec"),
        ("runtime.nvidia.com/gpu=all", "runtime nvidia", "nvidia_cdi_spec"),
        ("nvidia.com/gds=all", "gds", "again"),
        ("nvidia.com/gpu=9", "again with nvidia_cdi_spec", "DRA"),
        ("other.nvidia.com/gpu=0", "other.nvidia.com/gpu", "DRA"),
    ],
)
def test_advice_for_each_kind_of_specification(report: Report, name: str, advice: str, not_advice: str) -> None:
    found = report.of_pod(name)
    assert verdict(found) == (False, "cdi-device-missing")
    assert advice in found["advice"]
    assert not_advice not in found["advice"]


@pytest.mark.parametrize("name", ["amd.com/gpu=0", "intel.com/gpu=card0", "habana.ai/hpu=1"])
def test_devices_of_other_vendors(report: Report, name: str) -> None:
    found = report.of_pod(name)
    assert verdict(found) == (False, "no-gpu-requested")
    assert "no CDI device is requested" not in found["message"]
    assert name in found["message"]
    devices = [{"PathOnHost": name, "PathInContainer": name}]
    assert name in report.of_docker(runtime="runc", Devices=devices)["message"]


@pytest.mark.parametrize("version", ["20.10.24", "24.0.7"])
def test_docker_without_cdi(report: Report, version: str) -> None:
    report.docker, report.cdi = version, None
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION)
    name = "nvidia.com/gpu=all"
    by_path = report.of_docker(runtime="runc", Devices=[{"PathOnHost": name, "PathInContainer": name}], error="x")
    by_driver = report.of_docker(runtime="runc", DeviceRequests=[{"Driver": "cdi", "DeviceIDs": [name]}], error="x")
    for found in (by_path, by_driver):
        assert (*verdict(found), found["requested"]) == (False, "cdi-unsupported", [name])
        assert f"docker {version} has no CDI" in found["message"]
        assert "25.0" in found["advice"]
        assert "enable_cdi" not in found["advice"]


def test_podman_without_cdi(report: Report) -> None:
    report.podman = "3.4.4"
    command = ["podman", "run", "--device", "nvidia.com/gpu=all", "x"]
    found = report.of_podman("stat nvidia.com/gpu=all: no such file", Config={"Env": [], "CreateCommand": command})
    assert verdict(found) == (False, "cdi-unsupported")
    assert "podman 3.4.4 has no CDI" in found["message"]


def test_a_client_of_docker_without_cdi(report: Report) -> None:
    name = "nvidia.com/gpu=all"
    found = report.of_docker(runtime="runc", Devices=[{"PathOnHost": name, "PathInContainer": name}])
    assert verdict(found) == (False, "cdi-unsupported")
    assert "client" in found["message"]


def test_gpus_of_docker_29_2_without_cdi(report: Report) -> None:
    report.docker, report.cdi = "29.2.0", False
    gpus = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]
    report.remove("nvidia-container-runtime-hook")
    found = report.of_docker(runtime="runc", DeviceRequests=gpus)
    assert verdict(found) == (False, "cdi-disabled")
    assert "enable_cdi" in found["advice"]
    report.remove("nvidia-cdi-hook")
    assert report.of_docker(runtime="runc", DeviceRequests=gpus)["code"] == "gpus-unsupported"


# -- remarks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sees"),
    [
        ("all", "no GPU"),
        ("", "no GPU"),
        ("-1", "no GPU"),
        ("void", "no GPU"),
        ("2", "no GPU"),
        ("0,all,1", "only 0"),
        ("0,1", None),
        ("1", None),
        ("GPU-0000", None),
    ],
)
def test_cuda_visible_devices(report: Report, value: str, sees: str | None) -> None:
    report.toolkit = "1.17.8"
    found = report.of_docker(ALL, f"CUDA_VISIBLE_DEVICES={value}", mounts=ALL_MOUNTS)
    assert verdict(found) == (True, "ok")
    assert ("CUDA_VISIBLE_DEVICES" in found["message"]) is (sees is not None)
    assert sees is None or f"CUDA sees {sees}" in found["message"]
    assert bool(found["advice"]) is (sees is not None)


def test_an_unmet_requirement_that_nothing_checks(report: Report) -> None:
    found = report.of_docker(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.1", mounts=ALL_MOUNTS, cuda="12.4")
    assert verdict(found) == (True, "ok")
    assert "cuda>=13.1" in found["message"]
    assert "12.4" in found["message"]
    assert "newer driver" in found["advice"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", "Restart the host"),
        ('could not select device driver "" with capabilities: [[gpu]]', "Restart Docker"),
        ("nvidia-container-cli: device error: 9: unknown device", "nvidia-smi -L"),
        ("something else", "Read the log of docker"),
    ],
)
def test_advice_for_errors_of_the_start(report: Report, error: str, advice: str) -> None:
    found = report.of_docker(ALL, error=error)
    assert verdict(found) == (False, "start-failed")
    assert advice in found["advice"]
