# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about a Kubernetes node: why it does not offer its GPUs, or not all of them.

They compare what the kubelet offers with the GPUs of the driver and with the engine that the kubelet uses. Without GPUs
only the rule about the kubelet itself applies, because other rules report a missing driver.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report, rules_engines, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import checkpoint

KUBELET, PLUGIN = "kubelet", report.PLUGIN
# The resources of NVIDIA's device plugin (api/config/v1/consts.go and resources.go of k8s-device-plugin 0.20). Other
# resources of this domain are no GPUs, such as nvidia.com/hostdev of NVIDIA's network operator.
_NAME = re.compile(r"nvidia\.com/(?:gpu|mig-).*", re.DOTALL)
# The IDs of its devices: UUIDs of GPUs and of MIG devices, which drivers before 470 wrote as MIG-GPU-UUID/GI/CI. With
# time-slicing and MPS, the number of a replica follows (internal/rm/devices.go and NewAnnotatedID, likewise). Plugins
# of others append numbers in other ways, such as GPU-UUID-0 of HAMi.
_MIG, _REPLICA = "MIG-", "::"
_DEVICE = re.compile(r"(?:(?:GPU|MIG)-[0-9A-Fa-f-]{36}|MIG-GPU-[0-9A-Fa-f-]{36}/[0-9]+/[0-9]+)(?:::[0-9]+)?")
# The driver of NVIDIA's DRA driver that allocates GPUs (cmd/gpu-kubelet-plugin of k8s-dra-driver-gpu 25.8).
_DRA_GPU = "gpu.nvidia.com"
_CHECK_POD = "Look at the pod of the device plugin on this node, and at its log."
_RESTART = "Restart the pod of the device plugin on this node."
_RESTART_DRIVER = "Restart the pod of the DRA driver on this node."


class Resource(t.NamedTuple):
    """A resource with NVIDIA's devices.

    ``recorded`` are the devices in the kubelet's checkpoint; None if it does not have the resource. ``held`` are those
    of containers, and ``entries`` are the rows of these containers.
    """

    name: str
    allocatable: frozenset[str]
    recorded: frozenset[str] | None
    held: frozenset[str]
    entries: tuple[dict[str, t.Any], ...] = ()


class NodeFacts:
    """The facts of a node for the rules here. Unknown or invalid values are empty."""

    def __init__(self, facts: report.HostFacts) -> None:
        part = facts.kubernetes
        self.part = part
        self.facts = facts
        self.runs = part.get("running") is True
        self.from_api = part.get("source") == checkpoint.FROM_API
        self.sockets = report.rows(part.get("device_plugins"))
        own = {_without_domain(report.text(row.get("resource"))) for row in self.sockets} - {""}
        self.resources = [found for row in report.rows(part.get("resources")) for found in _resources(row, own)]
        self.allocatable = frozenset(device for found in self.resources for device in found.allocatable)
        # The UUIDs of the GPUs and MIG devices among them.
        self.offered = _bases(self.allocatable)
        self.drivers = [row for row in report.rows(part.get("dra_drivers")) if report.text(row.get("name")) == _DRA_GPU]
        self.processes = [pid for pid in part.get("plugin_processes") or () if report.number(pid) is not None]
        self.pods = report.texts(part.get("plugin_pods"))
        self.logs = [row for row in report.rows(part.get("plugin_logs")) if "log" in row]
        self.usable = frozenset(report.texts(facts.gpus.get("advertised")))
        self.engine = next(
            (row for row in facts.engines if report.target_of(row) == report.text(part.get("engine"))), {}
        )

    @property
    def applies(self) -> bool:
        """Whether the kubelet runs, and the driver has GPUs that it could offer."""
        return self.runs and bool(self.usable)

    @property
    def offers(self) -> bool:
        """Whether the kubelet has devices of NVIDIA, or a DRA driver for GPUs listens."""
        return bool(self.allocatable) or any(_listens(driver) for driver in self.drivers)

    @property
    def has_nvidia_default(self) -> bool:
        """Whether pods without a RuntimeClass get a runtime of NVIDIA."""
        live = report.table(self.engine.get("live"))
        default = report.text(live.get("default_runtime")) or report.text(self.engine.get("default_runtime"))
        return engines_base.is_nvidia_runtime(default, report.runtimes_of(self.engine).get(default))

    @property
    def runs_hook(self) -> bool:
        """Whether the engine runs NVIDIA's hook for every container. Known of a hook of this collection only."""
        files = report.texts(self.engine.get("recorded_files"))
        is_possible = report.facts_of(self.engine).hook_mode
        return is_possible and any(posixpath.basename(path) == nvidia_files.HOOK_NAME for path in files)

    @property
    def had_devices(self) -> bool:
        """Whether a plugin has given the kubelet devices before, which its checkpoint or pods still have."""
        return any(found.recorded or found.held for found in self.resources)

    @property
    def offers_nothing(self) -> bool:
        """Whether the kubelet is known to have no device of NVIDIA, and no DRA driver for GPUs listens."""
        return bool(report.text(self.part.get("source"))) and not self.offers

    def socket_of(self, name: str) -> dict[str, t.Any]:
        """Return the socket of the plugin of a resource, empty if there is none. It has the name without the domain."""
        own = _without_domain(name)
        return next((row for row in self.sockets if _without_domain(report.text(row.get("resource"))) == own), {})

    @property
    def listens(self) -> bool:
        """Whether a device plugin listens on a socket with the name of NVIDIA's."""
        return any(row.get("listens") is True and report.text(row.get("resource")) for row in self.sockets)


def _resources(row: t.Mapping[str, t.Any], own: t.Collection[str]) -> t.Iterator[Resource]:
    """Yield the resource if it has GPUs. ``own`` are the names, without domain, of the sockets of NVIDIA's plugin."""
    name = report.text(row.get("name"))
    allocatable = frozenset(report.texts(row.get("allocatable")))
    recorded = None if row.get("recorded") is None else frozenset(report.texts(row.get("recorded")))
    held = frozenset(device for entry in report.rows(row.get("held")) for device in report.texts(entry.get("devices")))
    is_own = _NAME.fullmatch(name) or _without_domain(name) in own
    if is_own or _bases(allocatable | held | (recorded or frozenset())):
        yield Resource(name, allocatable, recorded, held, tuple(report.rows(row.get("held"))))


def _without_domain(name: str) -> str:
    return name.rpartition("/")[2]


def _is_uuid(device: str) -> bool:
    return _DEVICE.fullmatch(device) is not None


def _base(device: str) -> str:
    """Return the UUID of a device without the number of a replica."""
    return device.partition(_REPLICA)[0]


def _bases(devices: t.Iterable[str]) -> frozenset[str]:
    return frozenset(map(_base, filter(_is_uuid, devices)))


def _listens(driver: t.Mapping[str, t.Any]) -> bool | None:
    """Return whether a program listens on a socket of a DRA driver; None if that is unknown."""
    known = [row.get("listens") for row in report.rows(driver.get("sockets")) if isinstance(row.get("listens"), bool)]
    return any(known) if known else None


# -- the kubelet and its engine --------------------------------------------------------------------------------------


def kubelet_stopped(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a kubelet that has a configuration and does not run."""
    part = facts.kubernetes
    was_set_up = bool(report.texts(part.get("config_files"))) or report.text(part.get("source"))
    if part.get("running") is not False or not was_set_up:
        return
    service = report.text(part.get("service")) or KUBELET
    message = f"The kubelet ({service}) does not run, so the node offers no GPU."
    advice = f"Start {service}, and look for the cause in its journal."
    yield report.warning("kubelet-not-responding", KUBELET, message, advice)


def engine(facts: report.HostFacts) -> report.Findings:
    """Yield findings for an engine of the kubelet with which no pod can use a GPU, or no device plugin."""
    node = NodeFacts(facts)
    if not node.applies or "engines" not in facts.collected:
        return
    endpoint, target = report.text(node.part.get("cri_endpoint")), report.text(node.part.get("engine"))
    if not endpoint:
        # A file of the kubelet cannot be read, which is a problem of the part.
        return
    if not node.engine:
        message = f"The kubelet uses the CRI endpoint {endpoint}, which belongs to no supported engine of this host."
        advice = "Correct the endpoint of the kubelet, or configure this engine yourself."
        yield report.warning("kubelet-engine-unknown", KUBELET, message, advice)
        return
    live = report.table(node.engine.get("live"))
    # CRI-O always uses CDI, and does not report it.
    uses_cdi = live.get("cdi") is True or report.facts_of(node.engine).cdi_always
    default = report.text(live.get("default_runtime")) or report.text(node.engine.get("default_runtime"))
    has_nvidia = rules_engines.has_nvidia_runtime([node.engine])
    # The plugins of other vendors, such as that of GKE, mount the driver themselves.
    is_foreign = bool(node.allocatable) and not node.offered
    if node.part.get("nri_plugin") is True and not has_nvidia and not uses_cdi:
        # With its NRI plugin, the container of the toolkit injects devices and registers no runtime (NewConfigurer in
        # cmd/nvidia-ctk-installer/container/runtime of nvidia-container-toolkit 1.20).
        return
    if not has_nvidia and not uses_cdi and not is_foreign:
        others = [
            report.target_of(row)
            for row in facts.engines
            if row is not node.engine and rules_engines.has_nvidia_runtime([row])
        ]
        other = f" The runtime is registered for {core_text.listed(others)} instead." if others else ""
        message = (
            f"The kubelet uses {target} ({endpoint}), which has no NVIDIA runtime and does not use CDI, so no pod can"
            f" use a GPU.{other}"
        )
        # Without any trace of a device plugin or a DRA driver, pods may not use the GPUs on purpose.
        is_used = node.pods or node.processes or node.resources or node.drivers or node.listens
        severity = report.CRITICAL if is_used else report.WARNING
        name, advice = "kubelet-engine-not-configured", steps.CONFIGURE_ENGINE
        yield report.Finding(severity, name, target, message, advice, report.WITHOUT_RUNTIME)
    elif (
        (node.pods or node.processes)
        and node.offers_nothing
        and not node.listens
        # A plugin that had registered GPUs has loaded NVML.
        and not node.had_devices
        and not node.has_nvidia_default
        and not node.runs_hook
    ):
        yield _without_nvml(node, target, default or "another runtime", has_nvidia)


def _without_nvml(node: NodeFacts, target: str, default: str, has_nvidia: bool) -> report.Finding:
    pods = f" ({core_text.listed(node.pods)})" if node.pods else ""
    message = (
        f"{target} starts the containers of a pod with {default} unless the pod selects the runtime nvidia, and the"
        f" device plugin{pods} has given the kubelet no device. Without this runtime it cannot load NVML and logs: did"
        " you set the docker default runtime to `nvidia`? Newer versions log: Incompatible strategy detected auto."
    )
    advice = steps.MAKE_DEFAULT if has_nvidia else steps.CONFIGURE_ENGINE
    return report.critical("pod-without-runtime", PLUGIN, message, advice, report.PLUGIN_STATES)


# -- plugins ---------------------------------------------------------------------------------------------------------


def plugins(facts: report.HostFacts) -> report.Findings:
    """Yield findings for plugins that do not serve the kubelet: they are dead, unknown to it, or missing."""
    node = NodeFacts(facts)
    if not node.applies:
        return
    dead = dict(_dead(node))
    restart = _read_log(node) or _RESTART
    for name, message in dead.items():
        advice = _RESTART_DRIVER if name == _DRA_GPU else restart
        yield report.critical("device-plugin-not-serving", name, message, advice, report.MISSING_DEVICES)
    lost = [name for name in _lost(node) if name not in dead]
    if lost:
        names = core_text.listed(lost)
        message = (
            f"The kubelet has no device of {names}, although the device plugin had registered or runs. A plugin must"
            " register again after each start of the kubelet."
        )
        yield report.critical("device-plugin-not-serving", names, message, restart, report.MISSING_DEVICES)
    was_registered = any(found.recorded is not None or found.held for found in node.resources)
    if not dead and not lost and node.offers_nothing and not was_registered:
        yield _missing(node)


def _missing(node: NodeFacts) -> report.Finding:
    """Return the finding about a node without registered plugin. It is no problem if no pod of a plugin is there."""
    running = list(map(str, node.processes))
    state = f"its process {core_text.listed(running)} runs" if running else "no process of NVIDIA's plugin runs"
    pods = f" Its pods on this node: {core_text.listed(node.pods)}." if node.pods else ""
    message = f"The node has GPUs, but no device plugin and no DRA driver offers them to the kubelet; {state}.{pods}"
    old = [row for row in node.logs if report.text(row.get("program")) and not _is_nvidia(row)]
    if old and node.has_nvidia_default:
        programs = core_text.listed(sorted({report.text(row["program"]) for row in old}))
        message = f"{message} Its pod was created with {programs}, before nvidia became the default runtime."
        advice = (
            "Delete the pod of the device plugin on this node. The kubelet restarts a container in the sandbox of its"
            " pod, with the previous runtime."
        )
        return report.critical("pod-without-runtime", PLUGIN, message, advice)
    is_expected = bool(running or node.pods)
    advice = "Run NVIDIA's device plugin on this node if pods are to request its GPUs."
    if is_expected:
        advice = _read_log(node) or _CHECK_POD
    if is_expected and node.has_nvidia_default:
        advice = f"{advice} If nvidia became the default runtime after the pod was created, delete the pod."
    severity = report.CRITICAL if is_expected else report.INFO
    return report.Finding(severity, "device-plugin-not-serving", PLUGIN, message, advice)


def _is_nvidia(row: t.Mapping[str, t.Any]) -> bool:
    return engines_base.is_nvidia_program(report.text(row.get("program")))


def _read_log(node: NodeFacts) -> str:
    """Return the advice for a plugin that ends again and again; empty for others."""
    restarted = [row for row in node.logs if (report.number(row.get("restarts")) or 0) > 0 and report.text(row["log"])]
    if node.processes or not restarted:
        return ""
    logs = core_text.listed([report.text(row["log"]) for row in restarted])
    count = max(report.number(row.get("restarts")) or 0 for row in restarted)
    return f"The plugin ended and was restarted {count} times. Read its log: {logs}."


def _dead(node: NodeFacts) -> t.Iterator[tuple[str, str]]:
    """Yield the resource or the driver of each plugin that serves nothing, and the message about it."""
    used = {
        _without_domain(found.name) for found in node.resources if found.allocatable or found.recorded or found.held
    }
    for row in node.sockets:
        name, path = report.text(row.get("resource")), report.text(row.get("path"))
        if row.get("listens") is False and node.listens and _without_domain(name) not in used:
            # A plugin that was killed leaves its sockets. With another MIG strategy it has not bound this one again.
            continue
        if name and row.get("listens") is False:
            yield name, f"The device plugin of {name} has ended: no program listens on its socket {path}."
        elif name and row.get("answers") is False:
            yield name, f"The device plugin of {name} does not answer on its socket {path}."
    for driver in node.drivers:
        name = report.text(driver.get("name"))
        if _listens(driver) is False:
            yield name, f"The DRA driver {name} has ended: no program listens on its sockets."


def _lost(node: NodeFacts) -> t.Iterator[str]:
    """Yield the resources whose plugin has lost its registration, or never had one."""
    known = {_without_domain(found.name) for found in node.resources}
    for found in node.resources:
        socket = node.socket_of(found.name)
        if node.from_api:
            # A recorded resource without devices is one whose devices are all unhealthy. Pods still hold devices of a
            # resource that the plugin offers by another name since its configuration has changed.
            before = found.held if found.recorded is None else found.recorded
            # With the MIG strategy mixed, whole GPUs are another resource than MIG devices.
            now = node.offered | gpus_in_mig_mode(node.facts)
            is_elsewhere = bool(_bases(before)) and _bases(before) <= now
            is_lost = not found.allocatable and bool(before) and not is_elsewhere
        else:
            # The kubelet removes all sockets when it starts, and its checkpoint still has the devices from before.
            is_lost = bool(found.allocatable) and not node.sockets
        if is_lost and socket.get("listens") is not False:
            yield found.name
    for row in node.sockets:
        name = report.text(row.get("resource"))
        is_unknown = name and _without_domain(name) not in known
        if is_unknown and row.get("listens") is True and report.text(node.part.get("source")):
            yield name


# -- devices ---------------------------------------------------------------------------------------------------------


def devices(facts: report.HostFacts) -> report.Findings:
    """Yield findings for devices that the kubelet does not offer: unhealthy ones, and ones that no plugin lists."""
    node = NodeFacts(facts)
    if not node.applies:
        return
    unhealthy: set[str] = set()
    for found in node.resources:
        # Pods keep their replicas after the number of replicas has changed.
        missing = _bases(found.held) - node.offered - gpus_in_mig_mode(facts)
        if missing and found.allocatable:
            message = (
                f"Pods hold devices of {found.name} that the kubelet does not offer any more:"
                f" {core_text.listed(sorted(missing))}. The device plugin has reported them unhealthy, or does not list"
                " them since its restart."
            )
            yield report.critical("devices-not-offered", found.name, message, _XID)
        elif found.recorded == frozenset() and not found.allocatable and node.socket_of(found.name).get("answers"):
            message = f"The device plugin of {found.name} runs, and reports none of its devices as healthy."
            yield report.critical("devices-not-offered", found.name, message, _XID)
        unhealthy |= missing
    offered = node.offered
    is_whole = any(row.get("mig_enabled") is True and report.text(row.get("uuid")) in offered for row in _gpus(facts))
    absent = sorted(node.usable - offered - unhealthy)
    if absent and not is_whole and offered:
        message = (
            f"The driver has {len(node.usable)} usable GPUs and MIG devices, but the kubelet does not offer"
            f" {core_text.listed(absent)}. The device plugin reads them only when it starts, and keeps a device"
            " unhealthy after a critical Xid error."
        )
        yield report.warning("devices-not-offered", PLUGIN, message, _XID)


# CheckHealth and ListAndWatch of k8s-device-plugin 0.20 (internal/rm/health.go, internal/plugin/server.go).
_XID = "Look for Xid in the kernel's log. If the GPU works, restart the pod of the device plugin on this node."


def mig(facts: report.HostFacts) -> report.Findings:
    """Yield a finding if MIG mode or the MIG devices have changed since the device plugin read them."""
    node = NodeFacts(facts)
    offered = node.offered
    if not node.applies or not offered:
        return
    gpus = _gpus(facts)
    whole = [report.text(row.get("uuid")) for row in gpus if row.get("mig_enabled") is True]
    whole = [uuid for uuid in whole if uuid in offered]
    parts = [part for row in gpus for part in report.rows(row.get("mig_devices"))]
    uuids = {report.text(part.get("uuid")) for part in parts}
    # Without NVML the UUIDs of MIG devices are unknown.
    is_known = "" not in uuids
    stale = sorted(device for device in offered if device.startswith(_MIG) and device not in uuids) if is_known else []
    messages = []
    if whole:
        messages.append(f"The kubelet offers {core_text.listed(whole)} as whole GPUs, but they are in MIG mode.")
    if stale:
        messages.append(f"The kubelet offers MIG devices that the driver does not have: {core_text.listed(stale)}.")
    if messages:
        advice = f"{_RESTART} If MIG mode is on, set its MIG strategy to single or mixed."
        yield report.critical("device-plugin-outdated", PLUGIN, " ".join(messages), advice, report.MISSING_DEVICES)


def gpus_in_mig_mode(facts: report.HostFacts) -> frozenset[str]:
    """Return the UUIDs of the GPUs that can be used only by their MIG devices."""
    rows = [row for row in _gpus(facts) if row.get("mig_enabled") is True]
    return frozenset(report.text(row.get("uuid")) for row in rows) - {""}


def _gpus(facts: report.HostFacts) -> list[dict[str, t.Any]]:
    return report.rows(facts.gpus.get("devices"))


# A rule comes before those whose findings it explains.
RULES = (kubelet_stopped, engine, mig, plugins, devices)
