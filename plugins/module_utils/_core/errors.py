# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors of the collection.

Each carries what failed, the path with line and column where there is one, the cause and one step to take.
"""

from __future__ import annotations

import types
import typing as t


class NvidiaError(Exception):
    """What is wrong and what to do about it, in words for an operator.

    ``details`` are results that the failed task returns beside the message.
    """

    code = "error"
    details: t.Mapping[str, t.Any] = types.MappingProxyType({})


class ConfigurationError(NvidiaError):
    """A configuration file that must not be changed as it is.

    ``line`` and ``column`` count from 1, columns in characters.  The offending text itself is never part of
    the message: it may be a secret.
    """

    code = "file-invalid"

    def __init__(
        self, path: str, problem: str, advice: str, line: int | None = None, column: int | None = None
    ) -> None:
        place = path
        if line is not None:
            place += f", line {line}"
            if column is not None:
                place += f", column {column}"
        super().__init__(f"{place}: {problem}. {advice}")
        self.path = path
        self.problem = problem
        self.advice = advice
        self.line = line
        self.column = column


class MissingPackageError(NvidiaError):
    """This host's Python lacks a package, and the controller has sent none."""

    code = "package-missing"


class HostError(NvidiaError):
    """Something on the host stands in the way: a permission, a lock, a full disk, a loop of links."""

    code = "host-error"


class PermissionDeniedError(HostError):
    """The task's user may not read or write a file."""

    code = "permission-denied"


class Problem(t.NamedTuple):
    """Something that is wrong with a host: a code that stays the same over versions, and a message for people."""

    code: str
    message: str

    @classmethod
    def of(cls, error: NvidiaError) -> Problem:
        return cls(error.code, str(error))


def as_dicts(problems: t.Iterable[Problem]) -> list[dict[str, str]]:
    """Return ``problems`` as an answer has them."""
    return [problem._asdict() for problem in problems]
