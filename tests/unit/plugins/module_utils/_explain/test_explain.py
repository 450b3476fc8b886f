# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import explain
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.access import NodeAccess
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import (
    CREATED,
    EXITED,
    Container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Specifications
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.rules import MANAGEMENT_KIND
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.explained_containers import (
    BY_CDI,
    BY_HOOK,
    DRIVER,
    GPUS,
    HOST,
    LIBRARIES,
    MIG,
    NVIDIA,
    OLD,
    VISIBLE,
    config,
    container,
    device,
    mounts,
    with_cdi,
    with_gpus,
    with_nvidia,
)

if TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.host import ExplainedHost

HOOK = "/usr/bin/nvidia-container-runtime-hook"


NRI = HOST._replace(nri_plugin=True)


def with_nri(*names: str) -> Container:
    """Return a container whose engine does not report what it requests, with the annotation of its pod."""
    return container(nri_devices=names or ("nvidia.com/gpu=0",), request_known=False)


# Each container, the host, and the code of the first failed step.
BROKEN: list[tuple[str, Container, ExplainedHost, str]] = [
    ("no request", container(), HOST, "no-gpu-requested"),
    ("void", with_nvidia("void"), HOST, "no-gpu-requested"),
    ("none", with_nvidia("none"), HOST, "none-requested"),
    ("another runtime", container("all"), HOST, "runtime-not-nvidia"),
    ("an old image with another runtime", container(environment={"CUDA_VERSION": "10.1"}), HOST, "runtime-not-nvidia"),
    ("the program is missing", with_nvidia(), HOST._replace(program_exists=False), "program-missing"),
    ("CDI is off", with_cdi("0"), HOST._replace(engine_cdi=False), "cdi-disabled"),
    ("no NRI plugin", with_nri(), HOST, "nri-plugin-missing"),
    ("an engine that ignores NRI plugins", with_nri(), NRI._replace(nri_adds=False), "nri-unsupported"),
    ("an NRI plugin with CDI off", with_nri(), NRI._replace(engine_cdi=False), "cdi-disabled"),
    ("an NRI plugin that has added nothing", with_nri()._replace(config={}), NRI._replace(mountinfo=mounts()),
     "devices-missing"),
    ("--gpus without a program", with_gpus(), HOST._replace(programs=frozenset()), "gpus-unsupported"),
    ("--gpus with CDI alone in Docker 26", with_gpus(), HOST._replace(programs=frozenset(("nvidia-cdi-hook",))),
     "gpus-unsupported"),
    ("an unknown mode", with_nvidia(), config(mode="fast"), "mode-unknown"),
    ("a mode of a newer toolkit", with_nvidia(), config(mode="jit-cdi"), "mode-unknown"),
    ("the hook in mode cdi", with_gpus(), config(mode="cdi"), "hook-refused"),
    ("config.toml cannot be read", with_nvidia(), HOST._replace(config_problem="x"), "config-invalid"),
    ("config.toml is not valid", with_nvidia(), config(invalid="x"), "config-invalid"),
    ("a capability that the hook refuses", with_nvidia(), config(supported_capabilities="compute,fast"),
     "config-invalid"),
    ("the variable is refused", with_nvidia(), config(accept_variable=False), "variable-refused"),
    ("mounts are refused", with_nvidia(None, mounts=(("/dev/null", "/var/run/nvidia-container-devices/0"),)), HOST,
     "mounts-refused"),
    ("annotations in mode legacy", with_nvidia(None, annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"}), OLD,
     "request-ignored"),
    ("a variable for privileged containers", with_nvidia(environment={"NVIDIA_MIG_CONFIG_DEVICES": "all"}), OLD,
     "variable-privileged"),
    ("no driver", with_nvidia(), HOST._replace(driver_loaded=False, driver=None), "driver-missing"),
    ("an index that is too high", with_nvidia("0,5"), HOST, "device-missing"),
    ("another UUID", with_nvidia("GPU-9"), OLD, "device-missing"),
    ("mixed kinds", with_nvidia("nvidia.com/gpu=0,1"), HOST, "kinds-mixed"),
    ("an unknown CDI device", with_cdi("0", "7"), HOST, "cdi-device-missing"),
    ("an unknown CDI device in a variable", with_nvidia("nvidia.com/gpu=7"), HOST, "cdi-device-missing"),
    ("a UUID that no specification defines", with_nvidia("GPU-1"), config(mode="cdi"), "cdi-device-missing"),
    ("a capability that is not supported", with_nvidia(environment={"NVIDIA_DRIVER_CAPABILITIES": "graphics"}),
     config(supported_capabilities="compute,utility"), "capabilities-refused"),
    ("a newer CUDA version", with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}), OLD, "requirement-unmet"),
    ("a newer driver", with_nvidia(environment={"NVIDIA_REQUIRE_DRIVER": "driver>=570"}), OLD, "requirement-unmet"),
    ("another architecture", with_nvidia(environment={"NVIDIA_REQUIRE_ARCH": "arch>=9.0"}), OLD, "requirement-unmet"),
    ("an old image for a newer CUDA version", with_nvidia(None, environment={"CUDA_VERSION": "13.0"}), OLD,
     "requirement-unmet"),
    ("an invalid requirement", with_nvidia(environment={"NVIDIA_REQUIRE_X": "x>1"}), OLD, "requirement-invalid"),
    ("an invalid CUDA version", with_nvidia(environment={"CUDA_VERSION": "new"}), OLD, "requirement-invalid"),
    ("a failed start", with_nvidia(state=CREATED, pid=None, error="no space"), HOST, "start-failed"),
    ("missing nodes", with_nvidia(), OLD._replace(mountinfo=mounts("/dev/nvidiactl")), "devices-missing"),
    ("a stale library", with_cdi("0"), HOST._replace(
        mountinfo=BY_CDI.replace(DRIVER, "535.1.2")), "libraries-stale"),
    ("missing libraries", with_cdi("0"), HOST._replace(
        mountinfo=mounts("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")),
     "files-missing"),
]  # fmt: skip
# Each container that has what it requests, and the end of the sentence.
WHOLE: list[tuple[str, Container, ExplainedHost, str]] = [
    ("legacy", with_nvidia(), OLD._replace(mountinfo=BY_HOOK),
     "has 2 of 2 GPUs of this host through the runtime nvidia in mode legacy."),
    ("one GPU", with_nvidia("GPU-1"), OLD._replace(mountinfo=BY_HOOK), "has 1 of 2 GPUs of this host through"),
    ("just-in-time CDI", with_nvidia(), HOST._replace(mountinfo=BY_HOOK), "in mode jit-cdi."),
    ("CDI of the engine", with_cdi("0"), HOST._replace(mountinfo=BY_CDI), "has nvidia.com/gpu=0 through CDI of"),
    ("the NRI plugin", with_nri(), NRI._replace(mountinfo=BY_CDI), "has nvidia.com/gpu=0 through CDI of docker."),
    ("the NRI plugin, which has stopped", with_nri(), HOST._replace(mountinfo=BY_CDI), "does not run on this host."),
    ("an annotation for an NRI plugin that does not run", with_nvidia(nri_devices=("nvidia.com/gpu=0",)),
     HOST._replace(mountinfo=BY_HOOK), "in mode jit-cdi."),
    ("an annotation for an NRI plugin, and CDI", with_cdi("0", nri_devices=("nvidia.com/gpu=1",)),
     HOST._replace(mountinfo=BY_CDI), "has nvidia.com/gpu=0 through CDI of docker."),
    ("CDI of the runtime", with_nvidia("nvidia.com/gpu=0"), HOST._replace(mountinfo=BY_CDI), "in mode cdi."),
    ("specifications of the engine alone", with_cdi("0"),
     HOST._replace(mountinfo=BY_CDI, runtime_specifications=Specifications()), "through CDI of docker."),
    ("specifications of the runtime alone", with_nvidia("nvidia.com/gpu=0"),
     HOST._replace(mountinfo=BY_CDI, engine_specifications=Specifications()), "in mode cdi."),
    ("--gpus", with_gpus(), OLD._replace(mountinfo=BY_HOOK), "through nvidia-container-runtime-hook."),
    ("--gpus with a number", with_gpus(1), OLD._replace(mountinfo=BY_HOOK), "has 1 of 2 GPUs of this host"),
    ("--gpus of Docker 29.2", with_gpus(), HOST._replace(
        engine_version="29.2.0", mountinfo=f"{BY_CDI}\n{mounts('/dev/nvidia1')}"),
     "has nvidia.com/gpu=all through CDI of docker."),
    ("--gpus with CDI alone in Docker 29.2", with_gpus(), HOST._replace(
        engine_version="29.2.0", programs=frozenset(("nvidia-cdi-hook",)), mountinfo=f"{BY_CDI}\n{BY_HOOK}"),
     "through CDI of docker."),
    ("--gpus with the runtime of NVIDIA", with_gpus(runtime="nvidia", program=NVIDIA),
     HOST._replace(mountinfo=BY_HOOK),
     "through the runtime nvidia in mode jit-cdi."),
    ("a hook of another program", container("all", config={"hooks": {"prestart": [{"path": HOOK}]}}),
     OLD._replace(mountinfo=BY_HOOK), "through nvidia-container-runtime-hook."),
    ("not started", with_nvidia(state=CREATED, pid=None), OLD, "gets at its next start 2 of 2 GPUs"),
    ("exited", with_cdi("all", state=EXITED, pid=None), HOST, "gets at its next start nvidia.com/gpu=all"),
    ("privileged", with_nvidia(privileged=True), config(accept_variable=False)._replace(mountinfo=BY_HOOK),
     "has 2 of 2"),
    ("requirements without a check", with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=12"}),
     HOST._replace(mountinfo=BY_HOOK), "jit-cdi."),
    ("requirements that are switched off", with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13"}),
     config(disable_require=True)._replace(mountinfo=BY_HOOK), "legacy."),
    ("a requirement that the start has proven", with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13"}),
     OLD._replace(cuda=None, mountinfo=BY_HOOK), "legacy."),
    ("a capability that CDI ignores", with_nvidia(environment={"NVIDIA_DRIVER_CAPABILITIES": "fast"}),
     HOST._replace(mountinfo=BY_HOOK), "jit-cdi."),
    ("a MIG device", with_nvidia("0:0"), OLD._replace(all_gpus=MIG, mountinfo=mounts(
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3",
        f"/lib/libcuda.so.{DRIVER}", f"/lib/libnvidia-ml.so.{DRIVER}")), "has 1 of 1 GPUs of this host"),
    ("utility alone", with_nvidia(environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"}), OLD._replace(
        mountinfo=mounts("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", f"/lib/libnvidia-ml.so.{DRIVER}")),
     "in mode legacy. It gets only the driver capabilities utility, so programs with CUDA find no libcuda."),
    ("/dev of the host", with_cdi("0"), HOST._replace(mountinfo=f"{mounts(f'{LIBRARIES}/libcuda.so.{DRIVER}')}\n"
     "9 1 0:5 / /dev rw - devtmpfs udev rw"), "has nvidia.com/gpu=0"),
    ("a newer libcuda of the image", with_nvidia(), OLD._replace(
        mountinfo=f"{BY_HOOK}\n{mounts(f'{LIBRARIES}/libcuda.so.575.57.08')}"), "legacy."),
    ("names that do not matter", with_nvidia(), OLD._replace(names_known=False, mountinfo=BY_HOOK), "legacy."),
    # The engine has set the variable void for the runtime.
    ("CDI of the engine with the runtime of NVIDIA", with_nvidia(cdi_devices=("nvidia.com/gpu=0",)),
     HOST._replace(mountinfo=BY_CDI), "has nvidia.com/gpu=0 through CDI of docker."),
]  # fmt: skip


# Each container of which a fact that decides is not known, and the code of the first such step.
UNKNOWN: list[tuple[str, Container, ExplainedHost, str]] = [
    ("a capability that only the hook refuses", with_nvidia(),
     HOST._replace(settings=HOST.settings._replace(supported_capabilities="compute,fast")), "contents-unknown"),
    ("the request", container(request_known=False), HOST, "request-unknown"),
    ("the request, with a variable for another runtime", container("all", request_known=False), HOST,
     "request-unknown"),
    ("the names of the GPUs", with_nvidia("GPU-9"), OLD._replace(names_known=False, mountinfo=BY_HOOK),
     "devices-unknown"),
    ("MIG mode", with_nvidia(), OLD._replace(all_gpus=(GPUS[0]._replace(mig_unknown=True),)), "mig-unknown"),
    ("the CUDA version before the start", with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13"}, state=EXITED,
     pid=None), OLD._replace(cuda=None), "requirement-unknown"),
    ("the mounts", with_nvidia(), OLD, "contents-unknown"),
    ("the mounts of CDI", with_cdi("0"), HOST, "contents-unknown"),
    ("the driver's library", with_nvidia(state=CREATED, pid=None), OLD._replace(library=None), "library-unknown"),
    ("the user", with_nvidia(), OLD._replace(mountinfo=BY_HOOK, nodes={"/dev/nvidia0": NodeAccess(0o660, 0, 44)}),
     "access-unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "host", "code"), [row[1:] for row in UNKNOWN], ids=[row[0] for row in UNKNOWN])
def test_unknown_facts(given: Container, host: ExplainedHost, code: str) -> None:
    found = explain.explain(given, host)
    assert (found["ok"], found["code"]) == (None, code)
    assert found["message"].startswith("web (docker, 3a3a3ce6c3f0): ")
    assert [step for step in found["steps"] if step["ok"] is False] == []


@pytest.mark.parametrize(("given", "host", "code"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_first_failed_step(given: Container, host: ExplainedHost, code: str) -> None:
    found = explain.explain(given, host)
    failed = [step for step in found["steps"] if step["ok"] is False]
    assert (found["ok"], found["code"]) == (False, code)
    assert failed[0]["code"] == code
    assert found["message"] == f"web (docker, 3a3a3ce6c3f0): {failed[0]['message']}"
    assert found["advice"] == failed[0]["advice"] != ""
    assert found["message"].endswith(".")
    assert found["message"].count("..") == 0
    json.dumps(found)


@pytest.mark.parametrize(("advice", "expected"), [("", "enable_cdi of nvidia_runtime_config"), ("Upgrade K3s.",) * 2])
def test_what_switches_cdi_on(advice: str, expected: str) -> None:
    found = explain.explain(with_cdi("0"), HOST._replace(engine_cdi=False, cdi_advice=advice))
    assert expected in found["advice"]
    assert found["advice"].endswith(" Then create the container again.")
    assert ("enable_cdi" in found["advice"]) is not bool(advice)


@pytest.mark.parametrize(("given", "host", "end"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE])
def test_nothing_failed(given: Container, host: ExplainedHost, end: str) -> None:
    found = explain.explain(given, host)
    assert [step for step in found["steps"] if step["ok"] is False] == []
    assert (found["ok"], found["code"], bool(found["advice"])) == (True, "ok", found["message"].count(". ") > 0)
    assert found["message"].startswith("The container ")
    assert end in found["message"]
    json.dumps(found)


@pytest.mark.parametrize("tegra", [True, False])
def test_devices_of_wsl_and_tegra_are_not_compared(tegra: bool) -> None:
    host = HOST._replace(tegra=tegra, comparable=False, driver_loaded=False, driver=None, all_gpus=())
    found = explain.explain(with_nvidia(), host._replace(mountinfo=mounts("/dev/dxg")))
    assert (found["ok"], found["missing_devices"], found["missing_files"]) == (None, [], [])
    unknown = [step["name"] for step in found["steps"] if step["ok"] is None]
    assert unknown == ["driver", "devices", "contents"]
    assert found["code"] == "driver-unknown"
    assert found["mode"] == ("csv" if tegra else "jit-cdi")
    # A specification says what the container gets.
    found = explain.explain(with_cdi("0"), host._replace(mountinfo=mounts("/dev/nvidiactl")))
    assert found["code"] == "devices-missing"
    found = explain.explain(with_cdi("0"), host._replace(mountinfo=BY_CDI))
    assert (found["ok"], found["code"]) == (True, "ok")
    # Mode csv has lists of files.
    found = explain.explain(with_nvidia(), host._replace(tegra=True, csv_files=False))
    assert (found["ok"], found["code"]) == (False, "csv-missing")


def test_cdi_devices_of_other_vendors_are_no_gpus() -> None:
    network = ("example.com/net=1",)
    for given in (with_nvidia(cdi_devices=network, by_annotation=True), with_gpus(cdi_devices=network)):
        found = explain.explain(given, OLD._replace(mountinfo=BY_HOOK))
        assert (found["ok"], found["requested"], found["cdi_devices"]) == (True, ["all"], [])
    assert "by an annotation" not in explain.explain(with_nvidia(cdi_devices=network), OLD)["steps"][0]["message"]
    assert explain.explain(container(cdi_devices=network), HOST)["code"] == "no-gpu-requested"
    # A specification of NVIDIA's tools can have another vendor.
    added = Specifications(
        ("/etc/cdi",), {network[0]: "/a.json"}, {"/a.json": {"devices": [device("1", "/dev/nvidia0")]}}
    )
    host = HOST._replace(engine_specifications=added, mountinfo=BY_CDI)
    found = explain.explain(container(cdi_devices=network), host)
    assert (found["ok"], found["requested"]) == (True, list(network))
    for name in ("k8s.device-plugin.nvidia.com/gpu=1", "nvidia.com/gpu=7"):
        given = container(cdi_devices=(name,), config={})
        assert explain.explain(given, HOST._replace(mountinfo=mounts()))["code"] == "cdi-device-missing"


def test_mode_csv_checks_requirements() -> None:
    given = with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13"})
    found = explain.explain(given, config(mode="csv"))
    assert found["requirements_checked"] is True
    assert [step["ok"] for step in found["steps"] if step["name"] == "requirements"] == [None]


def test_steps_of_a_request_that_nothing_handles() -> None:
    found = explain.explain(container("all"), HOST)
    assert [(step["name"], step["ok"]) for step in found["steps"]] == [
        ("request", True), ("injection", False), ("start", True),
    ]  # fmt: skip
    assert found["code"] == found["steps"][1]["code"] == "runtime-not-nvidia"
    assert found["message"].startswith("web (docker, 3a3a3ce6c3f0): Its runtime is runc, ")
    assert (found["injection"], found["mode"], found["requested"]) == ("none", None, ["all"])
    assert found["missing_devices"] == found["missing_files"] == []


def test_all_steps() -> None:
    found = explain.explain(with_nvidia(), OLD._replace(mountinfo=BY_HOOK))
    names = [step["name"] for step in found["steps"]]
    assert names == [
        "request", "injection", "mode", "settings", "driver", "devices", "features", "capabilities", "requirements",
        "start", "contents", "access",
    ]  # fmt: skip
    assert found["devices"] == ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
    assert found["files"] == [f"{LIBRARIES}/libcuda.so.{DRIVER}", f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}"]
    assert found["capabilities"] == {"requested": [], "granted": ["compute", "utility"]}
    assert found["toolkit"]["version"] == "1.17.8"
    assert found["toolkit"]["settings"]["swarm-resource"] == ""


def test_mode() -> None:
    assert explain.explain(with_gpus(), OLD)["mode"] == "legacy"
    assert explain.explain(with_gpus(), config(mode="cdi"))["mode"] == "cdi"
    assert explain.explain(with_cdi("0"), OLD)["mode"] is None


def test_missing_parts_are_named() -> None:
    found = explain.explain(with_cdi("all"), HOST._replace(mountinfo=mounts("/dev/nvidiactl", "/dev/nvidia-uvm")))
    assert found["missing_devices"] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert found["missing_files"] == [f"{LIBRARIES}/libcuda.so.{DRIVER}"]
    assert found["cdi_devices"] == [{"name": "nvidia.com/gpu=all", "path": "/etc/cdi/nvidia.yaml"}]


def test_requirements_are_listed_in_every_mode() -> None:
    given = with_nvidia(environment={"NVIDIA_REQUIRE_CUDA": "cuda>=13", "NVIDIA_REQUIRE_X": "x=1"})
    found = explain.explain(given, HOST)
    assert found["requirements"] == [
        {"variable": "NVIDIA_REQUIRE_CUDA", "requirement": "cuda>=13", "met": False},
        {"variable": "NVIDIA_REQUIRE_X", "requirement": "x=1", "met": None},
    ]
    assert found["requirements_checked"] is False


def test_no_secrets() -> None:
    environment = {"NVIDIA_API_KEY": "nvapi-1", "PASSWORD": "p", "NVIDIA_REQUIRE_CUDA": "cuda>=12", "SWARM": "0"}
    given = with_nvidia(environment=environment, error="get https://user:hunter2@registry/x", state=CREATED)
    found = explain.explain(given, config(swarm_resource="SWARM"))
    assert found["environment"] == {VISIBLE: "all", "NVIDIA_REQUIRE_CUDA": "cuda>=12", "SWARM": "0"}
    assert "hunter2" not in json.dumps(found)
    assert "nvapi" not in json.dumps(found)


@pytest.mark.parametrize("value", ["x" * 200000, f"void,{'x' * 200000}", ",".join(map(str, range(40000)))])
def test_a_long_variable_makes_no_long_result(value: str) -> None:
    environment = dict.fromkeys(("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "CUDA_VERSION"), value)
    hosts = (HOST, OLD, config(mode="cdi"), config(accept_variable=False), config(mode="csv"))
    for host in hosts:
        for given in (with_nvidia(value, environment=environment), with_nvidia(environment=environment)):
            assert len(json.dumps(explain.explain(given, host))) < 100000


def test_a_container_whose_engine_does_not_report_the_request() -> None:
    linux = {"devices": [{"path": "/dev/nvidia0"}]}
    found = explain.explain(container("void", request_known=False, config={"linux": linux}), HOST)
    assert (found["ok"], found["code"]) == (None, "request-unknown")
    assert found["message"].endswith("docker does not report what it requests. It has /dev/nvidia0.")
    assert [step["code"] for step in found["steps"]] == ["request-unknown", "running"]
    # The runtime of NVIDIA reads the variable, which the engine reports.
    found = explain.explain(with_nvidia(request_known=False), OLD._replace(mountinfo=BY_HOOK))
    assert (found["ok"], found["requested"]) == (True, ["all"])


def test_nodes_of_another_option() -> None:
    linux = {"devices": [{"path": "/dev/nvidia0"}]}
    found = explain.explain(container(config={"linux": linux}), HOST)
    assert found["code"] == "no-gpu-requested"
    assert "its device nodes come from another option" in found["message"]


@pytest.mark.parametrize(
    ("version", "programs", "cdi", "expected"),
    [
        # daemon/nvidia_linux.go of moby 26, daemon/devices_nvidia_linux.go of 28.3 to 29.7.
        ("26.1.5", ("hook", "cdi"), True, "hook"),
        ("26.1.5", ("cdi",), True, "none"),
        ("28.5.2", ("cdi",), True, "none"),
        ("29.1.5", ("hook", "cdi"), True, "hook"),
        ("29.1.5", ("cdi",), True, "none"),
        ("29.2.0", ("hook", "cdi"), True, "engine"),
        ("29.2.0", ("cdi",), True, "engine"),
        ("29.2.0", ("cdi",), False, "none"),
        ("29.7.3", ("hook", "cdi"), True, "engine"),
        ("29.7.3", ("hook", "cdi"), False, "hook"),
        ("29.7.3", ("hook",), True, "hook"),
        ("29.7.3", (), True, "none"),
        ("", ("hook",), None, "hook"),
    ],
)
def test_gpus_of_docker(version: str, programs: tuple[str, ...], cdi: bool | None, expected: str) -> None:
    names = {"hook": "nvidia-container-runtime-hook", "cdi": "nvidia-cdi-hook"}
    host = HOST._replace(engine_version=version, programs=frozenset(names[name] for name in programs), engine_cdi=cdi)
    assert explain.docker_gpus(host, ("nvidia.com/gpu=all",)) == expected
    if "hook" in programs and expected == "engine":
        # A device that no specification defines.
        assert explain.docker_gpus(host, ("nvidia.com/gpu=9",)) == "hook"


def test_advice_for_each_engine() -> None:
    advice = {
        engine: explain.explain(container("all")._replace(engine=engine), HOST)["advice"]
        for engine in ("docker", "podman", "containerd", "crio")
    }
    assert "--runtime nvidia" in advice["docker"]
    assert "--device nvidia.com/gpu=all" in advice["podman"]
    assert "runtimeClassName" in advice["containerd"]
    assert advice["containerd"] == advice["crio"]
    # The kubelet does not know the options of Docker's command line.
    in_docker = container("all")._replace(in_pod=True)
    assert explain.explain(in_docker, HOST)["advice"] == advice["containerd"]
    for given, host in (
        (container()._replace(in_pod=True), HOST),
        (with_cdi("0", in_pod=True), HOST._replace(engine_reads=False)),
    ):
        assert "--gpus" in explain.explain(given._replace(in_pod=False), host)["advice"]
        assert "--gpus" not in explain.explain(given, host)["advice"]


def test_an_nri_plugin_adds_devices_for_management_in_some_namespaces() -> None:
    devices = {f"{MANAGEMENT_KIND}=all": "/etc/cdi/nvidia.yaml"}
    specifications = HOST.engine_specifications._replace(devices=devices)
    host = NRI._replace(engine_specifications=specifications, mountinfo=BY_CDI)
    (step,) = (one for one in explain.explain(with_nri(*devices), host)["steps"] if one["name"] == "injection")
    assert (step["ok"], f" {MANAGEMENT_KIND} only in its own namespace" in step["message"]) == (True, True)
    steps = explain.explain(with_nri(), NRI._replace(mountinfo=BY_CDI))["steps"]
    assert not any("namespace" in one["message"] for one in steps)
    assert "by the annotation nvidia.cdi.k8s.io of its pod." in steps[0]["message"]
