# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit's packages unpacked into a directory, without installing them.

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import tempfile
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._archive_entries import (
    MAX_SIZE,
    Entry,
    damaged,
    write_entries,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cpio import read_newc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tar_entries import read_tar

# A command, and how many bytes it may write; gives its status, its output, and its errors.
LimitedRunner = t.Callable[[t.List[str], int], t.Tuple[int, bytes, str]]


class _Kind(t.NamedTuple):
    """A kind of package: what it begins with, the tool that opens it, and what reads the archive inside."""

    magic: bytes
    tool: str
    options: tuple[str, ...]
    read: t.Callable[[bytes, str], list[Entry]]


# deb(5), and the lead of an RPM file.  dpkg-deb could write the files, too, but it would follow links, and give the
# folder the mode and the owner that the package says.
_KINDS = (
    _Kind(b"!<arch>\n", "dpkg-deb", ("--fsys-tarfile",), read_tar),
    _Kind(b"\xed\xab\xee\xdb", "rpm2cpio", (), read_newc),
)
# What a shell, timeout(1) and our runners say of a command that is not there.
_NOT_FOUND = 127
# A package may expand to this many times its size, at least to _SMALL bytes, and at most to MAX_SIZE.  NVIDIA's
# packages expand to about 5 times their size.
_RATIO, _SMALL = 100, 16 << 20
# Seconds to unpack a package, and bytes of a tool's errors that are reported.
_SECONDS, _ERRORS = 120, 4096
_BLOCK = 1 << 16


def unpack(
    packages: t.Sequence[str], folder: str, on_controller: bool = False, run: LimitedRunner | None = None
) -> None:
    """Unpack ``packages`` (.deb and .rpm, told apart by their content), one after the other, into ``folder``.

    All are paths as this process opens them; ``folder`` exists, is empty, and keeps its mode and owner.
    ``on_controller`` only changes the advice.  Raises GpufleetError for a file that is no package, and for one that
    would write elsewhere; HostError for what this machine cannot do.
    """
    kinds = [_kind_of(package) for package in packages]
    for package, kind in zip(packages, kinds):
        limit = min(MAX_SIZE, max(_SMALL, _RATIO * os.path.getsize(package)))
        status, archive, errors = (run or run_limited)([kind.tool, *kind.options, package], limit)
        _check(package, kind.tool, status, errors, on_controller)
        write_entries(kind.read(archive, package), folder, package)


def run_limited(argv: list[str], limit: int) -> tuple[int, bytes, str]:
    """Run a command without input that may write ``limit`` bytes, and take _SECONDS.

    Its messages are in English.  A command that is not there has the status that a shell gives it.  The last of
    ``argv`` is what messages call its output.  Raises GpufleetError for a command beyond a limit; it is killed then.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
    with tempfile.TemporaryFile() as errors:
        try:
            # run_command would hold the whole output, however large, before this could refuse it.
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return _NOT_FOUND, b"", f"{argv[0]} cannot be run: {error.strerror}"
        deadline = time.monotonic() + _SECONDS
        try:
            output = _output_of(process, limit, deadline, argv[-1])
            status = process.wait(max(0, deadline - time.monotonic()))
        except BaseException as error:
            # The tool may have started a program that unpacks.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, (TimeoutError, subprocess.TimeoutExpired)):
                raise damaged(argv[-1], f"{argv[0]} did not end within {_SECONDS} seconds") from None
            raise
        errors.seek(0)
        return status, output, errors.read(_ERRORS).decode("utf-8", "replace")


def _output_of(process: subprocess.Popen[bytes], limit: int, deadline: float, label: str) -> bytes:
    """What ``process`` writes.  Raises TimeoutError, and GpufleetError if that is more than ``limit`` bytes."""
    output = bytearray()
    with t.cast("t.IO[bytes]", process.stdout) as stream:
        while select.select([stream], [], [], max(0, deadline - time.monotonic()))[0]:
            block = os.read(stream.fileno(), _BLOCK)
            output += block
            if not block:
                return bytes(output)
            if len(output) > limit:
                raise damaged(label, f"it has more than {limit} bytes when it is unpacked")
    raise TimeoutError


def _kind_of(package: str) -> _Kind:
    """What a package is, by how it begins: its name may be anything."""
    try:
        if not stat.S_ISREG(os.stat(package).st_mode):
            raise GpufleetError(f"{package} is not a regular file. Give the files of the packages.")
        with open(package, "rb") as stream:
            start = stream.read(8)
    except FileNotFoundError:
        raise GpufleetError(f"{package} is not there. Correct files, or put the package there first.") from None
    except OSError as error:
        advice = "Run the task as root (become: true)." if isinstance(error, PermissionError) else "Correct files."
        raise HostError(f"{package} cannot be read: {error.strerror}. {advice}") from error
    kind = next((kind for kind in _KINDS if start.startswith(kind.magic)), None)
    if kind is None:
        raise GpufleetError(
            f"{package} is neither a .deb nor an .rpm package{'' if start else ': it is empty'}. Fetch it again, or"
            " unpack it yourself and give src."
        )
    return kind


def _check(package: str, tool: str, status: int, said: str, on_controller: bool) -> None:
    """Raises HostError if ``tool`` is not there, or failed."""
    if status == _NOT_FOUND:
        here, there = ("the controller", "true to unpack on the host") if on_controller else ("this host", "")
        way = f"remote_src: {there or 'false to unpack on the controller'}"
        raise HostError(f"{tool} is not on {here}; set {way}, or unpack {package} yourself and give src.")
    if status:
        words = " ".join(said.split()) or f"it ends with status {status}"
        raise HostError(
            f"{package} cannot be unpacked. {tool} says: {words}. Fetch the package again, and see that there is room."
        )
