# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the state of a host in one line, from what the roles have registered. This file imports nothing of Ansible.

Private to this collection. A host can forge a result, so every value is checked before it is used.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _restart_plan
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._role_state import (
    Variables,
    configuration_of,
    entries_of,
    item_of,
    items,
    result_of,
    table,
    tables,
)

# The kinds of hosts that have a driver (nvidia_container_info, toolkit.gpu.kind).
_WITH_DRIVER = ("driver", "wsl", "tegra")
_MOST_CHARACTERS = 100
_DONE = {"restart": "restarted", "reload": "reloaded"}


class Situation(t.NamedTuple):
    """What the line is about.

    Attributes:
        check_mode: Whether the run predicts changes instead of making them.
        interrupted: Whether a task of the host has just failed, so that later tasks do not run.
    """

    check_mode: bool = False
    interrupted: bool = False


def host_line(variables: Variables, situation: Situation) -> str:
    """Describe the state of a host.

    Args:
        variables: The variables of the host, not evaluated.
        situation: What the line is about.

    Returns:
        The toolkit, CDI, and each engine, in one line.
    """
    parts = [
        *_toolkit(variables, situation),
        *_cdi(variables, situation),
        *_engines(variables, situation),
    ]
    return "; ".join(parts) or "nothing was done on this host"


def _toolkit(variables: Variables, situation: Situation) -> t.Iterator[str]:
    inspected = table(_info(variables).get("toolkit"))
    if table(inspected.get("gpu")).get("present") is False:
        yield "no NVIDIA GPU"
    installation = result_of(variables, "nvidia_toolkit_installation")
    removal = {} if installation else result_of(variables, "nvidia_toolkit_removal")
    predicted = installation.get("predicted")
    if situation.check_mode and isinstance(predicted, dict):
        version = _text(predicted.get("version"))
        yield f"toolkit {version} would be installed" if version else "toolkit would be installed"
        return
    # In check mode, an installation that changes only files may report no version.
    is_incomplete = situation.check_mode and installation.get("changed")
    result = removal or ({} if is_incomplete else installation)
    version = _text(result["version"] if "version" in result else inspected.get("version"))
    if removal.get("changed") and not version:
        yield "toolkit would be removed" if situation.check_mode else "toolkit removed"
    elif inspected or result:
        unknown = "toolkit, version unknown" if inspected.get("programs") else "no toolkit"
        yield f"toolkit {version}" if version else unknown


def _info(variables: Variables) -> dict[str, t.Any]:
    """Return the result of the inspection that has described the toolkit last."""
    found = [result_of(variables, name) for name in ("nvidia_runtime_inspection", "nvidia_toolkit_info")]
    return next((info for info in found if isinstance(info.get("toolkit"), dict)), {})


def _cdi(variables: Variables, situation: Situation) -> t.Iterator[str]:
    result = result_of(variables, "nvidia_cdi_specification")
    if not result:
        if situation.interrupted and result_of(variables, "nvidia_toolkit_info"):
            yield "CDI not reached"
        return
    unit, path = _text(result.get("refreshed_by")), _text(result.get("specification"))
    if result.get("not_described"):
        yield f"CDI: specification not written{_not_written(variables, unit)}"
    elif result.get("mode") is None:
        verb = "would be removed" if situation.check_mode else "removed"
        yield f"CDI: {verb}" if result.get("changed") else "CDI: nothing to remove"
    else:
        count = result.get("device_count")
        described = f"{count} device{'' if count == 1 else 's'}" if isinstance(count, int) else "devices"
        place = "would be written to" if situation.check_mode and result.get("reasons") else "in"
        refreshed = f"refreshed by {unit}" if unit else "not refreshed"
        yield f"CDI: {described} {place} {path or 'an unknown file'}, {refreshed}"


def _not_written(variables: Variables, unit: str) -> str:
    """Return why there is no specification, and which unit writes it later."""
    gpu = table(table(_info(variables).get("toolkit")).get("gpu"))
    if "kind" not in gpu or gpu["kind"] in _WITH_DRIVER:
        # Check mode cannot always predict one.
        return f", refreshed by {unit}" if unit else ", and no unit writes it"
    later = f"{unit} writes it when the host starts with its driver" if unit else "and no unit writes it"
    return f" (no driver is loaded), {later}"


def _engines(variables: Variables, situation: Situation) -> t.Iterator[str]:
    result = configuration_of(variables)
    engines = tables(result.get("engines"))
    if not result and situation.interrupted:
        yield from (f"{_text(engine.get('target'))} not reached" for engine in _installed(variables))
    elif result and not engines and not result.get("failed"):
        yield missing_engine(variables)
    name = str(result.get("runtime_name", "nvidia"))
    work = {entry["engine_info"]["target"]: entry for entry in entries_of(variables)}
    for engine in engines:
        target = _text(engine.get("target"))
        if "error" in engine:
            yield f"{target}: failed"
            continue
        entry = work.get(engine.get("target"), {})
        # After a rollback, the planned configuration is not that of the engine.
        planned = () if _rolled_back(variables, entry) else _configuration(engine, name, situation)
        parts = [*planned, *_restart(engine, entry, variables, situation)]
        yield f"{target}: {', '.join(parts)}"


def _installed(variables: Variables) -> list[dict[str, t.Any]]:
    """Return the engines that the inspection of the host has found."""
    inspection = result_of(variables, "nvidia_runtime_inspection") or result_of(variables, "nvidia_toolkit_info")
    return [engine for engine in tables(inspection.get("engines")) if engine.get("installed")]


def missing_engine(variables: Variables) -> str:
    """Return why a play has used no engine of a host."""
    none_selected = bool(_installed(variables)) or variables.get("nvidia_runtime_engines") == []
    return "no container engine selected" if none_selected else "no container engine"


def _configuration(engine: Variables, name: str, situation: Situation) -> t.Iterator[str]:
    would = "would have " if situation.check_mode and engine.get("changed") else ""
    runtimes, default = table(engine.get("runtimes")), engine.get("default_runtime")
    of_nvidia = sorted(name for name, path in runtimes.items() if engines_base.is_nvidia_runtime(name, path))
    if name in runtimes:
        yield f"{would}runtime {_text(name)}"
        yield "the default" if default == name else "not the default"
    elif of_nvidia:
        yield f"{would}runtimes {' and '.join(map(_text, of_nvidia))}"
    else:
        yield f"{would}no runtime of NVIDIA"
    if isinstance(engine.get("cdi"), bool):
        yield "CDI on" if engine["cdi"] else "CDI off"


def _restart(engine: Variables, entry: Variables, variables: Variables, situation: Situation) -> t.Iterator[str]:
    identifier, action = entry.get("id"), entry.get("action", _restart_plan.NONE)
    restarted = _outcome(variables, "nvidia_runtime_restart_results", identifier)
    done = _DONE.get(str(action), "restarted")
    if action == _restart_plan.NONE:
        yield "needs a restart" if engine.get("restart_required") else "not restarted"
    elif situation.check_mode:
        yield f"would be {done}"
    elif restarted is None:
        yield f"not {done} yet"
    elif "error" in restarted:
        restored = ", previous configuration restored" if _rolled_back(variables, entry) else ""
        yield f"{action} failed{restored}"
    elif not restarted.get("changed"):
        yield f"not {done}"
    else:
        yield done if restarted.get("state") != "unknown" else f"{done}, health unknown"
    level = str(entry.get("verify", _restart_plan.OFF))
    if level != _restart_plan.OFF:
        yield _verification(_outcome(variables, "nvidia_runtime_verify_results", identifier) or {}, level)


def _verification(result: Variables, level: str) -> str:
    """Return what the result of a verification says. Level config starts no container, and only has checks."""
    if "error" in result:
        return f"verification failed ({level})"
    summary = _text(result.get("summary"))
    checked = level == "config" and result.get("failed_check", "") is None
    if result.get("verified") is True or checked:
        return f"verified ({level})"
    return summary if summary.startswith("not verified: ") else "not verified"


def _rolled_back(variables: Variables, entry: Variables) -> bool:
    restarted = _outcome(variables, "nvidia_runtime_restart_results", entry.get("id"))
    return restarted is not None and "error" in restarted and restarted.get("rolled_back") is True


def _outcome(variables: Variables, name: str, identifier: object) -> dict[str, t.Any] | None:
    """Return the result of a loop for this entry of the plan, None if there is none."""
    return next((r for r in items(variables.get(name)) if table(item_of(r)).get("id") == identifier), None)


def verified_lines(variables: Variables, nothing: str) -> list[tuple[str, str]]:
    """Describe what the playbook verify has found: a line for each engine, with its error or an empty text.

    Args:
        variables: The variables of the host, not evaluated.
        nothing: Why no engine was verified.
    """
    lines = []
    for result in items(variables.get("nvidia_runtime_verify_results")):
        target = _text(table(item_of(result)).get("target"))
        summary = _text(result.get("summary")) or "failed"
        lines.append((f"{target}: {summary}", str(result.get("error") or "")))
    return lines or [(f"not verified: {nothing}", "")]


def _text(value: object) -> str:
    """Return a value of a host for one line, empty if it is no text."""
    return printable.line(value)[:_MOST_CHARACTERS] if isinstance(value, str) else ""
