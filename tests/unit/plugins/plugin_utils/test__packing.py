# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import base64
import importlib.machinery
import importlib.util
import json
import typing as t
import zlib
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.bundled import PACKAGES, Package
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _packing
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import lean, pack, packed

STANDARD_LIBRARY = Path(ast.__file__).parent


def files_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.py"))


def opened(shipment: str | None) -> dict[str, t.Any]:
    assert shipment is not None
    return dict(json.loads(zlib.decompress(base64.b64decode(shipment))))


def meaning(source: str) -> list[str]:
    """The statements with their lines, without strings that only stand there."""
    tree = ast.parse(source)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            lines.append(f"{node.lineno} {type(node).__name__}")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value = ast.Constant("", kind=None)
    return [*lines, ast.dump(tree)]


class TestLean:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("", ""),
            ("x = 1  # why\n", "x = 1\n"),
            ("# a\n    # b\nx = '# c'\n", "\n\nx = '# c'\n"),
            ('"""Doc."""\nx = 1\n', '""\nx = 1\n'),
            ('"""Doc.\n\nMore.\n"""  # c\nx = 1\n', '"""Doc.\n\nMore.\n"""\nx = 1\n'),
            ('"""Doc.\n\nMore.\n"""\nx = 1\n', '""\n\n\n\nx = 1\n'),
            ('def f():\n    r"""Doc\n    é."""\n\n', 'def f():\n    ""\n\n\n'),
            ("def f():\n    # c\n    'Doc'\n    return 'x'\n", "def f():\n\n    \"\"\n    return 'x'\n"),
            ("x = (\n    # c\n    'a'\n    'b'  # d\n)\n", "x = (\n\n    'a'\n    'b'\n)\n"),
            ("x = \\\n    'a'\n", "x = \\\n    'a'\n"),
            ("f(\n    'a')\n", "f(\n    'a')\n"),
            ("x = 1\n\x0c\ny = '\u2028'  # c\n", "x = 1\n\x0c\ny = '\u2028'\n"),
            ("x = 'é'  # é\ny = '''é\né'''  # é # é\n", "x = 'é'\ny = '''é\né'''\n"),
            ("class C:\n\tx: int = 1\n\t'é\\\né'\n\ty = 2\n", 'class C:\n\tx: int = 1\n\t""\n\n\ty = 2\n'),
            ("x = 1  # no line end", "x = 1\n"),
        ],
    )
    def test_table(self, source: str, expected: str) -> None:
        assert lean(source) == expected
        assert meaning(lean(source)) == meaning(source)

    @pytest.mark.parametrize("path", files_of("tomlkit") + files_of("yaml"), ids=lambda path: path.name)
    def test_what_travels_means_the_same(self, path: Path) -> None:
        source = path.read_text("utf-8")
        assert meaning(lean(source)) == meaning(source)

    @pytest.mark.parametrize("name", ["dataclasses.py", "json/decoder.py", "tokenize.py"])
    def test_other_code_means_the_same(self, name: str) -> None:
        source = (STANDARD_LIBRARY / name).read_text("utf-8")
        slim = lean(source)
        assert meaning(slim) == meaning(source)
        assert len(slim) < len(source)
        assert lean(slim) == slim


@pytest.fixture(scope="module")
def tomlkit() -> str:
    """Packing the real package takes long."""
    shipment = pack("tomlkit")
    assert shipment is not None
    return shipment


def package_at(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tomlkit be found in ``folder``."""
    file = folder / "tomlkit/__init__.py"
    file.parent.mkdir()
    file.write_bytes(content)
    spec = importlib.machinery.ModuleSpec("tomlkit", None, origin=str(file))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


class TestPack:
    def test_what_travels(self, tomlkit: str) -> None:
        for name, shipment, distribution, size in (
            ("tomlkit", tomlkit, "tomlkit", 44_000),
            ("yaml", pack("yaml"), "PyYAML", 40_000),
        ):
            content = opened(shipment)
            assert content["version"] == metadata.version(distribution)
            assert content["python"][0] == 3
            assert content["python"] >= [3, 6]
            assert set(content["sources"]) == {f"{name}/{path.name}" for path in files_of(name)}
            assert len(shipment or "") < size

    def test_is_deterministic(self, tomlkit: str) -> None:
        assert pack("tomlkit") == tomlkit

    @pytest.mark.parametrize(
        ("requires", "python"),
        [(">=3.9", [3, 9]), (">=3.8, <4", [3, 8]), ("!=3.9.1,>= 3.10.2", [3, 10]), ("<4", []), (None, [])],
    )
    def test_lowest_python(
        self, requires: str | None, python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Distribution:
            version = "1.0"
            metadata = Message()

        if requires is not None:
            Distribution.metadata["Requires-Python"] = requires
        monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution)
        package_at(tmp_path, b"x = 1\n", monkeypatch)
        assert opened(pack("tomlkit"))["python"] == python

    def test_no_such_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PACKAGES, "made_up_and_absent", Package("Made-Up-And-Absent", (1,), {}))
        assert pack("made_up_and_absent") is None

    def test_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PACKAGES, "tomlkit", Package("tomlkit", (99,), {}))
        assert pack("tomlkit") is None

    def test_only_its_metadata_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
        assert pack("tomlkit") is None

    @pytest.mark.parametrize("content", [b"x = (", b"# coding: nonsense\n", b"\xff = 1\n"])
    def test_damaged(self, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package_at(tmp_path, content, monkeypatch)
        assert pack("tomlkit") is None


class TestPacked:
    @pytest.mark.parametrize("shipment", ["c2hpcG1lbnQ=", None])
    def test_packs_once_for_all_processes(
        self, shipment: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        def counted(name: str) -> str | None:
            calls.append(name)
            return shipment

        monkeypatch.setattr(_packing, "pack", counted)
        assert packed("tomlkit", str(tmp_path)) == shipment
        assert packed("tomlkit", str(tmp_path)) == shipment
        assert calls == ["tomlkit"]
        assert [path.name for path in tmp_path.iterdir()] == ["gpufleet-shipped-tomlkit"]

    def test_works_without_a_place_to_keep_it(self, tmp_path: Path, tomlkit: str) -> None:
        assert packed("tomlkit", str(tmp_path / "missing")) == tomlkit
