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

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, lock, remove_tree
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import elf as gpu_elf
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import layout as directory_layout
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest

_HOOK, _CLI, _CTK = toolkit_constants.PROGRAMS[1:]
(_CDI_HOOK,) = toolkit_constants.LATER_PROGRAMS


class Component(t.NamedTuple):
    """Files that belong together. ``optional`` are those of ``programs`` that older toolkits do not have."""

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
LIBRARY_FOLDERS = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")

SHELL = "/bin/sh"


class Part(t.NamedTuple):
    """A file to install.

    ``name``: its name in the installation, for a library that of its real file
    ``path``: its path for this process, with links resolved
    ``mode``: its permissions without set-user-ID and without write permission for others
    ``size``: bytes
    ``machine``: its CPU architecture, as e_machine of the ELF header
    ``soname``: the link that a library needs beside it, empty if the file itself has that name
    """

    name: str
    path: str
    mode: int
    size: int
    machine: int
    soname: str = ""


class _FoundFile(t.NamedTuple):
    """A file requested by ``name``, and its path below the root."""

    name: str
    path: str
    library: bool


def find_parts(root: hostfs.HostFS, components: t.Sequence[str] | None, label: str) -> list[Part]:
    """Return the files of ``components`` below ``root``. None: all that this version of the toolkit has.

    ``label`` is the name of the root in messages. Raises NvidiaError unless the files are a complete toolkit for one
    machine, HostError for a file that cannot be read.
    """
    selected = _selected_components(components)
    _check_directory(root, label)
    files, missing = _programs(root, selected, components is None)
    found, missing_libraries = _libraries(root, selected)
    files += found
    missing += missing_libraries
    if missing:
        raise errors.NvidiaError(
            f"{label} does not contain {', '.join(missing)}. Programs are searched in"
            f" {', '.join(folder[1:] for folder in PROGRAM_FOLDERS)}, libraries in"
            f" {', '.join(folder[1:] for folder in LIBRARY_FOLDERS)}. Unpack all packages of the toolkit into"
            f" one directory that this user can read, or set {errors.option:components} to those that it contains."
        )
    parts = [_part(root, file, label) for file in files]
    _check_one_machine(parts, label)
    return parts


def check_machine(parts: t.Sequence[Part | toolkit_manifest.PartDigest], host: hostfs.HostFS) -> None:
    """Raise NvidiaError if ``parts`` are for another machine than the shell of ``host``, which the wrappers need.

    A host without such a file is not checked: each new program runs once on a live host before it is used.
    """
    elf = gpu_elf.read_elf(_head_of(host, SHELL))
    if elf is None:
        return
    for part in parts:
        if part.machine != elf.machine:
            raise errors.NvidiaError(
                f"The toolkit's {part.name} is for {gpu_elf.machine_name(part.machine)}, but the host is"
                f" {gpu_elf.machine_name(elf.machine)}. Use the toolkit for {gpu_elf.machine_name(elf.machine)}."
            )


def _selected_components(components: t.Sequence[str] | None) -> list[Component]:
    """Return the components with these names. Raises NvidiaError for unknown names and for an empty list."""
    names = list(COMPONENTS) if components is None else components
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown or not names:
        problem = (
            f"{errors.option:components} contains unknown names: {', '.join(unknown)}"
            if unknown
            else f"{errors.option:components} is empty"
        )
        raise errors.NvidiaError(
            f"{problem}. Use some of {', '.join(COMPONENTS)}, or remove the option to install all."
        )
    return [component for name, component in COMPONENTS.items() if name in names]


def _check_directory(root: hostfs.HostFS, label: str) -> None:
    try:
        # This also fails if the directory may not be searched. Otherwise all its files would be reported as missing.
        os.stat(os.path.join(root.root, "."))
    except (FileNotFoundError, NotADirectoryError):
        raise errors.HostError(
            f"{label} is not a directory. Set a directory that contains usr/bin and usr/lib of the toolkit."
        ) from None
    except OSError as error:
        raise errors.HostError(f"{label} cannot be read: {error.strerror}. {_advice(error)}") from error


def _programs(
    root: hostfs.HostFS, selected: t.Sequence[Component], by_default: bool
) -> tuple[list[_FoundFile], list[str]]:
    """Return the programs that exist, and the names of required programs that do not."""
    files, missing = [], []
    for component in selected:
        for name in component.programs:
            path = _find_file(root, PROGRAM_FOLDERS, name)
            if path is not None:
                files.append(_FoundFile(name, path, library=False))
            elif name not in component.optional and not (by_default and name in toolkit_constants.LATER_PROGRAMS):
                missing.append(name)
    return files, missing


def _libraries(root: hostfs.HostFS, selected: t.Sequence[Component]) -> tuple[list[_FoundFile], list[str]]:
    """Return one file for each library that exists, and the names of missing libraries."""
    files, missing = [], []
    for name in (name for component in selected for name in component.libraries):
        path = _find_file(root, LIBRARY_FOLDERS, name)
        if path is None:
            missing.append(name)
        else:
            files.append(_FoundFile(name, path, library=True))
    return files, missing


def _find_file(root: hostfs.HostFS, folders: t.Sequence[str], name: str) -> str | None:
    return next((path for path in (f"{folder}/{name}" for folder in folders) if root.lexists(path)), None)


def _head_of(root: hostfs.HostFS, path: str) -> bytes:
    """Return the first bytes of a regular file. Empty if it cannot be read."""
    try:
        process_path = root.real_path(path)
        return _head(process_path) if stat.S_ISREG(os.stat(process_path).st_mode) else b""
    except (errors.HostError, OSError):
        return b""


def _head(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(gpu_elf.HEADER_BYTES)


def _part(root: hostfs.HostFS, file: _FoundFile, label: str) -> Part:
    """Return a part. Raises NvidiaError for a file that cannot be run or loaded, HostError for an unreadable one."""
    file_label = f"{label}: {file.path[1:]}"
    try:
        process_path = root.real_path(file.path)
        status = os.stat(process_path)
        head = _head(process_path) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        raise errors.NvidiaError(
            f"{file_label} is a link to a file that does not exist. Links must lead to files in the same directory"
            " tree. Copy the tree again with its links unchanged."
        ) from None
    except errors.HostError as error:
        raise errors.HostError(f"{label}: {error}") from error
    except OSError as error:
        raise errors.HostError(f"{file_label} cannot be read: {error.strerror}. {_advice(error)}") from error
    if head is None:
        raise errors.NvidiaError(
            f"{file_label} is not a regular file. Use a directory with the original files of the toolkit."
        )
    machine = _check_binary(file_label, head, status.st_size)
    name = posixpath.basename(root.resolve(file.path)) if file.library else file.name
    # A library has the name of its real file. If that name does not begin with "lib", the part has the name that
    # programs load.
    name = name if name.startswith("lib") or not file.library else file.name
    soname = file.name if file.library and name != file.name else ""
    return Part(name, process_path, stat.S_IMODE(status.st_mode) & 0o755, status.st_size, machine, soname)


def _advice(error: OSError) -> str:
    return "Run the task as root (become: true)." if isinstance(error, PermissionError) else "Check the file system."


def _check_binary(file_label: str, head: bytes, size: int) -> int:
    """Return the machine that a file is for. Raises NvidiaError unless it is a complete 64-bit ELF file."""
    if head[:2] == b"#!":
        raise errors.NvidiaError(
            f"{file_label} is a script, for example the wrapper of another installation. Use the files of the toolkit's"
            " packages, not an installed copy."
        )
    elf = gpu_elf.read_elf(head)
    if elf is None or elf.bits != 64 or size < gpu_elf.minimum_size(head):
        raise errors.NvidiaError(
            f"{file_label} is not a complete 64-bit ELF file. Fetch or unpack the toolkit's packages again."
        )
    return elf.machine


def _check_one_machine(parts: t.Sequence[Part], label: str) -> None:
    """Raise NvidiaError if ``parts`` are for several machines."""
    machines: dict[int, list[str]] = {}
    for part in parts:
        machines.setdefault(part.machine, []).append(part.name)
    if len(machines) > 1:
        kinds = "; ".join(
            f"{', '.join(names)} for {gpu_elf.machine_name(machine)}" for machine, names in machines.items()
        )
        raise errors.NvidiaError(
            f"{label} contains files for several machines: {kinds}. Use the files for one machine."
        )


class Source(t.NamedTuple):
    """The parts, the files that they come from, and how to get their contents.

    ``sources`` are the files by path, for the manifest. ``fetch`` returns the paths of the parts by name, as paths of
    this process.
    """

    parts: tuple[toolkit_manifest.PartDigest, ...]
    sources: t.Mapping[str, toolkit_manifest.FileDigest]
    fetch: t.Callable[[], t.Mapping[str, str]]


class ControllerSource(t.NamedTuple):
    """A source on the controller: the parts, and an archive with their contents if the controller has sent it."""

    parts: tuple[toolkit_manifest.PartDigest, ...]
    archive: str | None = None


class NotSentError(errors.NvidiaError):
    """The error for parts whose contents are needed, but not sent by the controller yet."""


class SourceReader:
    """A reader of one source. close() removes the unpacked files.

    ``before`` is the current installation. With ``thorough`` every file is read, even if its status has not changed.
    """

    def __init__(self, host: hostfs.HostFS, before: toolkit_manifest.Manifest | None, *, thorough: bool) -> None:
        self._host = host
        self._known: t.Mapping[str, toolkit_manifest.FileDigest] = {} if before is None else before.sources
        self._before = before
        self._thorough = thorough
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Remove the unpacked files."""
        self._stack.close()

    def from_tree(self, src: str, components: t.Sequence[str] | None) -> Source:
        """Return the source in a directory tree on the host. Raises NvidiaError."""
        process_path = self._host.real_path(src)
        if not os.path.isdir(process_path):
            raise errors.HostError(
                f"{errors.option:src} {src} is not a directory on the host. Set a directory that contains usr/bin and"
                " usr/lib."
            )
        return self._read_tree(hostfs.HostFS.of(process_path, live=False), components, src)

    def from_packages(
        self, files: t.Sequence[str], components: t.Sequence[str] | None, unpack: t.Callable[[list[str], str], None]
    ) -> Source:
        """Return the source in packages on the host.

        ``unpack`` gets the packages and a directory as paths of this process.
        """
        sources: dict[str, toolkit_manifest.FileDigest] = {}
        process_paths = {path: self._host.real_path(path) for path in files}
        for path, process_path in process_paths.items():
            try:
                sources[path] = toolkit_manifest.digest_file(process_path, self._known.get(path), self._thorough)
            except OSError as error:
                raise errors.os_error(path, "read", error) from error

        def unpacked() -> Source:
            folder = self._folder()
            unpack([process_paths[path] for path in files], folder)
            return self._read_tree(hostfs.HostFS.of(folder, live=False), components, "The toolkit in the packages")

        before = self._before
        if before is not None and before.components == components and _digests(before.sources) == _digests(sources):
            return Source(before.parts, sources, lambda: unpacked().fetch())
        return unpacked()._replace(sources=sources)

    def from_controller(self, sent: ControllerSource) -> Source:
        """Return the source on the controller. ``fetch`` raises NotSentError unless the controller has sent it."""

        def fetch() -> dict[str, str]:
            if sent.archive is None:
                raise NotSentError("The controller has not sent the toolkit.")
            return _extract(sent.archive, [part.name for part in sent.parts], self._folder())

        return Source(sent.parts, {}, fetch)

    def _folder(self) -> str:
        """Return an empty temporary directory of this machine, which close() removes.

        An offline tree may have no directory for temporary files.
        """
        try:
            folder = tempfile.mkdtemp(prefix=f"{lock.TOOLKIT_PREFIX}{os.getpid()}-")
        except OSError as error:
            raise errors.os_error(f"A temporary directory in {tempfile.gettempdir()}", "created", error) from error
        self._stack.callback(remove_tree.remove_tree_if_possible, folder)
        return folder

    def _read_tree(self, root: hostfs.HostFS, components: t.Sequence[str] | None, label: str) -> Source:
        parts, sources, paths = [], {}, {}
        for part in find_parts(root, components, label):
            try:
                content = toolkit_manifest.digest_file(part.path, self._known.get(part.path), self._thorough)
            except OSError as error:
                raise errors.os_error(part.path, "read", error) from error
            parts.append(
                toolkit_manifest.PartDigest(part.name, content.sha256, part.mode, part.size, part.machine, part.soname)
            )
            sources[part.path] = content
            paths[part.name] = part.path
        return Source(tuple(parts), sources, lambda: paths)


def _digests(sources: t.Mapping[str, toolkit_manifest.FileDigest]) -> dict[str, str]:
    return {path: known.sha256 for path, known in sources.items()}


def _extract(archive: str, names: t.Sequence[str], folder: str) -> dict[str, str]:
    """Write the members ``names`` of a tar archive to ``folder``, each a regular file. Returns their paths by name."""
    # Only a source on the controller needs this import.
    import tarfile  # noqa: PLC0415

    paths = {}
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                stream = tar.extractfile(name)
                if stream is None:
                    raise errors.HostError(
                        f"The archive from the controller has no regular file {name}. Run the task again."
                    )
                paths[name] = os.path.join(folder, name)
                with stream:
                    toolkit_manifest.create(paths[name], 0o600, iter(functools.partial(stream.read, 1 << 20), b""))
    except (tarfile.TarError, KeyError) as error:
        raise errors.HostError(
            f"The archive from the controller cannot be read: {error}. Run the task again."
        ) from error
    except OSError as error:
        raise errors.os_error(folder, "written", error) from error
    return paths


def version_of(source: Source) -> str | None:
    """Return the version as far as it is known without running a program."""
    return directory_layout.version_in(source.parts)


def name_of(source: Source, spec: directory_layout.DirectorySpec, version: str | None = None) -> str:
    """Return the directory name of a version: its version number and a digest of everything that defines it."""
    return f"{version or version_of(source) or 'unknown'}-{directory_layout.content_digest(source.parts, spec)[:12]}"
