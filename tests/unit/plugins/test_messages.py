# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What no message of the collection may say, and the placeholders of options in messages."""

from __future__ import annotations

import ast
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.argument_specs import specs

pytestmark = pytest.mark.one_python

COLLECTION = Path(__file__).resolve().parents[3]


class Placeholder(t.NamedTuple):
    """A placeholder in a source. ``name`` is the option; None if an expression gives it."""

    place: str
    name: str | None
    in_function: bool


def _is_option(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "option"
        and isinstance(node.value, ast.Name)
        and node.value.id in ("errors", "core_errors")
    )


def placeholders(source: str, name: str) -> t.Iterator[Placeholder]:
    """Yield the placeholders of options in a source. Fails for a use of ``errors.option`` in any other way."""

    def visit(node: ast.AST, in_function: bool) -> t.Iterator[Placeholder]:
        if isinstance(node, ast.FormattedValue) and _is_option(node.value):
            values = node.format_spec.values if isinstance(node.format_spec, ast.JoinedStr) else []
            # Python 3.12.1 appends an empty text to a nested placeholder.
            parts = [part for part in values if not (isinstance(part, ast.Constant) and part.value == "")]
            place = f"{name}:{node.lineno}"
            assert len(parts) == 1, f"{place}: an option needs its name, as in errors.option:source"
            option = parts[0].value if isinstance(parts[0], ast.Constant) else None
            yield Placeholder(place, option if isinstance(option, str) else None, in_function)
            return
        assert not _is_option(node), f"{name}: errors.option outside of an f-string"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A docstring may explain it.
            assert not in_function or "errors.option:" not in node.value, f"{name}:{node.lineno}: no f-string"
        inner = in_function or isinstance(node, (ast.FunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(source), False)


def of_collection() -> list[Placeholder]:
    paths = sorted((COLLECTION / "plugins").rglob("*.py"))
    found = [
        placeholder
        for path in paths
        for placeholder in placeholders(path.read_text(encoding="utf-8"), str(path.relative_to(COLLECTION)))
    ]
    assert len(found) > 200
    return found


def test_each_placeholder_names_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {option for spec in specs(monkeypatch).values() for option in spec}
    assert [found for found in of_collection() if found.name is not None and found.name not in options] == []


def test_no_placeholder_is_printed_before_a_task_runs() -> None:
    """The variables are known when the module runs, not when a file is imported."""
    assert [found for found in of_collection() if not found.in_function] == []


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    return f"{errors.option}"',
        'def f():\n    return f"{errors.option:a{b}}"',
        'def f():\n    return "Set {errors.option:source}."',
        "def f():\n    return str(core_errors.option)",
    ],
)
def test_wrong_uses_are_found(source: str) -> None:
    with pytest.raises(AssertionError):
        list(placeholders(source, "x"))


def test_placeholders_are_found() -> None:
    source = (
        'X = f"{errors.option:a}"\ndef f(x):\n    return f"{x:>8} {f\'{core_errors.option:b}\'} {errors.option:{x}}"'
    )
    found = [(one.name, one.in_function) for one in placeholders(source, "x")]
    assert found == [("a", False), ("b", True), (None, True)]


def test_no_message_speaks_of_the_whole_run() -> None:
    """A task knows what it has changed itself, but not what earlier tasks of the run have changed on the host."""
    folders = [COLLECTION / name for name in ("plugins", "roles", "playbooks")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yml")]
    assert len(paths) > 100
    claims = ("Nothing was changed", "so nothing was changed")
    # A message may be divided into literals on several lines.
    texts = {path: re.sub(r'"\n *f?"', "", path.read_text(encoding="utf-8")) for path in paths}
    found = [path for path, text in texts.items() if any(claim in text for claim in claims)]
    assert found == []
