# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import Node, create_nodes, missing_nodes

if t.TYPE_CHECKING:
    from pathlib import Path

# As a kernel with driver 550 or newer has it; a block device has the name of the character device here.
DEVICES = """\
Character devices:
  1 mem
  4 /dev/vc/0
195 nvidia
195 nvidia-modeset
195 nvidiactl
235 nvidia-caps
510 nvidia-uvm

Block devices:
  8 sd
259 nvidia-uvm
"""
MODULES = "nvidia_uvm 4935680 0 - Live 0x0\nnvidia_modeset 1314816 0 - Live 0x0\nnvidia 56823808 2 - Live"
PARAMETERS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 0
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
RegistryDwords: ""
"""
CONTROL, MODESET = Node("/dev/nvidiactl", 195, 255), Node("/dev/nvidia-modeset", 195, 254)
UVM, TOOLS = Node("/dev/nvidia-uvm", 510, 0), Node("/dev/nvidia-uvm-tools", 510, 1)
ALL = [CONTROL, MODESET, UVM, TOOLS]


class Status(t.NamedTuple):
    """What os.stat tells of a device."""

    st_mode: int
    st_rdev: int


class Tree:
    """A running host's directory tree, in which a regular file stands for a device where none can be made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = HostFS.of(str(root), live=True)
        self.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\n")
        self.write("/proc/devices", DEVICES)
        self.write("/proc/modules", MODULES)
        self.path("/dev").mkdir()
        self.program("/usr/bin/nvidia-modprobe")
        self.ran: list[list[str]] = []

    def path(self, inner: str) -> Path:
        return self.root / inner.lstrip("/")

    def write(self, inner: str, text: str) -> None:
        self.path(inner).parent.mkdir(parents=True, exist_ok=True)
        self.path(inner).write_text(text)

    def program(self, inner: str) -> None:
        self.write(inner, "")
        self.path(inner).chmod(0o755)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Do what nvidia-modprobe does."""
        self.ran.append(argv)
        for node in {"-c": [CONTROL], "-m": [MODESET], "-u": [UVM, TOOLS]}[argv[3]]:
            path = f"{argv[1]}{node.path}"
            if os.path.lexists(path):
                os.unlink(path)
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(node.major, node.minor))
        return 0, "", ""

    def make(self, nodes: list[Node]) -> None:
        create_nodes(self.host, nodes, self.run)

    def device(self, node: Node, kind: int = stat.S_IFCHR) -> None:
        self.path(node.path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.path(node.path), kind | 0o600, os.makedev(node.major, node.minor))

    def missing(self, driver_root: str = "/") -> list[Node]:
        found, warnings = missing_nodes(self.host, driver_root)
        assert warnings == []
        return found

    def names(self, folder: str = "/dev") -> list[str]:
        return sorted(os.listdir(self.path(folder)))


class Devices:
    """Devices in a place where nobody may make any: regular files, and what they stand for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[int, Status] = {}
        self._stat, self._lstat = os.stat, os.lstat
        monkeypatch.setattr(os, "mknod", self.mknod)
        monkeypatch.setattr(os, "stat", lambda *args, **names: self.seen(self._stat(*args, **names)))
        monkeypatch.setattr(os, "lstat", lambda *args, **names: self.seen(self._lstat(*args, **names)))

    def mknod(self, path: str, mode: int, device: int) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(mode))
        self.known[os.fstat(handle).st_ino] = Status(stat.S_IFMT(mode), device)
        os.close(handle)

    def seen(self, status: os.stat_result) -> t.Any:
        found = self.known.get(status.st_ino)
        return status if found is None else Status(found.st_mode | stat.S_IMODE(status.st_mode), found.st_rdev)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    return Devices(monkeypatch)


def test_all_control_nodes_are_missing_on_a_bare_host(tree: Tree) -> None:
    assert tree.missing() == ALL


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ("195 nvidia", 195),
        ("195 nvidia-frontend", 195),
        ("199 nvidia-frontend", 199),
        ("199 nvidia", 199),
        ("1 mem", 195),
    ],
)
def test_the_major_number_of_the_driver_is_the_kernel_s(tree: Tree, line: str, major: int) -> None:
    tree.write("/proc/devices", f"Character devices:\n{line}\n507 nvidia-uvm\n\nBlock devices:\n77 nvidia\n")
    found = {node.path: (node.major, node.minor) for node in missing_nodes(tree.host)[0]}
    assert found == {
        "/dev/nvidiactl": (major, 255),
        "/dev/nvidia-modeset": (major, 254),
        "/dev/nvidia-uvm": (507, 0),
        "/dev/nvidia-uvm-tools": (507, 1),
    }


@pytest.mark.parametrize(
    "text",
    [
        "Block devices:\n510 nvidia-uvm\n",
        "Block devices:\n510 nvidia-uvm\n\nCharacter devices:\n195 nvidia\n",
        "Character devices:\n195 nvidia\n\nBlock devices:\n510 nvidia-uvm\n",
        "Character devices:\n510 nvidia-uvm-tools\n510 my-nvidia-uvm\n511 my nvidia-uvm\n",
        "",
    ],
)
def test_nodes_of_unified_memory_need_its_module(tree: Tree, text: str) -> None:
    tree.write("/proc/devices", text)
    found, (warning,) = missing_nodes(tree.host)
    assert found == [CONTROL, MODESET]
    assert (
        "/dev/nvidia-uvm and /dev/nvidia-uvm-tools cannot be created, because the module nvidia_uvm is not loaded"
        in warning
    )


@pytest.mark.parametrize("text", ["nvidia 1 0\n", "nvidia_modeset_other 1 0\n", "drm 1 1 nvidia_modeset, Live\n", ""])
def test_the_node_for_modes_needs_its_module(tree: Tree, text: str) -> None:
    tree.write("/proc/modules", text)
    found, (warning,) = missing_nodes(tree.host)
    assert found == [CONTROL, UVM, TOOLS]
    assert (
        "/dev/nvidia-modeset cannot be created, because the module nvidia_modeset is not loaded (/proc/modules)"
        in warning
    )


def test_without_the_driver_there_is_one_warning(tree: Tree) -> None:
    tree.path("/proc/driver/nvidia/version").unlink()
    found, (warning,) = missing_nodes(tree.host)
    assert found == []
    assert "no NVIDIA driver is loaded" in warning


@pytest.mark.parametrize(
    ("made", "driver_root", "folder"),
    [
        ("/run/nvidia/driver/dev", "/run/nvidia/driver", "/run/nvidia/driver/dev"),
        ("/run/nvidia/driver", "/run/nvidia/driver", "/dev"),
        ("/opt", "/run/nvidia/driver", "/dev"),
        ("/opt", "/", "/dev"),
    ],
)
def test_nodes_lie_with_the_driver_if_it_has_a_place_for_them(
    tree: Tree, made: str, driver_root: str, folder: str
) -> None:
    tree.path(made).mkdir(parents=True)
    tree.program("/run/nvidia/driver/usr/bin/nvidia-modprobe")
    assert tree.missing(driver_root) == [node._replace(path=node.path.replace("/dev", folder, 1)) for node in ALL]


def test_a_file_is_no_place_for_them(tree: Tree) -> None:
    tree.write("/run/nvidia/driver/dev", "")
    assert tree.missing("/run/nvidia/driver") == ALL


def test_nvidia_modprobe_makes_what_is_missing(tree: Tree, devices: Devices) -> None:
    tree.make(tree.missing())
    assert tree.names() == ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]
    assert tree.missing() == []
    program = ["chroot", str(tree.root), "/usr/bin/nvidia-modprobe"]
    assert tree.ran == [[*program, "-c", "255"], [*program, "-m"], [*program, "-u", "-c", "0"]]
    assert devices.known


def test_a_driver_with_nodes_of_its_own_has_the_program_too(tree: Tree, devices: Devices) -> None:
    root = "/run/nvidia/driver"
    tree.path(f"{root}/dev").mkdir(parents=True)
    with pytest.raises(HostError, match=rf"nvidia-modprobe, .* in {root}/dev, is not installed below {root}\. Install"):
        missing_nodes(tree.host, root)
    tree.program(f"{root}/usr/sbin/nvidia-modprobe")
    tree.make(tree.missing(root))
    assert tree.ran[0] == ["chroot", f"{tree.root}{root}", "/usr/sbin/nvidia-modprobe", "-c", "255"]
    assert tree.missing(root) == []
    assert devices.known


def test_a_host_without_the_program_is_refused_only_if_nodes_are_missing(tree: Tree, devices: Devices) -> None:
    tree.path("/usr/bin/nvidia-modprobe").unlink()
    with pytest.raises(HostError, match=r"is not installed below /\. Install the driver's package nvidia-modprobe"):
        missing_nodes(tree.host)
    for node in ALL:
        tree.device(node)
    assert tree.missing() == []
    assert devices.known


def test_a_node_that_is_not_made_is_an_error(tree: Tree) -> None:
    with pytest.raises(HostError, match=r"not create /dev/nvidia-modeset \(195:254\)\. It printed: none found\."):
        create_nodes(tree.host, [MODESET], lambda _argv: (1, "", "none found\n"))


def test_a_node_with_the_right_numbers_is_right_whatever_its_mode(tree: Tree, devices: Devices) -> None:
    assert devices.known == {}
    tree.device(CONTROL)
    tree.path(CONTROL.path).chmod(0o000)
    tree.device(Node("/dev/nvidia/uvm", 510, 0))
    os.symlink("/dev/nvidia/uvm", tree.path(UVM.path))
    assert tree.missing() == [MODESET, TOOLS]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (CONTROL._replace(minor=0), stat.S_IFCHR),
        (CONTROL._replace(major=1), stat.S_IFCHR),
        (CONTROL, stat.S_IFBLK),
    ],
)
def test_a_device_with_other_numbers_is_replaced(tree: Tree, devices: Devices, wrong: Node, kind: int) -> None:
    assert devices.known == {}
    tree.device(wrong, kind)
    for node in (MODESET, UVM, TOOLS):
        tree.device(node)
    assert tree.missing() == [CONTROL]
    tree.make([CONTROL])
    assert tree.missing() == []
    assert len(tree.names()) == len(ALL)


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing", "link to a file", "link to another device"])
def test_what_is_no_device_is_never_replaced(tree: Tree, devices: Devices, kind: str) -> None:
    assert devices.known == {}
    place = tree.path(UVM.path)
    tree.write("/dev/text", "precious")
    tree.device(Node("/dev/other", 1, 3))
    if kind == "file":
        place.write_text("precious")
    elif kind == "folder":
        place.mkdir()
    else:
        os.symlink({"nothing": "/dev/gone", "file": "text"}.get(kind.rsplit(maxsplit=1)[-1], "other"), place)
    with pytest.raises(HostError, match=r"^/dev/nvidia-uvm is not a device, but .*510:0 belongs there\. Move it"):
        missing_nodes(tree.host)


def test_a_driver_that_wants_its_nodes_left_alone_is_obeyed(tree: Tree, devices: Devices) -> None:
    tree.write("/proc/driver/nvidia/params", PARAMETERS)
    found, (warning,) = missing_nodes(tree.host)
    assert found == []
    assert "ModifyDeviceFiles in /proc/driver/nvidia/params is not 1" in warning
    assert all(node.path in warning for node in ALL)
    for node in ALL:
        tree.device(node)
    assert len(devices.known) == len(ALL)
    assert tree.missing() == []


def test_an_offline_tree_has_no_devices(tree: Tree) -> None:
    offline = tree.host._replace(live=False)
    for call in (lambda: missing_nodes(offline), lambda: create_nodes(offline, [], tree.run)):
        with pytest.raises(HostError, match="is an offline tree, which has no devices"):
            call()
