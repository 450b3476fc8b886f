# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find device plugins and DRA drivers: their sockets, whether a program listens on these, and NVIDIA's processes.

ListAndWatch of a device plugin is never called. It would start a second stream in the plugin, and the plugin sends each
change of health to one stream only, so the kubelet could miss it (ListAndWatch in internal/plugin/server.go of
k8s-device-plugin 0.20).
"""

from __future__ import annotations

import os
import re
import stat
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc, unix_socket
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The socket on which the kubelet accepts registrations (pkg/apis/deviceplugin/v1beta1/constants.go of k8s.io/kubelet).
KUBELET_SOCKET = "kubelet.sock"
# pkg/apis/deviceplugin/v1beta1/api.proto of k8s.io/kubelet.
_OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
# Directories of the kubelet's root directory (pkg/kubelet/config/defaults.go of Kubernetes 1.34).
_DRIVERS, _REGISTRY = "plugins", "plugins_registry"
# The socket of a DRA driver in its directory (kubeletplugin/draplugin.go of k8s.io/dynamic-resource-allocation 0.34):
# dra.sock, or dra-UID.sock with rolling updates.
_DRA_SOCKET = re.compile(r"dra(?:-[^/]*)?\.sock")
# The registration socket, likewise: NAME-reg.sock or NAME-UID-reg.sock. The UID is that of the pod.
_REGISTRATION = re.compile(r"(.+?)(?:-[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12})?-reg\.sock")
# The path of a socket has at most 107 bytes (unix(7)).
_MAX_PATH = 107
# NVIDIA's plugin listens on nvidia-gpu.sock for nvidia.com/gpu (getPluginSocketPath in internal/plugin/server.go of
# k8s-device-plugin 0.20).
_NVIDIA_SOCKET = re.compile(r"nvidia-(.+)\.sock")
_NVIDIA_DOMAIN = "nvidia.com/"
# The name of the process of NVIDIA's plugin. The kernel cuts it to 15 bytes (proc_pid_comm(5)).
_PLUGIN_PROGRAM = "nvidia-device-plugin"
# The directories of the logs of containers, NAMESPACE_POD_UID/CONTAINER, which the kubelet removes with the pod
# (BuildContainerLogsDirectory in pkg/kubelet/kuberuntime/helpers.go of Kubernetes 1.34). The container is called
# nvidia-device-plugin-ctr in the Helm chart of k8s-device-plugin 0.20, and nvidia-device-plugin in gpu-operator v26.7.
_POD_LOGS, _PLUGIN_CONTAINERS = "/var/log/pods", ("nvidia-device-plugin-ctr", "nvidia-device-plugin")
# The default socket of NRI (pkg/api/plugin.go of containerd/nri 0.12), and the names of the program in the container of
# the toolkit (deployments/container/Dockerfile of nvidia-container-toolkit 1.20); the GPU operator uses the first.
_NRI_SOCKET, _TOOLKIT_PROGRAMS = "/run/nri/nri.sock", ("nvidia-toolkit", "nvidia-ctk-installer")

# Seconds for one socket, and for all sockets together. A plugin answers within milliseconds.
_SOCKET_TIMEOUT, _ALL_TIMEOUT = 2.0, 6.0
# The maximum number of sockets in one directory, and of drivers, that are inspected.
_MAX_SOCKETS = 64


class Socket(t.NamedTuple):
    """A socket of a plugin.

    ``resource`` is the one that NVIDIA's plugin serves on a socket of this name, None for other names. ``listens`` is
    whether a program listens on it, and ``answers`` whether that program answers a call. Both are None if unknown.
    """

    path: str
    resource: str | None = None
    listens: bool | None = None
    answers: bool | None = None


class Driver(t.NamedTuple):
    """A DRA driver: its name, its sockets, and the sockets by which it registers with the kubelet."""

    name: str
    sockets: tuple[Socket, ...]
    registration: tuple[Socket, ...]


class Probe:
    """Connects to sockets of a host, for at most a few seconds in all."""

    def __init__(self, host: hostfs.HostFS) -> None:
        self._host = host
        self._deadline = time.monotonic() + _ALL_TIMEOUT

    def call(self, path: str, resource: str | None) -> Socket:
        """Return whether a device plugin listens on ``path``, and whether it answers GetDevicePluginOptions."""
        unknown = Socket(path, resource)
        try:
            return self._try(unknown, lambda real, seconds: grpc.call(real, _OPTIONS, b"", seconds))
        except grpc.CallError:
            # It answers with an error, for example because it does not implement the call.
            return unknown._replace(listens=True, answers=True)
        except (OSError, ValueError):
            return unknown._replace(listens=True, answers=False)

    def connect(self, path: str) -> Socket:
        """Return whether a program listens on ``path``. Nothing is sent to it."""
        try:
            return self._try(Socket(path), _connect)._replace(answers=None)
        except OSError:
            # It has a listener that accepts no connection.
            return Socket(path, listens=True)

    def _try(self, unknown: Socket, work: t.Callable[[str, float], object]) -> Socket:
        """Return the result of ``work`` on a socket: it succeeded, nothing listens, or the socket cannot be used."""
        process_path = socket_path(self._host, unknown.path)
        left = self._deadline - time.monotonic()
        if process_path is None or left <= 0:
            return unknown
        try:
            work(process_path, min(left, _SOCKET_TIMEOUT))
        except ConnectionRefusedError:
            return unknown._replace(listens=False, answers=False)
        except (PermissionError, FileNotFoundError):
            return unknown
        return unknown._replace(listens=True, answers=True)


def _connect(process_path: str, seconds: float) -> None:
    with unix_socket.connect(process_path, seconds, 0):
        pass


def socket_path(host: hostfs.HostFS, path: str) -> str | None:
    """Return the process path of a socket; None if it is no socket, or if it cannot or must not be connected to."""
    if not host.live:
        return None
    try:
        process_path = host.real_path(path)
        is_socket = stat.S_ISSOCK(os.stat(process_path).st_mode)
    except (errors.HostError, OSError):
        return None
    return process_path if is_socket and len(os.fsencode(process_path)) <= _MAX_PATH else None


def device_plugins(host: hostfs.HostFS, probe: Probe) -> list[Socket]:
    """Return the sockets of device plugins, without that of the kubelet."""
    names = [name for name in host.readable_entries(checkpoint.DIRECTORY) if name.endswith(".sock")]
    found = []
    for name in [name for name in names if name != KUBELET_SOCKET][:_MAX_SOCKETS]:
        match = _NVIDIA_SOCKET.fullmatch(name)
        resource = _NVIDIA_DOMAIN + match.group(1) if match is not None else None
        found.append(probe.call(f"{checkpoint.DIRECTORY}/{name}", resource))
    return found


def dra_drivers(host: hostfs.HostFS, root_dir: str, probe: Probe) -> list[Driver]:
    """Return the DRA drivers, and whether a program listens on their sockets. Nothing is sent to them."""
    matches = map(_REGISTRATION.fullmatch, host.readable_entries(f"{root_dir}/{_REGISTRY}"))
    registry = [match for match in matches if match is not None]
    found: list[Driver] = []
    for name in host.readable_entries(f"{root_dir}/{_DRIVERS}"):
        folder = f"{root_dir}/{_DRIVERS}/{name}"
        sockets = [file for file in host.readable_entries(folder) if _DRA_SOCKET.fullmatch(file)][:_MAX_SOCKETS]
        if sockets and len(found) < _MAX_SOCKETS:
            own = [match[0] for match in registry if match[1] == name][:_MAX_SOCKETS]
            found.append(
                Driver(
                    name,
                    tuple(probe.connect(f"{folder}/{file}") for file in sockets),
                    tuple(probe.connect(f"{root_dir}/{_REGISTRY}/{file}") for file in own),
                )
            )
    return found


def plugin_processes(host: hostfs.HostFS) -> list[int]:
    """Return the processes of NVIDIA's device plugin that run as root."""
    names = processes.all_names(host) if host.live else {}
    return sorted(
        pid for pid, name in names.items() if name == _PLUGIN_PROGRAM[:15] and processes.uid_of(host, pid) == 0
    )


def has_nri_plugin(host: hostfs.HostFS) -> bool:
    """Return whether the engine has NRI and the container of NVIDIA's toolkit runs, which may then inject devices."""
    names = [name[:15] for name in _TOOLKIT_PROGRAMS]
    return (
        host.live
        and host.lexists(_NRI_SOCKET)
        and any(name in names and processes.uid_of(host, pid) == 0 for pid, name in processes.all_names(host).items())
    )


class PluginPod(t.NamedTuple):
    """A pod of NVIDIA's plugin: NAMESPACE/POD, the last log of the plugin, and how often the kubelet restarted it."""

    pod: str
    log: str
    restarts: int


def plugin_pods(host: hostfs.HostFS) -> list[PluginPod]:
    """Return the pods of NVIDIA's device plugin on the node, also those that end again and again."""
    found = []
    for name in host.readable_entries(_POD_LOGS):
        namespace, _separator, rest = name.partition("_")
        for container in _PLUGIN_CONTAINERS if rest else ():
            folder = f"{_POD_LOGS}/{name}/{container}"
            if host.exists(folder):
                # The number of restarts, with which the kubelet names the log of each attempt.
                logs = [file[: -len(".log")] for file in host.readable_entries(folder) if file.endswith(".log")]
                restarts = max([int(number) for number in logs if number.isdecimal()], default=0)
                found.append(PluginPod(f"{namespace}/{rest.partition('_')[0]}", f"{folder}/{restarts}.log", restarts))
    return sorted(found)
