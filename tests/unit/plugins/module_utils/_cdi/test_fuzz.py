# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What the generation of CDI specifications reads, garbled: it ends with an answer or an error of ours, soon, and in
# little memory.

from __future__ import annotations

import contextlib
import functools
import io
import json
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

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.modes import generate_all
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.validate import validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse, render
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import cached_libraries
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import minimum_size, read_elf, read_soname
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import Capabilities, parse_minors, read_gpus
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_layouts import LAYOUTS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import (
    Tree,
    elf,
    gpus,
    ld_cache,
    machine,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    INFORMATION,
    FakeGpu,
    gpu_host,
    mig_minors,
)

# Numbers that a file may be made to tell: none, one too many, more than there could be.
_NUMBERS = st.sampled_from([0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 45, (1 << 63) - 1, (1 << 64) - 1])


class Damage(t.NamedTuple):
    """What happens to a file: bytes that change, a number that is written somewhere, and how much is cut off.

    Places are shares of the file's length.
    """

    flips: tuple[tuple[float, int], ...]
    number: tuple[float, int, int]
    kept: float

    def done_to(self, content: bytes) -> bytes:
        damaged = bytearray(content)
        for place, byte in self.flips:
            damaged[int(place * (len(damaged) - 1))] = byte
        place, value, width = self.number
        start = int(place * (len(damaged) - 8)) // width * width if width else 0
        damaged[start : start + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        return bytes(damaged[: int(self.kept * len(damaged))])


PLACES = st.floats(0, 1)
DAMAGE = st.builds(
    Damage,
    st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=6).map(tuple),
    st.tuples(PLACES, _NUMBERS, st.sampled_from([0, 2, 4, 8])),
    st.one_of(st.just(1.0), PLACES),
)
_Found = t.TypeVar("_Found")


def told(work: t.Callable[[], _Found]) -> _Found | str:
    """What ``work`` finds, or what its error says."""
    try:
        return work()
    except NvidiaError as error:
        return str(error)


@pytest.fixture(scope="module")
def folder() -> t.Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


LIBRARIES = [f"/usr/lib/x86_64-linux-gnu/lib{number}.so.{number}" for number in range(200)]
CACHES = [ld_cache(*LIBRARIES), ld_cache(*LIBRARIES, old=5)]


@given(st.sampled_from(CACHES), DAMAGE)
def test_damaged_ld_cache(cache: bytes, damage: Damage) -> None:
    found = cached_libraries(damage.done_to(cache))
    assert len(found) == len(set(found)) <= len(LIBRARIES)
    assert all(path.startswith("/") and "\0" not in path for path in found)


SHAPES = [
    elf("libcuda.so.1", segments=segments, sections=sections, order=order)
    for segments, sections, order in ((True, True, "<"), (True, False, ">"), (False, True, "<"))
]


@given(st.sampled_from(SHAPES), DAMAGE)
def test_damaged_elf(folder: Path, library: bytes, damage: Damage) -> None:
    content = damage.done_to(library)
    file = folder / "library"
    file.write_bytes(content)
    with open(file, "rb") as stream:
        soname = read_soname(stream)
    # A file tells the same as its bytes; file systems differ in where they let one look.
    assert soname == read_soname(io.BytesIO(content))
    assert soname is None or 0 < len(soname) <= 4096
    elf_header = read_elf(content)
    assert elf_header is None or elf_header.bits in {32, 64}
    assert minimum_size(content) >= 0


MINORS = mig_minors(2).encode()
INFORMATION_FILE = INFORMATION.format(
    name="NVIDIA A100", uuid="GPU-00000001-0000-0000-0000-000000000000", bus="0000:0f:00.0", minor=1, excluded="No"
).encode()


@pytest.fixture(scope="module")
def proc_host(folder: Path) -> Path:
    gpu_host(folder / "proc", [FakeGpu("0000:07:00.0", 0, mig=1), FakeGpu("0000:0f:00.0", 1)])
    return folder / "proc"


@given(DAMAGE)
def test_damaged_mig_minors(proc_host: Path, damage: Damage) -> None:
    content = damage.done_to(MINORS)
    (proc_host / "proc/driver/nvidia-caps/mig-minors").write_bytes(content)
    found = told(lambda: Capabilities(Tree.at(proc_host)).minors(1, 3, 2))
    if isinstance(found, str):
        assert "mig-minors" in found
    else:
        assert all(0 <= minor < 10**7 for minor in found)
        assert parse_minors(content.decode("utf-8", "replace"))


@given(DAMAGE)
def test_damaged_gpu_information(proc_host: Path, damage: Damage) -> None:
    (proc_host / "proc/driver/nvidia/gpus/0000:0f:00.0/information").write_bytes(damage.done_to(INFORMATION_FILE))
    found = told(lambda: read_gpus(Tree.at(proc_host)))
    if isinstance(found, str):
        assert "/proc/driver/nvidia/gpus/" in found
    else:
        # One that is marked as excluded by chance is left out.
        assert 1 <= len(found) <= 2
        assert len({gpu.bus for gpu in found}) == len({gpu.minor for gpu in found}) == len(found)


# -- whole hosts -----------------------------------------------------------------------------------------------------


def _make_pipe(place: Path) -> None:
    os.mkfifo(str(place))


def _make_folder(place: Path) -> None:
    (place / "within").mkdir(parents=True)


# What may lie where something else should be; at first nothing.
OTHERS: tuple[t.Callable[[Path], t.Any], ...] = (
    lambda _place: None,
    _make_folder,
    lambda place: place.write_bytes(b"\x7fELF\x02\x01" + bytes(70)),
    lambda place: place.write_bytes(b"\xff" * 3000),
    lambda place: place.symlink_to("lost"),
    lambda place: place.symlink_to(place.name),
    lambda place: place.symlink_to("/usr/" + "x/" * 150),
    lambda place: place.symlink_to("y" * 3000),
    _make_pipe,
)
HOST_GPUS = gpus(2, 2, gfx=True)


class Changed:
    """A whole host in which anything may be replaced for a while."""

    def __init__(self, path: Path) -> None:
        tree = Tree(path / "host")
        LAYOUTS["cache"].make(tree, HOST_GPUS)
        LAYOUTS["flat"].build(tree)
        self.host = tree.host()
        self._aside = path / "aside"
        self._aside.mkdir()
        # Files of /proc are the kernel's own.
        self._paths = sorted(place for place in tree.path.rglob("*") if tree.path / "proc" not in place.parents)

    @contextlib.contextmanager
    def by(self, changes: t.Iterable[tuple[float, int]]) -> t.Iterator[None]:
        replaced: list[Path] = []
        try:
            for place, kind in changes:
                path = self._paths[int(place * (len(self._paths) - 1))]
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
            found = told(functools.partial(generate_all, mode, Request(), machine(*HOST_GPUS), changed.host))
            if isinstance(found, str):
                assert found.endswith(".")
            else:
                assert found[""]["devices"]


# -- files of specifications -----------------------------------------------------------------------------------------

GOLDEN = json.loads((Path(__file__).parents[3] / "files" / "cdi" / "lib64.json").read_text())
SPECIFICATIONS = [render(GOLDEN, "yaml"), render(GOLDEN, "json")]
# What means something in YAML.
SIGNS = st.text(alphabet="[]{}:,-?&*!|>'\"%@`#~<= \n\t\r\\0aex.", max_size=60).map(str.encode)


@given(st.one_of(st.binary(max_size=200), SIGNS, st.builds(Damage.done_to, DAMAGE, st.sampled_from(SPECIFICATIONS))))
def test_damaged_specifications(content: bytes) -> None:
    found = told(lambda: [parse("/etc/cdi/x.yaml", content)])
    if isinstance(found, str):
        assert found.startswith("/etc/cdi/x.yaml")
    else:
        validate(found[0])


# Read in a process that may have little of everything.  Each is small as a file.
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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.validate import validate as judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
parse("/etc/cdi/x.yaml", b"a: 1")
resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for bomb in sys.argv[2:]:
    try:
        judge(parse("/etc/cdi/x.yaml", eval(bomb).encode()))
    except ConfigurationError:
        pass
    print(bomb, flush=True)
"""


def test_yaml_and_json_bombs() -> None:
    root = Path(__file__).parents[5]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), *BOMBS], stdout=subprocess.PIPE, check=False, timeout=120
    )
    # The one behind the last of these is what it cannot do.
    assert done.stdout.decode().splitlines() == BOMBS
    assert done.returncode == 0


# -- memory ----------------------------------------------------------------------------------------------------------


def _numbers_everywhere(content: bytes) -> t.Iterator[bytes]:
    """``content`` with each of its words (of four bytes) made as large as can be, one at a time."""
    for place in range(0, len(content) - 4, 4):
        yield content[:place] + b"\xff\xff\xff\xff" + content[place + 4 :]


class Endless(io.BytesIO):
    """A file whose end is far away."""

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        return content + bytes(min(max(size or 0, 0), 100_000_000) - len(content))


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (ld_cache(*LIBRARIES[:3]), cached_libraries),
        (SHAPES[0], lambda content: read_soname(Endless(content))),
        (SHAPES[2], lambda content: read_soname(Endless(content))),
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
