# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import json
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.compile_once import compile_once

ROOT = Path(__file__).resolve().parents[5]
MODULE_UTILS = "ansible_collections.gpufleet.nvidia.plugins.module_utils"
# Python imports these files before compile_once() has an effect, so it may compile them twice.
FIRST = {"__init__.py", "_module.py", "compile_once.py"}
# Prints how often Python compiled each file, and the path, package and loader of each imported module.
PROGRAM = """
import collections, importlib, json, sys
compiled = collections.Counter()
sys.addaudithook(lambda event, about: compiled.update([str(about[1])]) if event == "compile" else None)
sys.path[:0] = sys.argv[1].split(":")
modules = [importlib.import_module(name) for name in sys.argv[2:]]
print(json.dumps([compiled, [[m.__file__, m.__package__, type(m.__spec__.loader).__name__] for m in modules]]))
"""


def _archive(path: Path, files: t.Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def _task(path: Path) -> Path:
    """Write an archive with all files of module_utils, as Ansible does for a task."""
    *folders, _last = (f"{MODULE_UTILS}.x").split(".")
    files = {"/".join([*folders[: depth + 1], "__init__.py"]): "" for depth in range(len(folders))}
    base = ROOT / "plugins" / "module_utils"
    for source in sorted(base.rglob("*.py")):
        name = f"{'/'.join(folders)}/{source.relative_to(base).as_posix()}"
        files[name] = source.read_text()
        for package in [*Path(name).parents][:-1]:
            files.setdefault(f"{package.as_posix()}/__init__.py", "")
    return _archive(path, files)


def _imported(archives: t.Sequence[Path], *names: str) -> tuple[dict[str, int], list[list[str]]]:
    command = [sys.executable, "-I", "-c", PROGRAM, ":".join(map(str, archives)), *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    compiled, modules = json.loads(done.stdout)
    return compiled, modules


def test_each_file_of_the_archive_is_compiled_once(tmp_path: Path) -> None:
    task = _task(tmp_path / "task.zip")
    compiled, modules = _imported(
        [task],
        f"{MODULE_UTILS}._module",
        f"{MODULE_UTILS}._engines.containerd.engine",
        f"{MODULE_UTILS}._engines.registry",
    )
    inside = {path: times for path, times in compiled.items() if path.startswith(str(task))}
    assert len(inside) > 20
    assert {path: times for path, times in inside.items() if times > 1 and Path(path).name not in FIRST} == {}
    assert modules[1][:2] == [
        f"{task}/{MODULE_UTILS.replace('.', '/')}/_engines/containerd/engine.py",
        f"{MODULE_UTILS}._engines.containerd",
    ]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="not checked for this Python yet")
def test_python_itself_compiles_twice(tmp_path: Path) -> None:
    # If no supported Python does this any more, compile_once.py can be removed.
    other = _archive(tmp_path / "other.zip", {"other.py": ""})
    assert _imported([other], "other")[0][f"{other}/other.py"] == 2


def test_other_archives_keep_their_importer(tmp_path: Path) -> None:
    task = _task(tmp_path / "task.zip")
    # The path of this archive begins with the path of the first one.
    other = _archive(tmp_path / "task.zip2", {"other.py": "", "package/__init__.py": "", "package/inner.py": ""})
    _compiled, modules = _imported([task, other], f"{MODULE_UTILS}._module", "other", "package.inner")
    assert [loader for _file, _package, loader in modules[1:]] == ["zipimporter", "zipimporter"]


def test_packages_and_missing_modules(tmp_path: Path) -> None:
    names = {"package/__init__.py": "", "package/inner.py": "from . import absent\n"}
    task = _task(tmp_path / "task.zip")
    with zipfile.ZipFile(task, "a") as archive:
        for name, text in names.items():
            archive.writestr(name, text)
    _compiled, modules = _imported([task], f"{MODULE_UTILS}._module", "package")
    assert modules[1] == [f"{task}/package/__init__.py", "package", "_Importer"]
    with pytest.raises(subprocess.CalledProcessError):
        _imported([task], f"{MODULE_UTILS}._module", "package.inner")


def test_without_an_archive_it_adds_no_importer() -> None:
    before = list(sys.path_hooks)
    compile_once(None)
    compile_once(__spec__.loader)
    assert sys.path_hooks == before


@pytest.mark.parametrize("module", sorted((ROOT / "plugins" / "modules").glob("*.py")), ids=lambda path: path.stem)
def test_every_module_imports_module_py_first(module: Path) -> None:
    nodes = [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.ImportFrom)]
    own = [
        f"{node.module}.{node.names[0].name}" for node in nodes if f"{node.module}".startswith("ansible_collections.")
    ]
    # A module that contains only documentation imports nothing.
    assert own[:1] == ([f"{MODULE_UTILS}._module"] if "def main()" in module.read_text() else [])
