# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.versions import (
    VERSIONS,
    minimum_version,
    version_needs,
    version_number,
)

Data = t.Dict[str, t.Any]

NODE = {"path": "/dev/nvidia0"}
HOOK = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
MOUNT = {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro", "rbind"]}


def document(edits: t.Any = None, device: t.Any = None, version: t.Any = "1.1.0", **fields: t.Any) -> Data:
    """Return a valid document. ``edits`` are the edits of all devices, and ``device`` replaces the only device."""
    device = {"name": "gpu0", "containerEdits": {"deviceNodes": [NODE]}} if device is None else device
    found = {"cdiVersion": version, "kind": "nvidia.com/gpu", "devices": [device], **fields}
    return found if edits is None else {**found, "containerEdits": edits}


def edited(**edits: t.Any) -> Data:
    return document(edits)


def device(name: t.Any = "gpu0", **edits: t.Any) -> Data:
    return {"name": name, "containerEdits": edits or {"env": ["A=1"]}}


def errors(data: t.Any) -> list[str]:
    return [str(problem) for problem in validate(data).errors]


CLEAN = [
    document(),
    edited(env=["A=b", "A=", "A=b=c"]),
    edited(deviceNodes=[{**NODE, "type": kind} for kind in ("b",)]),
    edited(deviceNodes=[{**NODE, "permissions": "rwm", "fileMode": 438, "gid": 4294967295, "uid": 0}]),
    edited(deviceNodes=[{**NODE, "hostPath": "/dev/x", "major": 2**63 - 1, "type": ""}]),
    edited(hooks=[{**HOOK, "args": ["nvidia-cdi-hook"], "env": ["A=b"], "timeout": 3}]),
    edited(mounts=[MOUNT, {**MOUNT, "type": "tmpfs", "hostPath": "tmpfs", "options": ["size=1m"]}]),
    edited(intelRdt={"closID": "/"}),
    edited(intelRdt={}),
    edited(intelRdt={"closID": "x" * 4095, "schemata": [], "enableMonitoring": False}),
    edited(netDevices=[{"hostInterfaceName": "eth0", "name": "a"}, {"hostInterfaceName": "eth1", "name": "b"}]),
    edited(additionalGids=[44]),
    edited(additionalGids=[]),
    edited(),
    document(device={"name": "gpu0", "containerEdits": {"intelRdt": {}}}),
    document(device=device(additionalGids=[44])),
    document(device=device("0:1")),
    document(version="v1.1.0"),
    document(annotations={"nvidia.com/a": "b"}),
    # SPEC.md does not allow these, but the library accepts them.
    document(kind="Nvidia.com/" + "c" * 64, annotations={"a b": "x" * 2**18}, device=device("d" * 64)),
    document(annotations=None),
    {**document(), "containerEdits": None},
]


@pytest.mark.parametrize("data", CLEAN)
def test_valid_documents(data: Data) -> None:
    assert validate(data).errors == ()


FAULTS = [
    (None, "The document is empty."),
    ([1], "The document must be a mapping, but is a list."),
    ("x", "The document must be a mapping, but is a string."),
    (document(foo=1), "foo is an unknown field. Known fields: cdiVersion, kind, annotations, devices, containerEdits."),
    (document(**{"a\nb": 1}), r'"a\nb" is an unknown field'),
    (document(device={**device(), "containeredit": {}}), "devices[0].containeredit is an unknown field"),
    (document(version="0.5"), 'cdiVersion is "0.5", an unknown version. Known versions: 0.3.0, 0.4.0,'),
    (document(version="vv1.0.0"), 'cdiVersion is "vv1.0.0"'),
    (document(version="2.0.0"), 'cdiVersion is "2.0.0"'),
    (document(version=None), 'cdiVersion is ""'),
    (document(version=["1.1.0"]), "cdiVersion must be a string, but is a list."),
    (document(kind="gpu"), "kind must be VENDOR/CLASS"),
    (document(kind=None), "kind must be VENDOR/CLASS"),
    (document(kind={}), "kind must be a string, but is a mapping."),
    (document(devices=[]), "devices is empty. A specification must have a device."),
    (document(devices=None), "devices is empty"),
    (document(devices={}), "devices must be a list, but is a mapping."),
    (document(devices=["gpu0"]), "devices[0] must be a mapping, but is a string."),
    (document(device=device("")), "devices[0].name is empty. Give the device a name."),
    (document(device=device(None)), "devices[0].name is empty"),
    (document(device=device("a+b")), 'devices[0].name is "a+b"'),
    (document(devices=[device(), device()]), 'devices[1].name is "gpu0", the same as devices[0].name.'),
    (document(device={"name": "gpu0"}), "devices[0].containerEdits is empty"),
    (document(device={"name": "gpu0", "containerEdits": None}), "devices[0].containerEdits is empty"),
    (document(device=device(env=[], mounts=[])), "devices[0].containerEdits is empty"),
    (document([]), "containerEdits must be a mapping, but is a list."),
    (document(annotations=["a"]), "annotations must be a mapping, but is a list."),
    (document(annotations={"a": ["b"]}), "annotations.a must be a string, but is a list."),
    (edited(env=["SECRET"]), "containerEdits.env[0] does not have the form NAME=value."),
    (edited(env=["A=b", "=b"]), "containerEdits.env[1] does not have the form NAME=value."),
    (edited(env=[None]), "containerEdits.env[0] does not"),
    (edited(env={"A": "b"}), "containerEdits.env must be a list, but is a mapping."),
    (edited(deviceNodes=[None]), "containerEdits.deviceNodes[0] is null. Engines crash on it."),
    (edited(deviceNodes=[{}]), "containerEdits.deviceNodes[0].path is empty."),
    (edited(deviceNodes=[NODE, {**NODE, "type": "x"}]), 'containerEdits.deviceNodes[1].type is "x"'),
    (
        edited(deviceNodes=[{**NODE, "permissions": "none"}]),
        '.permissions is "none". Only the letters r, w and m are allowed.',
    ),
    (edited(deviceNodes=[{**NODE, "permissions": "rwx"}]), '.permissions is "rwx"'),
    (edited(deviceNodes=[{**NODE, "major": "195"}]), "major must be an integer, but is a string."),
    (edited(deviceNodes=[{**NODE, "major": 1.5}]), "major must be an integer, but is a number with a fraction."),
    (edited(deviceNodes=[{**NODE, "major": True}]), "major must be an integer, but is a boolean."),
    (edited(deviceNodes=[{**NODE, "major": 2**63}]), "major is out of range"),
    (edited(deviceNodes=[{**NODE, "minor": float("inf")}]), "minor must be an integer"),
    (edited(deviceNodes=[{**NODE, "fileMode": 2**32}]), "fileMode is out of range"),
    (edited(deviceNodes=[{**NODE, "uid": -1}]), "uid is out of range. It must be from 0 to"),
    (edited(deviceNodes=[{**NODE, "gid": 2**32}]), "gid is out of range"),
    (edited(additionalGids=[-1]), "containerEdits.additionalGids[0] is out of range"),
    (edited(additionalGids=44), "additionalGids must be a list, but is a number."),
    (edited(hooks=[None]), "containerEdits.hooks[0] is null"),
    (edited(hooks=[{"path": "/x"}]), 'containerEdits.hooks[0].hookName is "". Use one of prestart,'),
    (edited(hooks=[{**HOOK, "hookName": "CreateContainer"}]), 'hookName is "CreateContainer"'),
    (edited(hooks=[{**HOOK, "path": ""}]), "containerEdits.hooks[0].path is empty."),
    (edited(hooks=[{**HOOK, "env": ["A"]}]), "containerEdits.hooks[0].env[0] does not have the form"),
    (edited(hooks=[{**HOOK, "timeout": "3"}]), "timeout must be an integer"),
    (edited(mounts=[None]), "containerEdits.mounts[0] is null"),
    (edited(mounts=[{"containerPath": "/b"}]), "containerEdits.mounts[0].hostPath is empty."),
    (edited(mounts=[MOUNT, {"hostPath": "/b"}]), "containerEdits.mounts[1].containerPath is empty."),
    (edited(mounts=[{**MOUNT, "options": "ro"}]), "containerEdits.mounts[0].options must be a list, but is a string."),
    (edited(mounts=[{**MOUNT, "mode": 1}]), "containerEdits.mounts[0].mode is an unknown field."),
    (edited(intelRdt={"closID": "."}), 'containerEdits.intelRdt.closID is "."'),
    (edited(intelRdt={"closID": ".."}), "closID"),
    (edited(intelRdt={"closID": "a/b"}), "closID"),
    (edited(intelRdt={"closID": "a\nb"}), "closID"),
    (edited(intelRdt={"closID": "x" * 4096}), "closID"),
    (edited(intelRdt={"enableCMT": True}), "containerEdits.intelRdt.enableCMT is an unknown field."),
    (edited(intelRdt={"enableMonitoring": "yes"}), "enableMonitoring must be a boolean, but is a string."),
    (edited(netDevices=[None]), "containerEdits.netDevices[0] is null"),
    (edited(netDevices=[{"name": "a"}]), "netDevices[0].hostInterfaceName is empty."),
    (edited(netDevices=[{"hostInterfaceName": "a"}]), "netDevices[0].name is empty."),
    (
        edited(netDevices=[{"hostInterfaceName": "eth0", "name": name} for name in ("a", "b")]),
        'netDevices[1].hostInterfaceName is "eth0", the same as containerEdits.netDevices[0].hostInterfaceName.',
    ),
    (
        edited(netDevices=[{"hostInterfaceName": name, "name": "a"} for name in ("eth0", "eth1")]),
        'netDevices[1].name is "a", the same as',
    ),
    (document(device=device(deviceNodes=[{"path": ""}])), "devices[0].containerEdits.deviceNodes[0].path is empty."),
    (document(device=device(1 << 80000)), "devices[0].name must be a string, but is a number."),
]


@pytest.mark.parametrize(("data", "message"), FAULTS)
def test_invalid_documents(data: t.Any, message: str) -> None:
    # Each fault is reported once.
    (error,) = errors(data)
    assert message in error


def test_all_errors_are_reported() -> None:
    data = document({"env": ["A"], "mounts": [{}]}, device("a+b", hooks=[{**HOOK, "path": ""}]), version="9", kind="g")
    fields = [problem.field for problem in validate(data).errors]
    assert fields == [
        "cdiVersion",
        "kind",
        "containerEdits.env[0]",
        "containerEdits.mounts[0].hostPath",
        "containerEdits.mounts[0].containerPath",
        "devices[0].name",
        "devices[0].containerEdits.hooks[0].path",
    ]


def test_variables_are_not_shown() -> None:
    assert "hunter2" not in " ".join(errors(edited(env=["hunter2"], hooks=[{**HOOK, "env": ["=hunter2"]}])))


NEEDS = [
    (document(), "0.3.0", ""),
    (edited(mounts=[{**MOUNT, "type": ""}], deviceNodes=[{**NODE, "hostPath": ""}]), "0.3.0", ""),
    (edited(mounts=[{**MOUNT, "type": "bind"}]), "0.4.0", "containerEdits.mounts[0].type"),
    (edited(deviceNodes=[{**NODE, "hostPath": "/dev/x"}]), "0.5.0", "containerEdits.deviceNodes[0].hostPath"),
    (document(device=device("0")), "0.5.0", "devices[0].name"),
    (document(device=device("_a")), "0.3.0", ""),
    (document(annotations={"a": "b"}), "0.6.0", "annotations"),
    (document(annotations={}), "0.3.0", ""),
    (document(device={**device(), "annotations": {"a": "b"}}), "0.6.0", "devices[0].annotations"),
    (document(kind="nvidia.com/gpu.x"), "0.6.0", "kind"),
    (document(kind="/gpu.x"), "0.3.0", ""),
    (edited(additionalGids=[0]), "0.7.0", "containerEdits.additionalGids"),
    (edited(additionalGids=[]), "0.3.0", ""),
    (document(device=device(additionalGids=[44])), "0.7.0", "devices[0].containerEdits.additionalGids"),
    (edited(intelRdt={}), "0.7.0", "containerEdits.intelRdt"),
    (edited(intelRdt={"closID": "a", "enableMonitoring": False}), "0.7.0", "containerEdits.intelRdt"),
    (edited(intelRdt={"schemata": []}), "1.1.0", "containerEdits.intelRdt"),
    (edited(intelRdt={"enableMonitoring": True}), "1.1.0", "containerEdits.intelRdt"),
    (edited(netDevices=[{"hostInterfaceName": "a", "name": "a"}]), "1.1.0", "containerEdits.netDevices"),
    (edited(netDevices=[]), "0.3.0", ""),
]


@pytest.mark.parametrize(("data", "version", "field"), NEEDS)
def test_version_needs(data: Data, version: str, field: str) -> None:
    assert minimum_version(data) == version
    needs = [need for need in version_needs(data) if need.version == version]
    assert [need.field for need in needs] == ([field] if field else [])


@pytest.mark.parametrize(("data", "version", "field"), [row for row in NEEDS if row[2]])
def test_stated_version_is_too_low(data: Data, version: str, field: str) -> None:
    below = VERSIONS[VERSIONS.index(version) - 1]
    (problem,) = validate({**data, "cdiVersion": below}).errors
    assert problem.field == "cdiVersion"
    assert f"is {below}, but the document needs {version} for " in problem.message
    assert f"({field})" in problem.message
    assert validate({**data, "cdiVersion": version}).errors == ()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_earliest_versions(version: str) -> None:
    (error,) = errors(document(version=version))
    assert error.startswith(f"cdiVersion is {version}, ")
    assert error.endswith(" 0.3.0.")


def test_version_number() -> None:
    assert version_number("v0.7.0") < version_number("1.0.0")
    with pytest.raises(ValueError, match=r"^0\.5$"):
        version_number("0.5")


@pytest.mark.parametrize(
    ("value", "name"), [(0, "0"), (10**19, "10000000000000000000"), (True, "true"), (0.5, "0.5"), (1.0, "1")]
)
def test_numbers_as_strings(value: float, name: str) -> None:
    assert validate(document(annotations={"a": value})).document["annotations"] == {"a": name}


def test_document_as_read_by_engines() -> None:
    data = {
        "CDIVERSION": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": 0, "containerEdits": {"DeviceNodes": [{"path": "/dev/nvidia0", "major": 195.0}]}}],
        "containerEdits": {"env": None, "additionalGids": [None, 44.0]},
    }
    assert validate(data).document == {
        "cdiVersion": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "major": 195}]}}],
        "containerEdits": {"additionalGids": [0, 44]},
    }


def test_last_spelling_has_precedence() -> None:
    data = {**document(version="0.7.0"), "CDIVERSION": "2.0.0"}
    assert validate(data).errors == ()
    assert validate(data).document["cdiVersion"] == "0.7.0"


def test_limit_on_problems() -> None:
    found = errors(edited(env=["A"] * 5000))
    assert len(found) == 101
    assert " more than 100 errors. " in found[-1]
    assert len(errors(edited(env=["A"] * 100))) == 100


def test_recursive_document() -> None:
    data = document()
    data["containerEdits"] = data
    assert "containerEdits.cdiVersion is an unknown field" in errors(data)[0]
    loop: list[t.Any] = []
    loop.append(loop)
    (error,) = errors(document(devices=loop))
    assert error.startswith("devices[0] must be a mapping")


NAMES = st.sampled_from(
    [
        *("cdiVersion", "kind", "devices", "containerEdits", "annotations", "name", "env", "deviceNodes"),
        *("hooks", "mounts", "path", "hostPath", "containerPath", "hookName", "intelRdt", "x"),
        *(
            "closID",
            "netDevices",
            "hostInterfaceName",
            "additionalGids",
            "options",
            "type",
            "major",
            "permissions",
            "x",
        ),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["1.1.0", "0.5.0", "nvidia.com/gpu", "/dev/x", "A=b", "gpu0", "createContainer", "r", "\udc80"])
    | st.binary(max_size=3)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=6)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(ANYTHING)
def test_arbitrary_data(data: t.Any) -> None:
    result = validate(data)
    assert all(str(problem).isprintable() for problem in result.errors)
    if isinstance(data, dict):
        assert minimum_version(data) in VERSIONS


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "env": ANYTHING,
        "deviceNodes": st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=2) | ANYTHING,
        "mounts": st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=2) | ANYTHING,
        "hooks": st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=2) | ANYTHING,
        "netDevices": st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=2) | ANYTHING,
        "intelRdt": st.dictionaries(NAMES, ANYTHING, max_size=3) | ANYTHING,
        "additionalGids": ANYTHING,
    },
)
NEARLY = st.builds(
    document,
    EDITS,
    st.fixed_dictionaries({"name": SCALARS, "containerEdits": EDITS}),
    st.sampled_from([*VERSIONS, "v1.1.0", "1", 0.5]),
)


@given(NEARLY)
def test_validation_is_idempotent(data: Data) -> None:
    result = validate(data)
    again = validate(result.document)
    if not result.errors:
        assert again.errors == ()
        assert again.document == result.document
