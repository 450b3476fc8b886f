# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Derive the findings of a host from its report, merge those with the same cause, and sort them by severity.

The rules are in the files ``rules_*`` and ``foreign_files*`` of this package.
"""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import (
    foreign_files,
    report,
    rules_cdi,
    rules_driver,
    rules_engines,
    rules_host,
    rules_kubernetes,
    rules_pods,
    rules_toolkit,
    steps,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Rule = t.Callable[[report.HostFacts], report.Findings]
    HostRule = t.Callable[[report.HostFacts, hostfs.HostFS], report.Findings]


# A new rule is a function in the file of its subject, listed in RULES, HOST_RULES or FOREIGN_FILE_RULES there.
RULES: tuple[Rule, ...] = (
    *rules_host.RULES,
    *rules_driver.RULES,
    *rules_toolkit.RULES,
    *rules_cdi.RULES,
    *rules_engines.RULES,
    *rules_kubernetes.RULES,
    *rules_pods.RULES,
)
HOST_RULES: tuple[HostRule, ...] = (
    *rules_host.HOST_RULES,
    *rules_cdi.HOST_RULES,
    *rules_engines.HOST_RULES,
    *rules_toolkit.HOST_RULES,
)


def findings_of(host: hostfs.HostFS, parts: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """Return all findings about ``host``, sorted by severity. Findings with one cause are merged.

    No command is run, and no error is raised.

    Args:
        host: The host.
        parts: The report of nvidia_container_info. A part that was not collected gives no findings.
    """
    facts = report.HostFacts(parts)
    found = [finding for rule in RULES for finding in rule(facts)]
    found += [finding for host_rule in HOST_RULES for finding in host_rule(facts, host)]
    try:
        found += foreign_files_of(host, facts)
    except errors.MissingPackageError as error:
        found.append(rules_host.unread_files(errors.Problem.of(error)))
    return [finding.row() for finding in _merged(dict.fromkeys(found), facts)]


def foreign_files_of(host: hostfs.HostFS, facts: report.HostFacts) -> list[report.Finding]:
    """Return the findings about other tools that manage the same files. Files that cannot be read give no findings.

    Raises:
        MissingPackageError: The host has no TOML parser.
    """
    configs = foreign_files.HostConfigs(host, facts)
    found: list[report.Finding] = []
    for rule in foreign_files.FOREIGN_FILE_RULES:
        found += foreign_files.attempt(functools.partial(list, rule(configs))) or []
    return found


# -- findings with the same cause ------------------------------------------------------------------------------------


def _merged(found: t.Iterable[report.Finding], facts: report.HostFacts) -> list[report.Finding]:
    """Return one finding for each cause. It names the consequences, and all subjects that need the same step."""
    # Each engine has its own files and its own daemon, so it is a cause of its own.
    engines = {report.target_of(engine) for engine in facts.engines}
    kept, explained = _without_consequences(found)
    groups: dict[tuple[str, str, str], list[report.Finding]] = {}
    for finding in kept:
        own = finding.subject if finding.subject in engines else ""
        groups.setdefault((finding.id, finding.advice, own), []).append(finding)
    unselected = {report.target_of(engine) for engine in facts.engines if engine.get("selected") is False}
    of_users = {report.target_of(engine) for engine in facts.engines if engine.get("user") is not None}
    one_each = [
        _with(_joined(group), [other for cause in group for other in explained.get(cause, [])])
        for group in groups.values()
    ]
    return sorted((_for_selection(finding, unselected, of_users) for finding in one_each), key=report.Finding.sort_key)


def _for_selection(
    finding: report.Finding, unselected: t.Collection[str], of_users: t.Collection[str]
) -> report.Finding:
    """Return ``finding`` with a step that is possible if it is about an engine that no playbook changes."""
    if finding.advice not in steps.OF_SELECTED_ENGINES:
        return finding
    if finding.subject in of_users:
        return finding._replace(advice=steps.OF_USER)
    if finding.subject not in unselected:
        return finding
    severity = report.INFO if finding.severity == report.WARNING else finding.severity
    return finding._replace(severity=severity, advice=f"{steps.SELECT_ENGINE} {finding.advice}")


def _joined(group: t.Sequence[report.Finding]) -> report.Finding:
    """Return one finding for several with the same step. They are sorted by severity."""
    if len(group) == 1:
        return group[0]
    subject = core_text.listed(list(dict.fromkeys(finding.subject for finding in group)))
    return group[0]._replace(subject=subject, text=report.joined(finding.text for finding in group))


_Consequences = t.Dict[report.Finding, t.List[report.Finding]]


def _without_consequences(found: t.Iterable[report.Finding]) -> tuple[list[report.Finding], _Consequences]:
    """Return ``found`` without consequences, and the consequences of each finding that is left.

    The order matters: a cause can be a consequence of one before it, and is no cause then.
    """
    kept = sorted(found, key=report.Finding.sort_key)
    consequences: _Consequences = {}
    for cause in found:
        explained = [other for other in kept if other != cause and any(each.includes(other) for each in cause.explains)]
        if cause in kept and explained:
            kept = [one for one in kept if one not in explained]
            # What a consequence explains is explained by its cause.
            indirect = [later for other in explained for later in consequences.pop(other, [])]
            consequences[cause] = sorted([*explained, *indirect], key=report.Finding.sort_key)
    return kept, consequences


def _with(cause: report.Finding, explained: t.Sequence[report.Finding]) -> report.Finding:
    """Return ``cause`` with the ids and subjects of its consequences, and the highest severity of all of them."""
    subjects: dict[str, list[str]] = {}
    for name, subject in dict.fromkeys((other.id, other.subject) for other in explained):
        subjects.setdefault(name, []).append(subject)
    if not subjects:
        return cause
    consequences = "; ".join(f"{name} ({core_text.listed(names)})" for name, names in subjects.items())
    severity = min((cause, *explained), key=report.Finding.sort_key).severity
    return cause._replace(severity=severity, text=f"{cause.text} This also causes: {consequences}.")
