# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.info import (
    changed_gpus,
    describe_cdi,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import CDI_SPEC_BYTES, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import mig_minors, write

LIBRARY = "usr/lib/libcuda.so.580.95.05"
PROGRAM = "usr/bin/nvidia-ctk"
SERVICE = "usr/lib/systemd/system/nvidia-cdi-refresh.service"
SERVICE_TEXT = "[Service]\nExecStart=/usr/bin/nvidia-ctk cdi generate\n[Install]\nWantedBy=multi-user.target\n"


def none(argv: list[str]) -> tuple[int, str, str]:
    pytest.fail(f"{argv} was run")


def text(*names: str, **changes: t.Any) -> str:
    """A specification whose devices have the node /dev/nvidia0."""
    mount = {"hostPath": f"/{LIBRARY}", "containerPath": f"/{LIBRARY}"}
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for name in names
            ],
            "containerEdits": {"mounts": [mount]},
            **changes,
        }
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFS:
    FakeNodes(monkeypatch, tmp_path, {"/dev/nvidia0": (195, 0)})
    write(tmp_path, {LIBRARY: "", PROGRAM: "", "etc/cdi/nvidia.json": text("0", "all")})
    (tmp_path / PROGRAM).chmod(0o755)
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("../run")
    return HostFS(str(tmp_path), live=False)


def report(host: HostFS, gpus: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    answer, needed = describe_cdi(host, none, gpus)
    assert needed is None
    return answer


def test_too_large_specifications(host: HostFS) -> None:
    filler = {f"etc/cdi/{number}.yaml": f"# {'x' * (CDI_SPEC_BYTES // 4)}\n" + text(str(number)) for number in range(5)}
    write(Path(host.root), filler)
    answer = report(host)
    assert (answer["files"], answer["devices"]) == ([], {})
    (problem,) = answer["problems"]
    assert problem["message"].startswith("The CDI specifications in /etc/cdi are larger than 4 MiB in total")


def put(host: HostFS, files: t.Mapping[str, str]) -> None:
    write(Path(host.root), files)


GOOD = {
    "path": "/etc/cdi/nvidia.json",
    "kind": "nvidia.com/gpu",
    "cdi_version": "0.5.0",
    "driver_version": "580.95.05",
    "devices": ["0", "all"],
    "valid": True,
    "errors": (),
    "warnings": [],
    "stale": False,
    "reasons": [],
    "missing_paths": [],
}


def test_full_report(host: HostFS) -> None:
    assert report(host) == {
        "files": [GOOD],
        "devices": {"nvidia.com/gpu=0": "/etc/cdi/nvidia.json", "nvidia.com/gpu=all": "/etc/cdi/nvidia.json"},
        "conflicts": {"shadowed": {}, "unresolvable": {}},
        "refresh": None,
        "problems": [],
    }


def test_host_without_specifications(tmp_path: Path) -> None:
    answer = report(HostFS(str(tmp_path), live=True))
    assert (answer["files"], answer["devices"], answer["problems"]) == ([], {}, [])


def test_conflicts(host: HostFS) -> None:
    put(host, {"etc/cdi/a.json": text("1"), "etc/cdi/b.json": text("1"), "run/cdi/nvidia.json": text("0")})
    answer = report(host)
    assert [file["path"] for file in answer["files"]] == [
        "/etc/cdi/a.json",
        "/etc/cdi/b.json",
        "/etc/cdi/nvidia.json",
        "/var/run/cdi/nvidia.json",
    ]
    assert answer["devices"]["nvidia.com/gpu=0"] == "/var/run/cdi/nvidia.json"
    assert answer["conflicts"]["shadowed"] == {"nvidia.com/gpu=0": ["/etc/cdi/nvidia.json"]}
    assert answer["conflicts"]["unresolvable"] == {"nvidia.com/gpu=1": ["/etc/cdi/a.json", "/etc/cdi/b.json"]}


def test_invalid_files(host: HostFS) -> None:
    put(host, {"etc/cdi/broken.json": "[", "etc/cdi/odd.json": text("0", kind="nvidia.com"), "etc/cdi/x": ""})
    (Path(host.root) / "etc/cdi/folder.json").mkdir()
    answer = report(host)
    broken, good, odd = answer["files"]
    assert good == GOOD
    assert (broken["valid"], broken["kind"], broken["stale"]) == (False, None, None)
    assert "/etc/cdi/broken.json, line " in broken["errors"][0]
    assert (odd["valid"], odd["stale"], odd["cdi_version"]) == (False, None, "0.5.0")
    assert odd["errors"][0].startswith("kind must be VENDOR/CLASS")
    assert answer["conflicts"] == {"shadowed": {}, "unresolvable": {}}


def test_stale_file(host: HostFS) -> None:
    os.unlink(host.real_path(f"/{LIBRARY}"))
    gpus = {"driver_version": "590.1", "source": "proc", "devices": []}
    (file,) = report(host, gpus)["files"]
    assert file["stale"]
    assert file["missing_paths"] == [f"/{LIBRARY}"]
    assert file["reasons"] == [
        {"code": "path-missing", "message": f"These paths no longer exist: /{LIBRARY}."},
        {"code": "driver-differs", "message": "It is for driver 580.95.05, but the driver is 590.1."},
        {"code": "gpu-gone", "message": "It has 0, which the driver does not report."},
    ]


def test_gpus_in_several_files(host: HostFS) -> None:
    devices: list[dict[str, t.Any]] = [
        {"index": number, "uuid": f"GPU-{number}", "minor": 0, "mig_enabled": False, "mig_devices": []}
        for number in (0, 1)
    ]
    gpus = {"driver_version": None, "source": "nvml", "devices": devices}
    put(host, {"etc/cdi/nvidia.json": text("0")})
    assert report(host, gpus)["files"][0]["stale"]
    put(host, {"etc/cdi/second.json": text("1")})
    assert [file["stale"] for file in report(host, gpus)["files"]] == [False, False]


# -- YAML --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    monkeypatch.setattr(bundled, "_registered", {})


@pytest.mark.usefixtures("without_yaml")
def test_json_needs_no_package(host: HostFS) -> None:
    assert report(host)["files"] == [GOOD]


@pytest.mark.usefixtures("without_yaml")
def test_report_without_pyyaml(host: HostFS) -> None:
    put(host, {"etc/cdi/a.yaml": "kind: nvidia.com/gpu\n", "etc/cdi/broken.json": "{]"})
    answer, needed = describe_cdi(host, none)
    assert needed == "yaml"
    assert answer["files"][-1] == GOOD
    unread = answer["files"][0]
    assert (unread["path"], unread["valid"], unread["stale"], unread["errors"]) == ("/etc/cdi/a.yaml", None, None, ())
    assert answer["devices"]["nvidia.com/gpu=0"] == "/etc/cdi/nvidia.json"
    (problem,) = answer["problems"]
    assert problem["code"] == "package-missing"
    assert "PyYAML" in problem["message"]


def test_yaml(host: HostFS) -> None:
    pytest.importorskip("yaml")
    document = json.loads(text("0"))
    put(host, {"etc/cdi/nvidia.json": "", "etc/cdi/a.yaml": yaml_document.render(document, "yaml").decode()})
    answer = report(host)
    assert answer["files"][0] == {**GOOD, "path": "/etc/cdi/a.yaml", "devices": ["0"]}


# -- what keeps them fresh ---------------------------------------------------------------------------------------------


def test_toolkit_service(host: HostFS) -> None:
    put(host, {SERVICE: SERVICE_TEXT})
    expected = {"service": "nvidia-cdi-refresh.service", "enabled": False, "output": "/var/run/cdi/nvidia.yaml"}
    assert report(host)["refresh"] == expected
    put(host, {"etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service": ""})
    assert report(host)["refresh"]["enabled"]


FLAGS = "--vendor=nvidia.com --class=gpu"
OWN = "gpufleet-nvidia-cdi.service"


def own_service(
    host: HostFS, command: str = f"/opt/t/nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml {FLAGS}"
) -> None:
    put(host, {f"etc/systemd/system/{OWN}": f"[Service]\nExecStart={command}\n", "opt/t/nvidia-ctk": ""})
    os.chmod(host.real_path("/opt/t/nvidia-ctk"), 0o755)  # noqa: S103
    put(host, {f"etc/systemd/system/multi-user.target.wants/{OWN}": ""})


def test_own_service(host: HostFS) -> None:
    own_service(host)
    assert report(host)["refresh"] == {"service": OWN, "enabled": True, "output": "/etc/cdi/nvidia.yaml"}
    # The service may use the other name of a directory.
    own_service(host, f"/opt/t/nvidia-ctk cdi generate --output=/run/cdi/nvidia.yaml {FLAGS}")
    assert report(host)["refresh"]["output"] == "/var/run/cdi/nvidia.yaml"
    # The toolkit's service exists, but is disabled.
    put(host, {SERVICE: SERVICE_TEXT})
    assert report(host)["refresh"]["service"] == OWN
    put(host, {"etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service": ""})
    answer = report(host)
    assert (answer["refresh"]["service"], answer["problems"]) == ("nvidia-cdi-refresh.service", [])
    # The drop-in of this collection stops it, as long as this collection has a unit.
    drop_in = "etc/systemd/system/nvidia-cdi-refresh.service.d/50-gpufleet-nvidia.conf"
    put(host, {drop_in: "[Unit]\nConditionPathExists=!/etc/systemd/system/gpufleet-nvidia-cdi.service\n"})
    assert report(host)["refresh"]["service"] == OWN
    os.unlink(host.real_path("/etc/systemd/system/gpufleet-nvidia-cdi.service"))
    assert report(host)["refresh"]["service"] == "nvidia-cdi-refresh.service"


def test_a_service_of_a_removed_toolkit_is_none(host: HostFS) -> None:
    put(host, {SERVICE: SERVICE_TEXT, "etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service": ""})
    os.unlink(host.real_path(f"/{PROGRAM}"))
    assert report(host)["refresh"] is None
    own_service(host)
    answer = report(host)
    assert (answer["refresh"]["service"], answer["problems"]) == (OWN, [])


@pytest.mark.parametrize(("state", "failed"), [("failed", True), ("inactive", False)])
def test_failed_service(host: HostFS, state: str, failed: bool) -> None:
    put(host, {SERVICE: SERVICE_TEXT, "run/systemd/system/x": ""})
    message = f"Id=nvidia-cdi-refresh.service\nLoadState=loaded\nActiveState={state}\nSubState=dead\n"
    answer, _needed = describe_cdi(host._replace(live=True), lambda _argv: (0, message, ""))
    assert [problem["code"] for problem in answer["problems"]] == ["cdi-refresh-failed"] * failed


def test_systemctl_fails(host: HostFS) -> None:
    put(host, {SERVICE: SERVICE_TEXT, "run/systemd/system/x": ""})
    answer, _needed = describe_cdi(host._replace(live=True), lambda _argv: (1, "", "no bus"))
    assert "no bus" in answer["problems"][0]["message"]


# -- hostile hosts -----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NODE = st.dictionaries(st.sampled_from(["path", "hostPath", "major", "minor", "type", "uid"]), JSON, max_size=4)
ITEM = st.dictionaries(st.sampled_from(["hostPath", "containerPath", "path", "hookName", "args"]), JSON, max_size=4)
EDITS = st.fixed_dictionaries(
    {}, optional={"deviceNodes": st.lists(NODE, max_size=2), "mounts": st.lists(ITEM, max_size=2), "hooks": JSON}
)
DOCUMENTS = st.fixed_dictionaries(
    {"cdiVersion": st.sampled_from(["0.5.0", "1.0.0", 1]), "kind": st.sampled_from(["nvidia.com/gpu", "x", 0])},
    optional={
        "devices": st.lists(st.fixed_dictionaries({"name": JSON, "containerEdits": EDITS | JSON}), max_size=2) | JSON,
        "containerEdits": EDITS | JSON,
    },
)
PLACES = st.sampled_from(["etc/cdi/a.json", "etc/cdi/b.json", "etc/cdi/.json", "var/run/cdi/a.json", "etc/cdi/c"])


@given(st.dictionaries(PLACES, DOCUMENTS.map(json.dumps) | st.text(max_size=20), max_size=3))
def test_any_content_is_reported(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode("utf-8", "replace"))
        gpus = {"driver_version": "1", "source": "proc", "devices": []}
        answer, _needed = describe_cdi(HostFS(folder, live=False), none, gpus)
        json.dumps(answer)


def test_links_and_fifos(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/a.json").symlink_to("a.json")
    (tmp_path / "etc/cdi/b").symlink_to("b")
    os.mkfifo(tmp_path / "etc/cdi/c.json")
    answer = report(HostFS(str(tmp_path), live=False))
    assert [file["valid"] for file in answer["files"]] == [False, False]
    (tmp_path / "var").symlink_to("var")
    (tmp_path / "etc/systemd").symlink_to("systemd")
    answer = report(HostFS(str(tmp_path), live=False))
    assert answer["files"] == []
    assert any("too many symbolic links" in problem["message"] for problem in answer["problems"])


# gpu0/gi0 and gpu0/gi0/ci0 in mig-minors.
CAPABILITIES = ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4")


@pytest.fixture
def mig_host(tmp_path: Path) -> HostFS:
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    return HostFS(str(tmp_path), live=False)


def device(name: str, *nodes: str) -> dict[str, t.Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in nodes]}}


def gpu_document(*devices: dict[str, t.Any]) -> dict[str, t.Any]:
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl"}]}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": list(devices), "containerEdits": edits}


def gpu(index: int | None, minor: int | None, **changes: t.Any) -> dict[str, t.Any]:
    report = {"index": index, "uuid": f"GPU-{minor}", "minor": minor}
    return {**report, "mig_enabled": False, "mig_devices": [], **changes}


def gpus(*devices: dict[str, t.Any], source: str | None = "nvml") -> dict[str, t.Any]:
    return {"source": source, "devices": devices}


FIRST, SECOND = gpu(0, 0), gpu(1, 1)
PART = {"index": 2, "uuid": "MIG-5", "gpu_instance": 0, "compute_instance": 0}
DIVIDED = gpu(0, 0, mig_enabled=True, mig_devices=[PART])
ZERO, ONE = device("0", "/dev/nvidia0"), device("1", "/dev/nvidia1")
ALL = device("all", "/dev/nvidia0", "/dev/nvidia1")


@pytest.mark.parametrize(
    ("devices", "known"),
    [
        ([ZERO, ONE, ALL], [FIRST, SECOND]),
        ([ALL], [FIRST, SECOND]),
        ([device("GPU-0", "/dev/nvidia0"), device("GPU-1", "/dev/nvidia1"), ZERO, ONE], [FIRST, SECOND]),
        ([device("gpu0", "/dev/nvidia0")], [FIRST]),
        ([device("0:2", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        ([device("mig0:2", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        ([device("MIG-5", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        # Names that follow no strategy.
        ([device("training", "/dev/nvidia0")], [FIRST]),
        # In MIG mode without MIG devices.
        ([ZERO], [FIRST, gpu(1, 1, mig_enabled=True)]),
        # NVML reported only a part.
        ([ZERO], [FIRST, gpu(1, None, uuid=None, mig_enabled=None)]),
        ([ZERO, ONE], [FIRST, gpu(1, None, uuid=None, mig_enabled=None)]),
        ([device("GPU-0", "/dev/nvidia0"), device("GPU-9", "/dev/nvidia1")], [FIRST, gpu(None, 1, uuid=None)]),
        # The specification of another mode with the default kind.
        ([device("5", "/dev/nvidia-caps/nvidia-cap3")], [FIRST]),
    ],
)
def test_unchanged_gpus(mig_host: HostFS, devices: list[dict[str, t.Any]], known: list[dict[str, t.Any]]) -> None:
    assert changed_gpus(gpu_document(*devices), mig_host, gpus(*known)) == []


@pytest.mark.parametrize(
    ("devices", "known", "reasons"),
    [
        ([ZERO], [FIRST, SECOND], ["It lacks 1, which the driver reports."]),
        ([ZERO, ONE], [FIRST], ["It has 1, which the driver does not report."]),
        ([device("GPU-0", "/dev/nvidia0"), ONE, ZERO], [FIRST, SECOND], ["It lacks GPU-1, which the driver reports."]),
        (
            [device("GPU-0", "/dev/nvidia0"), device("GPU-7", "/dev/nvidia1")],
            [FIRST, SECOND],
            ["It lacks GPU-1, which the driver reports.", "It has GPU-7, which the driver does not report."],
        ),
        (
            [device("0", "/dev/nvidia1"), device("1", "/dev/nvidia0")],
            [FIRST, SECOND],
            ["It lacks device nodes that the driver reports for 0, 1."],
        ),
        ([device("training", "/dev/nvidia0")], [FIRST, SECOND], ["It lacks 1, which the driver reports."]),
        # MIG devices were created later.
        (
            [ZERO],
            [DIVIDED],
            ["It lacks 0:2, which the driver reports.", "It has 0, which the driver does not report."],
        ),
        (
            [device("0:2", "/dev/nvidia0", CAPABILITIES[0])],
            [DIVIDED],
            ["It lacks device nodes that the driver reports for 0:2."],
        ),
    ],
)
def test_changed_gpus(
    mig_host: HostFS, devices: list[dict[str, t.Any]], known: list[dict[str, t.Any]], reasons: list[str]
) -> None:
    assert [reason.message for reason in changed_gpus(gpu_document(*devices), mig_host, gpus(*known))] == reasons


def test_changed_gpus_without_driver(mig_host: HostFS) -> None:
    assert changed_gpus(gpu_document(ZERO), mig_host, gpus(source=None)) == []
    assert changed_gpus(gpu_document(ZERO), mig_host, gpus(source="proc")) != []


def test_changed_gpus_without_mig_minors(mig_host: HostFS) -> None:
    with open(mig_host.real_path("/proc/driver/nvidia-caps/mig-minors"), "wb"):
        pass
    assert changed_gpus(gpu_document(device("0:2", "/dev/nvidia0")), mig_host, gpus(DIVIDED)) == []


def test_changed_gpus_after_incomplete_mig_device(mig_host: HostFS) -> None:
    """Only the MIG device that mig-minors lacks is incomplete, not those after it."""
    unknown = {"index": 1, "uuid": "MIG-4", "gpu_instance": 99, "compute_instance": 0}
    divided = gpu(0, 0, mig_enabled=True, mig_devices=[unknown, PART])
    (lacking,) = changed_gpus(gpu_document(device("0:1", "/dev/nvidia0")), mig_host, gpus(divided))
    assert (lacking.code, " 0:2, " in lacking.message) == ("gpu-lacking", True)


def test_a_device_of_another_kind_is_no_gpu(tmp_path: Path) -> None:
    """The channel 1 of IMEX does not stand for GPU 1."""
    host = HostFS(str(tmp_path), live=False)
    channel = {**gpu_document(device("1", "/dev/x")), "kind": "nvidia.com/imex-channel"}
    documents = {"etc/cdi/nvidia.json": gpu_document(device("0", "/dev/nvidia0")), "etc/cdi/imex.json": channel}
    put(host, {path: json.dumps(document) for path, document in documents.items()})
    known = {**gpus(gpu(0, 0), gpu(1, 1)), "driver_version": None}
    files = {file["path"]: file for file in report(host, known)["files"]}
    assert "gpu-lacking" in {reason["code"] for reason in files["/etc/cdi/nvidia.json"]["reasons"]}


def test_changed_gpus_in_partial_file(mig_host: HostFS) -> None:
    """Missing GPUs may be in another file or not selected. Removed GPUs are reported in any case."""
    both = gpus(FIRST, SECOND)
    assert changed_gpus(gpu_document(ZERO), mig_host, both, frozenset({"1"})) == []
    assert changed_gpus(gpu_document(ZERO), mig_host, both, None) == []
    (lacking,) = changed_gpus(gpu_document(ZERO), mig_host, both, frozenset({"5"}))
    assert (lacking.code, " 1, " in lacking.message) == ("gpu-lacking", True)
    (gone,) = changed_gpus(gpu_document(ONE), mig_host, gpus(FIRST), None)
    assert (gone.code, " 1, " in gone.message) == ("gpu-gone", True)
