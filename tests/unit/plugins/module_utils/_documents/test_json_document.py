# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import JSON_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import (
    MAX_DEPTH,
    MAX_VALUES,
    JsonDocument,
    JsonSyntaxError,
    parse,
    plain,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within

RUNTIME = ("runtimes", "nvidia", "path")
PATH = "/usr/bin/nvidia-container-runtime"


def document(text: str | bytes) -> JsonDocument:
    return JsonDocument.from_bytes("/etc/docker/daemon.json", text if isinstance(text, bytes) else text.encode())


# Layouts of real files, and the same file after the edit.
LAYOUTS = {
    "empty": ("", '{\n    "runtimes": {\n        "nvidia": {\n            "path": "P"\n        }\n    }\n}\n'),
    "blank": (" \n\n", '{\n    "runtimes": {\n        "nvidia": {\n            "path": "P"\n        }\n    }\n}\n'),
    "braces": ("{}", '{\n    "runtimes": {\n        "nvidia": {\n            "path": "P"\n        }\n    }\n}'),
    "two spaces, no final newline": (
        '{\n  "debug": true\n}',
        '{\n  "debug": true,\n  "runtimes": {\n    "nvidia": {\n      "path": "P"\n    }\n  }\n}',
    ),
    "tabs": (
        '{\n\t"debug": true\n}\n',
        '{\n\t"debug": true,\n\t"runtimes": {\n\t\t"nvidia": {\n\t\t\t"path": "P"\n\t\t}\n\t}\n}\n',
    ),
    "one line": ('{"debug": true}\n', '{"debug": true, "runtimes": {"nvidia": {"path": "P"}}}\n'),
    "compact": ('{"a":1,"b":2}', '{"a":1,"b":2,"runtimes":{"nvidia":{"path":"P"}}}'),
    "windows line ends": (
        '{\r\n  "debug": true\r\n}\r\n',
        '{\r\n  "debug": true,\r\n  "runtimes": {\r\n    "nvidia": {\r\n      "path": "P"\r\n    }\r\n  }\r\n}\r\n',
    ),
    "a sibling on one line": (
        '{\n  "runtimes": {\n    "kata": {"path": "/k"}\n  }\n}\n',
        '{\n  "runtimes": {\n    "kata": {"path": "/k"},\n    "nvidia": {"path": "P"}\n  }\n}\n',
    ),
    "no indentation at all": (
        '{\n"debug": true\n}\n',
        '{\n"debug": true,\n"runtimes": {\n    "nvidia": {\n        "path": "P"\n    }\n}\n}\n',
    ),
    "null": ('{"runtimes": null}', '{"runtimes": {"nvidia": {"path": "P"}}}'),
    "an empty object of its own": (
        '{\n  "runtimes": {},\n  "debug": true\n}\n',
        '{\n  "runtimes": {\n    "nvidia": {\n      "path": "P"\n    }\n  },\n  "debug": true\n}\n',
    ),
    "another path": (
        '{\n  "runtimes": {"nvidia": {"runtimeArgs": [],   "path": "/old"}}}',
        '{\n  "runtimes": {"nvidia": {"runtimeArgs": [],   "path": "P"}}}',
    ),
    "spaced colons": (
        '{\n  "debug" : true\n}',
        '{\n  "debug" : true,\n  "runtimes" : {\n    "nvidia" : {\n      "path" : "P"\n    }\n  }\n}',
    ),
}


@pytest.mark.parametrize(("before", "after"), LAYOUTS.values(), ids=LAYOUTS)
def test_set_follows_the_layout_of_the_file(before: str, after: str) -> None:
    assert document(before).set(RUNTIME, "P").text == after


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_keeps_the_byte_order_mark(mark: bytes) -> None:
    edited = document(mark + b'{"a": 1}').set(("b",), value=True)
    assert edited.to_bytes() == mark + b'{"a": 1, "b": true}'


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ('{"a": 1, "b": 2, "c": 3}', "b", '{"a": 1, "c": 3}'),
        ('{"a": 1, "b": 2}', "a", '{"b": 2}'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', "b", '{\n  "a": 1\n}\n'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', "a", '{\n  "b": 2\n}\n'),
        ('{ "a": 1 }', "a", "{}"),
        ('{"a": 1}', "x", '{"a": 1}'),
    ],
)
def test_delete_removes_the_entry_and_its_comma(before: str, path: str, after: str) -> None:
    assert document(before).delete((path,)).text == after


def test_set_of_the_same_value_changes_nothing() -> None:
    text = '{"features" : { "cdi" :true }}'
    assert document(text).set(("features", "cdi"), value=True).text == text
    assert document('{"a": 1}').set(("a",), value=True).text == '{"a": true}'


@pytest.mark.parametrize(
    ("original", "now", "restored"),
    [
        ("{}", '{"runtimes": {"nvidia": {"path": "P"}}}', "{}"),
        ('{"runtimes": {}}', '{"runtimes": {"nvidia": {"path": "P"}}}', '{"runtimes": {}}'),
        ('{"runtimes": null}', '{"runtimes": {"nvidia": {"path": "P"}}}', '{"runtimes": null}'),
        ("{}", '{"runtimes": {"nvidia": {"path": "P"}, "k": {}}}', '{"runtimes": {"k": {}}}'),
        (
            '{"runtimes": {"nvidia": {"path": "/o"}}}',
            '{"runtimes": {"nvidia": {"path": "P"}}}',
            '{"runtimes": {"nvidia": {"path": "/o"}}}',
        ),
    ],
)
def test_restore_of_an_entry_and_its_parents(original: str, now: str, restored: str) -> None:
    assert document(now).restore(RUNTIME, document(original)).text == restored


# Strings that JSON can spell in several ways, and lone surrogates, which UTF-8 cannot encode.
SPELLINGS = [r"\ud83d", r"\uD83D", r"a\udc00b", r"\/x", r"\u00e9", "é", r"\ud83d\ude00"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_restore_keeps_the_spelling(spelling: str) -> None:
    original = document(f'{{"default-runtime": "{spelling}", "debug": true}}\n')
    drifted = document('{"default-runtime": "nvidia", "debug": false}\n')
    expected = f'{{"default-runtime": "{spelling}", "debug": false}}\n'
    assert drifted.restore(("default-runtime",), original).to_bytes() == expected.encode()


@pytest.mark.parametrize("value", ["\ud83d", {"\ud83d": ["\udc00", {"x": "\ud83d"}]}])
def test_set_escapes_a_lone_surrogate(value: t.Any) -> None:
    written = document('{"a": 1}').set(("\udfff", "x"), value)
    assert json.loads(written.to_bytes()) == {"a": 1, "\udfff": {"x": value}}
    assert json.loads(written.set(("a",), value).to_bytes())["a"] == value


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (b'{\n  "a": 1,\n}', (3, 1), "comma is not allowed after the last entry. Correct the file."),
        (b'{"a": "\xc3\xa9\xff"}', (1, 9), "invalid UTF-8"),
        (b"[]", (1, 1), "the file contains an array, but an object is expected"),
        (b'\n "x"', (2, 2), "the file contains a string, but an object is expected"),
        (b"null", (1, 1), "the file contains null, but an object is expected"),
        (b"\xff\xfe{\x00}\x00", (None, None), "UTF-16"),
    ],
)
def test_rejects_invalid_files(content: bytes, place: tuple[int, int], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        document(content)
    assert (caught.value.line, caught.value.column) == place
    assert problem in str(caught.value)
    assert "/etc/docker/daemon.json" in str(caught.value)


def test_rejects_a_duplicate_name_only_on_the_path() -> None:
    twice = document('{"runtimes": {},\n "runtimes": {}}')
    with pytest.raises(ConfigurationError, match=r"line 2, column 2.*is used twice"):
        twice.node("runtimes")
    assert twice.node("debug") is None


# -- properties ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "runtimes", "nvidia", "path", "käse", '"', "\\"]) | st.text(max_size=5)
FOREIGN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
STYLES = st.sampled_from([{}, {"indent": 1}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}])
DOCUMENTS = st.dictionaries(NAMES, FOREIGN, max_size=5)


@given(DOCUMENTS, STYLES, st.lists(NAMES, min_size=1, max_size=3), FOREIGN)
def test_set_keeps_all_other_values(
    value: dict[str, t.Any], style: dict[str, t.Any], path: list[str], new: t.Any
) -> None:
    edited = document(json.dumps(value, **style)).set(tuple(path), new)
    expected = json.loads(json.dumps(value))
    here = expected
    for name in path[:-1]:
        if not isinstance(here.get(name), dict):
            here[name] = {}
        here = here[name]
    here[path[-1]] = new
    assert json.loads(edited.text) == expected
    assert list(json.loads(edited.text)) == list(expected)
    assert edited.set(tuple(path), new).text == edited.text


@given(DOCUMENTS.filter(bool), STYLES, FOREIGN)
def test_set_and_delete_restore_the_text(value: dict[str, t.Any], style: dict[str, t.Any], new: t.Any) -> None:
    value.pop("guest", None)
    if not value:
        return
    text = json.dumps(value, **style)
    assert document(text).set(("guest",), new).delete(("guest",)).text == text


@pytest.mark.parametrize(
    ("unit", "left", "right"),
    [("[],", '{"a": [', "0]}"), ("{},", '{"a": [', "0]}"), ('"a":[],', "{", '"a":0}'), ("1,", '{"a": [', "0]}")],
)
def test_limit_of_values(unit: str, left: str, right: str) -> None:
    signs = sum(map(unit.count, "[{,"))
    text = left + unit * ((MAX_VALUES - 2) // signs) + right
    with within(60):
        assert JsonDocument.from_bytes("/x", text.encode()).text == text
    text = left + unit * (MAX_VALUES // signs + 1) + right
    with within(5), pytest.raises(ConfigurationError, match=r"^/x, line 1, column 1: the text has more than 1"):
        JsonDocument.from_bytes("/x", text.encode())


@pytest.mark.parametrize("unit", ["x", "\\\\"])
def test_size_limit(unit: str) -> None:
    text = '{"a": "' + unit * ((JSON_BYTES - 20) // len(unit)) + '"}'
    with within(60):
        assert JsonDocument.from_bytes("/x", text.encode()).text == text
    with pytest.raises(ConfigurationError, match=r"^/x: the file is larger than 1 MiB, the limit for JSON"):
        JsonDocument.from_bytes("/x", text.encode() + b" " * 20)


# -- the parser ------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@given(VALUES, st.sampled_from([None, 0, 1, 4, "\t"]), st.booleans())
def test_parses_what_the_json_module_writes(value: t.Any, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(parse(text)) == value


@given(st.text(alphabet='{}[]":,tfn0-1.eE \\u"ab/\n', max_size=30))
def test_accepts_exactly_what_the_json_module_accepts(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        if text.strip(" \t\r\n"):
            with pytest.raises(JsonSyntaxError):
                parse(text)
        return
    assert plain(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "offset", "problem"),
    [
        ('{"a": 1,}', 8, "comma is not allowed after the last entry"),
        ("[1,]", 3, "comma is not allowed after the last entry"),
        ('{"a" 1}', 5, "':' is expected"),
        ('{"a": 1 "b": 2}', 8, "',' or '}' is expected"),
        ("{'a': 1}", 1, "a quoted name is expected"),
        ('{"a": tru}', 6, "a value is expected"),
        ('{"a": NaN}', 6, "a value is expected"),
        ('{"a": 01}', 7, "',' or '}' is expected"),
        ('{"a": 1', 7, "the file ends"),
        ('{"a": "b\n"}', 6, "is not terminated"),
        ('{"a": "\\x"}', 6, "invalid escape"),
        ('{\n// why\n"a": 1}', 2, "a comment is not allowed in JSON"),
        ('{"a": # why\n1}', 6, "a comment is not allowed in JSON"),
        ("{} {}", 3, "after the end"),
    ],
)
def test_error_has_offset_and_problem(text: str, offset: int, problem: str) -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        parse(text)
    assert caught.value.offset == offset
    assert problem in caught.value.problem


def test_rejects_deep_nesting() -> None:
    with pytest.raises(JsonSyntaxError, match=f"more than {MAX_DEPTH} levels"):
        parse("[" * 100_000)


def test_parses_numbers_of_any_length() -> None:
    assert plain(parse("1" * 5000)) == float("inf")
    assert plain(parse("-12")) == -12
    assert isinstance(plain(parse("1.0")), float)
