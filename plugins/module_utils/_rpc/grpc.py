# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make one unary gRPC call over a Unix socket, with HTTP/2 and HPACK.

It needs no library on the host and does not support streams. It implements only the parts of HTTP/2 (RFC 9113) and
protobuf that a call with a small reply needs.
"""

from __future__ import annotations

import functools
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket

# Seconds for the whole call. containerd replies within 5 ms; a hung daemon must not delay a whole fleet.
TIMEOUT = 5.0
# Maximum size of a reply in bytes. Real replies have about 5000 bytes. The request announces flow-control windows of
# this size, so the client never needs to enlarge them.
LIMIT = 1 << 20

# Maximum number of fields in one message. A field of two bytes needs about 70 bytes of memory.
_MAX_FIELDS = 100_000
# Maximum size of all frames, as a multiple of the maximum size of the reply, because a daemon may send any number of
# frames that contain no part of the reply.
_FRAMES_FACTOR = 4
# RFC 9113: the preface (3.4), the types of frames and their flags (6), settings (6.5.2), sizes (6.5.2, 6.9.2).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 5, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 2, 4
_FRAME_LIMIT = 16384
# The size of a flow-control window before a peer announces another one.
_DEFAULT_WINDOW = 65535
# The only stream. Streams of a client have odd numbers.
_STREAM = 1
# The headers that gRPC requires in a request (grpc/doc/PROTOCOL-HTTP2.md).
_REQUEST_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
# The headers in which a service sends the code and the reason of a failed call (grpc/doc/PROTOCOL-HTTP2.md), and the
# code of Go's server for a reply that exceeds the limit of the service (grpc/doc/statuscodes.md).
_STATUS_HEADER, _ERROR_HEADER = "grpc-status", "grpc-message"
_RESOURCE_EXHAUSTED = "8"


class CallError(ValueError):
    """An error that the service reports, with the message of the service."""


class TooLongError(CallError):
    """A reply that exceeds the limit of the service or of the caller."""


def call(socket_path: str, method: str, message: bytes, timeout: float | None = None, limit: int = LIMIT) -> bytes:
    """Return the reply to ``message``, sent to ``method`` (``/package.Service/Method``), within ``timeout`` seconds.

    ``limit`` is the maximum size of the reply in bytes, at least 64 KiB.

    Raises OSError or ValueError if there is no valid reply, CallError for an error that the service reports, and
    TooLongError for a reply that exceeds a limit. The caller makes sure that the daemon runs, because the connection
    alone would start it under socket activation.
    """
    with unix_socket.connect(
        socket_path, TIMEOUT if timeout is None else timeout, _FRAMES_FACTOR * limit
    ) as connection:
        connection.send(_request(method, message, limit))
        return _read_reply(connection, limit)


# -- HTTP/2 --------------------------------------------------------------------------------------------------------


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _request(method: str, message: bytes, limit: int) -> bytes:
    # HPACK (RFC 7541, 6.2.2): literals without indexing and without Huffman coding, with names and values shorter than
    # 127 bytes.
    headers = b"".join(
        b"\0" + bytes((len(name),)) + name.encode("ascii") + bytes((len(value),)) + value.encode("ascii")
        for name, value in ((":path", method), *_REQUEST_HEADERS)
    )
    settings = ((_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, limit))
    frames = (
        _frame(_SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)),
        _frame(_WINDOW_UPDATE, 0, 0, (limit - _DEFAULT_WINDOW).to_bytes(4, "big")),
        _frame(_HEADERS, _END_HEADERS, _STREAM, headers),
        # gRPC puts a byte (1: compressed) and the length before each message.
        _frame(_DATA, _END_STREAM, _STREAM, b"\0" + len(message).to_bytes(4, "big") + message),
    )
    return _PREFACE + b"".join(frames)


def _read_reply(connection: unix_socket.Connection, limit: int) -> bytes:
    """Return the message of the reply.

    Raises ValueError if there is no message, for example after a gRPC error. Headers are decoded only in that case,
    for the reason in them.
    """
    body = bytearray()
    while True:
        head = connection.read(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if size > _FRAME_LIMIT:
            raise ValueError("the reply is not HTTP/2")
        payload = connection.read(size)
        if kind == _DATA:
            body += _unpadded(payload) if flags & _PADDED else payload
            length = int.from_bytes(body[1:5], "big")
            if body[:1] == b"\1":
                raise ValueError("the reply is compressed")
            if 5 + length > limit:
                raise TooLongError("the reply is too long")
            if len(body) >= 5 + length:
                return bytes(body[5 : 5 + length])
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            connection.send(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        # A daemon that stops sends the number of the last stream that it still answers.
        is_refused = kind == _GOAWAY and int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < _STREAM
        is_end = kind in (_DATA, _HEADERS) and flags & _END_STREAM
        if is_refused or is_end or kind in (_RST_STREAM, _PUSH_PROMISE):
            raise _error_of(payload if kind == _HEADERS and not flags & (_PADDED | _PRIORITY) else b"")


def _error_of(headers: bytes) -> ValueError:
    """Return the error for a reply without a message, with the reason from the last headers if they contain one."""
    try:
        status, message = header(headers, _STATUS_HEADER), header(headers, _ERROR_HEADER)
    except ValueError:
        status = message = None
    if not message:
        return ValueError("the reply has no message")
    # gRPC encodes % and all characters other than printable ASCII as %XX.
    plain = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found.group(1).decode()), message.encode("utf-8"))
    kind = TooLongError if status == _RESOURCE_EXHAUSTED else CallError
    return kind(plain.decode("utf-8", "replace"))


def _unpadded(payload: bytes) -> bytes:
    padding = payload[0] if payload else 0
    if padding >= len(payload):
        raise ValueError("the reply has more padding than content")
    return payload[1 : len(payload) - padding]


# -- protobuf (protobuf.dev/programming-guides/encoding) -----------------------------------------------------------


def fields(message: bytes) -> t.Iterator[tuple[int, bytes]]:
    """Return the field number and the content of each string and message in a protobuf message, but no integers."""
    return ((number, content) for number, content in _entries(message) if isinstance(content, bytes))


def numbers(message: bytes) -> t.Iterator[tuple[int, int]]:
    """Return the field number and the value of each integer in a protobuf message. protobuf omits fields that are 0."""
    return ((number, content) for number, content in _entries(message) if isinstance(content, int))


def _entries(message: bytes) -> t.Iterator[tuple[int, bytes | int]]:
    position = count = 0
    while position < len(message):
        count += 1
        if count > _MAX_FIELDS:
            raise ValueError(f"a message has more than {_MAX_FIELDS} fields")
        key, position = _decode_integer(message, position)
        if key & 7 == 2:
            size, start = _decode_integer(message, position)
            position = start + size
            yield key >> 3, message[start:position]
        elif key & 7 == 0:
            number, position = _decode_integer(message, position)
            yield key >> 3, number
        elif key & 7 in (1, 5):
            position += 8 if key & 7 == 1 else 4
        else:
            raise ValueError("the message is not protobuf")
        if position > len(message):
            raise ValueError("a field is cut off")


def _decode_integer(message: bytes, position: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, the lowest first, and the position after it."""
    number = 0
    for shift, byte in enumerate(message[position : position + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if not byte & 0x80:
            return number, position + shift + 1
    raise ValueError("a number is cut off")


def field(number: int, value: str | bytes | int) -> bytes:
    """Return one encoded field of a message: an integer, a string or a message."""
    if isinstance(value, int):
        return _encode_integer(number << 3) + _encode_integer(value)
    content = value.encode("utf-8") if isinstance(value, str) else value
    return _encode_integer(number << 3 | 2) + _encode_integer(len(content)) + content


def _encode_integer(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


# -- HPACK ---------------------------------------------------------------------------------------------------------


# The length in bits of the Huffman code of each byte and of the end marker (RFC 7541, appendix B), one base-36 digit
# each. The lengths determine the codes: codes of the same length are consecutive, in the order of their bytes.
_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad67777777777777777777777878djde6f565656"
    "66577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmnqqkjmnmpqqqrrq"
    "opjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrqu"
)
_END_OF_STRING = 256
# The first bits of an entry: an indexed header, a literal that is added to the table, a new size of the table
# (RFC 7541, 6).
_INDEXED, _INCREMENTAL_INDEXING, _TABLE_SIZE_UPDATE = 0x80, 0x40, 0x20


def header(block: bytes, name: str) -> str | None:
    """Return the value of the header ``name``; None if there is none, or if the block has only the index of its name.

    Raises ValueError for an invalid header block.
    """
    position = 0
    while position < len(block):
        first = block[position]
        if first & _INDEXED:
            _number, position = _integer(block, position, 7)
        elif first & 0xE0 == _TABLE_SIZE_UPDATE:
            _number, position = _integer(block, position, 5)
        else:
            name_index, position = _integer(block, position, 6 if first & _INCREMENTAL_INDEXING else 4)
            literal_name = b""
            if not name_index:
                literal_name, position = _string(block, position)
            value, position = _string(block, position)
            if literal_name == name.encode("ascii"):
                return value.decode("utf-8", "replace")
    return None


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return an integer that begins in the last ``bits`` bits of a byte (RFC 7541, 5.1), and the position after it."""
    limit = (1 << bits) - 1
    number = block[position] & limit
    if number < limit:
        return number, position + 1
    for shift, byte in enumerate(block[position + 1 : position + 6]):
        number += (byte & 0x7F) << 7 * shift
        if not byte & 0x80:
            return number, position + shift + 2
    raise ValueError("a number is cut off")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise ValueError("a header is cut off")
    is_huffman = block[position] & 0x80
    size, start = _integer(block, position, 7)
    content = block[start : start + size]
    if len(content) < size:
        raise ValueError("a string is cut off")
    return _decode_huffman(content) if is_huffman else content, start + size


def _decode_huffman(content: bytes) -> bytes:
    codes = _huffman_codes()
    text = bytearray()
    code, length = 0, 0
    for byte in content:
        for shift in range(7, -1, -1):
            code, length = code << 1 | byte >> shift & 1, length + 1
            symbol = codes.get((length, code))
            if symbol == _END_OF_STRING:
                raise ValueError("a string contains the end marker")
            if symbol is not None:
                text.append(symbol)
                code, length = 0, 0
    return bytes(text)


@functools.lru_cache(maxsize=1)
def _huffman_codes() -> dict[tuple[int, int], int]:
    """Return the byte of each code, by its length and its bits."""
    found: dict[tuple[int, int], int] = {}
    code, previous_length = 0, 0
    for length, symbol in sorted((int(digit, 36), symbol) for symbol, digit in enumerate(_LENGTHS)):
        code <<= length - previous_length
        found[length, code] = symbol
        code, previous_length = code + 1, length
    return found
