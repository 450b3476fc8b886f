# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: how a runtime is written into containerd's files, whichever of them it goes into.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    CRI_TABLE,
    DEFAULT,
    LEGACY_DEFAULT,
    PROGRAM,
    RUNTIMES,
    program_of,
    says_nothing_versioned,
    spelling,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_imports import IMPORTS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_runtime
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import (
    give_back,
    lookup,
    merged,
    plain_copy,
    put,
    write_table,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import KeyPath, TomlEdit

BUILTIN_DEFAULT = "runc"
BUILTIN_TYPE = "io.containerd.runc.v2"
VERSION: KeyPath = ("version",)
CDI: KeyPath = ("enable_cdi",)
ANNOTATIONS: KeyPath = ("container_annotations",)
# The low-level program of a runtime, which no other inherits.
_PROGRAMS = ("binaryname", "runtime")
LEGACY_PROGRAM = "Runtime"
# Where a runtime takes its options from, if the default one is of no use (the order of NVIDIA's own tool).
PARENTS = ("runc", "crun")


class Writer:
    """Puts runtimes into one file; ``others`` is what all files say without our entries."""

    def __init__(self, context: Context, others: ContainerdFiles, target: TomlEdit, mode: str) -> None:
        self.context = context
        self.others = others
        self.target = target
        self.mode = mode
        # A drop-in that others gave a version keeps it; where that must be the main file's, the plan has checked it.
        given = target.document.value(*VERSION) if mode != "in_place" and not target.owns(VERSION) else None
        self.version: int = given or others.version
        self.root = CRI_TABLE[self.version]

    def write_version(self, main: TomlEdit) -> None:
        """A main file that says nothing yet gets the version of the rest, a drop-in that of the main file."""
        if says_nothing_versioned(main.document) or main.owns(VERSION):
            main.write(VERSION, self.others.version)
        if self.mode != "in_place":
            self.target.write(VERSION, self.version)

    def runtimes(self, request: RuntimeRequest) -> None:
        present = self.others.runtimes()
        if self.mode == "snapshot":
            write_table(self.target, self.root, self.others.cri())
        if self._hides_builtin(present):
            self._runtime(BUILTIN_DEFAULT, {"runtime_type": BUILTIN_TYPE}, {})
        parent = self._parent(present)
        for name, program in request.runtimes().items():
            asked = merged(request.runtime_options, {})
            if request.runtime_type is not None:
                asked["runtime_type"] = request.runtime_type
            if request.container_annotations:
                known = self._annotations(name, parent)
                asked[ANNOTATIONS[0]] = list(dict.fromkeys([*known, *request.container_annotations]))
            inherited = merged({"runtime_type": BUILTIN_TYPE}, parent)
            twice = request.use_legacy_config and self.others.version == 1
            self._runtime(name, inherited, merged(asked, self._program(name, program, twice)))

    def _program(self, name: str, program: str, twice: bool) -> dict[str, t.Any]:
        """Its program; ``twice``: also under the name that it had in the oldest files."""
        existing = self._existing(name)
        spelled = program_of(existing)
        same = isinstance(spelled, str) and self.context.same_program(spelled, program)
        names = (PROGRAM[1], LEGACY_PROGRAM) if twice else (PROGRAM[1],)
        options = existing.get(PROGRAM[0])
        return {PROGRAM[0]: {spelling(options, known): spelled if same else program for known in names}}

    def _annotations(self, name: str, parent: t.Mapping[str, t.Any]) -> list[str]:
        """Those that a runtime inherits or that others gave it; a list replaces one in a file beneath."""
        path = (*self.root, *RUNTIMES, name, *ANNOTATIONS)
        here = self.target.original if self.target.owns(path) else self.target.document
        beneath = lookup(self.others.runtimes().get(name), ANNOTATIONS)
        found = [lookup(parent, ANNOTATIONS), beneath, here.value(*path)]
        return [entry for entries in found if isinstance(entries, list) for entry in entries]

    def _hides_builtin(self, present: t.Mapping[str, t.Any]) -> bool:
        """Whether runtimes in a file hide the built-in one, and no other that could be the default is there."""
        default = self.others.default_runtime() or BUILTIN_DEFAULT
        strangers = [name for name, entry in present.items() if not is_nvidia_runtime(name, program_of(entry))]
        lost = not strangers or (default == BUILTIN_DEFAULT and default not in present)
        # Of our entry something may be left that others wrote into it, which is none without its type.
        typed = lookup(present, (BUILTIN_DEFAULT, "runtime_type")) is not None
        ours = self.target.owns((*self.root, *RUNTIMES, BUILTIN_DEFAULT, "runtime_type"))
        return not self.others.merges and (lost or (ours and not typed))

    def _parent(self, present: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """The options of the low-level runtime that is in use; never those of another NVIDIA runtime."""
        named = [(name, present.get(name)) for name in (self.others.default_runtime() or "", *PARENTS)]
        for name, entry in [("", self.others.legacy_default()), *named]:
            if not isinstance(entry, dict) or is_nvidia_runtime(name, program_of(entry)):
                continue
            kind = entry.get("runtime_type") or BUILTIN_TYPE
            if self._is_runc(str(kind)):
                inherited = plain_copy(merged(entry, {"runtime_type": kind}))
                options = inherited.get("options", {})
                if isinstance(options, dict):
                    inherited["options"] = {key: options[key] for key in options if key.lower() not in _PROGRAMS}
                return plain_copy(inherited)
        return {}

    def _is_runc(self, kind: str) -> bool:
        """Whether a runtime of this type takes the options of runc."""
        return kind.startswith("io.containerd.runc.")

    def _existing(self, name: str) -> dict[str, t.Any]:
        """What stands for the runtime where the new entry goes, and in files beneath it."""
        here = self.target.document.value(*self.root, *RUNTIMES, name)
        return merged(self._beneath(name), here if isinstance(here, dict) else {})

    def _beneath(self, name: str) -> dict[str, t.Any]:
        """What files beneath a drop-in that merges with them say of the runtime."""
        found = self.others.runtimes().get(name) if self.mode == "drop_in" else None
        return found if isinstance(found, dict) else {}

    def _runtime(self, name: str, inherited: t.Mapping[str, t.Any], asked: t.Mapping[str, t.Any]) -> None:
        """Write one runtime: what was asked for, and of the rest only what is missing or ours."""
        path = (*self.root, *RUNTIMES, name)
        existing, beneath = self._existing(name), self._beneath(name)
        wanted: dict[str, t.Any] = {}
        for leaf, value in leaves(merged(inherited, asked)):
            explicit = lookup(asked, leaf) is not None
            known = _respelled(existing, leaf)
            foreign = lookup(beneath, known) is not None or self._foreign(path + known)
            other = _respelled(asked, leaf) != leaf
            if not other and (explicit or not foreign) and lookup(beneath, known) != value:
                put(wanted, known, value)
        write_table(self.target, path, wanted)

    def _foreign(self, path: KeyPath) -> bool:
        """Whether others wrote an entry of the target, be it that we have put ours over it since."""
        return (self.target.original if self.target.owns(path) else self.target.document).has(*path)

    def leaf(self, path: KeyPath, value: t.Any) -> None:
        """Write one setting of the CRI, unless a file beneath says the same."""
        if self.mode != "drop_in" or lookup(self.others.cri(), path) != value:
            self.target.write(self.root + path, value)

    def legacy_default(self, name: str) -> None:
        """Write the table that was the default runtime before that had a name: a copy of the runtime's."""
        path, runtime = (*self.root, *LEGACY_DEFAULT), (*self.root, *RUNTIMES, name)
        here = self.target.document.value(*path)
        table: dict[str, t.Any] = {}
        for leaf, value in leaves(self._existing(name)):
            # What earlier runs wrote and this one does not want still stands there.
            if runtime + leaf in self.target.wanted or not self.target.owns(runtime + leaf):
                put(table, _respelled(here if isinstance(here, dict) else {}, leaf), value)
        write_table(self.target, path, table)

    def finish(self, request: RuntimeRequest) -> None:
        """Take out what earlier runs wrote and this one does not want, but no setting that it says nothing about."""
        if set(self.target.wanted) <= {VERSION} and self.mode != "in_place":
            # All that was asked for stands in other files.
            self.target.wanted.clear()
            self.target.document = self.target.before
        stays: set[KeyPath] = {IMPORTS}
        if request.set_as_default is None and not request.use_legacy_config:
            stays.add(self.root + DEFAULT)
        give_back(self.target, stays.__contains__ if self.target.wanted else lambda _path: False)


def _respelled(table: t.Mapping[str, t.Any], path: KeyPath) -> KeyPath:
    """``path`` as ``table`` spells it; the names of options mean the same in any case."""
    return (path[0], spelling(table.get(path[0]), path[1])) if len(path) == 2 and path[0] == PROGRAM[0] else path
