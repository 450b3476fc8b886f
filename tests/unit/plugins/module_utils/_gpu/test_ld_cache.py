# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.driver_files import CACHE, cached_libraries
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import ld_cache

ONE, TWO = "/opt/nvidia/lib/libcuda.so.1", "/usr/lib/libc.so.6"


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        (ld_cache(ONE, TWO), [ONE, TWO]),
        (ld_cache(TWO, ONE, TWO), [TWO, ONE]),
        (ld_cache(), []),
        # AArch64, 64-bit PowerPC; then i386, x32 and what is no ELF file.
        (ld_cache(ONE, flags=0x0A03), [ONE]),
        (ld_cache(ONE, flags=0x0503), [ONE]),
        (ld_cache(ONE, flags=0x0003), []),
        (ld_cache(ONE, flags=0x0803), []),
        (ld_cache(ONE, flags=0x0300), []),
        # As ldconfig wrote it before glibc 2.32, with every alignment of its first table.
        (ld_cache(ONE, TWO, old=0), [ONE, TWO]),
        (ld_cache(ONE, TWO, old=1), [ONE, TWO]),
        (ld_cache(ONE, TWO, old=2), [ONE, TWO]),
        (ld_cache("lib/relative.so"), []),
        (b"", []),
        (b"glibc-ld.so.cache1.1", []),
        (b"ld.so-1.7.0\0", []),
        (b"ld.so-1.7.0\0" + bytes(100), []),
        (b"glibc-ld.so.cache2.0" + bytes(100), []),
    ],
)
def test_libraries(cache: bytes, found: list[str]) -> None:
    assert cached_libraries(cache) == found


def test_a_number_that_is_too_large() -> None:
    cache = bytearray(ld_cache(ONE))
    struct.pack_into("<I", cache, 20, 0xFFFFFFFF)
    assert cached_libraries(bytes(cache)) == [ONE]


def test_strings_outside() -> None:
    cache = bytearray(ld_cache(ONE, TWO))
    struct.pack_into("<I", cache, 48 + 8, 0xFFFFFFF0)
    assert cached_libraries(bytes(cache)) == [TWO]


def test_a_string_without_an_end() -> None:
    assert cached_libraries(ld_cache(ONE)[:-1]) == []


@given(st.binary(max_size=200), st.integers(0, 200), st.sampled_from([None, 0, 1]))
def test_anything(noise: bytes, place: int, old: int | None) -> None:
    cache = ld_cache(ONE, TWO, old=old)
    found = cached_libraries(cache[:place] + noise + cache[place + len(noise) :])
    assert all(path.startswith("/") for path in found)
    cached_libraries(noise)


@pytest.mark.skipif(not os.path.exists(CACHE), reason="this system has no cache")
def test_the_cache_of_this_system() -> None:
    with open(CACHE, "rb") as stream:
        found = cached_libraries(stream.read())
    assert any(os.path.basename(path).startswith("libc.so") for path in found)
