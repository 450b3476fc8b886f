# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Convert the answer of nvidia_container_info to the row of one host in an audit.

Private to this collection. It reads only values that it has checked, and raises no error for a wrong one.
"""

from __future__ import annotations

import collections
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import (
    SEVERITIES,
    Finding,
    findings,
    flag,
    rows,
    table,
    word,
    words,
)

OK, UNREACHABLE, FAILED = "ok", "unreachable", "failed"
# The parts of the answer of nvidia_container_info. Every answer has at least one of them.
_SUBJECTS = ("engines", "toolkit", "gpus", "cdi")
# The states of a specification, the worst first. Unknown is a YAML specification that could not be read.
_CDI_STATES = ("invalid", "stale", "unknown", "fresh")
_NO_CDI = "none"
_REVISION = re.compile(r"-[^-]*$")
# The message of Ansible up to 2.18 for a module that did not start. The reason is in the module's output.
_NOT_STARTED = "MODULE FAILURE"
# The name of Ansible's temporary directory changes with each run. The same hosts must give the same report.
_TEMPORARY = re.compile(r"ansible-tmp-[0-9.-]+")
_TRACEBACK = "Traceback (most recent call last)"


def with_users(result: object, users: object) -> dict[str, t.Any]:
    """Return ``result`` with the engines that the tasks of named users have registered, which root does not inspect.

    A user can forge these results, so only the values of the user's own engine are used.
    """
    merged = dict(table(result))
    for task in rows(table(users).get("results")):
        target = f"docker/rootless/{task.get('item')}"
        engines = [
            row for row in rows(task.get("engines")) if row.get("target") == target and row.get("inspected") is True
        ]
        if engines:
            others = [row for row in rows(merged.get("engines")) if row.get("target") != target]
            merged["engines"] = [*others, engines[0]]
            found = [row for row in rows(merged.get("findings")) if row.get("subject") != target]
            merged["findings"] = found + [row for row in rows(task.get("findings")) if row.get("subject") == target]
    return merged


def host_row(name: str, result: object) -> dict[str, t.Any]:
    """Return the row of the host ``name`` for the registered ``result`` of its task, as in docs/audit.md."""
    told = table(result)
    state, reason = _state(told)
    known = told if state == OK else {}
    found = findings(known.get("findings"))
    if reason is not None:
        found = [_unseen(state, reason)]
    counts = collections.Counter(finding.severity for finding in found)
    gpus, toolkit = table(known.get("gpus")), table(known.get("toolkit"))
    return {
        "host": name,
        "state": state,
        "reason": reason,
        "severity": found[0].severity if found else None,
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "driver": word(gpus.get("driver_version")) or word(table(toolkit.get("gpu")).get("driver_version")),
        "gpus": _gpus(gpus, toolkit),
        "toolkit": _toolkit(toolkit),
        "engines": [_engine(row) for row in rows(known.get("engines"))],
        "cdi": _cdi(known.get("cdi")),
        "findings": [finding._asdict() for finding in found],
    }


def _state(told: t.Mapping[str, t.Any]) -> tuple[str, str | None]:
    """Return the state of the host's task, and the reason if it failed."""
    if told.get("unreachable"):
        return UNREACHABLE, _reason(told) or "Ansible does not say why."
    if told.get("failed"):
        return FAILED, _reason(told) or "The module does not say why."
    if not any(subject in told for subject in _SUBJECTS):
        return FAILED, "There is no answer of this host."
    return OK, None


def _reason(told: t.Mapping[str, t.Any]) -> str | None:
    message = word(told.get("msg")) or ""
    output = word(told.get("module_stderr")) or word(told.get("module_stdout"))
    if output is not None:
        lines = output.splitlines()
        line = lines[-1 if _TRACEBACK in output else 0]
        message = line if message.startswith(_NOT_STARTED) else f"{message} {line}"
    return _TEMPORARY.sub("ansible-tmp", message).strip() or None


def _unseen(state: str, reason: str) -> Finding:
    """Return the finding for a host without an answer. It is critical, because nothing is known about the host."""
    if state == UNREACHABLE:
        advice = "Make it reachable for Ansible, or leave it out of the play."
    else:
        advice = "Run nvidia_container_info on this host alone with -vvv to see more."
    name = "host-unreachable" if state == UNREACHABLE else "host-not-read"
    return Finding("critical", name, "host", reason, advice)


def _gpus(gpus: t.Mapping[str, t.Any], toolkit: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    devices = rows(gpus.get("devices"))
    models = collections.Counter(word(device.get("model")) or "unknown" for device in devices)
    return {
        "present": True if devices else flag(table(toolkit.get("gpu")).get("present")),
        "count": len(devices) if isinstance(gpus.get("devices"), (list, tuple)) else None,
        "models": dict(sorted(models.items())),
        "unhealthy": sum(
            any(part.get("healthy") is False for part in (device, *rows(device.get("mig_devices"))))
            for device in devices
        ),
    }


def _toolkit(toolkit: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    packages = [word(table(package).get("version")) for package in table(toolkit.get("packages")).values()]
    programs = [word(table(program).get("version")) for program in table(toolkit.get("programs")).values()]
    found = {_REVISION.sub("", version) for version in packages if version}
    found.update(version for version in programs if version)
    version = word(toolkit.get("version"))
    vulnerabilities = toolkit.get("known_cves")
    return {
        "version": version,
        "versions": [version] if version else sorted(found),
        "installed": bool(version or packages or programs) if toolkit else None,
        "known_cves": (
            words([row.get("name") for row in rows(vulnerabilities)])
            if isinstance(vulnerabilities, (list, tuple))
            else None
        ),
    }


def _engine(row: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    engine = word(row.get("engine")) or "unknown"
    return {
        "engine": engine,
        "flavor": word(row.get("flavor")),
        "user": word(row.get("user")),
        "target": word(row.get("target")) or engine,
        "version": word(row.get("version")),
        "installed": flag(row.get("installed")),
        "running": flag(row.get("running")),
        "default_runtime": word(row.get("default_runtime")),
        "restart_pending": row.get("restart_required") is True or row.get("unfinished_restart") is True,
    }


def _cdi(cdi: object) -> dict[str, t.Any]:
    """Return the specifications of NVIDIA's devices, and those whose kind is unknown."""
    kinds = [(row, word(row.get("kind"))) for row in rows(table(cdi).get("files"))]
    files = [
        {
            "path": word(row.get("path")),
            "kind": kind,
            "state": _cdi_state(row),
            "cdi_version": word(row.get("cdi_version")),
            "driver_version": word(row.get("driver_version")),
        }
        for row, kind in kinds
        if kind is None or kind.startswith("nvidia.com/")
    ]
    states = [file["state"] for file in files]
    worst = next((state for state in _CDI_STATES if state in states), _NO_CDI)
    return {"state": worst if isinstance(table(cdi).get("files"), (list, tuple)) else None, "files": files}


def _cdi_state(row: t.Mapping[str, t.Any]) -> str:
    if row.get("valid") is False:
        return "invalid"
    if row.get("valid") is not True:
        return "unknown"
    return "stale" if row.get("stale") is True else "fresh"
