# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import audit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.kubernetes_reports import (
    FAILING,
    GPU,
    M1,
    M2,
    MIG,
    NOTHING,
    NVIDIA,
    SHARED,
    STRATEGIES,
    A,
    B,
    containerd,
    crio,
    driver,
    gpu,
    gpus,
    log,
    parts,
    resource,
    socket,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.leftovers import OWN_HOOK

if t.TYPE_CHECKING:
    from pathlib import Path


def findings(root: Path, **given: t.Any) -> list[dict[str, str]]:
    program = root / NVIDIA.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("")
    program.chmod(0o755)
    return audit.findings_of(HostFS(str(root), live=False), parts(**given))


def ids(root: Path, **given: t.Any) -> list[tuple[str, str]]:
    return [(finding["id"], finding["severity"]) for finding in findings(root, **given)]


def test_a_node_that_offers_all_of_its_gpus(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("devices", "resources"),
    [
        # Each MIG strategy of the plugin, time-slicing and MPS, and renamed resources.
        ((gpu(A, M1, M2),), [resource(GPU, (M1, M2))]),
        ((gpu(A, M1), gpu(B)), [resource(MIG, (M1,)), resource(GPU, (B,))]),
        ((gpu(A), gpu(B)), [resource(GPU, (f"{A}::0", f"{A}::1", f"{B}::0", f"{B}::1"))]),
        ((gpu(A), gpu(B)), [resource(SHARED, (f"{A}::0", f"{A}::1")), resource(GPU, (B,))]),
        ((gpu(A), gpu(B)), [resource("example.com/a100", (A, B))]),
        ((gpu(A, M1),), [resource(GPU, (f"{M1}::0", f"{M1}::1"), held=(f"{M1}::1",))]),
        # Pods keep their devices after the replicas or the name of the resource have changed.
        ((gpu(A), gpu(B)), [resource(GPU, (f"{A}::0", f"{B}::0"), held=(f"{A}::7", B))]),
        ((gpu(A),), [resource(GPU, (), None, held=(A,)), resource(SHARED, (f"{A}::0", f"{A}::1"))]),
        ((gpu(A),), [resource(GPU, (), recorded=[A]), resource(SHARED, (f"{A}::0", f"{A}::1"))]),
        # Other plugins number their devices, or append something else to the UUID.
        ((gpu(A), gpu(B)), [resource(GPU, ("nvidia0", "nvidia1"))]),
        ((gpu(A), gpu(B)), [resource(GPU, (f"{A}-0", f"{A}-1", f"{B}-0"))]),
        ((gpu(A), gpu(B)), [resource("aliyun.com/gpu-mem", (f"{A}-_-0", f"{B}-_-1")), resource(GPU, (A, B))]),
        # UUIDs of MIG devices before driver 470.
        ((gpu(A, f"MIG-{A}/1/0"),), [resource(GPU, (f"MIG-{A}/1/0",))]),
    ],
)
def test_strategies_and_replicas(
    tmp_path: Path, devices: tuple[dict[str, t.Any], ...], resources: list[dict[str, t.Any]]
) -> None:
    assert findings(tmp_path, gpus=gpus(*devices), resources=resources) == []


def test_resources_of_other_vendors(tmp_path: Path) -> None:
    rdma = resource("rdma/hca", (), recorded=["mlx5_0"], held=("mlx5_1",))
    assert findings(tmp_path, resources=[resource(), rdma], device_plugins=[socket(), socket(None, False)]) == []


def test_other_resources_of_the_domain(tmp_path: Path) -> None:
    # NVIDIA's network operator offers network devices, and a DRA driver the GPUs.
    hostdev = resource("nvidia.com/hostdev", ("0000:08:00.2",), held=("0000:08:00.3",))
    given = {**NOTHING, "resources": [hostdev], "device_plugins": [socket(None)]}
    assert ids(tmp_path, dra_drivers=[driver(True)], **given) == []
    assert ids(tmp_path, **given) == [("device-plugin-not-serving", "info")]
    # A resource with another name whose devices are all unhealthy is known by the socket of the plugin.
    renamed = resource("nvidia.com/a100", (), recorded=[])
    assert ids(tmp_path, resources=[renamed]) == [("devices-not-offered", "critical")]


# -- the kubelet and its engine --------------------------------------------------------------------------------------


def test_a_stopped_kubelet(tmp_path: Path) -> None:
    found = findings(tmp_path, running=False, pid=None)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("kubelet-not-responding", "warning")]
    assert "journal" in found[0]["advice"]
    assert ids(tmp_path, running=None) == []
    # It was never set up.
    assert ids(tmp_path, running=False, config_files=[], source=None) == []


def test_an_engine_that_is_not_configured(tmp_path: Path) -> None:
    docker = containerd(engine="docker", target="docker", version="28.5.2")
    # Pods may not use the GPUs on purpose.
    engines = [containerd("runc", nvidia=False)]
    assert ids(tmp_path, engines=engines, **NOTHING) == [("kubelet-engine-not-configured", "warning")]
    assert ids(tmp_path, engines=engines) == [("kubelet-engine-not-configured", "critical")]
    # The NRI plugin of the GPU operator injects the devices.
    assert ids(tmp_path, engines=engines, nri_plugin=True) == []
    assert ids(tmp_path, engines=engines, nri_plugin=False) == [("kubelet-engine-not-configured", "critical")]
    found = findings(tmp_path, engines=[docker, *engines], **FAILING)
    assert [(finding["id"], finding["severity"], finding["subject"]) for finding in found] == [
        ("kubelet-engine-not-configured", "critical", "containerd")
    ]
    assert "The runtime is registered for docker instead." in found[0]["text"]
    # The missing plugin is a consequence.
    assert "device-plugin-not-serving" in found[0]["text"]


def test_an_engine_with_cdi_alone(tmp_path: Path) -> None:
    engines = [containerd("runc", nvidia=False, cdi=True)]
    assert ids(tmp_path, engines=engines) == []
    found = findings(tmp_path, engines=engines, **FAILING)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("pod-without-runtime", "critical")]
    # A RuntimeClass needs the runtime first.
    assert "runtimeClassName" not in found[0]["advice"]
    # CRI-O always uses CDI, and does not report it.
    assert ids(tmp_path, engines=[crio()], **{**NOTHING, "dra_drivers": [driver(True)]}) == []


def test_the_hook_of_crio_needs_no_runtime(tmp_path: Path) -> None:
    for files, expected in (([], "pod-without-runtime"), ([OWN_HOOK], "device-plugin-not-serving")):
        found = ids(tmp_path, engines=[crio(recorded_files=files)], **FAILING)
        assert found == [(expected, "critical")]


def test_a_plugin_that_needs_no_runtime(tmp_path: Path) -> None:
    # The one of GKE mounts the driver itself.
    given = {**NOTHING, "resources": [resource(GPU, ("nvidia0", "nvidia1"))], "device_plugins": [socket(None)]}
    assert ids(tmp_path, engines=[containerd("runc", nvidia=False)], **given) == []


def test_an_unknown_engine(tmp_path: Path) -> None:
    given = {"engine": None, "cri_endpoint": "unix:///run/isulad.sock"}
    assert ids(tmp_path, **given) == [("kubelet-engine-unknown", "warning")]
    # A file that may set the endpoint cannot be read, or engines were not gathered.
    assert ids(tmp_path, engine=None, cri_endpoint=None) == []
    assert ids(tmp_path, engines=None, **given) == []


def test_a_plugin_that_cannot_load_nvml(tmp_path: Path) -> None:
    engines = [containerd("runc")]
    found = findings(tmp_path, engines=engines, **FAILING)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("pod-without-runtime", "critical")]
    assert "device plugin (nvidia/plugin-x7k2p)" in found[0]["text"]
    assert "did you set the docker default runtime to `nvidia`?" in found[0]["text"]
    assert "containerd starts the containers of a pod with runc unless" in found[0]["text"]
    assert "runtimeClassName: nvidia" in found[0]["advice"]
    waiting = {**NOTHING, "plugin_processes": [41]}
    assert ids(tmp_path, engines=engines, **waiting) == [("pod-without-runtime", "critical")]
    # A node without a device plugin, such as one whose pods select GPUs by the RuntimeClass alone.
    assert ids(tmp_path, engines=engines, **NOTHING) == [("device-plugin-not-serving", "info")]
    # What the kubelet offers is unknown, for example because the audit does not run as root.
    assert ids(tmp_path, engines=engines, source=None, **FAILING) == []
    # Its pod selects the runtime: there are devices, a plugin with GPUs that has not registered, or a DRA driver.
    assert ids(tmp_path, engines=engines) == []
    assert ids(tmp_path, engines=engines, **{**FAILING, "dra_drivers": [driver(True)]}) == []
    listening = {**FAILING, "device_plugins": [socket()]}
    assert ids(tmp_path, engines=engines, **listening) == [("device-plugin-not-serving", "critical")]


@pytest.mark.parametrize("nvidia", [True, False])
@pytest.mark.parametrize("processes", [[], [41]])
def test_a_plugin_that_had_registered_has_loaded_nvml(
    tmp_path: Path, processes: list[dict[str, t.Any]], nvidia: bool
) -> None:
    """Whatever made it lose its registration, the default runtime did not."""
    given = {"resources": [resource(devices=(), recorded=[A, B])], "device_plugins": []}
    engines = [containerd("runc", nvidia=nvidia, cdi=True)]
    found = findings(tmp_path, engines=engines, plugin_processes=processes, **given)
    assert [finding["id"] for finding in found] == ["device-plugin-not-serving"]
    # The libraries of the driver are gone.
    problem = {"code": "driver-library-missing", "message": "There is no libnvidia-ml.so.1 below /."}
    found = findings(tmp_path, engines=engines, gpus={**gpus(), "problems": [problem]}, **given)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("driver-library-missing", "critical")]
    assert "device-plugin-not-serving" in found[0]["text"]
    assert "Install" in found[0]["advice"]
    assert "nvidia_cdi_driver_root" in found[0]["advice"]


def test_a_plugin_that_ends_again_and_again(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, **FAILING, plugin_logs=[log(7)])
    assert (found["id"], found["severity"]) == ("device-plugin-not-serving", "critical")
    assert "/7.log" in found["advice"]
    lost = {"resources": [resource(devices=(), recorded=[A])], "device_plugins": [], "plugin_processes": []}
    (found,) = findings(tmp_path, **lost, plugin_logs=[log(7)])
    assert found["id"] == "device-plugin-not-serving"
    assert "/7.log" in found["advice"]
    # It runs, so a restart may help.
    (found,) = findings(tmp_path, **{**lost, "plugin_processes": [41]}, plugin_logs=[log(7)])
    assert "Restart" in found["advice"]


def test_a_plugin_in_a_sandbox_from_before_the_default(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, **FAILING, plugin_logs=[log(7, "/usr/bin/runc")])
    assert (found["id"], found["severity"]) == ("pod-without-runtime", "critical")
    assert "Delete the pod" in found["advice"]
    assert "set_as_default" not in found["advice"]
    assert ids(tmp_path, **FAILING, plugin_logs=[log(7, NVIDIA)]) == [("device-plugin-not-serving", "critical")]


@pytest.mark.parametrize(("strategies", "engine", "expected"), STRATEGIES)
def test_strategies_and_what_the_engine_can_add(
    tmp_path: Path, strategies: list[str], engine: dict[str, t.Any], expected: str | None
) -> None:
    found = ids(tmp_path, engines=[engine], device_list_strategies=strategies)
    assert found == ([(expected, "critical")] if expected else [])


@pytest.mark.parametrize("flavor", ["system", "k3s"])
def test_what_switches_cdi_on(tmp_path: Path, flavor: str) -> None:
    engines = [containerd("runc", cdi=False, flavor=flavor)]
    found = {
        row["id"]: row["advice"] for row in findings(tmp_path, engines=engines, device_list_strategies=["cdi-cri"])
    }
    assert ("Upgrade K3s" in found["cdi-off"]) is (flavor == "k3s")
    assert ("nvidia_runtime_enable_cdi" in found["cdi-off"]) is (flavor == "system")


@pytest.mark.parametrize("default", ["nvidia", "runc"])
def test_a_pod_that_was_started_without_the_runtime(tmp_path: Path, default: str) -> None:
    held = resource(held=(A,))
    given = {"engines": [containerd(default)], "resources": [held], "device_list_strategies": ["envvar"]}
    held["held"][0]["program"] = "/usr/bin/runc"
    (found,) = findings(tmp_path, **given)
    assert (found["id"], found["severity"]) == ("pod-without-runtime", "critical")
    assert "ml/train" in found["text"]
    assert "Delete the pods" in found["advice"]
    assert ("nvidia_runtime_set_as_default" in found["advice"]) is (default == "runc")
    for program in (NVIDIA, None):
        held["held"][0]["program"] = program
        assert findings(tmp_path, **given) == []
    # CDI of the engine needs no runtime.
    held["held"][0]["program"] = "/usr/bin/runc"
    assert findings(tmp_path, **{**given, "device_list_strategies": ["cdi-cri"]}) == []


def test_nothing_is_missing_without_usable_gpus(tmp_path: Path) -> None:
    assert (
        ids(tmp_path, gpus={**gpus(), "devices": [], "advertised": []}, engines=[containerd("runc")], **NOTHING) == []
    )
    assert ids(tmp_path, gpus=None, **NOTHING) == []


def test_a_broken_engine_is_the_cause(tmp_path: Path) -> None:
    problems = [{"code": "file-invalid", "message": "/etc/containerd/config.toml: Odd."}]
    engines = [containerd("runc", nvidia=False, live=None, problems=problems)]
    found = findings(tmp_path, engines=engines, **NOTHING)
    assert [finding["id"] for finding in found] == ["config-unreadable"]
    assert "kubelet-engine-not-configured (containerd)" in found[0]["text"]
    # The file of an engine that the kubelet does not use is another matter.
    other = containerd(target="docker", engine="docker", problems=problems)
    found = findings(tmp_path, engines=[other, containerd("runc", nvidia=False)], **NOTHING)
    assert {finding["id"] for finding in found} == {"config-unreadable", "kubelet-engine-not-configured"}


# -- plugins ---------------------------------------------------------------------------------------------------------


def test_no_plugin(tmp_path: Path) -> None:
    assert ids(tmp_path, **NOTHING) == [("device-plugin-not-serving", "info")]
    found = findings(tmp_path, **FAILING)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("device-plugin-not-serving", "critical")]
    assert "delete the pod" in found[0]["advice"]
    assert "no process of NVIDIA's plugin runs. Its pods on this node: nvidia/plugin-x7k2p." in found[0]["text"]
    waiting = findings(tmp_path, **{**NOTHING, "plugin_processes": [41]})
    assert "its process 41 runs" in waiting[0]["text"]


@pytest.mark.parametrize("state", [socket(listens=False, answers=False), socket(answers=False)])
def test_a_dead_plugin(tmp_path: Path, state: dict[str, t.Any]) -> None:
    given = {"resources": [resource(devices=(), recorded=[A, B], held=(A,))], "device_plugins": [state]}
    found = findings(tmp_path, **given)
    assert [(finding["id"], finding["severity"], finding["subject"]) for finding in found] == [
        ("device-plugin-not-serving", "critical", GPU)
    ]
    # The kubelet has not noticed it yet.
    assert ids(tmp_path, device_plugins=[state]) == [("device-plugin-not-serving", "critical")]
    assert ids(tmp_path, device_plugins=[socket(listens=None, answers=None)]) == []


def test_a_socket_that_a_killed_plugin_has_left(tmp_path: Path) -> None:
    left = [socket(), socket(MIG, listens=False, answers=False)]
    assert ids(tmp_path, device_plugins=left) == []
    # Pods hold its devices.
    both = [resource(), resource(MIG, (), held=(M1,))]
    assert ids(tmp_path, resources=both, device_plugins=left) == [("device-plugin-not-serving", "critical")]


def test_a_dead_dra_driver(tmp_path: Path) -> None:
    stopped = {**NOTHING, "dra_drivers": [driver(False, False)]}
    assert ids(tmp_path, **stopped) == [("device-plugin-not-serving", "critical")]
    # A rolling update leaves the sockets of the old pod.
    assert ids(tmp_path, **{**NOTHING, "dra_drivers": [driver(False, True)]}) == []
    assert ids(tmp_path, dra_drivers=[driver(False, name="csi.example.com")]) == []


def test_a_lost_registration(tmp_path: Path) -> None:
    # The kubelet has restarted: its checkpoint has the devices from before.
    lost = {"resources": [resource(devices=(), recorded=[A, B])], "device_plugins": []}
    assert ids(tmp_path, **lost) == [("device-plugin-not-serving", "critical")]
    lost["device_plugins"] = [socket()]
    assert ids(tmp_path, **lost) == [("device-plugin-not-serving", "critical")]
    # Without the API only the missing socket shows it.
    assert ids(tmp_path, source="checkpoint", device_plugins=[]) == [("device-plugin-not-serving", "critical")]
    assert ids(tmp_path, source="checkpoint") == []
    # The checkpoint was lost, and pods still hold devices.
    held = [resource(devices=(), recorded=None, held=(A,))]
    assert ids(tmp_path, resources=held, device_plugins=[]) == [("device-plugin-not-serving", "critical")]


# -- devices ---------------------------------------------------------------------------------------------------------


def test_a_device_that_is_not_offered(tmp_path: Path) -> None:
    found = findings(tmp_path, resources=[resource(devices=(A,))])
    assert [(finding["id"], finding["severity"]) for finding in found] == [("devices-not-offered", "warning")]
    assert B in found[0]["text"]
    # A GPU that no container could use is reported with the GPUs.
    assert ids(tmp_path, resources=[resource(devices=(A,))], gpus={**gpus(), "advertised": [A]}) == []


def test_a_device_that_pods_hold_and_that_is_not_offered(tmp_path: Path) -> None:
    found = findings(tmp_path, resources=[resource(devices=(A,), held=(A, B))])
    assert [(finding["id"], finding["severity"]) for finding in found] == [("devices-not-offered", "critical")]
    assert f": {B}." in found[0]["text"]
    assert "Xid" in found[0]["advice"]


def test_a_plugin_without_a_healthy_device(tmp_path: Path) -> None:
    given = {"resources": [resource(devices=(), recorded=[])]}
    assert ids(tmp_path, **given) == [("devices-not-offered", "critical")]
    # Pods still hold one of them.
    held = [resource(devices=(), recorded=[], held=(A,))]
    assert ids(tmp_path, resources=held) == [("devices-not-offered", "critical")]
    # The empty entry of a plugin that was removed disappears after five minutes.
    assert ids(tmp_path, device_plugins=[], **given) == []


def test_mig_mode_changed_after_the_plugin_started(tmp_path: Path) -> None:
    found = findings(tmp_path, gpus=gpus(gpu(A, M1), gpu(B)), resources=[resource(devices=(A, B))])
    assert [(finding["id"], finding["severity"]) for finding in found] == [("device-plugin-outdated", "critical")]
    assert f"The kubelet offers {A} as whole GPUs" in found[0]["text"]
    assert ids(tmp_path, gpus=gpus(gpu(A, M1), gpu(B)), running=None) == []
    # MIG mode without MIG devices.
    found = findings(tmp_path, gpus=gpus(gpu(A, mig=True), gpu(B)), resources=[resource(devices=(A, B))])
    assert [finding["id"] for finding in found] == ["device-plugin-outdated", "mig-without-devices"]


def test_mig_devices_changed_after_the_plugin_started(tmp_path: Path) -> None:
    given: dict[str, t.Any] = {"gpus": gpus(gpu(A, M2)), "resources": [resource(MIG, (M1,))]}
    found = findings(tmp_path, **given)
    assert [(finding["id"], finding["severity"]) for finding in found] == [("device-plugin-outdated", "critical")]
    assert f"that the driver does not have: {M1}." in found[0]["text"]
    assert "devices-not-offered" in found[0]["text"]
    # Without NVML the UUIDs of MIG devices are unknown.
    unknown = gpus(gpu(A, ""), gpu(B))
    both = [*given["resources"], resource(devices=(B,))]
    assert ids(tmp_path, gpus={**unknown, "source": "proc", "advertised": [B]}, resources=both) == []


# -- problems and invalid reports ------------------------------------------------------------------------------------


def test_problems_of_the_part(tmp_path: Path) -> None:
    problems = [
        {"code": "kubelet-not-responding", "message": "No answer."},
        {"code": "file-invalid", "message": "Damaged."},
        {"code": "permission-denied", "message": "Denied."},
    ]
    assert {finding["id"]: finding["severity"] for finding in findings(tmp_path, problems=problems)} == {
        "kubelet-not-responding": "warning",
        "inspection-incomplete": "warning",
        "permission-denied": "warning",
    }
