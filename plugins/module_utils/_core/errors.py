# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors of the collection, and the names of options in all messages.

Each error contains what failed, the path with line and column if there is one, the cause, and one step to take.
"""

from __future__ import annotations

import contextlib
import errno
import types
import typing as t

_Error = t.TypeVar("_Error", bound="NvidiaError")

# The warnings of this process that no result contains yet.
_warnings: list[str] = []

_ADVICE = {
    # rename(2) for a file that is mounted on its own. A write in place could be interrupted, and leave half of a file.
    errno.EBUSY: "If it is a mount point (findmnt), change the file that is mounted there, or unmount it first.",
    errno.ENOSPC: "Free space on the file system, then run the task again.",
    errno.EDQUOT: "Free space within the quota of the user, then run the task again.",
    errno.EROFS: "Mount the file system read-write, or configure the image of the host instead.",
}
# The role variable of each option of the task that runs in this process.
_variables: dict[str, str] = {}


class _Option:
    """The placeholder of an option in a message: ``f"{errors.option:source} is missing"``.

    It prints ``source``, or ``nvidia_toolkit_source (source)`` in a task whose option has a role variable. Python
    formats each part of an f-string once, so the values in it never become placeholders.
    """

    def __format__(self, name: str) -> str:
        return f"{_variables[name]} ({name})" if name in _variables else name


option = _Option()


@contextlib.contextmanager
def role_variables(variables: t.Mapping[str, str]) -> t.Iterator[None]:
    """Print these variables, by option, beside the options in messages, and those of an outer context."""
    before = dict(_variables)
    _variables.update(variables)
    try:
        yield
    finally:
        _variables.clear()
        _variables.update(before)


class NvidiaError(Exception):
    """An error with a message for an operator: what failed, and what to do about it.

    ``code`` identifies the kind of error. ``advice`` is the end of the message that says what to do, if it is known
    separately. ``details`` are results that the failed task returns beside the message.
    """

    code = "error"
    advice = ""
    details: t.Mapping[str, t.Any] = types.MappingProxyType({})


class ConfigurationError(NvidiaError):
    """A configuration file that this collection must not change in its current state.

    ``line`` and ``column`` count from 1, columns in characters. The message never contains the invalid content itself,
    because it may be a secret.
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
    """The Python of this host lacks a package, and the controller has sent none."""

    code = "package-missing"


class HostError(NvidiaError):
    """A problem of the host prevents the task: a missing permission, a lock, a full disk, a loop of links."""

    code = "host-error"


class PermissionDeniedError(HostError):
    """The user of the task may not read or write a file."""

    code = "permission-denied"


def os_error(path: str, doing: str, error: OSError) -> HostError:
    """Return a HostError or PermissionDeniedError for an error of the operating system, with a step that fixes it."""
    if isinstance(error, PermissionError):
        advice = "Run the task as root (become: true). If lsattr shows the attribute i, remove it with chattr -i first."
        return with_advice(PermissionDeniedError, f"{path} cannot be {doing}: {error.strerror}.", advice)
    advice = _ADVICE.get(error.errno or 0, "Check the file system.")
    return with_advice(HostError, f"{path} cannot be {doing}: {error.strerror}.", advice)


def warn(message: str) -> None:
    """Let the module show a warning about a step that failed without making the task fail."""
    if message not in _warnings:
        _warnings.append(message)


def take_warnings() -> list[str]:
    """Return the warnings since the last call."""
    taken = list(_warnings)
    _warnings.clear()
    return taken


def with_advice(kind: type[_Error], message: str, advice: str) -> _Error:
    """Return an error of this kind whose message ends with ``advice``."""
    error = kind(f"{message} {advice}")
    error.advice = advice
    return error


class Problem(t.NamedTuple):
    """A problem of a host.

    ``code`` stays the same over versions. ``message`` says what is wrong and ``advice`` what to do, if that is known;
    both are for people.
    """

    code: str
    message: str
    advice: str = ""

    @classmethod
    def of(cls, error: NvidiaError) -> Problem:
        """Return the problem of an error, with the advice at the end of its message as a text of its own."""
        message = str(error)
        if error.advice and message.endswith(error.advice):
            return cls(error.code, message[: -len(error.advice)].rstrip(), error.advice)
        return cls(error.code, message)


def in_full(problem: t.Mapping[str, str]) -> str:
    """Return the message of a problem in a result, as as_dicts() returns it, with its advice."""
    return f"{problem['message']} {problem.get('advice', '')}".rstrip()


def as_dicts(problems: t.Iterable[Problem]) -> list[dict[str, str]]:
    """Return ``problems`` as dictionaries for the result of a module. Advice that is not known has no key."""
    return [
        {key: value for key, value in problem._asdict().items() if value or key != "advice"} for problem in problems
    ]
