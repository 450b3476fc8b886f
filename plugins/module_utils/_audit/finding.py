# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The type of a finding, and the functions with which rules read the report. It contains no rules."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)


class Finding(t.NamedTuple):
    """A fault of a host, or a fact that the user should know.

    ``severity`` is critical if containers cannot use GPUs, may soon not start, or a known vulnerability is open;
    warning if something works now but will not always, or is managed by two tools; info for the rest. ``id`` is a
    stable name. ``subject`` is a target, a path, or a part of the host.
    """

    severity: str
    id: str
    subject: str
    text: str
    advice: str

    def place(self) -> tuple[int, str, str, str]:
        """Return the sort key: the highest severity first."""
        return SEVERITIES.index(self.severity), self.subject, self.id, self.text


class Described:
    """The report of nvidia_container_info. A part that was not gathered or has the wrong type is empty."""

    def __init__(self, answer: t.Any) -> None:
        answer = table(answer)
        self.engines = rows(answer.get("engines"))
        self.toolkit = table(answer.get("toolkit"))
        self.gpus = table(answer.get("gpus"))
        self.cdi = table(answer.get("cdi"))
        self.gathered = frozenset(
            part for part in ("engines", "toolkit", "gpus", "cdi") if answer.get(part) is not None
        )

    @property
    def has_gpu(self) -> bool | None:
        """Whether the host has a GPU; None if that is unknown."""
        if rows(self.gpus.get("devices")):
            return True
        present = table(self.toolkit.get("gpu")).get("present")
        return present if isinstance(present, bool) else None

    def devices(self) -> dict[str, str]:
        """Return the GPUs in CDI specifications, each with its file."""
        found = table(self.cdi.get("devices"))
        return {name: text(path) for name, path in found.items() if name.startswith(GPU_NAMES)}


GPU_NAMES = "nvidia.com/gpu="


def table(value: t.Any) -> dict[str, t.Any]:
    """Return ``value`` without keys that are not strings if it is a dictionary; otherwise an empty one."""
    return {name: entry for name, entry in value.items() if isinstance(name, str)} if isinstance(value, dict) else {}


def rows(value: t.Any) -> list[dict[str, t.Any]]:
    """Return the dictionaries in a list."""
    return [table(entry) for entry in value if isinstance(entry, dict)] if isinstance(value, (list, tuple)) else []


def texts(value: t.Any) -> list[str]:
    """Return the strings in a list."""
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, (list, tuple)) else []


def problems_in(value: t.Any) -> list[errors.Problem]:
    """Return the problems in a list of the report."""
    return [
        errors.Problem(text(row.get("code")), text(row["message"])) for row in rows(value) if text(row.get("message"))
    ]


def text(value: t.Any) -> str:
    """Return ``value`` if it is a string; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def number(value: t.Any) -> int | None:
    """Return ``value`` if it is an integer; otherwise None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def target_of(engine: t.Mapping[str, t.Any]) -> str:
    """Return the name that identifies an engine on its host."""
    return text(engine.get("target")) or text(engine.get("engine")) or "an engine"
