# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the file system of a host, which is `/` or a directory tree (`host_root`).

Links are resolved inside the tree. Only regular files are read, with a size limit for each kind of file.

An absolute link inside the tree points to a path inside the tree, and ".." never leaves the tree, as with chroot.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants, errors

_MAGIC = re.compile(r"[*?[]")

# The limit of the Linux kernel (path_resolution(7)).
_MAX_LINKS = 40
# The limit for a path in bytes, including the final null (PATH_MAX). The time to resolve a path is quadratic in its
# length.
_PATH_BYTES = 4096
# Size limits for files in bytes. Another program may write files of any size, and a sparse file may be larger than the
# disk.
# Units, their drop-ins, environment files and pid files.
UNIT_BYTES = 256 << 10
# daemon.json.
JSON_BYTES = 1 << 20
# Configurations in TOML.
TOML_BYTES = 4 << 20
# CDI specifications. One of 56 MIG devices has 100 kB.
CDI_SPEC_BYTES = 4 << 20
# The list of packages of dpkg.
PACKAGES_BYTES = 64 << 20
# All other files, such as records, which contain the content of a file.
FILE_BYTES = 16 << 20
# The maximum number of drop-ins of a unit, or of files of one configuration.
DROP_INS = 100

# Files below these directories look like regular files, but reading some of them blocks until the next kernel event.
_KERNEL = ("/proc/", "/sys/")

# The variable PATH that systemd sets for services (systemd.exec(5)). An engine searches these directories for a runtime
# that is configured without a path.
SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Predicted(t.NamedTuple):
    """A toolkit that an earlier task of the same play would install in a real run. For check mode only.

    ``files`` maps paths to contents; None stands for a file that the installation would remove, and an empty content
    for a program. ``version`` is None if it is not known before the installation.
    """

    files: t.Mapping[str, bytes | None]
    version: str | None


class HostFS(t.NamedTuple):
    """The host whose file system is at ``root``.

    ``live`` permits use of the programs, processes and sockets of the host. It is always true for ``/``. For another
    directory it is true only if the user has set host_root_live. ``label_of`` returns the SELinux label that the policy
    of the host has for a path. It is None if the host is not this machine or has no SELinux. ``predicted`` are files
    that read(), exists(), lexists(), is_executable() and entries() treat as if they were installed.

    All methods take and return paths on the host, without ``root``. A process path, which real_path() returns, is the
    path that this process uses for the same file: it begins with ``root``.
    """

    root: str = "/"
    live: bool = True
    label_of: t.Callable[[str], str | None] | None = None
    predicted: Predicted | None = None

    @classmethod
    def of(cls, root: str, live: bool) -> HostFS:
        """Return the host at ``root``.

        Raises HostError unless ``root`` is an absolute path of a directory.
        """
        if not os.path.isabs(root):
            raise errors.HostError(
                f"{errors.option:host_root} {root!r} is not an absolute path. Give the full path of the directory."
            )
        real = os.path.realpath(root)
        if not os.path.isdir(real):
            raise errors.HostError(
                f"{errors.option:host_root} {root!r} is not a directory. Give the root directory of the host."
            )
        return cls(real, live or real == "/")

    def with_programs(self, version: str | None, programs: t.Iterable[str]) -> HostFS:
        """Return the host as an earlier task of the play would leave it in a real run, with these programs."""
        files = {self.resolve(path): b"" for path in programs}
        return self._replace(predicted=Predicted(files, version))

    def check_path(self, parameter: str, path: str) -> str:
        """Return ``path`` normalized.

        Raises NvidiaError if it is relative or begins with ``root``. ``parameter`` is the name of the option, for the
        message.
        """
        if not os.path.isabs(path):
            raise errors.NvidiaError(
                f"{errors.option:{parameter}} {path!r} is not an absolute path. Give the full path, as on the host."
            )
        normal = os.path.normpath(path)
        if normal.startswith("//"):
            normal = normal[1:]
        if self.root != "/" and (normal + "/").startswith(self.root.rstrip("/") + "/"):
            raise errors.NvidiaError(
                f"{errors.option:{parameter}} {path!r} begins with {errors.option:host_root}. Give the path on the"
                f" host, without {errors.option:host_root}."
            )
        return normal

    def resolve(self, path: str, last: bool = True) -> str:
        """Return ``path`` with every link resolved inside the root; without ``last``, a link at the end stays.

        Missing components stay as they are. Raises HostError for a loop of links, or for text that cannot be a path.
        """
        return self.follow(path, lambda _here, _final: None, last)

    def follow(self, path: str, visit: t.Callable[[str, bool], None], last: bool = True) -> str:
        """Return the same as resolve(), and call ``visit`` for each component before a link in it is followed.

        The arguments of ``visit`` are the path up to the component, and whether the component is the final one.
        """
        if not _is_valid_path(path):
            raise errors.with_advice(
                errors.HostError,
                f"{path[:100]!r} is not a valid path: it is too long or contains an invalid character.",
                "Correct the file or option that contains it.",
            )
        return resolve_links(path, self._link_target, visit, last)

    def real_path(self, path: str, last: bool = True) -> str:
        """Return the process path of ``path``, with its links resolved."""
        return self.process_path(self.resolve(path, last))

    def read(self, path: str, limit: int = FILE_BYTES) -> bytes | None:
        """Return the content of a regular file of at most ``limit`` bytes; None if it does not exist.

        Raises HostError if it cannot be read, is larger, or is a kernel file.
        """
        real = self.resolve(path)
        if self.is_predicted(real):
            return self._predicted_content(real)
        if real.startswith(_KERNEL):
            problem = f"{path} leads to the kernel file {real}, which is not a configuration file."
            raise errors.with_advice(errors.HostError, problem, "Remove or correct the link.")
        return self._read(path, real, limit)

    def read_text(self, path: str, limit: int = FILE_BYTES) -> str:
        """Return the text of a file; an empty string if it does not exist or cannot be read.

        It reads a kernel file only if ``path`` itself lies in /proc or /sys.
        """
        # The kernel refuses to fill a buffer of 4 MiB or more from a file in /proc/sys (fs/proc/proc_sysctl.c).
        limit = min(limit, UNIT_BYTES) if path.startswith("/proc/sys/") else limit
        try:
            content = (
                self._read(path, self.resolve(path), limit) if path.startswith(_KERNEL) else self.read(path, limit)
            )
        except errors.HostError:
            return ""
        return (content or b"").decode("utf-8", "replace")

    def _read(self, path: str, real: str, limit: int) -> bytes | None:
        try:
            with open_regular(self.process_path(real), path) as stream:
                # read() returns None if a kernel file has no data yet.
                content = stream.read(limit + 1) or b""
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        if len(content) > limit:
            problem = f"{path} is larger than {limit >> 10} KiB, the limit for such a file."
            raise errors.with_advice(errors.HostError, problem, "Move it away.")
        return content

    def read_end(self, path: str, limit: int) -> bytes | None:
        """Return the last ``limit`` bytes of a regular file; None if it does not exist or cannot be read."""
        try:
            with open_regular(self.real_path(path), path) as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - limit))
                return stream.read(limit)
        except (errors.HostError, OSError):
            return None

    def is_system_container(self) -> bool:
        """Return whether a live host is a container of LXC (Incus, Proxmox), or in a user namespace.

        The kernel shows it all devices of the machine, but only those with a node in /dev were given to it. No program
        in it can change device cgroups. Other containers are treated as machines.
        """
        if not self.live:
            return False
        if " ".join(self.read_text("/proc/1/uid_map").split()) not in ("", constants.ALL_USERS):
            return True
        # LXC tells its first process, and systemd tells all others.
        variables = self.read_text("/proc/1/environ").split("\0")
        return "container=lxc" in variables or self.read_text("/run/systemd/container").strip() == "lxc"

    def is_predicted(self, path: str) -> bool:
        """Return whether an earlier task of the play would install or remove the file at ``path``."""
        return self.predicted is not None and path in self.predicted.files

    def will_be_new(self, path: str) -> bool:
        """Return whether an earlier task of the play would create the file at ``path``."""
        real = self.resolve(path)
        return self.is_predicted(real) and not os.path.lexists(self.process_path(real))

    def _predicted_content(self, path: str) -> bytes | None:
        return None if self.predicted is None else self.predicted.files[path]

    def exists(self, path: str) -> bool:
        try:
            real = self.resolve(path)
            if self.is_predicted(real):
                return self._predicted_content(real) is not None
            return os.path.exists(self.process_path(real))
        except (errors.HostError, OSError):
            return False

    def lexists(self, path: str) -> bool:
        """Return whether the name exists, even as a broken link."""
        try:
            real = self.resolve(path, last=False)
            if self.is_predicted(real):
                return self._predicted_content(real) is not None
            return os.path.lexists(self.process_path(real))
        except errors.HostError:
            return False

    def is_executable(self, path: str) -> bool:
        try:
            real = self.resolve(path)
            if self.is_predicted(real):
                return self._predicted_content(real) == b""
            mode = os.stat(self.process_path(real)).st_mode
        except (errors.HostError, OSError):
            return False
        return stat.S_ISREG(mode) and bool(mode & 0o111)

    def entries(self, path: str) -> list[str]:
        """Return the sorted names in a directory; an empty list if it does not exist.

        Raises HostError if it cannot be read.
        """
        names = self._predicted_names(path)
        try:
            return sorted({*names, *os.listdir(self.real_path(path))})
        except (FileNotFoundError, NotADirectoryError):
            return sorted(names)
        except OSError as error:
            raise _unreadable(path, error) from error

    def _predicted_names(self, path: str) -> list[str]:
        if self.predicted is None:
            return []
        real = self.resolve(path)
        found = [file for file, content in self.predicted.files.items() if content is not None]
        return [posixpath.basename(file) for file in found if posixpath.dirname(file) == real]

    def readable_entries(self, path: str) -> list[str]:
        """Return the same as entries(); an empty list if the directory cannot be read."""
        try:
            return self.entries(path)
        except errors.HostError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted paths that match an absolute pattern. As in Go's Glob, * also matches a leading dot."""
        found = ["/"] if _is_valid_path(pattern) else []
        for part in pattern.split("/"):
            if part and part != ".":
                # Go negates a class with ^ where Python uses !.
                wanted = part.replace("[^", "[!")
                found = [
                    f"{folder.rstrip('/')}/{name}"
                    for folder in found
                    for name in (self._matching(folder, wanted) if _MAGIC.search(part) else [part])
                ]
        return sorted(path for path in found if self.exists(path))

    def _matching(self, folder: str, pattern: str) -> list[str]:
        # Go's Glob also skips directories that it cannot read.
        return fnmatch.filter(self.readable_entries(folder), pattern)

    def walk(self, folder: str) -> list[str]:
        """Return all files below ``folder`` in the lexical order of Go's filepath.Walk, which follows no links.

        Raises HostError if there are more than DROP_INS files and directories.
        """
        found = list(itertools.islice(self._walk(folder), DROP_INS + 1))
        if len(found) > DROP_INS:
            problem = f"{folder} contains more than {DROP_INS} files."
            raise errors.with_advice(errors.HostError, problem, "Remove files that you do not need.")
        return [path for path, is_directory in found if not is_directory]

    def _walk(self, folder: str) -> t.Iterator[tuple[str, bool]]:
        """Yield every path below ``folder``, and whether it is a directory."""
        for name in self.entries(folder):
            path = f"{folder.rstrip('/')}/{name}"
            process_path = self.real_path(path, last=False)
            is_directory = os.path.isdir(process_path) and not os.path.islink(process_path)
            yield path, is_directory
            if is_directory:
                yield from self._walk(path)

    def mtime(self, path: str) -> float:
        """Return the time of the last change of ``path`` in seconds since 1970; 0 if it does not exist."""
        try:
            return os.stat(self.real_path(path)).st_mtime
        except (errors.HostError, OSError):
            return 0.0

    def find_executable(self, names: t.Iterable[str]) -> str | None:
        """Return the first of ``names`` (absolute, or searched in SERVICE_PATH) that is an executable file."""
        for name in names:
            candidates = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in SERVICE_PATH]
            for candidate in candidates:
                if self.is_executable(candidate):
                    return candidate
        return None

    def same_program(self, one: str, other: str) -> bool:
        """Return whether two paths or names of a program lead to the same file.

        If one of them is not an executable file, absolute paths are resolved and compared.
        """
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
        """Return the command line that runs ``argv`` on this host."""
        return list(argv) if self.root == "/" else ["chroot", self.root, *argv]

    def process_path(self, path: str) -> str:
        """Return the process path of ``path``, in which no link is resolved."""
        return path if self.root == "/" else self.root + path

    def _link_target(self, path: str) -> str | None:
        try:
            is_link = stat.S_ISLNK(os.lstat(self.process_path(path)).st_mode)
        except FileNotFoundError:
            return None
        except OSError:
            return ""
        return read_link(self.process_path(path), path) if is_link else ""


class LinkLoopError(errors.HostError):
    """The error for a path with too many symbolic links."""


def resolve_links(
    path: str,
    target_of: t.Callable[[str], str | None],
    visit: t.Callable[[str, bool], None] = lambda _here, _final: None,
    last: bool = True,
) -> str:
    """Return ``path`` with every link resolved, as HostFS.follow(). Raises LinkLoopError.

    ``target_of`` returns the target of a link, an empty string for everything else, and None if nothing exists.
    """
    pending = [part for part in path.split("/") if part]
    done: list[str] = []
    links = 0
    # Nothing exists below a name that does not exist, so that the rest of such a path needs no system calls.
    exists = True
    while pending:
        part = pending.pop(0)
        if part == ".":
            continue
        if part == "..":
            del done[-1:]
            exists = True
            continue
        here = "/" + "/".join([*done, part])
        visit(here, not pending)
        target = target_of(here) if exists and (pending or last) else ""
        if not target:
            exists = exists and target is not None
            done.append(part)
            continue
        links += 1
        pending = [piece for piece in target.split("/") if piece] + pending
        if links > _MAX_LINKS or len(pending) > _PATH_BYTES:
            raise errors.with_advice(LinkLoopError, f"{path}: too many symbolic links.", "Remove the loop.")
        if target.startswith("/"):
            done = []
    return "/" + "/".join(done)


def open_regular(process_path: str, path: str) -> t.BinaryIO:
    """Open the regular file ``path``, whose process path is given, without blocking.

    Raises OSError, or HostError if it is not a regular file.
    """
    # The type is checked by name first, because opening a device may have an effect. It is checked by handle again,
    # because the file may have been replaced. O_NONBLOCK avoids waiting for another program on a named pipe or a leased
    # file.
    if stat.S_ISREG(os.stat(process_path).st_mode):
        handle = os.open(process_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
    raise errors.with_advice(errors.HostError, f"{path} is not a regular file.", "Move it away, or use another path.")


def read_link(process_path: str, path: str) -> str:
    """Return the target of the link ``path``, whose process path is given.

    Raises HostError, also if another program has removed or replaced the link since it was found.
    """
    try:
        return os.readlink(process_path)
    except OSError as error:
        raise _unreadable(
            f"The link {path}", error, "Another program may have changed it. Run the task again."
        ) from error


def _is_valid_path(text: str) -> bool:
    """Return whether ``text`` can be a path. A path from a configuration file may contain any characters."""
    try:
        name = os.fsencode(text)
        return b"\0" not in name and len(name) < _PATH_BYTES
    except UnicodeEncodeError:
        return False


def _unreadable(subject: str, error: OSError, advice: str = "Check the file system.") -> errors.HostError:
    problem = f"{subject} cannot be read: {error.strerror}."
    if isinstance(error, PermissionError):
        return errors.with_advice(errors.PermissionDeniedError, problem, "Run the task as root (become: true).")
    return errors.with_advice(errors.HostError, problem, advice)


def command_line(host: HostFS, pid: int) -> tuple[str, ...]:
    """Return the command line of a process, program first; empty if the process has ended."""
    text = host.read_text(f"/proc/{pid}/cmdline")
    return tuple(text.split("\0")[:-1]) if text.endswith("\0") else tuple(text.split("\0")) if text else ()
