# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import os
import platform
import struct
import subprocess
import sys
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import (
    AARCH64,
    HEADER_BYTES,
    X86_64,
    Elf,
    Links,
    machine_name,
    minimum_size,
    read_elf,
    read_links,
    read_soname,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import library, program
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import elf

if t.TYPE_CHECKING:
    from pathlib import Path

# The code of the generated programs exists only for these two architectures.
needs_known_machine = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"} or sys.platform != "linux",
    reason="needs x86_64 or aarch64",
)
HERE = AARCH64 if platform.machine() == "aarch64" else X86_64


# -- the header ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (program("true"), Elf(64, X86_64, 2)),
        (program("true", AARCH64), Elf(64, AARCH64, 2)),
        (program("true", 243), Elf(64, 243, 2)),
        (library("1.20.0"), Elf(64, X86_64, 3)),
        (program("true")[:20], Elf(64, X86_64, 2)),
        (b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x02\x00\x03\x00", Elf(32, 3, 2)),
        # Big-endian: S/390.
        (b"\x7fELF\x02\x02\x01" + bytes(9) + b"\x00\x03\x00\x16", Elf(64, 22, 3)),
        (program("true")[:19], None),
        (b"", None),
        (b"\x7fELF", None),
        (b"#!/bin/sh\nexec nvidia-ctk.real\n", None),
        (b"\x7fELF\x03\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00", None),
        (b"\x7fELF\x02\x00\x01" + bytes(9) + b"\x02\x00\x3e\x00", None),
        (b"\x7fELG\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00", None),
    ],
)
def test_the_header(head: bytes, found: Elf | None) -> None:
    assert read_elf(head) == found


def test_this_python() -> None:
    with open(os.path.realpath(sys.executable), "rb") as stream:
        head = stream.read(HEADER_BYTES)
    header = read_elf(head)
    assert header is not None
    assert (header.bits, header.kind in {2, 3}) == (64 if sys.maxsize > 2**32 else 32, True)
    # The table of sections is at the end of a program that a linker wrote.
    assert 1000 < minimum_size(head) <= os.path.getsize(os.path.realpath(sys.executable))


@pytest.mark.parametrize(
    ("machine", "name"),
    [(X86_64, "x86-64"), (AARCH64, "AArch64"), (3, "80386"), (243, "machine 243"), (0, "machine 0")],
)
def test_machine_names(machine: int, name: str) -> None:
    assert machine_name(machine) == name


# -- the minimum size --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_minimum_size(length: int) -> None:
    whole = program("x" * length)
    assert minimum_size(whole[:HEADER_BYTES]) == len(whole)
    # Data after the segments is ignored.
    assert minimum_size(whole + bytes(100)) == len(whole)


def test_sections_at_the_end() -> None:
    head = bytearray(program("true"))
    struct.pack_into("<Q", head, 40, 70000)
    struct.pack_into("<HH", head, 58, 64, 10)
    assert minimum_size(bytes(head)) == 70640


@pytest.mark.parametrize(
    "head",
    [b"", b"#!/bin/sh\n" + bytes(100), program("true")[:63], b"\x7fELF\x01\x01\x01" + b"\xff" * 100],
    ids=["empty", "script", "short", "32 bits"],
)
def test_unknown_size(head: bytes) -> None:
    assert minimum_size(head) == 0


def test_truncated_table_of_segments() -> None:
    assert minimum_size(program("true")[:100]) == 64 + 2 * 56


# -- the name of a library ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (elf("libcuda.so.1"), "libcuda.so.1"),
        (elf("libcuda.so.1", AARCH64), "libcuda.so.1"),
        (elf("libcuda.so.1", 22, order=">"), "libcuda.so.1"),
        # The loader uses only the segments.
        (elf("libcuda.so.1", segments=False), None),
        (elf(), None),
        (elf("x" * 5000), None),
        (program("true"), None),
        (library("1.20.0"), None),
        (b"", None),
        (b"INPUT(libcuda.so.1)", None),
        (b"\x7fELF\x01\x01\x01" + bytes(100), None),
    ],
)
def test_sonames(content: bytes, name: str | None) -> None:
    assert read_soname(io.BytesIO(content)) == name


def test_loader_and_needed_libraries() -> None:
    with open(os.path.realpath(sys.executable), "rb") as stream:
        links = read_links(stream)
    assert links is not None
    assert links.loader is not None
    assert os.path.exists(links.loader)
    assert [name for name in links.needed if name.startswith("libc.")]
    assert read_links(io.BytesIO(program("true"))) == Links(None, ())
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01\x01" + bytes(100)):
        assert read_links(io.BytesIO(content)) is None


@pytest.mark.parametrize("length", range(0, 460, 7))
def test_truncated_library(length: int) -> None:
    assert read_soname(io.BytesIO(elf("libcuda.so.1")[:length])) in {None, "libcuda.so.1"}


@given(st.binary(max_size=64), st.integers(0, 400))
def test_corrupt_libraries(noise: bytes, place: int) -> None:
    content = elf("libcuda.so.1")
    read_soname(io.BytesIO(content[:place] + noise + content[place + len(noise) :]))
    read_soname(io.BytesIO(b"\x7fELF\x02\x01" + noise + bytes(64)))


@pytest.mark.parametrize("place", [1 << 45, 1 << 61, (1 << 64) - 1])
def test_offsets_behind_the_end(tmp_path: Path, place: int) -> None:
    # Some file systems refuse to seek to such an offset. The result must be the same as for a missing table.
    content = bytearray(elf("libcuda.so.1"))
    struct.pack_into("<Q", content, 32, place)
    (tmp_path / "lib").write_bytes(content)
    with open(tmp_path / "lib", "rb") as stream:
        assert read_soname(stream) is None


def test_reads_only_the_necessary_parts() -> None:
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size)
            Counting.read_bytes += len(content)
            return content

    assert read_soname(Counting(elf("libcuda.so.1") + bytes(10_000_000))) == "libcuda.so.1"
    assert Counting.read_bytes < 10_000


# -- the programs of the tests -----------------------------------------------------------------------------------------


@needs_known_machine
@pytest.mark.parametrize("size", [0, 300000])
def test_program_runs_its_script(tmp_path: Path, size: int) -> None:
    file = tmp_path / "a program"
    file.write_bytes(program('printf "%s|" "$0" "$#" "$@" "$WORD"; exit 3', HERE, size))
    file.chmod(0o755)
    assert file.stat().st_size >= size
    done = subprocess.run(
        [file, "", "b c", "$d"], stdout=subprocess.PIPE, env={"WORD": "from outside"}, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.decode()) == (3, f"{file}|3||b c|$d|from outside|")
