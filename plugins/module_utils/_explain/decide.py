# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a container has its GPUs: only from its record, from a measurement, and from the host.

All functions are pure. What was not measured is unknown. ``docs/verify.md`` has the same rows in the same order.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes, device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import error_texts

CONTROL, UVM = device_nodes.NEEDED_NODES
# Runtimes whose containers have a kernel of their own, by their usual names and the types of their shims: Kata
# Containers (kata-runtime, io.containerd.kata.v2), gVisor (runsc, io.containerd.runsc.v1).
_OTHER_KERNEL = re.compile(r"(?:\A|[./-])(?:kata|runsc|gvisor)(?:\Z|[./-])")
_MEASURE_AGAIN = "Run the task as root while the container runs, or run `nvidia-smi -L` in the container."
_AGAIN = "Create the container, or its pod, again."
_RESTART = (
    "Restart the container. If systemd took the permission away when it reloaded its units, give the container its GPUs"
    " by CDI: see docs/troubleshooting.md."
)
_DENIED = {
    container_nodes.BY_CGROUP: ("cgroup-denied", "Its device cgroup does not permit it to open", _RESTART),
    container_nodes.BY_MODE: (
        "nodes-denied",
        "Its user may not open",
        "Add the group of the nodes to the container, or load the module nvidia with another NVreg_DeviceFileMode.",
    ),
    container_nodes.BY_NODEV: ("nodes-denied", "A mount option (nodev) forbids it to open", _AGAIN),
    container_nodes.BY_SELINUX: (
        "selinux-denied",
        "SELinux does not let it open",
        "Run `setsebool -P container_use_devices on`, or give the container its GPUs by CDI.",
    ),
}


class Verdict(t.NamedTuple):
    """Whether a container has its GPUs, as in the result of the module. ``message`` is a sentence."""

    ok: bool | None
    code: str
    message: str
    advice: str = ""


def lacks(code: str, message: str, advice: str = "") -> Verdict:
    """Return the verdict for a container that does not have its GPUs."""
    return Verdict(ok=False, code=code, message=message, advice=advice)


def unknown(code: str, message: str, advice: str = "") -> Verdict:
    """Return the verdict for a container about which that is unknown."""
    return Verdict(ok=None, code=code, message=message, advice=advice)


class Wanted(t.NamedTuple):
    """What requests name: a GPU, MIG device or CDI device, and the device nodes that it needs."""

    name: str
    nodes: tuple[str, ...]


class Request(t.NamedTuple):
    """All requests of a container. ``number`` GPUs are requested without names; ``other`` are names without nodes."""

    wanted: tuple[Wanted, ...] = ()
    number: int = 0
    other: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether the container requests a GPU."""
        return bool(self.wanted or self.number or self.other)


# -- the request -------------------------------------------------------------------------------------------------------


def read_request(container: explain_record.Container, host: explain_host.ExplainedHost) -> Request:
    """Return the GPUs that a container requests.

    Images of CUDA set NVIDIA_VISIBLE_DEVICES to all, so that variable counts only without another request. Docker
    replaces it for `--gpus` (setNvidiaGPUs() in daemon/nvidia_linux.go of moby), and CDI specifications set it to void.
    """
    given = [one for one in container.requests if _is_for_gpu(one)]
    strong = [one for one in given if not one.value.startswith(f"{explain_record.VISIBLE_DEVICES}=")]
    used = strong or given
    wanted: dict[Wanted, None] = {}
    other: list[str] = []
    for one in used:
        for name in one.names:
            found = _resolve(name, host)
            wanted.update(dict.fromkeys(found or ()))
            other += [name] if found is None else []
        if not one.names and not one.number:
            other.append(one.value)
    return Request(tuple(wanted), sum(one.number for one in used), tuple(other))


def _is_for_gpu(request: explain_record.Request) -> bool:
    return request.kind != explain_record.DEVICE or any(map(_is_gpu_node, request.names))


def _is_gpu_node(path: str) -> bool:
    return path == explain_host.WSL_NODE or device_nodes.GPU_NODE.fullmatch(path) is not None


def _resolve(name: str, host: explain_host.ExplainedHost) -> list[Wanted] | None:
    """Return what a name in a request needs; None if nothing resolves it to device nodes now."""
    if name == explain_record.ALL:
        return [Wanted(gpu.name, gpu.nodes) for gpu in host.gpus if gpu.exists and not gpu.is_mig] or None
    if name.startswith("/dev/"):
        return [Wanted(name, (name,))] if _is_gpu_node(name) else []
    device = host.cdi.get(name)
    if device is not None:
        nodes = tuple(node for node in device.nodes if _is_gpu_node(node) or node in host.gpu_nodes)
        if nodes and device.is_valid:
            return [Wanted(name, nodes)]
        # A device with other nodes is none of a GPU. One without nodes may be a claim that has lost its own.
        return [] if device.nodes and not nodes else None
    found = [Wanted(gpu.name, gpu.nodes) for gpu in host.gpus if name.lower() in gpu.names and gpu.nodes]
    return found or None


# -- the decision ------------------------------------------------------------------------------------------------------


def decide(
    container: explain_record.Container,
    host: explain_host.ExplainedHost,
    contents: explain_contents.Contents | None,
) -> Verdict:
    """Return whether a container has its GPUs. ``contents`` is None for a container that does not run."""
    if container.error and container.state != explain_record.RUNNING:
        return failed_start("Its last start failed", container.error)
    if any(_OTHER_KERNEL.search(name) for name in (container.runtime, container.program)):
        message = f"It runs with {container.runtime or container.program}, which has a kernel of its own."
        return unknown("other-kernel", message, "Run `nvidia-smi -L` in the container.")
    request = read_request(container, host)
    gpus = [] if contents is None else [node for node in contents.measured.nodes if _is_gpu_node(node.path)]
    if not (request.asks or gpus or (contents is not None and contents.measured.problem)):
        return _without_request(container)
    if contents is None:
        advice = f"Start it, or run the task with {errors.option:try_copy}: true."
        return unknown("not-running", "It does not run, so nothing can be measured.", advice)
    if host.kind == procfs.TEGRA:
        return unknown("driver-unknown", "The device nodes of a Tegra are not compared.")
    return _Decision(host, contents, request).verdict()


def failed_start(problem: str, error: str) -> Verdict:
    """Return the verdict for a failed start. Advice is given only for an error that is known."""
    known = error_texts.find(error)
    message = f"{problem}: {error.rstrip('.')}."
    if known is None:
        return lacks("start-failed", message)
    message += "" if known.about_gpu else " It is not about GPUs."
    return lacks(known.code, message, known.advice)


def _without_request(container: explain_record.Container) -> Verdict:
    if not container.requests_known:
        message = f"{container.engine} does not report what it requests, and it has no GPU."
        return unknown("request-unknown", message, "Look at the command or the pod that created it.")
    advice = "Create it with a CDI device such as nvidia.com/gpu=all, with `--gpus all`, or from a pod with a GPU."
    return unknown("no-gpu-requested", "It requests no GPU and has none.", advice)


class _Decision:
    """The decision about a running container, in the order of the rows of docs/verify.md."""

    def __init__(self, host: explain_host.ExplainedHost, contents: explain_contents.Contents, request: Request) -> None:
        self._host, self._contents, self._request = host, contents, request
        self._nodes = {node.path: node for node in contents.measured.nodes if node.kind == container_nodes.NODE}
        self._gpus = sorted(filter(_is_gpu_node, self._nodes))
        self._requested = [node for one in request.wanted for node in one.nodes]
        # A link of the container is not followed, so what it leads to is unknown.
        links = [
            node.path
            for node in contents.measured.nodes
            if node.kind == container_nodes.LINK
            and (_is_gpu_node(node.path) or node.path in (CONTROL, UVM, *self._requested))
        ]
        self._unclear = [f"{path} is a link" for path in links] or list(filter(None, [contents.measured.problem]))

    def verdict(self) -> Verdict:
        missing = self._missing()
        if missing:
            return self._lacking(f"It does not have {core_text.listed(missing)}")
        for broken in (self._stale(), self._denied(), self._other_driver()):
            if broken is not None:
                return broken
        open_questions = [*self._unclear, *filter(None, [self._unmeasured()])]
        if open_questions:
            message = f"Not everything could be measured: {open_questions[0]}."
            return unknown("access-unknown", message, _MEASURE_AGAIN)
        return self._complete()

    def _missing(self) -> list[str]:
        """Return what the container requests and lacks, and the other nodes that its GPUs need."""
        lacking = [one for one in self._request.wanted if self._absent(one)]
        absent = [f"{one.name} ({', '.join(self._absent(one))})" for one in lacking]
        count = len(self._gpus)
        if self._request.number > count:
            absent.append(f"{self._request.number} GPUs, but {count}")
        if self._request.other and not self._gpus:
            absent.append(f"any GPU, although it requests {core_text.listed(self._request.other)}")
        return [*absent, *(path for path in self._common() if path not in self._nodes)]

    def _common(self) -> list[str]:
        """Return the nodes that all of its GPUs need: nvidiactl, and nvidia-uvm if it has libcuda."""
        if not self._gpus or explain_host.WSL_NODE in self._gpus:
            return []
        return [CONTROL, UVM] if self._contents.libraries(explain_contents.CUDA) else [CONTROL]

    def _absent(self, one: Wanted) -> list[str]:
        return [node for node in one.nodes if node not in self._nodes]

    def _lacking(self, problem: str) -> Verdict:
        """Return the verdict for missing nodes; unknown if not all nodes could be measured."""
        if self._unclear:
            message = f"{problem}, as far as it could be measured: {self._unclear[0]}."
            return unknown("contents-unknown", message, _MEASURE_AGAIN)
        return lacks("devices-missing", f"{problem}.", _AGAIN)

    def _needed(self) -> list[container_nodes.Node]:
        """Return the nodes that decide: those of GPUs and requests, and those that all GPUs need."""
        paths = dict.fromkeys([*self._gpus, *self._requested, *self._common()])
        return [self._nodes[path] for path in paths if path in self._nodes]

    def _stale(self) -> Verdict | None:
        numbers = self._host.numbers
        stale = [
            f"{node.path} ({node.major}:{node.minor})"
            for node in self._needed()
            if numbers.get(node.path, (node.major, node.minor)) != (node.major, node.minor)
        ]
        if stale:
            message = f"It has {core_text.listed(stale)} with other numbers than the host."
            return lacks("devices-stale", message, _AGAIN)
        known = self._host.gpu_nodes
        lost = [path for path in self._gpus if known and path not in known]
        if lost and (lost == self._gpus or {*self._requested} & {*lost}):
            message = f"It has {core_text.listed(lost)}, but the driver of the host has no such GPU."
            return lacks("devices-stale", message, "Run `nvidia-smi -L` on the host, and request a GPU that it lists.")
        divided = [gpu.nodes[0] for gpu in self._host.gpus if gpu.in_mig_mode and gpu.nodes]
        if self._gpus and set(self._gpus) <= set(divided) and not self._has_mig_device():
            message = f"{core_text.listed(self._gpus)} is in MIG mode, and it has no MIG device."
            return lacks("mig-mode", message, "Create MIG devices, or request one of those that exist.")
        return None

    def _has_mig_device(self) -> bool:
        return any(gpu.is_mig and set(gpu.nodes) <= set(self._nodes) for gpu in self._host.gpus)

    def _denied(self) -> Verdict | None:
        denied = [node for node in self._needed() if node.usable is False]
        if not denied:
            return None
        reason = denied[0].denied_by
        own = [node.path for node in denied if node.denied_by == reason]
        code, problem, advice = _DENIED[reason]
        details = ""
        if reason == container_nodes.BY_MODE:
            node = denied[0]
            details = f" (mode {node.mode:04o}, user {node.uid}, group {node.gid}; it runs as "
            details += f"{self._contents.measured.user or 'another user'})"
        return lacks(code, f"{problem} {core_text.listed(own)}{details}.", advice)

    def _other_driver(self) -> Verdict | None:
        others = self._contents.other_versions(self._host.driver) if self._host.driver else []
        if not others:
            return None
        message = f"It has {others[0].path}, but the loaded driver is {self._host.driver}."
        return lacks("libraries-stale", message, _AGAIN)

    def _unmeasured(self) -> str:
        """Return why access to its nodes, or its list of mounts, is unknown; empty if both are known."""
        if any(node.usable is None for node in self._needed()):
            return self._contents.measured.access_problem or "whether it may open its device nodes"
        return "" if self._contents.files_known else "the list of its mounts cannot be read"

    def _complete(self) -> Verdict:
        """Return the verdict for a container that may open all of its nodes."""
        gpus = core_text.listed(gpu_names(self._host, self._nodes.values()) or self._gpus)
        has = f"It has {gpus} and may open the device nodes"
        libraries = [
            file for name in (explain_contents.CUDA, explain_contents.NVML) for file in self._contents.libraries(name)
        ]
        if not libraries:
            message = f"{has}, but no library of the driver is mounted, so its image must contain the driver."
            return unknown("driver-not-mounted", message, "Run `nvidia-smi -L` in the container.")
        if self._host.kind == procfs.WSL:
            return Verdict(ok=True, code="ok", message=f"{has}, and a library of the driver is mounted.")
        if self._host.driver is None:
            message = f"{has}, but the version of the loaded driver is unknown."
            return unknown("driver-unknown", message, "Load the driver with `modprobe nvidia`.")
        absent = [node.path for node in self._needed() if node.path not in self._host.numbers]
        if absent:
            message = f"{has}, but the host has no {core_text.listed(absent)}."
            return unknown("driver-unknown", message, "Run `modprobe nvidia-uvm` and `nvidia-smi -L` on the host.")
        return Verdict(
            ok=True, code="ok", message=f"{has}, and libraries of the loaded driver {self._host.driver} are mounted."
        )


def gpu_names(host: explain_host.ExplainedHost, nodes: t.Iterable[container_nodes.Node]) -> list[str]:
    """Return the GPUs and MIG devices of the host whose device nodes, by their numbers, are among ``nodes``."""
    found = {(node.path, node.major, node.minor) for node in nodes if node.kind == container_nodes.NODE}
    paths = {path for path, major, minor in found if host.numbers.get(path, (major, minor)) == (major, minor)}
    return [gpu.name for gpu in host.gpus if gpu.nodes and set(gpu.nodes) <= paths]
