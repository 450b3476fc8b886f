# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change valid files into invalid or unusual ones, with a seeded random generator.

The content of a file is bytes. A string in its place stands for a pipe, a directory, a link or a sparse file.
"""

from __future__ import annotations

import json
import re
import struct
import typing as t

if t.TYPE_CHECKING:
    import random

# Maps paths to contents, or to one of the strings below: a link with its target, a sparse file with its size in MiB.
Files = t.Dict[str, t.Union[bytes, str]]

PIPE, DIRECTORY, LINK, SPARSE = "pipe", "directory", "link:", "sparse:"
_OTHER_KINDS = (PIPE, DIRECTORY, f"{LINK}lost", f"{LINK}/", f"{LINK}/dev/null", f"{LINK}" + "x/" * 100, f"{SPARSE}68")
# The maximum size of a mutated file in bytes. Larger files are sparse, because they need no time to write.
MOST = 512 * 1024
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 45, (1 << 63) - 1, 1 << 63)
_DEEP = (20, 200, 1_500, 20_000)
_WINDOW = 2_000
_LONG = (300, 5_000, 70_000, 300_000)

# Byte strings that are unusual in any text.
_ANYWHERE = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\r",
    b"\n", b"\r\n", b"\t", b"\x1b[2J", b"\x7f", b"\\", b'"', b"'", b"`", b"%", b"%n%s", b"${HOME}", b"$(id)",
    b"{{ 1 }}",
    b"../../../etc/passwd", b"/", b"//", b"/proc/self/fd/0", b"-1", b"9" * 30, b"9" * 5_000, b"1e999",
    b"0x" + b"f" * 40,
    b"nan", b"true", b"null", b"", b" ", b"\xe2\x80\xae", b"\xf0\x9f\x98\x80",
)  # fmt: skip


class Syntax(t.NamedTuple):
    """The syntax of a format.

    ``token`` matches the parts that a mutation may replace, ``tokens`` are the replacements, and ``brackets`` are the
    pairs for nesting.
    """

    token: t.Pattern[bytes] = re.compile(rb"[A-Za-z0-9_./-]+")
    tokens: tuple[bytes, ...] = ()
    brackets: tuple[tuple[bytes, bytes], ...] = ((b"[", b"]"), (b"{", b"}"), (b"(", b")"))


_JSON_VALUES: tuple[t.Any, ...] = (
    None, True, False, 0, -1, 5, 10**30, 1e308, "", "x", "/", "\ud800", "\0", "\u2028", "a" * 70_000, [], [[]], [5], {},
    {"": None}, {"x": []}, ["x"], [None], "../..", "nvidia", "{{ x }}", "<script>x</script>",
    "'><img src=x onerror=y>", "\x1b[2J", "-->",
)  # fmt: skip
JSON = Syntax(
    re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|-?[0-9][0-9.eE+-]*|true|false|null'),
    (
        *(json.dumps(value).encode() for value in _JSON_VALUES),
        b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b"'x'", b'"\\ud83d"', b'"\\u0000"', b'"\\x41"',
        b'"\xff"', b"+1",
        b"// x\n", b"/* x */", b'"nvidia": {}', b"1E400", b"1" * 5_000,
    ),
    ((b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b'{"a":', b"")),
)  # fmt: skip
TOML = Syntax(
    re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|\'[^\'\n]{0,200}\'|[A-Za-z0-9_+.-]+|\[[^\[\]\n]{0,200}\]'),
    (
        b'"""\na\n"""', b"'''x'''", b'"\\ud800"', b'"\\U00110000"', b'"\\u0000"', b"1979-05-27T07:32:00Z", b"07:32:00",
        b"inf", b"-nan", b"0xdead", b"0o17", b"1_0", b"1__0", b"+0", b"[]", b"[[]]", b"{}", b"{a = 1}", b"{a.b = 1}",
        b"[1, 'x']", b"[{a = 1}]", b"a.b.c", b"[plugins]", b"[[plugins]]", b"[crio]", b"[[crio.runtime]]", b"version",
        b"version = 1", b"version = 99", b"version = '2'", b'imports = ["*"]', b"imports = [5]", b"runtimes = 5",
        b'"nvidia"', b"[a.b]\nc = 1", b"# x", b"= 1", b"a = 1\na = 2", b"9" * 400, b"1e400",
        b'"' + b"x" * 70_000 + b'"',
    ),
    ((b"[", b"]"), (b"{a = ", b"}"), (b"[", b""), (b"[[", b"]]"), (b"a.", b"")),
)  # fmt: skip
YAML = Syntax(
    re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|[A-Za-z0-9_./=-]+|[:>|-]'),
    (
        b"&a", b"*a", b"<<: *a", b"!!binary x", b"!!python/object/apply:os.system ['true']", b"!!float x",
        b"? x", b"- -",
        b"|\n  x", b">-\n  x", b"~", b"yes", b"0o17", b"017", b"1_0", b".inf", b"2001-01-01", b"---", b"...",
        b"%YAML 9.9",
        b"\t", b"''", b"[a, b]", b"{a: b}", b"{a: b", b"'\\'", b'"\\ud800"', b'"\\x00"', b"cdiVersion: 99.0.0",
        b"&a [*a, *a]", b"1:30", b"0x" + b"f" * 3_000,
    ),
    ((b"[", b"]"), (b"{a: ", b"}"), (b"- ", b""), (b"? ", b""), (b"[", b"")),
)  # fmt: skip
UNIT = Syntax(
    re.compile(rb"[A-Za-z0-9_./%${}-]+|="),
    (
        b"%", b"%h", b"%i", b"%%", b"%z", b"$X", b"${X}", b"$$", b"${", b"\\\n", b"\\", b'"', b"'", b"\\x",
        b"; x", b"# x",
        b"[Service]", b"[", b"[]", b"ExecStart=", b"Environment=", b"EnvironmentFile=", b"EnvironmentFile=-/",
        b"EnvironmentFile=/proc/self/environ", b"ListenStream=", b"=", b"==", b"@-+!", b"--config-file",
        b"--config-file=",
        b"--config=\xff", b"--host=unix://", b"Slice=-.slice", b"Slice=../x.slice", b"WantedBy=a b", b"-H", b"\\ud800",
    ),
    ((b"${", b"}"), (b'"', b'"'), (b"[", b"]")),
)  # fmt: skip
TEXT = Syntax()
BINARY = Syntax(re.compile(rb"[\x20-\x7e]{4,}"))


# Returns a changed content. The third argument contains other contents of the same path.
Change = t.Callable[["random.Random", bytes, t.Sequence[bytes], Syntax], bytes]


def mutated(rng: random.Random, files: Files, others: t.Sequence[Files], syntax: Syntax, kinds: bool) -> Files:
    """Return a copy of ``files`` with one to six changes in one or two files.

    With ``kinds``, a file may also become a pipe, a directory, a link or a sparse file.
    """
    result = dict(files)
    for path in rng.sample(sorted(result), min(len(result), rng.choice((1, 1, 1, 2)))):
        content = result[path]
        if kinds and rng.random() < 0.06:
            result[path] = rng.choice(_OTHER_KINDS)
        elif isinstance(content, bytes):
            donors = [donor for donor in (other.get(path) for other in others) if isinstance(donor, bytes)]
            for _change in range(rng.choice((1, 1, 1, 2, 3, 6))):
                content = _changed(rng, content, donors, syntax)
            result[path] = content[:MOST]
    return result


def _changed(rng: random.Random, content: bytes, donors: t.Sequence[bytes], syntax: Syntax) -> bytes:
    changes: tuple[Change, ...] = (_flip, _insert, _delete, _copy, _splice, _cut, _token)
    if syntax is BINARY:
        changes = (*changes, _number, _number, _replace)
    elif syntax is JSON:
        changes = (*changes, _node, _node, _node, _nest, _lines)
    else:
        changes = (*changes, _token, _token, _nest, _lines)
    change = rng.choice(changes)
    return change(rng, content, donors, syntax)


def _place(rng: random.Random, content: bytes) -> int:
    return rng.randrange(len(content) + 1)


def _range(rng: random.Random, content: bytes) -> tuple[int, int]:
    start = _place(rng, content)
    return start, min(len(content), start + rng.choice((1, 1, 2, 4, 8, 30, 200)))


def _tokens(rng: random.Random, content: bytes, syntax: Syntax) -> list[tuple[int, int]]:
    """Return the positions of tokens in a part of the content. In a long content, the pattern may take too long."""
    start = max(0, _place(rng, content) - _WINDOW // 2)
    spans = (match.span() for match in syntax.token.finditer(content[start : start + _WINDOW]))
    return [(start + first, start + last) for first, last in spans]


def _flip(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    changed = bytearray(content)
    for _bit in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _replace(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    start, end = _range(rng, content)
    return content[:start] + bytes(rng.randrange(256) for _byte in range(end - start)) + content[end:]


def _insert(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], syntax: Syntax) -> bytes:
    place = _place(rng, content)
    if rng.random() < 0.2:
        new = bytes([rng.randrange(256)]) * rng.choice(_LONG)
    else:
        new = rng.choice((*_ANYWHERE, *syntax.tokens))
    return content[:place] + new + content[place:]


def _delete(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    start, end = _range(rng, content)
    return content[:start] + content[end:]


def _copy(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    """Duplicate a part, once or very often."""
    start, end = _range(rng, content)
    times = rng.choice((1, 1, 3, 100, 3_000))
    return content[:end] + content[start:end] * min(times, MOST // max(1, end - start)) + content[end:]


def _splice(rng: random.Random, content: bytes, donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    """Join the beginning of one file and the end of another one."""
    donor = rng.choice(donors) if donors else content
    return content[: _place(rng, content)] + donor[_place(rng, donor) :]


def _cut(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    return content[: _place(rng, content)] if rng.random() < 0.5 else content[_place(rng, content) :]


def _token(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], syntax: Syntax) -> bytes:
    """Replace a token by one of the syntax, or by another one of the same part."""
    spans = _tokens(rng, content, syntax)
    if not spans:
        return content
    start, end = rng.choice(spans)
    if rng.random() < 0.3:
        other = rng.choice(spans)
        new = content[other[0] : other[1]]
    else:
        new = rng.choice((*_ANYWHERE, *syntax.tokens, *syntax.tokens))
    return content[:start] + new + content[end:]


def _nest(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], syntax: Syntax) -> bytes:
    """Put a token into many brackets."""
    spans = _tokens(rng, content, syntax)
    start, end = rng.choice(spans) if spans else (0, 0)
    opening, closing = rng.choice(syntax.brackets)
    depth = rng.choice(_DEEP)
    return content[:start] + opening * depth + content[start:end] + closing * depth + content[end:]


def _lines(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    """Duplicate, remove, move or join lines, or change how all of them end."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(5)
    if change == 0:
        lines.insert(other, lines[place])
    elif change == 1:
        del lines[place]
    elif change == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif change == 3:
        lines[place] = lines[place].rstrip(b"\r\n")
    else:
        return content.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b" \n")))
    return b"".join(lines)


def _number(rng: random.Random, content: bytes, _donors: t.Sequence[bytes], _syntax: Syntax) -> bytes:
    """Overwrite two, four or eight bytes with a number."""
    width, order = rng.choice("HIQ"), rng.choice("<>")
    size = struct.calcsize(width)
    if len(content) < size:
        return content
    place = rng.randrange(len(content) - size + 1)
    place -= place % rng.choice((1, size))
    value = rng.choice(_NUMBERS) & ((1 << 8 * size) - 1)
    return content[:place] + struct.pack(order + width, value) + content[place + size :]


def _node(rng: random.Random, content: bytes, donors: t.Sequence[bytes], syntax: Syntax) -> bytes:
    """Replace, remove or rename one value of a JSON document. The result is JSON too."""
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return _token(rng, content, donors, syntax)
    holders = list(_holders(document))
    if not holders:
        return json.dumps(rng.choice(_JSON_VALUES)).encode()
    holder = rng.choice(holders)
    key: t.Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    change = rng.random()
    if change < 0.7:
        holder[key] = rng.choice(_JSON_VALUES)
    elif change < 0.85 or isinstance(holder, list):
        del holder[key]
    else:
        holder[rng.choice(("", "x", "\ud800", "nvidia", "a" * 5_000, "path"))] = holder.pop(key)
    return json.dumps(document, indent=rng.choice((None, 2)), ensure_ascii=True).encode()


def _holders(document: t.Any) -> t.Iterator[t.Any]:
    """Return the document and all objects and arrays in it that are not empty, outer ones first."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, (dict, list)) and value:
            yield value
            pending.extend(value.values() if isinstance(value, dict) else value)
