# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import os
import stat
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import required_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.compare import (
    replacement_reasons,
    same_meaning,
    stale_reasons,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.host_check import (
    Required,
    check_host,
    missing_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import Problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.inventory import Gpu, GpuInventory, MigDevice

if t.TYPE_CHECKING:
    from pathlib import Path


Data = t.Dict[str, t.Any]

HOOK = "/usr/bin/nvidia-cdi-hook"
LDCONFIG = "/sbin/ldconfig.real"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


class Status(t.NamedTuple):
    """The fields of os.lstat() for a device."""

    st_mode: int
    st_rdev: int
    st_gid: int


class Tree:
    """A host's directory tree with regular files instead of device nodes, which only root can create."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.host = HostFS.of(str(root), live=True)
        self.devices: dict[int, Status] = {}
        lstat = os.lstat
        monkeypatch.setattr(os, "lstat", lambda *args, **names: self.status_of(lstat(*args, **names)))
        for minor in range(2):
            self.device(f"/dev/nvidia{minor}", 195, minor)
        self.device("/dev/nvidiactl", 195, 255)
        self.device("/dev/nvidia-uvm", 510, 0)
        self.file(HOOK, 0o755)
        self.file(f"{LIBRARIES}/libcuda.so.580.95.05")

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def file(self, inner: str, mode: int = 0o644) -> Path:
        path = self.path(inner)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(mode)
        return path

    def device(self, inner: str, major: int, minor: int, mode: int = stat.S_IFCHR | 0o666, gid: int = 0) -> None:
        number = os.stat(self.file(inner)).st_ino
        self.devices[number] = Status(mode, os.makedev(major, minor), gid)

    def remove(self, inner: str) -> None:
        # The inode number may be reused.
        self.devices.pop(os.stat(self.path(inner)).st_ino, None)
        self.path(inner).unlink()

    def status_of(self, status: os.stat_result) -> t.Any:
        return self.devices.get(status.st_ino, status)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def node(path: str, major: int = 195, minor: int = 0, **fields: t.Any) -> Data:
    numbers = {name: value for name, value in (("major", major), ("minor", minor)) if value}
    return {"path": path, **numbers, "fileMode": 0o666, "permissions": "rwm", **fields}


def mount(path: str) -> Data:
    return {"hostPath": path, "containerPath": path, "options": ["ro", "rbind"]}


def hook(*arguments: str) -> Data:
    return {"hookName": "createContainer", "path": HOOK, "args": ["nvidia-cdi-hook", *arguments]}


def specification() -> Data:
    """A specification of two GPUs with the names of their index and UUID, and "all"."""
    both = [node("/dev/nvidia0"), node("/dev/nvidia1", minor=1)]
    names = {"0": both[:1], "1": both[1:], "GPU-a": both[:1], "GPU-b": both[1:], "all": both}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name, nodes in names.items()],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [node("/dev/nvidia-uvm", 510), node("/dev/nvidiactl", 195, 255)],
            "hooks": [hook("create-symlinks"), hook("update-ldcache", "--folder", LIBRARIES)],
            "mounts": [mount(f"{LIBRARIES}/libcuda.so.580.95.05")],
        },
    }


def common(document: Data) -> Data:
    found: Data = document["containerEdits"]
    return found


def test_valid_specification(tree: Tree) -> None:
    document = specification()
    assert validate(document).errors == ()
    required = required_of(inventory_of(gpu(0), gpu(1)))
    assert check_host(document, tree.host, required) == ((), ())
    assert missing_paths(document, tree.host) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "/dev/nvidia-uvm",
            "The device node /dev/nvidia-uvm (containerEdits.deviceNodes[0]) is missing. Create it with",
        ),
        ("/dev/nvidiactl", "Create it with nvidia-modprobe -c 255."),
        (
            "/dev/nvidia1",
            "The device node /dev/nvidia1 (devices[1].containerEdits.deviceNodes[0]) is missing. Run nvidia-smi as",
        ),
        (
            f"{LIBRARIES}/libcuda.so.580.95.05",
            f"The file {LIBRARIES}/libcuda.so.580.95.05 (containerEdits.mounts[0]) is missing. Generate",
        ),
        (HOOK, f"The hook program {HOOK} (containerEdits.hooks[0]) is missing or not executable, so containers"),
    ],
)
def test_missing_paths_are_reported_once(tree: Tree, path: str, message: str) -> None:
    tree.remove(path)
    (error,) = check_host(specification(), tree.host).errors
    assert message in error
    assert missing_paths(specification(), tree.host) == [path]


def test_hook_not_executable(tree: Tree) -> None:
    tree.path(HOOK).chmod(0o644)
    (error,) = check_host(specification(), tree.host).errors
    assert "not executable" in error


@pytest.mark.parametrize("arguments", [("--ldconfig-path", LDCONFIG), (f"--ldconfig-path={LDCONFIG}",)])
def test_missing_ldconfig(tree: Tree, arguments: tuple[str, ...]) -> None:
    document = specification()
    common(document)["hooks"] = [hook("update-ldcache", *arguments)] * 2
    result = check_host(document, tree.host)
    assert result.errors == ()
    (warning,) = result.warnings
    assert warning.startswith(f"The program {LDCONFIG}, which containerEdits.hooks[0] runs, is missing.")
    tree.file(LDCONFIG, 0o755)
    assert check_host(document, tree.host).warnings == ()


def test_omitted_device_numbers(tree: Tree) -> None:
    document = specification()
    common(document)["deviceNodes"] = [{"path": "/dev/nvidia-uvm"}]
    tree.device("/dev/nvidia-uvm", 509, 0, stat.S_IFCHR | 0o660, 44)
    assert check_host(document, tree.host) == ((), ())


@pytest.mark.parametrize(("mode", "gid"), [(0o660, 0), (0o666, 44)])
def test_other_mode_or_group(tree: Tree, mode: int, gid: int) -> None:
    tree.device("/dev/nvidia-uvm", 510, 0, stat.S_IFCHR | mode, gid)
    result = check_host(specification(), tree.host)
    assert result.errors == ()
    (warning,) = result.warnings
    assert f"/dev/nvidia-uvm has mode {mode:04o} and group {gid}" in warning


def test_not_a_device_node(tree: Tree) -> None:
    for path in ("/dev/nvidia0", "/dev/nvidiactl"):
        tree.remove(path)
    tree.path("/dev/nvidia0").symlink_to("nvidia1")
    tree.path("/dev/nvidiactl").mkdir()
    errors = check_host(specification(), tree.host).errors
    assert [error.split()[0] for error in errors] == ["/dev/nvidiactl", "/dev/nvidia0"]
    assert all("is not a device node. Use the path of the node, not of a link to it." in error for error in errors)


@pytest.mark.parametrize(
    ("kind", "mode", "fits"),
    [
        *(("c", stat.S_IFCHR, True), ("u", stat.S_IFCHR, True), ("b", stat.S_IFBLK, True), ("p", stat.S_IFIFO, True)),
        *(("b", stat.S_IFCHR, False), ("c", stat.S_IFIFO, False), ("", stat.S_IFIFO, False), ("", stat.S_IFBLK, True)),
    ],
)
def test_node_types(tree: Tree, kind: str, mode: int, fits: bool) -> None:
    tree.device("/dev/x", 7, 3, mode | 0o666)
    document = {**specification(), "containerEdits": {"deviceNodes": [node("/dev/x", 7, 3, type=kind)]}}
    assert (check_host(document, tree.host).errors == ()) is fits


def test_host_path_of_node(tree: Tree) -> None:
    tree.path("/dev/nvidia-uvm").rename(tree.path("/dev/uvm"))
    document = specification()
    common(document)["deviceNodes"][0]["hostPath"] = "/dev/uvm"
    assert check_host(document, tree.host, Required(frozenset(["/dev/nvidia-uvm", "/dev/uvm"]))) == ((), ())


def test_other_mounts_are_not_checked(tree: Tree) -> None:
    document = specification()
    common(document)["mounts"] = [
        {"hostPath": "/none", "containerPath": "/x", "type": "tmpfs"},
        {"hostPath": "relative", "containerPath": "/y"},
    ]
    assert check_host(document, tree.host) == ((), ())
    assert missing_paths(document, tree.host) == []


@pytest.mark.parametrize("path", ["/a\0b", "/\udc80", "/" + "x" * 5000, "/loop/x", "/etc\n"])
def test_invalid_paths(tree: Tree, path: str) -> None:
    tree.path("/loop").symlink_to("loop")
    document = {
        **specification(),
        "containerEdits": {"deviceNodes": [node(path)], "mounts": [mount(path)], "hooks": [{**hook(), "path": path}]},
    }
    result = check_host(document, tree.host)
    assert len(result.errors) == 3
    assert all(error.isprintable() for error in result.errors)
    assert missing_paths(document, tree.host) == [path]


# -- what is required --------------------------------------------------------------------------------------------------


def gpu(minor: int, mig: bool = False, migs: int = 0) -> Gpu:
    devices = tuple(MigDevice(index, f"MIG-{minor}-{index}", index, 0, gfx=False) for index in range(migs))
    return Gpu(minor, f"GPU-{minor}", minor, "0000:07:00.0", "A100", mig, devices)


def inventory_of(*gpus: Gpu) -> GpuInventory:
    return GpuInventory("580.95.05", gpus, "nvml", ())


@pytest.mark.parametrize(
    ("gpus", "minors", "devices"),
    [
        ([], [], 0),
        ([gpu(3), gpu(2)], [2, 3], 2),
        ([gpu(0, mig=True, migs=7), gpu(1)], [0, 1], 8),
        ([gpu(0, mig=True), gpu(1)], [1], 1),
    ],
)
def test_required_of(gpus: list[Gpu], minors: list[int], devices: int) -> None:
    nodes = {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{minor}" for minor in minors)}
    assert required_of(inventory_of(*gpus)) == Required(frozenset(nodes), devices)
    caps = {"/dev/nvidia-caps/nvidia-cap3"}
    assert required_of(inventory_of(*gpus), caps) == Required(frozenset(nodes | caps), devices)


def test_required_node_is_missing(tree: Tree) -> None:
    document = specification()
    del common(document)["deviceNodes"][0]
    required = required_of(inventory_of(gpu(0), gpu(1)))
    (error,) = check_host(document, tree.host, required).errors
    assert " lacks /dev/nvidia-uvm. " in error
    assert " nvidia-modprobe -u -c 0, " in error
    assert check_host(document, tree.host).errors == ()


def test_too_few_devices(tree: Tree) -> None:
    required = Required(frozenset(), 3)
    (error,) = check_host(specification(), tree.host, required).errors
    assert error.startswith("The driver reports 3 GPUs and MIG devices, but the specification has 2.")


# -- replacement_reasons -----------------------------------------------------------------------------------------------


def edit(change: t.Callable[[Data], object]) -> Data:
    document = copy.deepcopy(specification())
    change(document)
    return document


def set_common(**fields: t.Any) -> t.Callable[[Data], object]:
    return lambda document: common(document).update(fields)


SAME = [
    lambda document: document["devices"].reverse(),
    lambda document: common(document)["deviceNodes"].reverse(),
    lambda document: common(document)["deviceNodes"][0].update(hostPath="/dev/nvidia-uvm"),
    lambda document: common(document)["deviceNodes"][0].pop("permissions"),
    lambda document: document.update(cdiVersion="v0.5.0", annotations={}),
    lambda document: document["devices"][0]["containerEdits"].update(mounts=[], additionalGids=[]),
    lambda document: common(document)["hooks"][0].update(env=[]),
]


@pytest.mark.parametrize("change", SAME)
def test_same_meaning(tree: Tree, change: t.Callable[[Data], object]) -> None:
    old = edit(change)
    assert old != specification()
    assert same_meaning(old, specification())
    assert replacement_reasons(old, specification(), tree.host) == []


def test_order_of_groups_and_mounts() -> None:
    old, new = (
        edit(set_common(additionalGids=gids, mounts=mounts))
        for gids, mounts in (
            ([44, 992], [mount("/a/b"), mount("/c")]),
            ([992, 44], [mount("/c"), mount("/a/b")]),
        )
    )
    assert same_meaning(old, new)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: common(document)["hooks"].reverse(),
        lambda document: common(document)["deviceNodes"][0].update(uid=0),
        lambda document: common(document).update(intelRdt={}),
        lambda document: common(document)["mounts"][0].update(options=["rw"]),
    ],
)
def test_different_meaning(change: t.Callable[[Data], object]) -> None:
    assert not same_meaning(edit(change), specification())
    assert replacement_reasons(edit(change), specification())


def drop_device(document: Data) -> None:
    del document["devices"][1]


def add_device(document: Data) -> None:
    document["devices"].append({"name": "2", "containerEdits": {"env": ["A=b"]}})


def other_driver(document: Data) -> None:
    common(document)["mounts"] = [mount(f"{LIBRARIES}/libcuda.so.570.10")]


REASONS: list[tuple[t.Callable[[Data], object], list[str]]] = [
    (
        lambda document: document.update(kind="nvidia.com/gds"),
        ["It has the kind nvidia.com/gds instead of nvidia.com/gpu."],
    ),
    (lambda document: document.update(cdiVersion="0.7.0"), ["It has the CDI version 0.7.0 instead of 0.5.0."]),
    (drop_device, ["It lacks the devices 1."]),
    (add_device, ["It has the devices 2, which no longer exist."]),
    (
        other_driver,
        [
            "It is for driver 570.10, but the driver is 580.95.05.",
            "The edits for all devices differ in mounts.",
            f"These paths no longer exist: {LIBRARIES}/libcuda.so.570.10.",
        ],
    ),
    (
        lambda document: common(document)["deviceNodes"][0].update(major=509),
        ["It has device number 509:0 for /dev/nvidia-uvm instead of 510:0."],
    ),
    (
        lambda document: [device["containerEdits"].update(env=["A=b"]) for device in document["devices"][:2]],
        ["Its devices 0, 1 differ in env."],
    ),
    (set_common(env=["A=secret"]), ["The edits for all devices differ in env."]),
    (set_common(hooks=[]), ["The edits for all devices differ in hooks."]),
    (
        lambda document: common(document)["deviceNodes"][0].update(gid=44),
        ["The edits for all devices differ in deviceNodes."],
    ),
    (lambda document: document.update(annotations={"a": "b"}), ["Its annotations differ."]),
]


@pytest.mark.parametrize(("change", "reasons"), REASONS)
def test_reasons_of_staleness(tree: Tree, change: t.Callable[[Data], object], reasons: list[str]) -> None:
    old = edit(change)
    assert not same_meaning(old, specification())
    assert replacement_reasons(old, specification(), tree.host) == reasons


TEXT = st.text(min_size=1, max_size=4)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "env": st.lists(TEXT.map("A=".__add__), max_size=2),
        "deviceNodes": st.lists(
            st.fixed_dictionaries({"path": TEXT}, optional={"major": st.integers(0, 9), "hostPath": TEXT}), max_size=3
        ),
        "mounts": st.lists(st.fixed_dictionaries({"hostPath": TEXT, "containerPath": TEXT}), max_size=3),
        "hooks": st.lists(st.fixed_dictionaries({"hookName": st.just("poststop"), "path": TEXT}), max_size=2),
        "additionalGids": st.lists(st.integers(0, 5), max_size=3),
        "intelRdt": st.just({}),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "cdiVersion": st.just("1.1.0"),
        "kind": st.just("nvidia.com/gpu"),
        "containerEdits": ENTRIES,
        "devices": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from("abc"), "containerEdits": ENTRIES}), min_size=1, max_size=3
        ),
    }
)


@given(DOCUMENTS, DOCUMENTS)
def test_reasons_match_differences(old: Data, new: Data) -> None:
    host = HostFS("/nonexistent", live=False)
    before = copy.deepcopy((old, new))
    assert replacement_reasons(old, old, host) == []
    reasons = replacement_reasons(old, new, host)
    assert bool(reasons) is not same_meaning(old, new)
    assert all(reason.isprintable() for reason in reasons)
    assert same_meaning(old, new) is same_meaning(new, old)
    check_host(old, host, Required(frozenset(["/dev/x"]), 1))
    assert (old, new) == before


# -- stale_reasons -----------------------------------------------------------------------------------------------------

DRIVER = "580.95.05"


def test_why_stale_of_valid_specification(tree: Tree) -> None:
    for driver in (None, DRIVER):
        assert stale_reasons(specification(), tree.host, driver) == ([], [])


@pytest.mark.parametrize(
    ("kind", "is_nvidia"), [("nvidia.com/gpu", True), ("management.nvidia.com/gpu", True), ("example.com/gpu", False)]
)
def test_why_stale_after_driver_change(tree: Tree, kind: str, is_nvidia: bool) -> None:
    reason = f"It is for driver {DRIVER}, but the driver is 590.1."
    found = stale_reasons({**specification(), "kind": kind}, tree.host, "590.1")
    assert found == ([Problem("driver-differs", reason)] * is_nvidia, [])


def test_why_stale_with_missing_paths(tree: Tree) -> None:
    missing = [f"{LIBRARIES}/libcuda.so.580.95.05", HOOK, "/dev/nvidia1"]
    for path in missing:
        tree.remove(path)
    message = f"These paths no longer exist: {', '.join(missing)}."
    assert stale_reasons(specification(), tree.host) == ([Problem("path-missing", message)], missing)


def test_why_stale_with_other_numbers(tree: Tree) -> None:
    tree.device("/dev/nvidia-uvm", 511, 0)
    (reason,), missing = stale_reasons(specification(), tree.host)
    assert reason.code == "path-differs"
    assert "/dev/nvidia-uvm has device number 511:0" in reason.message
    assert missing == []
