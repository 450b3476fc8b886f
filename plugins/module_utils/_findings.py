# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what is wrong with a host, or worth knowing of it, with what to do: from its description,
# and from a look at who else owns the files of its engines.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import (
    _findings_cdi,
    _findings_engines,
    _findings_gpus,
    _findings_toolkit,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_causes import merged
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_problems import (
    problems,
    unread_files,
    without_root,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    NOTE,
    Described,
    Finding,
    rows,
    table,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners import owners_of

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

    Rule = t.Callable[[Described], t.Iterator[Finding]]
    HostRule = t.Callable[[Described, HostRoot], t.Iterator[Finding]]

# A new rule is a function in the module of its subject, listed in RULES or HOST_RULES there.
RULES: tuple[Rule, ...] = (
    problems,
    *_findings_toolkit.RULES,
    *_findings_gpus.RULES,
    *_findings_cdi.RULES,
    *_findings_engines.RULES,
)
HOST_RULES: tuple[HostRule, ...] = (without_root, *_findings_cdi.HOST_RULES, *_findings_engines.HOST_RULES)


def findings_of(host: HostRoot, described: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """All findings about ``host``, the worst first, each with severity, id, subject, text and advice.

    ``described`` is what nvidia_container_info answers; a part that was not gathered says nothing, and a damaged one
    gives a note.  Findings with one cause are one finding.  Nothing is run, and nothing of it is an error.
    """
    known = Described(described)
    found = [finding for rule in RULES for finding in rule(known)]
    found += [finding for host_rule in HOST_RULES for finding in host_rule(known, host)]
    found += _owners(host, known)
    found += _damages(described)
    return [finding._asdict() for finding in merged(dict.fromkeys(found), known, host)]


def _owners(host: HostRoot, known: Described) -> list[Finding]:
    try:
        return owners_of(host, known)
    except MissingPackageError as error:
        return [unread_files(str(error))]


# -- damage ----------------------------------------------------------------------------------------------------------

# Where rules look for a list or a dictionary; None is what is not known.
_SHAPES: dict[str, dict[str, type]] = {
    "engines": {"runtimes": dict, "live": dict, "problems": list, "recorded_files": list},
    "toolkit": {
        "gpu": dict,
        "packages": dict,
        "programs": dict,
        "settings": dict,
        "differences": list,
        "open_cves": list,
        "unsafe_settings": list,
        "conflicting_sources": list,
        "gpu_containers": list,
        "problems": list,
    },
    "gpus": {"modules": dict, "devices": list, "missing_nodes": list, "problems": list},
    "cdi": {"files": list, "devices": dict, "conflicts": dict, "refresh": dict, "problems": list},
}


def _damages(described: t.Any) -> t.Iterator[Finding]:
    answer = table(described)
    for name, shape in _SHAPES.items():
        part = answer.get(name)
        kind = list if name == "engines" else dict
        entries = rows(part) if name == "engines" else [table(part)]
        wrong = [f"{name}.{key}" for entry in entries for key, kind in shape.items() if _is_other(entry.get(key), kind)]
        if _is_other(part, kind) or (kind is list and len(entries) < len(part or ())):
            wrong.append(name)
        for place in dict.fromkeys(wrong):
            said = f"{place} is not what it should be, so findings may be missing."
            yield Finding(NOTE, "description-damaged", name, said, "Look at the host again with this collection.")


def _is_other(value: t.Any, kind: type) -> bool:
    return value is not None and not isinstance(value, (list, tuple) if kind is list else kind)
