# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Look up files of a host and cache what was read, for searches that read the same directories many times.

It writes nothing.
"""

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

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs

_MAGIC = re.compile(r"[*?[]")
# A limit of path components that no path of a driver reaches.
_MAX_DEPTH = 200
# Errors that mean that nothing exists at the path: a name in it does not exist, it is too long, or it has too many
# links.
_DOES_NOT_EXIST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class CachedFS:
    """The files of ``host``. All paths are absolute paths on the host.

    What was read once is not read again. Methods raise HostError for a file that this process has no permission to
    read, so that it is not mistaken for a missing file.
    """

    def __init__(self, host: hostfs.HostFS) -> None:
        self.host = host
        self._real: dict[str, str | None] = {}
        self._statuses: dict[str, os.stat_result | None] = {}
        self._targets: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self._patterns: dict[str, t.Pattern[str]] = {}

    def real(self, path: str) -> str | None:
        """Return ``path`` with all links resolved on the host; None for a loop of links."""
        if path not in self._real:
            self._real[path] = self._resolve(path, last=True)
        return self._real[path]

    def status(self, path: str) -> os.stat_result | None:
        """Return the result of stat(2) on the host; None if nothing exists at ``path``."""
        real = self.real(path)
        return None if real is None else self._status(real)

    def lstat(self, path: str) -> os.stat_result | None:
        """Return the result of lstat(2) on the host; None if nothing exists at ``path``."""
        real = self._resolve(path, last=False)
        return None if real is None else self._status(real)

    def is_file(self, path: str) -> bool:
        """Return whether ``path`` exists and is not a directory. NVIDIA's tools use the same definition of a file."""
        status = self.status(path)
        return status is not None and not stat.S_ISDIR(status.st_mode)

    def is_directory(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_program(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and not stat.S_ISDIR(status.st_mode) and bool(status.st_mode & 0o111)

    def link_target(self, path: str) -> str | None:
        """Return the target of a symbolic link; None for everything else."""
        real = self._resolve(path, last=False)
        return None if real is None else self._link_target(real) or None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a directory; empty if there is none."""
        real = self.real(folder)
        if real is None:
            return []
        if real not in self._names:
            try:
                self._names[real] = sorted(os.listdir(self.host.process_path(real)))
            except (FileNotFoundError, NotADirectoryError):
                self._names[real] = []
            except OSError as error:
                raise errors.os_error(folder, "read", error) from error
        return self._names[real]

    def glob(self, folder: str, pattern: str) -> list[str]:
        """Return the files below ``folder`` that match a relative pattern, in sorted order. Links stay unresolved."""
        found = [folder]
        for part in pattern.split("/"):
            found = [
                posixpath.join(parent, name)
                for parent in found
                for name in (self._matching(parent, part) if _MAGIC.search(part) else [part])
            ]
        return [path for path in found if self.is_file(path)]

    def pattern(self, pattern: str) -> t.Pattern[str]:
        """Return the regular expression of a shell pattern for one name."""
        # fnmatch caches only the last few patterns, and normalizes each name.
        if pattern not in self._patterns:
            self._patterns[pattern] = re.compile(fnmatch.translate(pattern))
        return self._patterns[pattern]

    @contextlib.contextmanager
    def open(self, path: str) -> t.Iterator[t.BinaryIO]:
        """Open a file for reading. Raises HostError if it cannot be opened, or if the caller cannot read from it."""
        real = self.real(path)
        try:
            with hostfs.open_regular(self.host.process_path(path if real is None else real), path) as stream:
                yield stream
        except OSError as error:
            raise errors.os_error(path, "read", error) from error

    def _matching(self, folder: str, pattern: str) -> list[str]:
        names = self.names(folder)
        matches = self.pattern(pattern).match
        # A library directory has thousands of names, of which few begin like the pattern. Only these are compared.
        start = _MAGIC.split(pattern, 1)[0]
        candidates = itertools.islice(names, bisect.bisect_left(names, start), None)
        return [name for name in itertools.takewhile(lambda name: name.startswith(start), candidates) if matches(name)]

    def _resolve(self, path: str, last: bool) -> str | None:
        """Return ``path`` with all links resolved; None if it has too many links or components."""
        if path.count("/") > _MAX_DEPTH:
            return None
        try:
            return hostfs.resolve_links(path, self._link_target, last=last)
        except hostfs.LinkLoopError:
            return None

    def _link_target(self, path: str) -> str | None:
        """Return the target of the link ``path``, as resolve_links() requires it."""
        status = self._status(path)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return None if status is None else ""
        if path not in self._targets:
            self._targets[path] = hostfs.read_link(self.host.process_path(path), path)
        return self._targets[path]

    def _status(self, path: str) -> os.stat_result | None:
        """Return the result of lstat(2) for ``path``, in whose directory all links are resolved."""
        if path not in self._statuses:
            try:
                self._statuses[path] = os.lstat(self.host.process_path(path))
            except OSError as error:
                if error.errno not in _DOES_NOT_EXIST:
                    raise errors.os_error(path, "read", error) from error
                self._statuses[path] = None
            except ValueError as error:
                # The path contains a null byte.
                raise errors.HostError(
                    f"{path!r} is not a path, because it contains a null byte. Correct the configuration."
                ) from error
        return self._statuses[path]


def under(root: str, path: str) -> str:
    """Return the absolute ``path`` below ``root``."""
    return root.rstrip("/") + path


def strip_root(root: str, path: str) -> str:
    """Return ``path`` relative to ``root``, as an absolute path; unchanged if it is not below ``root``."""
    short = root.rstrip("/")
    return path[len(short) :] if short and path.startswith(short + "/") else path
