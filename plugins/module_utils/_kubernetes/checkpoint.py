# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the checkpoint of the kubelet's device manager.

The kubelet writes it after each list of devices from a plugin, and after each allocation. After a restart, it has the
devices from before until the first plugin registers again (writeCheckpoint and readCheckpoint in
pkg/kubelet/cm/devicemanager/manager.go of Kubernetes 1.34).
"""

from __future__ import annotations

import base64
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data

# The directory does not depend on the kubelet's root directory (DevicePluginPath in
# pkg/apis/deviceplugin/v1beta1/constants.go of k8s.io/kubelet).
DIRECTORY = "/var/lib/kubelet/device-plugins"
PATH = f"{DIRECTORY}/kubelet_internal_checkpoint"
# Where the devices of the report come from: from the PodResources API of the kubelet, or from its checkpoint.
FROM_API, FROM_CHECKPOINT = "pod-resources", "checkpoint"
_ADVICE = "The kubelet writes the file again when a device plugin registers. Restart the kubelet if it stays damaged."


class HeldDevices(t.NamedTuple):
    """The devices of one resource that one container holds.

    ``pod`` is the name of the pod, and its UID if ``namespace`` is empty: the checkpoint has no names.
    """

    resource: str
    pod: str
    namespace: str
    container: str
    devices: tuple[str, ...]


class Checkpoint(t.NamedTuple):
    """The content of a checkpoint.

    ``registered`` has the healthy devices of each resource. A resource without devices is one whose plugin has none
    that is healthy, or that has not registered since the kubelet started. ``answers`` are the answers of plugins to
    allocations, each with its resource.
    """

    registered: t.Mapping[str, tuple[str, ...]]
    held: tuple[HeldDevices, ...]
    answers: tuple[tuple[str, bytes], ...] = ()


def read(host: hostfs.HostFS) -> Checkpoint | None:
    """Return the checkpoint; None if there is none.

    Raises NvidiaError if it cannot be read or is damaged.
    """
    try:
        content = host.read(PATH, hostfs.FILE_BYTES)
        return None if content is None else _decode(json_data.load(content))
    except errors.PermissionDeniedError:
        raise
    except errors.HostError as error:
        # Whoever moves the file away takes from the kubelet which container has which GPU.
        raise errors.with_advice(errors.HostError, errors.Problem.of(error).message, _ADVICE) from error
    except ValueError as error:
        raise errors.ConfigurationError(PATH, f"the checkpoint is damaged: {error}", _ADVICE) from error


def _decode(document: t.Any) -> Checkpoint:
    """Return the data of a checkpoint (pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go of Kubernetes 1.34).

    Go writes an empty list or map as null. Raises ValueError for other types.
    """
    data = json_data.field(document, "Data", dict)
    registered = json_data.check(data.get("RegisteredDevices") or {}, dict)
    entries = json_data.check(data.get("PodDeviceEntries") or [], list)
    return Checkpoint(
        {_text(name): _names(devices or []) for name, devices in sorted(registered.items())},
        tuple(sorted(map(_held, entries))),
        tuple((json_data.field(entry, "ResourceName", str), _answer(entry)) for entry in entries if _answer(entry)),
    )


def _answer(entry: t.Any) -> bytes:
    """Return the answer of the plugin (AllocResp), which Go writes in base64; empty if it is not valid."""
    try:
        return base64.b64decode(json_data.get(entry, "AllocResp", ""), validate=True)
    except ValueError:
        return b""


def _held(entry: t.Any) -> HeldDevices:
    fields = [json_data.field(entry, name, str) for name in ("ResourceName", "PodUID", "ContainerName")]
    resource, pod, container = map(_text, fields)
    devices = entry.get("DeviceIDs") or []
    if isinstance(devices, dict):
        # By NUMA node, since Kubernetes 1.20. Before, it was a list (checkpointv1.go of Kubernetes 1.23). A device on
        # several nodes occurs several times.
        devices = [name for names in devices.values() for name in json_data.check(names or [], list)]
    return HeldDevices(resource, pod, "", container, _names(devices))


def _names(devices: t.Any) -> tuple[str, ...]:
    return tuple(sorted({_text(json_data.check(name, str)) for name in json_data.check(devices, list)}))


def _text(text: str) -> str:
    """Return ``text``.

    Raises ValueError if UTF-8 cannot encode it, because JSON may contain half of a surrogate pair.
    """
    text.encode("utf-8")
    return text
