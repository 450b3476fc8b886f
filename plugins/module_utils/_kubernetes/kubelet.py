# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a kubelet: its root directory, and its CRI endpoint.

They come from its flags, its configuration file with drop-ins, and the defaults of its distribution. Nothing here
connects to the kubelet.
"""

from __future__ import annotations

import posixpath
import re
import string
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import config as k3s_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions

# The CRI endpoint in a configuration file, and the flag that overrides it (cmd/kubelet/app/options/options.go of
# Kubernetes 1.34).
_ENDPOINT, _ENDPOINT_FLAG = "containerRuntimeEndpoint", "--container-runtime-endpoint"
# Matches a file that gives it a value. Other files are not parsed, so that they do not need PyYAML: kubeadm writes an
# empty containerRuntimeEndpoint.
_MENTIONS_ENDPOINT = re.compile(_ENDPOINT.encode() + rb"[\"']?[ \t]*:[ \t]*(?!\"\"|''|[ \t\r\n]|\Z)")
# Matches a file of K3s or RKE2 that has arguments of the kubelet, one of which this collection reads. Others are not
# parsed, likewise.
_MENTIONS_ARGUMENTS = re.compile(rb"kubelet-arg.*(?:container-runtime-endpoint|root-dir|config)", re.DOTALL)
# The suffix of drop-ins (cmd/kubelet/app/server.go of Kubernetes 1.28 and newer).
_DROP_IN = ".conf"
# The sockets of cri-dockerd: its own (packaging/systemd of cri-dockerd 0.3), that of K3s and RKE2
# (pkg/agent/cridockerd of K3s 1.34), and that of the kubelet before 1.24.
_DOCKER_SOCKETS = ("/run/cri-dockerd.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock", "/run/dockershim.sock")
_K3S_DOCKER_ENDPOINT = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock"
# The path of the socket in an endpoint, whose scheme is optional. A host has no effect (parseEndpoint() in
# staging/src/k8s.io/cri-client/pkg/util/util_unix.go of Kubernetes 1.34).
_SOCKET = re.compile(r"(?:unix:(?:(?!//)|//[^/?#]*))?(/[^?#]*)", re.IGNORECASE)


class KubeletSettings(t.NamedTuple):
    """The settings of one kubelet.

    ``files`` are the configuration files that exist. ``problems`` are files that could not be read, and
    ``missing_package`` is the Python package that they need. ``endpoint`` is empty if such a file may set it.
    """

    root_dir: str
    endpoint: str
    files: tuple[str, ...]
    problems: tuple[errors.Problem, ...] = ()
    missing_package: str | None = None


def read_settings(host: hostfs.HostFS, found: distributions.FoundKubelet) -> KubeletSettings:
    """Return the settings of a kubelet. A file that cannot be read is a problem, and its settings are unknown."""
    problems: list[errors.Problem] = []
    in_files: list[str] = []
    is_rancher = found.distribution.name in (distributions.K3S, distributions.RKE2)
    # A running kubelet of RKE2 has the arguments in its command line.
    if is_rancher and (found.pid is None or found.distribution.in_process):
        try:
            in_files = _rancher_arguments(host, found)
        except errors.NvidiaError as error:
            problems.append(errors.Problem.of(error))
    flags = _Flags([*in_files, *_arguments(host, found)])
    endpoint = ""
    files = [path for path in _files(host, found, flags) if host.exists(path)]
    for path in files:
        try:
            endpoint = _endpoint_in(host, path) or endpoint
        except errors.NvidiaError as error:
            problems.append(errors.Problem.of(error))
    root_dir = flags.last("--root-dir")
    endpoint = flags.last(_ENDPOINT_FLAG) or endpoint
    if is_rancher:
        try:
            endpoint = _rancher_endpoint(host, found) or endpoint
        except errors.NvidiaError as error:
            problems.append(errors.Problem.of(error))
    is_missing = any(problem.code == errors.MissingPackageError.code for problem in problems)
    return KubeletSettings(
        posixpath.normpath(root_dir) if root_dir.startswith("/") else found.distribution.root_dir,
        endpoint or ("" if problems else found.distribution.endpoint),
        tuple(files),
        tuple(dict.fromkeys(problems)),
        "yaml" if is_missing else None,
    )


# -- flags -----------------------------------------------------------------------------------------------------------


class _Flags:
    """The flags of a kubelet: ``--name=value`` or ``--name value``, of which the last one has effect."""

    def __init__(self, arguments: t.Sequence[str]) -> None:
        self._arguments = arguments

    def last(self, name: str) -> str:
        """Return the value of a flag; empty if it is not set."""
        found = ""
        for number, argument in enumerate(self._arguments):
            flag, sign, value = argument.partition("=")
            if flag == name:
                found = value if sign else "".join(self._arguments[number + 1 : number + 2])
        return found


def _arguments(host: hostfs.HostFS, found: distributions.FoundKubelet) -> list[str]:
    """Return the arguments of the kubelet: those of its process, else those that its unit or its file has."""
    distribution = found.distribution
    if distribution.arguments:
        return _arguments_in(host.read_text(distribution.arguments, hostfs.UNIT_BYTES))
    if found.pid is not None and not distribution.in_process:
        return list(hostfs.command_line(host, found.pid)[1:])
    if distribution.name == distributions.KUBELET:
        return list(found.unit.arguments[1:])
    # K3s and RKE2 get the flags of the kubelet as values of a flag of their own.
    return [_flag(value) for value in found.unit.flag_values("--kubelet-arg")]


def _arguments_in(text: str) -> list[str]:
    """Return the arguments in a file of MicroK8s, whose quotes have no effect.

    ReadArgsFromFile() in the patch "Kubelite integration" of MicroK8s 1.27 to 1.36.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    plain = re.sub("[\"']", "", "\n".join(lines))
    return string.Template(plain).safe_substitute(distributions.SNAP_VARIABLES).split()


def _flag(value: t.Any) -> str:
    """Return a value of ``kubelet-arg`` as a flag, with or without its dashes (GetArgs() of K3s)."""
    text = str(value)
    return text if text.startswith("--") else f"--{text}"


def _rancher_arguments(host: hostfs.HostFS, found: distributions.FoundKubelet) -> list[str]:
    """Return the arguments of the kubelet in the configuration files of K3s or RKE2.

    Raises NvidiaError if a file cannot be read, and MissingPackageError if PyYAML is needed and missing.
    """
    arguments: list[str] = []
    for path in k3s_config.RancherSettings(
        k3s_config.RancherDistribution(found.distribution.name), host, found.unit
    ).files():
        content = host.read(path, hostfs.JSON_BYTES)
        if content is None or not _MENTIONS_ARGUMENTS.search(content):
            continue
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
            yaml_document,
        )

        data = yaml_document.parse(path, content)
        # A later file replaces the values, unless the key ends in + (pkg/configfilearg/parser.go of K3s 1.34).
        for key, appends in (("kubelet-arg", False), ("kubelet-arg+", True)):
            values = data.get(key) if isinstance(data, dict) else None
            if values is not None:
                added = [_flag(value) for value in (values if isinstance(values, list) else [values])]
                arguments = [*arguments, *added] if appends else added
    return arguments


# -- configuration files ---------------------------------------------------------------------------------------------


def _files(host: hostfs.HostFS, found: distributions.FoundKubelet, flags: _Flags) -> t.Iterator[str]:
    """Yield the configuration file and its drop-ins, in the order in which the kubelet merges them."""
    distribution = found.distribution
    main = flags.last("--config") or distribution.config
    if main.startswith("/"):
        yield main
    folder = flags.last("--config-dir")
    if not folder and distribution.config_dir:
        folder = in_data_dir(host, found, distribution.config_dir)
    if folder.startswith("/"):
        names = [name for name in host.readable_entries(folder) if name.endswith(_DROP_IN)]
        yield from (f"{folder.rstrip('/')}/{name}" for name in names[: hostfs.DROP_INS])


def in_data_dir(host: hostfs.HostFS, found: distributions.FoundKubelet, path: str) -> str:
    """Return a path relative to the data directory of K3s or RKE2 as an absolute one."""
    distribution = k3s_config.RancherDistribution(found.distribution.name)
    return f"{k3s_config.data_dir(distribution, host, found.unit)}/{path}"


def _endpoint_in(host: hostfs.HostFS, path: str) -> str:
    """Return the CRI endpoint in one file; empty if it does not set one.

    Raises NvidiaError if it cannot be read or is invalid, and MissingPackageError if PyYAML is needed and missing.
    """
    content = host.read(path, hostfs.JSON_BYTES)
    if content is None or not _MENTIONS_ENDPOINT.search(content):
        return ""
    # Imported here, because most configuration files set none.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document  # noqa: PLC0415

    data = yaml_document.parse(path, content)
    if not isinstance(data, dict):
        advice = "Correct the file. The kubelet does not start with it."
        raise errors.ConfigurationError(path, "the file contains no mapping of settings", advice)
    return json_data.get(data, _ENDPOINT, "")


def _rancher_endpoint(host: hostfs.HostFS, found: distributions.FoundKubelet) -> str:
    """Return the CRI endpoint in the settings of K3s or RKE2; empty if they start their own containerd."""
    settings = k3s_config.RancherSettings(k3s_config.RancherDistribution(found.distribution.name), host, found.unit)
    if settings.value(k3s_config.DOCKER).lower() == "true":
        return _K3S_DOCKER_ENDPOINT
    return settings.value(k3s_config.ENDPOINT)


# -- the engine ------------------------------------------------------------------------------------------------------


def target_of_endpoint(host: hostfs.HostFS, endpoint: str, distribution: str) -> str | None:
    """Return the target of the engine behind a CRI endpoint, such as ``containerd/k3s``; None if it is unknown.

    K3s and RKE2 use the same socket, so of several engines that of ``distribution`` is returned.
    """
    path = _SOCKET.match(endpoint)
    socket = _resolved(host, path[1]) if path is not None else ""
    if not socket:
        return None
    if socket in [_resolved(host, path) for path in _DOCKER_SOCKETS]:
        return "docker"
    found = [
        target
        for target in engines_registry.targets_on(host)
        if flavors.FACTS[target.engine].cri and _resolved(host, _socket_of(host, target)) == socket
    ]
    found.sort(key=lambda target: target.flavor != distribution)
    return str(found[0]) if found else None


def _socket_of(host: hostfs.HostFS, target: engines_registry.Target) -> str:
    engine = target.load()
    try:
        return engine.inspect(host).socket
    except errors.NvidiaError:
        # A file of the engine cannot be read, which the part on engines reports.
        return str(getattr(engine, "socket", ""))


def _resolved(host: hostfs.HostFS, path: str) -> str:
    if not path.startswith("/"):
        return ""
    try:
        return host.resolve("/run" + path[len("/var/run") :] if path.startswith("/var/run/") else path)
    except errors.HostError:
        return ""
