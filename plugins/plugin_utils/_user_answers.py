# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the results of modules that run as a named user. This file imports nothing of Ansible.

Private to this collection. The user controls the process of the module, and so can forge its result. A result is built
again from the values of the user's own engine that have the documented types.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _results

Result = t.Dict[str, t.Any]
Check = t.Callable[[object], bool]

# Longer messages are cut, in characters, and more entries of a list are dropped.
_MOST_CHARACTERS = 500
# The number and length of warnings.
LIMITS_OF_WARNINGS = (10, _MOST_CHARACTERS)
_MOST_FINDINGS = 100
_MOST_OUTPUT = 100
# A larger result is no result of these modules.
_MOST_VALUES = 10_000
_MOST_TEXT = 1_000_000
_UNUSABLE = "The module returned no usable result. The user may have changed the process of the module."
_NOT_EXACT = "The module returned names with control characters."


class AnswerError(Exception):
    """The result of a user cannot be used."""


def _is(*kinds: type) -> Check:
    # True is an int.
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _table_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(isinstance(k, str) and check(v) for k, v in value.items())


_NONE = type(None)
_TEXT, _FLAG, _NAME, _COUNT = _is(str), _is(bool), _is(str, _NONE), _is(int, _NONE)
_TEXTS, _NAMES = _list_of(_TEXT), _table_of(_NAME)
# The values of an engine that nvidia_container_info and nvidia_runtime_config return, and those that it must have.
_INSPECTED: dict[str, Check] = {
    "engine": _TEXT, "flavor": _TEXT, "user": _NAME, "target": _TEXT, "inspected": _FLAG, "installed": _FLAG,
    "running": _FLAG, "service": _NAME, "recorded_files": _TEXTS, "unfinished_restart": _FLAG,
    "problems": _list_of(_NAMES),
}  # fmt: skip
_ALSO_INSPECTED: dict[str, Check] = {
    "readable": _FLAG, "used_by_kubelet": _FLAG, "binary": _NAME, "version": _NAME, "pid": _COUNT, "unit_files": _TEXTS,
    "socket": _NAME, "config_path": _NAME, "config_exists": _FLAG, "runtimes": _NAMES, "default_runtime": _NAME,
    "live": _is(dict, _NONE), "restart_required": _FLAG,
    "missed_toolkit": _FLAG, "cdi_directories": lambda value: value is None or _TEXTS(value),
}  # fmt: skip
_CONFIGURED: dict[str, Check] = {
    "target": _TEXT, "changed": _FLAG, "restart_required": _FLAG, "restart_action": _TEXT, "pending_action": _NAME,
    "runtimes": _table_of(_is(str, dict, _NONE)), "default_runtime": _TEXT, "backup_files": _list_of(_NAMES),
    "service": _TEXT, "cdi": _is(bool, _NONE),
}  # fmt: skip
_ALSO_CONFIGURED: dict[str, Check] = {
    "config_path": _NAME, "drop_in_path": _NAME, "engine_version": _NAME, "unrecorded": _TEXTS,
    "purged": _list_of(_NAMES), "missed_toolkit": _FLAG,
}  # fmt: skip
_FINDING: dict[str, Check] = dict.fromkeys(("severity", "id", "subject", "text", "advice"), _TEXT)
_DIFF = _list_of(_table_of(_TEXT))
# The other values of a result, by module.
_VALUES: dict[str, dict[str, Check]] = {
    "nvidia_runtime_restart": {
        "state": _TEXT, "action": _TEXT, "mode": _TEXT, "service": _NAME, "socket": _NAME, "pid": _COUNT,
        "attempts": _COUNT, "daemon_reloaded": _FLAG, "rolled_back": _FLAG, "rolled_back_files": _list_of(_NAMES),
        "journal": _TEXTS,
    },
    "nvidia_runtime_verify": {
        "summary": _TEXT, "failed_check": _NAME, "injection": _NAME, "output": _TEXT, "verified": _FLAG,
    },
}  # fmt: skip
_INFO, _CONFIG = "nvidia_container_info", "nvidia_runtime_config"


def checked(module: str, user: str, result: Result) -> Result:
    """Return what later tasks may use of a result.

    Args:
        module: The name of the module, without the collection.
        user: The user as whom the module ran.
        result: What it returned.

    Returns:
        The checked values. A failed result has the keys ``failed`` and ``msg``, and those of the module.
    """
    try:
        _require_size(result)
        return _checked(module, user, result)
    except AnswerError as error:
        return failure(str(error))


def failure(message: str) -> Result:
    """Return the result of a module that failed with this message."""
    text = printable.line(message)
    return {
        "changed": False,
        "failed": True,
        "msg": text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...",
    }


def _checked(module: str, user: str, result: Result) -> Result:
    found: Result = {"changed": result.get("changed") is True}
    found.update({name: result[name] for name, check in _VALUES.get(module, {}).items() if check(result.get(name, ()))})
    # Their number and text are limited when the output is read (_results).
    texts = result.get("warnings")
    found["warnings"] = texts if isinstance(texts, list) else []
    if result.get("failed") or result.get("unreachable"):
        return {**found, **failure(_message(result)), "changed": found["changed"]}
    target = selection.target_of(user)
    if module == _INFO:
        found["engines"] = [_inspected(row, user) for row in _own(result, target)]
        findings = result.get("findings")
        rows = [_typed(row, _FINDING) for row in (findings if isinstance(findings, list) else ())[:_MOST_FINDINGS]]
        found["findings"] = [row for row in rows if row["subject"] == target]
    elif module == _CONFIG:
        found["engines"] = [_configured(row) for row in _own(result, target)]
        diff = result.get("diff")
        found["diff"] = diff if _DIFF(diff) else []
    return found


def _message(result: Result) -> str:
    """Return the message of a failed module, or the cause in its output if it returned no result."""
    if result.get("module_stderr") or "module_stdout" in result:
        return f"{_UNUSABLE} {printable.line(_results.cause_of(result))[:_MOST_OUTPUT]}".rstrip()
    return str(result.get("msg") or _UNUSABLE)


def _own(result: Result, target: str) -> list[Result]:
    """Return the user's own engine in a list, an empty list if there is none."""
    engines = result.get("engines")
    if not isinstance(engines, list) or not all(isinstance(e, dict) and _TEXT(e.get("target")) for e in engines):
        raise AnswerError(_UNUSABLE)
    return [engine for engine in engines if engine["target"] == target][:1]


def _typed(row: object, required: t.Mapping[str, Check], also: t.Mapping[str, Check] | None = None) -> Result:
    """Return the values of an entry that have a name and a type of these tables."""
    if not isinstance(row, dict) or not all(name in row and check(row[name]) for name, check in required.items()):
        raise AnswerError(_UNUSABLE)
    known = {**required, **(also or {})}
    if not all(check(row[name]) for name, check in known.items() if name in row):
        raise AnswerError(_UNUSABLE)
    if not _results.has_exact_names(row):
        raise AnswerError(_NOT_EXACT)
    return {name: row[name] for name in known if name in row}


def _inspected(row: Result, user: str) -> Result:
    engine = _typed(row, _INSPECTED, _ALSO_INSPECTED)
    if (engine["engine"], engine["flavor"], engine["user"]) != ("docker", "rootless", user):
        raise AnswerError(_UNUSABLE)
    return engine


def _configured(row: Result) -> Result:
    if "error" in row:
        error = failure(str(row["error"]))["msg"] if _TEXT(row["error"]) else _UNUSABLE
        return {"target": row["target"], "changed": row.get("changed") is True, "error": error}
    return _typed(row, _CONFIGURED, _ALSO_CONFIGURED)


def _require_size(result: Result) -> None:
    """Raise AnswerError for a result that is too large or too deep for the tasks that use it."""
    waiting: list[tuple[object, int]] = [(result, 0)]
    values = characters = 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        characters += len(value) if isinstance(value, str) else 0
        items = value.items() if isinstance(value, dict) else ()
        characters += sum(len(str(key)) for key, _item in items)
        nested = [item for _key, item in items] + (list(value) if isinstance(value, (list, tuple)) else [])
        if values + len(nested) > _MOST_VALUES or characters > _MOST_TEXT or depth > 20:
            raise AnswerError(_UNUSABLE)
        waiting += [(item, depth + 1) for item in nested]
