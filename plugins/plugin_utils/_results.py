# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clean the results of all actions once, before Ansible shows them. This file imports nothing of Ansible.

Private to this collection. A host, or a user of it, chooses texts of a result: terminals execute escape sequences, and
a line break in a message can forge the line of another host.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable

# Ansible prints these on lines of their own, so they stay on one line.
_MESSAGES = ("msg", "error", "warnings", "deprecations", "before_header", "after_header", "help_text")
_TRACEBACKS = ("formatted_traceback", "formatted_source_context")
# What later tasks use as it is: the names of engines and users, and the files of a rollback.
_NAMES = ("engine", "flavor", "user", "target", "service", "default_runtime", "backup_files")
# What Ansible prints before the action has the result.
_PRINTED_EARLY = ("warnings", "deprecations", "exception")
_TRACEBACK = "Traceback (most recent call last)"
# What OpenSSH prints to its error output when it closes the terminal of a command (ssh -tt). All output of the module
# is then in the standard output.
_OF_SSH = re.compile(r"(?:Shared c|C)onnection to \S+ closed\.")
# More warnings of a user, and more characters of one, are dropped.
_MOST_WARNINGS, _MOST_CHARACTERS = 10, 500

Result = t.Dict[str, t.Any]


def cause_of(result: t.Mapping[str, t.Any]) -> str:
    """Return the line in the output of a module without a result that says why; empty if it has no output.

    It is the last line of the first output with a traceback, else that of the first one that is not empty. Warnings and
    banners of a connection come first.
    """
    outputs = [_lines(result.get(name)) for name in ("module_stderr", "module_stdout")]
    for lines in outputs:
        if any(_TRACEBACK in line for line in lines):
            return lines[-1]
    return next((lines[-1] for lines in outputs if lines), "")


def _lines(output: object) -> list[str]:
    lines = output.splitlines() if isinstance(output, str) else []
    return [line for line in lines if line.strip() and not _OF_SSH.fullmatch(line.strip())]


def of_module(output: str, prefix: str = "") -> str:
    """Return the result in the output of a module, without other output, and with clean warnings.

    Args:
        output: The standard output of a module.
        prefix: How each warning begins. Empty if the warnings name the host themselves.

    Returns:
        The JSON text of the result; the output itself if it has none.
    """
    found = re.search(r"^[ \t]*\{", output, re.MULTILINE)
    if found is None:
        return output
    start = found.end() - 1
    try:
        result, end = json.JSONDecoder().raw_decode(output, start)
        if not prefix and not any(name in result for name in _PRINTED_EARLY):
            return output[start:end]
        early = {
            name: _cleaned(result[name], is_message=name != "exception") for name in _PRINTED_EARLY if name in result
        }
        return json.dumps({**result, **early} if not prefix else _of_user(result, prefix))
    except (ValueError, RecursionError):
        return output


def _of_user(result: Result, prefix: str) -> Result:
    """Return the result of a module that runs as a named user, with warnings of the type that Ansible expects."""
    given = result.get("warnings")
    events = [text if isinstance(text, str) else _event(text) for text in (given if isinstance(given, list) else ())]
    # The module begins a warning with the name of the host.
    host = f"{prefix.partition(': ')[0]}: "
    texts = [printable.line(text[len(host) :] if text.startswith(host) else text) for text in events if text]
    kept = {name: value for name, value in result.items() if name not in _PRINTED_EARLY}
    return {**kept, "warnings": [f"{prefix}{text[:_MOST_CHARACTERS]}" for text in texts[:_MOST_WARNINGS]]}


def _event(warning: object) -> str:
    """Return the text of a warning, which modules of newer releases of Ansible describe as an object."""
    event = warning.get("event") if isinstance(warning, dict) else None
    text = event.get("msg") if isinstance(event, dict) else None
    return text if isinstance(text, str) else ""


def cleaned(result: Result, host: str = "", *, keep_lines: bool = False) -> Result:
    """Return a result whose texts contain no control characters other than line breaks and tabs.

    Engines, runtimes and users with such a character in a name are left out, because later tasks need exact names.

    Args:
        result: The result of an action.
        host: The name of the host, for a warning.
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
        reason = f"{host}: The host returned names with control characters, which are not used:"
        result["warnings"] = [*(given if isinstance(given, list) else []), f"{reason} {', '.join(refused)}"]
    return {key: _cleaned(value, key in _MESSAGES and not keep_lines) for key, value in result.items()}


def has_exact_names(engine: Result) -> bool:
    """Return whether no name of an engine has a control character, so that later tasks can use it as it is."""
    return all(_is_plain(engine.get(name)) for name in _NAMES)


def _exact(engine: object, refused: list[str]) -> object | None:
    """Return an engine without runtimes whose names are not exact.

    If the engine itself has such names, return only its error, or None for an engine that was not configured.
    """
    if not isinstance(engine, dict):
        return engine
    target, runtimes = engine.get("target"), engine.get("runtimes")
    if has_exact_names(engine):
        if not isinstance(runtimes, dict) or _is_plain(runtimes):
            return engine
        kept = {name: value for name, value in runtimes.items() if _is_plain(name) and _is_plain(value)}
        refused += [f"runtime {name} of {target}" for name in runtimes if name not in kept]
        return {**engine, "runtimes": kept}
    refused.append(f"engine {target}")
    if "changed" not in engine or not _is_plain(target):
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
