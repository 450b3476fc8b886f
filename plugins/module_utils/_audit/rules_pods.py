# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the pods of a Kubernetes node: why they get no GPU although the node offers one."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import (
    report,
    rules_engines,
    rules_kubernetes,
    steps,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import strategies

# With these strategies, only a runtime of NVIDIA adds the devices. With the others, the engine does it by CDI.
_BY_RUNTIME = frozenset((strategies.ENVVAR, strategies.VOLUME_MOUNTS))
_BY_CDI = frozenset((strategies.CDI_ANNOTATIONS, strategies.CDI_CRI))


def injection(facts: report.HostFacts) -> report.Findings:
    """Yield findings for an engine that cannot add the devices in the way in which the device plugin passes them on.

    Of the runtime nvidia, only the default is used by pods without a RuntimeClass.
    """
    node = rules_kubernetes.NodeFacts(facts)
    names = frozenset(report.texts(node.part.get("device_list_strategies")))
    if not node.applies or not node.engine or not node.offered or not names:
        return
    target, shown = report.target_of(node.engine), core_text.listed(sorted(names))
    live = report.table(node.engine.get("live"))
    cdi = report.facts_of(node.engine).cdi_always or live.get("cdi")
    has_runtime = rules_engines.has_nvidia_runtime([node.engine])
    has_nri = node.part.get("nri_plugin") is True
    if names <= _BY_RUNTIME and node.runs_hook:
        # The hook reads what the runtime would read.
        return
    if names <= _BY_RUNTIME and not has_runtime and cdi is True and not has_nri:
        message = (
            f"The device plugin passes GPUs on with the strategy {shown}, which needs a runtime of NVIDIA, but {target}"
            " has none. CDI of the engine does not read this, so new pods get no GPU."
        )
        yield report.critical("kubelet-engine-not-configured", target, message, steps.REGISTER_FOR_PODS)
    elif names <= _BY_CDI and cdi is False and not (strategies.CDI_ANNOTATIONS in names and node.has_nvidia_default):
        # The runtime of NVIDIA also reads annotations.
        message = f"The device plugin passes GPUs on with the strategy {shown}, but CDI is off in {target}."
        message = f"{message} New pods get no GPU."
        advice = report.cdi_advice(node.engine, steps.ENABLE_CDI)
        yield report.critical("cdi-off", target, message, advice)
    elif names <= _BY_RUNTIME and has_runtime:
        yield from _without_runtime(node, target)


def _without_runtime(node: rules_kubernetes.NodeFacts, target: str) -> report.Findings:
    """Yield a finding for pods that hold GPUs, and whose containers were started with another runtime."""
    held = [entry for found in node.resources for entry in found.entries]
    wrong = [entry for entry in held if report.text(entry.get("program")) and not _is_nvidia(entry)]
    if not wrong:
        return
    programs = core_text.listed(sorted({report.text(entry["program"]) for entry in wrong}))
    message = (
        f"These pods hold GPUs, but {target} has started their containers with {programs}, which adds none:"
        f" {core_text.listed(_pods(wrong))}."
    )
    if node.has_nvidia_default:
        message = f"{message} nvidia is the default runtime now."
    advice = steps.DELETE_PODS if node.has_nvidia_default else f"{steps.SELECT_RUNTIME} {steps.DELETE_PODS}"
    yield report.critical("pod-without-runtime", target, message, advice)


def _is_nvidia(entry: t.Mapping[str, t.Any]) -> bool:
    return engines_base.is_nvidia_program(report.text(entry.get("program")))


def _pods(entries: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """Return the pods as NAMESPACE/POD, or their UIDs if only these are known."""
    names = [(report.text(entry.get("namespace")), report.text(entry.get("pod"))) for entry in entries]
    return list(dict.fromkeys(f"{namespace}/{pod}" if namespace else f"the pod {pod}" for namespace, pod in names))


RULES = (injection,)
