# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the YAML of CDI specifications, of the kubelet and of K3s with PyYAML, with limits for size and depth.

The CDI library reads with sigs.k8s.io/yaml, whose scalars are those of YAML 1.1 without dates and without numbers in
base 60. docs/cdi.md lists what engines accept and this collection refuses.
"""

from __future__ import annotations

import math
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled, errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

# No field of a specification is nested deeper than eight levels.
MAX_LEVELS = 32
# The values of a document, and the characters of its strings, after all aliases are followed. A specification of a host
# with 8 GPUs in 56 MIG devices has about 2,000 values.
MAX_VALUES = 100_000
MAX_TEXT = 2 * hostfs.CDI_SPEC_BYTES

ADVICE = "Correct the file, or remove it if it is not needed."
TOO_DEEP = f"lists and mappings are nested more than {MAX_LEVELS} levels deep"

# Characters that YAML does not allow. Some parsers read U+FEFF, a byte order mark inside the text, as a blank, and
# others read it as a part of the text.
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]|[\ufeff\ufffe\uffff]")
# A backslash and the next character. The library refuses the escaped slash of JSON, and surrogates.
_ESCAPE = re.compile(r"\\(?:(/|(?:u|U0000)[dD][89a-fA-F])|.)", re.DOTALL)
# Longer integers need more than 64 bits. Python needs quadratic time to parse them, and some versions refuse them.
_MAX_DIGITS = 20

_PREFIX = "tag:yaml.org,2002:"
# The forms of scalars without quotes that are not strings, in the order in which they are tried.
_FORMS = {
    "null": "|~|null|Null|NULL",
    "bool": "y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    "int": f"[+-]?(?:0x[0-9a-fA-F]{{1,16}}|0b[01]{{1,64}}|0[oO]?[0-7]{{1,22}}|0|[1-9][0-9_]{{0,{_MAX_DIGITS - 1}}})",
    "float": r"[+-]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][+-]?[0-9]+)?",
    "merge": "<<",
}


def decoded(path: str, content: bytes) -> str:
    """Return the text of a file without its byte order mark.

    Raises ConfigurationError if the file is too large, is not UTF-8, or contains a character that YAML does not allow.
    """
    if len(content) > hostfs.CDI_SPEC_BYTES:
        problem = f"the file is larger than {hostfs.CDI_SPEC_BYTES >> 20} MiB, the limit for CDI specifications"
        raise errors.ConfigurationError(path, problem, ADVICE)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _error_at(path, "invalid UTF-8", content[: error.start].decode("utf-8")) from error
    text = text[1:] if text.startswith("\ufeff") else text
    found = _NOT_ALLOWED.search(text)
    if found is not None:
        raise _error_at(path, f"the character U+{ord(found.group()):04X} is not allowed in YAML", text[: found.start()])
    return text


def check_escapes(path: str, text: str) -> None:
    """Raise ConfigurationError for an escape in JSON that the library refuses."""
    problem, start = _refused_escape(text)
    if problem:
        raise _error_at(path, problem, text[:start])


def _refused_escape(text: str) -> tuple[str, int]:
    """Return the problem with the first escape that the library refuses, and its offset; an empty string if none."""
    for found in _ESCAPE.finditer(text):
        if found.group(1):
            what = found.group() if found.group(1) == "/" else "of a surrogate"
            return f"engines reject the escape {what}", found.start()
    return "", 0


def _error_at(path: str, problem: str, before: str) -> errors.ConfigurationError:
    """Return an error with the position directly behind ``before``."""
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return errors.ConfigurationError(path, problem, ADVICE, line, column)


def twice(key: str) -> str:
    """Return the problem of a duplicate key."""
    return f"the key {core_text.quoted(key)} is used twice in one mapping"


def number(digits: str) -> t.Any:
    """Return a decimal number as the library reads it. A number that is far too large becomes a string."""
    if len(digits) <= _MAX_DIGITS and digits.lstrip("+-").isdigit():
        return int(digits)
    value = float(digits)
    return value if math.isfinite(value) else digits


def read_yaml(path: str, text: str) -> t.Any:
    """Return the data of the first document in ``text``. All keys are strings.

    Raises ConfigurationError for a document that is not valid, has duplicate keys or exceeds a limit, and the
    NvidiaError of import_bundled() if PyYAML is missing.
    """
    yaml: t.Any = bundled.import_bundled("yaml")
    try:
        loader = _loader_class(yaml)(text)
        return loader.get_data() if loader.check_data() else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = (mark.line + 1, mark.column + 1) if mark is not None else ()
        problem = f"invalid YAML: {getattr(error, 'problem', None) or 'unreadable characters'}"
        raise errors.ConfigurationError(path, problem, ADVICE, *place) from error
    except RecursionError:
        raise errors.ConfigurationError(path, TOO_DEEP, ADVICE) from None
    except (ValueError, OverflowError) as error:
        # PyYAML raises these errors for the code of a character that does not exist.
        raise errors.ConfigurationError(
            path, "invalid YAML: the character of an escape does not exist", ADVICE
        ) from error


def _loader_class(yaml: t.Any) -> t.Any:
    """Return a class that scans with libyaml if this PyYAML has it. libyaml's own composer would know no limits."""
    bases = (yaml.composer.Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)
    constructors = {**yaml.SafeLoader.yaml_constructors, f"{_PREFIX}float": _Loader.construct_float}
    content = {
        "yaml": yaml,
        "safe_loader": bases[-1],
        "yaml_implicit_resolvers": {
            None: [(_PREFIX + name, re.compile(f"(?:{form})\\Z")) for name, form in _FORMS.items()]
        },
        "yaml_constructors": constructors,
    }
    return type("Loader", (_Loader, *bases), content)


class _Loader:
    """What differs from PyYAML's SafeLoader: limits, no tags, only unique strings as keys, other forms of scalars."""

    yaml: t.Any
    safe_loader: t.Any
    bool_values: t.ClassVar[dict[str, bool]] = {
        **dict.fromkeys(("y", "yes", "true", "on"), True),
        **dict.fromkeys(("n", "no", "false", "off"), False),
    }

    def __init__(self, text: str) -> None:
        self.safe_loader.__init__(self, text)
        # libyaml's parser does not initialize the composer.
        self.anchors: dict[str, t.Any] = {}
        # The values and characters of each complete node with an anchor.
        self.sizes: dict[str, tuple[int, int]] = {}
        self.text = text
        self.level = self.values = self.characters = 0

    def refuse(self, item: t.Any, problem: str) -> t.NoReturn:
        raise self.yaml.MarkedYAMLError(problem=problem, problem_mark=item.start_mark)

    def spend(self, event: t.Any, values: int, characters: int) -> None:
        self.values += values
        self.characters += characters
        if self.values > MAX_VALUES:
            self.refuse(event, f"the file has more than {MAX_VALUES} values, including those of aliases")
        if self.characters > MAX_TEXT:
            self.refuse(event, f"aliases expand to more than {MAX_TEXT} characters")

    def compose_node(self, parent: t.Any, index: t.Any) -> t.Any:
        """Return the next node. The values of an alias are counted before anything follows it."""
        base: t.Any = super()
        event = base.peek_event()
        if isinstance(event, self.yaml.AliasEvent):
            if event.anchor not in self.sizes:
                self.refuse(event, "an alias refers to a value that is not complete before it")
            self.spend(event, *self.sizes[event.anchor])
            return base.compose_node(parent, index)
        self.check_node_event(event)
        before = (self.values, self.characters)
        self.spend(event, 1, len(getattr(event, "value", "")))
        self.level += 1
        node = base.compose_node(parent, index)
        self.level -= 1
        if event.anchor is not None:
            self.sizes[event.anchor] = (self.values - before[0], self.characters - before[1])
        return node

    def check_node_event(self, event: t.Any) -> None:
        if event.tag is not None:
            self.refuse(event, "tags (words that begin with !) are not supported")
        if not isinstance(event, self.yaml.ScalarEvent):
            if self.level >= MAX_LEVELS:
                self.refuse(event, TOO_DEEP)
        elif event.style == '"':
            problem, _start = _refused_escape(self.text[event.start_mark.index : event.end_mark.index])
            if problem:
                self.refuse(event, problem)

    def construct_mapping(self, node: t.Any, deep: bool = False) -> t.Any:
        base: t.Any = super()
        base.flatten_mapping(node)
        keys: set[str] = set()
        for key_node, _value_node in node.value:
            key = base.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self.refuse(key_node, "a mapping has a key that is not a string. Write it in quotes")
            if key in keys:
                self.refuse(key_node, twice(key))
            keys.add(key)
        return base.construct_mapping(node, deep)

    def construct_float(self, node: t.Any) -> t.Any:
        return number(node.value.replace("_", ""))
