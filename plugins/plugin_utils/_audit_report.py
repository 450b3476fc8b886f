# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report on all hosts of an audit, sorted by severity, as data and as lines for a terminal.

Private to this collection. It writes no files.
"""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_host import FAILED, UNREACHABLE, host_row
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import (
    SEVERITIES,
    counted,
    natural,
    rows,
    shown,
    table,
    word,
)

if t.TYPE_CHECKING:
    from collections.abc import Mapping


# Increased if a reader of an older report would misunderstand a newer one.
SCHEMA = 1
# The maximum width of the host column in characters. A longer name is not cut and does not widen the column.
_WIDEST = 40


def report_of(results: Mapping[str, object], generated: str | None = None) -> dict[str, t.Any]:
    """Return the report on all hosts in ``results``, each with the registered result of its task.

    The same results give the same report. ``generated`` is the time of the report as a text of the caller, or None.
    """
    hosts = sorted((host_row(word(name) or "unnamed", result) for name, result in results.items()), key=_worst_first)
    return {"schema": SCHEMA, "generated": word(generated), "totals": _totals(hosts), "hosts": hosts}


def lines_of(report: Mapping[str, t.Any], limit: int) -> list[str]:
    """Return the report as text: the totals, and then at most ``limit`` findings of all hosts, sorted by severity."""
    hosts = rows(report.get("hosts"))
    found = [(str(host["host"]), finding) for host in hosts for finding in rows(host.get("findings"))]
    # The hosts are already sorted, and this sort is stable.
    found.sort(key=lambda pair: SEVERITIES.index(pair[1]["severity"]))
    told, rest = found[:limit], len(found[limit:])
    width = min(_WIDEST, max((len(shown(host)) for host, _finding in told), default=0))
    lines = _counts(table(report.get("totals")))
    for host, finding in told:
        advice = f" -> {finding['advice']}" if finding["advice"] else ""
        sentence = shown(f"{finding['subject']}: {finding['text']}{advice}")
        lines.append(f"{finding['severity']:8}  {shown(host):{width}}  {sentence}")
    if rest:
        lines.append(f"and {rest} more.")
    return lines


def _worst_first(host: Mapping[str, t.Any]) -> tuple[t.Any, ...]:
    counts = host["counts"]
    return (*(-counts[severity] for severity in SEVERITIES), natural(host["host"]))


def _totals(hosts: t.Sequence[Mapping[str, t.Any]]) -> dict[str, t.Any]:
    worst = collections.Counter(host["severity"] or "none" for host in hosts)
    states = collections.Counter(host["state"] for host in hosts)
    return {
        "hosts": len(hosts),
        "unreachable": states[UNREACHABLE],
        "failed": states[FAILED],
        # Each host is included once, with its most severe finding.
        "hosts_by_severity": {severity: worst[severity] for severity in (*SEVERITIES, "none")},
        "findings": {severity: sum(host["counts"][severity] for host in hosts) for severity in SEVERITIES},
        "by_finding": _by_finding(hosts),
        "gpus": sum(host["gpus"]["count"] or 0 for host in hosts),
        "unhealthy_gpus": sum(host["gpus"]["unhealthy"] for host in hosts),
        "hosts_with_known_cves": sum(bool(host["toolkit"]["known_cves"]) for host in hosts),
        "cdi": dict(sorted(collections.Counter(host["cdi"]["state"] or "not read" for host in hosts).items())),
    }


def _by_finding(hosts: t.Sequence[Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Return each finding with its highest severity and the number of its hosts."""
    severities: dict[str, str] = {}
    on_hosts: collections.Counter[str] = collections.Counter()
    for host in hosts:
        on_hosts.update({finding["id"] for finding in host["findings"]})
        for finding in host["findings"]:
            former = severities.get(finding["id"], SEVERITIES[-1])
            severities[finding["id"]] = min(former, finding["severity"], key=SEVERITIES.index)
    found = [{"id": name, "severity": severity, "hosts": on_hosts[name]} for name, severity in severities.items()]
    return sorted(found, key=lambda row: (SEVERITIES.index(str(row["severity"])), -on_hosts[str(row["id"])], row["id"]))


def _counts(totals: Mapping[str, t.Any]) -> list[str]:
    worst, found = table(totals.get("hosts_by_severity")), table(totals.get("findings"))
    ways = (
        ("critical", "critical"),
        ("warning", "with warnings"),
        ("info", "with info only"),
        ("none", "without findings"),
    )
    line = f"{counted(totals['hosts'], 'host')}: " + ", ".join(f"{worst[name]} {words}" for name, words in ways)
    unseen = [f"{totals[state]} {state}" for state in (UNREACHABLE, FAILED) if totals[state]]
    several = ", ".join(
        (f"{found['critical']} critical", counted(found["warning"], "warning"), f"{found['info']} info")
    )
    return [
        f"{line} ({' and '.join(unseen)})." if unseen else f"{line}.",
        f"{counted(sum(found.values()), 'finding')}: {several}.",
    ]
