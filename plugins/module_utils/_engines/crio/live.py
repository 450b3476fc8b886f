# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run pods with crictl to check the runtimes of a running CRI-O.

The pods contain no containers. This module does not decide what follows from the result.
"""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import scratch
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_PROGRAM = "crictl"
# Marks the pods, so that a later run finds and removes a pod that an interrupted run left.
_LABEL = "gpufleet.nvidia.restart"
# A pod without containers writes no logs.
_LOGS = "/tmp"
# CRI-O 1.37 reports this for a runtime that it does not define. Other errors may have other causes, such as a missing
# image or network.
_UNKNOWN = "failed to find runtime handler"
# NamespaceMode.NODE of the CRI. A pod in the host's network needs no network setup.
_HOST_NETWORK = 2


def check_runtimes(
    host: hostfs.HostFS, run: core_plan.Runner, socket_path: str, runtimes: t.Sequence[str]
) -> tuple[list[str], list[str]]:
    """Start a pod through each of ``runtimes`` and remove it.

    Returns the problems of the daemon, and warnings. The warnings name runtimes that could not be checked, and pods
    that could not be removed. Both lists are empty if the host has no crictl.
    """
    program = host.find_executable([_PROGRAM])
    if program is None:
        return [], []
    crictl = _Crictl(host, run, (program, "--runtime-endpoint", f"unix://{socket_path}"))
    lacks: list[str] = []
    warnings = crictl.remove_pods()
    for name in runtimes:
        if warnings:
            # A CRI with problems may delay every further command.
            break
        said = crictl.start_pod(name)
        if _UNKNOWN in said:
            lacks.append(f"no pod can use the runtime {name}: {said}")
        elif said:
            warnings.append(f"No pod could be started through the runtime {name}, which may have other causes: {said}")
        # This also runs after an error, because the CRI may have created the pod before it failed.
        warnings += crictl.remove_pods()
    return lacks, warnings


class _Crictl(t.NamedTuple):
    """The crictl of the host. ``argv`` is the program with the socket."""

    host: hostfs.HostFS
    run: core_plan.Runner
    argv: tuple[str, ...]

    def start_pod(self, runtime: str) -> str:
        """Start a pod through the runtime. Return the error message; empty on success."""
        try:
            with scratch.scratch_folder(self.host, "the pod") as (outer, folder):
                with open(os.path.join(outer, "pod.json"), "w", encoding="utf-8") as stream:
                    json.dump(_pod(runtime), stream)
                return self._call("runp", "--runtime", runtime, f"{folder}/pod.json")[1]
        except (core_errors.HostError, OSError) as error:
            return str(error)

    def remove_pods(self) -> list[str]:
        """Remove all pods that have the label. Return a warning for each command that fails."""
        listed, problem = self._call("pods", "--quiet", "--label", f"{_LABEL}=1")
        if problem:
            return [f"Pods that a test of a runtime has left could not be listed: {problem}"]
        warnings = []
        for pod in listed.split():
            # crictl can often remove a pod that it cannot stop.
            for verb in ("stopp", "rmp"):
                problem = self._call(verb, pod)[1]
                if problem:
                    warnings.append(
                        f"`{_PROGRAM} {verb}` of the pod {pod}, with which a runtime was tested, failed: {problem}. If"
                        f" `{_PROGRAM} pods` still lists the pod, run `{_PROGRAM} rmp --force {pod}` on the host."
                    )
        return warnings

    def _call(self, *arguments: str) -> tuple[str, str]:
        """Run a command. Return its output and the error message, which is empty on success."""
        status, output, errors = self.run(self.host.argv([*self.argv, *arguments]))
        if not status:
            return output, ""
        problem = errors.strip() or output.strip() or f"crictl {arguments[0]} ended with status {status}"
        return "", masking.mask_urls(problem.rstrip("."))


def _pod(runtime: str) -> dict[str, t.Any]:
    name = f"gpufleet-{runtime}"
    return {
        "metadata": {"name": name, "namespace": "gpufleet", "uid": f"{name}-{os.getpid()}"},
        "labels": {_LABEL: "1"},
        "log_directory": _LOGS,
        "linux": {"security_context": {"namespace_options": {"network": _HOST_NETWORK}}},
    }
