# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the driver and the GPUs, and about problems that occurred while the host was read.

The problems come from the packages that read the host. The rules here add severity and advice.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, inventory, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


NOT_ROOT, FILES_NOT_READ = "not-root", "files-not-read"
_DRIVER = "driver"


# -- problems in the report ------------------------------------------------------------------------------------------


class Kind(t.NamedTuple):
    """The severity, the id and the advice of the finding for a kind of problem."""

    severity: str
    id: str
    advice: str


_FOLLOW = "Follow the advice in the message."
_DENIED = Kind(report.WARNING, errors.PermissionDeniedError.code, _FOLLOW)
_OTHER = Kind(report.WARNING, "problem", _FOLLOW)
_NOUVEAU = "Install NVIDIA's driver, keep nouveau from loading, and restart the host."
_PACKAGE = "Install the package that the message names, then inspect the host again."
_HALF = "Or install the toolkit again with nvidia_toolkit_install. It completes these packages and no others."
_JOURNAL = "Look for the cause in the journal of its unit."
_UNREADABLE = "Do this before the engine restarts: it does not start with a file that it cannot read."
_CONFIG_TOML = "NVIDIA's runtime starts no container with a file that it cannot read."

# The key is the part of the report, then the code of the problem.
KINDS: dict[str, dict[str, Kind]] = {
    "engines": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _UNREADABLE),
        "engine-not-responding": Kind(report.WARNING, "engine-not-responding", _JOURNAL),
    },
    "toolkit": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _CONFIG_TOML),
        "package-half-installed": Kind(report.WARNING, "package-half-installed", _HALF),
    },
    "gpus": {
        "gpu-driven-by-nouveau": Kind(report.CRITICAL, "gpu-driven-by-nouveau", _NOUVEAU),
        "gpu-without-driver": Kind(
            report.CRITICAL, "gpu-without-driver", "Install NVIDIA's driver, or load it with modprobe nvidia."
        ),
        "driver-modules-differ": Kind(report.CRITICAL, "driver-modules-differ", "Restart the host."),
        "driver-library-differs": Kind(
            report.CRITICAL, "driver-library-differs", "Restart the host, or load the installed kernel module."
        ),
    },
    "cdi": {
        "cdi-refresh-failed": Kind(
            report.WARNING, "cdi-refresh-failed", "Correct the cause, then start the service again."
        ),
        "cdi-refresh-duplicate": Kind(
            report.WARNING, "cdi-refresh-duplicate", "Disable one of them with nvidia_cdi_refresh."
        ),
    },
    "kubernetes": {
        "pod-resources-not-responding": Kind(report.WARNING, "pod-resources-not-responding", _FOLLOW),
    },
}


def problems(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for each problem in the report.

    A problem that is also a reason why a GPU cannot be used is reported with that GPU.
    """
    for engine in facts.engines:
        yield from _of_part("engines", report.target_of(engine), report.target_of(engine), engine)
    yield from _of_part("toolkit", "toolkit", "toolkit", facts.toolkit)
    devices = report.rows(facts.gpus.get("devices"))
    reasons = {reason for gpu in devices for reason in report.problems_in(gpu.get("reasons"))}
    yield from _of_part("gpus", _DRIVER, "gpus", facts.gpus, reasons)
    yield from _of_part("cdi", facts.refresh_service, "cdi", facts.cdi)
    yield from _of_part("kubernetes", "kubelet", "kubelet", facts.kubernetes)


def _of_part(
    name: str, subject: str, other: str, part: t.Mapping[str, t.Any], reported: t.Collection[errors.Problem] = ()
) -> report.Findings:
    """Yield the findings of one part: on ``subject`` for problems of a known kind, on ``other`` for the rest."""
    for problem in report.problems_in(part.get("problems")):
        kind = KINDS[name].get(problem.code)
        if problem.code == errors.MissingPackageError.code:
            yield unread_files(problem.message)
        elif kind is not None:
            yield report.Finding(kind.severity, kind.id, subject, problem.message, kind.advice)
        elif problem not in reported:
            kind = _DENIED if problem.code == errors.PermissionDeniedError.code else _OTHER
            yield report.Finding(kind.severity, kind.id, other, problem.message, kind.advice)


def unread_files(message: str) -> report.Finding:
    """Return the finding for files that need a Python package which this host lacks."""
    return report.warning(FILES_NOT_READ, "host", message, _PACKAGE)


# -- a task without root's permissions -------------------------------------------------------------------------------


def without_root(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield one finding with all files that the task's user may not read."""
    uid = os.geteuid()
    denied = [path for path in _paths(facts) if is_denied(host, path)] if uid else []
    if denied:
        message = f"The task runs as user {uid}, not as root. It cannot read {core_text.listed(denied)}."
        yield report.warning(NOT_ROOT, "host", f"{message} Findings may be missing.", "Run with -b (become).")


def _paths(facts: report.HostFacts) -> list[str]:
    """Return the known files and directories that the report depends on."""
    paths = [
        core_records.STATE_DIR,
        *core_constants.CDI_SPEC_DIRS,
        *gpu_containers.BUNDLE_FOLDERS,
        report.text(facts.toolkit.get("config_path")),
        report.text(facts.kubernetes.get("root_dir")),
    ]
    paths += [path for flavor in flavors.FLAVORS.values() for path in flavor.paths]
    for engine in facts.engines:
        socket = report.text(engine.get("socket")) if engine.get("running") is True else ""
        paths += [report.text(engine.get("config_path")), *report.texts(engine.get("unit_files")), socket]
    return [path for path in dict.fromkeys(paths) if path]


def is_denied(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the task's user may not use ``path``, or may not find out whether it exists."""
    try:
        process_path = host.real_path(path)
        mode = os.stat(process_path).st_mode
    except (PermissionError, errors.PermissionDeniedError):
        return True
    except (errors.HostError, OSError, ValueError):
        return False
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.W_OK if stat.S_ISSOCK(mode) else os.R_OK
    return not os.access(process_path, needed, effective_ids=True)


# -- GPUs and driver -------------------------------------------------------------------------------------------------

# The number of messages that a finding quotes.
_QUOTED = 5
_RECREATE = (
    "Run nvidia-smi as root, which creates the nodes, after each change of the MIG devices. Then write the CDI"
    " specification again."
)
_READ_LOG = "Follow the advice in the message. If it has none, look for NVRM and Xid in the kernel's log."


def driver(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a GPU on the PCI bus without a loaded driver, unless the part on GPUs reports it."""
    codes = {problem.code for problem in report.problems_in(facts.gpus.get("problems"))}
    is_reported = codes & {"gpu-driven-by-nouveau", "gpu-without-driver"}
    if report.table(facts.toolkit.get("gpu")).get("kind") == procfs.PCI and not is_reported:
        message = "The host has a GPU, but NVIDIA's driver is not loaded."
        advice = "Load it with modprobe nvidia. If that fails, look for NVRM in the kernel's log."
        yield report.critical("driver-not-loaded", _DRIVER, message, advice)


def devices(facts: report.HostFacts) -> report.Findings:
    """Yield findings for unusable GPUs and MIG devices: one finding for all with the same reasons."""
    unusable: dict[tuple[str, tuple[str, ...]], list[tuple[str, list[str]]]] = {}
    for position, gpu in enumerate(report.rows(facts.gpus.get("devices"))):
        index = report.number(gpu.get("index"))
        name = f"gpu {position if index is None else index}"
        reasons = report.problems_in(gpu.get("reasons"))
        if gpu.get("healthy") is False and not _is_reported_with_nodes(facts, reasons):
            messages = [reason.message for reason in reasons]
            unusable.setdefault(("gpu-unusable", tuple(messages)), []).append((name, messages))
        parts = report.rows(gpu.get("mig_devices"))
        for part_position, part in enumerate(parts):
            own = [reason for reason in report.problems_in(part.get("reasons")) if reason not in reasons]
            if part.get("healthy") is False and own:
                index = report.number(part.get("index"))
                messages = [reason.message for reason in own]
                # Missing nodes of MIG devices always have the same cause.
                is_node = any(reason.code == inventory.MIG_NODE for reason in own)
                key = ("mig-without-capability", ()) if is_node else ("mig-unusable", tuple(messages))
                part_name = f"{name}, MIG {part_position if index is None else index}"
                unusable.setdefault(key, []).append((part_name, messages))
        if gpu.get("mig_enabled") is True and not parts:
            message = "The GPU is in MIG mode and has no MIG devices, so no container can use it."
            advice = "Create MIG devices (nvidia-smi mig -cgi … -C), or disable MIG mode."
            yield report.warning("mig-without-devices", name, message, advice)
    for (kind, _reasons), found in unusable.items():
        messages = list(dict.fromkeys(message for _name, own_messages in found for message in own_messages))
        text = " ".join(messages[:_QUOTED]) or "Containers cannot use it."
        advice = _RECREATE if kind == "mig-without-capability" else _READ_LOG
        yield report.critical(kind, core_text.listed([name for name, _messages in found]), text, advice)


def _is_reported_with_nodes(facts: report.HostFacts, reasons: t.Sequence[errors.Problem]) -> bool:
    """Return whether all reasons are device nodes that the finding about missing nodes lists."""
    has_missing = bool(reasons and report.rows(facts.gpus.get("missing_nodes")))
    return has_missing and all(reason.code == inventory.NODE for reason in reasons)


def nodes(facts: report.HostFacts) -> report.Findings:
    """Yield findings for missing device nodes: one finding for all nodes that the same command creates."""
    by_advice: dict[str, list[str]] = {}
    for node in report.rows(facts.gpus.get("missing_nodes")):
        if report.text(node.get("path")):
            advice = report.text(node.get("advice")) or "Run nvidia-smi as root."
            by_advice.setdefault(advice, []).append(report.text(node["path"]))
    for advice, paths in by_advice.items():
        is_needed = any(path in device_nodes.NEEDED_NODES for path in paths)
        severity = report.CRITICAL if is_needed else report.WARNING
        yield report.Finding(
            severity, "device-node-missing", paths[0], f"Missing device nodes: {core_text.listed(paths)}.", advice
        )


def modules(facts: report.HostFacts) -> report.Findings:
    """Yield a finding if nvidia_uvm is not loaded: CUDA needs it, and a container cannot load it."""
    loaded = report.table(facts.gpus.get("modules"))
    if "nvidia" in loaded and "nvidia_uvm" not in loaded:
        message = "The kernel module nvidia_uvm, which CUDA needs, is not loaded."
        yield report.warning("uvm-not-loaded", _DRIVER, message, "Load it with nvidia-modprobe -u -c 0.")


RULES = (problems, driver, devices, nodes, modules)
HOST_RULES = (without_root,)
