# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which of the toolkit's files a directory tree holds, and whether they are for this host.

from __future__ import annotations

import os
import posixpath
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._elf import (
    AARCH64,
    HEAD,
    KERNEL_MACHINES,
    X86_64,
    machine_name,
    read_elf,
    stored_size,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MAIN_PROGRAM, MODE_PROGRAMS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import LATER_PROGRAMS, PROGRAMS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_HOOK, _CLI, _CTK = PROGRAMS[1:]
(_CDI_HOOK,) = LATER_PROGRAMS


class Component(t.NamedTuple):
    """Files that belong together; ``optional``: those of ``programs`` that older toolkits do not have."""

    programs: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


COMPONENTS = {
    "runtime": Component((MAIN_PROGRAM, *MODE_PROGRAMS.values()), optional=tuple(MODE_PROGRAMS.values())),
    "hook": Component((_HOOK,)),
    "cli": Component((_CLI,), ("libnvidia-container.so.1", "libnvidia-container-go.so.1")),
    "ctk": Component((_CTK,)),
    "cdi_hook": Component((_CDI_HOOK,)),
}

PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")
# Where multiarch distributions have the libraries of a machine.
_MULTIARCH = {X86_64: "/usr/lib/x86_64-linux-gnu", AARCH64: "/usr/lib/aarch64-linux-gnu"}

SHELL = "/bin/sh"


class Part(t.NamedTuple):
    """A file to install.

    ``name``: in the installation, for a library its real file's; ``path``: as this process opens it, links resolved;
    ``mode``: its permissions, without those to write for others and without set-user-ID; ``size``: bytes; ``machine``:
    its e_machine; ``soname``: the link that a library needs beside it, empty if it has that name itself.
    """

    name: str
    path: str
    mode: int
    size: int
    machine: int
    soname: str = ""


class MadeFor(t.Protocol):
    """What check_machine wants to know of a file: its ``name``, and the e_machine of its header."""

    @property
    def name(self) -> str: ...

    @property
    def machine(self) -> int: ...


class _Place(t.NamedTuple):
    """What is asked for by ``name``, and where below the root it was found."""

    name: str
    path: str
    library: bool


def find_parts(root: HostRoot, components: t.Sequence[str] | None, label: str) -> list[Part]:
    """The files of ``components`` below ``root``; None: all, as far as the toolkit's version has them.

    ``label`` is what messages call the root.  Raises GpufleetError for what is not a whole toolkit for one machine,
    HostError for what cannot be read.
    """
    wanted = _wanted(components)
    _check_directory(root, label)
    places, missing = _programs(root, wanted, components is None)
    found, lacking = _libraries(root, wanted, _machine_of(root, places))
    places += found
    missing += lacking
    if missing:
        raise GpufleetError(
            f"{label} lacks {', '.join(missing)}. Programs are looked for in"
            f" {', '.join(folder[1:] for folder in PROGRAM_FOLDERS)}, libraries in"
            f" {', '.join(folder[1:] for folder in _library_folders(None))}. Unpack all packages of the toolkit into"
            " one directory and give that, or name in components only what it holds."
        )
    parts = [_part(root, place, label) for place in places]
    _check_one_machine(parts, label)
    return parts


def check_machine(parts: t.Sequence[MadeFor], host: HostRoot) -> None:
    """Raises GpufleetError if ``parts`` cannot run on ``host``, HostError if that has no shell for the wrappers.

    The shell tells the machine: a kernel may run programs of two.
    """
    if not host.exists(SHELL):
        if host.live:
            raise HostError(f"This host has no {SHELL}, which the toolkit's wrappers need. Install a shell.")
        return
    elf = read_elf(_head_of(host, SHELL))
    machine = elf.machine if elf is not None else None
    if machine is None and host.live:
        machine = KERNEL_MACHINES.get(os.uname().machine)
    if machine is None:
        return
    for part in parts:
        if part.machine != machine:
            raise GpufleetError(
                f"The toolkit's {part.name} is for {machine_name(part.machine)}, but the host is"
                f" {machine_name(machine)}. Give the toolkit for {machine_name(machine)}."
            )


def _wanted(components: t.Sequence[str] | None) -> list[Component]:
    """Raises GpufleetError for names that there are not, or none at all."""
    names = list(COMPONENTS) if components is None else components
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown or not names:
        problem = f"components has no {', '.join(unknown)}" if unknown else "components is empty"
        raise GpufleetError(f"{problem}. Give some of {', '.join(COMPONENTS)}, or leave it out for all.")
    return [component for name, component in COMPONENTS.items() if name in names]


def _check_directory(root: HostRoot, label: str) -> None:
    try:
        # This tells, too, whether it may be searched: else everything in it would pass for missing.
        os.stat(os.path.join(root.root, "."))
    except (FileNotFoundError, NotADirectoryError):
        raise HostError(
            f"{label} is not a directory. Give the directory that holds usr/bin and usr/lib of the toolkit."
        ) from None
    except OSError as error:
        raise HostError(f"{label} cannot be read: {error.strerror}. {_advice(error)}") from error


def _programs(root: HostRoot, wanted: t.Sequence[Component], by_default: bool) -> tuple[list[_Place], list[str]]:
    """Those that are there, and the names of those that should be."""
    places, missing = [], []
    for component in wanted:
        for name in component.programs:
            path = _first(root, PROGRAM_FOLDERS, name)
            if path is not None:
                places.append(_Place(name, path, library=False))
            elif name not in component.optional and not (by_default and name in LATER_PROGRAMS):
                missing.append(name)
    return places, missing


def _libraries(root: HostRoot, wanted: t.Sequence[Component], machine: int | None) -> tuple[list[_Place], list[str]]:
    """The same for libraries, those for ``machine`` before others."""
    places, missing = [], []
    for name in (name for component in wanted for name in component.libraries):
        path = _first(root, _library_folders(machine), name)
        if path is None:
            missing.append(name)
        else:
            places.append(_Place(name, path, library=True))
    return places, missing


def _library_folders(machine: int | None) -> list[str]:
    own = [folder for name, folder in _MULTIARCH.items() if name == machine]
    return [*own, "/usr/lib64", *(folder for folder in _MULTIARCH.values() if folder not in own), "/usr/lib"]


def _first(root: HostRoot, folders: t.Sequence[str], name: str) -> str | None:
    return next((path for path in (f"{folder}/{name}" for folder in folders) if root.is_there(path)), None)


def _machine_of(root: HostRoot, places: t.Sequence[_Place]) -> int | None:
    """The machine of the first program that tells; what is wrong with the others is said later."""
    for place in places:
        elf = read_elf(_head_of(root, place.path))
        if elf is not None:
            return elf.machine
    return None


def _head_of(root: HostRoot, path: str) -> bytes:
    """How a regular file begins; empty where it cannot be read."""
    try:
        outer = root.outer(path)
        return _head(outer) if stat.S_ISREG(os.stat(outer).st_mode) else b""
    except (HostError, OSError):
        return b""


def _head(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(HEAD)


def _part(root: HostRoot, place: _Place, label: str) -> Part:
    """Raises GpufleetError for a file that nobody could run or load, HostError for one that cannot be read."""
    called = f"{label}: {place.path[1:]}"
    try:
        outer = root.outer(place.path)
        status = os.stat(outer)
        head = _head(outer) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        raise GpufleetError(
            f"{called} is a link that leads nowhere. A link must lead to a file of the same directory tree; copy that"
            " with its links as they are."
        ) from None
    except HostError as error:
        raise HostError(f"{label}: {error}") from error
    except OSError as error:
        raise HostError(f"{called} cannot be read: {error.strerror}. {_advice(error)}") from error
    if head is None:
        raise GpufleetError(f"{called} is not a regular file. Give a directory with the toolkit's own files.")
    machine = _checked_machine(called, head, status.st_size)
    name = posixpath.basename(root.resolve(place.path)) if place.library else place.name
    # A library whose file is called like none goes by the name that programs ask for.
    name = name if name.startswith("lib") or not place.library else place.name
    soname = place.name if place.library and name != place.name else ""
    return Part(name, outer, stat.S_IMODE(status.st_mode) & 0o755, status.st_size, machine, soname)


def _advice(error: OSError) -> str:
    return "Run the task as root (become: true)." if isinstance(error, PermissionError) else "Check the file system."


def _checked_machine(called: str, head: bytes, size: int) -> int:
    """The machine that a file is for.  Raises GpufleetError if it is not a whole ELF file of 64 bits."""
    again = "Fetch or unpack the toolkit's packages again."
    if not head:
        raise GpufleetError(f"{called} is empty: it was not fetched to its end. {again}")
    if head[:2] == b"#!":
        raise GpufleetError(
            f"{called} is a script, say the wrapper of another installation. Give a directory with the files of the"
            " toolkit's packages, not an installed copy."
        )
    elf = read_elf(head)
    if elf is None:
        raise GpufleetError(f"{called} is no ELF file: it was damaged, or is something else. {again}")
    if elf.bits != 64:
        raise GpufleetError(f"{called} has {elf.bits} bits. Give the toolkit of a 64-bit machine; there is no other.")
    if size < stored_size(head):
        raise GpufleetError(
            f"{called} has {size} bytes instead of {stored_size(head)}: it was not fetched to its end. {again}"
        )
    return elf.machine


def _check_one_machine(parts: t.Sequence[Part], label: str) -> None:
    """Raises GpufleetError if ``parts`` are for several machines."""
    machines: dict[int, list[str]] = {}
    for part in parts:
        machines.setdefault(part.machine, []).append(part.name)
    if len(machines) > 1:
        kinds = "; ".join(f"{', '.join(names)} for {machine_name(machine)}" for machine, names in machines.items())
        raise GpufleetError(f"{label} holds files for several machines: {kinds}. Give the files of one of them only.")
