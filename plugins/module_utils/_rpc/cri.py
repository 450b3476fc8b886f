# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Call the CRI of a container engine over its socket."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc

# api/services/introspection/v1/introspection.proto of containerd, identical in 1.6, 1.7 and 2.1.
_PLUGINS = "/containerd.services.introspection.v1.Introspection/Plugins"
# Field numbers. PluginsResponse: plugins; Plugin: type, id, init_err; google.rpc.Status: message.
_PLUGIN, _TYPE, _ID, _ERROR, _MESSAGE = 1, 1, 2, 7, 2
# The CRI is one plugin up to 1.7 and three from 2.0 on.
_CRI_TYPES = ("io.containerd.cri.v1",)
_CRI_ID = "cri"
_GRPC_TYPE = "io.containerd.grpc.v1"


class Plugin(t.NamedTuple):
    """One plugin of containerd.

    ``error`` is the reason why containerd could not load it; empty if it is loaded.
    """

    kind: str
    identifier: str
    error: str

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.identifier}"

    @property
    def serves_cri(self) -> bool:
        return self.kind in _CRI_TYPES or (self.kind == _GRPC_TYPE and self.identifier == _CRI_ID)


def list_plugins(socket_path: str) -> list[Plugin] | None:
    """Return all plugins that the containerd at ``socket_path`` tried to load; None if there is no valid reply."""
    try:
        answer = list(grpc.fields(grpc.call(socket_path, _PLUGINS, b"")))
        return [_plugin(content) for number, content in answer if number == _PLUGIN]
    except (OSError, ValueError):
        return None


def _plugin(message: bytes) -> Plugin:
    entries = dict(grpc.fields(message))
    error = dict(grpc.fields(entries[_ERROR])).get(_MESSAGE, b"unknown error") if _ERROR in entries else b""
    kind, identifier = (entries.get(number, b"").decode("utf-8", "replace") for number in (_TYPE, _ID))
    return Plugin(kind, identifier, error.decode("utf-8", "replace"))


# runtime.v1 of k8s.io/cri-api (api.proto).
_SERVICE = "/runtime.v1.RuntimeService/"
# StatusRequest: field 1, verbose, is true.
_VERBOSE = b"\x08\x01"
# Field number. VersionResponse: runtime_version.
_RUNTIME_VERSION = 3
# Field numbers. StatusResponse: status, info (a map: entries of key and value).
_STATUS, _INFO = 1, 2
_KEY, _VALUE = 1, 2


def runtime_config(socket_path: str) -> dict[str, t.Any] | None:
    """Return the CRI configuration of the running engine. CRI-O reports only its ``sandboxImage``, or nothing.

    Returns None if there is no valid CRI reply at ``socket_path``, or if containerd has not loaded its CRI. The caller
    makes sure that the daemon runs, because the connection alone would start it under socket activation.
    """
    try:
        return _decode_config(grpc.call(socket_path, _SERVICE + "Status", _VERBOSE))
    except (OSError, ValueError):
        return None


def version(socket_path: str) -> str:
    """Return the version of the engine behind the CRI; empty if there is no valid reply."""
    try:
        answer = dict(grpc.fields(grpc.call(socket_path, _SERVICE + "Version", b"")))
        return answer.get(_RUNTIME_VERSION, b"").decode("utf-8")
    except (OSError, ValueError):
        return ""


def _decode_config(message: bytes) -> dict[str, t.Any] | None:
    reply = list(grpc.fields(message))
    # Every valid reply contains a status.
    if not any(number == _STATUS for number, _content in reply):
        return None
    config = json_data.load(_information(reply).get(b"config", b"{}"))
    return config if isinstance(config, dict) else None


# Field numbers. ListContainersResponse: containers; Container: id, pod_sandbox_id, metadata, created_at, labels;
# ContainerMetadata: name.
_CONTAINERS = 1
_CONTAINER_ID, _SANDBOX, _METADATA, _CREATED, _LABELS, _NAME = 1, 2, 3, 7, 8, 1
# PodSandboxStatusResponse: status, info; PodSandboxStatus: annotations (a map), runtime_handler.
_ANNOTATIONS, _HANDLER = 8, 9
# ContainerStatusResponse: status, info; ContainerStatus: state, reason, message.
_STATE, _STATE_REASON, _STATE_MESSAGE = 3, 10, 11
# errorStartReason in internal/cri/server/helpers.go of containerd. For an exit the message has another meaning.
_START_ERROR = b"StartError"
# The largest message that containerd and CRI-O send. A list has about 4 KiB for each container. The status of a
# container in a namespace with thousands of services has its variables of several MiB twice.
_REPLY_BYTES = 16 << 20
# The labels that every kubelet sets (pkg/kubelet/types/labels.go of Kubernetes). cri-dockerd gives them to the
# containers of Docker.
_KUBELET_LABELS = ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name")


class CriContainer(t.NamedTuple):
    """A container of a CRI. ``names`` are NAMESPACE/POD/NAME and POD/NAME of a pod that a kubelet made, and NAME.

    ``created`` is the time of its creation in nanoseconds, and ``sandbox`` the ID of its pod.
    """

    identifier: str
    names: tuple[str, ...]
    created: int = 0
    sandbox: str = ""


class ContainerStatus(t.NamedTuple):
    """The state of a container (a number), what the engine reports about it, and why it could not be started."""

    state: int
    info: dict[str, t.Any]
    error: str = ""


# Field numbers. ListContainersRequest: filter; ContainerFilter: id, label_selector (a map).
_FILTER, _FILTER_ID, _SELECTOR = 1, 1, 4
_PART_OF_ID = re.compile(r"[0-9a-f]{1,64}")


def kubelet_labels(name: str) -> dict[str, str]:
    """Return the labels of the containers with the name [[NAMESPACE/]POD/]NAME that a kubelet made."""
    return dict(zip(reversed(_KUBELET_LABELS), reversed(name.split("/"))))


def pod_names(labels: t.Mapping[str, str]) -> tuple[str, ...]:
    """Return NAMESPACE/POD/NAME and POD/NAME of a container that a kubelet made, by its labels; empty for others."""
    parts = [json_data.get(labels, label, "") for label in _KUBELET_LABELS]
    return ("/".join(parts), "/".join(parts[1:])) if all(parts) else ()


def find_containers(socket_path: str, name: str) -> list[CriContainer]:
    """Return the containers whose ID begins with ``name``, or of which it is one of the ``names``.

    The engine selects them, because a list of thousands of containers exceeds its limit. If it finds none for a name
    without a pod, it is asked for all of them: only a kubelet sets the labels, and an engine finds nothing for the
    beginning of several IDs. Raises OSError or ValueError if there is no valid reply.
    """
    parts = name.split("/")
    filters = [grpc.field(_FILTER_ID, name)] if _PART_OF_ID.fullmatch(name) else []
    if all(parts) and len(parts) <= len(_KUBELET_LABELS):
        pairs = kubelet_labels(name).items()
        filters.append(b"".join(grpc.field(_SELECTOR, grpc.field(_KEY, k) + grpc.field(_VALUE, v)) for k, v in pairs))
    found = [one for each in filters for one in list_containers(socket_path, grpc.field(_FILTER, each))]
    # A container may have been found by its ID and by its name.
    unique = list({one.identifier: one for one in found}.values())
    return unique if unique or len(parts) > 1 else list_containers(socket_path)


def list_containers(socket_path: str, request: bytes = b"") -> list[CriContainer]:
    """Return the containers that ``request`` selects, by default all. Raises OSError or ValueError."""
    reply = grpc.fields(grpc.call(socket_path, _SERVICE + "ListContainers", request, limit=_REPLY_BYTES))
    return [_container(content) for number, content in reply if number == _CONTAINERS]


def container_status(socket_path: str, identifier: str) -> ContainerStatus:
    """Return the status of a container. Raises as list_containers()."""
    # ContainerStatusRequest: container_id, verbose.
    request = grpc.field(1, identifier) + grpc.field(2, 1)
    reply = list(grpc.fields(grpc.call(socket_path, _SERVICE + "ContainerStatus", request, limit=_REPLY_BYTES)))
    status = next((content for number, content in reply if number == _STATUS), None)
    if status is None:
        raise ValueError("the reply has no status")
    information = _information(reply)
    info = json_data.load(information.get(b"info", b"{}"))
    texts = dict(grpc.fields(status))
    error = _text(texts.get(_STATE_MESSAGE, b"")) if texts.get(_STATE_REASON) == _START_ERROR else ""
    # protobuf omits fields whose value is 0.
    return ContainerStatus(dict(grpc.numbers(status)).get(_STATE, 0), info if isinstance(info, dict) else {}, error)


def pod_annotations(socket_path: str, sandbox: str) -> dict[str, str]:
    """Return the annotations of the pod with the ID ``sandbox``. Raises as list_containers()."""
    # PodSandboxStatusRequest: pod_sandbox_id.
    reply = grpc.call(socket_path, _SERVICE + "PodSandboxStatus", grpc.field(1, sandbox), limit=_REPLY_BYTES)
    status = dict(grpc.fields(reply)).get(_STATUS, b"")
    return _texts_of(grpc.fields(status), _ANNOTATIONS)


class PodStatus(t.NamedTuple):
    """The runtime handler of a pod, empty for the default one, and what the engine reports about the pod."""

    handler: str
    info: dict[str, t.Any]


def pod_status(socket_path: str, sandbox: str) -> PodStatus:
    """Return the status of the pod with the ID ``sandbox``. Raises as list_containers()."""
    # PodSandboxStatusRequest: pod_sandbox_id, verbose.
    request = grpc.field(1, sandbox) + grpc.field(2, 1)
    reply = list(grpc.fields(grpc.call(socket_path, _SERVICE + "PodSandboxStatus", request, limit=_REPLY_BYTES)))
    status = dict(grpc.fields(dict(reply).get(_STATUS, b"")))
    info = json_data.load(_information(reply).get(b"info", b"{}"))
    return PodStatus(_text(status.get(_HANDLER, b"")), info if isinstance(info, dict) else {})


def _container(message: bytes) -> CriContainer:
    entries = list(grpc.fields(message))
    first = dict(reversed(entries))
    name = _text(dict(grpc.fields(first.get(_METADATA, b""))).get(_NAME, b""))
    names = (*pod_names({**_texts_of(entries, _LABELS), _KUBELET_LABELS[-1]: name}), name)
    created = dict(grpc.numbers(message)).get(_CREATED, 0)
    identifier, sandbox = (_text(first.get(number, b"")) for number in (_CONTAINER_ID, _SANDBOX))
    return CriContainer(identifier, names, created, sandbox)


def _texts_of(message: t.Iterable[tuple[int, bytes]], number: int) -> dict[str, str]:
    """Return a map of strings, the field ``number`` of a message."""
    entries = (dict(grpc.fields(content)) for field, content in message if field == number)
    return {_text(entry.get(_KEY, b"")): _text(entry.get(_VALUE, b"")) for entry in entries}


def _information(reply: t.Iterable[tuple[int, bytes]]) -> dict[bytes, bytes]:
    """Return the map of a verbose reply."""
    entries = (dict(grpc.fields(content)) for number, content in reply if number == _INFO)
    return {entry.get(_KEY, b""): entry.get(_VALUE, b"") for entry in entries}


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
