# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for the rows of the decision, in their order."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import decide as explain_decide
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Contents, DriverFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import (
    ALL,
    CREATED,
    DEVICE,
    EXITED,
    GPUS,
    MOUNT,
    VARIABLE,
    Container,
    Request,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes, procfs
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.explained_containers import (
    CUDA,
    FIRST,
    HOST,
    MIG,
    NUMBERS,
    NVML,
    SECOND,
    by_cdi,
    by_variable,
    container,
    contents,
    node,
    without,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.host import ExplainedHost

BOTH = contents("/dev/nvidia0", "/dev/nvidia1")
ONE = contents("/dev/nvidia0")
NOTHING = Contents()
OLD = DriverFile("/usr/lib64/libcuda.so.535.1", "535.1")
IN_MIG_MODE = HOST._replace(gpus=(FIRST, SECOND._replace(in_mig_mode=True), MIG))
CAPS = MIG.nodes[1:]


def decided(one: Container, measured: Contents | None, host: ExplainedHost = HOST) -> tuple[bool | None, str]:
    verdict = explain_decide.decide(one, host, measured)
    assert verdict.message.endswith(".")
    return verdict.ok, verdict.code


# -- rows before a measurement -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [CREATED, EXITED])
def test_failed_start_is_quoted(state: str) -> None:
    verdict = explain_decide.decide(container(state=state, pid=None, error="no such thing"), HOST, None)
    assert (verdict.ok, verdict.code, verdict.advice) == (False, "start-failed", "")
    assert verdict.message == "Its last start failed: no such thing."


def test_known_error_has_advice() -> None:
    error = "unknown or invalid runtime name: nvidia"
    verdict = explain_decide.decide(container(state=CREATED, pid=None, error=error), HOST, None)
    assert (verdict.ok, verdict.code) == (False, "runtime-unknown")
    assert verdict.advice


def test_error_of_a_running_container_is_old() -> None:
    assert decided(container(error="old"), BOTH) == (True, "ok")


@pytest.mark.parametrize(
    "fields",
    [
        {"runtime": "kata-qemu-nvidia-gpu", "program": ""},
        {"runtime": "", "program": "io.containerd.kata.v2"},
        {"runtime": "runsc", "program": "/usr/local/bin/runsc"},
        {"runtime": "io.containerd.runsc.v1", "program": ""},
    ],
)
def test_other_kernel(fields: dict[str, str]) -> None:
    assert decided(container(by_cdi("nvidia.com/pgpu=0"), **fields), NOTHING) == (None, "other-kernel")


@pytest.mark.parametrize("measured", [NOTHING, None])
def test_without_request(measured: Contents | None) -> None:
    one = container(runtime="runc", program="runc")._replace(requests=())
    assert decided(one, measured) == (None, "no-gpu-requested")
    assert decided(one._replace(requests_known=False), measured) == (None, "request-unknown")


def test_stopped_container_is_unknown() -> None:
    verdict = explain_decide.decide(container(state=EXITED, pid=None), HOST, None)
    assert (verdict.ok, verdict.code) == (None, "not-running")
    assert "try_copy" in verdict.advice


def test_tegra_is_unknown() -> None:
    assert decided(container(), NOTHING, HOST._replace(kind=procfs.TEGRA)) == (None, "driver-unknown")


# -- what it requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "measured", "expected"),
    [
        (by_variable(ALL), BOTH, True),
        (by_variable(ALL), ONE, False),
        (by_variable("0"), ONE, True),
        (by_variable("1"), ONE, False),
        (by_variable("GPU-A"), ONE, True),
        (by_variable("gpu-b"), ONE, False),
        (by_variable("0000:07:00.0"), ONE, True),
        (by_cdi("nvidia.com/gpu=0"), ONE, True),
        (by_cdi("nvidia.com/gpu=all"), ONE, False),
        (by_cdi("nvidia.com/gpu=all"), BOTH, True),
        # Names that nothing resolves now: any GPU is enough.
        (by_cdi("nvidia.com/gpu=stale"), ONE, True),
        (by_cdi("nvidia.com/gpu=stale"), NOTHING, False),
        (by_cdi("nvidia.com/gpu=gone"), ONE, True),
        (by_cdi("k8s.gpu.nvidia.com/claim=empty"), NOTHING, False),
        (by_variable("7"), NOTHING, False),
        (Request(MOUNT, "/var/run/nvidia-container-devices/all", "Mounts", (ALL,)), ONE, False),
        (Request(GPUS, '{"Count":2}', "HostConfig.DeviceRequests", number=2), ONE, False),
        (Request(GPUS, '{"Count":2}', "HostConfig.DeviceRequests", number=2), BOTH, True),
        (Request(GPUS, '{"Driver":"gpu"}', "HostConfig.DeviceRequests"), NOTHING, False),
        (Request(DEVICE, "/dev/nvidia1", "HostConfig.Devices", ("/dev/nvidia1",)), ONE, False),
        (Request(DEVICE, "/dev/nvidia0", "HostConfig.Devices", ("/dev/nvidia0",)), ONE, True),
    ],
)
def test_requested_gpus(request_: Request, measured: Contents, expected: bool) -> None:
    assert decided(container(request_), measured) == (expected, "ok" if expected else "devices-missing")


def test_variable_of_the_image_does_not_count_beside_another_request() -> None:
    assert decided(container(by_variable(ALL), by_cdi("nvidia.com/gpu=0")), ONE) == (True, "ok")


@pytest.mark.parametrize(("path", "ok"), [("/dev/nvidia0", True), ("/dev/nvidiactl", False)])
def test_device_beside_the_variable_of_the_image(path: str, ok: bool) -> None:
    device = Request(DEVICE, path, "HostConfig.Devices", (path,))
    assert decided(container(device, by_variable(ALL)), ONE)[0] is ok


def test_variable_of_swarm_beside_that_of_the_image() -> None:
    swarm = Request(VARIABLE, "DOCKER_RESOURCE_GPU=GPU-A", "Config.Env", ("GPU-A",))
    assert decided(container(by_variable(ALL), swarm), ONE) == (True, "ok")


@pytest.mark.parametrize("name", ["nvidia.com/other=fs"])
def test_device_that_is_no_gpu(name: str) -> None:
    assert decided(container(by_cdi(name)), NOTHING) == (None, "no-gpu-requested")


def test_all_gpus_of_a_host_without_nodes() -> None:
    host = HOST._replace(gpus=(FIRST._replace(exists=False),))
    assert decided(container(), NOTHING, host) == (False, "devices-missing")
    assert decided(container(), contents("/dev/nvidia0"), host) == (True, "ok")


def test_nodes_without_a_request() -> None:
    assert decided(container()._replace(requests=(), requests_known=False), ONE) == (True, "ok")


def test_mig_device_needs_its_capabilities() -> None:
    one = container(by_variable("MIG-B"))
    with_caps = contents("/dev/nvidia1", *CAPS)
    assert decided(one, with_caps, IN_MIG_MODE) == (True, "ok")
    assert decided(one, without(with_caps, CAPS[1]), IN_MIG_MODE) == (False, "devices-missing")
    assert decided(
        one, contents("/dev/nvidia1", CAPS[0], node(CAPS[1], usable=False, denied_by="mode")), IN_MIG_MODE
    ) == (
        False,
        "nodes-denied",
    )


def test_gpu_in_mig_mode_without_mig_device() -> None:
    assert decided(container(by_variable("1")), contents("/dev/nvidia1"), IN_MIG_MODE) == (False, "mig-mode")
    assert decided(container(), BOTH, IN_MIG_MODE) == (True, "ok")


# -- what it has -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_nodes_that_all_gpus_need(path: str) -> None:
    assert decided(container(by_variable("0")), without(ONE, path)) == (False, "devices-missing")


def test_uvm_is_only_for_cuda() -> None:
    assert decided(container(by_variable("0")), without(ONE, "/dev/nvidia-uvm")._replace(files=(NVML,))) == (True, "ok")


@pytest.mark.parametrize("path", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_other_numbers(path: str) -> None:
    changed = contents("/dev/nvidia0", node(path, minor=9))
    assert decided(container(by_variable("0")), changed) == (False, "devices-stale")


def test_link_needs_another_check_than_a_measurement_by_root() -> None:
    verdict = explain_decide.decide(container(), HOST, contents(node("/dev/nvidia0", kind=container_nodes.LINK)))
    assert (verdict.ok, verdict.code) == (None, "contents-unknown")
    assert "`nvidia-smi -L` in the container" in verdict.advice


def test_gpu_that_the_driver_has_lost() -> None:
    host = HOST._replace(gpus=(FIRST,), numbers={path: NUMBERS[path] for path in NUMBERS if path != "/dev/nvidia1"})
    only = contents("/dev/nvidia1")
    assert decided(container(by_cdi("nvidia.com/gpu=unresolvable")), only, host) == (False, "devices-stale")
    assert decided(container(Request(DEVICE, "", "", ("/dev/nvidia1",))), BOTH, host) == (False, "devices-stale")
    # It has another GPU, which may be enough.
    assert decided(container(by_variable(ALL)), BOTH, host) == (None, "driver-unknown")
    assert decided(container(by_variable("0")), ONE, host) == (True, "ok")


def test_module_that_is_not_loaded() -> None:
    host = HOST._replace(numbers={path: NUMBERS[path] for path in NUMBERS if path != "/dev/nvidia-uvm"})
    verdict = explain_decide.decide(container(by_variable("0")), host, ONE)
    assert (verdict.ok, verdict.code) == (None, "driver-unknown")
    assert "the host has no /dev/nvidia-uvm" in verdict.message


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (container_nodes.BY_CGROUP, "cgroup-denied"),
        (container_nodes.BY_MODE, "nodes-denied"),
        (container_nodes.BY_NODEV, "nodes-denied"),
        (container_nodes.BY_SELINUX, "selinux-denied"),
    ],
)
@pytest.mark.parametrize("path", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_denied_nodes(path: str, reason: str, code: str) -> None:
    changed = contents("/dev/nvidia0", node(path, usable=False, denied_by=reason))
    assert decided(container(by_variable("0")), changed) == (False, code)


@pytest.mark.parametrize("path", ["/dev/dri/card0", "/dev/nvidia-modeset", "/dev/nvidia-caps-imex-channels/channel0"])
def test_other_nodes_do_not_decide(path: str) -> None:
    changed = contents("/dev/nvidia0", node(path, usable=False, denied_by="mode", minor=77))
    assert decided(container(by_variable("0")), changed) == (True, "ok")


@pytest.mark.parametrize("kind", [container_nodes.LINK, container_nodes.OTHER])
def test_path_that_is_no_node(kind: str) -> None:
    changed = contents(node("/dev/nvidia0", kind=kind, usable=None))
    ok = None if kind == container_nodes.LINK else False
    assert decided(container(by_variable("0")), changed)[0] is ok


def test_other_driver() -> None:
    assert decided(container(by_variable("0")), ONE._replace(files=(OLD, NVML))) == (False, "libraries-stale")
    # A newer libcuda of the image beside that of the driver is for forward compatibility.
    assert decided(container(by_variable("0")), ONE._replace(files=(OLD, CUDA))) == (True, "ok")


@pytest.mark.parametrize("measured", [contents(problem="it hangs"), contents("/dev/nvidia0", problem="it hangs")])
def test_incomplete_measurement_is_unknown(measured: Contents) -> None:
    assert decided(container(by_variable("0")), measured)[0] is None


def test_unknown_access() -> None:
    measured = contents(node("/dev/nvidia0", usable=None), access_problem="the container is frozen")
    verdict = explain_decide.decide(container(by_variable("0")), HOST, measured)
    assert (verdict.ok, verdict.code) == (None, "access-unknown")
    assert "frozen" in verdict.message


def test_missing_node_is_known_without_access() -> None:
    measured = contents(node("/dev/nvidia0", usable=None), access_problem="the container is frozen")
    assert decided(container(by_variable("1")), measured) == (False, "devices-missing")


def test_without_driver_files() -> None:
    assert decided(container(by_variable("0")), ONE._replace(files=())) == (None, "driver-not-mounted")
    assert decided(container(by_variable("0")), ONE._replace(files=(), files_known=False)) == (None, "access-unknown")


def test_without_loaded_driver() -> None:
    assert decided(container(by_variable("0")), ONE, HOST._replace(driver=None)) == (None, "driver-unknown")


@pytest.mark.parametrize(
    ("files", "expected"),
    [((DriverFile("/usr/lib/wsl/lib/libcuda.so.1.1"),), (True, "ok")), ((), (None, "driver-not-mounted"))],
)
def test_wsl(files: t.Sequence[DriverFile], expected: tuple[bool | None, str]) -> None:
    host = HOST._replace(kind=procfs.WSL, driver=None, gpus=())
    measured = without(contents("/dev/dxg", files=files), "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert decided(container(), measured, host) == expected
    assert decided(container(), NOTHING, host) == (False, "devices-missing")


def test_names_of_gpus() -> None:
    found = [*contents("/dev/nvidia0", "/dev/nvidia1", *CAPS).measured.nodes]
    assert explain_decide.gpu_names(IN_MIG_MODE, found) == ["GPU 0", "GPU 1", "GPU 1 MIG 0"]
    assert explain_decide.gpu_names(HOST, [node("/dev/nvidia0", minor=9)]) == []
