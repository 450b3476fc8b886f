# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the devices and driver files of a container with those that it should have.

What a container has comes from its OCI config and from the kernel's list of its mounts. No file of the container is
opened or looked up, because the container controls them. All functions are pure.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    access as explain_access,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import (
    container as explain_container,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes

if t.TYPE_CHECKING:
    Data = t.Mapping[str, t.Any]


_NODE = re.compile(r"/dev/(?:nvidia|dri/)")
# The names of the driver's files: libraries, programs, firmware, and files in directories named nvidia.
_FILE = re.compile(r"(?:\A|/)(?:lib(?:nvidia|cuda|nv|GLX?_nvidia|EGL_nvidia|vdpau_nvidia)|nvidia|gsp_)[^/]*\Z")
_VERSIONED = re.compile(r"(?:\A|/)(libcuda|libnvidia-ml)\.so\.([0-9]+\.[0-9.]*[0-9])\Z")
# The low-level runtime mounts all nodes from the host in a user namespace, and makes them elsewhere. The legacy hook
# mounts those that it adds. A container with one of these mounts has no GPU nodes but mounted ones.
_MOUNTED_NODES = {"/dev/null", "/dev/nvidiactl"}
_ESCAPE = re.compile(r"\\([0-7]{3})")
# The library that a capability needs at least (nvc_info.c of libnvidia-container), and its device nodes
# (nvc_mount.c).
_LIBRARIES = {"compute": "libcuda.so", "utility": "libnvidia-ml.so"}
_NODES = {"compute": ("/dev/nvidiactl", "/dev/nvidia-uvm"), "utility": ("/dev/nvidiactl",)}
# In modes without capabilities, a container gets the files of all of them.
ALL = frozenset(_LIBRARIES)


class Contents(t.NamedTuple):
    """What of NVIDIA a container has: paths in it.

    ``complete`` is False if only the OCI config is known, which lacks what the legacy hook mounts. ``nodes_known`` is
    False if the container may have other device nodes. ``whole_dev`` says that the container sees /dev of the host.
    ``mounted`` are the device nodes that are mounted from the host, ``made`` those that the low-level runtime makes in
    the container.
    """

    devices: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    complete: bool = False
    nodes_known: bool = False
    whole_dev: bool = False
    mounted: frozenset[str] = frozenset()
    made: t.Mapping[str, explain_access.NodeAccess] = core_plan.NOTHING

    @property
    def has_gpu(self) -> bool:
        """Whether it is known to have a GPU."""
        return self.whole_dev or any(device_nodes.GPU_NODE.fullmatch(path) for path in self.devices)

    def other_versions(self, driver: str) -> tuple[str, ...]:
        """Return the libraries of which the container has another version than ``driver``, and not that of ``driver``.

        Besides the library of the driver, nvidia-container-cli also mounts a newer libcuda that an image has for
        forward compatibility (src/nvc_mount.c of libnvidia-container).
        """
        matches = [match for match in map(_VERSIONED.search, sorted(self.files)) if match is not None]
        current = {match[1] for match in matches if match[2] == driver}
        return tuple(match.string for match in matches if match[1] not in current)


class Expected(t.NamedTuple):
    """What a container should have. ``names`` are names of files whose directory differs between images."""

    devices: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def unseen_devices(self, contents: Contents) -> tuple[str, ...]:
        """Return the devices that the container lacks as far as its device nodes are known."""
        return () if contents.whole_dev else tuple(path for path in self.devices if path not in contents.devices)

    def missing_devices(self, contents: Contents) -> tuple[str, ...]:
        return self.unseen_devices(contents) if contents.nodes_known else ()

    def missing_files(self, contents: Contents) -> tuple[str, ...]:
        have = {posixpath.basename(path) for path in contents.files}
        paths = tuple(path for path in self.files if path not in contents.files)
        return (*paths, *(name for name in self.names if name not in have))


def contents_of(config: Data | None, mountinfo: str, is_final: bool = True) -> Contents:
    """Return what a container has, from its OCI config and /proc/PID/mountinfo (empty for one that does not run).

    ``config`` None is not known. ``is_final`` says that it has all device nodes that the low-level runtime makes.
    """
    has_nodes = config is not None and is_final
    config = config or {}
    linux: dict[str, t.Any] = json_data.get(config, "linux", {})
    listed: list[t.Any] = json_data.get(linux, "devices", [])
    nodes = [json_data.get(device, "path", "") for device in listed]
    points = [destination for _source, destination in explain_container.mounts_of(config.get("mounts"))]
    mounted = list(_mount_points(mountinfo))
    mount_points = {point for point, _kind in mounted}
    paths = {posixpath.normpath(path) for path in [*nodes, *points, *mount_points] if path}
    return Contents(
        devices=frozenset(path for path in paths if _NODE.match(path)),
        files=frozenset(path for path in paths if _FILE.search(path) and not path.startswith(("/dev/", "/proc/"))),
        complete=bool(mounted),
        nodes_known=bool(mounted) and (has_nodes or not _MOUNTED_NODES.isdisjoint(mount_points)),
        whole_dev=("/dev", "devtmpfs") in mounted,
        mounted=frozenset(filter(_NODE.match, mount_points)),
        made=_made(listed, mount_points),
    )


def _made(devices: t.Iterable[t.Any], mounted: t.Collection[str]) -> dict[str, explain_access.NodeAccess]:
    """Return the nodes in ``devices`` of an OCI config that are not mounted.

    runc makes them with these values, and 0666 without a mode (libcontainer/specconv/spec_linux.go of runc 1.1 to 1.3).
    In a user namespace it mounts the nodes of the host instead.
    """
    found = {}
    for device in devices:
        path = posixpath.normpath(json_data.get(device, "path", "") or "/")
        if _NODE.match(path) and path not in mounted:
            number = json_data.get(device, "major", 0), json_data.get(device, "minor", 0)
            mode, uid = json_data.get(device, "fileMode", 0o666), json_data.get(device, "uid", 0)
            found[path] = explain_access.NodeAccess(mode, uid, json_data.get(device, "gid", 0), number=number)
    return found


def _mount_points(mountinfo: str) -> t.Iterator[tuple[str, str]]:
    """Yield each mount point, and the type of its file system (proc_pid_mountinfo(5))."""
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        columns = fields.split(" ")
        if separator and len(columns) > 4:
            yield _ESCAPE.sub(lambda found: chr(int(found[1], 8)), columns[4]), rest.split(" ", 1)[0]


def of_driver(driver: str | None, nodes: t.Iterable[str], capabilities: t.Collection[str]) -> Expected:
    """Return what a container with the device nodes ``nodes`` of GPUs gets of the loaded driver."""
    granted = [name for name in _LIBRARIES if name in capabilities]
    control = [node for name in granted for node in _NODES[name]]
    names = tuple(f"{_LIBRARIES[name]}.{driver}" for name in granted) if driver else ()
    return Expected(tuple(dict.fromkeys([*control, *nodes])), (), names)


class Specifications(t.NamedTuple):
    """The CDI specifications that a program reads.

    - ``folders``: their directories. ``devices``: the file that defines each device, by qualified name.
    - ``documents``: the validated specification of each file.
    - ``problems``: why files or devices are skipped.
    - ``stale``: why a device cannot be added, by qualified name. Only devices with a reason are in it.
    """

    folders: tuple[str, ...] = ()
    devices: t.Mapping[str, str] = core_plan.NOTHING
    documents: t.Mapping[str, Data] = core_plan.NOTHING
    problems: tuple[str, ...] = ()
    stale: t.Mapping[str, str] = core_plan.NOTHING

    def edits(self, names: t.Iterable[str]) -> list[Data]:
        """Return the changes for the devices ``names``: of each file once, then of each device."""
        by_file: dict[str, list[str]] = {}
        for name in names:
            if name in self.devices:
                by_file.setdefault(self.devices[name], []).append(name.partition("=")[2])
        found: list[Data] = []
        for path, own in by_file.items():
            document = self.documents.get(path, {})
            found.append(json_data.get(document, "containerEdits", {}))
            devices: list[t.Any] = json_data.get(document, "devices", [])
            by_name = {json_data.get(device, "name", ""): device for device in devices}
            found += [json_data.get(by_name.get(name), "containerEdits", {}) for name in own]
        return found

    def variables(self, names: t.Iterable[str]) -> dict[str, str]:
        """Return the variables that the devices ``names`` add."""
        entries = [entry for edits in self.edits(names) for entry in _list(edits, "env") if isinstance(entry, str)]
        return {name: value for name, _sign, value in (entry.partition("=") for entry in entries)}

    def has_gpu_node(self, name: str) -> bool:
        """Return whether the device ``name`` adds the node of a GPU."""
        return any(device_nodes.GPU_NODE.fullmatch(node) for node in self.expected([name]).devices)

    def expected(self, names: t.Iterable[str]) -> Expected:
        """Return what a container with the devices ``names`` gets."""
        edits = self.edits(names)
        nodes = [json_data.get(node, "path", "") for entry in edits for node in _list(entry, "deviceNodes")]
        mounts = [json_data.get(mount, "containerPath", "") for entry in edits for mount in _list(entry, "mounts")]
        files = (posixpath.normpath(path) for path in mounts if path)
        return Expected(
            tuple(dict.fromkeys(path for path in nodes if _NODE.match(path))),
            tuple(dict.fromkeys(path for path in files if _FILE.search(path) and not path.startswith("/dev/"))),
        )


def closed_nodes(edits: t.Iterable[Data]) -> list[str]:
    """Return the device nodes of ``edits`` that a container may not both read and write (cgroupsAccess of CDI)."""
    nodes = [node for entry in edits for node in _list(entry, "deviceNodes")]
    found = [node for node in nodes if not set("rw") <= set(json_data.get(node, "permissions", "") or "rwm")]
    return [path for path in (json_data.get(node, "path", "") for node in found) if _NODE.match(path)]


def _list(data: t.Any, name: str) -> list[t.Any]:
    found: list[t.Any] = json_data.get(data, name, [])
    return found
