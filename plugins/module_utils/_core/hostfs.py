# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the file system of a host, which is `/` or a directory tree (`host_root`).

Links are resolved inside the tree. Only regular files are read, with a size limit for each kind of file.

An absolute link inside the tree means a path inside the tree, and ".." never leads out of it, as with chroot.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

_MAGIC = re.compile(r"[*?[]")

# As in the Linux kernel (path_resolution(7)).
_MAX_LINKS = 40
# Bytes of a path with its final null (PATH_MAX); the time to resolve one is quadratic in its length.
_PATH_BYTES = 4096
# Bytes of a file, by what it is: one that another program made may be of any size, and a sparse one costs nothing.
# Units, their drop-ins, environment files and pid files; daemon.json; configurations in TOML; dpkg's list of packages;
# and all others, such as records with the content of a file in them.
UNIT_BYTES = 256 << 10
JSON_BYTES = 1 << 20
TOML_BYTES = 4 << 20
PACKAGES_BYTES = 64 << 20
FILE_BYTES = 16 << 20
# Drop-ins of a unit, or files that a configuration is made of.
DROP_INS = 100

# Files of these file systems are regular ones, but some of them wait for the next event.
_KERNEL = ("/proc/", "/sys/")

# The search path that systemd gives a service (systemd.exec(5)), in which an engine finds a bare runtime name.
SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class HostFS(t.NamedTuple):
    """The host under ``root``.

    ``live`` says that its programs, processes and sockets may be consulted: always for ``/``, for another
    directory only if the user says that it is a running system mounted there.  All paths given to and returned by
    methods are paths on the host, without ``root``, unless a name says ``outer``.  ``label_of`` gives the SELinux label
    that the host's policy has for a path; None where the host is not this machine, or has no SELinux.
    """

    root: str = "/"
    live: bool = True
    label_of: t.Callable[[str], str | None] | None = None

    @classmethod
    def of(cls, root: str, live: bool) -> HostFS:
        """Raises HostError unless ``root`` is an absolute path of a directory."""
        if not os.path.isabs(root):
            raise errors.HostError(f"host_root {root!r} is not an absolute path. Give the full path of the directory.")
        real = os.path.realpath(root)
        if not os.path.isdir(real):
            raise errors.HostError(
                f"host_root {root!r} is not a directory. Give the root directory of the host's tree."
            )
        return cls(real, live or real == "/")

    def check_path(self, parameter: str, path: str) -> str:
        """``path`` normalised; raises NvidiaError if it is relative or carries ``root`` in front."""
        if not os.path.isabs(path):
            raise errors.NvidiaError(
                f"{parameter} {path!r} is not an absolute path. Write it from / on, as the host sees it."
            )
        normal = os.path.normpath(path)
        if normal.startswith("//"):
            normal = normal[1:]
        if self.root != "/" and (normal + "/").startswith(self.root.rstrip("/") + "/"):
            raise errors.NvidiaError(
                f"{parameter} {path!r} begins with host_root. Write it as the host itself sees it, without host_root."
            )
        return normal

    def resolve(self, path: str, last: bool = True) -> str:
        """``path`` with every link resolved inside the root (``last``: the final component too).

        Missing components are kept as they are.  Raises HostError on a loop of links, and for what is no path at all.
        """
        return self.follow(path, lambda _here, _final: None, last)

    def follow(self, path: str, visit: t.Callable[[str, bool], None], last: bool = True) -> str:
        """As resolve(); ``visit`` is called with each component and link, and whether nothing follows it."""
        if not _is_path(path):
            raise errors.HostError(
                f"{path[:100]!r} is no path: it is too long, or has a character that no name can have. Correct the file"
                " or option that names it."
            )
        pending = [part for part in path.split("/") if part]
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop(0)
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/" + "/".join([*done, part])
            visit(here, not pending)
            if (pending or last) and os.path.islink(self._glue(here)):
                links += 1
                if links > _MAX_LINKS:
                    raise errors.HostError(f"{path}: too many symbolic links. Remove the loop.")
                target = link_target(self._glue(here), here)
                if target.startswith("/"):
                    done = []
                pending = [piece for piece in target.split("/") if piece] + pending
                continue
            done.append(part)
        return "/" + "/".join(done)

    def real_path(self, path: str, last: bool = True) -> str:
        """Where ``path``, resolved, stands for the process that runs this."""
        return self._glue(self.resolve(path, last))

    def read(self, path: str, most: int = FILE_BYTES) -> bytes | None:
        """The content of a regular file of at most ``most`` bytes, None where there is none.

        Raises HostError if it cannot be read, is larger, or is a file of the kernel.
        """
        real = self.resolve(path)
        if real.startswith(_KERNEL):
            raise errors.HostError(
                f"{path} leads to {real}, a file of the kernel, not of settings. Remove it, or correct it."
            )
        return self._read(path, real, most)

    def read_text(self, path: str, most: int = FILE_BYTES) -> str:
        """The text of a file that matters only where it can be read; else the empty string.

        It reads a file of the kernel only if the caller names it: ``path`` itself lies in /proc or /sys.
        """
        try:
            content = self._read(path, self.resolve(path), most) if path.startswith(_KERNEL) else self.read(path, most)
        except errors.HostError:
            return ""
        return (content or b"").decode("utf-8", "replace")

    def _read(self, path: str, real: str, most: int) -> bytes | None:
        try:
            with open_regular(self._glue(real), path) as stream:
                # Nothing, where a file of the kernel would have to be waited for.
                content = stream.read(most + 1) or b""
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        if len(content) > most:
            raise errors.HostError(f"{path} is larger than {most >> 10} KiB, the limit for such a file. Move it away.")
        return content

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self.real_path(path))
        except (errors.HostError, OSError):
            return False

    def lexists(self, path: str) -> bool:
        """Whether the name exists, be it a link that leads nowhere."""
        try:
            return os.path.lexists(self.real_path(path, last=False))
        except errors.HostError:
            return False

    def is_executable(self, path: str) -> bool:
        try:
            mode = os.stat(self.real_path(path)).st_mode
        except (errors.HostError, OSError):
            return False
        return stat.S_ISREG(mode) and bool(mode & 0o111)

    def entries(self, path: str) -> list[str]:
        """The sorted names in a directory, empty where there is none; raises HostError if it cannot be read."""
        try:
            return sorted(os.listdir(self.real_path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(path, error) from error

    def readable_entries(self, path: str) -> list[str]:
        """The same for a directory that matters only where it can be read."""
        try:
            return self.entries(path)
        except errors.HostError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """The paths that match an absolute pattern, sorted; names that begin with a dot count, as in Go's Glob."""
        found = ["/"] if _is_path(pattern) else []
        for part in pattern.split("/"):
            if part and part != ".":
                # Go negates a class with ^ where Python has !.
                wanted = part.replace("[^", "[!")
                found = [
                    f"{folder.rstrip('/')}/{name}"
                    for folder in found
                    for name in (self._matching(folder, wanted) if _MAGIC.search(part) else [part])
                ]
        return sorted(path for path in found if self.exists(path))

    def _matching(self, folder: str, pattern: str) -> list[str]:
        # Go's Glob, too, passes over what it cannot read.
        return fnmatch.filter(self.readable_entries(folder), pattern)

    def walk(self, folder: str) -> list[str]:
        """All files in ``folder`` and below it, in the lexical order of Go's filepath.Walk, which follows no links.

        Raises HostError where there are more than DROP_INS files and directories.
        """
        found = list(itertools.islice(self._walk(folder), DROP_INS + 1))
        if len(found) > DROP_INS:
            raise errors.HostError(f"{folder} holds more than {DROP_INS} files. Remove those that are not needed.")
        return [path for path, is_directory in found if not is_directory]

    def _walk(self, folder: str) -> t.Iterator[tuple[str, bool]]:
        """Every name below ``folder``, and whether it is a directory."""
        for name in self.entries(folder):
            path = f"{folder.rstrip('/')}/{name}"
            outer = self.real_path(path, last=False)
            is_directory = os.path.isdir(outer) and not os.path.islink(outer)
            yield path, is_directory
            if is_directory:
                yield from self._walk(path)

    def modified(self, path: str) -> float:
        """When ``path`` last changed, in seconds since 1970; 0 where nothing is."""
        try:
            return os.stat(self.real_path(path)).st_mtime
        except (errors.HostError, OSError):
            return 0.0

    def find_executable(self, names: t.Iterable[str]) -> str | None:
        """The first of ``names`` (absolute, or looked up in SERVICE_PATH) that is an executable file."""
        for name in names:
            candidates = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in SERVICE_PATH]
            for candidate in candidates:
                if self.is_executable(candidate):
                    return candidate
        return None

    def same_program(self, one: str, other: str) -> bool:
        """Whether two spellings of a program's path mean one file; for files that do not exist, the same text."""
        if one == other:
            return True
        try:
            return self._same_file(one, other)
        except errors.HostError:
            return False

    def _same_file(self, one: str, other: str) -> bool:
        first, second = self.find_executable([one]), self.find_executable([other])
        if first is not None and second is not None:
            return self.resolve(first) == self.resolve(second)
        return one.startswith("/") and other.startswith("/") and self.resolve(one) == self.resolve(other)

    def argv(self, argv: t.Sequence[str]) -> list[str]:
        """``argv`` as it must be run to run on this host."""
        return list(argv) if self.root == "/" else ["chroot", self.root, *argv]

    def _glue(self, path: str) -> str:
        return path if self.root == "/" else self.root + path


def open_regular(outer: str, path: str) -> t.BinaryIO:
    """Open the regular file ``path``, which is ``outer`` for this process, without waiting for anything.

    Raises OSError, and HostError for all that is no regular file.
    """
    # First by name: to open a device may have an effect.  Then by the handle: another file may be there by now, and to
    # open a named pipe or a file that is leased would wait for another program.
    if stat.S_ISREG(os.stat(outer).st_mode):
        handle = os.open(outer, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise errors.HostError(f"{path} is not a regular file. Move it away, or name another file.")


def link_target(outer: str, path: str) -> str:
    """The target of the link ``path``, which is ``outer`` for this process.

    Raises HostError, also if another program has removed or replaced the link since it was found.
    """
    try:
        return os.readlink(outer)
    except OSError as error:
        raise _unreadable(f"The link {path}", error, "Another program may have changed it. Run this again.") from error


def _is_path(text: str) -> bool:
    """Whether a file could have this name; a configuration may hold any text."""
    try:
        name = os.fsencode(text)
        return b"\0" not in name and len(name) < _PATH_BYTES
    except UnicodeEncodeError:
        return False


def _unreadable(path: str, error: OSError, advice: str = "Check the file system.") -> errors.HostError:
    if isinstance(error, PermissionError):
        denied = f"{path} cannot be read: {error.strerror}. Run the task as root (become: true)."
        return errors.PermissionDeniedError(denied)
    return errors.HostError(f"{path} cannot be read: {error.strerror}. {advice}")


def arguments_of(host: HostFS, pid: int) -> tuple[str, ...]:
    """The command line of the process, program first; empty if it is gone."""
    text = host.read_text(f"/proc/{pid}/cmdline")
    return tuple(text.split("\0")[:-1]) if text.endswith("\0") else tuple(text.split("\0")) if text else ()
