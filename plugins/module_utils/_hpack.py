# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: one header out of a block of them (HPACK, RFC 7541).  gRPC says why a call failed in a
# header; nobody else here needs one.

from __future__ import annotations

import functools

# The code of each byte, and of the end, has this many bits (RFC 7541, appendix B), written to the base 36.  More is not
# needed: of one length, the greater byte has the next code.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6f565656"
    "66577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmnqqkjmnmpqqqrrq"
    "opjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END = 256
# How the first byte of an entry begins (RFC 7541, 6).
_INDEXED, _REMEMBERED, _RESIZED = 0x80, 0x40, 0x20


def header(block: bytes, name: str) -> str | None:
    """The value of the header ``name``, None where there is none; only headers that are spelled out are found.

    Raises ValueError for what is not such a block.
    """
    position = 0
    while position < len(block):
        first = block[position]
        if first & _INDEXED:
            _number, position = _integer(block, position, 7)
        elif first & 0xE0 == _RESIZED:
            _number, position = _integer(block, position, 5)
        else:
            known, position = _integer(block, position, 6 if first & _REMEMBERED else 4)
            found = b""
            if not known:
                found, position = _string(block, position)
            value, position = _string(block, position)
            if found == name.encode("ascii"):
                return value.decode("utf-8", "replace")
    return None


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """A number that begins with the last ``bits`` of a byte, and the position behind it."""
    limit = (1 << bits) - 1
    number = block[position] & limit
    if number < limit:
        return number, position + 1
    for shift, byte in enumerate(block[position + 1 : position + 6]):
        number += (byte & 0x7F) << 7 * shift
        if not byte & 0x80:
            return number, position + shift + 2
    raise ValueError("a number ends in the middle")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise ValueError("a header ends in the middle")
    is_coded = block[position] & 0x80
    size, start = _integer(block, position, 7)
    content = block[start : start + size]
    if len(content) < size:
        raise ValueError("a string ends in the middle")
    return _decoded(content) if is_coded else content, start + size


def _decoded(content: bytes) -> bytes:
    codes = _codes()
    text = bytearray()
    code, length = 0, 0
    for byte in content:
        for shift in range(7, -1, -1):
            code, length = code << 1 | byte >> shift & 1, length + 1
            symbol = codes.get((length, code))
            if symbol == _END:
                raise ValueError("a string holds its own end")
            if symbol is not None:
                text.append(symbol)
                code, length = 0, 0
    return bytes(text)


@functools.lru_cache(maxsize=1)
def _codes() -> dict[tuple[int, int], int]:
    """The byte that each code stands for, by its length and its bits."""
    found: dict[tuple[int, int], int] = {}
    code, before = 0, 0
    for length, symbol in sorted((int(digit, 36), symbol) for symbol, digit in enumerate(_LENGTHS)):
        code <<= length - before
        found[length, code] = symbol
        code, before = code + 1, length
    return found
