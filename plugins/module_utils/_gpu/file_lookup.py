# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A file system with cached lookups, for searches that read the same directories many times."""

from __future__ import annotations

import bisect
import contextlib
import errno
import fnmatch
import itertools
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, hostfs

_MAGIC = re.compile(r"[*?[]")
# As in the Linux kernel (path_resolution(7)); and deeper than any path of a driver.
_MAX_LINKS, _MAX_DEPTH = 40, 200
# Of these no name or path can be there: it is too long, or goes through too many links.
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class CachedFS:
    """The files of ``host``; all paths are the host's own, absolute.

    Methods raise HostError where something is there but may not be looked at: what is missing for want of a permission
    must not pass for what is not there.
    """

    def __init__(self, host: hostfs.HostFS) -> None:
        self.host = host
        self._real: dict[str, str | None] = {}
        self._statuses: dict[str, os.stat_result | None] = {}
        self._names: dict[str, list[str]] = {}
        self._patterns: dict[str, t.Pattern[str]] = {}

    def real(self, path: str) -> str | None:
        """``path`` with every link resolved on the host, None for a loop of links."""
        return self._resolve(path, 0, 0)

    def status(self, path: str) -> os.stat_result | None:
        """What stat(2) says on the host, None where nothing is."""
        real = self.real(path)
        return None if real is None else self._status(real)

    def own_status(self, path: str) -> os.stat_result | None:
        """What lstat(2) says."""
        here = self._here(path)
        return None if here is None else self._status(here)

    def is_file(self, path: str) -> bool:
        """Whether something is there that is no directory, which is what NVIDIA's tools call a file."""
        status = self.status(path)
        return status is not None and not stat.S_ISDIR(status.st_mode)

    def is_directory(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_program(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and not stat.S_ISDIR(status.st_mode) and bool(status.st_mode & 0o111)

    def link(self, path: str) -> str | None:
        """The text of a symbolic link, None for everything else."""
        here = self._here(path)
        if here is None:
            return None
        status = self._status(here)
        return (
            hostfs.link_target(self._outer(here), here) if status is not None and stat.S_ISLNK(status.st_mode) else None
        )

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder, none where there is no folder."""
        real = self.real(folder)
        if real is None:
            return []
        if real not in self._names:
            try:
                self._names[real] = sorted(os.listdir(self._outer(real)))
            except (FileNotFoundError, NotADirectoryError):
                self._names[real] = []
            except OSError as error:
                raise atomic_write.os_error(folder, "read", error) from error
        return self._names[real]

    def glob(self, folder: str, pattern: str) -> list[str]:
        """The files below ``folder`` that match a relative pattern, sorted; links stay, directories do not count."""
        found = [folder]
        for part in pattern.split("/"):
            found = [
                posixpath.join(place, name)
                for place in found
                for name in (self._matching(place, part) if _MAGIC.search(part) else [part])
            ]
        return [path for path in found if self.is_file(path)]

    def pattern(self, pattern: str) -> t.Pattern[str]:
        """A pattern of the shell for one name, ready to match."""
        # fnmatch keeps only the last few, and normalises each name.
        if pattern not in self._patterns:
            self._patterns[pattern] = re.compile(fnmatch.translate(pattern))
        return self._patterns[pattern]

    @contextlib.contextmanager
    def open(self, path: str) -> t.Iterator[t.BinaryIO]:
        """A file to read from, also where that fails only later; raises HostError if it cannot be read."""
        real = self.real(path)
        try:
            with hostfs.open_regular(self._outer(path if real is None else real), path) as stream:
                yield stream
        except OSError as error:
            raise atomic_write.os_error(path, "read", error) from error

    def _matching(self, folder: str, pattern: str) -> list[str]:
        names = self.names(folder)
        matches = self.pattern(pattern).match
        # A folder of libraries has thousands of names, and most patterns begin alike with few of them.
        start = _MAGIC.split(pattern, 1)[0]
        candidates = itertools.islice(names, bisect.bisect_left(names, start), None)
        return [name for name in itertools.takewhile(lambda name: name.startswith(start), candidates) if matches(name)]

    def _here(self, path: str) -> str | None:
        """``path`` with every link resolved but the last."""
        folder, name = posixpath.split(path)
        parent = self._resolve(folder, 0, 0)
        return None if parent is None else posixpath.join(parent, name)

    def _resolve(self, path: str, links: int, depth: int) -> str | None:
        """``links``: how many have led here; ``depth``: how many names wait for this one to be resolved."""
        if path in {"", "/"}:
            return "/"
        if path not in self._real:
            if links > _MAX_LINKS or depth > _MAX_DEPTH or path.count("/") > _MAX_DEPTH:
                return None
            self._real[path] = self._resolve_last(path, links, depth + 1)
        return self._real[path]

    def _resolve_last(self, path: str, links: int, depth: int) -> str | None:
        folder, name = posixpath.split(path)
        parent = self._resolve(folder, links, depth)
        if parent is None or name in {"", "."}:
            return parent
        if name == "..":
            return posixpath.dirname(parent)
        here = posixpath.join(parent, name)
        status = self._status(here)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return here
        return self._resolve(posixpath.join(parent, hostfs.link_target(self._outer(here), here)), links + 1, depth)

    def _status(self, here: str) -> os.stat_result | None:
        if here not in self._statuses:
            try:
                self._statuses[here] = os.lstat(self._outer(here))
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise atomic_write.os_error(here, "looked at", error) from error
                self._statuses[here] = None
            except ValueError as error:
                # A null byte in the middle.
                raise errors.HostError(f"{here!r} is not a path. Check the configuration that names it.") from error
        return self._statuses[here]

    def _outer(self, path: str) -> str:
        return path if self.host.root == "/" else self.host.root + path


def under(root: str, path: str) -> str:
    """``path``, an absolute one, below ``root``."""
    return root.rstrip("/") + path


def without(root: str, path: str) -> str:
    """The same the other way round; a path that is not below ``root`` stays as it is."""
    short = root.rstrip("/")
    return path[len(short) :] if short and path.startswith(short + "/") else path
