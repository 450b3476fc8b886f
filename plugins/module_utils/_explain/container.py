# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what the engines report about an existing container: Docker, Podman, a CRI, and OCI bundles.

All functions are pure. ``find.py`` gets the data. A value of a wrong type is treated as missing.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import rules as explain_rules
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri

if t.TYPE_CHECKING:
    Data = t.Mapping[str, t.Any]


# The states of a container, for all engines.
CREATED, RUNNING, EXITED = "created", "running", "exited"
_EXITED = ("exited", "stopped", "dead", "removing", "stopping")
_RUNNING = ("running", "paused", "restarting")
# ContainerState of k8s.io/cri-api (api.proto).
_CRI_STATES = (CREATED, RUNNING, EXITED)
_SYS_ADMIN = "CAP_SYS_ADMIN"
_SHIM_OF_RUNC = "io.containerd.runc."
# Docker's device driver for CDI (daemon/cdi.go of moby).
_CDI_DRIVER = "cdi"


class GpuRequest(t.NamedTuple):
    """A request of Docker for GPUs (`--gpus`), by their number or by their names. -1 requests all."""

    number: int
    identifiers: tuple[str, ...]
    capabilities: tuple[str, ...]


class User(t.NamedTuple):
    """The user and the groups of a process, as the host sees them.

    ``is_root`` says that it may open all files of the host. None: the ID is not mapped to one of the host.
    """

    uid: int | None
    gids: tuple[int, ...] = ()
    is_root: bool = False


class Container(t.NamedTuple):
    """A container as its engine reports it.

    - ``identifier``, ``name``: the full ID, and the name by which people know it: in a pod NAMESPACE/POD/NAME.
    - ``in_pod``: whether it is known that a kubelet made it. Containers of a CRI do not need it.
    - ``state``: CREATED, RUNNING or EXITED. ``error`` is the engine's reason why it did not start.
    - ``pid``: its first process, None if it does not run.
    - ``runtime``: the name of the runtime; ``program``: the path or name of its program. Empty: unknown.
    - ``runtime_known``: whether the engine has a runtime of this name.
    - ``environment``, ``annotations``, ``mounts`` (source, destination), ``privileged``: the request.
    - ``received``: the environment that the runtime received, if the engine reports it. None: it is computed.
    - ``cdi_devices``: the devices that the engine itself has to add. ``by_annotation`` says that annotations name them.
    - ``nri_devices``: the devices that annotations of its pod request of the toolkit's NRI plugin.
    - ``as_paths``: names of CDI devices that the engine has taken for the paths of devices.
    - ``gpus``: requests of Docker for GPUs.
    - ``request_known``: whether the engine reports which CDI devices were requested.
    - ``user``: the user of its first process. None: it is not known.
    - ``config``: the OCI config of the started container. None: it has none, or that is not known. ``config_is_final``
      says that it has all changes of the runtime, too.
    """

    engine: str
    identifier: str
    name: str
    state: str
    pid: int | None = None
    error: str = ""
    runtime: str = ""
    program: str = ""
    runtime_known: bool = True
    environment: t.Mapping[str, str] = core_plan.NOTHING
    annotations: t.Mapping[str, str] = core_plan.NOTHING
    mounts: tuple[tuple[str, str], ...] = ()
    privileged: bool = False
    received: t.Mapping[str, str] | None = None
    cdi_devices: tuple[str, ...] = ()
    by_annotation: bool = False
    nri_devices: tuple[str, ...] = ()
    as_paths: tuple[str, ...] = ()
    gpus: tuple[GpuRequest, ...] = ()
    request_known: bool = True
    user: User | None = None
    config: Data | None = None
    config_is_final: bool = True
    in_pod: bool = False

    @property
    def shown(self) -> str:
        """The container for messages: its name, and the ID as engines shorten it."""
        short = self.identifier[:12]
        if not short:
            return f"{self.name} ({self.engine})"
        return f"{self.name} ({self.engine}, {short})" if self.name and self.name != self.identifier else short

    def image(self, environment: t.Mapping[str, str]) -> explain_rules.Image:
        """Return what the toolkit's programs read, with ``environment``."""
        return explain_rules.Image(environment, self.mounts, self.annotations, self.privileged)

    @property
    def hooks(self) -> tuple[str, ...]:
        """The programs of the hooks of the started container."""
        return hooks_of(self.config or core_plan.NOTHING)


# -- OCI config --------------------------------------------------------------------------------------------------------


def environment_of(entries: t.Any, first: bool = False) -> dict[str, str]:
    """Return variables from a list of NAME=VALUE; of a repeated name the last value, or the ``first``.

    Engines and the runtime append the variables of CDI specifications, so the first value is the container's own.
    """
    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else ():
        name, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if equals and not (first and name in found):
            found[name] = value
    return found


def mounts_of(entries: t.Any, source: str = "source", destination: str = "destination") -> tuple[tuple[str, str], ...]:
    """Return the pairs of source and destination in a list of mounts."""
    found = entries if isinstance(entries, list) else []
    pairs = [(json_data.get(entry, source, ""), json_data.get(entry, destination, "")) for entry in found]
    return tuple(pair for pair in pairs if pair[1])


def hooks_of(config: Data) -> tuple[str, ...]:
    """Return the programs of all hooks in an OCI config."""
    stages: dict[str, t.Any] = json_data.get(config, "hooks", {})
    hooks = [hook for stage in stages.values() if isinstance(stage, list) for hook in stage]
    return tuple(path for path in (json_data.get(hook, "path", "") for hook in hooks) if path)


def is_privileged(config: Data) -> bool:
    """Return whether the bounding set of an OCI config has CAP_SYS_ADMIN."""
    process: dict[str, t.Any] = json_data.get(config, "process", {})
    sets: dict[str, t.Any] = json_data.get(process, "capabilities", {})
    return _SYS_ADMIN in json_data.get(sets, "bounding", [])


def user_of(config: Data | None) -> User | None:
    """Return the user of the process in an OCI config."""
    config = config or core_plan.NOTHING
    process: dict[str, t.Any] = json_data.get(config, "process", {})
    user: dict[str, t.Any] = json_data.get(process, "user", {})
    if not process:
        return None
    linux: dict[str, t.Any] = json_data.get(config, "linux", {})
    uid, gid = json_data.get(user, "uid", 0), json_data.get(user, "gid", 0)
    more: list[t.Any] = json_data.get(user, "additionalGids", [])
    groups = [_mapped(number, linux, "gidMappings") for number in (gid, *more) if isinstance(number, int)]
    own = _mapped(uid, linux, "uidMappings")
    gids = tuple(number for number in groups if number is not None)
    return User(own, gids, is_root=own == 0 and not linux.get("uidMappings"))


def _mapped(number: int, linux: Data, kind: str) -> int | None:
    """Return the ID of the host for an ID of the container (config-linux.md of the OCI runtime specification)."""
    mappings: list[t.Any] = json_data.get(linux, kind, [])
    for mapping in mappings:
        start, size = json_data.get(mapping, "containerID", 0), json_data.get(mapping, "size", 0)
        if start <= number < start + size:
            return json_data.get(mapping, "hostID", 0) + number - start
    return None if mappings else number


def _texts(value: t.Any) -> dict[str, str]:
    """Return the entries of a JSON object whose values are strings."""
    found = value if isinstance(value, dict) else {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def from_bundle(engine: str, identifier: str, config: Data, program: str, pid: int | None) -> Container:
    """Return a container of which only the OCI config is known. It is running, because engines remove its bundle."""
    process: dict[str, t.Any] = json_data.get(config, "process", {})
    variables: list[t.Any] = json_data.get(process, "env", [])
    annotations = _texts(config.get("annotations"))
    return Container(
        engine,
        identifier,
        annotations.get("nerdctl/name", ""),
        RUNNING,
        pid,
        program=program,
        runtime=posixpath.basename(program),
        environment=environment_of(variables, first=True),
        annotations=annotations,
        mounts=mounts_of(config.get("mounts")),
        privileged=is_privileged(config),
        request_known=False,
        user=user_of(config),
        config=config,
    )


# -- Docker and Podman -------------------------------------------------------------------------------------------------


def from_docker(data: Data, programs: t.Mapping[str, str], config: Data | None) -> Container:
    """Return the container in the answer to GET /containers/ID/json.

    ``programs`` are the programs of Docker's runtimes by name. ``config`` is the OCI config of its bundle.
    """
    settings: dict[str, t.Any] = json_data.get(data, "Config", {})
    host: dict[str, t.Any] = json_data.get(data, "HostConfig", {})
    requests: list[t.Any] = json_data.get(host, "DeviceRequests", [])
    runtime = json_data.get(host, "Runtime", "")
    pod_names = cri.pod_names(json_data.get(settings, "Labels", {}))
    devices: list[t.Any] = json_data.get(host, "Devices", [])
    paths = (json_data.get(entry, "PathOnHost", "") for entry in devices)
    cdi = [entry for entry in requests if json_data.get(entry, "Driver", "") == _CDI_DRIVER]
    inspected = _inspected("docker", data, config)
    return inspected._replace(
        name=pod_names[0] if pod_names else inspected.name,
        in_pod=bool(pod_names),
        runtime=runtime,
        program=programs.get(runtime, "") or runtime,
        runtime_known=not programs or runtime in ("", *programs) or _is_shim(runtime),
        environment=environment_of(settings.get("Env")),
        mounts=mounts_of(data.get("Mounts"), "Source", "Destination"),
        privileged=bool(host.get("Privileged")) or _adds_sys_admin(host.get("CapAdd")),
        cdi_devices=tuple(name for entry in cdi for name in json_data.texts(json_data.get(entry, "DeviceIDs", []))),
        # A client before 25.0 passes these names on as paths, and such a daemon has no other way.
        as_paths=tuple(filter(explain_rules.is_qualified, paths)),
        gpus=tuple(_gpu_request(entry) for entry in requests if entry not in cdi),
        user=user_of(config) or _user_named(json_data.get(settings, "User", ""), host.get("GroupAdd")),
    )


def _user_named(text: str, added: t.Any) -> User | None:
    """Return the user of a container that does not run, from numbers: those of names are in its image."""
    uid, _colon, gid = text.partition(":")
    groups = [gid or "0", *json_data.texts(added)]
    if not all(part.isdecimal() for part in (uid or "0", *groups)):
        return None
    return User(int(uid or 0), tuple(map(int, groups)), is_root=int(uid or 0) == 0)


def _is_shim(runtime: str) -> bool:
    """Return whether Docker takes a name for that of a shim, which it does not register.

    isPermissibleC8dRuntimeName() in daemon/runtime_unix.go of moby 28.
    """
    return "." in runtime and "/" not in runtime


def _adds_sys_admin(added: t.Any) -> bool:
    names = {name.upper().replace("CAP_", "", 1) for name in json_data.texts(added)}
    return bool(names & {"SYS_ADMIN", "ALL"})


def _gpu_request(entry: t.Any) -> GpuRequest:
    # An OR of ANDs. The first alternative is the usual one.
    alternatives: list[t.Any] = json_data.get(entry, "Capabilities", [])
    chosen = json_data.texts(alternatives[0]) if alternatives else ()
    return GpuRequest(json_data.get(entry, "Count", 0), json_data.texts(json_data.get(entry, "DeviceIDs", [])), chosen)


def from_podman(data: Data, config: Data | None) -> Container:
    """Return the container in the output of `podman container inspect`."""
    settings: dict[str, t.Any] = json_data.get(data, "Config", {})
    program = json_data.get(data, "OCIRuntime", "")
    # Only the command line sets it: containers of the API and of kube play have none (cmd/podman/containers of 5.4).
    command = json_data.texts(settings.get("CreateCommand"))
    # Then the error of the start may contain the name of a CDI device.
    named = cdi_options(command) or (() if command else _names_in(_error_of(data)))
    return _inspected("podman", data, config)._replace(
        runtime=posixpath.basename(program),
        program=program,
        # After a start, these are the variables of the OCI config.
        environment=environment_of(settings.get("Env"), first=True),
        annotations=_texts(settings.get("Annotations")),
        mounts=mounts_of(data.get("Mounts"), "Source", "Destination"),
        privileged=_SYS_ADMIN in json_data.get(data, "BoundingCaps", []),
        cdi_devices=named,
        request_known=bool(command or named),
    )


def _names_in(text: str) -> tuple[str, ...]:
    """Return the CDI devices that a text contains."""
    words = (word.strip("\"'`,;:.()[]") for word in re.split(r"[\s,]+", text))
    return tuple(dict.fromkeys(filter(explain_rules.is_qualified, words)))


_DEVICE_OPTION = re.compile(r"--device(?:=(.*))?\Z", re.DOTALL)
_GPUS_OPTION = re.compile(r"--gpus(?:=(.*))?\Z", re.DOTALL)


def cdi_options(command: t.Sequence[str]) -> tuple[str, ...]:
    """Return the CDI devices in the command line that created a container of Podman.

    Podman reports them nowhere else. `--gpus all` is `--device nvidia.com/gpu=all` (pkg/specgenutil of Podman 5.0). The
    command of the container comes after its image, and cannot be told from options here, so only names of CDI devices
    are taken.
    """
    found: dict[str, None] = {}
    for number, argument in enumerate(command):
        for pattern, kind in ((_DEVICE_OPTION, ""), (_GPUS_OPTION, "nvidia.com/gpu=")):
            match = pattern.match(argument)
            if match is None:
                continue
            value = match[1] if match[1] is not None else "".join(command[number + 1 : number + 2])
            for name in value.split(",") if kind else [value]:
                if explain_rules.is_qualified(f"{kind}{name}"):
                    found[f"{kind}{name}"] = None
    return tuple(found)


def _inspected(engine: str, data: Data, config: Data | None) -> Container:
    state: dict[str, t.Any] = json_data.get(data, "State", {})
    status, pid = json_data.get(state, "Status", ""), json_data.get(state, "Pid", 0)
    known = RUNNING if status in _RUNNING else EXITED if status in _EXITED else CREATED
    # Docker waits between two starts of a container that ends again and again.
    known = EXITED if status == "restarting" and pid <= 0 else known
    return Container(
        engine,
        json_data.get(data, "Id", ""),
        json_data.get(data, "Name", "").lstrip("/"),
        known,
        pid if pid > 0 and known == RUNNING else None,
        _error_of(data),
        user=user_of(config),
        config=config,
    )


def _error_of(data: Data) -> str:
    state: dict[str, t.Any] = json_data.get(data, "State", {})
    return json_data.get(state, "Error", "")


# -- CRI ---------------------------------------------------------------------------------------------------------------


def from_cri(
    engine: str,
    identifier: str,
    name: str,
    status: cri.ContainerStatus,
    cdi: bool | None,
    *,
    programs: t.Mapping[str, str] = core_plan.NOTHING,
) -> Container:
    """Return the container in a verbose ContainerStatus of a CRI.

    ``status`` has the number of its ContainerState, and the JSON of the key "info" (containerd, CRI-O). ``cdi`` is
    whether the engine reads CDI specifications. ``programs`` are the programs of the configured runtimes by name, that
    of the default runtime under the empty name; only CRI-O, which does not report the program, needs them.
    """
    state, info, error = status
    spec: dict[str, t.Any] = json_data.get(info, "runtimeSpec", {})
    request: dict[str, t.Any] = json_data.get(info, "config", {})
    process: dict[str, t.Any] = json_data.get(spec, "process", {})
    options: dict[str, t.Any] = json_data.get(info, "runtimeOptions", {})
    program = json_data.get(options, "binary_name", "") or json_data.get(options, "BinaryName", "")
    variables: list[t.Any] = json_data.get(process, "env", [])
    annotations = {**_texts(spec.get("annotations")), **_texts(request.get("annotations"))}
    fields: list[t.Any] = json_data.get(request, "CDI_devices", [])
    named = tuple(filter(None, (json_data.get(entry, "name", "") for entry in fields)))
    annotated = explain_rules.devices_in_annotations(annotations, ("cdi.k8s.io/",)) if cdi is not False else ()
    pid = json_data.get(info, "pid", 0)
    known = _CRI_STATES[state] if 0 <= state < len(_CRI_STATES) else CREATED
    handler = annotations.get("io.kubernetes.cri-o.RuntimeHandler", "")
    # A shim such as that of Kata has no program in its options.
    kind = json_data.get(info, "runtimeType", "")
    shim = kind if kind and not kind.startswith(_SHIM_OF_RUNC) else ""
    program = program or programs.get(handler) or handler or shim or "runc"
    return Container(
        engine,
        identifier,
        name,
        known,
        pid if pid > 0 and known == RUNNING else None,
        error,
        runtime=handler or posixpath.basename(program),
        program=program,
        environment=environment_of(variables, first=True),
        annotations=annotations,
        mounts=mounts_of(spec.get("mounts")),
        privileged=is_privileged(spec),
        received=environment_of(variables),
        cdi_devices=tuple(dict.fromkeys([*named, *annotated])),
        by_annotation=bool(annotated) and not named,
        # CRI-O does not report the request (createContainerInfo() in server/container_status.go).
        request_known="config" in info,
        # The shim runs the runtime on the bundle, whose config is the one to compare. This one is from before that.
        user=user_of(spec),
        config=spec or None,
        config_is_final=False,
    )
