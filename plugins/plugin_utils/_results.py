# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clean the results of all actions once, before Ansible shows them. This file imports nothing of Ansible.

Private to this collection. A host, or a user of it, chooses texts of a result: terminals execute escape sequences, and
a line break in a message can forge the line of another host.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable

# Ansible prints these on lines of their own, so they stay on one line.
_MESSAGES = ("msg", "error", "warnings", "deprecations", "before_header", "after_header", "help_text")
_TRACEBACKS = ("formatted_traceback", "formatted_source_context")
# What later tasks use as it is: the names of engines and users, and the files of a rollback.
_NAMES = ("engine", "flavor", "user", "target", "service", "default_runtime", "runtimes", "backup_files")

Result = t.Dict[str, t.Any]


def cleaned(result: Result, *, keep_lines: bool = False) -> Result:
    """Return a result whose texts contain no control characters other than line breaks and tabs.

    Engines and users with such a character in a name are refused, because later tasks need exact names.

    Args:
        result: The result of an action.
        keep_lines: Whether messages may have several lines. True only for texts of the controller.
    """
    engines, users = result.get("engines"), result.get("users_to_inspect")
    refused: list[str] = []
    if isinstance(engines, list):
        result = {**result, "engines": [_exact(engine, refused) for engine in engines]}
        result["engines"] = [engine for engine in result["engines"] if engine is not None]
    if isinstance(users, list):
        plain = [user for user in users if isinstance(user, str) and printable.is_plain(user)]
        refused += [f"user {user}" for user in users if user not in plain]
        result = {**result, "users_to_inspect": plain}
    if refused:
        given = result.get("warnings")
        reason = "The host returned names with control characters, which were refused:"
        result["warnings"] = [*(given if isinstance(given, list) else []), f"{reason} {', '.join(refused)}"]
    return {key: _cleaned(value, key in _MESSAGES and not keep_lines) for key, value in result.items()}


def _exact(engine: object, refused: list[str]) -> object | None:
    """Return an engine whose names are exact. Return one with an error, or None, if they have control characters."""
    if not isinstance(engine, dict) or all(_is_plain(engine.get(name)) for name in _NAMES):
        return engine
    target = engine.get("target")
    refused.append(f"engine {target}")
    if "changed" not in engine or not isinstance(target, str) or not printable.is_plain(target):
        return None
    return {"target": target, "changed": engine["changed"], "error": "Its names or files contain control characters."}


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return printable.is_plain(value)
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return all(_is_plain(item) for item in value) if isinstance(value, (list, tuple)) else True


def _cleaned(value: t.Any, is_message: bool) -> t.Any:
    if isinstance(value, str):
        return printable.line(value) if is_message else printable.lines(value)
    if isinstance(value, dict):
        return {
            printable.lines(key) if isinstance(key, str) else key: _cleaned(item, _is_message(key, is_message))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_cleaned(item, is_message) for item in value]
    if isinstance(value, tuple):
        return tuple(_cleaned(item, is_message) for item in value)
    # Newer releases of Ansible describe warnings and errors with objects.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        clean = {name: _cleaned(item, _is_message(name, is_message)) for name, item in named.items()}
        return dataclasses.replace(value, **clean)
    return value


def _is_message(name: str, inherited: bool) -> bool:
    return name in _MESSAGES or (inherited and name not in _TRACEBACKS)
