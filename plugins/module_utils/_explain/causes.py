# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find possible causes for a container without its GPUs: findings of the audit about its host and its engine.

No rule about hosts is here. This file only selects findings by the way in which the container gets its GPUs.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report as audit_report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import error_texts

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


class Cause(t.NamedTuple):
    """A possible cause: a stable code, a message, and a step. The step is empty if none is known."""

    code: str
    message: str
    advice: str = ""


# The findings that can be a cause, in the order in which they are listed: those about the driver and its GPUs, about
# CDI, about the toolkit and its runtimes, and about pods.
_OF_HOST = (
    "gpu-driven-by-nouveau", "driver-not-loaded", "driver-version-differs", "driver-library-missing",
    "reboot-required", "device-node-missing", "uvm-not-loaded", "gpu-unusable", "mig-without-devices",
    "fabric-manager-unusable", "config-unreadable", "restart-pending", "engine-release-fails", "setting-defined-twice",
)  # fmt: skip
_OF_CDI = (
    "cdi-off", "cdi-unsupported", "docker-needs-cdi", "cdi-directory-not-read", "cdi-invalid", "cdi-conflict",
    "cdi-stale", "cdi-file-ignored", "cdi-refresh-failed",
)  # fmt: skip
_OF_TOOLKIT = (
    "toolkit-missing", "toolkit-inconsistent", "hook-missing", "setting-refused", "setting-invalid",
    "runtime-missing", "default-runtime-without-gpu", "legacy-file", "gpus-not-configured",
)  # fmt: skip
_OF_PODS = (
    "kubelet-not-responding", "kubelet-engine-not-configured", "engine-not-responding", "cri-disabled", "cdi-off",
    "pod-without-runtime", "device-plugin-not-serving", "device-plugin-outdated", "devices-not-offered",
)  # fmt: skip
_WITH_CRI = tuple(name for name, facts in flavors.FACTS.items() if facts.cri)
_PARTS = ("gpus", "toolkit", "cdi", "engines", "findings")


def find_causes(
    container: explain_record.Container, target: str, error: str, host: hostfs.HostFS, run: core_plan.Runner
) -> list[Cause]:
    """Return possible causes in a fixed order.

    ``target`` is the engine of the container, such as docker or containerd/k3s; empty: unknown. ``error`` is the
    engine's last error, empty without one.
    """
    found = _of_record(container)
    parts = [*_PARTS, *(["kubernetes"] if container.in_pod else [])]
    report = host_info.describe_host(host, run, parts)
    # A container of which no engine is known may be in each engine of its kind.
    key, own = ("target", target) if target else ("engine", container.engine)
    others = {engine["target"] for engine in report["engines"] or () if engine[key] != own}
    found += _of_findings(container, [one for one in report["findings"] or () if one["subject"] not in others])
    if error:
        known = error_texts.find(error)
        code, advice = ("start-failed", "") if known is None else (known.code, known.advice)
        found.append(Cause(code, f"{container.engine} reported: {error}", advice))
    return found


def _of_record(container: explain_record.Container) -> list[Cause]:
    """Return what the record of the engine itself shows: requests that only NVIDIA's runtime or hook reads."""
    read = {explain_record.VARIABLE, explain_record.MOUNT}
    # Engines without a CRI pass annotations only on to the runtime.
    read |= set() if container.engine in _WITH_CRI else {explain_record.ANNOTATION}
    kinds = {request.kind for request in container.requests}
    is_nvidia = engines_base.is_nvidia_runtime(container.runtime, container.program)
    if not kinds or kinds - read or is_nvidia or not container.runtime:
        return []
    message = (
        f"Only {container.requests[0].value} requests GPUs, but its runtime {container.runtime} is none of NVIDIA."
    )
    return [Cause("runtime-not-nvidia", message, "Create it again with the runtime of NVIDIA, or with a CDI device.")]


def _of_findings(container: explain_record.Container, findings: t.Iterable[t.Mapping[str, str]]) -> list[Cause]:
    """Return those of the findings that apply to the way in which ``container`` gets its GPUs."""
    kinds = {request.kind for request in container.requests}
    # Docker 29.2 and newer uses CDI for --gpus.
    by_cdi = bool(kinds & {explain_record.CDI, explain_record.ANNOTATION, explain_record.GPUS}) or not kinds
    by_toolkit = bool(kinds - {explain_record.CDI, explain_record.DEVICE}) or not kinds
    order = [
        *_OF_HOST,
        *(_OF_CDI if by_cdi else ()),
        *(_OF_TOOLKIT if by_toolkit else ()),
        *(_OF_PODS if container.in_pod else ()),
    ]
    own = [one for one in findings if one["id"] in order and one["severity"] != audit_report.INFO]
    own.sort(key=lambda finding: order.index(finding["id"]))
    return [Cause(finding["id"], finding["text"], finding["advice"]) for finding in own]
