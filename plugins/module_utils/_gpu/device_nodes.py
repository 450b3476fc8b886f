# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The device nodes of the driver: their directory, their numbers, and how to create a missing one."""

from __future__ import annotations

import posixpath
import re
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The directories of the driver's files; the second is that of the driver container of NVIDIA's GPU Operator.
DRIVER_ROOTS = ("/", "/run/nvidia/driver")
DEV = "/dev"
# The nodes that every GPU container needs in addition to the GPU's own node.
NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
GPU_NODE = re.compile(r"/dev/nvidia[0-9]+")
_DEVICES, _MODULES, _PARAMETERS = "/proc/devices", "/proc/modules", "/proc/driver/nvidia/params"
_CONTROL, _MODESET = "nvidiactl", "nvidia-modeset"
_MINORS = {_CONTROL: 255, _MODESET: 254}
_UVM = "nvidia-uvm"
_UVM_MINORS = {_UVM: 0, f"{_UVM}-tools": 1}
# The driver's control nodes in the order of nvidia-ctk, and the command that creates each of them.
CONTROL_NODES = {
    "/dev/nvidia-modeset": "nvidia-modprobe -m",
    "/dev/nvidia-uvm-tools": "nvidia-modprobe -u -c 0",
    "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0",
    "/dev/nvidiactl": "nvidia-modprobe -c 255",
}
# The name of the major number in /proc/devices: nvidia-frontend up to driver 535 (last 535.288.01), and nvidia since
# 545.23.06 (kernel-open/nvidia/nv.c of open-gpu-kernel-modules). nvidia-modprobe searches for neither name and always
# uses the number below.
_MAJOR_NAMES = ("nvidia-frontend", "nvidia")
_MAJOR = 195
_SECTION = "Character devices:"
# The driver's nodes as containers see them: a pattern of the path, the names of the major number in /proc/devices, and
# the minor number; None if the path ends in the minor number. The name of a capability's node does (nvidia-modprobe,
# nvidia_cap_mknod), and so does the name of an IMEX channel's node, because the number of the channel is the minor
# number (NVIDIA IMEX Service, "IMEX Channels").
_NUMBERS: tuple[tuple[str, tuple[str, ...], int | None], ...] = (
    (r"/dev/nvidia([0-9]{1,7})", _MAJOR_NAMES, None),
    *((f"/dev/{name}", _MAJOR_NAMES, minor) for name, minor in _MINORS.items()),
    *((f"/dev/{name}", (_UVM,), minor) for name, minor in _UVM_MINORS.items()),
    (r"/dev/nvidia-caps/nvidia-cap([0-9]{1,7})", ("nvidia-caps",), None),
    (r"/dev/nvidia-caps-imex-channels/channel([0-9]{1,7})", ("nvidia-caps-imex-channels",), None),
)


def dev_directory(host: hostfs.HostFS, driver_roots: t.Iterable[str] = DRIVER_ROOTS) -> str:
    """Return the directory with the driver's nodes: ``dev`` of the first of ``driver_roots`` with nvidiactl, or /dev.

    A driver container has a file system of its own there, and the host's /dev may have none of the nodes. NVIDIA's
    runtime uses only that of nvidia-container-cli.root (internal/runtime/runtime.go of the toolkit 1.20).
    """
    folders = (posixpath.join(root, "dev") for root in driver_roots if root.startswith("/"))
    return next((folder for folder in folders if host.exists(f"{folder}/{_CONTROL}")), DEV)


def node_in(folder: str, node: str) -> str:
    """Return the path in ``folder``, the result of dev_directory(), of a node that containers have as ``node``."""
    return folder + node[len(DEV) :]


def missing_in(folder: str, nodes: t.Iterable[str], host: hostfs.HostFS) -> list[str]:
    """Return the paths in ``folder``, as node_in() returns them, of those ``nodes`` that it lacks."""
    paths = (node_in(folder, node) for node in dict.fromkeys(nodes))
    return [path for path in paths if not host.exists(path)]


def node_in_containers(path: str) -> str:
    """Return the path that containers have for the node ``path`` of the host."""
    return path[len(_root_of(path)) :]


def control_nodes(host: hostfs.HostFS) -> list[str]:
    """Return the control device nodes of the loaded modules, as in containers, whether or not they exist."""
    names = [_CONTROL]
    # The kernel writes the names of modules with underscores.
    module = _MODESET.replace("-", "_")
    if any(line.split(" ", 1)[0] == module for line in host.read_text(_MODULES).splitlines()):
        names.append(_MODESET)
    names += _UVM_MINORS if _UVM in kernel_majors(host) else ()
    return [f"{DEV}/{name}" for name in names]


def may_create_nodes(host: hostfs.HostFS) -> bool:
    """Return whether the driver lets programs that use a GPU create and change its device nodes."""
    return _parameters(host).get("ModifyDeviceFiles", 1) == 1


def device_numbers(path: str, majors: t.Mapping[str, int]) -> tuple[int | None, int] | None:
    """Return major and minor number of the driver's node ``path`` (as in a container), or None for any other node.

    The major number is None if it is dynamic and not in ``majors``, the result of kernel_majors().
    """
    for pattern, names, minor in _NUMBERS:
        found = re.fullmatch(pattern, path)
        if found is not None:
            usual = _MAJOR if names == _MAJOR_NAMES else None
            major = next((majors[name] for name in names if name in majors), usual)
            return major, int(found.group(1)) if minor is None else minor
    return None


def kernel_majors(host: hostfs.HostFS) -> dict[str, int]:
    """Return the character devices of the running kernel: name to major number."""
    found: dict[str, int] = {}
    is_in_section = False
    for line in host.read_text(_DEVICES).splitlines():
        fields = line.split(None, 1)
        if not fields or not fields[0].isdecimal():
            # This is a heading, or the empty line that ends a section.
            is_in_section = line.startswith(_SECTION)
        elif is_in_section:
            found.setdefault(fields[-1].strip(), int(fields[0]))
    return found


def _parameters(host: hostfs.HostFS) -> dict[str, int]:
    """Return the numeric parameters of the driver. All of them are decimal, even the file mode."""
    pairs = (line.split(":", 1) for line in host.read_text(_PARAMETERS).splitlines() if ":" in line)
    return {name.strip(): int(value) for name, value in pairs if value.strip().isdecimal()}


# How to create each node of the driver with a command; the first pattern that matches is used.
_FIXES = (
    *((posixpath.basename(node), "Create it with {}") for node in CONTROL_NODES),
    (r"nvidia[0-9]+", "Run {} as root, which creates it"),
    (r"nvidia-cap[0-9]+", "Run {} as root, which creates it, after each change of the MIG devices"),
)
REGENERATE = "Generate the specification again"


def fix_for_node(path: str) -> str:
    """Return the advice for a missing device node, as the beginning of a sentence."""
    name = posixpath.basename(path)
    advice = next((advice for pattern, advice in _FIXES if re.fullmatch(pattern, name)), REGENERATE)
    return advice.format(command_for_node(path))


def command_for_node(path: str) -> str:
    """Return the command that creates a device node. That of a driver container is run in its directory."""
    root = _root_of(path)
    command = CONTROL_NODES.get(f"{DEV}/{posixpath.basename(path)}", "nvidia-smi")
    return f"chroot {root} {command}" if root else command


def _root_of(path: str) -> str:
    """Return the directory of the driver's files that has the node ``path`` below its ``dev``; empty for /."""
    root, separator, _rest = path.rpartition(f"{DEV}/")
    return root if separator else ""
