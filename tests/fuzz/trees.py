# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory trees of hosts for the fuzzer: writing them, comparing them, and parsers that the collection does not use.

The comparison with other parsers shows whether a change of a file keeps everything that is not ours.
"""

from __future__ import annotations

import json
import os
import stat
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.tests.fuzz.mutators import DIRECTORY, LINK, PIPE, SPARSE, Files

try:
    import tomllib  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    tomllib = None  # type: ignore[assignment,unused-ignore]

# Where this collection keeps its own files: records, backups, the lock.
_OWN = ("var/lib/gpufleet-nvidia", "run/gpufleet-nvidia", "run/lock")
_LARGE = 8 << 20

Snapshot = t.Dict[str, t.Any]


def lay(folder: Path, files: Files) -> None:
    """Write ``files`` below ``folder``."""
    for name, content in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
            path.chmod(0o755 if "/bin/" in name else 0o644)
        elif content == PIPE:
            os.mkfifo(path)
        elif content == DIRECTORY:
            path.mkdir()
        elif content.startswith(LINK):
            path.symlink_to(content[len(LINK) :])
        elif content.startswith(SPARSE):
            with open(path, "wb") as stream:
                stream.truncate(int(content[len(SPARSE) :]) << 20)


def snapshot(folder: Path) -> Snapshot:
    """Everything below ``folder`` but our own files, by path: the content and the mode."""
    found: Snapshot = {}
    for top, names, files in os.walk(folder):
        below = os.path.relpath(top, folder)
        names[:] = [name for name in names if os.path.normpath(os.path.join(below, name)) not in _OWN]
        for name in (*names, *files):
            path = os.path.join(top, name)
            status = os.lstat(path)
            inner = os.path.normpath(os.path.join("/", below, name))
            content: t.Any = status.st_size
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode) and status.st_size < _LARGE:
                content = Path(path).read_bytes()
            elif stat.S_ISDIR(status.st_mode):
                content = None
            found[inner] = (stat.filemode(status.st_mode), content)
    return found


def contents(found: Snapshot) -> dict[str, bytes]:
    """The contents of the regular files of a snapshot."""
    return {path: content for path, (_mode, content) in found.items() if isinstance(content, bytes)}


def assert_same(before: Snapshot, after: Snapshot, what: str) -> None:
    """Fail with the paths that differ; directories of ours that are needed for /var/lib and /run do not count."""
    different = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    different = [path for path in different if path not in {"/var", "/var/lib", "/run"} or path in before]
    if different:
        shown = {path: (_short(before.get(path)), _short(after.get(path))) for path in different[:5]}
        raise AssertionError(f"{what}: {shown}")


def _short(entry: t.Any) -> str:
    return repr(entry) if len(repr(entry)) < 1_000 else repr(entry)[:500] + " ... " + repr(entry)[-500:]


class Pairs(t.List[t.Any]):
    """A JSON object as its pairs of name and value: a name can stand there twice."""


def json_pairs(content: bytes) -> t.Any:
    """The document with its objects as Pairs, and its numbers as they are written."""
    text = content.decode("utf-8-sig")
    if not text.strip():
        return Pairs()
    return json.loads(text, object_pairs_hook=Pairs, parse_int=str, parse_float=str, parse_constant=str)


def without_members(pairs: t.Any, names: t.Collection[str]) -> Pairs:
    """An object without some members; null is an object without members."""
    return Pairs((name, value) for name, value in pairs or () if name not in names)


def toml_data(content: bytes) -> dict[str, t.Any]:
    """The document as plain data."""
    text = content.decode("utf-8-sig")
    if tomllib is not None:
        return tomllib.loads(text)
    import tomlkit  # noqa: PLC0415

    return t.cast("t.Dict[str, t.Any]", tomlkit.parse(text).unwrap())


def pruned(table: t.Any, cut: t.Iterable[tuple[str, ...]]) -> t.Any:
    """A copy without the values at ``cut``, and without tables that are empty then or were before."""
    here = [path[1:] for path in cut]
    if not isinstance(table, dict):
        return table
    result = {}
    for key, value in table.items():
        inner = [path for whole, path in zip(cut, here) if whole[0] in (key, "*")]
        if () in inner:
            continue
        left = pruned(value, inner)
        if left != {}:
            result[key] = left
    return result


def text_of(value: t.Any) -> str:
    """Data in a form that can be compared: NaN is not equal to itself, and true is equal to 1."""
    return json.dumps(value, default=repr, sort_keys=True)
