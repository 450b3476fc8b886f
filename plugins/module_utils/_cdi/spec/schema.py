# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fields, types and names that the CDI library accepts, and a reader that converts data to them.

The rules are those of release 1.1.0 of the CDI library. It accepts more than the CDI specification allows.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

# Keys that messages show without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")
# Engines crash on a part of one letter (CDI library up to 1.1.0).
_KIND_PART = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")

_KIND_RULE = (
    "must have two characters or more, begin with a letter, end with a letter or a digit, and contain only letters,"
    " digits, _ . and -"
)
_DEVICE_RULE = "must begin and end with a letter or a digit, and contain only letters, digits, _ . : and -"

_MAX_PROBLEMS = 100

# The fields of each mapping and their types. "[x]" is a list of x, "{string}" a mapping of strings. Types that are keys
# of this table are mappings.
EDITS = "containerEdits"
_FIELDS: dict[str, dict[str, str]] = {
    "document": {
        "cdiVersion": "string",
        "kind": "string",
        "annotations": "{string}",
        "devices": "[device]",
        EDITS: EDITS,
    },
    "device": {"name": "string", "annotations": "{string}", EDITS: EDITS},
    EDITS: {
        "env": "[string]",
        "deviceNodes": "[node]",
        "netDevices": "[interface]",
        "hooks": "[hook]",
        "mounts": "[mount]",
        "intelRdt": "rdt",
        "additionalGids": "[uint32]",
    },
    "node": {
        "path": "string",
        "hostPath": "string",
        "type": "string",
        "major": "int64",
        "minor": "int64",
        "fileMode": "uint32",
        "permissions": "string",
        "uid": "uint32",
        "gid": "uint32",
    },
    "interface": {"hostInterfaceName": "string", "name": "string"},
    "hook": {"hookName": "string", "path": "string", "args": "[string]", "env": "[string]", "timeout": "int64"},
    "mount": {"hostPath": "string", "containerPath": "string", "options": "[string]", "type": "string"},
    "rdt": {
        "closID": "string",
        "l3CacheSchema": "string",
        "memBwSchema": "string",
        "schemata": "[string]",
        "enableMonitoring": "boolean",
    },
}
_FIELDS_BY_LOWER_CASE = {kind: {name.lower(): name for name in fields} for kind, fields in _FIELDS.items()}
# The order matters, because bool is a subclass of int in Python.
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number with a fraction"),
    (str, "a string"),
    (dict, "a mapping"),
    (list, "a list"),
)
_BOUNDS = {"int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1)}
_UINT64 = 2**64
# The values that the library uses for null in a list. It crashes on null as a node, a hook and similar entries.
_NULL_VALUES: dict[str, t.Callable[[], t.Any]] = {"string": str, "uint32": int, "device": dict}


class SpecificationProblem(t.NamedTuple):
    """A problem of a document. ``field`` is like ``devices[0].containerEdits.env[1]``, empty for the whole document."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field or 'The document'} {self.message}."


class LimitError(Exception):
    """The end of a validation with too many problems. Only the problems found so far are reported."""


def split_kind(kind: str) -> tuple[str, str]:
    """Return vendor and class. If one is missing, the vendor is empty and the class is ``kind``, as in the library."""
    vendor, _slash, name = kind.partition("/")
    return (vendor, name) if vendor and name else ("", kind)


def qualified_name(kind: str, device: str) -> str:
    """Return the name by which a container requests a device."""
    return f"{kind}={device}"


def kind_problem(kind: str) -> str:
    """Return why ``kind`` is invalid, as the rest of a message about it, or an empty string."""
    vendor, name = split_kind(kind)
    if not vendor:
        return f"must be VENDOR/CLASS, such as nvidia.com/gpu, but is {core_text.quoted(kind)}"
    for part, text in (("vendor", vendor), ("class", name)):
        if not _KIND_PART.fullmatch(text):
            return f"has the {part} {core_text.quoted(text)}, which {_KIND_RULE}"
    return ""


def device_name_problem(name: str) -> str:
    """Return why the name of a device is invalid, in the form of kind_problem()."""
    if not name:
        return "is empty. Give the device a name"
    return "" if _DEVICE.fullmatch(name) else f"is {core_text.quoted(name)}, which {_DEVICE_RULE}"


# -- reading data as the library does ----------------------------------------------------------------------------------


class Reader:
    """Converts data to the types of the library, and records errors."""

    def __init__(self) -> None:
        self.errors: list[SpecificationProblem] = []

    def error(self, field: str, message: str) -> None:
        if len(self.errors) >= _MAX_PROBLEMS:
            self.errors.append(
                SpecificationProblem("", f"has more than {_MAX_PROBLEMS} errors. Only the first ones are shown")
            )
            raise LimitError
        self.errors.append(SpecificationProblem(field, message))

    def read(self, data: t.Any) -> dict[str, t.Any] | None:
        """Return a whole document, or None if ``data`` is not a mapping.

        Fields have their correct spelling, and strings and numbers have their required types. A value is null only
        where the library refuses null. Raises LimitError.
        """
        if data is None:
            self.error("", "is empty")
            return None
        return self._mapping("", "document", data)

    def _value(self, field: str, type_name: str, data: t.Any) -> t.Any:
        """Return ``data`` as a value of ``type_name``, or None if it is null or invalid."""
        if data is None:
            return None
        if type_name.startswith("["):
            return self._list(field, type_name[1:-1], data)
        if type_name.startswith("{"):
            return self._string_mapping(field, data)
        if type_name in _FIELDS:
            return self._mapping(field, type_name, data)
        if type_name == "string":
            return self._string(field, data)
        return self._boolean(field, data) if type_name == "boolean" else self._number(field, type_name, data)

    def _mapping(self, field: str, type_name: str, data: t.Any) -> dict[str, t.Any] | None:
        if not isinstance(data, dict):
            self.error(field, f"must be a mapping, but is {_type_name(data)}")
            return None
        found: dict[str, t.Any] = {}
        # The library's parser sorts the keys. Of two keys that differ only in case, the last has effect.
        for key in sorted(data):
            value = data[key]
            inner = _inner_field(field, key)
            name = key if key in _FIELDS[type_name] else _FIELDS_BY_LOWER_CASE[type_name].get(key.lower())
            if name is None:
                self.error(inner, f"is an unknown field. Known fields: {', '.join(_FIELDS[type_name])}")
                continue
            read = self._value(inner, _FIELDS[type_name][name], value)
            if read is not None:
                found[name] = read
        return found

    def _list(self, field: str, type_name: str, data: t.Any) -> list[t.Any] | None:
        if not isinstance(data, list):
            self.error(field, f"must be a list, but is {_type_name(data)}")
            return None
        found = []
        for index, value in enumerate(data):
            read = self._value(f"{field}[{index}]", type_name, value)
            if value is None and type_name not in _NULL_VALUES:
                self.error(f"{field}[{index}]", "is null. Engines crash on it")
            # A value that could not be read stays in the list, so that the indexes of the others do not change.
            found.append(_NULL_VALUES[type_name]() if read is None and type_name in _NULL_VALUES else read)
        return found

    def _string_mapping(self, field: str, data: t.Any) -> dict[str, str] | None:
        if not isinstance(data, dict):
            self.error(field, f"must be a mapping, but is {_type_name(data)}")
            return None
        found: dict[str, str] = {}
        for key, value in data.items():
            found[key] = self._value(_inner_field(field, key), "string", value) or ""
        return found

    def _string(self, field: str, data: t.Any) -> str | None:
        if isinstance(data, str):
            return data
        text = _number_text(data) if isinstance(data, (int, float)) else None
        if text is None:
            self.error(field, f"must be a string, but is {_type_name(data)}")
        return text

    def _number(self, field: str, type_name: str, data: t.Any) -> int | None:
        if isinstance(data, float) and data.is_integer():
            data = int(data)
        if isinstance(data, bool) or not isinstance(data, int):
            self.error(field, f"must be an integer, but is {_type_name(data)}")
            return None
        least, most = _BOUNDS[type_name]
        if not least <= data <= most:
            self.error(field, f"is out of range. It must be from {least} to {most}")
            return None
        return data

    def _boolean(self, field: str, data: t.Any) -> bool | None:
        if isinstance(data, bool):
            return data
        self.error(field, f"must be a boolean, but is {_type_name(data)}")
        return None


def read(data: t.Any) -> dict[str, t.Any]:
    """Return a document without its errors; empty if it cannot be read."""
    try:
        return Reader().read(data) or {}
    except LimitError:
        return {}


def devices(document: t.Mapping[str, t.Any]) -> list[tuple[str, dict[str, t.Any]]]:
    """Return the devices of a document, each with the name of its field."""
    return [(f"devices[{index}]", device) for index, device in enumerate(document.get("devices", ()))]


def _inner_field(field: str, key: str) -> str:
    name = key if _PLAIN.fullmatch(key) else core_text.quoted(key)
    return f"{field}.{name}" if field else name


def _type_name(data: t.Any) -> str:
    if data is None:
        return "null"
    return next((name for kind, name in _TYPE_NAMES if isinstance(data, kind)), "of another type")


def _number_text(value: float) -> str | None:
    """Return a number or a boolean as a string, as the library reads it, or None if it is too large."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < _UINT64 else None
    return f"{value:g}"
