# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write and compare the directory trees of hosts, and parse files with parsers that the collection does not use.

These parsers show whether a change of a file keeps all foreign entries.
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
    """Return mode and content of each path below ``folder``, except the files that this collection keeps."""
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
    """Return the contents of the regular files of a snapshot."""
    return {path: content for path, (_mode, content) in found.items() if isinstance(content, bytes)}


def assert_same(before: Snapshot, after: Snapshot, what: str) -> None:
    """Raise AssertionError with the paths that differ. Created directories /var, /var/lib and /run are ignored."""
    different = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    different = [path for path in different if path not in {"/var", "/var/lib", "/run"} or path in before]
    if different:
        shown = {path: (_short(before.get(path)), _short(after.get(path))) for path in different[:5]}
        raise AssertionError(f"{what}: {shown}")


def _short(entry: t.Any) -> str:
    return repr(entry) if len(repr(entry)) < 1_000 else repr(entry)[:500] + " ... " + repr(entry)[-500:]


class Pairs(t.List[t.Any]):
    """A JSON object as a list of names and values, because a name may occur twice."""


def json_pairs(content: bytes) -> t.Any:
    """Return the document with its objects as Pairs, and its numbers as strings."""
    text = content.decode("utf-8-sig")
    if not text.strip():
        return Pairs()
    return json.loads(text, object_pairs_hook=Pairs, parse_int=str, parse_float=str, parse_constant=str)


def without_members(pairs: t.Any, names: t.Collection[str]) -> Pairs:
    """Return an object without the members ``names``. null is treated as an empty object."""
    return Pairs((name, value) for name, value in pairs or () if name not in names)


def toml_data(content: bytes) -> dict[str, t.Any]:
    """Return the document as plain data."""
    text = content.decode("utf-8-sig")
    if tomllib is not None:
        return tomllib.loads(text)
    import tomlkit  # noqa: PLC0415

    return t.cast("t.Dict[str, t.Any]", tomlkit.parse(text).unwrap())


def pruned(table: t.Any, cut: t.Iterable[tuple[str, ...]]) -> t.Any:
    """Return a copy without the values at the paths ``cut``, and without empty tables. "*" matches any key."""
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
    """Return data as text for a comparison. In Python, NaN differs from itself, and True equals 1."""
    return json.dumps(value, default=repr, sort_keys=True)
