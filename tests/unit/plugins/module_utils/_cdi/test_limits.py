# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tracemalloc
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate.modes import generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import cached_libraries
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import minimum_size, read_soname
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_layouts import LAYOUTS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    Tree,
    elf,
    gpus,
    inventory_of,
    ld_cache,
)

PLACES = st.floats(0, 1)
_Found = t.TypeVar("_Found")


def result_or_error(work: t.Callable[[], _Found]) -> _Found | str:
    try:
        return work()
    except NvidiaError as error:
        return str(error)


@pytest.fixture(scope="module")
def folder() -> t.Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


LIBRARIES = [f"/usr/lib/x86_64-linux-gnu/lib{number}.so.{number}" for number in range(200)]
SHAPES = [elf("libcuda.so.1", order=order) for order in "<>"]


# -- whole hosts -----------------------------------------------------------------------------------------------------


def _make_pipe(path: Path) -> None:
    os.mkfifo(str(path))


def _make_folder(path: Path) -> None:
    (path / "within").mkdir(parents=True)


# Replacements of a file or a directory. The first one removes it.
OTHERS: tuple[t.Callable[[Path], t.Any], ...] = (
    lambda _place: None,
    _make_folder,
    lambda path: path.write_bytes(b"\x7fELF\x02\x01" + bytes(70)),
    lambda path: path.write_bytes(b"\xff" * 3000),
    lambda path: path.symlink_to("lost"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/usr/" + "x/" * 150),
    lambda path: path.symlink_to("y" * 3000),
    _make_pipe,
)
HOST_GPUS = gpus(2, 2, gfx=True)


class Changed:
    """A host's directory tree in which files and directories can be replaced temporarily."""

    def __init__(self, path: Path) -> None:
        tree = Tree(path / "host")
        LAYOUTS["cache"].make(tree, HOST_GPUS)
        LAYOUTS["flat"].build(tree)
        self.host = tree.host()
        self._aside = path / "aside"
        self._aside.mkdir()
        # The kernel writes the files of /proc.
        self._paths = sorted(path for path in tree.path.rglob("*") if tree.path / "proc" not in path.parents)

    @contextlib.contextmanager
    def by(self, changes: t.Iterable[tuple[float, int]]) -> t.Iterator[None]:
        replaced: list[Path] = []
        try:
            for position, kind in changes:
                path = self._paths[int(position * (len(self._paths) - 1))]
                if path not in replaced and not {*replaced} & {*path.parents}:
                    path.rename(self._aside / str(len(replaced)))
                    replaced.append(path)
                    OTHERS[kind](path)
            yield
        finally:
            for number, path in reversed([*enumerate(replaced)]):
                if os.path.lexists(path):
                    (shutil.rmtree if stat.S_ISDIR(path.lstat().st_mode) else os.unlink)(path)
                (self._aside / str(number)).rename(path)


@pytest.fixture(scope="module")
def changed(folder: Path) -> Changed:
    return Changed(folder)


@pytest.mark.usefixtures("files_for_devices")
@given(st.lists(st.tuples(PLACES, st.integers(0, len(OTHERS) - 1)), min_size=1, max_size=4))
def test_damaged_hosts(changed: Changed, changes: list[tuple[float, int]]) -> None:
    with changed.by(changes):
        for mode in ("nvml", "management"):
            found = result_or_error(
                functools.partial(generate_all, mode, Request(), inventory_of(*HOST_GPUS), changed.host)
            )
            if isinstance(found, str):
                assert found.endswith(".")
            else:
                assert found[""]["devices"]


# -- small files that describe large documents -------------------------------------------------------------------------

# Each file is small. They are parsed in a process with limits on memory and CPU time.
BOMBS = (
    """
"a: &a [x, x, x, x, x, x, x, x, x]\\n"
    + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\\n" for a, b in zip("abcdefghijklm", "bcdefghijklmn"))
"".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}\\n" if n else "a0: &a0 {x: y}\\n" for n in range(60))
"a: &a [*a, *a]"
"[" * 20_000
"[" * 400 + "]" * 400
"{a: " * 20_000
"- " * 20_000
"? " * 20_000
"'" + "x" * 300_000
"a: " + "1" * 200_000
"a: 0x" + "f" * 200_000
"a: 1e" + "9" * 1000
"a: |\\n" + " x\\n" * 50_000
"".join(f"k{n}: &k{n} {n}\\n" for n in range(5_000))
"k: 1\\n" * 5_000
"---\\n" * 20_000
"# x\\n" * 50_000
"!<" + "x" * 50_000 + "> a"
'{"a": ' * 20_000
'{"a": ' + "1" * 200_000 + "}"
'"' + "\\\\u00e9" * 30_000 + '"'
""".strip()
    .replace("\n    ", " ")
    .split("\n")
)

PROGRAM = """
import resource, sys, types
for name in ("ansible_collections", "ansible_collections.gpufleet", "ansible_collections.gpufleet.nvidia"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1]]
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
parse("/etc/cdi/x.yaml", b"a: 1")
resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for bomb in sys.argv[2:]:
    try:
        validate(parse("/etc/cdi/x.yaml", eval(bomb).encode()))
    except ConfigurationError:
        pass
    print(bomb, flush=True)
"""


def test_yaml_and_json_bombs() -> None:
    root = Path(__file__).parents[5]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), *BOMBS], stdout=subprocess.PIPE, check=False, timeout=120
    )
    assert done.stdout.decode().splitlines() == BOMBS
    assert done.returncode == 0


# -- memory ----------------------------------------------------------------------------------------------------------


def _numbers_everywhere(content: bytes) -> t.Iterator[bytes]:
    """Yield ``content`` with each of its 32-bit numbers replaced by the largest one, one at a time."""
    for offset in range(0, len(content) - 4, 4):
        yield content[:offset] + b"\xff\xff\xff\xff" + content[offset + 4 :]


class Endless(io.BytesIO):
    """A file that is much longer than its content."""

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        return content + bytes(min(max(size or 0, 0), 100_000_000) - len(content))


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (ld_cache(*LIBRARIES[:3]), cached_libraries),
        (SHAPES[0], lambda content: read_soname(Endless(content))),
        (SHAPES[1], lambda content: read_soname(Endless(content))),
        (SHAPES[0], minimum_size),
    ],
)
def test_large_numbers_need_little_memory(content: bytes, read: t.Callable[[bytes], t.Any]) -> None:
    tracemalloc.start()
    try:
        for damaged in _numbers_everywhere(content):
            read(damaged)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000
