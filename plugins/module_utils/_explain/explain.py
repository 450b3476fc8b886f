# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explain one existing container: what it has, what it requested, what a copy of it gets, and possible causes.

The parts are measured, read from the engine, or tried. ``decide.py`` draws the only conclusion from them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import causes as explain_causes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import copies as explain_copies
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import decide as explain_decide
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import record as explain_record

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import search as explain_search


# The longest text and the longest list that a container can put into the result.
LONGEST, MOST = 2000, 1000
# Codes with which there is no cause to look for.
_WITHOUT_CAUSE = ("no-gpu-requested", "other-kernel")
_CUDA = "CUDA_VISIBLE_DEVICES"


class CopyOptions(t.NamedTuple):
    """Whether to start a copy of the container, the image for a copy in a pod, and its time limit in seconds."""

    enabled: bool = False
    image: str | None = None
    timeout: float = 60.0


class _Copy(t.NamedTuple):
    """What a copy of the container has, and the verdict about it. ``error`` is that of its failed start."""

    verdict: explain_decide.Verdict
    contents: explain_contents.Contents | None = None
    error: str = ""
    cleanup_error: str = ""


def explain(
    found: explain_search.FoundContainer, copy: CopyOptions, host: hostfs.HostFS, run: core_plan.Runner
) -> dict[str, t.Any]:
    """Return the result of the module, as it documents it."""
    container = found.container
    facts = explain_host.read_host(host)
    contents = None if container.pid is None else explain_contents.read_contents(host, container.pid)
    verdict = explain_decide.decide(container, facts, contents)
    tried = _try(found, copy, facts, host, run) if copy.enabled else None
    if tried is not None and contents is None and verdict.ok is None:
        # The toolkit gives an image with only CUDA_VERSION all GPUs, so a copy may get what the record does not show.
        verdict = tried.verdict if verdict.code == "not-running" or tried.verdict.ok else verdict
    causes = _causes(found, verdict, tried, host, run)
    advice = verdict.advice
    if verdict.code == "devices-missing":
        hint = "" if copy.enabled else f" If that does not help, run the task with {errors.option:try_copy}: true."
        advice = next((cause.advice for cause in causes if cause.advice), f"{advice}{hint}")
    result = {
        "ok": verdict.ok,
        "code": verdict.code,
        "message": f"{container.shown}: {verdict.message}{_remark(container, verdict)}",
        "advice": advice,
        "has": None if contents is None else _has(contents, facts),
        "asked": _asked(container),
        "tried": None if tried is None else _tried(tried, facts),
        "causes": [cause._asdict() for cause in causes],
    }
    warnings = [tried.cleanup_error] if tried is not None and tried.cleanup_error else []
    return {"changed": False, "explanation": _bounded(result), **({"warnings": warnings} if warnings else {})}


def _remark(container: explain_record.Container, verdict: explain_decide.Verdict) -> str:
    if not verdict.ok or _CUDA not in container.variables:
        return ""
    return f" CUDA uses only the GPUs that {_CUDA}={container.variables[_CUDA]} selects."


def _try(
    found: explain_search.FoundContainer,
    copy: CopyOptions,
    facts: explain_host.ExplainedHost,
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> _Copy:
    """Start a copy of the container, and return what it has."""
    measured: list[explain_contents.Contents] = []

    def measure(pid: int) -> None:
        measured.append(explain_contents.read_contents(host, pid))

    result = explain_copies.try_copy(
        found.container, found.engine, copy.image, host, run, measure=measure, timeout=copy.timeout
    )
    if result.error:
        verdict = explain_decide.failed_start("A copy of it did not start", result.error)
        return _Copy(verdict, error=result.error, cleanup_error=result.cleanup_error)
    if result.reason or not measured:
        verdict = explain_decide.unknown(
            "copy-unknown", f"A copy of it was not measured: {result.reason}.", result.advice
        )
        return _Copy(verdict, cleanup_error=result.cleanup_error)
    running = found.container._replace(state=explain_record.RUNNING, error="")
    verdict = explain_decide.decide(running, facts, measured[-1])
    if verdict.code == "nodes-denied" and not result.groups_known:
        message = f"{verdict.message} The groups of its user in the image may permit it."
        verdict = explain_decide.unknown("access-unknown", message, verdict.advice)
    verdict = verdict._replace(message=f"A copy of it was measured. {verdict.message}")
    return _Copy(verdict, measured[-1], cleanup_error=result.cleanup_error)


def _causes(
    explained: explain_search.FoundContainer,
    verdict: explain_decide.Verdict,
    tried: _Copy | None,
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> list[explain_causes.Cause]:
    if verdict.ok or verdict.code in _WITHOUT_CAUSE:
        return []
    error = (tried.error if tried is not None else "") or explained.container.error
    found = explain_causes.find_causes(explained.container, explained.engine.target, error, host, run)
    if tried is not None and tried.verdict.ok and verdict.ok is False:
        message = "A copy of the container that was started now has its GPUs."
        advice = "Create the container again. If it fails, look at its volumes, network and command: the copy has none."
        found.insert(0, explain_causes.Cause("copy-has-gpus", message, advice))
    return found


# -- the result --------------------------------------------------------------------------------------------------------


def _has(contents: explain_contents.Contents, facts: explain_host.ExplainedHost) -> dict[str, t.Any]:
    measured = contents.measured
    return {
        "gpus": explain_decide.gpu_names(facts, measured.nodes),
        "nodes": [node._asdict() for node in measured.nodes],
        "files": [{"path": file.path, "version": file.version or None} for file in contents.files],
        "user": measured.user,
        "problem": measured.problem,
        "access_problem": measured.access_problem,
    }


def _asked(container: explain_record.Container) -> dict[str, t.Any]:
    return {
        "engine": container.engine,
        "id": container.identifier,
        "name": container.name,
        "state": container.state,
        "pid": container.pid,
        "error": container.error,
        "runtime": container.runtime,
        "program": container.program,
        "requests": [
            {"kind": one.kind, "value": one.value, "source": one.source, "gpus": list(one.names)}
            for one in container.requests
        ],
        "variables": dict(sorted(container.variables.items())),
    }


def _tried(tried: _Copy, facts: explain_host.ExplainedHost) -> dict[str, t.Any]:
    return {
        **tried.verdict._asdict(),
        "error": tried.error,
        "has": None if tried.contents is None else _has(tried.contents, facts),
    }


def _bounded(value: t.Any) -> t.Any:
    """Return ``value`` with texts in one line and without passwords, and with bounded texts and lists."""
    if isinstance(value, str):
        return masking.mask_urls_in_string(" ".join(value.split()))[:LONGEST]
    if isinstance(value, dict):
        return {name[:LONGEST]: _bounded(one) for name, one in list(value.items())[:MOST]}
    if isinstance(value, list):
        return [_bounded(one) for one in value[:MOST]]
    return value
