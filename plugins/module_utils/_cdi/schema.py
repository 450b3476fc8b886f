# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names and versions that the CDI library accepts.

Release 1.1.0 of the CDI library is the reference. It accepts more than the CDI specification allows.
"""

from __future__ import annotations

import decimal
import math
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

# Limits in SPEC.md of the CDI project. The library does not enforce them.
_VENDOR_LIMIT, _LABEL_LIMIT = 253, 63
_ANNOTATION_LIMIT = 256 * 1024

# Keys that messages show without quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")

_KIND_RULE = "has to begin with a letter, end with a letter or a digit, and hold only these and _ . - between them"
_DEVICE_RULE = "has to begin and end with a letter or a digit, and may hold only these and _ . : - between them"

# A limit on values, since aliases let a small file describe a large document.
_MOST_VALUES = 200_000
_LONG = 256
_MOST_PROBLEMS = 100

# The fields of each mapping. "[x]" is a list of x, "{text}" a mapping of strings, a name in this table a mapping.
EDITS = "containerEdits"
_FIELDS: dict[str, dict[str, str]] = {
    "document": {
        "cdiVersion": "text",
        "kind": "text",
        "annotations": "{text}",
        "devices": "[device]",
        EDITS: EDITS,
    },
    "device": {"name": "text", "annotations": "{text}", EDITS: EDITS},
    EDITS: {
        "env": "[text]",
        "deviceNodes": "[node]",
        "netDevices": "[interface]",
        "hooks": "[hook]",
        "mounts": "[mount]",
        "intelRdt": "cache",
        "additionalGids": "[uint32]",
    },
    "node": {
        "path": "text",
        "hostPath": "text",
        "type": "text",
        "major": "int64",
        "minor": "int64",
        "fileMode": "uint32",
        "permissions": "text",
        "uid": "uint32",
        "gid": "uint32",
    },
    "interface": {"hostInterfaceName": "text", "name": "text"},
    "hook": {"hookName": "text", "path": "text", "args": "[text]", "env": "[text]", "timeout": "int64"},
    "mount": {"hostPath": "text", "containerPath": "text", "options": "[text]", "type": "text"},
    "cache": {
        "closID": "text",
        "l3CacheSchema": "text",
        "memBwSchema": "text",
        "schemata": "[text]",
        "enableMonitoring": "switch",
    },
}
_SPELLINGS = {kind: {name.lower(): name for name in fields} for kind, fields in _FIELDS.items()}
# The order matters, because bool is a subclass of int in Python.
_WORDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number with a point"),
    (str, "a text"),
    (dict, "a mapping"),
    (list, "a list"),
)
_BOUNDS = {"int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1)}
_UINT64 = 2**64
# The values that the library uses for null in a list. For null as a node, a hook and similar entries, it crashes.
_ZEROES: dict[str, t.Callable[[], t.Any]] = {"text": str, "uint32": int, "device": dict}

# The options of mount(8), and those that runc and crun add: recursive forms, mappings of owners, and copies.
_BOTH_WAYS = ("suid", "dev", "exec", "atime", "diratime", "relatime", "strictatime", "symfollow")
MOUNT_OPTIONS = frozenset(
    [prefix + negation + name for prefix in ("", "r") for negation in ("", "no") for name in _BOTH_WAYS]
    + [prefix + name for prefix in ("", "r") for name in ("bind", "private", "shared", "slave", "unbindable", "idmap")]
    + ["ro", "rro", "rw", "rrw", "sync", "async", "dirsync", "remount", "defaults", "silent", "loud", "tmpcopyup"]
    + [negation + name for negation in ("", "no") for name in ("mand", "iversion", "acl", "lazytime")]
    + ["copy-symlink", "src-nofollow"]
)


class Problem(t.NamedTuple):
    """A problem of a document. ``place`` is like ``devices[0].containerEdits.env[1]``, empty for the whole document."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place or 'The document'} {self.what}."


class TooMuchError(Exception):
    """The end of a validation with too many problems or values. Only the problems found so far are reported."""


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
        return f"has to be VENDOR/CLASS, as in nvidia.com/gpu, but is {core_text.quoted(kind)}"
    for part, text in (("vendor", vendor), ("class", name)):
        if not _KIND_PART.fullmatch(text):
            return f"has the {part} {core_text.quoted(text)}, which {_KIND_RULE}"
        if len(text) == 1:
            return (
                f"has the {part} {core_text.quoted(text)}: engines crash on one of a single letter (CDI library up to"
                f" 1.1.0)"
            )
    return ""


def device_name_problem(name: str) -> str:
    """Return why the name of a device is invalid, in the form of kind_problem()."""
    if not name:
        return "is empty. A device needs a name"
    return "" if _DEVICE.fullmatch(name) else f"is {core_text.quoted(name)}, which {_DEVICE_RULE}"


def kind_doubts(kind: str) -> list[str]:
    """Return the rules of SPEC.md that ``kind`` violates although the library accepts it."""
    vendor, name = split_kind(kind)
    doubts = []
    if len(vendor) > _VENDOR_LIMIT:
        doubts.append(f"has a vendor of {len(vendor)} characters; {_VENDOR_LIMIT} are allowed")
    elif not _DOMAIN.fullmatch(vendor):
        doubts.append(f"has the vendor {core_text.quoted(vendor)}, which is no domain name in lower case")
    if len(name) > _LABEL_LIMIT:
        doubts.append(f"has a class of {len(name)} characters; {_LABEL_LIMIT} are allowed")
    return doubts


def device_name_doubts(name: str) -> list[str]:
    """Return the rules of SPEC.md that the name of a device violates, in the form of kind_doubts()."""
    if len(name) <= _LABEL_LIMIT:
        return []
    return [f"is {core_text.quoted(name)} with {len(name)} characters; {_LABEL_LIMIT} are allowed"]


def annotation_doubts(annotations: t.Mapping[str, str]) -> list[str]:
    """Return the Kubernetes rules that annotations violate. The library intends to apply these rules, but does not."""
    doubts = [
        f"has the key {core_text.quoted(key)}, which is no qualified name" for key in annotations if not _qualifies(key)
    ]
    size = sum(len(text.encode("utf-8", "replace")) for pair in annotations.items() for text in pair)
    if size > _ANNOTATION_LIMIT:
        doubts.append(f"holds {size} bytes; {_ANNOTATION_LIMIT} are allowed")
    return doubts


def _qualifies(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _VENDOR_LIMIT or not _DOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= _LABEL_LIMIT and _LABEL.fullmatch(name) is not None


# -- reading data as the library does ----------------------------------------------------------------------------------


class Reader:
    """A converter of data to the types of the library. It records errors and warnings."""

    def __init__(self) -> None:
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self._values = 0

    def error(self, place: str, what: str) -> None:
        self.errors.append(Problem(place, what))
        if len(self.errors) >= _MOST_PROBLEMS:
            self.errors.append(Problem("", f"has more than {_MOST_PROBLEMS} faults; these are the first"))
            raise TooMuchError

    def warn(self, place: str, what: str) -> None:
        if len(self.warnings) < _MOST_PROBLEMS:
            self.warnings.append(Problem(place, what))

    def _spend(self, values: int) -> None:
        self._values += values
        if self._values > _MOST_VALUES:
            self.error("", f"is too large: it holds more than {_MOST_VALUES} values")
            raise TooMuchError

    def read(self, data: t.Any) -> dict[str, t.Any] | None:
        """Return a whole document, or None if ``data`` is not a mapping.

        Fields have their correct spelling, and strings and numbers have their required types. A value is null only
        where the library refuses null. Raises TooMuchError.
        """
        if data is None:
            self.error("", "is empty")
            return None
        return self._mapping("", "document", data)

    def _value(self, place: str, kind: str, data: t.Any) -> t.Any:
        """Return ``data`` as a value of ``kind``, or None if it is null or invalid."""
        self._spend(1)
        if data is None:
            return None
        if kind.startswith("["):
            return self._list(place, kind[1:-1], data)
        if kind.startswith("{"):
            return self._texts(place, data)
        if kind in _FIELDS:
            return self._mapping(place, kind, data)
        if kind == "text":
            return self._text(place, data)
        return self._switch(place, data) if kind == "switch" else self._number(place, kind, data)

    def _mapping(self, place: str, kind: str, data: t.Any) -> dict[str, t.Any] | None:
        if not isinstance(data, dict):
            self.error(place, f"has to be a mapping, but is {_kind_of(data)}")
            return None
        found: dict[str, t.Any] = {}
        # The library's parser sorts the keys. Of two keys that differ only in case, the last has effect.
        pairs = sorted(((_key(key), value) for key, value in data.items()), key=lambda pair: pair[0])
        for key, value in pairs:
            here = _inside(place, key)
            name = key if key in _FIELDS[kind] else _SPELLINGS[kind].get(key.lower())
            if name is None:
                self.error(here, f"is unknown there. Known are {', '.join(_FIELDS[kind])}")
                continue
            if name != key:
                self.warn(here, f"is written {name} in the specification of CDI")
            read = self._value(here, _FIELDS[kind][name], value)
            if read is not None:
                found[name] = read
        return found

    def _list(self, place: str, kind: str, data: t.Any) -> list[t.Any] | None:
        if not isinstance(data, list):
            self.error(place, f"has to be a list, but is {_kind_of(data)}")
            return None
        found = []
        for index, value in enumerate(data):
            read = self._value(f"{place}[{index}]", kind, value)
            if value is None and kind not in _ZEROES:
                self.error(f"{place}[{index}]", "is null, on which engines crash")
            # A value that could not be read stays in the list, so that the indexes of the others do not change.
            found.append(_ZEROES[kind]() if read is None and kind in _ZEROES else read)
        return found

    def _texts(self, place: str, data: t.Any) -> dict[str, str] | None:
        if not isinstance(data, dict):
            self.error(place, f"has to be a mapping, but is {_kind_of(data)}")
            return None
        found: dict[str, str] = {}
        for key, value in data.items():
            if not isinstance(key, (str, int, float)):
                self.error(place, f"has a key that is {_kind_of(key)}")
                continue
            name = _key(key)
            self._spend(len(name) // _LONG)
            found[name] = self._value(_inside(place, name), "text", value) or ""
        return found

    def _text(self, place: str, data: t.Any) -> str | None:
        if isinstance(data, str):
            # Long strings use up more of the limit on values.
            self._spend(len(data) // _LONG)
            return data
        text = _number_text(data) if isinstance(data, (int, float)) else None
        if text is None:
            self.error(place, f"has to be a text, but is {_kind_of(data)}")
            return None
        self.warn(place, f"is {_kind_of(data)}, which engines take for {core_text.quoted(text)}. Write it in quotes")
        return text

    def _number(self, place: str, kind: str, data: t.Any) -> int | None:
        if isinstance(data, float) and data.is_integer():
            data = int(data)
        if isinstance(data, bool) or not isinstance(data, int):
            self.error(place, f"has to be a whole number, but is {_kind_of(data)}")
            return None
        least, most = _BOUNDS[kind]
        if not least <= data <= most:
            self.error(place, f"is out of bounds: it has to be at least {least} and at most {most}")
            return None
        return data

    def _switch(self, place: str, data: t.Any) -> bool | None:
        if isinstance(data, bool):
            return data
        self.error(place, f"has to be true or false, but is {_kind_of(data)}")
        return None


def _inside(place: str, key: str) -> str:
    """Return the place of ``key`` in the mapping at ``place``."""
    name = key if _PLAIN.fullmatch(key) else core_text.quoted(key)
    return f"{place}.{name}" if place else name


def _key(key: t.Any) -> str:
    """Return a key as the library spells it. The caller reports a key that is not a string or number as unknown."""
    if isinstance(key, str):
        return key
    text = _number_text(key) if isinstance(key, (int, float)) else None
    return f"a key that is {_kind_of(key)}" if text is None else text


def _kind_of(data: t.Any) -> str:
    if data is None:
        return "null"
    return next((words for kind, words in _WORDS if isinstance(data, kind)), "something else")


def _number_text(value: float) -> str | None:
    """Return a number or a boolean as a string in the format of Go's strconv, or None if it is too large."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -(2**63) <= value < _UINT64:
        return str(value)
    try:
        value = float(value)
    except OverflowError:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    exact = decimal.Decimal(repr(value)).normalize()
    power = exact.adjusted()
    # FormatFloat(value, 'g', -1, 64) uses an exponent where a precision of six is not enough.
    if -4 <= power < 6:
        return format(exact, "f")
    figures = "".join(map(str, exact.as_tuple().digits))
    fraction = f".{figures[1:]}" if len(figures) > 1 else ""
    return f"{'-' if value < 0 else ''}{figures[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"
