# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Derive findings from the report of a host, sorted by severity. The rules are in the other files of this package."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import (
    causes,
    ownership,
    rules_cdi,
    rules_engines,
    rules_gpus,
    rules_problems,
    rules_toolkit,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Rule = t.Callable[[audit_finding.Described], t.Iterator[audit_finding.Finding]]

    HostRule = t.Callable[[audit_finding.Described, hostfs.HostFS], t.Iterator[audit_finding.Finding]]


# A new rule is a function in the module of its subject, listed in RULES or HOST_RULES there.
RULES: tuple[Rule, ...] = (
    rules_problems.problems,
    *rules_toolkit.RULES,
    *rules_gpus.RULES,
    *rules_cdi.RULES,
    *rules_engines.RULES,
)
HOST_RULES: tuple[HostRule, ...] = (rules_problems.without_root, *rules_cdi.HOST_RULES, *rules_engines.HOST_RULES)


def findings_of(host: hostfs.HostFS, described: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """Return all findings about ``host``, sorted by severity. Findings with one cause are merged.

    Each finding has severity, id, subject, text and advice. No command is run, and no error is raised.

    Args:
        host: The host.
        described: The report of nvidia_container_info. A part that was not gathered gives no findings, and a part of
            the wrong type gives a finding of severity info.
    """
    known = audit_finding.Described(described)
    found = [finding for rule in RULES for finding in rule(known)]
    found += [finding for host_rule in HOST_RULES for finding in host_rule(known, host)]
    found += _owners(host, known)
    found += _damages(described)
    return [finding._asdict() for finding in causes.merged(dict.fromkeys(found), known, host)]


def _owners(host: hostfs.HostFS, known: audit_finding.Described) -> list[audit_finding.Finding]:
    try:
        return ownership.owners_of(host, known)
    except errors.MissingPackageError as error:
        return [rules_problems.unread_files(str(error))]


# -- wrong types in the report ---------------------------------------------------------------------------------------

# The types that the rules expect; None stands for an unknown value.
_SHAPES: dict[str, dict[str, type]] = {
    "engines": {"runtimes": dict, "live": dict, "problems": list, "recorded_files": list},
    "toolkit": {
        "gpu": dict,
        "packages": dict,
        "programs": dict,
        "settings": dict,
        "version_mismatches": list,
        "known_cves": list,
        "unsafe_settings": list,
        "conflicting_sources": list,
        "gpu_containers": list,
        "problems": list,
    },
    "gpus": {"modules": dict, "devices": list, "missing_nodes": list, "problems": list},
    "cdi": {"files": list, "devices": dict, "conflicts": dict, "refresh": dict, "problems": list},
}


def _damages(described: t.Any) -> t.Iterator[audit_finding.Finding]:
    answer = audit_finding.table(described)
    for name, shape in _SHAPES.items():
        part = answer.get(name)
        kind = list if name == "engines" else dict
        entries = audit_finding.rows(part) if name == "engines" else [audit_finding.table(part)]
        wrong = [f"{name}.{key}" for entry in entries for key, kind in shape.items() if _is_other(entry.get(key), kind)]
        if _is_other(part, kind) or (kind is list and len(entries) < len(part or ())):
            wrong.append(name)
        for place in dict.fromkeys(wrong):
            said = f"{place} is not what it should be, so findings may be missing."
            yield audit_finding.Finding(
                audit_finding.INFO, "description-damaged", name, said, "Look at the host again with this collection."
            )


def _is_other(value: t.Any, kind: type) -> bool:
    return value is not None and not isinstance(value, (list, tuple) if kind is list else kind)
