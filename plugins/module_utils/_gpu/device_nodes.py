# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the control device nodes of the driver, and create missing ones with nvidia-modprobe.

This file does not create the nodes of GPUs or of MIG devices.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


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
_PROGRAM = "nvidia-modprobe"
# The arguments of nvidia-modprobe for each node. One call creates nvidia-uvm and nvidia-uvm-tools.
_ARGUMENTS = {
    _CONTROL: ("-c", str(_MINORS[_CONTROL])),
    _MODESET: ("-m",),
    **dict.fromkeys(_UVM_MINORS, ("-u", "-c", "0")),
}
# The driver's control nodes in the order of nvidia-ctk, and the command that creates each of them.
CONTROL_NODES = {
    f"/dev/{name}": " ".join((_PROGRAM, *_ARGUMENTS[name])) for name in (_MODESET, f"{_UVM}-tools", _UVM, _CONTROL)
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


class CharacterDevice(t.NamedTuple):
    """A character device: its path on the host, and its major and minor number."""

    path: str
    major: int
    minor: int


def missing_nodes(host: hostfs.HostFS, driver_root: str = "/") -> tuple[list[CharacterDevice], list[str]]:
    """Return the missing control device nodes of ``host``, and warnings for those that cannot be created.

    The nodes belong in the directory ``dev`` of ``driver_root`` if it exists, and otherwise in /dev. A node with the
    right numbers is not missing, whatever its mode.

    Raises:
        HostError: ``host`` is an offline tree, which has no devices; or the path of a node has an entry of another
            type; or a node is missing and nvidia-modprobe is not installed.
    """
    _require_live(host)
    if procfs.loaded_driver(host) is None:
        unloaded = (
            f"No device nodes were created, because no NVIDIA driver is loaded: {procfs.VERSION_FILES[0]} does not"
            " exist. Run modprobe nvidia, then run this task again."
        )
        return [], [unloaded]
    folder = _directory_of_new_nodes(host, driver_root)
    nodes, warnings = _expected_nodes(host, folder)
    missing = [node for node in nodes if not _is_correct(host, node)]
    if missing and not may_create_nodes(host):
        warnings.append(
            f"{', '.join(node.path for node in missing)} {'was' if len(missing) == 1 else 'were'} not created, because"
            f" ModifyDeviceFiles in {_PARAMETERS} is not 1. Create missing nodes with the program that created"
            " the driver's other nodes, or load the module nvidia with NVreg_ModifyDeviceFiles=1."
        )
        missing = []
    if missing:
        _modprobe(host, folder)
    return missing, warnings


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
    return [node.path for node in _expected_nodes(host, DEV)[0]]


def may_create_nodes(host: hostfs.HostFS) -> bool:
    """Return whether the driver lets programs that use a GPU create and change its device nodes."""
    return _parameters(host).get("ModifyDeviceFiles", 1) == 1


def create_nodes(host: hostfs.HostFS, nodes: t.Sequence[CharacterDevice], run: core_plan.Runner) -> None:
    """Create ``nodes``, as returned by missing_nodes(), with nvidia-modprobe.

    nvidia-modprobe replaces nodes that have wrong numbers.

    Raises:
        HostError: ``host`` is an offline tree, or a node is still missing or wrong.
    """
    _require_live(host)
    printed = []
    commands = dict.fromkeys(
        (posixpath.dirname(node.path), _ARGUMENTS[posixpath.basename(node.path)]) for node in nodes
    )
    for folder, arguments in commands:
        # The exit status is also 1 if only the link in /dev/char could not be created, so it is ignored.
        _status, output, errors = run([*_modprobe(host, folder), *arguments])
        printed += [output.strip(), errors.strip()]
    missing = [node for node in nodes if not _is_correct(host, node)]
    if missing:
        expected = ", ".join(f"{node.path} ({node.major}:{node.minor})" for node in missing)
        raise core_errors.HostError(
            f"{_PROGRAM} did not create {expected}. It printed: {' '.join(filter(None, printed)) or 'nothing'}. Create"
            " the nodes with the program that creates the driver's other nodes, or set"
            f" {core_errors.option:create_device_nodes}: false."
        )


def _modprobe(host: hostfs.HostFS, folder: str) -> list[str]:
    """Return the command that creates nodes in the directory ``folder``. Raises HostError if it is not installed."""
    driver_root = posixpath.dirname(folder)
    root = host if driver_root == "/" else hostfs.HostFS.of(host.real_path(driver_root), live=True)
    program = root.find_executable([_PROGRAM])
    if program is None:
        raise core_errors.HostError(
            f"{_PROGRAM}, which creates the device nodes in {folder}, is not installed below {driver_root}. Install"
            f" the driver's package {_PROGRAM} there, or set {core_errors.option:create_device_nodes}: false."
        )
    return root.argv([program])


def _require_live(host: hostfs.HostFS) -> None:
    if not host.live:
        raise core_errors.HostError(
            f"{host.root} is an offline tree, which has no devices. Create the device nodes on the running host, or"
            f" set {core_errors.option:create_device_nodes}: false."
        )


def _directory_of_new_nodes(host: hostfs.HostFS, driver_root: str) -> str:
    folder = posixpath.join(driver_root, "dev")
    return folder if driver_root != "/" and os.path.isdir(host.real_path(folder)) else DEV


def _expected_nodes(host: hostfs.HostFS, folder: str) -> tuple[list[CharacterDevice], list[str]]:
    """Return all control nodes of the loaded modules, and warnings for the modules that are not loaded."""
    majors = kernel_majors(host)
    major = next((majors[name] for name in _MAJOR_NAMES if name in majors), _MAJOR)
    nodes = [CharacterDevice(f"{folder}/{_CONTROL}", major, _MINORS[_CONTROL])]
    warnings = []
    # The kernel writes the names of modules with underscores.
    module = _MODESET.replace("-", "_")
    if any(line.split(" ", 1)[0] == module for line in host.read_text(_MODULES).splitlines()):
        nodes.append(CharacterDevice(f"{folder}/{_MODESET}", major, _MINORS[_MODESET]))
    else:
        warnings.append(_not_loaded(module, _MODULES, [f"{folder}/{_MODESET}"]))
    if _UVM in majors:
        nodes += [CharacterDevice(f"{folder}/{name}", majors[_UVM], minor) for name, minor in _UVM_MINORS.items()]
    else:
        warnings.append(_not_loaded(_UVM.replace("-", "_"), _DEVICES, [f"{folder}/{name}" for name in _UVM_MINORS]))
    return nodes, warnings


def _not_loaded(module: str, source: str, paths: t.Sequence[str]) -> str:
    return (
        f"{' and '.join(paths)} cannot be created, because the kernel module {module} is not loaded ({source} does not"
        f" list it). Run modprobe {module}, then run this task again."
    )


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


def _is_correct(host: hostfs.HostFS, node: CharacterDevice) -> bool:
    """Return whether the node exists with its numbers, possibly behind a link.

    Raises:
        HostError: Its path is that of a file or directory, which must not be replaced.
    """
    try:
        status = os.stat(host.real_path(node.path))
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(node.major, node.minor):
            return True
    except OSError:
        # There is no entry, or a dangling link.
        pass
    try:
        mode = os.lstat(host.real_path(node.path, last=False)).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise core_errors.os_error(node.path, "read", error) from error
    if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
        raise core_errors.HostError(
            f"{node.path} is not a device, but the driver's device {node.major}:{node.minor} belongs there. Move it,"
            " then run this task again."
        )
    return False


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
