# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The parsed documents must be the same as with yaml.v2 2.4.0, which sigs.k8s.io/yaml of the CDI library uses. The
# tables have its results.

from __future__ import annotations

import contextlib
import json
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.versions import minimum_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    MissingPackageError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import CDI_SPEC_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse, render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_parser import MAX_LEVELS

VERDICTS = json.loads((Path(__file__).parents[3] / "files/cdi_verdicts.json").read_text("utf-8"))
SCANNERS = ["compiled", "python"] if yaml.__with_libyaml__ else ["python"]


@pytest.fixture(params=SCANNERS)
def _scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with PyYAML's compiled scanner, and with its Python scanner."""
    monkeypatch.setattr(yaml, "__with_libyaml__", request.param == "compiled")


both_scanners = pytest.mark.usefixtures("_scanner")


def read(text: str) -> t.Any:
    return parse("/etc/cdi/x.yaml", text.encode())


def refusal(content: str | bytes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse("/etc/cdi/x.yaml", content if isinstance(content, bytes) else content.encode())
    return caught.value


def same(one: t.Any, other: t.Any) -> bool:
    """Return whether two values are the same, with types and order. == does not distinguish 1, 1.0 and true."""
    return repr(one) == repr(other)


@both_scanners
@pytest.mark.parametrize("name", VERDICTS)
def test_the_librarys_verdicts(name: str) -> None:
    wanted = VERDICTS[name]
    try:
        judgement = validate(read(wanted["text"]))
    except ConfigurationError:
        # PyYAML's own scanner refuses tabs between tokens.
        assert not wanted["accepted"] or (name == "yaml-tab" and not yaml.__with_libyaml__)
        return
    assert (not judgement.errors) == wanted["accepted"]
    if wanted["accepted"]:
        assert minimum_version(judgement.document) == wanted["minimum_version"]


@both_scanners
class TestYaml:
    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("", None),
            ("\n \r\n", None),
            ("# nothing\n", None),
            ("---\n---\na: 1\n", None),
            ("a", "a"),
            ("a: 1\n---\nb: 2\n", {"a": 1}),
            ("a: 1\n...\n}{", {"a": 1}),
            ("%YAML 1.1\n---\na: 1\n", {"a": 1}),
            ("\ufeffa: 1\n", {"a": 1}),
            ("b: 1\na: 2\n", {"b": 1, "a": 2}),
            ("names: [0:1, 0, 'on', on, 2001-01-01]", {"names": ["0:1", 0, "on", True, "2001-01-01"]}),
            ("a:\n- b\n- c: 1\n  d:\n", {"a": ["b", {"c": 1, "d": None}]}),
            ('a: "\\x41\\u00e9\\n"\nb: \'it\'\'s\'\nc: |\n  x\n  y\nd: >-\n  x\n  y\n',
             {"a": "Aé\n", "b": "it's", "c": "x\ny\n", "d": "x y"}),
            ("a: x\n  y\n\n  z", {"a": "x y\nz"}),
            ("a: {b: 1, ? c : [d, e: f]}", {"a": {"b": 1, "c": ["d", {"e": "f"}]}}),
            ('{"a": 1, b: c,}  # no JSON', {"a": 1, "b": "c"}),
            ('{"a": NaN}', {"a": "NaN"}),
            ("%YAML 1.2\n---\na: 1", {"a": 1}),
            ("'<<': 1", {"<<": 1}),
        ],
    )  # fmt: skip
    def test_documents(self, text: str, data: t.Any) -> None:
        assert same(read(text), data)

    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
            ("a: &x {b: &y 1}\nc: [*x, *y]", {"a": {"b": 1}, "c": [{"b": 1}, 1]}),
            ("&x a: *x", {"a": "a"}),
            ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
            ("<<: [{a: 1}, {b: 2}]\n<<: {c: 3}", {"b": 2, "a": 1, "c": 3}),
            ("<<: []", {}),
        ],
    )
    def test_aliases_and_merges(self, text: str, data: t.Any) -> None:
        assert same(read(text), data)

    @pytest.mark.parametrize(
        # An empty problem matches every message, because the message depends on the scanner of PyYAML.
        ("text", "place", "problem"),
        [
            ("a: 1\nb: 2\n a: 3\n", (3, 3), "invalid YAML: "),
            ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", (5, 3), 'the key "c" is used twice in one mapping'),
            ("a: 1\n'a': 2\n", (2, 1), 'the key "a" is used twice'),
            ("[a]: 1", (1, 1), "a mapping has a key that is not a string"),
            ("? {a: 1}\n: 2", (1, 3), "a mapping has a key that is not a string"),
            ("a: &x [1]\n*x : 2", None, "a mapping has a key that is not a string"),
            ("~: 1", (1, 1), "a mapping has a key that is not a string"),
            ("a: 1\non: 1", (2, 1), "a mapping has a key that is not a string"),
            ("1: a", (1, 1), "a mapping has a key that is not a string"),
            ("a: *x", (1, 4), "an alias refers to a value that is not complete before it"),
            ("a: &x [*x]", (1, 8), "an alias refers to a value that is not complete before it"),
            ("a: &x 1\nb: &x 2", (2, 4), ""),
            ("a: &x {b: 1}\nc: {<<: *x, b: 2}", (2, 13), 'the key "b" is used twice'),
            ("<<: [{a: 1}, {a: 2}]", None, 'the key "a" is used twice'),
            ("a: 1\n<<: 5", (2, 5), "expected a mapping or list of mappings for merging"),
            ("<<: [5]", (1, 6), "expected a mapping for merging"),
            ("a: <<", (1, 4), ""),
            ("a: !!int x", (1, 4), "tags (words that begin with !) are not supported"),
            ("!!python/object/apply:os.system ['false']", (1, 1), "tags"),
            ("a: !!python/name:os.system x", (1, 4), "tags"),
            ("a: !x {b: 1}", (1, 4), "tags"),
            ("a: ! b", (1, 4), "tags"),
            ("%YAML 2.0\n---\na: 1", (1, 1), "invalid YAML: "),
            ('a: "x\\/y"', (1, 4), "engines reject the escape \\/"),
            ('a: &x "\\ud83d\\ude00"', None, ""),
            ('a: "\\U0000D800"', None, ""),
            ('a: "\\UFFFFFFFF"', None, "invalid YAML: "),
            ("a: @b", (1, 4), "invalid YAML: "),
            ("\ta: 1", (1, 1), "invalid YAML: "),
            ("a:\n\tb: 1", None, "invalid YAML: "),
            ("a: 'b", None, "invalid YAML: "),
        ],
    )  # fmt: skip
    def test_refused(self, text: str, place: tuple[int, int] | None, problem: str) -> None:
        error = refusal(text)
        assert problem in error.problem
        if place is not None:
            assert (error.line, error.column) == place
        assert str(error).startswith("/etc/cdi/x.yaml")
        assert str(error).endswith(". Correct the file, or remove it if it is not needed.")

    def test_neither_hangs_nor_grows_by_aliases(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 30)]
        assert "values, including those of aliases" in refusal("\n".join(lines)).problem

    @pytest.mark.parametrize(
        ("text", "entry", "number"), [("{}", "- a\n", 1000), ("a: &x [" + "b, " * 30 + "]\nc: [{}]", "*x, ", 40)]
    )
    def test_too_many_values(self, text: str, entry: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yaml_parser, "MAX_VALUES", 1000)
        assert "the file has more than 1000 values" in refusal(text.format(entry * number)).problem
        assert read(text.format(entry * (number // 2))) is not None

    @pytest.mark.parametrize("text", ["a: &x {k}\nb: [{x}]", "a: &x [{k}]\nb: [{x}]", "a: &x {{{k}: 1}}\nb: [{x}]"])
    def test_aliases_with_long_strings(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(yaml_parser, "MAX_TEXT", 1120)
        assert len(read(text.format(k="k" * 100, x="*x, " * 10))["b"]) == 10
        problem = refusal(text.format(k="k" * 100, x="*x, " * 11)).problem
        assert problem.endswith("aliases expand to more than 1120 characters")

    @pytest.mark.parametrize(
        "text",
        [
            "[" * 100_000,
            "- " * 100_000,
            "{a: " * 100_000,
            "\n".join(" " * level + "a:" for level in range(1000)),
            "\n".join(["a0: &a0 [x]", *(f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, MAX_LEVELS + 1))]),
            "\n".join(["a0: &a0 [x]", *(f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, 400))]),
        ],
    )
    def test_too_deep(self, text: str) -> None:
        assert refusal(text).problem.endswith(f"more than {MAX_LEVELS} levels deep")

    @pytest.mark.parametrize("levels", [MAX_LEVELS - 1, MAX_LEVELS])
    def test_deep_enough(self, levels: int) -> None:
        assert read("- " * levels + "a") is not None
        assert read("[" * levels + "]" * levels) is not None

    @given(st.text(alphabet="ab01:-?,[]{}#&*!|>'\"%@` \t\n\\~<.=/", max_size=40))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        with contextlib.suppress(ConfigurationError):
            read(text)


class TestText:
    def test_too_large(self) -> None:
        assert refusal(b"#" * (CDI_SPEC_BYTES + 1)).problem.startswith("the file is larger than 4 MiB")
        assert parse("/etc/cdi/x.yaml", b" " * CDI_SPEC_BYTES) is None

    @pytest.mark.parametrize(
        ("content", "place", "problem"),
        [
            (b"a: 1\nb: \xff\n", (2, 4), "invalid UTF-8"),
            ("é: ".encode() + b"\xc3", (1, 4), "invalid UTF-8"),
            (b"a: \xed\xa0\x80", (1, 4), "invalid UTF-8"),
            (b"a: 1\n\x00", (2, 1), "the character U+0000"),
            (b'{"a": "\x7f"}', (1, 8), "the character U+007F"),
            ("é\n\x1b".encode(), (2, 1), "the character U+001B"),
            ("a: \ufffe".encode(), (1, 4), "the character U+FFFE"),
            ("a\ufeff".encode(), (1, 2), "the character U+FEFF"),
            ("\ufeffa: 1".encode("utf-16-le"), (1, 1), "invalid UTF-8"),
        ],
    )
    def test_bytes_that_are_no_text(self, content: bytes, place: tuple[int, int], problem: str) -> None:
        error = refusal(content)
        assert error.problem.startswith(problem)
        assert (error.line, error.column) == place

    @pytest.mark.parametrize("text", ["a: é\n", '{"a": "é"}'])
    def test_a_byte_order_mark(self, text: str) -> None:
        assert parse("x", text.encode("utf-8-sig")) == {"a": "é"}


class Absent:
    """An importer that hides PyYAML."""

    def find_spec(self, name: str, *_context: object) -> None:
        if name.partition(".")[0] == "yaml":
            raise ModuleNotFoundError(name)


@pytest.fixture
def _no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_registered", {})
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "yaml"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("_no_yaml")
class TestWithoutPyYaml:
    @pytest.mark.parametrize("text", ["a: 1", '{"a": 1,}', '{"a"\n: 1}', '{"a": "\u2028"}', "\t{}"])
    def test_what_needs_it(self, text: str) -> None:
        with pytest.raises(MissingPackageError) as caught:
            read(text)
        assert caught.value.details == {"needed": "yaml"}
        assert "python3 -m pip install PyYAML" in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("", None),
            (" \n", None),
            ('{"b": 1, "a": [true, null, "x"]}', {"b": 1, "a": [True, None, "x"]}),
            (" \n[1, 1.0, 1e3, -0, 18446744073709551615, 99999999999999999999, 1e999]",
             [1, 1.0, 1000.0, 0, 2**64 - 1, 10**20 - 1, "1e999"]),
            ('{"a": "\\u00e9\\n\\t\\"\\\\/"}', {"a": 'é\n\t"\\/'}),
        ],
    )  # fmt: skip
    def test_json(self, text: str, data: t.Any) -> None:
        assert same(read(text), data)

    def test_deep_json(self) -> None:
        assert read("[" * MAX_LEVELS + "]" * MAX_LEVELS) is not None

    @pytest.mark.parametrize(
        ("text", "place", "problem"),
        [
            ('{"a": {"b": 1, "b": 2}}', (None, None), 'the key "b" is used twice in one mapping'),
            ('{"a":\n "x\\\\\\/"}', (2, 6), "engines reject the escape \\/"),
            ('{"a": "\\ud83d\\ude00"}', (1, 8), "engines reject the escape of a surrogate"),
            ("[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1), (None, None), "lists and mappings"),
            ("[" * 100_000 + "]" * 100_000, (None, None), "lists and mappings"),
        ],
    )
    def test_json_that_is_refused(self, text: str, place: tuple[int, int], problem: str) -> None:
        error = refusal(text)
        assert error.problem.startswith(problem)
        assert (error.line, error.column) == place

    def test_writing(self) -> None:
        assert render({"a": "x"}, "yaml") == b"---\na: x\n"


DOCUMENT = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0:1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "major": 195, "gid": 0}]}},
        {"name": "all", "containerEdits": {"env": ["A=b c", "NVIDIA_VISIBLE_DEVICES=void"], "mounts": []}},
    ],
    "containerEdits": {
        "hooks": [
            {
                "hookName": "createContainer",
                "args": ["nvidia-cdi-hook", "--link", "../card1::/dev/dri/by-path/pci-0000:07:00.0-card", "755", "-"],
                "timeout": None,
            }
        ],
        "intelRdt": {},
        "switch": True,
    },
}
AS_YAML = """\
---
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: "0:1"
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia0
          major: 195
          gid: 0
  - name: "all"
    containerEdits:
      env:
        - "A=b c"
        - NVIDIA_VISIBLE_DEVICES=void
      mounts: []
containerEdits:
  hooks:
    - hookName: createContainer
      args:
        - nvidia-cdi-hook
        - --link
        - ../card1::/dev/dri/by-path/pci-0000:07:00.0-card
        - "755"
        - "-"
      timeout: null
  intelRdt: {}
  switch: true
"""

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="ab01yno~.:-+#?/'\"\\ \t\n\x85\u2028\ufeff\x00,[]{}&*!|>%@`=<_"),
    st.sampled_from(
        ["on", "No", "y", "~", "null", "0:1", "1_0", "---", "...", "2001-01-01", "<<", "=", ".inf", "0x1", ""]
    ),
)
DATA = st.recursive(
    st.one_of(
        TEXTS,
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)  # fmt: skip


class TestRender:
    def test_as_a_person_would(self) -> None:
        assert render(DOCUMENT, "yaml").decode() == AS_YAML

    def test_json(self) -> None:
        assert render({"b": "é", "a": [1]}, "json").decode() == '{\n  "b": "é",\n  "a": [\n    1\n  ]\n}\n'

    @pytest.mark.parametrize(
        ("text", "written"),
        [
            ("rbind", "rbind"),
            ("/a b", '"/a b"'),
            ("a: b", '"a: b"'),
            ("a:b", "a:b"),
            ("a:", '"a:"'),
            ("::", '"::"'),
            ("a#b", '"a#b"'),
            ("-a", "-a"),
            ("--a", "--a"),
            ("---", '"---"'),
            ("-1", '"-1"'),
            (".a", '".a"'),
            ("./a", "./a"),
            ("off", '"off"'),
            ("yES", '"yES"'),
            ("0:1", '"0:1"'),
            ("é", '"é"'),
            ("\U0001f600", '"\U0001f600"'),
            ('"\\\n\t\r\x00\x7f\x85\u2028\ufeff', r'"\"\\\n\t\r\x00\x7F\x85\u2028\uFEFF"'),
        ],
    )
    def test_texts(self, text: str, written: str) -> None:
        assert render({"a": text}, "yaml").decode() == f"---\na: {written}\n"

    @pytest.mark.parametrize("form", ["yaml", "json"])
    def test_what_is_no_utf_8(self, form: str) -> None:
        with pytest.raises(NvidiaError, match="the name of a file or directory in it is not"):
            render({"a": "/usr/lib/\udcff"}, form)

    @both_scanners
    @given(st.dictionaries(TEXTS, DATA, max_size=5))
    def test_what_is_written_is_read_again(self, document: dict[str, t.Any]) -> None:
        assert same(read(render(document, "yaml").decode()), document)

    @given(st.dictionaries(TEXTS, DATA, max_size=5))
    def test_json_is_read_again(self, document: dict[str, t.Any]) -> None:
        assert same(read(render(document, "json").decode()), document)

    @given(st.dictionaries(TEXTS, DATA, max_size=5))
    def test_other_readers_see_the_same_texts(self, document: dict[str, t.Any]) -> None:
        # PyYAML reads some scalars differently, but it must read every written value as it was.
        assert same(yaml.safe_load(render(document, "yaml")), document)
