# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the toolkit's packages unpacked into a directory, without installing them.

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cpio import extract
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

    # The same for commands whose output is no text.
    BytesRunner = t.Callable[[t.List[str]], t.Tuple[int, bytes, str]]

# What the two kinds of packages begin with (deb(5); the lead of an RPM file), and what unpacks them.
_TOOLS = {b"!<arch>\n": "dpkg-deb", b"\xed\xab\xee\xdb": "rpm2cpio"}
# What a shell, timeout(1) and our runners say of a command that is not there.
_NOT_FOUND = 127


def unpack(
    packages: t.Sequence[str], folder: str, run: Runner, run_bytes: BytesRunner, on_controller: bool = False
) -> None:
    """Unpack ``packages`` (.deb and .rpm, told apart by their content), one after the other, into ``folder``.

    All are paths as this process opens them; ``folder`` exists and is empty.  ``on_controller`` only changes the
    advice.  Raises GpufleetError for a file that is no package, HostError for what this machine cannot do.
    """
    tools = [_tool_for(package) for package in packages]
    for package, tool in zip(packages, tools):
        if tool == "dpkg-deb":
            status, output, errors = run([tool, "--extract", package, folder])
            _check(package, tool, status, errors or output, on_controller)
        else:
            status, archive, errors = run_bytes([tool, package])
            _check(package, tool, status, errors, on_controller)
            extract(archive, folder, package)


def _tool_for(package: str) -> str:
    """What unpacks a package, by how it begins: its name may be anything."""
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
    tool = next((tool for magic, tool in _TOOLS.items() if start.startswith(magic)), None)
    if tool is None:
        raise GpufleetError(
            f"{package} is neither a .deb nor an .rpm package{'' if start else ': it is empty'}. Fetch it again, or"
            " unpack it yourself and give src."
        )
    return tool


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
