# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: pods through CRI-O's runtimes.  After a reload it tells of runtimes that no pod can use,
# so where its client is at hand a pod is the proof.

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import mask_urls
from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import scratch_folder

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

_PROGRAM = "crictl"
# A pod without containers writes nothing there.
_LOGS = "/tmp"
# What CRI-O 1.37 says of a runtime that it does not have; anything else may have other causes (no image, no network).
_UNKNOWN = "failed to find runtime handler"
# NamespaceMode.NODE of the CRI: in the host's network nothing has to be set up.
_HOST_NETWORK = 2


def try_runtimes(
    host: HostRoot, run: Runner, socket_path: str, runtimes: t.Sequence[str]
) -> tuple[list[str], list[str]]:
    """Start a pod through each of ``runtimes`` and remove it: what the daemon lacks, and what could not be tried."""
    program = host.find_executable([_PROGRAM])
    if program is None:
        return [], []
    crictl = [program, "--runtime-endpoint", f"unix://{socket_path}"]
    lacks: list[str] = []
    untried: list[str] = []
    for name in runtimes:
        said = _try(host, run, crictl, name)
        if _UNKNOWN in said:
            lacks.append(f"no pod can use the runtime {name}: {said}")
        elif said:
            untried.append(f"No pod could be started through the runtime {name}, which may have other causes: {said}")
    return lacks, untried


def _try(host: HostRoot, run: Runner, crictl: t.Sequence[str], runtime: str) -> str:
    """What the CRI has against a pod with that runtime; empty if it started one."""
    try:
        with scratch_folder(host, "the pod") as (outer, folder):
            with open(os.path.join(outer, "pod.json"), "w", encoding="utf-8") as stream:
                json.dump(_pod(runtime), stream)
            return _start(host, run, crictl, ["--runtime", runtime, f"{folder}/pod.json"])
    except HostError as error:
        return str(error)


def _start(host: HostRoot, run: Runner, crictl: t.Sequence[str], words: t.Sequence[str]) -> str:
    status, output, errors = run(host.argv([*crictl, "runp", *words]))
    if status:
        return mask_urls((errors.strip() or output.strip() or f"crictl ended with status {status}").rstrip("."))
    for action in ("stopp", "rmp"):
        run(host.argv([*crictl, action, output.strip()]))
    return ""


def _pod(runtime: str) -> dict[str, t.Any]:
    name = f"gpufleet-{runtime}"
    return {
        "metadata": {"name": name, "namespace": "gpufleet", "uid": f"{name}-{os.getpid()}"},
        "log_directory": _LOGS,
        "linux": {"security_context": {"namespace_options": {"network": _HOST_NETWORK}}},
    }
