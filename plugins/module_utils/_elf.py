# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which machine a program is for, from the header of its ELF file (elf(5)).

from __future__ import annotations

import struct
import typing as t

X86_64, AARCH64 = 62, 183
# The values of e_machine that a host of ours may have, in the words of their makers.
MACHINE_NAMES = {3: "80386", 21: "PowerPC64", 22: "S390", 40: "ARM", X86_64: "x86-64", AARCH64: "AArch64"}
# What a kernel calls its own machine (uname(2)).
KERNEL_MACHINES = {"x86_64": X86_64, "aarch64": AARCH64, "ppc64le": 21, "s390x": 22}

# What read_elf and stored_size want to see of a file, in bytes: its headers are within.
HEAD = 4096
_SHORTEST = 20
_HEADER_64 = 64
_LOADED = 1


class Elf(t.NamedTuple):
    """What the header of a file says: bits (32 or 64), e_machine, and e_type (2: executable, 3: shared)."""

    bits: int
    machine: int
    kind: int


def read_elf(head: bytes) -> Elf | None:
    """The header that a file begins with, None if that is no ELF header; 20 bytes are enough."""
    order = _byte_order(head)
    if order is None or len(head) < _SHORTEST or head[4] not in {1, 2}:
        return None
    kind, machine = struct.unpack_from(f"{order}HH", head, 16)
    return Elf(32 * head[4], machine, kind)


def stored_size(head: bytes) -> int:
    """How many bytes a 64-bit ELF file has at least, as its headers have it; 0 where ``head`` does not tell.

    A file that is shorter was not copied to its end.
    """
    order = _byte_order(head)
    if order is None or len(head) < _HEADER_64 or head[4] != 2:
        return 0
    segments, sections = struct.unpack_from(f"{order}QQ", head, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from(f"{order}4H", head, 54)
    ends = [segments + segment_size * segment_count, sections + section_size * section_count]
    for number in range(segment_count):
        place = segments + segment_size * number
        if place + 40 > len(head):
            break
        if struct.unpack_from(f"{order}I", head, place)[0] == _LOADED:
            offset, _address, _physical, length = struct.unpack_from(f"{order}4Q", head, place + 8)
            ends.append(offset + length)
    return int(max(ends))


def machine_name(machine: int) -> str:
    """An e_machine in words for people."""
    return MACHINE_NAMES.get(machine, f"machine {machine}")


def _byte_order(head: bytes) -> str | None:
    """As struct writes it."""
    return {1: "<", 2: ">"}.get(head[5]) if head[:4] == b"\x7fELF" and len(head) > 5 else None
