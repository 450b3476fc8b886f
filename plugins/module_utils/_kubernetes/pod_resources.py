# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the kubelet for its devices by the PodResources API, version v1.

Only List and GetAllocatableResources are called. They change nothing, and no device plugin takes part in them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc

# Relative to the root directory of the kubelet (pkg/kubelet/config/defaults.go, and server.go in
# pkg/kubelet/apis/podresources of Kubernetes 1.34).
SOCKET = "pod-resources/kubelet.sock"
# pkg/apis/podresources/v1/api.proto of k8s.io/kubelet: v1 since Kubernetes 1.20, GetAllocatableResources enabled since
# 1.23, DynamicResource since 1.27.
_SERVICE = "/v1.PodResourcesLister/"
# Field numbers. AllocatableResourcesResponse: devices. ContainerDevices: resource_name, device_ids.
_DEVICES, _RESOURCE_NAME, _DEVICE_IDS = 1, 1, 2
# Field numbers. ListPodResourcesResponse: pod_resources. PodResources: name, namespace, containers.
_POD, _NAME, _NAMESPACE, _CONTAINERS = 1, 1, 2, 3
# Field numbers. ContainerResources: devices, dynamic_resources. DynamicResource: claim_resources.
_CONTAINER_DEVICES, _DYNAMIC, _CLAIM_RESOURCES = 2, 5, 4
# Field numbers. ClaimResource: driver_name, pool_name, device_name.
_DRIVER, _POOL, _DEVICE = 2, 3, 4


class ClaimedDevice(t.NamedTuple):
    """A device that a DRA driver has prepared for a container."""

    driver: str
    pool: str
    device: str
    pod: str
    namespace: str
    container: str


class PodResources(t.NamedTuple):
    """What the kubelet reports: the healthy devices of each resource, and the devices of containers."""

    allocatable: t.Mapping[str, tuple[str, ...]]
    held: tuple[checkpoint.HeldDevices, ...]
    claimed: tuple[ClaimedDevice, ...]


def ask(socket_path: str) -> PodResources:
    """Return what the kubelet behind ``socket_path`` reports.

    Raises OSError if it does not answer, and ValueError for an invalid or too long answer.
    """
    allocatable = decode_allocatable(grpc.call(socket_path, _SERVICE + "GetAllocatableResources", b""))
    held, claimed = decode_list(grpc.call(socket_path, _SERVICE + "List", b""))
    return PodResources(allocatable, held, claimed)


def decode_allocatable(message: bytes) -> dict[str, tuple[str, ...]]:
    """Return the devices of each resource in an AllocatableResourcesResponse.

    Raises ValueError if it is invalid.
    """
    # The kubelet sends one message for each device, or for all devices with the same NUMA nodes.
    return _by_resource(content for number, content in grpc.fields(message) if number == _DEVICES)


def decode_list(message: bytes) -> tuple[tuple[checkpoint.HeldDevices, ...], tuple[ClaimedDevice, ...]]:
    """Return the devices of containers in a ListPodResourcesResponse: those of plugins, and those of DRA drivers.

    Raises ValueError if it is invalid.
    """
    held: list[checkpoint.HeldDevices] = []
    claimed: list[ClaimedDevice] = []
    for pod in _messages(message, _POD):
        name, namespace = _text(pod, _NAME), _text(pod, _NAMESPACE)
        for container in _messages(pod, _CONTAINERS):
            container_name = _text(container, _NAME)
            for resource, devices in _by_resource(_messages(container, _CONTAINER_DEVICES)).items():
                held.append(checkpoint.HeldDevices(resource, name, namespace, container_name, devices))
            for dynamic in _messages(container, _DYNAMIC):
                for claim in _messages(dynamic, _CLAIM_RESOURCES):
                    driver, pool, device = (_text(claim, number) for number in (_DRIVER, _POOL, _DEVICE))
                    claimed.append(ClaimedDevice(driver, pool, device, name, namespace, container_name))
    return tuple(sorted(held)), tuple(sorted(set(claimed)))


def _by_resource(messages: t.Iterable[bytes]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for message in messages:
        devices = {_decoded(content) for content in _messages(message, _DEVICE_IDS)}
        found.setdefault(_text(message, _RESOURCE_NAME), set()).update(devices)
    return {name: tuple(sorted(devices)) for name, devices in sorted(found.items())}


def _messages(message: bytes, wanted: int) -> t.Iterator[bytes]:
    return (content for number, content in grpc.fields(message) if number == wanted)


def _text(message: bytes, wanted: int) -> str:
    # Of a field that occurs several times, the last one has effect (protobuf.dev/programming-guides/encoding).
    return _decoded(dict(grpc.fields(message)).get(wanted, b""))


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")
