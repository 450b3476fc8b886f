# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the table of a runtime into a containerd configuration, with the names of its format version.

This module edits documents in memory and does not choose the file; ``plan`` does.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config

BUILTIN_DEFAULT = "runc"
BUILTIN_TYPE = "io.containerd.runc.v2"
VERSION: toml_plan.KeyPath = ("version",)
CDI: toml_plan.KeyPath = ("enable_cdi",)
ANNOTATIONS: toml_plan.KeyPath = ("container_annotations",)
# The options that name the low-level program of a runtime, which no other runtime inherits.
_PROGRAMS = ("binaryname", "runtime")
LEGACY_PROGRAM = "Runtime"
# The runtimes whose options are inherited if the default runtime is unsuitable (same order as in nvidia-ctk).
PARENTS = ("runc", "crun")


class RuntimeTableWriter:
    """A writer for the runtimes in one file.

    ``others`` is the configuration of all files without the entries of this collection. ``target`` is the file to edit.
    ``mode`` is in_place, drop_in or snapshot.
    """

    def __init__(
        self,
        context: engines_base.Context,
        others: containerd_config.ContainerdFiles,
        target: toml_plan.TomlEdit,
        mode: str,
    ) -> None:
        self.context = context
        self.others = others
        self.target = target
        self.mode = mode
        # A drop-in keeps a version that another tool wrote. Where it must equal the main file's, the plan checks it.
        given = target.document.value(*VERSION) if mode != "in_place" and not target.owns(VERSION) else None
        self.version: int = given or others.version
        self.root = containerd_config.CRI_TABLE[self.version]

    def write_version(self, main: toml_plan.TomlEdit) -> None:
        """Write the format version into the files that need one.

        A main file without versioned settings gets the version of the other files, a drop-in that of the target.
        """
        if containerd_config.has_no_versioned_settings(main.document) or main.owns(VERSION):
            main.write(VERSION, self.others.version)
        if self.mode != "in_place":
            self.target.write(VERSION, self.version)

    def runtimes(self, request: engines_base.RuntimeRequest) -> None:
        present = self.others.runtimes()
        if self.mode == "snapshot":
            toml_plan.write_table(self.target, self.root, self.others.cri())
        if self._hides_builtin(present):
            self._runtime(BUILTIN_DEFAULT, {"runtime_type": BUILTIN_TYPE}, {})
        parent = self._parent(present)
        for name, program in request.runtimes().items():
            asked = toml_plan.merged(request.runtime_options, {})
            if request.runtime_type is not None:
                asked["runtime_type"] = request.runtime_type
            if request.container_annotations:
                known = self._annotations(name, parent)
                asked[ANNOTATIONS[0]] = list(dict.fromkeys([*known, *request.container_annotations]))
            inherited = toml_plan.merged({"runtime_type": BUILTIN_TYPE}, parent)
            twice = request.use_legacy_config and self.others.version == 1
            self._runtime(name, inherited, toml_plan.merged(asked, self._program(name, program, twice)))

    def _program(self, name: str, program: str, twice: bool) -> dict[str, t.Any]:
        """Return the entries that name the program. ``twice`` adds the name that version 1 files use."""
        existing = self._existing(name)
        spelled = containerd_config.program_of(existing)
        same = isinstance(spelled, str) and self.context.same_program(spelled, program)
        names = (containerd_config.PROGRAM[1], LEGACY_PROGRAM) if twice else (containerd_config.PROGRAM[1],)
        options = existing.get(containerd_config.PROGRAM[0])
        return {
            containerd_config.PROGRAM[0]: {
                containerd_config.spelling(options, known): spelled if same else program for known in names
            }
        }

    def _annotations(self, name: str, parent: t.Mapping[str, t.Any]) -> list[str]:
        """Return the annotations that the runtime inherits or that others wrote.

        They are written again, because a list replaces the list of an earlier file.
        """
        path = (*self.root, *containerd_config.RUNTIMES, name, *ANNOTATIONS)
        here = self.target.original if self.target.owns(path) else self.target.document
        beneath = toml_plan.lookup(self.others.runtimes().get(name), ANNOTATIONS)
        found = [toml_plan.lookup(parent, ANNOTATIONS), beneath, here.value(*path)]
        return [entry for entries in found if isinstance(entries, list) for entry in entries]

    def _hides_builtin(self, present: t.Mapping[str, t.Any]) -> bool:
        """Return whether runtimes in a file hide the built-in runc while no other usable default is defined."""
        default = self.others.default_runtime() or BUILTIN_DEFAULT
        foreign = [
            name
            for name, entry in present.items()
            if not engines_base.is_nvidia_runtime(name, containerd_config.program_of(entry))
        ]
        lost = not foreign or (default == BUILTIN_DEFAULT and default not in present)
        # Other tools may have added options to this collection's runc entry; without its type, the rest is no runtime.
        typed = toml_plan.lookup(present, (BUILTIN_DEFAULT, "runtime_type")) is not None
        ours = self.target.owns((*self.root, *containerd_config.RUNTIMES, BUILTIN_DEFAULT, "runtime_type"))
        return not self.others.merges and (lost or (ours and not typed))

    def _parent(self, present: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return the options of the low-level runtime that is in use, never those of another NVIDIA runtime."""
        named = [(name, present.get(name)) for name in (self.others.default_runtime() or "", *PARENTS)]
        for name, entry in [("", self.others.legacy_default()), *named]:
            if not isinstance(entry, dict) or engines_base.is_nvidia_runtime(name, containerd_config.program_of(entry)):
                continue
            kind = entry.get("runtime_type") or BUILTIN_TYPE
            if self._is_runc(str(kind)):
                inherited = toml_plan.plain_copy(toml_plan.merged(entry, {"runtime_type": kind}))
                options = inherited.get("options", {})
                if isinstance(options, dict):
                    inherited["options"] = {key: options[key] for key in options if key.lower() not in _PROGRAMS}
                return toml_plan.plain_copy(inherited)
        return {}

    def _is_runc(self, kind: str) -> bool:
        """Return whether a runtime of this type accepts the options of runc."""
        return kind.startswith("io.containerd.runc.")

    def _existing(self, name: str) -> dict[str, t.Any]:
        """Return the present entries of the runtime in the target, merged with those of earlier files."""
        here = self.target.document.value(*self.root, *containerd_config.RUNTIMES, name)
        return toml_plan.merged(self._beneath(name), here if isinstance(here, dict) else {})

    def _beneath(self, name: str) -> dict[str, t.Any]:
        """Return the runtime's entries in the files that a drop-in is merged with."""
        found = self.others.runtimes().get(name) if self.mode == "drop_in" else None
        return found if isinstance(found, dict) else {}

    def _runtime(self, name: str, inherited: t.Mapping[str, t.Any], asked: t.Mapping[str, t.Any]) -> None:
        """Write one runtime: the requested entries, and of the inherited ones only those that no other tool wrote."""
        path = (*self.root, *containerd_config.RUNTIMES, name)
        existing, beneath = self._existing(name), self._beneath(name)
        wanted: dict[str, t.Any] = {}
        for leaf, value in toml_parser.iter_leaves(toml_plan.merged(inherited, asked)):
            explicit = toml_plan.lookup(asked, leaf) is not None
            known = _respelled(existing, leaf)
            foreign = toml_plan.lookup(beneath, known) is not None or self._foreign(path + known)
            other = _respelled(asked, leaf) != leaf
            if not other and (explicit or not foreign) and toml_plan.lookup(beneath, known) != value:
                toml_plan.put(wanted, known, value)
        toml_plan.write_table(self.target, path, wanted)

    def _foreign(self, path: toml_plan.KeyPath) -> bool:
        """Return whether another tool wrote this entry of the target, even if this collection replaced its value."""
        return (self.target.original if self.target.owns(path) else self.target.document).has(*path)

    def leaf(self, path: toml_plan.KeyPath, value: t.Any) -> None:
        """Write one setting of the CRI, unless an earlier file has the same value."""
        if self.mode != "drop_in" or toml_plan.lookup(self.others.cri(), path) != value:
            self.target.write(self.root + path, value)

    def legacy_default(self, name: str) -> None:
        """Write the table default_runtime as a copy of the table of the runtime ``name``."""
        path, runtime = (*self.root, *containerd_config.LEGACY_DEFAULT), (*self.root, *containerd_config.RUNTIMES, name)
        here = self.target.document.value(*path)
        table: dict[str, t.Any] = {}
        for leaf, value in toml_parser.iter_leaves(self._existing(name)):
            # Entries that an earlier run wrote and this run does not want are still in the document here.
            if runtime + leaf in self.target.wanted or not self.target.owns(runtime + leaf):
                toml_plan.put(table, _respelled(here if isinstance(here, dict) else {}, leaf), value)
        toml_plan.write_table(self.target, path, table)

    def finish(self, request: engines_base.RuntimeRequest) -> None:
        """Remove the entries that earlier runs wrote and this run does not want.

        Settings that the request leaves open stay.
        """
        if set(self.target.wanted) <= {VERSION} and self.mode != "in_place":
            # Other files already contain everything that the request needs.
            self.target.wanted.clear()
            self.target.document = self.target.before
        stays: set[toml_plan.KeyPath] = {containerd_config.IMPORTS}
        if request.set_as_default is None and not request.use_legacy_config:
            stays.add(self.root + containerd_config.DEFAULT)
        toml_plan.revert_own_entries(self.target, stays.__contains__ if self.target.wanted else lambda _path: False)


def _respelled(table: t.Mapping[str, t.Any], path: toml_plan.KeyPath) -> toml_plan.KeyPath:
    """Return ``path`` as ``table`` spells it, since containerd ignores the case of option names."""
    return (
        (path[0], containerd_config.spelling(table.get(path[0]), path[1]))
        if len(path) == 2 and path[0] == containerd_config.PROGRAM[0]
        else path
    )
