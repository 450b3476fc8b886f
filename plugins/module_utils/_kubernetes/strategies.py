# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the containers of pods get the devices of NVIDIA's plugin, and with which program they were started.

The plugin passes devices on by environment variable, by mounts, or by CDI (device list strategies in api/config/v1 of
k8s-device-plugin 0.18).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI = "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"
STRATEGIES = (ENVVAR, VOLUME_MOUNTS, CDI_ANNOTATIONS, CDI_CRI)
_VARIABLE, _OPTION = "DEVICE_LIST_STRATEGY", "--device-list-strategy"
# A file of settings counts only where neither is set (cmd/nvidia-device-plugin/main.go). It is in the container and is
# not read, so the strategies are unknown then.
_FILE_VARIABLE, _FILE_OPTION = "CONFIG_FILE", "--config-file"
# Field numbers of ContainerAllocateResponse (pkg/apis/deviceplugin/v1beta1/api.proto of k8s.io/kubelet), and of the
# entries of its maps.
_ENVS, _ANNOTATIONS, _CDI_DEVICES = 1, 4, 5
_KEY, _VALUE = 1, 2
_VISIBLE, _MOUNTS = b"NVIDIA_VISIBLE_DEVICES", b"/var/run/nvidia-container-devices"
_ANNOTATION = b"cdi.k8s.io/"
# The specification of the plugin has the name of its kind (internal/cdi of k8s-device-plugin 0.18).
_SPECIFICATIONS = "/var/run/cdi/k8s.device-plugin.nvidia.com-*"
# The annotations of containerd's CRI (internal/cri/annotations of containerd 2.1).
_CRI = "io.kubernetes.cri."


def of_answer(message: bytes) -> tuple[str, ...]:
    """Return the strategies with which a plugin has answered an allocation. Raises ValueError for an invalid answer."""
    found = []
    for number, content in grpc.fields(message):
        entry = dict(grpc.fields(content))
        key, value = entry.get(_KEY, b""), entry.get(_VALUE, b"")
        if number == _ENVS and key == _VISIBLE:
            found.append(VOLUME_MOUNTS if value.startswith(_MOUNTS) else ENVVAR)
        elif number == _ANNOTATIONS and key.startswith(_ANNOTATION):
            found.append(CDI_ANNOTATIONS)
        elif number == _CDI_DEVICES:
            found.append(CDI_CRI)
    return tuple(name for name in STRATEGIES if name in found)


def strategies(host: hostfs.HostFS, pids: t.Iterable[int], answered: t.Iterable[str]) -> list[str]:
    """Return the strategies of NVIDIA's plugin; empty if they are unknown.

    They come from its processes ``pids``, from what the plugin has ``answered``, or from its CDI specification.
    """
    by_process = [_of_process(host, pid) for pid in pids]
    found = {name for names in by_process for name in names} or set(answered)
    if not found and host.glob(_SPECIFICATIONS):
        found = {CDI_ANNOTATIONS, CDI_CRI}
    return [name for name in STRATEGIES if name in found]


def _of_process(host: hostfs.HostFS, pid: int) -> tuple[str, ...]:
    environment = host.read_text(f"/proc/{pid}/environ").split("\0")
    variables = dict(entry.partition("=")[::2] for entry in environment)
    arguments = hostfs.command_line(host, pid)
    # An option replaces the value of the variable (urfave/cli 2, which the plugin uses).
    values = _values(arguments, _OPTION) or [variables.get(_VARIABLE, "")]
    names = [name.strip() for value in values for name in value.split(",")]
    known = tuple(name for name in STRATEGIES if name in names)
    if known or not arguments or variables.get(_FILE_VARIABLE) or _values(arguments, _FILE_OPTION):
        return known
    return (ENVVAR,)


def _values(arguments: t.Sequence[str], option: str) -> list[str]:
    following = zip(arguments, [*arguments[1:], ""])
    separate = [value for argument, value in following if argument == option]
    return [*separate, *(argument[len(option) + 1 :] for argument in arguments if argument.startswith(f"{option}="))]


class PodContainer(t.NamedTuple):
    """A running container of a pod, or its sandbox, and the program with which containerd runs it."""

    namespace: str
    pod: str
    uid: str
    container: str
    sandbox: bool
    program: str


def pod_containers(host: hostfs.HostFS) -> list[PodContainer]:
    """Return the running containers and sandboxes that containerd runs. Those without a pod have empty names."""
    found = []
    for bundle in gpu_containers.find_bundles(host, ""):
        program = gpu_containers.program_of(host, bundle.folder)
        if bundle.engine != "containerd" or not program:
            continue
        try:
            config = json_data.load(host.read_text(f"{bundle.folder}/config.json"))
        except ValueError:
            continue
        annotations: dict[str, t.Any] = json_data.get(config, "annotations", {})
        names = ("sandbox-namespace", "sandbox-name", "sandbox-uid", "container-name")
        namespace, pod, uid, container = (json_data.get(annotations, f"{_CRI}{name}", "") for name in names)
        sandbox = json_data.get(annotations, f"{_CRI}container-type", "") == "sandbox"
        found.append(PodContainer(namespace, pod, uid, container, sandbox, program))
    return found
