# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Properties of edits of any TOML text: with comments, dotted names, inline tables, arrays of tables, tables out of
# order, Windows line ends, Unicode, and a byte order mark.

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
import re
import typing as t

from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_parser import (
    _agree,
    _outline,
    equal,
    scan,
)

Path = t.Tuple[str, ...]
Edit = t.Tuple[TomlDocument, Path, t.Any]
Draw = t.Callable[[st.SearchStrategy[t.Any]], t.Any]


NAMES = st.sampled_from(["a", "b", "runc", "nvidia", "io.containerd.grpc.v1.cri", "käse", "#", 'q"', "it's", "x y"])
TEXTS = st.sampled_from(
    ["", "x", "# no comment", "[no.header]", "a = 1", 'say "hi"', "back\\slash", "é\u2028\t", "'''"]
)
SPELLINGS = st.sampled_from(
    [
        *("1", "0x1F", "1_000", "1.50", "true", "inf", "1979-05-27T07:32:00Z", "07:32:00", "'a # b'", '"\\u00e9"'),
        *('"""\nlines # in\n[it]\nx = 1"""', "'''\n[it's]\n'''"),
        *("[]", "[1, 2]", "['a','b',]", "[\n  1, # one\n  # two\n  2\n]"),
    ]
)
VALUES = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(tuple)
FILLERS = st.sampled_from(["", "", "# a comment", "  # indented", "#[a.b]", '# a = "1"', "# näh"])


def spelled(name: str) -> str:
    return name if name.isascii() and name.isalnum() else json.dumps(name, ensure_ascii=False)


class Writer:
    """Writes a random TOML text in a random layout. The parser determines its data."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.unit = draw(st.sampled_from(["", "  ", "\t"]))
        self.equals = draw(st.sampled_from([" = ", "=", "   = "]))
        self.blocks: list[list[str]] = []

    def text(self) -> str:
        root: list[str] = self.draw(st.lists(FILLERS, max_size=2))
        self.table((), "", root)
        blocks = self.draw(st.permutations(self.blocks)) if self.draw(st.booleans()) else self.blocks
        text = "\n".join(line for block in [root, *blocks] for line in block)
        text += self.draw(st.sampled_from(["", "\n", "\n\n"])) if text else ""
        return text.replace("\n", self.draw(st.sampled_from(["\n", "\n", "\r\n"])))

    def note(self) -> str:
        return str(self.draw(st.sampled_from(["", "", "", " # why"])))

    def inline(self, depth: int) -> str:
        names = self.draw(st.lists(NAMES, unique=True, max_size=2))
        values = [self.inline(depth - 1) if depth and self.draw(st.booleans()) else "1" for unused in names]
        entries = ", ".join(f"{spelled(name)} = {value}" for name, value in zip(names, values))
        return self.draw(st.sampled_from(["{ %s }", "{%s}"])) % entries if entries else "{}"

    def table(self, path: Path, indent: str, lines: list[str], prefix: str = "") -> None:
        kinds = ["value", "value", "inline"]
        kinds += ["dotted"] if prefix.count(".") < 2 else []
        kinds += ["table", "table", "array"] if not prefix and len(path) < 4 else []
        for name in self.draw(st.lists(NAMES, unique=True, max_size=3)):
            kind = self.draw(st.sampled_from(kinds))
            if kind in ("table", "array"):
                self.block((*path, name), indent + self.unit if path else "", kind)
            elif kind == "dotted":
                self.table((*path, name), indent, lines, prefix + spelled(name) + ".")
            else:
                value = self.inline(1) if kind == "inline" else self.draw(SPELLINGS)
                lines.append(indent + prefix + spelled(name) + self.equals + value + self.note())
            lines.extend(self.draw(st.lists(FILLERS, max_size=1)))

    def block(self, path: Path, indent: str, kind: str) -> None:
        header = ".".join(map(spelled, path))
        block: list[str] = self.draw(st.lists(FILLERS, max_size=2))
        self.blocks.append(block)
        if kind == "array":
            block += [f"{indent}[[{header}]]", f"{indent}{self.unit}v{self.equals}1", "", f"{indent}[[{header}]]"]
            return
        at, count = len(block), len(self.blocks)
        self.table(path, indent, block)
        if len(block) > at or len(self.blocks) == count or self.draw(st.booleans()):
            block.insert(at, f"{indent}[{header}]" + self.note())


@st.composite
def texts(draw: Draw) -> bytes:
    return t.cast("bytes", draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))) + Writer(draw).text().encode()


def document(content: bytes) -> TomlDocument:
    try:
        return TomlDocument.from_bytes("/etc/containerd/config.toml", content)
    except ConfigurationError:
        # If Python has no tomllib: tomlkit refuses some valid texts.
        assume(False)
        raise


def existing(data: t.Any, path: Path = ()) -> list[Path]:
    if not isinstance(data, dict):
        return [path]
    below = [found for name, entry in data.items() for found in existing(entry, (*path, name))]
    return [*below, path] if path else below


@st.composite
def edits(draw: Draw, leaf: bool = False) -> Edit:
    """Draw a document, a path, and a new value. With ``leaf``, the path is that of an existing value.

    Otherwise the path is that of an existing entry, of a new one, or of a new one below an existing one.
    """
    before = document(draw(texts()))
    known = [path for path in existing(before.data) if not leaf or not isinstance(before.value(*path), dict)]
    if leaf:
        assume(known)
        return before, draw(st.sampled_from(known)), draw(VALUES.filter(lambda value: not isinstance(value, dict)))
    path = draw(st.sampled_from(known)) if known and draw(st.booleans()) else ()
    path += tuple(draw(st.lists(NAMES, min_size=not path, max_size=1 if path else 3)))
    return before, path, draw(VALUES)


def replaced(data: dict[str, t.Any], path: Path, value: t.Any) -> dict[str, t.Any]:
    data = copy.deepcopy(data)
    here = data
    for name in path[:-1]:
        here = here.setdefault(name, {})
    here[path[-1]] = value
    return data


def changed(before: TomlDocument, path: Path, value: t.Any) -> TomlDocument:
    """Return the edited document. An edit may be refused only below a value, or if it would delete a comment."""
    try:
        return before.set(path, value)
    except ConfigurationError as error:
        on_the_way = [before.value(*path[:depth]) for depth in range(1, len(path))]
        below_a_value = any(before.has(*path[: i + 1]) and not isinstance(v, dict) for i, v in enumerate(on_the_way))
        holds_comments = before.has(*path) and error.advice.startswith(("Move the comment", "Write the table"))
        assert below_a_value or holds_comments
        assume(False)
        raise


def comments(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip().startswith("#")]


@given(edits())
def test_sets_one_value_and_keeps_every_other(edit: Edit) -> None:
    before, path, value = edit
    after = changed(before, path, value)
    again = document(after.to_bytes())
    assert equal(again.data, replaced(before.data, path, value))
    assert after.bom == before.bom
    if not before.has(*path):
        assert comments(after.text) == comments(before.text)
    assert again.set(path, value).to_bytes() == after.to_bytes()


@given(edits(leaf=True))
def test_a_value_that_is_changed_and_given_back_leaves_no_trace(edit: Edit) -> None:
    before, path, value = edit
    assume(before.editor().member(path) is not None)
    assert changed(before, path, value).restore(path, before).to_bytes() == before.to_bytes()


@given(edits(), st.booleans())
def test_deletes_one_entry_and_keeps_every_other(edit: Edit, prune: bool) -> None:
    before, path = edit[:2]
    assume(before.has(*path))
    after = before.delete(path, prune=prune)
    assert not after.has(*path)
    expected = copy.deepcopy(before.data)
    for depth in range(len(path), 0, -1):
        around = expected
        for name in path[: depth - 1]:
            around = around[name]
        if depth == len(path) or (around[path[depth - 1]] == {} and not after.has(*path[:depth])):
            del around[path[depth - 1]]
    assert equal(document(after.to_bytes()).data, expected)
    if len(path) > 1 and prune:
        assert before.value(*path[:-1]) != {path[-1]: before.value(*path)} or not after.has(*path[:-1])


@given(texts())
def test_finds_exactly_the_names_that_the_parser_finds(content: bytes) -> None:
    read = document(content)
    assert _agree(_outline(scan(read.text)), read.data)


# -- what the engines do ---------------------------------------------------------------------------------------------

CRI = ("plugins", "io.containerd.grpc.v1.cri")
FILES = pathlib.Path(__file__).parents[3] / "files"
REAL = [file.read_bytes() for file in sorted([*FILES.glob("*.toml"), *FILES.glob("*.conf")])]
# Layouts of manual edits, with shortened names.
RUNTIMES = "plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes"
HAND_MADE = [
    "",
    "# A notice\n",
    "version = 2\n\n\n",
    "[R.runc]\nt = 1\n# u = 1\n\n# [R.other]\n# t = 1\n\n[z]\n",
    "[R]\n\t[R.runc]\n\t\tt = 1\n\t\t[R.runc.options]\n\t\t\tB = 2\n[z]\n",
    "[R.runc]\nt = 1\n[z]\n[R.crun]\nt = 2\n[R.crun.options]\n[y]\n",
    "[z]\n  a=1\n\n  # of runc  \n  [R.runc] # c\n    t=1",
    "R.runc.t = 1 # a\nz = 1\n",
    "[R]\n  runc.t = 1\n  runc.options.B = 2\n",
    "[R]\nrunc = { t = 1 }\n\n[z]\n",
    "R = { runc = {} }\n",
    "[[y]]\n[R.runc.options]\n[[y]]\n",
]
LEAVES: dict[Path, t.Any] = {
    ("version",): 2,
    ("imports",): ["/etc/containerd/conf.d/*.toml"],
    (*CRI, "enable_cdi"): True,
    (*CRI, "cdi_spec_dirs"): ["/etc/cdi", "/run/cdi"],
    (*CRI, "containerd", "default_runtime_name"): "nvidia",
    (*CRI, "containerd", "runtimes", "nvidia", "runtime_type"): "io.containerd.runc.v2",
    (*CRI, "containerd", "runtimes", "nvidia", "privileged_without_host_devices"): False,
    (*CRI, "containerd", "runtimes", "nvidia", "options", "BinaryName"): "/usr/bin/nvidia-container-runtime",
    (*CRI, "containerd", "runtimes", "nvidia", "options", "SystemdCgroup"): True,
    (*CRI, "containerd", "runtimes", "nvidia-cdi", "options"): {"BinaryName": "x"},
}


@st.composite
def real_texts(draw: Draw) -> bytes:
    content: bytes = draw(st.sampled_from(REAL + [text.replace("R", RUNTIMES).encode() for text in HAND_MADE]))
    content = content.rstrip() if draw(st.booleans()) else content
    content = content.replace(b"\n", b"\r\n") if draw(st.booleans()) else content
    return b"\xef\xbb\xbf" + content if draw(st.booleans()) else content


@given(real_texts(), st.permutations(list(LEAVES)), st.integers(1, len(LEAVES)), st.randoms(use_true_random=False))
def test_entries_go_in_any_order_and_leave_no_trace(
    content: bytes, paths: list[Path], count: int, order: t.Any
) -> None:
    before = after = document(content)
    paths = paths[:count]
    for path in paths:
        after = after.set(path, LEAVES[path])
        assert equal(after.value(*path), LEAVES[path])
    assert comments(after.text) == comments(before.text)
    order.shuffle(paths)
    for path in paths:
        after = after.restore(path, before)
    assert after.to_bytes() == before.to_bytes()


@given(
    texts(), st.lists(PATHS, max_size=4), st.lists(VALUES, min_size=4, max_size=4), st.randoms(use_true_random=False)
)
def test_entries_in_any_text_go_in_any_order(
    content: bytes, ends: list[Path], values: list[t.Any], chance: t.Any
) -> None:
    before = after = document(content)
    tables = [(), *(path for path in existing(before.data) if isinstance(before.value(*path), dict))]
    paths: list[Path] = []
    for end, value in zip(ends, values):
        path = chance.choice(tables) + end
        nested = any(path[: len(other)] == other or other[: len(path)] == path for other in paths)
        if not nested and not before.has(*path):
            after = changed(after, path, value)
            paths.append(path)
    chance.shuffle(paths)
    for path in paths:
        after = after.restore(path, before)
    assert after.to_bytes() == before.to_bytes()


@st.composite
def arrays(draw: Draw) -> str:
    """Draw an array of strings /0, /1, ... over several lines. A comment contains the number of its element."""
    text: str = "a = [" + draw(st.sampled_from(["", " # open"])) + "\n"
    count = draw(st.integers(0, 4))
    for index in range(count):
        text += f"  # above {index}\n" if text.endswith("\n") and draw(st.booleans()) else ""
        comma = "," if index + 1 < count or draw(st.booleans()) else ""
        note = draw(st.sampled_from(["\n", "\n", f" # at {index}\n"] + ([" "] if index + 1 < count else [])))
        text += ("" if not text.endswith("\n") else "  ") + f'"/{index}"' + comma + note
    text += draw(st.sampled_from(["", "  # end\n"])) + "] # tail\nb = 1\n"
    newline: str = draw(st.sampled_from(["\n", "\r\n"]))
    return text.replace("\n", newline)


@given(arrays())
def test_an_element_that_comes_and_goes_leaves_no_trace(text: str) -> None:
    before = document(text.encode())
    after = before.set(("a",), [*before.value("a"), "/new", "/newer"])
    assert comments(after.text) == comments(text)
    assert after.restore(("a",), before).text == text
    if before.value("a"):
        assert after.set(("a",), before.value("a")).text == text


@given(arrays(), st.integers(0, 3))
def test_an_element_goes_with_nothing_but_its_own_comment(text: str, index: int) -> None:
    before = document(text.encode())
    value: list[str] = before.value("a")
    assume(index < len(value))
    after = before.set(("a",), value[:index] + value[index + 1 :])
    lost = set(re.findall(r"# [^\r\n]+", text)) - set(re.findall(r"# [^\r\n]+", after.text))
    assert lost <= {f"# at {index}"}
    assert equal(after.restore(("a",), before).data, before.data)


# -- any bytes -------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    b"a|b.c|[|]|[[|]]|{|}|\"|'|\"\"\"|'''|=|,|.|#| |\t|\n|\r|\r\n|\\|\\u00e9|\x00|\xff|\xc3\xa9|\xe2\x80\xa8"
    b'|\xef\xbb\xbf|1|1e9|0x|nan|1979-05-27 07:32:00|true|a = 1\n|[a.b]\n|"x y" = [1, 2]\n|c = { d = 1 }\n'.split(b"|")
)


@given(st.binary(max_size=40) | st.lists(PIECES, max_size=12).map(b"".join), PATHS, VALUES)
def test_any_bytes_are_read_and_edited_or_refused(content: bytes, path: Path, value: t.Any) -> None:
    with contextlib.suppress(ConfigurationError):
        before = TomlDocument.from_bytes("f", content)
        assert before.to_bytes() == content
        after = before.set(path, value)
        assert equal(after.restore(path, before).data, before.data)
        before.delete(path, prune=True)
