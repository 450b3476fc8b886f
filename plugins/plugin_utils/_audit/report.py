# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report on all hosts of an audit, as data and as lines for a terminal.

Private to this collection. A host may be hostile, and its result may lack parts. A missing or wrong value is treated as
unknown and never raises an error.
"""

from __future__ import annotations

import collections
import re
import typing as t
from collections.abc import Mapping

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report as audit_report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _results

# Increased if a reader of an older report would misunderstand a newer one.
SCHEMA = 1
# The severities of findings, the highest first.
SEVERITIES = audit_report.SEVERITIES
OK, UNREACHABLE, FAILED = "ok", "unreachable", "failed"
STOPPED = "stopped"


# -- the fleet -------------------------------------------------------------------------------------------------------

# The maximum width of the host column in characters. A longer name is not cut and does not widen the column.
_MAX_WIDTH = 40
# The subject of findings about a host as a whole.
_HOST = "host"


def report_of(results: Mapping[str, object], generated: str | None = None) -> dict[str, t.Any]:
    """Return the report on all hosts in ``results``, each with the registered result of its task.

    The same results give the same report. ``generated`` is the time of the report as a text of the caller, or None.
    """
    hosts = sorted((host_row(text_of(name) or "unnamed", result) for name, result in results.items()), key=_sort_key)
    return {"schema": SCHEMA, "generated": text_of(generated), "totals": _totals(hosts), "hosts": hosts}


def lines_of(report: Mapping[str, t.Any], limit: int) -> list[str]:
    """Return the report as text: the totals, and then at most ``limit`` findings of all hosts, sorted by severity."""
    hosts = rows(report.get("hosts"))
    found = [(printable.line(str(host["host"])), finding) for host in hosts for finding in rows(host.get("findings"))]
    # The hosts are already sorted, and this sort is stable.
    found.sort(key=lambda pair: SEVERITIES.index(pair[1]["severity"]))
    width = min(_MAX_WIDTH, max((len(host) for host, _finding in found[:limit]), default=0))
    lines = _summary(table(report.get("totals")))
    for host, finding in found[:limit]:
        subject = f"{finding['subject']}: " if needs_subject(finding) else ""
        advice = f" -> {finding['advice']}" if finding["advice"] else ""
        message = printable.line(f"{subject}{finding['text']}{advice}")
        lines.append(f"{finding['severity']:8}  {host:{width}}  {message}")
    if len(found) > limit:
        lines.append(f"and {len(found) - limit} more.")
    return lines


def needs_subject(finding: Mapping[str, t.Any]) -> bool:
    """Return whether a reader needs the subject of a finding, because its text does not name it."""
    subject, text = str(finding["subject"]), str(finding["text"])
    if subject == _HOST:
        return False
    # The first of several: a text that names it names the others too.
    first = re.split(r", | and \d+ more", subject, maxsplit=1)[0]
    return re.search(rf"(?<![\w/.-]){re.escape(first)}(?![\w/-]|\.\w)", text) is None


def _sort_key(host: Mapping[str, t.Any]) -> tuple[t.Any, ...]:
    return (*(-host["counts"][severity] for severity in SEVERITIES), natural(host["host"]))


def _totals(hosts: t.Sequence[Mapping[str, t.Any]]) -> dict[str, t.Any]:
    highest = collections.Counter(host["severity"] or "none" for host in hosts)
    states = collections.Counter(host["state"] for host in hosts)
    return {
        "hosts": len(hosts),
        "unreachable": states[UNREACHABLE],
        "failed": states[FAILED],
        # Each host is included once, with its most severe finding.
        "hosts_by_severity": {severity: highest[severity] for severity in (*SEVERITIES, "none")},
        "findings": {severity: sum(host["counts"][severity] for host in hosts) for severity in SEVERITIES},
        "remarks": _remarks_of(hosts),
        "by_finding": _by_finding(hosts),
        "gpus": sum(host["gpus"]["count"] or 0 for host in hosts),
        "unhealthy_gpus": sum(host["gpus"]["unhealthy"] for host in hosts),
        "hosts_with_known_cves": sum(bool(host["toolkit"]["known_cves"]) for host in hosts),
        "cdi": dict(sorted(collections.Counter(host["cdi"]["state"] or "not read" for host in hosts).items())),
    }


def _remarks_of(hosts: t.Sequence[Mapping[str, t.Any]]) -> dict[str, int]:
    """Return the remarks on hosts without findings, the most frequent first, with the number of their hosts."""
    found = collections.Counter(remark for host in hosts if not host["findings"] for remark in host["remarks"])
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _by_finding(hosts: t.Sequence[Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Return each finding with its highest severity and the number of its hosts."""
    severities: dict[str, str] = {}
    on_hosts: collections.Counter[str] = collections.Counter()
    for host in hosts:
        on_hosts.update({finding["id"] for finding in host["findings"]})
        for finding in host["findings"]:
            previous = severities.get(finding["id"], SEVERITIES[-1])
            severities[finding["id"]] = min(previous, finding["severity"], key=SEVERITIES.index)
    names = sorted(severities, key=lambda name: (SEVERITIES.index(severities[name]), -on_hosts[name], name))
    return [{"id": name, "severity": severities[name], "hosts": on_hosts[name]} for name in names]


def _summary(totals: Mapping[str, t.Any]) -> list[str]:
    """Return lines with the numbers of hosts, of findings, and of hosts without findings that are not OK."""
    highest, found = table(totals.get("hosts_by_severity")), table(totals.get("findings"))
    hosts = (
        f"{counted(totals['hosts'], 'host')}: {highest['critical']} critical, {highest['warning']} with a warning at"
        f" most, {highest['info']} with info only, {highest['none']} without findings"
    )
    not_read = [f"{totals[state]} {state}" for state in (UNREACHABLE, FAILED) if totals[state]]
    severities = f"{found['critical']} critical, {counted(found['warning'], 'warning')}, {found['info']} info"
    remarks = table(totals.get("remarks"))
    listed = [f"{remark} ({counted(number, 'host')})" for remark, number in remarks.items()]
    return [
        f"{hosts} ({' and '.join(not_read)})." if not_read else f"{hosts}.",
        f"{counted(sum(found.values()), 'finding')}: {severities}.",
        *([printable.line(f"Without findings, but not OK: {', '.join(listed)}.")] if listed else []),
    ]


# -- one host --------------------------------------------------------------------------------------------------------

# The parts of the result of nvidia_container_info about the host. Every result has at least one of them.
_SUBJECTS = ("engines", "toolkit", "gpus", "cdi")
# The states of a specification, the most severe first. Unknown is a YAML specification that could not be read.
_CDI_STATES = ("invalid", "stale", "unknown", "fresh")
_REVISION = re.compile(r"-[^-]*$")
# The message of Ansible up to 2.18 for a module that did not start. The reason is in the module's output.
_NOT_STARTED = "MODULE FAILURE"
# The name of Ansible's temporary directory changes with each run. The same hosts must give the same report.
_TEMPORARY = re.compile(r"ansible-tmp-[0-9.-]+")


def host_row(name: str, result: object) -> dict[str, t.Any]:
    """Return the row of the host ``name`` for the registered ``result`` of its task, as in docs/audit.md."""
    answer = table(result)
    state, reason = _state(answer)
    known = answer if state == OK else {}
    found = findings(known.get("findings")) if reason is None else [_not_read(state, reason)]
    counts = collections.Counter(finding.severity for finding in found)
    gpus, toolkit = table(known.get("gpus")), table(known.get("toolkit"))
    row: dict[str, t.Any] = {
        "host": name,
        "state": state,
        "reason": reason,
        "severity": found[0].severity if found else None,
        "counts": {severity: counts[severity] for severity in SEVERITIES},
        "driver": text_of(gpus.get("driver_version")),
        "gpus": _gpus(gpus, toolkit),
        "toolkit": _toolkit(toolkit),
        "engines": [_engine(row) for row in rows(known.get("engines"))],
        "cdi": _cdi(known.get("cdi")),
        "findings": [finding.row() for finding in found],
    }
    is_whole = all(isinstance(known.get(part), (dict, list, tuple)) for part in _SUBJECTS)
    return {**row, "remarks": [] if state != OK else _remarks(row, is_whole)}


def _remarks(row: Mapping[str, t.Any], is_whole: bool) -> list[str]:
    """Return why containers of a host cannot use a GPU now although nothing is wrong.

    A host without findings and remarks is OK.
    """
    present, engines = row["gpus"]["present"], row["engines"]
    found = [] if is_whole else ["partly inspected"]
    if present is not True:
        found.append("no GPU" if present is False else "GPU unknown")
    if row["toolkit"]["installed"] is False:
        found.append("no toolkit")
    if not any(engine["installed"] is not False for engine in engines) and is_whole:
        found.append("no engine")
    return found + [f"{engine['target']} stopped" for engine in engines if engine_state(engine) == STOPPED]


def engine_state(engine: Mapping[str, t.Any]) -> str | None:
    """Return what is unusual about an engine of a host: it is not installed, or has a daemon that does not run."""
    if engine["installed"] is False:
        return "not installed"
    return STOPPED if engine["running"] is False and engine["engine"] in flavors.DAEMONS else None


def _state(answer: Mapping[str, t.Any]) -> tuple[str, str | None]:
    """Return the state of the host's task, and the reason if it failed."""
    if answer.get("unreachable"):
        return UNREACHABLE, _reason(answer) or "Ansible reports no reason."
    if answer.get("failed"):
        return FAILED, _reason(answer) or "The module reports no reason."
    if not any(subject in answer for subject in _SUBJECTS):
        return FAILED, "The audit has no result for this host."
    return OK, None


def _reason(answer: Mapping[str, t.Any]) -> str | None:
    message = text_of(answer.get("msg")) or ""
    line = text_of(_results.cause_of(answer))
    if line is not None:
        message = line if message.startswith(_NOT_STARTED) else f"{message} {line}"
    return _TEMPORARY.sub("ansible-tmp", message).strip() or None


def _not_read(state: str, reason: str) -> audit_report.Finding:
    """Return the finding for a host without a result. It is critical, because nothing is known about the host."""
    if state == UNREACHABLE:
        advice = "Make the host reachable for Ansible, or remove it from the play."
        return audit_report.critical("host-unreachable", _HOST, reason, advice)
    advice = "Run the audit with --limit for this host, and with -vvv for the details."
    return audit_report.critical("inspection-failed", _HOST, reason, advice)


def _gpus(gpus: Mapping[str, t.Any], toolkit: Mapping[str, t.Any]) -> dict[str, t.Any]:
    devices = rows(gpus.get("devices"))
    models = collections.Counter(text_of(device.get("model")) or "unknown" for device in devices)
    return {
        "present": True if devices else flag(table(toolkit.get("gpu")).get("present")),
        "count": len(devices) if isinstance(gpus.get("devices"), (list, tuple)) else None,
        "models": dict(sorted(models.items())),
        "unhealthy": sum(
            any(part.get("healthy") is False for part in (device, *rows(device.get("mig_devices"))))
            for device in devices
        ),
    }


def _versions_of(toolkit: Mapping[str, t.Any]) -> set[str]:
    """Return the version of a toolkit, or those of its parts if they differ."""
    version = text_of(toolkit.get("version"))
    if version:
        return {version}
    packages, programs = (
        [text_of(table(part).get("version")) for part in table(toolkit.get(name)).values()]
        for name in ("packages", "programs")
    )
    return {_REVISION.sub("", found) for found in packages if found} | {found for found in programs if found}


def _toolkit(toolkit: Mapping[str, t.Any]) -> dict[str, t.Any]:
    all_toolkits = [toolkit, *rows(toolkit.get("other_toolkits"))]
    versions = sorted({version for one in all_toolkits for version in _versions_of(one)})
    parts = [table(one.get(name)) for one in all_toolkits for name in ("packages", "programs")]
    version = text_of(toolkit.get("version")) or (versions[0] if len(versions) == 1 else None)
    vulnerabilities = [one["known_cves"] for one in all_toolkits if isinstance(one.get("known_cves"), (list, tuple))]
    names = [row.get("name") for known in vulnerabilities for row in rows(known)]
    return {
        "version": version,
        "versions": versions,
        "installed": bool(version or any(parts)) if toolkit else None,
        "known_cves": list(dict.fromkeys(texts(names))) if vulnerabilities else None,
    }


def _engine(row: Mapping[str, t.Any]) -> dict[str, t.Any]:
    engine = text_of(row.get("engine")) or "unknown"
    return {
        "engine": engine,
        "flavor": text_of(row.get("flavor")),
        "user": text_of(row.get("user")),
        "target": text_of(row.get("target")) or engine,
        "version": text_of(row.get("version")),
        "installed": flag(row.get("installed")),
        "running": flag(row.get("running")),
        "default_runtime": text_of(row.get("default_runtime")),
        "restart_pending": row.get("restart_required") is True or row.get("unfinished_restart") is True,
    }


def _cdi(cdi: object) -> dict[str, t.Any]:
    """Return the specifications of NVIDIA's devices, and those whose kind is unknown."""
    kinds = [(row, text_of(row.get("kind"))) for row in rows(table(cdi).get("files"))]
    files = [
        {
            "path": text_of(row.get("path")),
            "kind": kind,
            "state": _cdi_state(row),
            "cdi_version": text_of(row.get("cdi_version")),
            "driver_version": text_of(row.get("driver_version")),
        }
        for row, kind in kinds
        if kind is None or kind.startswith("nvidia.com/")
    ]
    states = [file["state"] for file in files]
    state = next((state for state in _CDI_STATES if state in states), "none")
    return {"state": state if isinstance(table(cdi).get("files"), (list, tuple)) else None, "files": files}


def _cdi_state(row: Mapping[str, t.Any]) -> str:
    if row.get("valid") is False:
        return "invalid"
    if row.get("valid") is not True:
        return "unknown"
    return "stale" if row.get("stale") is True else "fresh"


# -- values of hosts -------------------------------------------------------------------------------------------------

# A longer text, in characters, is cut: it would make every page very long.
_MAX_CHARACTERS = 2000
# Python refuses to write numbers with thousands of digits, and no version or count has that many.
_MAX_NUMBER = 10**15
_NUMBERS = re.compile(r"(\d+)")


def table(value: object) -> Mapping[str, t.Any]:
    """Return ``value`` if it is a dictionary; otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Mapping[str, t.Any]]:
    """Return the dictionaries in a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, (list, tuple)) else []


def text_of(value: object) -> str | None:
    """Return a text, or a number as a text; None for anything else and for an empty text. Long texts are cut."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
    if not is_number and not isinstance(value, str):
        return None
    text = str(value).strip()
    return (text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…") or None


def flag(value: object) -> bool | None:
    """Return True or False; None for anything else."""
    return value if isinstance(value, bool) else None


def texts(value: object) -> list[str]:
    """Return the texts in a list."""
    found = [text_of(item) for item in value] if isinstance(value, (list, tuple)) else []
    return [text for text in found if text is not None]


def findings(value: object) -> list[audit_report.Finding]:
    """Return the findings of one host without duplicates, sorted by severity.

    A finding of an unknown severity becomes a warning.
    """
    found = [
        audit_report.Finding(
            next((severity for severity in SEVERITIES if severity == row.get("severity")), "warning"),
            text_of(row.get("id")) or "unnamed",
            text_of(row.get("subject")) or _HOST,
            text_of(row.get("text")) or "No description.",
            text_of(row.get("advice")) or "",
        )
        for row in rows(value)
    ]
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key with which gpu-2 comes before gpu-10."""
    # A part with more digits is not a number of a name or version, and Python refuses to read thousands of digits.
    return tuple(
        (0, int(part), "") if index % 2 and part.isascii() and len(part) < 19 else (1, 0, part.lower())
        for index, part in enumerate(_NUMBERS.split(text))
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 host`` and ``2 hosts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
