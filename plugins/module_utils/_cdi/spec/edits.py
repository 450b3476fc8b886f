# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container edits of a CDI specification: device nodes, mounts, hooks and environment.

The order of the entries, and which entries are omitted as duplicates, are as in nvidia-ctk 1.20.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions

_HOOK_NAME = "createContainer"
_HOOK_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)
MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_OTHERS_READ_AND_WRITE = 0o006
ALL = "all"


def selects_all(ids: t.Collection[str]) -> bool:
    """Return whether the device IDs of a request select all devices."""
    return not ids or ALL in ids


Data = t.Dict[str, t.Any]
_Entry = t.TypeVar("_Entry")


class DeviceNode(t.NamedTuple):
    """A device node of the host that containers get.

    ``path`` is its path in the container; ``host_path`` is empty if it is the same. ``major``, ``minor`` and ``mode``
    are 0 if they are unknown. ``gid`` is 0 for the group root.
    """

    path: str
    host_path: str = ""
    major: int = 0
    minor: int = 0
    mode: int = 0
    permissions: str = "rwm"
    gid: int = 0

    def to_dict(self) -> Data:
        return _filled(
            path=self.path,
            hostPath=self.host_path,
            major=self.major,
            minor=self.minor,
            fileMode=self.mode,
            permissions=self.permissions,
            gid=self.gid,
        )


class Hook(t.NamedTuple):
    """A program that the runtime runs in the container's namespaces before the container starts."""

    path: str
    arguments: tuple[str, ...]

    def to_dict(self) -> Data:
        return {"hookName": _HOOK_NAME, "path": self.path, "args": list(self.arguments), "env": list(_HOOK_ENVIRONMENT)}


class Mount(t.NamedTuple):
    host_path: str
    container_path: str
    options: tuple[str, ...] = MOUNT_OPTIONS

    def to_dict(self) -> Data:
        return {"hostPath": self.host_path, "containerPath": self.container_path, "options": list(self.options)}


class Edits(t.NamedTuple):
    """The changes to a container, in the order of discovery."""

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    gids: tuple[int, ...] = ()

    def is_empty(self) -> bool:
        """Return whether nvidia-ctk treats the edits as empty: it does not consider additional groups."""
        return not (self.env or self.nodes or self.hooks or self.mounts)

    def to_dict(self) -> Data:
        """Return the edits as data.

        Each call returns new objects, because a YAML writer would write an object that occurs twice as an alias.
        """
        return _filled(
            env=list(self.env),
            deviceNodes=[node.to_dict() for node in self.nodes],
            hooks=[hook.to_dict() for hook in self.hooks],
            mounts=[mount.to_dict() for mount in self.mounts],
            additionalGids=list(self.gids),
        )


class Device(t.NamedTuple):
    """A device of a specification.

    ``coherent`` is whether a whole GPU uses the page tables of the CPU; None for other devices and if it is unknown.
    The specification does not contain it. It selects the devices of the specification's variants.
    """

    name: str
    edits: Edits
    coherent: bool | None = None


def merged(*parts: Edits) -> Edits:
    """Return all ``parts`` as one, in their order."""
    return Edits(
        tuple(entry for part in parts for entry in part.env),
        tuple(node for part in parts for node in part.nodes),
        tuple(hook for part in parts for hook in part.hooks),
        tuple(mount for part in parts for mount in part.mounts),
        tuple(gid for part in parts for gid in part.gids),
    )


def node_edits(nodes: t.Iterable[DeviceNode], with_gids: bool) -> Edits:
    """Return the edits for ``nodes``, and, with ``with_gids``, the groups that processes in the container need."""
    found = tuple(nodes)
    # A node that all users may read and write needs no group.
    gids = [node.gid for node in found if node.mode & _OTHERS_READ_AND_WRITE != _OTHERS_READ_AND_WRITE]
    return Edits(nodes=found, gids=tuple(gid for gid in gids if gid) if with_gids else ())


def to_spec(kind: str, devices: t.Iterable[Device], common: Edits, all_device: bool) -> Data:
    """Return the specification as plain data, with keys in the order of nvidia-ctk and the lowest CDI version for it.

    ``all_device`` adds the device "all", which has the edits of all others, unless a device of that name exists.
    """
    shared = _simplified(common)
    all_devices = sorted((Device(device.name, _device_edits(device.edits, shared)) for device in devices), key=_by_name)
    if all_device and all_devices and ALL not in (device.name for device in all_devices):
        all_devices.append(Device(ALL, _device_edits(merged(*(device.edits for device in all_devices)), shared)))
        all_devices.sort(key=_by_name)
    spec: Data = {
        "cdiVersion": "",
        "kind": kind,
        "devices": [{"name": device.name, "containerEdits": device.edits.to_dict()} for device in all_devices],
        "containerEdits": shared.to_dict(),
    }
    spec["cdiVersion"] = cdi_versions.minimum_version(spec)
    return spec


def with_kept(document: Data, field: str, is_kept: t.Callable[[Data], bool]) -> Data:
    """Return ``document`` with the items of ``field`` for which ``is_kept`` returns true."""

    def reduced(part: Data) -> Data:
        edits = part.get(cdi_schema.EDITS, {})
        items = [item for item in edits.get(field, ()) if is_kept(item)]
        kept = {name: items if name == field else edits[name] for name in edits if name != field or items}
        return {**part, cdi_schema.EDITS: kept} if edits else dict(part)

    return {**reduced(document), "devices": [reduced(device) for device in document.get("devices", ())]}


def _device_edits(edits: Edits, common: Edits) -> Edits:
    """Return the edits that are not in ``common``, or all if none remain, because a device must not be empty.

    Additional groups stay, also if ``common`` has them.
    """
    simple = _simplified(edits)
    rest = Edits(
        _not_in(simple.env, common.env),
        _not_in(simple.nodes, common.nodes),
        _not_in(simple.hooks, common.hooks),
        _not_in(simple.mounts, common.mounts),
        simple.gids,
    )
    return simple if rest.is_empty() else rest


def _simplified(edits: Edits) -> Edits:
    """Return the edits without duplicates. Nodes, mounts and groups are sorted; variables and hooks are not."""
    return Edits(
        tuple(dict.fromkeys(edits.env)),
        tuple(sorted(dict.fromkeys(edits.nodes), key=lambda node: (node.path.count("/"), node.path))),
        tuple(dict.fromkeys(edits.hooks)),
        tuple(
            sorted(
                dict.fromkeys(edits.mounts), key=lambda mount: (mount.container_path.count("/"), mount.container_path)
            )
        ),
        tuple(sorted(set(edits.gids))),
    )


def _not_in(entries: tuple[_Entry, ...], common: t.Collection[_Entry]) -> tuple[_Entry, ...]:
    known = set(common)
    return tuple(entry for entry in entries if entry not in known)


def _by_name(device: Device) -> str:
    return device.name


def _filled(**fields: t.Any) -> Data:
    return {name: value for name, value in fields.items() if value}
