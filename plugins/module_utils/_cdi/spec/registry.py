# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the specifications of a host, and the one that applies if several define a device.

Rules of the CDI library: a later directory has precedence over an earlier one, for each device. File names have no
effect. If two files of one directory define a device, the device does not exist. A directory that is a link is not
read.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

# Suffixes of regular files directly in a directory, case-sensitive. A file may also have such a name without a stem.
SUFFIXES = (".json", ".yaml")

# The effect of another file of the same kind on the file of this collection.
COLLIDES, SHADOWS, SHADOWED, ADDS, SKIPPED = "collides", "shadows", "shadowed", "adds", "skipped"
# Effects that change what containers get from the file of this collection.
HARMFUL = (COLLIDES, SHADOWS, ADDS)


class SpecificationFile(t.NamedTuple):
    """A file that engines read. They skip the whole file if it has ``errors``, which are messages.

    ``devices`` are qualified names, with the kind, as containers request them.
    """

    path: str
    kind: str
    devices: tuple[str, ...]
    errors: tuple[str, ...] = ()


class Resolution(t.NamedTuple):
    """The combined result of all files.

    ``devices`` are the files that define the devices, by device. ``shadowed`` are files whose definitions have no
    effect, and ``unresolvable`` are files of one directory whose definitions exclude each other.
    """

    files: tuple[SpecificationFile, ...]
    devices: dict[str, str]
    shadowed: dict[str, tuple[str, ...]]
    unresolvable: dict[str, tuple[str, ...]]

    def warnings(self) -> list[str]:
        """Return the problems of the files as messages."""
        messages = [f"Engines skip {file.path}. {' '.join(file.errors)}" for file in self.files if file.errors]
        for paths, names in grouped(self.unresolvable).items():
            messages.append(
                f"{' and '.join(paths)} define the same devices in one directory, so engines find none of them:"
                f" {core_text.listed(names)}. Remove all of these files but one."
            )
        for (path, *others), names in grouped(
            {name: (self.devices[name], *paths) for name, paths in self.shadowed.items()}
        ).items():
            messages.append(f"{path} has precedence over {' and '.join(others)} for {core_text.listed(names)}.")
        return messages


class ConflictingSpec(t.NamedTuple):
    """Another file of the same kind. ``devices`` are in both files. ``effect`` is one of COLLIDES to SKIPPED, above."""

    path: str
    effect: str
    devices: tuple[str, ...]
    message: str


def is_loaded_path(path: str, folders: t.Sequence[str] = core_constants.CDI_SPEC_DIRS) -> bool:
    """Return whether engines would read a file with this path."""
    return path.endswith(SUFFIXES) and posixpath.dirname(path) in folders


def resolve(files: t.Mapping[str, t.Any], folders: t.Sequence[str] = core_constants.CDI_SPEC_DIRS) -> Resolution:
    """Return how engines combine ``files``: parsed data, or the NvidiaError of reading it, by path.

    ``folders`` are in the engine's order. The last one has precedence.
    """
    read = tuple(_read(path, files[path]) for path in _in_order(files, folders))
    files_by_device: dict[str, list[str]] = {}
    for file in read:
        for name in () if file.errors else file.devices:
            files_by_device.setdefault(name, []).append(file.path)
    devices: dict[str, str] = {}
    shadowed: dict[str, tuple[str, ...]] = {}
    unresolvable: dict[str, tuple[str, ...]] = {}
    for name, paths in files_by_device.items():
        parents = [posixpath.dirname(path) for path in paths]
        colliding = tuple(path for path, folder in zip(paths, parents) if parents.count(folder) > 1)
        if colliding:
            unresolvable[name] = colliding
            continue
        devices[name] = paths[-1]
        if paths[:-1]:
            shadowed[name] = tuple(paths[:-1])
    return Resolution(read, devices, shadowed, unresolvable)


def conflicting_specs(files: t.Mapping[str, t.Any], own: str, document: t.Mapping[str, t.Any]) -> list[ConflictingSpec]:
    """Return the other files that describe devices of the same kind as ``document``, which has the path ``own``.

    Files of another kind never conflict, even with the same vendor. If engines do not read the path ``own``, the
    result is empty.
    """
    if not is_loaded_path(own):
        return []
    own_file, found = _read(own, document), []
    for path in _in_order(files, core_constants.CDI_SPEC_DIRS):
        other = _read(path, files[path])
        if path != own and other.kind and other.kind == own_file.kind:
            found.append(_conflict(own_file, other))
    return found


def _conflict(own: SpecificationFile, other: SpecificationFile) -> ConflictingSpec:
    shared = tuple(name for name in other.devices if name in own.devices)
    rest = [name for name in other.devices if name not in own.devices]
    own_rank, rank = (_rank(file.path, core_constants.CDI_SPEC_DIRS) for file in (own, other))
    if other.errors:
        effect, consequence = SKIPPED, "Engines skip it, because it has errors."
    elif shared and rank == own_rank:
        effect = COLLIDES
        consequence = f"It is in the same directory as {own.path}, so engines find none of {core_text.listed(shared)}."
    elif shared and rank > own_rank:
        effect, consequence = SHADOWS, f"It has precedence over {own.path} for {core_text.listed(shared)}."
    elif rest:
        effect = ADDS
        consequence = f"Its devices {core_text.listed(rest)} stay usable, and nothing updates them."
    else:
        effect, consequence = SHADOWED, f"{own.path} has precedence for all of its devices."
    return ConflictingSpec(other.path, effect, shared, f"{other.path} also describes {other.kind}. {consequence}")


def _read(path: str, data: t.Any) -> SpecificationFile:
    if isinstance(data, errors.NvidiaError):
        return SpecificationFile(path, "", (), (str(data),))
    result = cdi_validate.validate(data)
    kind = result.document.get("kind", "")
    names = [device.get("name", "") for device in result.document.get("devices", ())]
    # A name that occurs twice is an error, but only one device.
    devices = tuple(dict.fromkeys(cdi_schema.qualified_name(kind, name) for name in names))
    return SpecificationFile(path, kind, devices, tuple(str(problem) for problem in result.errors))


def _in_order(files: t.Iterable[str], folders: t.Sequence[str]) -> list[str]:
    return sorted(
        (path for path in files if is_loaded_path(path, folders)), key=lambda path: (_rank(path, folders), path)
    )


def _rank(path: str, folders: t.Sequence[str]) -> int:
    return list(folders).index(posixpath.dirname(path))


def grouped(by_name: t.Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """Return the names for each group of paths, so that one message covers all of them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, paths in by_name.items():
        groups.setdefault(paths, []).append(name)
    return groups


# The limit for one directory. A host usually has two or three files.
MAX_FILES = 500


def specification_paths(host: hostfs.HostFS) -> list[str]:
    """Return the files that engines read as specifications, in the engines' order.

    Each path starts with the usual name of its directory. Raises HostError for a directory that cannot be read or
    contains too many files.
    """
    paths: list[str] = []
    for folder in core_constants.CDI_SPEC_DIRS:
        # The library uses Go's filepath.Walk, which does not follow links. But it opens files through links.
        if is_link(host, folder):
            continue
        named = [f"{folder}/{name}" for name in host.entries(folder) if name.endswith(SUFFIXES)]
        found = [path for path in named if not is_directory(host, path)]
        if len(found) > MAX_FILES:
            raise errors.HostError(
                f"{folder} contains {len(found)} CDI specifications, more than the limit of {MAX_FILES}. Remove those"
                " that are not used."
            )
        paths += found
    check_size(host, paths)
    return paths


def check_size(host: hostfs.HostFS, paths: t.Sequence[str]) -> None:
    """Raise HostError if the files are too large in total. The parser needs seconds for each MiB."""
    sizes = [_size(host, path) for path in paths]
    if sum(size for size in sizes if size <= hostfs.CDI_SPEC_BYTES) > hostfs.CDI_SPEC_BYTES:
        raise errors.HostError(
            f"The CDI specifications in {' and '.join(sorted({*map(posixpath.dirname, paths)}))} are larger than"
            f" {hostfs.CDI_SPEC_BYTES >> 20} MiB in total, so none of them was read. Remove those that are not used."
        )


def read_specifications(host: hostfs.HostFS, known: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Return the data of each file of specification_paths(), or the NvidiaError of reading it.

    known: data by the SHA-256 (hexadecimal) of the content that it was parsed from. An unchanged file needs no parser.
    Newly parsed data is added.

    Raises MissingPackageError if a file needs PyYAML and PyYAML is missing. Raises HostError like
    specification_paths().
    """
    known = {} if known is None else known
    return {path: read_specification(host, path, known) for path in specification_paths(host)}


def canonical(host: hostfs.HostFS, path: str) -> str:
    """Return ``path`` with the usual name of its directory: /var/run/cdi/x for /run/cdi/x if both are one directory.

    Any other path is returned unchanged. Raises HostError for a loop of links.
    """
    folder, name = posixpath.split(path)
    if folder not in core_constants.CDI_SPEC_DIRS:
        real = host.resolve(folder)
        for usual in core_constants.CDI_SPEC_DIRS:
            if not is_link(host, usual) and host.resolve(usual) == real:
                return posixpath.join(usual, name)
    return path


def read_specification(host: hostfs.HostFS, path: str, known: dict[str, t.Any]) -> t.Any:
    """Return the data of one file, like read_specifications(), from any path."""
    try:
        content = host.read(path, hostfs.CDI_SPEC_BYTES)
        if content is None:
            raise errors.HostError(f"{path} is a broken link. Remove it, or restore its target.")
        digest = hashlib.sha256(content).hexdigest()
        if digest not in known:
            known[digest] = _parsed(path, content)
        return known[digest]
    except errors.MissingPackageError:
        raise
    except errors.NvidiaError as error:
        return error


def _parsed(path: str, content: bytes) -> t.Any:
    # Known files do not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document  # noqa: PLC0415

    return yaml_document.parse(path, content)


def _size(host: hostfs.HostFS, path: str) -> int:
    try:
        return os.stat(host.real_path(path)).st_size
    except (errors.HostError, OSError):
        # read_specification() reports the error.
        return 0


def is_link(host: hostfs.HostFS, path: str) -> bool:
    """Return whether ``path`` is a link. Engines do not read a linked directory."""
    return os.path.islink(host.real_path(path, last=False))


def is_directory(host: hostfs.HostFS, path: str) -> bool:
    """Return whether ``path`` is a directory, and not a link to one."""
    return os.path.isdir(host.real_path(path, last=False)) and not is_link(host, path)
