# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running containers without working GPUs, and containers with GPUs whose next start fails."""

from __future__ import annotations

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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.access import NodeAccess
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Specifications
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import explained_containers as values
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.container_reports import (
    ALL,
    ALL_MOUNTS,
    COMMON,
    CONFIG,
    LIBRARIES,
    SPECIFICATION,
    WITHOUT_GPUS,
    Report,
    verdict,
)

if t.TYPE_CHECKING:
    Change = t.Callable[[Report], None]

RUNTIME = "/usr/bin/nvidia-container-runtime"
CDI_DEVICES = [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]
GPUS = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}]
IN_CONTAINER = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


def running(given: dict[str, t.Any], report: Report, **changes: t.Any) -> dict[str, t.Any]:
    """Explain a container of Docker that runs with all of its devices, on a host that has changed since."""
    report.set_mounts(ALL_MOUNTS)
    data = {
        "Id": "ab12" + "0" * 60,
        "Name": "/job",
        "State": {"Status": "running", "Pid": 488},
        "Config": {"Env": given.get("Env", [])},
        "HostConfig": given,
    }
    container = explain_container.from_docker(data, report.runtimes, None)._replace(**changes)
    return report.explain(container, report.docker, None)


# -- a container that runs, on a host that has changed since ---------------------------------------------------------


def no_program(report: Report) -> None:
    report.remove("nvidia-container-runtime")


def no_registration(report: Report) -> None:
    report.runtimes = {"runc": "runc"}


def refused(report: Report) -> None:
    report.add(CONFIG, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")


def invalid(report: Report) -> None:
    report.add(CONFIG, "mode = [\n")


def unknown_mode(report: Report) -> None:
    report.add(CONFIG, '[nvidia-container-runtime]\nmode = "fast"\n')


CHANGED: list[tuple[Change, str]] = [
    (no_program, "program-missing"),
    (no_registration, "runtime-unknown"),
    (refused, "variable-refused"),
    (invalid, "config-invalid"),
    (unknown_mode, "mode-unknown"),
]


@pytest.mark.parametrize(("change", "code"), CHANGED, ids=[code for _change, code in CHANGED])
def test_a_container_from_before_a_change_of_the_host(report: Report, change: Change, code: str) -> None:
    change(report)
    given = {"Runtime": "nvidia", "Env": [ALL]}
    found = running(given, report, program=RUNTIME)
    assert verdict(found) == (True, "ok")
    assert "At its next start, it does not get its GPUs: " in found["message"]
    assert [step["code"] for step in found["steps"] if step["ok"] and step["advice"]] == [code]
    # Without its devices, the change is the cause.
    report.add("proc/488/mountinfo", "1 1 0:40 / /proc rw - tmpfs tmpfs rw\n")
    data = {"State": {"Status": "running", "Pid": 488}, "Config": {"Env": [ALL]}, "HostConfig": {"Runtime": "nvidia"}}
    container = explain_container.from_docker(data, report.runtimes, None)._replace(program=RUNTIME)
    found = report.explain(container, report.docker, None)
    assert verdict(found) == (False, code)
    assert found["missing_devices"] == []
    # A container that has exited does not start.
    assert verdict(report.of_docker(ALL))[0] is False


def test_a_container_from_before_cdi_was_switched_off(report: Report) -> None:
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION + COMMON)
    report.cdi = False
    found = running({"Runtime": "runc", "DeviceRequests": CDI_DEVICES}, report)
    assert verdict(found) == (True, "ok")
    assert "CDI is off in docker" in found["message"]
    found = report.of_docker(runtime="runc", DeviceRequests=CDI_DEVICES, mounts=WITHOUT_GPUS)
    assert verdict(found) == (False, "cdi-disabled")


def test_a_container_with_gpus_whose_hook_is_gone(report: Report) -> None:
    report.remove("nvidia-container-runtime-hook", "nvidia-cdi-hook")
    hooks = {"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}}
    given: dict[str, t.Any] = {"Runtime": "runc", "DeviceRequests": GPUS}
    # Of a container whose bundle is not found, the hooks are not known. Docker may also have added the GPUs by CDI.
    for config in (hooks, None, {}):
        found = running(given, report, config=config)
        assert verdict(found) == (True, "ok")
        assert "finds no program for --gpus" in found["message"]
    assert verdict(report.of_docker(mounts=WITHOUT_GPUS, **given)) == (False, "gpus-unsupported")
    found = report.of_docker(**given)
    assert (*verdict(found), found["injection"]) == (False, "gpus-unsupported", "none")


def test_a_container_whose_specification_was_removed(report: Report) -> None:
    found = running({"Runtime": "runc", "DeviceRequests": CDI_DEVICES}, report)
    assert verdict(found) == (None, "cdi-device-removed")
    assert "nvidia.com/gpu=all" in found["message"]
    # CDI was switched off, too.
    report.cdi = False
    assert verdict(running({"Runtime": "runc", "DeviceRequests": CDI_DEVICES}, report))[0] is None
    # Without device nodes, or if only this device is gone, the container lacks it.
    report.cdi = True
    lacks = report.of_docker(runtime="runc", DeviceRequests=CDI_DEVICES, mounts=WITHOUT_GPUS)
    assert verdict(lacks) == (False, "cdi-device-missing")
    report.add("etc/cdi/nvidia.yaml", (SPECIFICATION + COMMON).replace("all", '"7"'))
    found = running({"Runtime": "runc", "DeviceRequests": CDI_DEVICES}, report)
    assert verdict(found) == (False, "cdi-device-missing")


# -- between two starts ------------------------------------------------------------------------------------------------


def test_a_container_that_docker_starts_again_and_again(report: Report) -> None:
    data = {
        "State": {"Status": "restarting", "Pid": 0},
        "Config": {"Env": [ALL]},
        "HostConfig": {"Runtime": "nvidia"},
    }
    container = explain_container.from_docker(data, report.runtimes, None)
    assert container.state == explain_container.EXITED
    assert verdict(report.explain(container, report.docker, None)) == (True, "ok")
    report.remove("nvidia-ctk", "nvidia-cdi-hook")
    assert verdict(report.explain(container, report.docker, None)) == (False, "program-missing")
    data["State"] = {"Status": "paused", "Pid": 488}
    assert explain_container.from_docker(data, report.runtimes, None).state == explain_container.RUNNING


# -- before a start ----------------------------------------------------------------------------------------------------


def test_an_engine_that_does_not_report_cdi(report: Report) -> None:
    report.add("etc/cdi/nvidia.yaml", SPECIFICATION + COMMON)
    report.cdi = None
    data = {"State": {"Status": "exited"}, "HostConfig": {"Runtime": "runc", "DeviceRequests": CDI_DEVICES}}
    container = explain_container.from_docker(data, report.runtimes, None)
    found = report.explain(container, report.docker, None)
    assert found["steps"][1]["code"] == "cdi-unknown"
    assert found["steps"][1]["ok"] is None
    host = values.HOST._replace(engine_cdi=None)
    found = explain.explain(values.with_cdi("0", state=explain_container.EXITED, pid=None), host)
    assert verdict(found) == (None, "cdi-unknown")
    # One that runs shows what it has.
    assert verdict(explain.explain(values.with_cdi("0"), host._replace(mountinfo=values.BY_CDI))) == (True, "ok")


@pytest.mark.parametrize("toolkit", ["1.17.8", "1.19.1"])
def test_a_host_without_libcuda(report: Report, toolkit: str) -> None:
    report.toolkit = toolkit
    (report.root / LIBRARIES / "libcuda.so.1").unlink()
    found = report.of_docker(ALL)
    assert verdict(found) == (None, "library-unknown")
    assert "libcuda.so.1" in found["message"]
    # Mode legacy does not add it for these capabilities.
    found = report.of_docker(ALL, "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert verdict(found) == ((True, "ok") if toolkit == "1.17.8" else (None, "library-unknown"))
    assert verdict(report.of_docker(ALL, mounts=ALL_MOUNTS)) == (True, "ok")


def test_a_libcuda_of_another_version(report: Report) -> None:
    report.add(f"{LIBRARIES}/libcuda.so.535.1.2", "")
    link = report.root / LIBRARIES / "libcuda.so.1"
    link.unlink()
    link.symlink_to("libcuda.so.535.1.2")
    found = report.of_docker(ALL)
    assert verdict(found) == (False, "driver-library-differs")
    assert "libcuda.so.1 of this host has the version 535.1.2" in found["message"]


@pytest.mark.parametrize(("toolkit", "settings", "expected"), [
    ("1.17.8", "", (False, "cgroups-refused")),
    ("1.17.8", "[nvidia-container-cli]\nno-cgroups = true\n", (True, "ok")),
    ("1.19.1", "", (True, "ok")),
])  # fmt: skip
def test_the_hook_of_a_rootless_engine(report: Report, toolkit: str, settings: str, expected: tuple[bool, str]) -> None:
    report.toolkit = toolkit
    report.add(CONFIG, settings)
    data = {"State": {"Status": "created"}, "Config": {"Env": [ALL]}, "HostConfig": {"Runtime": "nvidia"}}
    container = explain_container.from_docker(data, report.runtimes, None)
    state = explain_host.ReportedEngine("26.1.5", cdi=False, rootless=True)
    facts = explain_host.read_host(container, state, None, report.host, report.run)
    assert verdict(explain.explain(container, facts)) == expected


def test_capabilities_without_compute(report: Report) -> None:
    report.toolkit = "1.17.8"
    for value in ("utility", "graphics", "video,utility"):
        found = report.of_docker(ALL, f"NVIDIA_DRIVER_CAPABILITIES={value}")
        assert verdict(found) == (True, "ok")
        assert "programs with CUDA find no libcuda" in found["message"]
    for value in ("", "all", "compute,utility", "compute"):
        assert report.of_docker(ALL, f"NVIDIA_DRIVER_CAPABILITIES={value}")["advice"] == ""


# -- incomplete specifications -----------------------------------------------------------------------------------------


def specified(text: str, *mountinfo: str) -> dict[str, t.Any]:
    """Explain a container with nvidia.com/gpu=0 of the common edits in ``text``; with ``mountinfo`` it runs."""
    edits = dict(values.SPECIFICATION["containerEdits"])
    edits["deviceNodes"] = [node for node in edits["deviceNodes"] if node["path"] != text]
    edits["mounts"] = [mount for mount in edits["mounts"] if text not in mount["containerPath"]]
    document = {**values.SPECIFICATION, "containerEdits": edits}
    specifications = values.SPECIFICATIONS._replace(documents={"/etc/cdi/nvidia.yaml": document})
    host = values.HOST._replace(engine_specifications=specifications, mountinfo=values.mounts(*mountinfo))
    fields = {} if mountinfo else {"state": explain_container.EXITED, "pid": None}
    return explain.explain(values.with_cdi("0", **fields), host if mountinfo else host._replace(mountinfo=""))


LIBRARY = f"/usr/lib/libcuda.so.{values.DRIVER}"


@pytest.mark.parametrize("node", ["/dev/nvidiactl", "/dev/nvidia-uvm"])
def test_a_specification_without_a_node_that_all_gpus_need(node: str) -> None:
    assert verdict(specified("no such path")) == (True, "ok")
    assert verdict(specified(node)) == (False, "cdi-incomplete")
    assert node in specified(node)["message"]
    others = [path for path in IN_CONTAINER if path != node]
    library = values.SPECIFICATION["containerEdits"]["mounts"][0]["containerPath"]
    assert verdict(specified(node, "/dev/null", *others, library)) == (False, "cdi-incomplete")
    # Another option can add the node.
    assert verdict(specified(node, *IN_CONTAINER, library)) == (True, "ok")


def test_a_specification_without_libcuda() -> None:
    assert verdict(specified("libcuda")) == (None, "library-unknown")
    assert verdict(specified("libcuda", *IN_CONTAINER)) == (None, "library-unknown")
    assert verdict(specified("libcuda", *IN_CONTAINER, LIBRARY)) == (True, "ok")


def test_a_specification_of_other_devices_needs_no_libcuda() -> None:
    document = {"kind": "nvidia.com/gds", "devices": [values.device("all", "/dev/nvidia-fs0")]}
    found = Specifications(("/etc/cdi",), {"nvidia.com/gds=all": "/a"}, {"/a": document})
    given = values.container(cdi_devices=("nvidia.com/gds=all",), state=explain_container.EXITED, pid=None)
    assert verdict(explain.explain(given, values.HOST._replace(engine_specifications=found))) == (True, "ok")


GDS = "nvidia.com/gds=all"
CHANNEL = "k8s.compute-domain.nvidia.com/claim=u1-channel-0"


def host_with(name: str, node: str, **facts: t.Any) -> explain_host.ExplainedHost:
    """Return a host with the device ``name`` in a specification that hides all GPUs, as those of this collection do."""
    kind, _sign, device = name.partition("=")
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    document = {"kind": kind, "devices": [values.device(device, node)], "containerEdits": edits}
    found = values.SPECIFICATIONS._replace(
        devices={**values.SPECIFICATIONS.devices, name: "/x"},
        documents={**values.SPECIFICATIONS.documents, "/x": document},
    )
    host = values.HOST._replace(engine_specifications=found, runtime_specifications=found, mountinfo=values.mounts())
    return host._replace(**facts)


@pytest.mark.parametrize(
    ("given", "facts", "code"),
    [
        (values.container("all"), {}, "runtime-not-nvidia"),
        # The variable of the specification hides the GPUs from the runtime.
        (values.with_nvidia("all"), {}, None),
        (
            values.with_gpus(-1, state=explain_container.CREATED, pid=None),
            {"programs": frozenset()},
            "gpus-unsupported",
        ),
        (values.with_gpus(-1), {"engine_version": "29.2.0"}, "devices-missing"),
    ],
)
def test_gpus_beside_a_device_without_gpus(
    given: explain_container.Container, facts: dict[str, t.Any], code: str | None
) -> None:
    """The GPUs are checked although the engine adds the other device."""
    config = {"linux": {"devices": [{"path": "/dev/nvidia-fs0"}]}}
    container = given._replace(cdi_devices=(GDS,), config=config)
    found = explain.explain(container, host_with(GDS, "/dev/nvidia-fs0", **facts))
    assert found["ok"] is False, found
    assert code in (None, found["code"])


def test_a_gpu_of_a_device_plugin_beside_a_compute_domain() -> None:
    node = "/dev/nvidia-caps-imex-channels/channel0"
    config = {"linux": {"devices": [{"path": node}]}}
    container = values.container("0", cdi_devices=(CHANNEL,), config=config)
    assert verdict(explain.explain(container, host_with(CHANNEL, node))) == (False, "runtime-not-nvidia")
    # A claim whose file is unknown may have the GPU.
    found = explain.explain(container, values.HOST._replace(mountinfo=values.mounts()))
    assert found["code"] != "runtime-not-nvidia"


def test_all_devices_of_a_specification_that_lacks_a_gpu() -> None:
    document = {
        **values.SPECIFICATION,
        "devices": [values.device("all", "/dev/nvidia0"), values.device("0", "/dev/nvidia0")],
    }
    specifications = values.SPECIFICATIONS._replace(documents={"/etc/cdi/nvidia.yaml": document})
    host = values.HOST._replace(engine_specifications=specifications, mountinfo=values.BY_CDI)
    found = explain.explain(values.with_cdi("all"), host)
    assert verdict(found) == (True, "ok")
    assert "/etc/cdi/nvidia.yaml does not describe GPU 1 of this host." in found["message"]
    assert "GPU 1" not in explain.explain(values.with_cdi("0"), host)["message"]


@pytest.mark.parametrize("permissions", ["r", "none", "m", "rm"])
def test_a_specification_with_permissions_that_are_too_few(permissions: str) -> None:
    node = {"path": "/dev/nvidia0", "permissions": permissions}
    document = {**values.SPECIFICATION, "devices": [{"name": "0", "containerEdits": {"deviceNodes": [node]}}]}
    specifications = values.SPECIFICATIONS._replace(documents={"/etc/cdi/nvidia.yaml": document})
    host = values.HOST._replace(engine_specifications=specifications)
    found = explain.explain(values.with_cdi("0", state=explain_container.CREATED, pid=None), host)
    assert verdict(found) == (False, "cdi-incomplete")
    assert "/dev/nvidia0" in found["message"]
    node["permissions"] = "rw"
    assert verdict(explain.explain(values.with_cdi("0", state=explain_container.CREATED, pid=None), host)) == (
        True,
        "ok",
    )


# -- nodes that the low-level runtime makes ----------------------------------------------------------------------------


def made(rules: t.Sequence[dict[str, t.Any]] = (), **fields: t.Any) -> dict[str, t.Any]:
    """Return an OCI config with the nodes of the container. ``fields`` are those of /dev/nvidia0."""
    numbers = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0), "/dev/nvidia0": (195, 0)}
    node = {"type": "c", "fileMode": 0o666}
    nodes = [{**node, "path": path, "major": major, "minor": minor} for path, (major, minor) in numbers.items()]
    nodes[2].update(fields)
    user = {"uid": 1000, "gid": 1000}
    return {"process": {"user": user}, "linux": {"devices": nodes, "resources": {"devices": list(rules)}}}


def explained(config: dict[str, t.Any], nodes: t.Mapping[str, NodeAccess]) -> dict[str, t.Any]:
    library = values.SPECIFICATION["containerEdits"]["mounts"][0]["containerPath"]
    host = values.HOST._replace(mountinfo=values.mounts(library), nodes=nodes)
    given = values.with_cdi("0", config=config, user=explain_container.user_of(config))
    return explain.explain(given, host)


def test_nodes_of_a_driver_that_was_loaded_again() -> None:
    nodes = {
        "/dev/nvidia-uvm": NodeAccess(0o666, number=(511, 0)),
        "/dev/nvidia0": NodeAccess(0o666, number=(195, 0)),
    }
    found = explained(made(), nodes)
    assert verdict(found) == (False, "devices-stale")
    assert "/dev/nvidia-uvm" in found["message"]
    assert verdict(explained(made(), {**nodes, "/dev/nvidia-uvm": NodeAccess(0o666, number=(510, 0))})) == (
        True,
        "ok",
    )


def test_the_owner_of_a_node_is_that_in_the_container() -> None:
    # The CDI library gives a node without an owner to the user of the container (container-edits.go of 0.6 to 1.1).
    host = {"/dev/nvidia0": NodeAccess(0o660, 0, 44)}
    assert verdict(explained(made(fileMode=0o660, uid=1000, gid=1000), host)) == (True, "ok")
    assert verdict(explained(made(fileMode=0o660, uid=0, gid=44), host)) == (False, "nodes-denied")
    # The host's node is open for all, that of the container is not.
    assert verdict(explained(made(fileMode=0o600), {"/dev/nvidia0": NodeAccess(0o666)})) == (False, "nodes-denied")


NONE = {"allow": False, "access": "rwm"}


@pytest.mark.parametrize(("rules", "permitted"), [
    ([], True),
    ([NONE, {"allow": True, "type": "c", "access": "rwm"}], True),
    ([NONE, {"allow": True, "type": "a"}], True),
    ([NONE, *({"allow": True, "type": "c", "major": n, "access": "rw"} for n in (195, 510))], True),
    ([NONE, *({"allow": True, "type": "c", "major": n, "access": "r"} for n in (195, 510))], False),
    ([NONE, {"allow": True, "type": "c", "major": 510, "access": "rw"}], False),
    ([NONE, {"allow": True, "type": "c", "access": "rw"}, {"allow": False, "type": "c", "major": 195, "minor": 0}],
     False),
    ([NONE, {"allow": True, "type": "b", "access": "rwm"}], False),
    # What is not denied first is not known.
    ([{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}], True),
])  # fmt: skip
def test_rules_of_the_device_cgroup(rules: list[dict[str, t.Any]], permitted: bool) -> None:
    expected = (True, "ok") if permitted else (False, "cgroup-denied")
    assert verdict(explained(made(rules), {})) == expected


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("common", "permissions", "expected"),
    [
        (True, "rw", ""),
        (False, "rw", "/etc/cdi/nvidia.yaml lacks"),
        (True, "r", "/etc/cdi/gds.yaml does not permit to read and write /dev/nvidia-fs0"),
    ],
)
def test_names_the_file_of_several(order: int, common: bool, permissions: str, expected: str) -> None:
    node = {"path": "/dev/nvidia-fs0", "permissions": permissions}
    gds = {"kind": "nvidia.com/gds", "devices": [{"name": "all", "containerEdits": {"deviceNodes": [node]}}]}
    documents = {"/etc/cdi/gds.yaml": gds, "/etc/cdi/nvidia.yaml": dict(values.SPECIFICATION)}
    if not common:
        del documents["/etc/cdi/nvidia.yaml"]["containerEdits"]
    devices = {**values.SPECIFICATIONS.devices, "nvidia.com/gds=all": "/etc/cdi/gds.yaml"}
    specifications = values.SPECIFICATIONS._replace(documents=documents, devices=devices)
    names = ("nvidia.com/gpu=0", "nvidia.com/gds=all")[::order]
    given = values.container(cdi_devices=names, state=explain_container.EXITED, pid=None)
    found = explain.explain(given, values.HOST._replace(engine_specifications=specifications))
    assert found["message"].count("/etc/cdi/") == (expected != "")
    assert expected in found["message"]
    assert ("class gds" in found["advice"]) is (permissions == "r")


def test_management_of_a_gpu_without_mig_devices() -> None:
    """Its specification has the nodes of all GPUs on purpose, also for the program that creates the MIG devices."""
    name, path = "management.nvidia.com/gpu=all", "/var/run/cdi/management.yaml"
    nodes = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    document = {"kind": name.partition("=")[0], "devices": [values.device("all", *nodes)], "containerEdits": {}}
    found = values.SPECIFICATIONS._replace(
        devices={**values.SPECIFICATIONS.devices, name: path},
        documents={**values.SPECIFICATIONS.documents, path: document},
    )
    empty = (values.GPUS[1], values.GPUS[0]._replace(usable=False, empty=True))
    host = values.HOST._replace(engine_specifications=found, runtime_specifications=found, all_gpus=empty)
    config = {"linux": {"devices": [{"path": node} for node in nodes]}}
    container = values.container(cdi_devices=(name,), config=config)
    explanation = explain.explain(container, host._replace(mountinfo=values.mounts()))
    assert (explanation["ok"], explanation["code"]) != (False, "mig-mode")
