# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what stands in ld.so.cache, the list of libraries that ldconfig(8) leaves for the loader.
#
# The format is glibc's (sysdeps/generic/dl-cache.h).  A cache may begin with a table of the format before 2.2; only the
# one behind it counts, and its offsets are from its own beginning.

from __future__ import annotations

import struct

CACHE = "/etc/ld.so.cache"
# A cache of a desktop has some 200 kB.  More than this is none.
MOST = 1 << 25

_OLD, _NEW = b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_HEADER, _ENTRY = 48, struct.Struct("<iIIIQ")
_KIND, _ELF = 0xFF, 1
_MACHINE = 0xFF00
# x86-64, 64-bit PowerPC, AArch64: FLAG_X8664_LIB64, FLAG_POWERPC_LIB64, FLAG_AARCH64_LIB64.
_WIDE = frozenset({0x0300, 0x0500, 0x0A00})
# As long as a path can be (PATH_MAX).
_LONGEST = 4096


def cached_libraries(cache: bytes) -> list[str]:
    """The paths of the 64-bit libraries in ``cache``, each once, in its order.

    What cannot be read is passed over: without a cache the loader works too, and so do NVIDIA's own tools.
    """
    start = _start(cache)
    if start is None or start + _HEADER > len(cache):
        return []
    (count,) = struct.unpack_from("<I", cache, start + len(_NEW))
    # A wrong number must not cost more than the file holds.
    count = min(count, (len(cache) - start - _HEADER) // _ENTRY.size)
    found: dict[str, None] = {}
    for number in range(count):
        flags, _key, value, _version, _features = _ENTRY.unpack_from(cache, start + _HEADER + number * _ENTRY.size)
        if flags & _KIND & _ELF and flags & _MACHINE in _WIDE:
            path = _text(cache, start + value)
            if path.startswith("/"):
                found[path] = None
    return list(found)


def _start(cache: bytes) -> int | None:
    """Where the table of the newer format begins."""
    if cache.startswith(_NEW):
        return 0
    if not cache.startswith(_OLD) or len(cache) < _OLD_HEADER:
        return None
    (count,) = struct.unpack_from("<I", cache, len(_OLD))
    behind = _OLD_HEADER + count * _OLD_ENTRY
    # It is aligned, to 4 or to 8 bytes.
    place = cache.find(_NEW, behind, behind + 8 + len(_NEW))
    return place if place >= 0 else None


def _text(cache: bytes, start: int) -> str:
    end = cache.find(b"\0", start, start + _LONGEST)
    return cache[start:end].decode("utf-8", "surrogateescape") if end > start else ""
