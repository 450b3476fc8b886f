# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what engines make of all CDI specifications in their folders together: which file a device
# comes from, and which devices none.  The later folder goes before the earlier one, device by device; names of files do
# not matter; two files of one folder that define one device take it away, even if a later folder has it too.  A folder
# that is itself a link is not read at all, which whoever lists the files has to see to.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import qualified_name
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import SPECIFICATION_FOLDERS

# Of a regular file directly in a folder, in this case; one whose whole name this is counts as well.
SUFFIXES = (".json", ".yaml")

# What another file of the same kind means for ours.
COLLIDES, SHADOWS, SHADOWED, ADDS, SKIPPED = "collides", "shadows", "shadowed", "adds", "skipped"
# Those because of which containers do not get what our file says.
HARMFUL = (COLLIDES, SHADOWS, ADDS)


class SpecificationFile(t.NamedTuple):
    """A file that engines read; with ``faults``, sentences, they skip it as a whole.

    ``devices`` are names with their kind in front, as containers ask for them.
    """

    path: str
    kind: str
    devices: tuple[str, ...]
    faults: tuple[str, ...] = ()


class Resolution(t.NamedTuple):
    """What all files together amount to.

    ``devices`` has the file that each device comes from, ``shadowed`` the files that define it for nothing, and
    ``unresolvable`` the files of one folder that take it from each other.
    """

    files: tuple[SpecificationFile, ...]
    devices: dict[str, str]
    shadowed: dict[str, tuple[str, ...]]
    unresolvable: dict[str, tuple[str, ...]]

    def warnings(self) -> list[str]:
        """What is wrong with the files, in sentences."""
        said = [f"{file.path} is skipped by engines. {' '.join(file.faults)}" for file in self.files if file.faults]
        for paths, names in _grouped(self.unresolvable).items():
            said.append(
                f"{' and '.join(paths)} in one folder define the same devices, so that engines find none of them:"
                f" {few(names)}. Remove all of these files but one."
            )
        for (winner, *losers), names in _grouped(
            {name: (self.devices[name], *paths) for name, paths in self.shadowed.items() if name in self.devices}
        ).items():
            said.append(f"{winner} goes before {' and '.join(losers)} for {few(names)}.")
        return said


class Rival(t.NamedTuple):
    """Another file of our kind; ``devices`` are those that both define, ``effect`` is one of the words above."""

    path: str
    effect: str
    devices: tuple[str, ...]
    sentence: str


def counts(path: str, folders: t.Sequence[str] = SPECIFICATION_FOLDERS) -> bool:
    """Whether engines read a file of this path, if it is a file."""
    return path.endswith(SUFFIXES) and posixpath.dirname(path) in folders


def resolve(files: t.Mapping[str, t.Any], folders: t.Sequence[str] = SPECIFICATION_FOLDERS) -> Resolution:
    """What engines make of ``files``: by path, the parsed data, or the GpufleetError of reading it.

    ``folders`` come in the engine's order, the one that goes before all others last.
    """
    read = tuple(_read(path, files[path]) for path in _in_order(files, folders))
    definers: dict[str, list[str]] = {}
    for file in read:
        for name in () if file.faults else file.devices:
            definers.setdefault(name, []).append(file.path)
    devices: dict[str, str] = {}
    shadowed: dict[str, tuple[str, ...]] = {}
    unresolvable: dict[str, tuple[str, ...]] = {}
    for name, paths in definers.items():
        homes = [posixpath.dirname(path) for path in paths]
        colliding = tuple(path for path, home in zip(paths, homes) if homes.count(home) > 1)
        if colliding:
            unresolvable[name] = colliding
            continue
        devices[name] = paths[-1]
        if paths[:-1]:
            shadowed[name] = tuple(paths[:-1])
    return Resolution(read, devices, shadowed, unresolvable)


def rivals(files: t.Mapping[str, t.Any], ours: str, document: t.Mapping[str, t.Any]) -> list[Rival]:
    """The files beside ``ours``, where ``document`` stands or will stand, that describe devices of the same kind.

    Files of other kinds, be they of the same vendor, are nobody's rivals.  A path of ours that engines do not read has
    none.
    """
    if not counts(ours):
        return []
    our_devices, found = _read(ours, document), []
    for path in _in_order(files, SPECIFICATION_FOLDERS):
        other = _read(path, files[path])
        if path != ours and other.kind and other.kind == our_devices.kind:
            found.append(_rival(our_devices, other))
    return found


def _rival(ours: SpecificationFile, other: SpecificationFile) -> Rival:
    own = frozenset(ours.devices)
    shared = tuple(name for name in other.devices if name in own)
    rest = [name for name in other.devices if name not in own]
    our_rank, rank = (_rank(file.path, SPECIFICATION_FOLDERS) for file in (ours, other))
    begin = f"{other.path} describes {other.kind} too"
    if other.faults:
        return Rival(other.path, SKIPPED, shared, f"{begin}; engines skip it, as long as it is faulty.")
    if shared and rank == our_rank:
        sentence = f"{begin}, in the same folder as {ours.path}: engines then find none of {few(shared)}."
        return Rival(other.path, COLLIDES, shared, sentence)
    if shared and rank > our_rank:
        sentence = f"{begin}, and goes before {ours.path}: for {few(shared)} engines do not look at ours."
        return Rival(other.path, SHADOWS, shared, sentence)
    if rest:
        sentence = f"{begin}: its devices {few(rest)} stay usable as they are there, however old that is."
        return Rival(other.path, ADDS, shared, sentence)
    return Rival(other.path, SHADOWED, shared, f"{begin}; engines look at {ours.path} for all of its devices.")


def _read(path: str, data: t.Any) -> SpecificationFile:
    if isinstance(data, GpufleetError):
        return SpecificationFile(path, "", (), (str(data),))
    judgement = judge(data)
    kind = judgement.document.get("kind", "")
    names = [device.get("name", "") for device in judgement.document.get("devices", ())]
    # A name that stands twice is a fault, but one device.
    devices = tuple(dict.fromkeys(qualified_name(kind, name) for name in names))
    return SpecificationFile(path, kind, devices, tuple(str(problem) for problem in judgement.errors))


def _in_order(files: t.Iterable[str], folders: t.Sequence[str]) -> list[str]:
    """Those that engines read, in the order in which they do."""
    return sorted((path for path in files if counts(path, folders)), key=lambda path: (_rank(path, folders), path))


def _rank(path: str, folders: t.Sequence[str]) -> int:
    return list(folders).index(posixpath.dirname(path))


def _grouped(by_name: t.Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """The names of each group of paths, so that one sentence tells of all."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, paths in by_name.items():
        groups.setdefault(paths, []).append(name)
    return groups
