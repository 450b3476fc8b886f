# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start a copy of all that decides about devices of an existing container, and of nothing else.

The copy has no volume, network, secret or command of the container. It only waits until it is measured, and is removed
in any case. Its engine, runtime and toolkit decide about it as about the container. Where the record of the engine does
not have the whole request, there is no copy.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri, grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import containers as verify_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import cri_pods, host_programs, podman_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import search

    Data = t.Mapping[str, t.Any]


class Tried(t.NamedTuple):
    """The result of a copy. Without ``error`` and ``reason``, it was started and measured.

    - ``error``: the engine's own message, verbatim, if it refused to create or to start the copy.
    - ``reason``: why there is no answer: no copy was started, or it ended too early. A sentence without full stop.
    - ``advice``: what helps against ``reason``, in sentences. Empty: unknown.
    - ``groups_known``: whether the copy has the groups of the container. Those of a user without a group (such as 1000)
      are in the image, which the copy does not have, so permissions of groups say nothing about the container.
    - ``cleanup_error``: what could not be removed.
    """

    error: str = ""
    reason: str = ""
    advice: str = ""
    groups_known: bool = True
    cleanup_error: str = ""


class _Copy(t.NamedTuple):
    containers: verify_containers.Containers
    spec: verify_containers.ContainerSpec
    groups_known: bool = True


class _NoCopyError(Exception):
    """The reason why a container cannot be copied."""


def try_copy(
    container: explain_record.Container,
    engine: search.EngineState,
    image: str | None,
    host: hostfs.HostFS,
    run: core_plan.Runner,
    *,
    measure: t.Callable[[int], None],
    timeout: float = 60.0,
) -> Tried:
    """Start a copy of ``container``, call ``measure`` with the ID of its first process, and remove the copy.

    ``image`` is for pods, has to contain `sh`, and is not pulled. Without it, the pause image of the pod is used.
    ``measure`` must not raise an error. It is called again if a kubelet has ended the pod: the last call counts, and
    only if the result has no ``reason``. ``timeout`` in seconds is for the start. Problems of the host or the engine
    raise nothing.
    """
    try:
        copy = _prepare(container, engine, image, host, run)
        spec = copy.spec._replace(measure=measure, timeout=timeout)
        # Only the holder of the lock starts containers, so all others of this collection are leftovers.
        with lock.host_lock(host), lock.interruptible():
            tried = _try(copy.containers, spec)
        return tried._replace(groups_known=copy.groups_known, cleanup_error=copy.containers.cleanup_error)
    except _NoCopyError as error:
        return Tried(reason=str(error))
    except host_programs.HostProgramsError as error:
        return Tried(reason=error.problem.rstrip("."))
    except errors.HostError as error:
        return Tried(reason=str(error).rstrip("."))


def _try(containers: verify_containers.Containers, spec: verify_containers.ContainerSpec) -> Tried:
    try:
        result = containers.run(spec)
    except verify_containers.ContainerError as error:
        if error.no_program:
            return Tried(reason=f"The image {spec.image} has no {_SHELL}", advice=f"Set another {errors.option:image}.")
        return Tried(error.refusal) if error.refusal else Tried(reason=error.problem, advice=error.advice)
    return Tried(reason="The copy ended before it was measured" if result.status else "")


def _prepare(
    container: explain_record.Container,
    engine: search.EngineState,
    image: str | None,
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> _Copy:
    """Return the copy. Raises _NoCopyError, HostProgramsError or HostError."""
    row = flavors.FLAVORS.get((container.engine, core_constants.SYSTEM))
    if row is not None and not row.daemon and engine.binary:
        return _copy_of_podman(container, engine.binary, host, run)
    if row is not None and row.daemon and engine.socket:
        if flavors.FACTS[container.engine].cri:
            return _copy_of_cri(container, engine.socket, image, host)
        return _copy_of_docker(container, engine.socket, host)
    raise _NoCopyError("No engine of this host can start a copy of the container")


# -- what all engines have in common -----------------------------------------------------------------------------------

_SHELL = "sh"
# The standard input stays open and gets nothing, so `read` waits without using the processor.
_WAIT = ("-c", "read x")
# The toolkit reads the names of devices from mounts of /dev/null below this directory.
_MOUNTS, _NULL = "/var/run/nvidia-container-devices/", "/dev/null"
_NUMERIC_USER = re.compile(r"([0-9]*)(:[0-9]+)?")


def _spec_of_programs(
    container: explain_record.Container, request: t.Any, host: hostfs.HostFS
) -> verify_containers.ContainerSpec:
    """Return a container of the host's shell that waits. Raises HostProgramsError or HostError."""
    archive, command = host_programs.archive(host), (host_programs.SHELL, *_WAIT)
    spec = verify_containers.ContainerSpec("", command, "", container.variables, 0)
    return spec._replace(archive=archive, request=request)


def _part(data: t.Any, *names: str) -> Data:
    """Return the object at this place in ``data``, empty if there is none."""
    for name in names:
        data = json_data.get(data, name, {})
    return t.cast("Data", data)


def _entries(data: Data, name: str) -> list[t.Any]:
    return json_data.get(data, name, [])


def _device_mounts(entries: list[t.Any], source: str, destination: str) -> list[str]:
    """Return the paths of the mounts that request devices."""
    pairs = [(json_data.get(entry, source, ""), json_data.get(entry, destination, "")) for entry in entries]
    return [path for origin, path in pairs if origin == _NULL and path.startswith(_MOUNTS)]


def _knows_groups(user: str, groups: t.Iterable[str]) -> bool:
    """Return whether the groups of a user do not depend on its image. Raises _NoCopyError for names."""
    numeric = _NUMERIC_USER.fullmatch(user)
    names = [group for group in groups if not group.isdecimal()]
    if numeric is None or names:
        raise _NoCopyError(f"{(names or [user])[0]} is a user or a group of the image, which the copy does not have")
    return bool(numeric[2]) or int(numeric[1] or 0) == 0


# -- Docker and Podman -------------------------------------------------------------------------------------------------

# An older Docker does not have all of them.
_HOST_CONFIG = (
    "Annotations", "DeviceCgroupRules", "DeviceRequests", "Devices", "GroupAdd", "Privileged", "Runtime", "UsernsMode",
)  # fmt: skip


def _copy_of_docker(container: explain_record.Container, socket: str, host: hostfs.HostFS) -> _Copy:
    """Return the copy of a container in the answer to GET /containers/ID/json."""
    data = container.data
    config, settings = _part(data, "Config"), _part(data, "HostConfig")
    if not settings:
        raise _NoCopyError("Docker does not record what the container requests")
    user = json_data.get(config, "User", "")
    groups_known = _knows_groups(user, json_data.texts(settings.get("GroupAdd")))
    copied = {name: settings[name] for name in _HOST_CONFIG if settings.get(name)}
    security = json_data.texts(settings.get("SecurityOpt"))
    copied["SecurityOpt"] = [option for option in security if option.startswith("label")]
    mounts = _device_mounts(_entries(data, "Mounts"), "Source", "Destination")
    # In a bind, a colon in the path, as in the name of a MIG device, would be a separator.
    copied["Mounts"] = [{"Type": "bind", "Source": _NULL, "Target": path, "ReadOnly": True} for path in mounts]
    request = {"User": user, "OpenStdin": True, "HostConfig": copied}
    spec = _spec_of_programs(container, request, host)
    return _Copy(verify_containers.DockerContainers(host.real_path(socket), socket), spec, groups_known)


# Options with a value. Podman accepts the global ones after `run`, too, except --module (tried with 4.3, 5.4 and 5.8).
_OPTIONS = (
    "--annotation", "--device", "--device-cgroup-rule", "--gpus", "--group-add", "--security-opt", "--userns",
    "--cdi-spec-dir", "--hooks-dir", "--runtime", "--runtime-flag",
)  # fmt: skip


def _copy_of_podman(
    container: explain_record.Container, binary: str, host: hostfs.HostFS, run: core_plan.Runner
) -> _Copy:
    """Return the copy of a container in the output of `podman container inspect`."""
    data = container.data
    config = _part(data, "Config")
    arguments = explain_record.arguments_of_podman(data)
    if not arguments:
        raise _NoCopyError("Podman does not record what the container requests")
    options = _options(arguments)
    user = json_data.get(config, "User", "")
    groups = [group for name, value in options if name == "--group-add" for group in value.split(",")]
    groups_known = _knows_groups(user, [group for group in groups if group != "keep-groups"])
    namespace = json_data.get(_part(data, "HostConfig"), "UsernsMode", "")
    if namespace.startswith("container:") and "--userns" not in dict(options):
        raise _NoCopyError("The container has the user namespace of its pod")
    mounts = _device_mounts(_entries(data, "Mounts"), "Source", "Destination")
    request = ["--interactive", *(f"{name}={value}" for name, value in options), *([f"--user={user}"] if user else [])]
    request += [f"--mount=type=bind,src={_NULL},dst={path},ro" for path in mounts]
    spec = _spec_of_programs(container, request, host)
    return _Copy(podman_containers.PodmanContainers(host, run, binary), spec, groups_known)


def _options(arguments: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return those of the options in ``arguments`` that decide about devices, with their values."""
    words = iter(arguments)
    found: list[tuple[str, str]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if name == "--module":
            raise _NoCopyError(f"The container was created with `podman {name}`")
        if name == "--privileged":
            found.append((name, value or "true"))
        elif name in _OPTIONS:
            value = value if equals else next(words, "")
            if name != "--security-opt" or value.startswith("label"):
                found.append((name, value))
    return found


# -- CRI (runtime.v1 of k8s.io/cri-api; the numbers are its field numbers) ---------------------------------------------

# NamespaceMode.NODE of a UserNamespace.
_NODE = 2


def _copy_of_cri(container: explain_record.Container, socket: str, image: str | None, host: hostfs.HostFS) -> _Copy:
    """Return the copy of a container in a verbose ContainerStatus, with the request and the effective process."""
    config = _part(container.data, "info", "config")
    process = _part(container.data, "info", "runtimeSpec", "process")
    if not config or not process:
        raise _NoCopyError(f"{container.engine} does not record what the container requests")
    security = _part(config, "linux", "security_context")
    user_namespace = _part(security, "namespace_options", "userns_options")
    if user_namespace and json_data.get(user_namespace, "mode", 0) != _NODE:
        raise _NoCopyError("The pod has a user namespace of its own")
    try:
        pod = cri.pod_status(host.real_path(socket), json_data.get(container.data, "sandbox", ""))
    except (OSError, ValueError) as error:
        raise _NoCopyError(f"{container.engine} does not report the pod: {str(error) or 'empty answer'}") from error
    pause = json_data.get(pod.info, "image", "")
    if not image and not pause:
        raise _NoCopyError(f"{container.engine} does not report the pause image")
    # A kubelet passes the name of a slice if the runtime lets systemd create control groups.
    parent = json_data.get(_part(pod.info, "config", "linux"), "cgroup_parent", "")
    more_of_pod = _map(7, _part(pod.info, "config", "annotations"))
    if security.get("privileged") is True:
        more_of_pod += grpc.field(8, grpc.field(2, grpc.field(6, 1)))
    request = (more_of_pod, _container_fields(config, security, _part(process, "user")))
    environment, command = container.variables, (_SHELL, *_WAIT) if image else ()
    spec = verify_containers.ContainerSpec(image or pause, command, pod.handler, environment, 0, request=request)
    pods = cri_pods.Cri(host, container.engine, socket, pause or None, parent.endswith(".slice"))
    return _Copy(cri_pods.CriPods(pods), spec)


def _container_fields(config: Data, security: Data, user: Data) -> bytes:
    """Return fields of a ContainerConfig. ``user`` is that of the process, because names are in its image."""
    # An NRI plugin may select a container of a pod by its name. The field 12 opens the standard input.
    fields = grpc.field(1, _texts(_part(config, "metadata"), "name")) + grpc.field(12, 1)
    for path in _device_mounts(_entries(config, "mounts"), "host_path", "container_path"):
        fields += grpc.field(7, grpc.field(1, path) + grpc.field(2, _NULL) + grpc.field(3, 1))
    for device in _entries(config, "devices"):
        fields += grpc.field(8, _texts(device, "container_path", "host_path", "permissions"))
    for device in _entries(config, "CDI_devices"):
        fields += grpc.field(17, _texts(device, "name"))
    fields += _map(10, _part(config, "annotations"))
    context = grpc.field(2, 1) if security.get("privileged") is True else b""
    selinux = _part(security, "selinux_options")
    context += grpc.field(4, _texts(selinux, "user", "role", "type", "level")) if selinux else b""
    context += grpc.field(5, grpc.field(1, json_data.get(user, "uid", 0)))
    context += grpc.field(12, grpc.field(1, json_data.get(user, "gid", 0)))
    for group in _entries(user, "additionalGids"):
        context += grpc.field(8, group) if isinstance(group, int) else b""
    return fields + grpc.field(15, grpc.field(2, context))


def _texts(data: t.Any, *names: str) -> bytes:
    """Return a message whose first fields are these strings."""
    return b"".join(grpc.field(number, json_data.get(data, name, "")) for number, name in enumerate(names, 1))


def _map(number: int, data: Data) -> bytes:
    """Return a map of strings as the field ``number``."""
    texts = [(key, value) for key, value in data.items() if isinstance(value, str)]
    return b"".join(grpc.field(number, grpc.field(1, key) + grpc.field(2, value)) for key, value in texts)
