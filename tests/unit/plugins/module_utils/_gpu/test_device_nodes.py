# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import (
    CharacterDevice,
    create_nodes,
    dev_directory,
    missing_nodes,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_nodes import FakeNodes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

# /proc/devices with driver 550 or newer. The block device nvidia-uvm must not be confused with the character device.
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
CONTROL, MODESET = CharacterDevice("/dev/nvidiactl", 195, 255), CharacterDevice("/dev/nvidia-modeset", 195, 254)
UVM, TOOLS = CharacterDevice("/dev/nvidia-uvm", 510, 0), CharacterDevice("/dev/nvidia-uvm-tools", 510, 1)
ALL = [CONTROL, MODESET, UVM, TOOLS]


class Tree:
    """A live host with a loaded driver and nvidia-modprobe, but without device nodes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.host = HostFS.of(str(root), live=True)
        self.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\n")
        self.write("/proc/devices", DEVICES)
        self.write("/proc/modules", MODULES)
        self.path("/dev").mkdir()
        self.program("/usr/bin/nvidia-modprobe")
        self.fakes = FakeNodes(monkeypatch, root, {})
        self.ran: list[list[str]] = []

    def path(self, path: str) -> Path:
        return self.root / path[1:]

    def write(self, path: str, text: str) -> None:
        write(self.root, {path[1:]: text})

    def program(self, path: str) -> None:
        self.write(path, "")
        self.path(path).chmod(0o755)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Do what nvidia-modprobe does."""
        self.ran.append(argv)
        self.add(*{"-c": [CONTROL], "-m": [MODESET], "-u": [UVM, TOOLS]}[argv[3]], driver_root=argv[1])
        return 0, "", ""

    def add(self, *nodes: CharacterDevice, driver_root: str = "") -> None:
        for node in nodes:
            path = driver_root[len(str(self.root)) :] + node.path
            self.fakes.nodes[path] = (node.major, node.minor)
            self.fakes.block.discard(path)

    def create(self, nodes: list[CharacterDevice]) -> None:
        create_nodes(self.host, nodes, self.run)

    def missing(self, driver_root: str = "/") -> list[CharacterDevice]:
        found, warnings = missing_nodes(self.host, driver_root)
        assert warnings == []
        return found


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


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
def test_numbers(tree: Tree, line: str, major: int) -> None:
    assert tree.missing() == ALL
    tree.write("/proc/devices", f"Character devices:\n{line}\n507 nvidia-uvm\n\nBlock devices:\n77 nvidia\n")
    assert {node.path: (node.major, node.minor) for node in tree.missing()} == {
        "/dev/nvidiactl": (major, 255),
        "/dev/nvidia-modeset": (major, 254),
        "/dev/nvidia-uvm": (507, 0),
        "/dev/nvidia-uvm-tools": (507, 1),
    }


@pytest.mark.parametrize(
    ("path", "text", "nodes", "warning"),
    [
        *(
            (
                "/proc/devices",
                text,
                [CONTROL, MODESET],
                "nvidia-uvm and /dev/nvidia-uvm-tools cannot be created, because",
            )
            for text in (
                "Block devices:\n510 nvidia-uvm\n",
                "Block devices:\n510 nvidia-uvm\n\nCharacter devices:\n195 nvidia\n",
                "Character devices:\n195 nvidia\n\nBlock devices:\n510 nvidia-uvm\n",
                "Character devices:\n510 nvidia-uvm-tools\n510 my-nvidia-uvm\n511 my nvidia-uvm\n",
                "",
            )
        ),
        *(
            (
                "/proc/modules",
                text,
                [CONTROL, UVM, TOOLS],
                "because the kernel module nvidia_modeset is not loaded (/proc/modules",
            )
            for text in ("nvidia 1 0\n", "nvidia_modeset_other 1 0\n", "drm 1 1 nvidia_modeset, Live\n", "")
        ),
    ],
)
def test_nodes_of_modules_that_are_not_loaded(
    tree: Tree, path: str, text: str, nodes: list[CharacterDevice], warning: str
) -> None:
    tree.write(path, text)
    found, (message,) = missing_nodes(tree.host)
    assert found == nodes
    assert warning in message


def test_driver_is_not_loaded(tree: Tree) -> None:
    tree.path("/proc/driver/nvidia/version").unlink()
    found, (warning,) = missing_nodes(tree.host)
    assert found == []
    assert "no NVIDIA driver is loaded" in warning


@pytest.mark.parametrize(
    ("directory", "driver_root", "expected"),
    [
        ("/run/nvidia/driver/dev", "/run/nvidia/driver", "/run/nvidia/driver/dev"),
        ("/run/nvidia/driver", "/run/nvidia/driver", "/dev"),
        ("/opt", "/run/nvidia/driver", "/dev"),
        ("/opt", "/", "/dev"),
    ],
)
def test_directory_of_nodes(tree: Tree, directory: str, driver_root: str, expected: str) -> None:
    tree.path(directory).mkdir(parents=True)
    tree.program("/run/nvidia/driver/usr/bin/nvidia-modprobe")
    assert tree.missing(driver_root) == [node._replace(path=node.path.replace("/dev", expected, 1)) for node in ALL]


@pytest.mark.parametrize(
    ("folders", "roots", "expected"),
    [
        (["/run/nvidia/driver/dev"], ["/", "/run/nvidia/driver"], "/run/nvidia/driver/dev"),
        (["/dev", "/run/nvidia/driver/dev"], ["/", "/run/nvidia/driver"], "/dev"),
        (["/dev", "/run/nvidia/driver/dev"], ["/run/nvidia/driver/", "/"], "/run/nvidia/driver/dev"),
        (["/run/nvidia/driver/dev"], ["/"], "/dev"),
        (["/opt/driver/dev"], ["/", "/run/nvidia/driver"], "/dev"),
        (["/opt/driver/dev"], ["", "opt/driver", "/opt/driver"], "/opt/driver/dev"),
        (["/opt/driver/dev"], ["", "opt/driver"], "/dev"),
        ([], ["/run/nvidia/driver"], "/dev"),
    ],
)
def test_directory_with_the_nodes(tree: Tree, folders: list[str], roots: list[str], expected: str) -> None:
    tree.path("/run/nvidia/driver/dev").mkdir(parents=True)
    tree.add(*(CONTROL._replace(path=f"{folder}/nvidiactl") for folder in folders))
    assert dev_directory(tree.host, roots) == expected


def test_file_is_not_the_directory_of_nodes(tree: Tree) -> None:
    tree.write("/run/nvidia/driver/dev", "")
    assert tree.missing("/run/nvidia/driver") == ALL


def test_creates_nodes(tree: Tree) -> None:
    tree.create(tree.missing())
    assert sorted(tree.fakes.nodes) == sorted(node.path for node in ALL)
    assert tree.missing() == []
    program = ["chroot", str(tree.root), "/usr/bin/nvidia-modprobe"]
    assert tree.ran == [[*program, "-c", "255"], [*program, "-m"], [*program, "-u", "-c", "0"]]


def test_creates_nodes_with_the_program_of_the_driver_root(tree: Tree) -> None:
    root = "/run/nvidia/driver"
    tree.path(f"{root}/dev").mkdir(parents=True)
    with pytest.raises(HostError, match=rf"nvidia-modprobe, .* in {root}/dev, is not installed below {root}\. Install"):
        missing_nodes(tree.host, root)
    tree.program(f"{root}/usr/sbin/nvidia-modprobe")
    tree.create(tree.missing(root))
    assert tree.ran[0] == ["chroot", f"{tree.root}{root}", "/usr/sbin/nvidia-modprobe", "-c", "255"]
    assert tree.missing(root) == []


def test_requires_program_only_for_missing_nodes(tree: Tree) -> None:
    tree.path("/usr/bin/nvidia-modprobe").unlink()
    with pytest.raises(HostError, match=r"is not installed below /\. Install the driver's package nvidia-modprobe"):
        missing_nodes(tree.host)
    tree.add(*ALL)
    assert tree.missing() == []


def test_program_creates_no_node(tree: Tree) -> None:
    with pytest.raises(HostError, match=r"not create /dev/nvidia-modeset \(195:254\)\. It printed: none found\."):
        create_nodes(tree.host, [MODESET], lambda _argv: (1, "", "none found\n"))


def test_accepts_links_to_nodes(tree: Tree) -> None:
    tree.add(CONTROL, CharacterDevice("/dev/nvidia/uvm", 510, 0))
    tree.path(UVM.path).symlink_to("/dev/nvidia/uvm")
    assert tree.missing() == [MODESET, TOOLS]


@pytest.mark.parametrize(
    ("wrong", "block"),
    [(CONTROL._replace(minor=0), False), (CONTROL._replace(major=1), False), (CONTROL, True)],
)
def test_replaces_devices_with_other_numbers(tree: Tree, wrong: CharacterDevice, block: bool) -> None:
    tree.add(wrong, MODESET, UVM, TOOLS)
    tree.fakes.block.update([CONTROL.path] if block else [])
    assert tree.missing() == [CONTROL]
    tree.create([CONTROL])
    assert tree.missing() == []


@pytest.mark.parametrize("kind", ["file", "directory", "/dev/gone", "text", "other"])
def test_never_replaces_other_entries(tree: Tree, kind: str) -> None:
    tree.write("/dev/text", "important")
    tree.add(CharacterDevice("/dev/other", 1, 3))
    if kind == "file":
        tree.write(UVM.path, "important")
    elif kind == "directory":
        tree.path(UVM.path).mkdir()
    else:
        tree.path(UVM.path).symlink_to(kind)
    with pytest.raises(HostError, match=r"^/dev/nvidia-uvm is not a device, but .*510:0 belongs there\. Move it"):
        missing_nodes(tree.host)


def test_driver_forbids_changes_of_nodes(tree: Tree) -> None:
    parameters = 'ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileMode: 438\nRegistryDwords: ""\n'
    tree.write("/proc/driver/nvidia/params", parameters)
    found, (warning,) = missing_nodes(tree.host)
    assert found == []
    assert "ModifyDeviceFiles in /proc/driver/nvidia/params is not 1" in warning
    assert all(node.path in warning for node in ALL)
    tree.add(*ALL)
    assert tree.missing() == []


def test_offline_tree_has_no_devices(tree: Tree) -> None:
    offline = tree.host._replace(live=False)
    for call in (lambda: missing_nodes(offline), lambda: create_nodes(offline, [], tree.run)):
        with pytest.raises(HostError, match="is an offline tree, which has no devices"):
            call()
