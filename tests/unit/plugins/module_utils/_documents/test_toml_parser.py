# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import re
import sys
import tracemalloc
import typing as t
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import TOML_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import equal, parse
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within

FILES = Path(__file__).parents[3] / "files"
NVIDIA = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "nvidia")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Clear the cache of parse(), because another test may have parsed the same text with another parser."""
    parse.cache_clear()


def document(text: str | bytes) -> TomlDocument:
    return TomlDocument.from_bytes("/etc/containerd/config.toml", text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"a = 1\nb = hunter2\n", (2, 5), "invalid value; strings need quotes"),
        (b"a = 1\na = 2\n", (2, None), "a key is defined twice"),
        (b"[a]\n[a]\n", (2, None), "a table is defined twice"),
        (b'a = "hunter2', (1, None), ""),
        (b"hunter2\n", (1, None), ""),
        (b"a = [1, 2\n", (2, None), ""),
        (b'a = "\xc3\xa9\xff"', (1, 7), "invalid UTF-8"),
        (b"\xff\xfea\x00", (None, None), "UTF-16"),
    ],
)
def test_refuses_what_is_not_toml_in_utf_8(content: bytes, place: tuple[int, int | None], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        document(content)
    # tomlkit reports other positions and messages, which depend on its version. Only those of tomllib are compared.
    if "tomllib" in sys.modules or place == (1, 7) or place[0] is None:
        assert caught.value.line == place[0]
        assert place[1] is None or caught.value.column == place[1]
        assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "/etc/containerd/config.toml" in str(caught.value)


DEEP = [
    "a = " + "[" * 101 + "]" * 101,
    "a = " + "[" * 9999 + "]" * 9999,
    "a = " + "{a=" * 120 + "1" + "}" * 120,
    ".".join("a" * 3000) + " = 1",
    "[" + ".".join("a" * 3000) + "]",
]


@pytest.mark.parametrize("text", DEEP, ids=["array", "endless array", "inline table", "dotted name", "header"])
def test_refuses_what_is_nested_too_deeply(text: str) -> None:
    with pytest.raises(ConfigurationError, match="more than 100 levels deep"):
        document(text)


def test_says_what_is_missing_where_nothing_reads_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tomllib", "tomlkit"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NvidiaError, match="tomlkit"):
        document("")


# -- tomlkit, on Python older than 3.11 -------------------------------------------------------------------------------


def plain(value: t.Any) -> bool:
    """Return whether the data contains only built-in types, and none of tomlkit."""
    if isinstance(value, (dict, list)):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return value.__class__ in (dict, list) and all(map(plain, inner))
    return value.__class__.__module__ in ("builtins", "datetime")


@pytest.mark.parametrize("file", sorted([*FILES.glob("*.toml"), *FILES.glob("*.conf")]), ids=lambda file: file.name)
def test_both_readers_read_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomlkit")
    content = (
        file.read_bytes() + b"\n[z]\na=[1.5,0x1F,{b=1979-05-27T07:32:00Z}]\nb='''\r\nc\r\n'''\nc=true\n[[y]]\n[[y]]\n"
    )
    data = document(content).data
    monkeypatch.setitem(sys.modules, "tomllib", None)
    again = document(content)
    assert equal(again.data, data)
    assert plain(again.data)
    assert again.set(NVIDIA, {"options": {"BinaryName": "P"}}).restore(NVIDIA, again).data == data


@pytest.mark.parametrize(
    "text",
    [
        "[[a.e]]\n[a.d]\n[a]\ny=1\nx=1\n[a.e.f]\n[[a.e]]\nw.x=1",  # all of tomlkit up to 0.15 reject this
        "[[a.e]]\nx=1\n[z]\n[[a.e]]\n[a.b]\n[a]\n",  # 0.12 loses the second [[a.e]]
        "[[a.e]",  # accepted up to 0.13
        "a = [1, {2]\n",  # the same
    ],
)
def test_texts_that_tomlkit_misreads_are_refused_or_parsed_correctly(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tomlkit")
    monkeypatch.setitem(sys.modules, "tomllib", None)
    with contextlib.suppress(ConfigurationError):
        assert document(text).data == {"a": {"e": [{"x": 1}, {}], "b": {}}, "z": {}}


def test_compares_the_data_of_tomlkit_with_the_names_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tomlkit = pytest.importorskip("tomlkit")
    monkeypatch.setitem(sys.modules, "tomllib", None)
    text = "a.b = 1\n[[c.d]]\nx = {}\n[c.d.e]\n[[c.d]]\n[f]\n"
    right = document(text).data
    assert right == {"a": {"b": 1}, "c": {"d": [{"x": {}, "e": {}}, {}]}, "f": {}}
    lost_list, lost_table = {**right, "c": {"d": right["c"]["d"][:1]}}, {**right, "f": {"g": 1}}
    lost_name = {name: value for name, value in right.items() if name != "a"}
    for wrong in (lost_list, lost_table, lost_name, {**right, "a": 1}, {**right, "c": {"d": {}}}):
        monkeypatch.setattr(tomlkit, "parse", lambda _text, wrong=wrong: mock.Mock(unwrap=lambda: wrong))
        parse.cache_clear()
        with pytest.raises(ConfigurationError, match="put each table before its subtables"):
            document(text)


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        ("a = [", "[],", "]"),
        ("a = [", "{},", "]"),
        ("a = [", "1,", "]"),
        ("a = [", "{a=1},", "]"),
        ("", "[[a]]\n", ""),
        ("", "#\n", ""),
        ("", "\n", ""),
        ("a = '''", "\n", "'''"),
    ],
)
def test_many_values_are_refused_before_they_take_memory(start: str, unit: str, end: str) -> None:
    text = start + unit * ((TOML_BYTES - 50) // len(unit)) + end
    tracemalloc.start()
    try:
        with within(20), pytest.raises(ConfigurationError, match="more than 50000 lines and values"):
            document(text)
        # The text and its copies.
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert document(start + unit * (40_000 // sum(map(unit.count, "[{,=\n"))) + end).data is not None


def test_a_file_that_is_too_large() -> None:
    assert document(b"#" * TOML_BYTES).data == {}
    with pytest.raises(ConfigurationError, match="larger than 4 MiB, the limit for TOML"):
        document(b"#" * (TOML_BYTES + 1))


@pytest.mark.parametrize(
    "pattern", ["{}a = 1", "[{}a]", "[[{}a]]", "x = {{{}a = 1}}", "x = {{y = 1, {}a = 1}}", " {}a = 1"]
)
@pytest.mark.parametrize("name", ["a.", "'a'.", '"\\"" . '])
def test_a_key_with_too_many_names_is_not_parsed(pattern: str, name: str) -> None:
    """Both parsers store every prefix of the key, so 30000 names would need 3 GB."""
    with within(20), pytest.raises(ConfigurationError, match="more than 100 levels deep"):
        document(pattern.format(name * 30_000))
    assert document(pattern.format(name * 90)).data


# A pattern with the same result as _string_end(). It is not used there, because it needs memory for each character.
_STRING = re.compile(
    r"""\"\"\"(?:\\.|[^\\])*?"{3,5}|'''.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""",
    re.DOTALL,
)


@given(st.text(alphabet="a\"'\\\n", max_size=20), st.sampled_from(["'", '"', "'''", '"""']))
def test_where_a_string_ends(text: str, fence: str) -> None:
    text = fence + text
    found = _STRING.match(text)
    try:
        end = toml_parser._string_end(text, 0)
    except ValueError:
        # For an unterminated string with three quotation marks, the pattern matches an empty string.
        assert found is None or "\n" in found.group() or len(found.group()) == 2
    else:
        assert found is not None
        assert found.end() == end


@pytest.mark.parametrize(
    "text",
    [
        "a = '" + "x" * 300_000 + "'",
        'a = "' + "\\\\" * 150_000 + '"',
        'a = """' + '\\"' * 150_000 + '"""',
        "#\n" * 150_000,
    ],
    ids=["string", "escapes", "quotes", "comments"],
)
def test_a_file_is_scanned_in_little_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with within(60):
            toml_parser.scan(text)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text)
    finally:
        tracemalloc.stop()
