# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what the engines recorded about an existing container: its state, and its requests for GPUs.

Docker, Podman, a CRI, and OCI bundles. All functions are pure; ``search.py`` gets the data. A value of a wrong type is
treated as missing. A request is kept as the engine recorded it, and is not interpreted further than the GPUs that it
names. Devices of other vendors, and CDI devices of NVIDIA that add no GPU, are no requests.
"""

from __future__ import annotations

import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri

if t.TYPE_CHECKING:
    Data = t.Mapping[str, t.Any]


# The states of a container, for all engines.
CREATED, RUNNING, EXITED = "created", "running", "exited"
# The kinds of requests: `--gpus` of Docker and Podman, CDI devices, a variable, mounts below /var/run, annotations, and
# device nodes (`--device /dev/nvidia0`).
GPUS, CDI, VARIABLE, MOUNT, ANNOTATION, DEVICE = "gpus", "cdi", "variable", "mount", "annotation", "device"
# The name of all GPUs in a request.
ALL = "all"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
# The variables that programs of the toolkit or CUDA read, and the beginnings of others.
VARIABLES = (
    VISIBLE_DEVICES, "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VERSION", "NVIDIA_DISABLE_REQUIRE", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH",
)  # fmt: skip
_PREFIXES = ("NVIDIA_REQUIRE_", "DOCKER_RESOURCE_")
# Swarm sets the variables of resources. Some of these are no GPUs.
_SWARM_GPU = re.compile("DOCKER_RESOURCE_.*GPU", re.IGNORECASE)
# Where Podman reports the nodes of a started container, also those of CDI.
NODES = "HostConfig.Devices"
# A CDI device of NVIDIA that may add a GPU. The vendors of all its components end with nvidia.com. Excluded are IMEX
# channels of the DRA driver 25.3, and the classes of nvidia-ctk 1.20 without a GPU.
_CDI_GPU = re.compile(
    r"(?<![\w.-])(?!k8s\.compute-domain\.)(?:[\w-]+\.)*nvidia\.com/"
    r"(?!(?:gds|gdrcopy|mofed|nvswitch|imex|imex-channel)=)[\w.-]+=\w(?:[\w.:-]*\w)?",
    re.ASCII,
)
# A mount that requests a device: NAME, or cdi/VENDOR/CLASS/NAME (internal/config/image/cuda_image.go of the toolkit
# 1.18). One for an IMEX channel requests no GPU.
_MOUNT = re.compile(
    r"(?:/var)?/run/nvidia-container-devices/(?:cdi/([^/]+)/([^/=]+)[/=](.+)|(?!(?:cdi|imex)/)(.+))", re.DOTALL
)
# Annotations for the engine and the toolkit, and for the toolkit's NRI plugin (1.19).
_CDI_ANNOTATION, _NRI_ANNOTATION = "cdi.k8s.io/", "nvidia.cdi.k8s.io"
# The words of Docker and Podman. Docker waits between two starts of a container that is "restarting".
_RUNNING, _EXITED = ("running", "paused"), ("exited", "stopped", "stopping", "restarting", "removing", "dead")
# ContainerState of k8s.io/cri-api (api.proto).
_CRI_STATES = (CREATED, RUNNING, EXITED)


class Request(t.NamedTuple):
    """One request for devices, as the engine recorded it.

    - ``kind``: one of GPUS to DEVICE. ``value``: the record, verbatim. ``source``: where it is recorded, such as
      "HostConfig.DeviceRequests".
    - ``names``: the GPUs that it names: ALL, indexes, UUIDs, PCI addresses, MIG indexes such as 0:1, names of CDI
      devices, or paths of device nodes. Empty: it names none.
    - ``number``: how many GPUs it requests without names. 0: it does not say.
    """

    kind: str
    value: str
    source: str
    names: tuple[str, ...] = ()
    number: int = 0


class Container(t.NamedTuple):
    """A container as its engine recorded it.

    - ``identifier``, ``name``: the full ID, and the name by which people know it: in a pod NAMESPACE/POD/NAME.
    - ``state``: CREATED, RUNNING or EXITED. ``error`` is the engine's reason why its last start failed; empty: none.
    - ``pid``: its first process, None if it does not run.
    - ``runtime``: the name of the runtime; ``program``: the path or name of its program. Empty: unknown.
    - ``requests``: its requests for GPUs. ``requests_known``: whether the engine records CDI devices and `--gpus`.
    - ``variables``: those of the container that the toolkit or CUDA reads (VARIABLES). Others may be secrets.
    - ``in_pod``: whether a kubelet made it.
    - ``data``: the engine's whole record, for a copy. It may have secrets and is never part of a result.
    """

    engine: str
    identifier: str
    name: str
    state: str
    pid: int | None = None
    error: str = ""
    runtime: str = ""
    program: str = ""
    requests: tuple[Request, ...] = ()
    requests_known: bool = True
    variables: t.Mapping[str, str] = core_plan.NOTHING
    in_pod: bool = False
    data: t.Mapping[str, t.Any] = core_plan.NOTHING

    @property
    def shown(self) -> str:
        """The container for messages: its name, and the ID as engines shorten it."""
        short = self.identifier[:12]
        if not short:
            return f"{self.name} ({self.engine})"
        return f"{self.name} ({self.engine}, {short})" if self.name and self.name != self.identifier else short


# -- requests ----------------------------------------------------------------------------------------------------------


def _listed(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas: ALL in any spelling, and no path, which says that mounts request them."""
    names = (name.strip() for name in text.split(","))
    kept = (name for name in names if name and not name.startswith("/"))
    return tuple(dict.fromkeys(ALL if name.lower() == ALL else name for name in kept))


def of_devices(values: t.Iterable[str], source: str) -> list[Request]:
    """Return the requests in values of `--device` and of its like: names of CDI devices, and PATH[:PATH[:MODE]]."""
    found = []
    for value in values:
        path = value.partition(":")[0]
        if _CDI_GPU.fullmatch(value):
            found.append(Request(CDI, value, source, (value,)))
        elif path.startswith(("/dev/nvidia", "/dev/dxg")):
            found.append(Request(DEVICE, value, source, (path,)))
    return found


def _of_gpus(entries: t.Any) -> list[Request]:
    """Return the requests in DeviceRequests of Docker: those of `--gpus`, of Compose, and of CDI devices."""
    found, source = [], "HostConfig.DeviceRequests"
    for entry in entries if isinstance(entries, list) else ():
        driver, number = json_data.get(entry, "Driver", ""), json_data.get(entry, "Count", 0)
        names = json_data.texts(json_data.get(entry, "DeviceIDs", []))
        capabilities: list[t.Any] = json_data.get(entry, "Capabilities", [])
        recorded = {"Driver": driver, "Count": number, "DeviceIDs": names, "Capabilities": capabilities}
        value = json.dumps(recorded, separators=(",", ":"))
        if driver == "cdi":
            named = tuple(filter(_CDI_GPU.fullmatch, names))
            found += [Request(CDI, value, source, named)] if named else []
        elif driver != "amd":  # daemon/amd_linux.go of moby 28
            names = names or ((ALL,) if number < 0 else ())
            found.append(Request(GPUS, value, source, names, 0 if names else number))
    return found


def _of_variables(variables: t.Mapping[str, str], source: str) -> list[Request]:
    named = {name: _listed(value) for name, value in variables.items()}
    return [
        Request(VARIABLE, f"{name}={variables[name]}", source, names)
        for name, names in named.items()
        if (name == VISIBLE_DEVICES or _SWARM_GPU.match(name)) and names and not {"void", "none"} & {*names}
    ]


def _of_mounts(destinations: t.Iterable[str], source: str) -> list[Request]:
    found = ((path, _MOUNT.fullmatch(path)) for path in destinations)
    return [
        Request(MOUNT, path, source, _listed(match[4] or f"{match[1]}/{match[2]}={match[3]}"))
        for path, match in found
        if match is not None
    ]


def _of_annotations(annotations: t.Mapping[str, str], source: str, name: str = "") -> list[Request]:
    """Return the requests in annotations of the container ``name``.

    Of those for the NRI plugin, one for the container replaces those for its pod (GetEffectiveAnnotation() of
    containerd/nri 0.12).
    """
    nri = (f"{_NRI_ANNOTATION}/container.{name}", f"{_NRI_ANNOTATION}/pod", _NRI_ANNOTATION)
    keys = [key for key in annotations if key.startswith(_CDI_ANNOTATION)]
    keys += [key for key in nri if key in annotations][:1]
    named = {key: tuple(filter(_CDI_GPU.fullmatch, _listed(annotations[key]))) for key in keys}
    return [Request(ANNOTATION, f"{key}={annotations[key]}", source, names) for key, names in named.items() if names]


def arguments_of_podman(data: Data) -> tuple[str, ...]:
    """Return the command line that created a container of Podman, without the command of the container.

    ``data`` is the output of `podman container inspect`. Only the command line of Podman records it: containers of the
    API and of kube play have none (cmd/podman/containers of 5.4). It ends with the container's command if the user gave
    one.
    """
    (settings,) = _objects(data, "Config")
    command, own = (json_data.texts(settings.get(name)) for name in ("CreateCommand", "Cmd"))
    return command[: -len(own)] if own and command[-len(own) :] == own else command


def _of_command(arguments: t.Sequence[str]) -> list[Request]:
    """Return the requests in ``arguments``, the result of arguments_of_podman().

    Podman 5 takes each entry of `--gpus` for the name of the CDI device nvidia.com/gpu=NAME. Podman 4 ignores the
    option.
    """
    found, source = [], "Config.CreateCommand"
    for number, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        value = value if equals else "".join(arguments[number + 1 : number + 2])
        if option == "--device":
            found += of_devices(value.split(","), source)
        elif option == "--gpus" and value:
            found.append(Request(GPUS, value, source, _listed(value)))
    return found


# -- engines -----------------------------------------------------------------------------------------------------------


def _objects(data: Data, *names: str) -> list[dict[str, t.Any]]:
    return [json_data.get(data, name, {}) for name in names]


def _annotations(data: Data) -> dict[str, str]:
    (found,) = _objects(data, "Annotations" if "Annotations" in data else "annotations")
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _fields(entries: t.Any, name: str) -> list[str]:
    return [json_data.get(entry, name, "") for entry in (entries if isinstance(entries, list) else ())]


def _variables(entries: t.Any) -> dict[str, str]:
    """Return those of VARIABLES in a list of NAME=VALUE. Engines append variables of CDI, so the first value counts."""
    found: dict[str, str] = {}
    for entry in json_data.texts(entries):
        name, equals, value = entry.partition("=")
        if equals and (name in VARIABLES or name.startswith(_PREFIXES)):
            found.setdefault(name, value)
    return found


def from_docker(data: Data, programs: t.Mapping[str, str]) -> Container:
    """Return the container in the answer to GET /containers/ID/json.

    ``programs`` are the programs of Docker's runtimes by name.
    """
    settings, host = _objects(data, "Config", "HostConfig")
    gpus = _of_gpus(host.get("DeviceRequests"))
    # A client before 25.0 passes the names of CDI devices on as paths.
    devices = of_devices(_fields(host.get("Devices"), "PathOnHost"), NODES)
    found = _inspected("docker", data, [*gpus, *devices])
    pod_names = cri.pod_names(json_data.get(settings, "Labels", {}))
    name, runtime = pod_names[0] if pod_names else found.name, json_data.get(host, "Runtime", "")
    program = programs.get(runtime, "") or runtime
    return found._replace(name=name, in_pod=bool(pod_names), runtime=runtime, program=program)


def from_podman(data: Data) -> Container:
    """Return the container in the output of `podman container inspect`.

    Only the command line has its CDI devices. Containers of the API and of kube play have none. The error of a failed
    start may name them, too. If nothing requests nodes, those of the started container are taken for requests.
    """
    host, state = _objects(data, "HostConfig", "State")
    arguments = arguments_of_podman(data)
    names = (found[0] for found in _CDI_GPU.finditer(json_data.get(state, "Error", "")))
    requests = _of_command(arguments) or of_devices(names, "State.Error")
    is_known = bool(arguments or requests)
    program = json_data.get(data, "OCIRuntime", "")
    runtime = posixpath.basename(program)
    # The runtime of NVIDIA adds nodes for other requests, and they may be too few.
    if not requests and not engines_base.is_nvidia_runtime(runtime, program):
        requests = of_devices(_fields(host.get("Devices"), "PathOnHost"), NODES)
    return _inspected("podman", data, requests)._replace(runtime=runtime, program=program, requests_known=is_known)


def _inspected(engine: str, data: Data, requests: t.Iterable[Request]) -> Container:
    """Return what Docker and Podman report in the same way, with other ``requests``."""
    state, settings, host = _objects(data, "State", "Config", "HostConfig")
    status, pid = json_data.get(state, "Status", ""), json_data.get(state, "Pid", 0)
    known = RUNNING if status in _RUNNING else EXITED if status in _EXITED else CREATED
    variables = _variables(settings.get("Env"))
    all_requests = (
        *requests,
        *_of_annotations(_annotations(host), "HostConfig.Annotations"),
        *_of_mounts(_fields(data.get("Mounts"), "Destination"), "Mounts"),
        *_of_variables(variables, "Config.Env"),
    )
    return Container(
        engine,
        json_data.get(data, "Id", ""),
        json_data.get(data, "Name", "").lstrip("/"),
        known,
        pid if pid > 0 and known == RUNNING else None,
        "" if known == RUNNING else json_data.get(state, "Error", ""),
        requests=all_requests,
        variables=variables,
        data=data,
    )


def from_cri(
    engine: str,
    entry: cri.CriContainer,
    status: cri.ContainerStatus,
    pod: t.Mapping[str, str] = core_plan.NOTHING,
) -> Container:
    """Return the container in an entry of a CRI's list, and in its verbose ContainerStatus.

    ``pod`` has the annotations of its pod.
    """
    spec, config, options = _objects(status.info, "runtimeSpec", "config", "runtimeOptions")
    # Of the annotations of the pod, only the NRI plugin reads some.
    annotations = {key: value for key, value in pod.items() if key.startswith(_NRI_ANNOTATION)}
    annotations.update({**_annotations(spec), **_annotations(config)})
    handler = annotations.get("io.kubernetes.cri-o.RuntimeHandler", "")
    program = json_data.get(options, "binary_name", "") or json_data.get(options, "BinaryName", "")
    # A shim such as that of Kata has no program in its options. CRI-O reports neither, and its handler only by name.
    shim = json_data.get(status.info, "runtimeType", "")
    program = program or handler or ("runc" if shim.startswith("io.containerd.runc.") else shim)
    bundle = {**spec, "annotations": annotations}
    found = from_bundle(engine, entry.identifier, bundle, program, name=entry.names[0])
    cdi = of_devices(_fields(config.get("CDI_devices"), "name"), "config.CDI_devices")
    devices = of_devices(_fields(config.get("devices"), "host_path"), "config.devices")
    pid = json_data.get(status.info, "pid", 0)
    known = _CRI_STATES[status.state] if 0 <= status.state < len(_CRI_STATES) else CREATED
    return found._replace(
        state=known,
        pid=pid if pid > 0 and known == RUNNING else None,
        error="" if known == RUNNING else status.error,
        runtime=handler or found.runtime,
        requests=(*cdi, *devices, *found.requests),
        # CRI-O does not report the request (createContainerInfo() in server/container_status.go).
        requests_known="config" in status.info,
        in_pod="/" in entry.names[0],
        data={"info": status.info, "sandbox": entry.sandbox},
    )


def from_bundle(
    engine: str, identifier: str, config: Data, program: str, pid: int | None = None, *, name: str = ""
) -> Container:
    """Return a container of which only the OCI config is known. It is running, because engines remove its bundle."""
    (process,) = _objects(config, "process")
    variables, annotations = _variables(process.get("env")), _annotations(config)
    requests = (
        *_of_annotations(annotations, "annotations", name.rpartition("/")[2]),
        *_of_mounts(_fields(config.get("mounts"), "destination"), "mounts"),
        *_of_variables(variables, "process.env"),
    )
    return Container(
        engine,
        identifier,
        name or annotations.get("nerdctl/name", ""),
        RUNNING,
        pid,
        runtime=posixpath.basename(program),
        program=program,
        requests=requests,
        requests_known=False,
        variables=variables,
    )
