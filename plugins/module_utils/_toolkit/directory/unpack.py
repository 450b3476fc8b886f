# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Unpack the toolkit's files of deb and rpm packages, with limits for size, ratio, number of entries and time.

Other programs write all files of a package and follow its links. This code takes the programs and libraries from a few
directories, which it creates, and ignores everything else.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import stat
import subprocess
import tarfile
import tempfile
import time
import typing as t
import zlib

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source

# Limits for the bytes and entries of a package. The toolkit's largest package has less than 80 MiB and about 20
# entries.
MAX_SIZE = 256 << 20
MAX_ENTRIES = 10_000
# The directories and the beginnings of the names of files that are taken.
_FOLDERS = frozenset(folder[1:] for folder in (*toolkit_source.PROGRAM_FOLDERS, *toolkit_source.LIBRARY_FOLDERS))
_NAMES = ("nvidia-", "libnvidia-container")


class ArchiveEntry(t.NamedTuple):
    """One name in an archive. ``mode`` includes the file type. ``content`` of a link is its target."""

    name: str
    mode: int
    content: bytes


def archive_error(label: str, problem: str) -> core_errors.NvidiaError:
    """Return the error for an archive that cannot be read. ``label`` is its name in messages."""
    return core_errors.NvidiaError(f"{label} cannot be unpacked: {problem}. Fetch the package again.")


def _check_entry_count(count: int, label: str) -> None:
    """Raise NvidiaError for more than MAX_ENTRIES. Call this while entries are read, since there may be millions."""
    if count >= MAX_ENTRIES:
        raise archive_error(label, f"it contains more than {MAX_ENTRIES} entries")


def write_entries(entries: t.Sequence[ArchiveEntry], folder: str, label: str) -> None:
    """Write the toolkit's files and links of an archive below the existing ``folder``, and ignore all other entries.

    Owners are ignored, and modes are limited to 0755. A file of an earlier package is replaced. ``label`` is the
    archive's name in messages. Raises HostError if a file cannot be written.
    """
    # Of several entries with the same name, the last one has effect.
    taken = {_taken_path(entry): entry for entry in entries}
    taken.pop("", None)
    # A file with several names is written once for each name.
    if sum(len(entry.content) for entry in taken.values()) > MAX_SIZE:
        raise archive_error(label, f"it contains more than {MAX_SIZE} bytes")
    for path, entry in taken.items():
        if stat.S_ISLNK(entry.mode) and (not entry.content or b"\0" in entry.content):
            raise archive_error(label, f"its link {entry.name!r} has an invalid target")
        _write(os.path.join(folder, path), entry)


def _taken_path(entry: ArchiveEntry) -> str:
    """Return the path of one of the toolkit's files, relative to the root; empty for everything else.

    Since only known directories are used, and no entry replaces them, no file is written through a link.
    """
    above, name = os.path.split("/".join(part for part in entry.name.split("/") if part not in {"", "."}))
    is_taken = above in _FOLDERS and name.startswith(_NAMES) and "\0" not in name
    return f"{above}/{name}" if is_taken and (stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode)) else ""


def _write(path: str, entry: ArchiveEntry) -> None:
    try:
        # A mode of the archive could keep this process from writing into the directory and removing it.
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if stat.S_ISLNK(entry.mode):
            os.symlink(os.fsdecode(entry.content), path)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(entry.content)
            os.fchmod(stream.fileno(), entry.mode & 0o755)
    except OSError as error:
        raise core_errors.os_error(path, "written", error) from error


# A .deb contains old tar, ustar, and long names of the GNU extensions (deb(5)). rpm2archive writes pax headers.
_REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
# The errors that tarfile raises, in addition to its own, for extreme numbers and chains of headers.
_TAR_ERRORS = (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError, RecursionError)


def read_tar(archive: bytes, label: str) -> list[ArchiveEntry]:
    """Return the regular files and links of an uncompressed tar archive, each with its content. Owners are not read.

    A hard link gets the content of its target. ``label`` is the archive's name in messages. Raises NvidiaError for an
    archive that is damaged or contains a sparse file.
    """
    entries: list[ArchiveEntry] = []
    # By name without "./": the possible targets of a hard link.
    files: dict[str, ArchiveEntry] = {}
    for member in _members(archive, label):
        if member.islnk():
            entry = _linked(member, files, label)
        elif member.issym():
            entry = ArchiveEntry(member.name, stat.S_IFLNK | 0o777, os.fsencode(member.linkname))
        elif member.type in _REGULAR_TYPES:
            content = archive[member.offset_data : member.offset_data + member.size]
            entry = ArchiveEntry(member.name, stat.S_IFREG | stat.S_IMODE(member.mode), content)
        else:
            continue
        entries.append(entry)
        files[os.path.normpath(entry.name)] = entry
    return entries


def _members(archive: bytes, label: str) -> t.Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for number, member in enumerate(tar):
                _check_entry_count(number, label)
                if member.issparse():
                    raise archive_error(label, f"it contains the sparse file {member.name!r}")
                # With a negative size, some versions of tarfile would read the same header forever.
                size = member.size if member.isreg() else 0
                if member.size < 0 or member.offset_data + size > len(archive):
                    raise archive_error(label, "it ends too early")
                yield member
            # The block where tarfile stops. tarfile also stops without an error at a cut or damaged header.
            last = archive[tar.offset : tar.offset + tarfile.BLOCKSIZE]
    except _TAR_ERRORS as error:
        raise archive_error(label, f"its content is not a complete tar archive ({error})") from error
    if len(last) < tarfile.BLOCKSIZE:
        raise archive_error(label, "it ends too early")
    if last.strip(b"\0"):
        raise archive_error(label, "its content has an invalid header")


def _linked(member: tarfile.TarInfo, files: t.Mapping[str, ArchiveEntry], label: str) -> ArchiveEntry:
    """Return a hard link as a separate file."""
    original = files.get(os.path.normpath(member.linkname))
    if original is None:
        raise archive_error(
            label, f"it contains {member.name!r}, a hard link to {member.linkname!r}, which is not an earlier entry"
        )
    return original._replace(name=member.name)


# Runs a command with a package as its input, which may write a number of bytes. Returns its status, output and error
# messages.
LimitedRunner = t.Callable[[t.List[str], str, int], t.Tuple[int, bytes, str]]


class _Kind(t.NamedTuple):
    """A kind of package: its first bytes, and the command that writes the files of its input as a tar archive.

    ``source`` is the distribution's package with this command.
    """

    magic: bytes
    argv: tuple[str, ...]
    source: str
    is_compressed: bool = False


# deb(5), and the lead of an RPM file. dpkg-deb could write the files too, but it follows links and gives the directory
# the mode and the owner from the package. rpm2archive compresses its output; only rpm 4.17 and newer can avoid this
# (4.16.1.3 lacks --nocompression). With a file name, releases before 4.19.0 (the last is 4.18.2) write a file beside
# the package.
_ARCHIVE_KINDS = (
    _Kind(b"!<arch>\n", ("dpkg-deb", "--fsys-tarfile", "-"), "dpkg"),
    _Kind(b"\xed\xab\xee\xdb", ("rpm2archive", "-"), "rpm2cpio on Debian and Ubuntu, else rpm", is_compressed=True),
)
# The status of a shell, timeout(1) and the runners of this collection for a command that does not exist.
_NOT_FOUND = 127
# A package may expand to this many times its size, at least to _SMALL bytes, and at most to MAX_SIZE. NVIDIA's packages
# expand to about 5 times their size.
_RATIO, _SMALL = 100, 16 << 20
# Seconds to unpack a package, and bytes of a tool's error messages that are reported.
_SECONDS, _UNPACK_ERRORS = 120, 4096
_BLOCK = 1 << 16


def unpack(
    packages: t.Sequence[str], folder: str, on_controller: bool = False, run: LimitedRunner | None = None
) -> None:
    """Unpack the toolkit's files of ``packages`` (.deb and .rpm, recognized by their content) into ``folder``.

    All paths are those of this process. ``folder`` exists, is empty, and keeps its mode and owner. ``on_controller``
    only changes the advice in messages. Raises NvidiaError for a file that is not a complete package, HostError for a
    problem of this machine.
    """
    kinds = [_kind_of(package) for package in packages]
    for package, kind in zip(packages, kinds):
        limit = min(MAX_SIZE, max(_SMALL, _RATIO * os.path.getsize(package)))
        status, archive, errors = (run or run_limited)(list(kind.argv), package, limit)
        _check(package, kind, status, errors, on_controller)
        archive = _decompressed(archive, limit, package) if kind.is_compressed else archive
        write_entries(read_tar(archive, package), folder, package)


def _decompressed(archive: bytes, limit: int, label: str) -> bytes:
    """Return the content of a gzip file, of at most ``limit`` bytes."""
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = decoder.decompress(archive, limit + 1)
    except zlib.error as error:
        raise archive_error(label, f"its content is not a complete gzip file ({error})") from error
    if len(content) > limit:
        raise archive_error(label, f"it expands to more than {limit} bytes")
    return content


def run_limited(argv: list[str], package: str, limit: int) -> tuple[int, bytes, str]:
    """Run a command with ``package`` as its input, that may write ``limit`` bytes and run for _SECONDS.

    Its messages are in English. A command that does not exist gets the status that a shell uses. Raises HostError if
    the command cannot be run, and NvidiaError if it exceeds a limit; it is killed then.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
    with open(package, "rb") as content, tempfile.TemporaryFile() as errors:
        try:
            # run_command would read the whole output, however large, before this function could refuse it.
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                argv,
                stdin=content,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            return _NOT_FOUND, b"", f"{argv[0]} cannot be run: {error.strerror}"
        except OSError as error:
            raise core_errors.os_error(argv[0], "run", error) from error
        deadline = time.monotonic() + _SECONDS
        try:
            output = _output_of(process, limit, deadline, package)
            status = process.wait(max(0, deadline - time.monotonic()))
        except BaseException as error:
            # The tool may have started another program, so the whole process group is killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, (TimeoutError, subprocess.TimeoutExpired)):
                raise archive_error(package, f"{argv[0]} did not end within {_SECONDS} seconds") from None
            raise
        errors.seek(0)
        return status, output, errors.read(_UNPACK_ERRORS).decode("utf-8", "replace")


def _output_of(process: subprocess.Popen[bytes], limit: int, deadline: float, label: str) -> bytes:
    """Return the output of ``process``. Raises TimeoutError, and NvidiaError for more than ``limit`` bytes."""
    output = bytearray()
    with t.cast("t.IO[bytes]", process.stdout) as stream:
        while select.select([stream], [], [], max(0, deadline - time.monotonic()))[0]:
            block = os.read(stream.fileno(), _BLOCK)
            output += block
            if not block:
                return bytes(output)
            if len(output) > limit:
                raise archive_error(label, f"it expands to more than {limit} bytes")
    raise TimeoutError


def _kind_of(package: str) -> _Kind:
    """Return the kind of a package by its first bytes. Its name is ignored."""
    try:
        if not stat.S_ISREG(os.stat(package).st_mode):
            raise core_errors.NvidiaError(
                f"{package} is not a regular file. Set {core_errors.option:files} to the packages."
            )
        with open(package, "rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise core_errors.os_error(package, "read", error) from error
    kind = next((kind for kind in _ARCHIVE_KINDS if start.startswith(kind.magic)), None)
    if kind is None:
        raise core_errors.NvidiaError(
            f"{package} is neither a .deb nor an .rpm package{'' if start else ': it is empty'}. Fetch it again, or"
            f" unpack it yourself and set {core_errors.option:src} instead of {core_errors.option:files}."
        )
    return kind


def _check(package: str, kind: _Kind, status: int, messages: str, on_controller: bool) -> None:
    """Raise HostError if the command of ``kind`` does not exist or failed."""
    if status == _NOT_FOUND:
        here, setting, there = (
            ("the controller", "node (remote_src: true)", "the host")
            if on_controller
            else ("this host", "controller (remote_src: false)", "the controller")
        )
        raise core_errors.HostError(
            f"{kind.argv[0]} is not installed on {here}. Install its package ({kind.source}), or set"
            f" nvidia_toolkit_files_on to {setting} to unpack on {there}, or unpack {package} yourself and set"
            f" {core_errors.option:src} instead of {core_errors.option:files}."
        )
    if status:
        reason = " ".join(messages.split()) or f"exit status {status}"
        raise core_errors.HostError(
            f"{package} cannot be unpacked, {kind.argv[0]} failed: {reason}. Fetch the package again, and check the"
            " free space."
        )
