# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run pods with crictl to check the runtimes of a running CRI-O."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_PROGRAM = "crictl"
# Marks the pods, so that a later run finds those of an interrupted run.
_LABEL = "gpufleet.nvidia.restart"
# A pod without containers writes nothing there.
_LOGS = "/tmp"
# CRI-O's error for an undefined runtime (1.37). Any other error may have other causes, such as the network.
_UNKNOWN = "failed to find runtime handler"
# NamespaceMode.NODE of the CRI: in the host's network nothing has to be set up.
_HOST_NETWORK = 2


def check_runtimes(
    host: hostfs.HostFS, run: core_plan.Runner, socket_path: str, runtimes: t.Sequence[str]
) -> tuple[list[str], list[str]]:
    """Start a pod with each of ``runtimes`` and remove it. Return the undefined runtimes and warnings, as messages.

    The warnings name the runtimes that were not tested, or not conclusively, and pods that could not be removed.
    """
    program = host.find_executable([_PROGRAM])
    if program is None:
        return [], []
    crictl = _Crictl(host, run, (program, "--runtime-endpoint", f"unix://{socket_path}"))
    problems: list[str] = []
    warnings: list[str] = []
    leftovers = crictl.remove_pods()
    for index, name in enumerate(runtimes):
        if leftovers:
            # A CRI that cannot remove a pod may take long for each further command.
            untested = ", ".join(runtimes[index:])
            leftovers.append(f"Test pods may still exist, so these runtimes were not tested: {untested}.")
            break
        error = crictl.start_pod(name)
        if _UNKNOWN in error:
            problems.append(f"no pod can use the runtime {name}: {error}")
        elif error:
            warnings.append(f"The test pod with the runtime {name} did not start. This may have other causes: {error}")
        # The CRI may have created the pod before the error.
        leftovers = crictl.remove_pods()
    return problems, warnings + leftovers


class _Crictl(t.NamedTuple):
    """The client on the host; ``argv`` is its program with the socket."""

    host: hostfs.HostFS
    run: core_plan.Runner
    argv: tuple[str, ...]

    def start_pod(self, runtime: str) -> str:
        """Start a pod with the runtime. Return the error message, empty if the pod started."""
        try:
            with lock.temp_directory(self.host, "the pod") as (process_path, folder):
                with open(os.path.join(process_path, "pod.json"), "w", encoding="utf-8") as stream:
                    json.dump(_pod(runtime), stream)
                return self._call("runp", "--runtime", runtime, f"{folder}/pod.json")[1]
        except (core_errors.HostError, OSError) as error:
            return str(error)

    def remove_pods(self) -> list[str]:
        """Remove all pods that have the label. Return a warning for each pod that cannot be removed."""
        listed, problem = self._call("pods", "--quiet", "--label", f"{_LABEL}=1")
        if problem:
            return [f"Leftover test pods could not be listed: {problem}"]
        return [warning for pod in listed.split() for warning in self._remove_pod(pod)]

    def _remove_pod(self, pod: str) -> list[str]:
        # A pod that cannot be stopped can often be removed nevertheless.
        problems = {verb: self._call(verb, pod)[1] for verb in ("stopp", "rmp")}
        if not problems["rmp"]:
            return []
        return [
            f"`{_PROGRAM} {verb}` failed for the test pod {pod}: {problem}. If `{_PROGRAM} pods` still lists the pod,"
            f" run `{_PROGRAM} rmp --force {pod}` on the host."
            for verb, problem in problems.items()
            if problem
        ]

    def _call(self, *arguments: str) -> tuple[str, str]:
        """Run a command. Return its output and its error message, empty if it succeeded."""
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
