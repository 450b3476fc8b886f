# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read a toolkit from packages or a directory, on the host or from the controller."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import stat
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, hostfs, scratch
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import elf as gpu_elf
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import directory_layout
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest

_HOOK, _CLI, _CTK = toolkit_constants.PROGRAMS[1:]
(_CDI_HOOK,) = toolkit_constants.LATER_PROGRAMS


class Component(t.NamedTuple):
    """Files that belong together; ``optional``: those of ``programs`` that older toolkits do not have."""

    programs: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


COMPONENTS = {
    "runtime": Component(
        (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values()),
        optional=tuple(core_constants.MODE_PROGRAMS.values()),
    ),
    "hook": Component((_HOOK,)),
    "cli": Component((_CLI,), ("libnvidia-container.so.1", "libnvidia-container-go.so.1")),
    "ctk": Component((_CTK,)),
    "cdi_hook": Component((_CDI_HOOK,)),
}

PROGRAM_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")
# Where multiarch distributions have the libraries of a machine.
_MULTIARCH = {gpu_elf.X86_64: "/usr/lib/x86_64-linux-gnu", gpu_elf.AARCH64: "/usr/lib/aarch64-linux-gnu"}

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


class BinaryInfo(t.Protocol):
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


def find_parts(root: hostfs.HostFS, components: t.Sequence[str] | None, label: str) -> list[Part]:
    """The files of ``components`` below ``root``; None: all, as far as the toolkit's version has them.

    ``label`` is what messages call the root.  Raises NvidiaError for what is not a whole toolkit for one machine,
    HostError for what cannot be read.
    """
    wanted = _wanted(components)
    _check_directory(root, label)
    places, missing = _programs(root, wanted, components is None)
    found, lacking = _libraries(root, wanted, _machine_of(root, places))
    places += found
    missing += lacking
    if missing:
        raise errors.NvidiaError(
            f"{label} lacks {', '.join(missing)}. Programs are looked for in"
            f" {', '.join(folder[1:] for folder in PROGRAM_FOLDERS)}, libraries in"
            f" {', '.join(folder[1:] for folder in _library_folders(None))}. Unpack all packages of the toolkit into"
            " one directory and give that, or name in components only what it holds."
        )
    parts = [_part(root, place, label) for place in places]
    _check_one_machine(parts, label)
    return parts


def check_machine(parts: t.Sequence[BinaryInfo], host: hostfs.HostFS) -> None:
    """Raises NvidiaError if ``parts`` cannot run on ``host``, HostError if that has no shell for the wrappers.

    The shell tells the machine: a kernel may run programs of two.
    """
    if not host.exists(SHELL):
        if host.live:
            raise errors.HostError(f"This host has no {SHELL}, which the toolkit's wrappers need. Install a shell.")
        return
    elf = gpu_elf.read_elf(_head_of(host, SHELL))
    machine = elf.machine if elf is not None else None
    if machine is None and host.live:
        machine = gpu_elf.KERNEL_MACHINES.get(os.uname().machine)
    if machine is None:
        return
    for part in parts:
        if part.machine != machine:
            raise errors.NvidiaError(
                f"The toolkit's {part.name} is for {gpu_elf.machine_name(part.machine)}, but the host is"
                f" {gpu_elf.machine_name(machine)}. Give the toolkit for {gpu_elf.machine_name(machine)}."
            )


def _wanted(components: t.Sequence[str] | None) -> list[Component]:
    """Raises NvidiaError for names that there are not, or none at all."""
    names = list(COMPONENTS) if components is None else components
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown or not names:
        problem = f"components has no {', '.join(unknown)}" if unknown else "components is empty"
        raise errors.NvidiaError(f"{problem}. Give some of {', '.join(COMPONENTS)}, or leave it out for all.")
    return [component for name, component in COMPONENTS.items() if name in names]


def _check_directory(root: hostfs.HostFS, label: str) -> None:
    try:
        # This tells, too, whether it may be searched: else everything in it would pass for missing.
        os.stat(os.path.join(root.root, "."))
    except (FileNotFoundError, NotADirectoryError):
        raise errors.HostError(
            f"{label} is not a directory. Give the directory that holds usr/bin and usr/lib of the toolkit."
        ) from None
    except OSError as error:
        raise errors.HostError(f"{label} cannot be read: {error.strerror}. {_advice(error)}") from error


def _programs(root: hostfs.HostFS, wanted: t.Sequence[Component], by_default: bool) -> tuple[list[_Place], list[str]]:
    """Those that are there, and the names of those that should be."""
    places, missing = [], []
    for component in wanted:
        for name in component.programs:
            path = _first(root, PROGRAM_FOLDERS, name)
            if path is not None:
                places.append(_Place(name, path, library=False))
            elif name not in component.optional and not (by_default and name in toolkit_constants.LATER_PROGRAMS):
                missing.append(name)
    return places, missing


def _libraries(
    root: hostfs.HostFS, wanted: t.Sequence[Component], machine: int | None
) -> tuple[list[_Place], list[str]]:
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


def _first(root: hostfs.HostFS, folders: t.Sequence[str], name: str) -> str | None:
    return next((path for path in (f"{folder}/{name}" for folder in folders) if root.lexists(path)), None)


def _machine_of(root: hostfs.HostFS, places: t.Sequence[_Place]) -> int | None:
    """The machine of the first program that tells; what is wrong with the others is said later."""
    for place in places:
        elf = gpu_elf.read_elf(_head_of(root, place.path))
        if elf is not None:
            return elf.machine
    return None


def _head_of(root: hostfs.HostFS, path: str) -> bytes:
    """How a regular file begins; empty where it cannot be read."""
    try:
        outer = root.real_path(path)
        return _head(outer) if stat.S_ISREG(os.stat(outer).st_mode) else b""
    except (errors.HostError, OSError):
        return b""


def _head(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(gpu_elf.HEAD)


def _part(root: hostfs.HostFS, place: _Place, label: str) -> Part:
    """Raises NvidiaError for a file that nobody could run or load, HostError for one that cannot be read."""
    called = f"{label}: {place.path[1:]}"
    try:
        outer = root.real_path(place.path)
        status = os.stat(outer)
        head = _head(outer) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        raise errors.NvidiaError(
            f"{called} is a link that leads nowhere. A link must lead to a file of the same directory tree; copy that"
            " with its links as they are."
        ) from None
    except errors.HostError as error:
        raise errors.HostError(f"{label}: {error}") from error
    except OSError as error:
        raise errors.HostError(f"{called} cannot be read: {error.strerror}. {_advice(error)}") from error
    if head is None:
        raise errors.NvidiaError(f"{called} is not a regular file. Give a directory with the toolkit's own files.")
    machine = _checked_machine(called, head, status.st_size)
    name = posixpath.basename(root.resolve(place.path)) if place.library else place.name
    # A library whose file is called like none goes by the name that programs ask for.
    name = name if name.startswith("lib") or not place.library else place.name
    soname = place.name if place.library and name != place.name else ""
    return Part(name, outer, stat.S_IMODE(status.st_mode) & 0o755, status.st_size, machine, soname)


def _advice(error: OSError) -> str:
    return "Run the task as root (become: true)." if isinstance(error, PermissionError) else "Check the file system."


def _checked_machine(called: str, head: bytes, size: int) -> int:
    """The machine that a file is for.  Raises NvidiaError if it is not a whole ELF file of 64 bits."""
    again = "Fetch or unpack the toolkit's packages again."
    if not head:
        raise errors.NvidiaError(f"{called} is empty: it was not fetched to its end. {again}")
    if head[:2] == b"#!":
        raise errors.NvidiaError(
            f"{called} is a script, say the wrapper of another installation. Give a directory with the files of the"
            " toolkit's packages, not an installed copy."
        )
    elf = gpu_elf.read_elf(head)
    if elf is None:
        raise errors.NvidiaError(f"{called} is no ELF file: it was damaged, or is something else. {again}")
    if elf.bits != 64:
        raise errors.NvidiaError(
            f"{called} has {elf.bits} bits. Give the toolkit of a 64-bit machine; there is no other."
        )
    if size < gpu_elf.stored_size(head):
        raise errors.NvidiaError(
            f"{called} has {size} bytes instead of {gpu_elf.stored_size(head)}: it was not fetched to its end. {again}"
        )
    return elf.machine


def _check_one_machine(parts: t.Sequence[Part], label: str) -> None:
    """Raises NvidiaError if ``parts`` are for several machines."""
    machines: dict[int, list[str]] = {}
    for part in parts:
        machines.setdefault(part.machine, []).append(part.name)
    if len(machines) > 1:
        kinds = "; ".join(
            f"{', '.join(names)} for {gpu_elf.machine_name(machine)}" for machine, names in machines.items()
        )
        raise errors.NvidiaError(
            f"{label} holds files for several machines: {kinds}. Give the files of one of them only."
        )


class Source(t.NamedTuple):
    """The parts, the files that they are made of, and how to get their contents.

    ``sources`` are the files by their paths, for the manifest.  ``fetch`` returns the paths of the parts by their
    names, for this process.
    """

    parts: tuple[toolkit_manifest.PartDigest, ...]
    sources: t.Mapping[str, toolkit_manifest.Known]
    fetch: t.Callable[[], t.Mapping[str, str]]


class ControllerSource(t.NamedTuple):
    """What the controller offers: the parts, and an archive with their contents once it was asked for it."""

    parts: tuple[toolkit_manifest.PartDigest, ...]
    archive: str | None = None


class NotSentError(errors.NvidiaError):
    """The contents of parts are needed, and the controller still has them."""


class SourceReader:
    """Reads one source; close() removes what was unpacked for it.

    ``before`` is the current installation.  With ``thorough`` every file is read, whatever its status says.
    """

    def __init__(self, host: hostfs.HostFS, before: toolkit_manifest.Manifest | None, *, thorough: bool) -> None:
        self._host = host
        self._known: t.Mapping[str, toolkit_manifest.Known] = {} if before is None else before.sources
        self._before = before
        self._thorough = thorough
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Remove what was unpacked."""
        self._stack.close()

    def root(self, src: str, components: t.Sequence[str] | None) -> Source:
        """A directory tree on the host.  Raises NvidiaError."""
        outer = self._host.real_path(src)
        if not os.path.isdir(outer):
            raise errors.HostError(
                f"src {src} is not a directory on the host. Give the one that holds usr/bin and usr/lib."
            )
        return self._tree(hostfs.HostFS.of(outer, live=False), components, src)

    def packages(
        self, files: t.Sequence[str], components: t.Sequence[str] | None, unpack: t.Callable[[list[str], str], None]
    ) -> Source:
        """Packages on the host, which ``unpack`` puts into a folder; both by paths for this process."""
        sources: dict[str, toolkit_manifest.Known] = {}
        outers = {path: self._host.real_path(path) for path in files}
        for path, outer in outers.items():
            try:
                sources[path] = toolkit_manifest.known(outer, self._known.get(path), self._thorough)
            except OSError as error:
                raise atomic_write.os_error(path, "read", error) from error

        def unpacked() -> Source:
            folder = self._folder()
            unpack([outers[path] for path in files], folder)
            return self._tree(hostfs.HostFS.of(folder, live=False), components, "What the packages hold")

        before = self._before
        if before is not None and before.components == components and _digests(before.sources) == _digests(sources):
            return Source(before.parts, sources, lambda: unpacked().fetch())
        return unpacked()._replace(sources=sources)

    def sent(self, sent: ControllerSource) -> Source:
        """What the controller has.  Raises NotSentError from ``fetch`` unless it was sent."""

        def fetch() -> dict[str, str]:
            if sent.archive is None:
                raise NotSentError("The controller has not sent the toolkit.")
            return _extract(sent.archive, [part.name for part in sent.parts], self._folder())

        return Source(sent.parts, {}, fetch)

    def _folder(self) -> str:
        """An empty one of this machine, which goes with this reader; a tree may have none for such purposes."""
        try:
            return self._stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{scratch.PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise atomic_write.os_error(
                f"A directory for the toolkit in {tempfile.gettempdir()}", "made", error
            ) from error

    def _tree(self, root: hostfs.HostFS, components: t.Sequence[str] | None, label: str) -> Source:
        parts, sources, paths = [], {}, {}
        for part in find_parts(root, components, label):
            try:
                content = toolkit_manifest.known(part.path, self._known.get(part.path), self._thorough)
            except OSError as error:
                raise atomic_write.os_error(part.path, "read", error) from error
            parts.append(
                toolkit_manifest.PartDigest(part.name, content.sha256, part.mode, part.size, part.machine, part.soname)
            )
            sources[part.path] = content
            paths[part.name] = part.path
        return Source(tuple(parts), sources, lambda: paths)


def _digests(sources: t.Mapping[str, toolkit_manifest.Known]) -> dict[str, str]:
    return {path: known.sha256 for path, known in sources.items()}


def _extract(archive: str, names: t.Sequence[str], folder: str) -> dict[str, str]:
    """The members ``names`` of a tar archive, each a plain file."""
    # Only what the controller sends comes in one.
    import tarfile  # noqa: PLC0415

    paths = {}
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                stream = tar.extractfile(name)
                if stream is None:
                    raise errors.HostError(f"{name} in what the controller sent is no file.")
                paths[name] = os.path.join(folder, name)
                with stream:
                    toolkit_manifest.create(paths[name], 0o600, iter(functools.partial(stream.read, 1 << 20), b""))
    except (tarfile.TarError, KeyError) as error:
        raise errors.HostError(f"What the controller sent cannot be read: {error}. Run this again.") from error
    except OSError as error:
        raise atomic_write.os_error(folder, "written", error) from error
    return paths


def version_of(source: Source) -> str | None:
    """The version as far as it is known without running anything."""
    return directory_layout.version_in(source.parts)


def name_of(source: Source, design: directory_layout.DirectorySpec, version: str | None = None) -> str:
    """How the directory of a version is called: after the version, and after all that makes it what it is."""
    return f"{version or version_of(source) or 'unknown'}-{directory_layout.content_digest(source.parts, design)[:12]}"
