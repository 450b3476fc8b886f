# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the result of a module again from the values that it may return. This file imports nothing of Ansible.

Private to this collection. A host chooses what a module returns: keys that Ansible executes or passes
on, values of other types, escape sequences for the terminal, and line breaks that forge the line of another host. So
nothing of a result is passed on but known names, with values of their types, cleaned and limited in size.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable

Result = t.Dict[str, t.Any]


class Shape(t.NamedTuple):
    """The type of a value, as in the documentation of modules.

    Attributes:
        kind: Such as str, list or dict. With raw, dict without ``contains``, and list without ``elements``, the value
            is any data of JSON. A "result" is the result of another module, which returns ``contains``.
        elements: The type of the elements of a list.
        contains: The keys of a dictionary. Others are dropped.
    """

    kind: str
    elements: Shape | None = None
    contains: t.Mapping[str, Shape] | None = None


Shapes = t.Mapping[str, Shape]
_RAW, _TEXT, _TEXTS = Shape("raw"), Shape("str"), Shape("list", Shape("str"))
# Without the name of the collection: a wrong one is an error of the controller in ansible-core 2.19.
_VERSIONS = Shape("dict", contains=dict.fromkeys(("version", "date"), _TEXT))
_DIFF = Shape("dict", contains=dict.fromkeys(("before", "after", "before_header", "after_header"), _TEXT))
# What Ansible itself defines, in ansible-core 2.16.3 to 2.21.5: exit_json(), fail_json() and add_path_info() of
# module_utils/basic.py, _parse_returned_data() of plugins/action/__init__.py, modules/async_wrapper.py and
# modules/async_status.py. A "flag" is any value, of which only its truth counts.
_OF_ANSIBLE: Shapes = {
    "changed": Shape("flag"), "failed": Shape("flag"), "skipped": Shape("flag"), "msg": _TEXT,
    "warnings": Shape("warnings"), "deprecations": Shape("deprecations"), "exception": Shape("exception"),
    "diff": Shape("diff", _DIFF), "invocation": _RAW, "rc": Shape("int"),
    "module_stdout": _TEXT, "module_stderr": _TEXT, "stdout": _TEXT, "stderr": _TEXT, "stdout_lines": _TEXTS,
    "stderr_lines": _TEXTS, "cmd": _TEXT, "ansible_job_id": _TEXT, "results_file": _TEXT, "started": Shape("flag"),
    "finished": Shape("flag"), "uid": Shape("int"), "gid": Shape("int"), "size": Shape("int"), "owner": _TEXT,
    "group": _TEXT, "mode": _TEXT, "state": _TEXT, "secontext": _TEXT, "_ansible_parsed": Shape("flag"),
    "_ansible_suppress_tmpdir_delete": Shape("flag"), "_ansible_trusted_utf8": Shape("flag"),
}  # fmt: skip
# Ansible prints these on lines of their own, so they stay on one line.
_MESSAGES = ("msg", "error", "warnings", "deprecations", "before_header", "after_header", "help_text")
_TRACEBACKS = ("formatted_traceback", "formatted_source_context")
# What later tasks use as it is: the names of engines and users, and the files of a rollback.
_NAMES = ("engine", "flavor", "user", "target", "service", "default_runtime", "backup_files")
_TRACEBACK = "Traceback (most recent call last)"
# What OpenSSH prints to its error output when it closes the terminal of a command (ssh -tt). All output of the module
# is then in the standard output.
_OF_SSH = re.compile(r"(?:Shared c|C)onnection to \S+ closed\.")
# A larger output is an error of the host. The largest real one, of a Kubernetes node with 8 GPUs and all its logs, has
# less than 1 MiB.
MOST_OUTPUT = 8 << 20
# Longer messages are cut, in characters.
_MOST_CHARACTERS = 8_000
# More warnings are dropped.
_MOST_WARNINGS = 50
# What is kept of an output without a result, in characters.
_MOST_TEXT = 20_000
_DEEPEST = 20
_LARGEST = 1 << 63
# Keys that Ansible takes for types or instructions of its own. No name of a host begins like this.
_RESERVED = ("_ansible", "__ansible")
_DROPPED: t.Any = object()


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


# -- the output of a module --------------------------------------------------------------------------------------------


def rebuilt_output(output: str, shapes: Shapes, prefix: str) -> str:
    """Return the result in the output of a module, rebuilt, as JSON, before Ansible reads and prints parts of it.

    Args:
        output: The standard output of a module.
        shapes: The values that the module may return.
        prefix: How each of its warnings begins.

    Returns:
        The JSON text of the result. If the output has none, a text in which Ansible finds none either.
    """
    if len(output) > MOST_OUTPUT:
        return json.dumps({"failed": True, "msg": f"The module returned more than {MOST_OUTPUT >> 20} MiB."})
    found = re.search(r"^[ \t]*\{", output, re.MULTILINE)
    if found is None:
        return _without_result(output)
    try:
        result, _end = json.JSONDecoder().raw_decode(output, found.end() - 1)
        return json.dumps(rebuilt(result, shapes, prefix))
    except (ValueError, RecursionError):
        return _without_result(output)


def _without_result(output: str) -> str:
    """Return an output in which no line begins like a result, so that Ansible reads nothing that was not rebuilt."""
    lines = output[:_MOST_TEXT].splitlines()
    return "\n".join(f"> {line}" if line.lstrip().startswith(("{", "[")) else line for line in lines)


# -- the result of a module --------------------------------------------------------------------------------------------


def rebuilt(result: Result, shapes: Shapes, prefix: str = "") -> Result:
    """Return a result of the values that a module may return, and those that Ansible itself defines.

    A value of another type is dropped.

    Args:
        result: What a host has returned.
        shapes: The values that the module may return, by name.
        prefix: What the controller writes before each warning of the host, such as its name with a colon: a warning may
            begin with the name of another host, and Ansible does not say of which host it is. Empty for what the
            controller has written itself.
    """
    known, result = {**shapes, **_OF_ANSIBLE}, _with_exact_names(result)
    found = {name: _value(result[name], shape, name, 0) for name, shape in known.items() if name in result}
    found = {name: value for name, value in found.items() if value is not _DROPPED}
    if "warnings" in found:
        found["warnings"] = [_prefixed(entry, prefix) for entry in found["warnings"][:_MOST_WARNINGS]]
    if "deprecations" in found:
        del found["deprecations"][_MOST_WARNINGS:]
    for entry in found.get("deprecations", ()):
        if isinstance(entry, dict):
            entry["msg"] = _prefixed(entry["msg"], prefix)
    return found


def _prefixed(entry: t.Any, prefix: str) -> t.Any:
    """Return a warning of the host with the prefix. Objects are those that the controller has made."""
    return f"{prefix}{entry[:_MOST_CHARACTERS]}" if isinstance(entry, str) else entry


def _value(value: t.Any, shape: Shape, name: str, depth: int) -> t.Any:
    """Return a cleaned value of this type, _DROPPED for another one. Null is a value of each type."""
    build = _BUILDERS.get(shape.kind, _raw)
    if depth > _DEEPEST:
        return _DROPPED
    return None if value is None and shape.kind not in _WITHOUT_NULL else build(value, shape, name, depth)


def _text(value: t.Any, _shape: Shape, name: str, _depth: int) -> t.Any:
    if not isinstance(value, str):
        return _DROPPED
    if name in _MESSAGES:
        return printable.line(value[:_MOST_CHARACTERS])
    return printable.lines(value[:_MOST_TEXT] if name.startswith("module_std") else value)


def _number(value: t.Any, shape: Shape, _name: str, _depth: int) -> t.Any:
    kinds = (int,) if shape.kind == "int" else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    # This is false for infinity and for what is no number (NaN).
    return value if is_number and abs(value) < _LARGEST else _DROPPED


def _truth(value: t.Any, _shape: Shape, _name: str, _depth: int) -> t.Any:
    return value if isinstance(value, bool) else _DROPPED


def _flag(value: t.Any, _shape: Shape, _name: str, _depth: int) -> bool:
    return bool(value)


def _list(value: t.Any, shape: Shape, name: str, depth: int) -> t.Any:
    if not isinstance(value, (list, tuple)):
        return _DROPPED
    built = (_value(item, shape.elements or _RAW, name, depth + 1) for item in value)
    return [item for item in built if item is not _DROPPED]


def _table(value: t.Any, shape: Shape, _name: str, depth: int) -> t.Any:
    if not isinstance(value, dict):
        return _DROPPED
    if shape.contains is None:
        keys = [key for key in value if isinstance(key, str) and not key.startswith(_RESERVED)]
        built = {printable.lines(key): _value(value[key], _RAW, key, depth + 1) for key in keys}
    else:
        known = shape.contains.items()
        built = {key: _value(value[key], inner, key, depth + 1) for key, inner in known if key in value}
    return {key: item for key, item in built.items() if item is not _DROPPED}


def _result(value: t.Any, shape: Shape, _name: str, _depth: int) -> t.Any:
    return rebuilt(value, shape.contains or {}) if isinstance(value, dict) else _DROPPED


def _raw(value: t.Any, _shape: Shape, name: str, depth: int) -> t.Any:
    kinds = {str: _text, bool: _truth, int: _number, float: _number, list: _list, tuple: _list, dict: _table}
    build = next((build for kind, build in kinds.items() if isinstance(value, kind)), None)
    return _DROPPED if build is None else build(value, _RAW, name, depth)


def _diff(value: t.Any, shape: Shape, name: str, depth: int) -> t.Any:
    return _list([value] if isinstance(value, dict) else value, shape, name, depth)


def _warnings(value: t.Any, _shape: Shape, _name: str, _depth: int) -> list[t.Any]:
    entries = value if isinstance(value, list) else ()
    texts = [entry if _is_object(entry) else _message_in(entry) for entry in entries]
    return [_cleaned(text, is_message=True) for text in texts if text]


def _deprecations(value: t.Any, _shape: Shape, _name: str, depth: int) -> list[t.Any]:
    built: list[t.Any] = []
    for entry in value if isinstance(value, list) else ():
        if _is_object(entry):
            built.append(_cleaned(entry, is_message=True))
        elif isinstance(entry, dict) and _message_in(entry):
            also = _table(entry, _VERSIONS, "", depth)
            built.append(_cleaned({**also, "msg": _message_in(entry)}, is_message=True))
    return built


def _message_in(entry: t.Any) -> str:
    """Return the text of a warning or deprecation, which newer releases of Ansible describe as an event."""
    if isinstance(entry, dict):
        event = entry.get("event")
        entry = (event if isinstance(event, dict) else entry).get("msg")
    return entry if isinstance(entry, str) else ""


def _exception(value: t.Any, _shape: Shape, _name: str, _depth: int) -> t.Any:
    if _is_object(value):
        return _cleaned(value, is_message=True)
    event = value.get("event") if isinstance(value, dict) else None
    text = event.get("formatted_traceback") if isinstance(event, dict) else value
    return printable.lines(text[:_MOST_TEXT]) if isinstance(text, str) else _DROPPED


def _is_object(value: t.Any) -> bool:
    """Return whether Ansible has made a value on the controller. JSON has no such type."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


_Builder = t.Callable[[t.Any, Shape, str, int], t.Any]
_BUILDERS: dict[str, _Builder] = {
    "str": _text, "path": _text, "int": _number, "float": _number, "bool": _truth, "flag": _flag, "list": _list,
    "dict": _table, "diff": _diff, "result": _result, "warnings": _warnings, "deprecations": _deprecations,
    "exception": _exception,
}  # fmt: skip
_WITHOUT_NULL = ("flag", "warnings", "deprecations")


# -- names -------------------------------------------------------------------------------------------------------------


def _with_exact_names(result: Result) -> Result:
    """Return a result without engines and runtimes whose names have control characters; a warning names them.

    Later tasks need exact names, and the names of a rebuilt result have escapes.
    """
    engines = result.get("engines")
    refused: list[str] = []
    if isinstance(engines, list):
        exact = [_exact(engine, refused) for engine in engines]
        result = {**result, "engines": [engine for engine in exact if engine is not None]}
    if not refused:
        return result
    given = result.get("warnings")
    warning = f"The host returned names with control characters, which are not used: {', '.join(refused)}"
    return {**result, "warnings": [*(given if isinstance(given, list) else []), warning]}


def _exact(engine: object, refused: list[str]) -> object | None:
    """Return an engine without runtimes whose names are not exact.

    If the engine itself has such names, return only its error, or None for an engine that was not configured.
    """
    if not isinstance(engine, dict):
        return engine
    target, runtimes = engine.get("target"), engine.get("runtimes")
    if all(_is_plain(engine.get(name)) for name in _NAMES):
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


# -- results of the controller -----------------------------------------------------------------------------------------


def cleaned(result: Result) -> Result:
    """Return a result of the controller without control characters. Its messages may have several lines."""
    return {key: _cleaned(value, is_message=False) for key, value in result.items()}


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
    if _is_object(value):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        clean = {name: _cleaned(item, _is_message(name, is_message)) for name, item in named.items()}
        return dataclasses.replace(value, **clean)
    return value


def _is_message(name: str, inherited: bool) -> bool:
    return name in _MESSAGES or (inherited and name not in _TRACEBACKS)
