# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The result of one step of an explanation, and the module's result from all steps. It is pure."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import rules as explain_rules
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import container as explain_container
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as hosts


# Codes of steps that a container has only later, or that do not apply to it. They leave no question open.
NOT_STARTED, EXITED, CONTENTS_LATER, NOT_COMPARED = "not-started", "exited", "contents-later", "driver-not-compared"
_LATER = (NOT_STARTED, EXITED, CONTENTS_LATER, NOT_COMPARED)
# The longest name or value of a variable, message, or text of an engine in the result, and the maximum number of
# requested devices and of variables in it. A container chooses its variables.
LONGEST = 2000
MOST = 1000


class Step(t.NamedTuple):
    """The result of one step.

    ``ok`` is None if it is unknown, or does not apply yet. A passed step with an ``advice`` is a remark: the container
    gets its GPUs, but something limits what it can do with them.
    """

    name: str
    ok: bool | None
    code: str
    message: str
    advice: str = ""


def passed(name: str, code: str, message: str) -> Step:
    return Step(name, ok=True, code=code, message=message)


def failed(name: str, code: str, problem: str, advice: str) -> Step:
    """Return a failed step. ``problem`` is a sentence without its full stop."""
    return Step(name, ok=False, code=code, message=f"{problem}.", advice=advice)


def remark(name: str, code: str, remarks: t.Sequence[tuple[str, str]]) -> Step:
    """Return a passed step with remarks: sentences without full stop, each with its advice."""
    message = " ".join(f"{problem}." for problem, _advice in remarks)
    return Step(name, ok=True, code=code, message=message, advice=" ".join(advice for _problem, advice in remarks))


def only_at_start(step: Step) -> Step:
    """Return the remark for a failed ``step`` that the container, which runs, has only at its next start."""
    problem = f"At its next start, it does not get its GPUs: {step.message.rstrip('.')}"
    return remark(step.name, step.code, [(problem, step.advice)])


def unknown(name: str, code: str, message: str, advice: str = "") -> Step:
    return Step(name, ok=None, code=code, message=message, advice=advice)


def summarize(
    container: explain_container.Container,
    host: hosts.ExplainedHost,
    steps: t.Sequence[Step],
    details: t.Mapping[str, t.Any],
    success: str,
) -> dict[str, t.Any]:
    """Return the module's result: the first step that decides in one sentence, all steps, and the details.

    That is the first failed step, otherwise the first one whose result is not known and whose code is not in _LATER.
    Without such a step, the message is ``success`` with all remarks. ``details`` are the other keys of the result, one
    of which is ``requested``.
    """
    steps = [step._replace(message=step.message[:LONGEST], advice=step.advice[:LONGEST]) for step in steps]
    broken = [step for step in steps if step.ok is False]
    broken += [step for step in steps if step.ok is None and step.code not in _LATER]
    remarks = [step for step in steps if step.ok and step.advice]
    code = broken[0].code if broken else "ok"
    message = f"{container.shown}: {broken[0].message}" if broken else ""
    advice = broken[0].advice if broken else " ".join(step.advice for step in remarks)
    swarm = host.settings.swarm_variables
    variables = [
        (name, value)
        for name, value in sorted(container.environment.items())
        if name in explain_rules.VARIABLES or name in swarm or name.startswith(explain_rules.REQUIRE)
    ]
    return {
        "ok": broken[0].ok if broken else True,
        "code": code,
        "message": message or " ".join([success, *(step.message for step in remarks)]),
        "advice": advice,
        "steps": [step._asdict() for step in steps],
        "container": {
            "engine": container.engine,
            "id": container.identifier,
            "name": container.name,
            "state": container.state,
            "pid": container.pid,
            "error": shown(container.error),
            "runtime": container.runtime,
            "program": container.program,
            "privileged": container.privileged,
        },
        "environment": {name[:LONGEST]: value[:LONGEST] for name, value in variables[:MOST]},
        "toolkit": {
            "version": host.version,
            "config_path": host.config_path,
            "settings": {
                runtime_settings.KEYS[name]: list(value) if isinstance(value, tuple) else value
                for name, value in host.settings._asdict().items()
                if name in runtime_settings.KEYS
            },
        },
        **details,
        "requested": [name[:LONGEST] for name in details["requested"][:MOST]],
    }


def shown(text: str) -> str:
    """Return a text of an engine in one line, without secrets."""
    return masking.mask_urls_in_string(" ".join(text.split()))[:LONGEST]
