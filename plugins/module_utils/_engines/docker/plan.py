# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the changes of daemon.json, and decide whether dockerd needs a reload or a restart to use them."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import facts as docker_facts

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


RUNTIMES = "runtimes"
DEFAULT = "default-runtime"
FEATURES = "features"
CDI = (FEATURES, "cdi")
BUILTIN_DEFAULT = "runc"
PATH, TYPE = "path", "runtimeType"
# The settings of the file that this collection uses, and Runtime in api/types/system/runtime.go.
_FIELDS = key_names.fields(
    *(DEFAULT, FEATURES, "cdi-spec-dirs", "exec-opts", "hosts", "pidfile", "live-restore"),
    runtimes=key_names.keys(key_names.fields(PATH, TYPE, "runtimeArgs", "options")),
)
# Measured: 20.10 ignores features.cdi, 26.1 has it off, 28.5 on.
CDI_SINCE = docker_facts.FACTS.cdi_newest[0][0]
# On unless features.cdi is false (moby 4cecce03f6, cmd/dockerd/daemon.go). First 28.2.0, last without it 28.1.1.
CDI_BY_DEFAULT_SINCE = (28, 2)


def is_builtin(name: str) -> bool:
    """Return whether dockerd lists the runtime without configuration (moby, daemon/runtime_unix.go)."""
    return name == BUILTIN_DEFAULT or name.startswith("io.containerd.")


def is_accepted(name: str) -> bool:
    """Return whether dockerd accepts the runtime without configuration, even if it does not list it.

    It takes a name with a dot for that of a shim (moby, IsPermissibleC8dRuntimeName() in daemon/config/config.go;
    first 23.0.0, last without it 20.10.27). An older dockerd does not start with such a default.
    """
    return is_builtin(name) or ("." in name and "/" not in name and not name.startswith("."))


class DockerPlanner:
    """One plan for one daemon.json."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.file = core_plan.TrackedEdit(
            json_document.JsonDocument.from_bytes, context.path, context.content, context.record
        )
        self.warnings: list[str] = []

    @property
    def document(self) -> json_document.JsonDocument:
        return self.file.document

    @document.setter
    def document(self, document: json_document.JsonDocument) -> None:
        self.file.document = document

    def present(self, request: engines_request.RuntimeRequest) -> engines_base.EnginePlan:
        runtimes = request.runtimes()
        check_names(self.document)
        self._check_types(runtimes)
        for name, path in runtimes.items():
            existing = self.document.value(RUNTIMES, name, PATH)
            if not isinstance(existing, str) or not self.context.same_program(existing, path):
                self.file.write((RUNTIMES, name, PATH), path)
        if request.enable_cdi == engines_request.CDI_AUTO:
            self._enable_cdi_by_version()
            self._check_version(request)
        elif request.enable_cdi is not None:
            self.file.write(CDI, request.enable_cdi)
            if self.context.version is not None and self.context.version < CDI_SINCE:
                self.warnings.append(
                    f"Docker {core_text.dotted(self.context.version)} does not support CDI and ignores features.cdi."
                    f" Upgrade Docker to {CDI_SINCE[0]} or newer."
                )
        if request.set_as_default:
            self._set_default(request.runtime_name)
        elif request.set_as_default is False:
            self._restore_entry((DEFAULT,))
        for recorded in self.file.recorded():
            if recorded[0] == RUNTIMES and len(recorded) > 1 and recorded[1] not in runtimes:
                self._restore_entry(recorded)
        self._repair_default_runtime()
        self._check_flags()
        return self._plan(self.document.to_bytes())

    def absent(self) -> engines_base.EnginePlan:
        context = self.context
        record = context.record
        if record is None and context.keep_unrecorded:
            return self._plan(context.content)
        if record is not None and record.restorable(context.content):
            self.document = self.file.original
            self._check_flags()
            return self._plan(record.original)
        self._check_types(())
        if record is not None:
            for path in self.file.recorded():
                self._restore_entry(path)
        else:
            self._remove_unrecorded()
        self._repair_default_runtime()
        self._check_flags()
        emptied = self.document.root is None or not self.document.root.members
        if context.content is None or (emptied and record is not None and record.created):
            return self._plan(None)
        return self._plan(self.document.to_bytes())

    # -- steps ---------------------------------------------------------------------------------------------------

    def _enable_cdi_by_version(self) -> None:
        """Enable CDI where it is off by default, unless the user's file or unit sets it."""
        version, unit = self.context.version, self.context.unit
        if version is None:
            return
        # dockerd does not start with features both in the unit and in the file.
        foreign = (self.file.original if self.file.owns(CDI) else self.document).has(*CDI)
        foreign = foreign or (unit is not None and bool(unit.flag_values("--feature")))
        if not foreign and CDI_SINCE <= version < CDI_BY_DEFAULT_SINCE:
            self.file.write(CDI, value=True)
        else:
            self.file.restore(CDI)

    def _restore_entry(self, path: tuple[str, ...]) -> None:
        """Restore the value that ``path`` had before this collection wrote it, unless it was changed since."""
        entry = self.file.original.node(*path[:2])
        if path[0] == RUNTIMES and self.file.owns(path) and (entry is None or not entry.is_object):
            # A runtime without a path would stop dockerd, so an entry that this collection created is removed as a
            # whole.
            self.document = self.document.restore(path[:2], self.file.original)
        else:
            self.file.restore(path)

    def _remove_unrecorded(self) -> None:
        for name, entry in _entries(self.document).items():
            if engines_base.is_nvidia_program(entry.get(PATH) if isinstance(entry, dict) else None):
                self.document = self.document.delete((RUNTIMES, name))
        if self.document.text != self.file.before.text and not _entries(self.document):
            self.document = self.document.delete((RUNTIMES,))

    def _set_default(self, name: str) -> None:
        unit = self.context.unit
        flags = unit.flag_values("--default-runtime") if unit is not None else []
        if flags and flags[-1] == name and self.document.node(DEFAULT) is None:
            self.warnings.append(
                f"{DEFAULT} was not written to {self.context.path}, because the unit already starts dockerd with"
                f" --default-runtime {name}, and dockerd refuses a setting that is in both places."
            )
            return
        self.file.write((DEFAULT,), name)

    def _repair_default_runtime(self) -> None:
        """Replace or remove a default runtime that is no longer defined: dockerd would not start with it."""
        default = self.document.value(DEFAULT)
        before = _entries(self.file.before)
        flagged = _flagged_runtimes(self.context.unit)
        if not isinstance(default, str) or not default or self._is_defined(default) or default in flagged:
            return
        if default == self.file.before.value(DEFAULT) and default not in before:
            # It was not defined before, either.
            return
        previous = self.file.original.value(DEFAULT)
        if isinstance(previous, str) and self._is_defined(previous):
            self.document = self.document.set((DEFAULT,), previous)
        else:
            self.document = self.document.delete((DEFAULT,))
        now = self.document.value(DEFAULT) or BUILTIN_DEFAULT
        self.warnings.append(f"The default runtime {default} is no longer defined. The default is now {now}.")

    def _is_defined(self, name: str) -> bool:
        """Return whether dockerd finds the runtime: in the file, or without an entry if it had none before."""
        had_entry = any(name in _entries(document) for document in (self.file.before, self.file.original))
        return name in _entries(self.document) or is_builtin(name) or (is_accepted(name) and not had_entry)

    # -- refusals ------------------------------------------------------------------------------------------------

    def _check_version(self, request: engines_request.RuntimeRequest) -> None:
        """Raise NvidiaError if containers need CDI and only the unknown version decides whether it is on."""
        if request.register or self.context.version is not None:
            return
        if _cdi(self.document, self.context.unit, None) is None:
            raise errors.NvidiaError(
                f"{self.context.path} was not changed, because the version of Docker is unknown, and it decides whether"
                f" CDI is on. Without CDI and a runtime containers would get no GPUs. Set"
                f" {errors.option:engine_version}, {errors.option:enable_cdi}: true, or {errors.option:register}: true."
            )

    def _check_types(self, runtimes: t.Iterable[str]) -> None:
        self._check_type((RUNTIMES,), "object", "Make it an object of runtimes, or remove it.")
        self._check_type((FEATURES,), "object", "Make it an object of true and false, or remove it.")
        self._check_type(CDI, "boolean", "Write true or false without quotes.")
        self._check_type((DEFAULT,), "string", "Write the name of a runtime in quotes.")
        for name in runtimes:
            self._check_type((RUNTIMES, name), "object", 'Make it an object such as {"path": "…"}, or remove it.')
            self._check_type((RUNTIMES, name, PATH), "string", "Write the path in quotes.")
            kind = self.document.node(RUNTIMES, name, TYPE)
            if kind is not None and kind.kind != "null":
                raise self.document.error(
                    kind,
                    f"the runtime {name!r} has a runtimeType, and dockerd refuses a runtime with both that and a path",
                    f"Remove this runtime, or choose another {errors.option:runtime_name}.",
                )

    def _check_type(self, path: tuple[str, ...], kind: str, advice: str) -> None:
        node = self.document.node(*path)
        if node is not None and node.kind not in (kind, "null"):
            raise self.document.error(
                node, f"{'.'.join(path)} has the type {node.kind}, but dockerd expects {kind}", advice
            )

    def _check_flags(self) -> None:
        """Check for settings that are both in the file and on the unit's command line.

        They stop dockerd from starting, except for runtimes. Raises NvidiaError for a conflict that the plan causes,
        and adds a warning for an existing one.
        """
        unit = self.context.unit
        if unit is None:
            return
        unit_files = ", ".join([unit.path, *unit.drop_ins])
        for key, flag in ((DEFAULT, "--default-runtime"), (FEATURES, "--feature")):
            values = unit.flag_values(flag)
            changed = self.document.value(key) != self.file.before.value(key)
            if not values or not self.document.has(key):
                continue
            conflict = (
                f"{self.context.path} contains {key} and the unit {unit.name} ({unit_files}) passes {flag}"
                f" {values[-1]}. dockerd does not start with a setting in both places."
            )
            if changed:
                raise errors.NvidiaError(
                    f"{self.context.path} was not changed, because then {conflict} Remove the flag from the unit, then"
                    " run this task again."
                )
            self.warnings.append(f"{conflict} Remove the flag from the unit, or {key} from the file.")
        default = unit.flag_values("--default-runtime")
        removed = set(_entries(self.file.before)) - set(_entries(self.document)) - set(_flagged_runtimes(unit))
        if default and default[-1] in removed:
            raise errors.NvidiaError(
                f"The runtime {default[-1]} cannot be removed from {self.context.path}, because the unit {unit.name}"
                f" ({unit_files}) passes --default-runtime {default[-1]}. Remove the flag from the unit, then run this"
                " task again."
            )

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, after: bytes | None) -> engines_base.EnginePlan:
        context = self.context
        final = self.document if after is not None else json_document.JsonDocument.from_bytes(context.path, b"")
        before, state = (
            configured_state(document, context.unit, context.version) for document in (self.file.before, final)
        )
        return engines_base.EnginePlan((self.file.planned(after),), state, _action(before, state), tuple(self.warnings))


def check_names(document: json_document.JsonDocument) -> None:
    """Raise ConfigurationError for a key that differs from the name of a setting in case only."""
    for path, name in key_names.other_cases(document.value(), _FIELDS):
        node = document.node(*path)
        if node is not None:
            problem = key_names.problem(".".join(path), name, "dockerd")
            raise document.error(node, problem, f"Rename it to {name}.")


def _entries(document: json_document.JsonDocument) -> dict[str, t.Any]:
    found = document.value(RUNTIMES)
    return found if isinstance(found, dict) else {}


def _flagged_runtimes(unit: systemd_units.Unit | None) -> tuple[str, ...]:
    values = unit.flag_values("--add-runtime") if unit is not None else []
    return tuple(value.split("=", 1)[0] for value in values)


def configured_state(
    document: json_document.JsonDocument, unit: systemd_units.Unit | None, version: tuple[int, ...] | None
) -> engines_base.ConfiguredState:
    """Return what a dockerd of ``version`` (None: unknown) uses if it starts with this file and this unit."""
    flags = unit.flag_values("--default-runtime") if unit is not None else []
    runtimes = document.value(RUNTIMES)
    return engines_base.ConfiguredState(
        runtimes=_entries(document),
        default_runtime=document.value(DEFAULT) or (flags[-1] if flags else None),
        cdi=_cdi(document, unit, version),
        flagged_runtimes=_flagged_runtimes(unit),
        lists_runtimes=isinstance(runtimes, dict),
        cdi_folders=cdi_folders(document, unit),
    )


def _cdi(
    document: json_document.JsonDocument, unit: systemd_units.Unit | None, version: tuple[int, ...] | None
) -> bool | None:
    """Return whether CDI is on, None if that is unknown or if this version does not support it.

    Measured on 28.5: without a directory for its specifications CDI is off, even if the feature is on.
    """
    if version is not None and version < CDI_SINCE:
        return None
    if cdi_folders(document, unit) == ():
        return False
    features = document.value(FEATURES)
    if isinstance(features, dict) and CDI[1] in features:
        return features[CDI[1]] is True
    flags = unit.flag_values("--feature") if unit is not None else []
    switched = [value.partition("=")[2] for value in flags if value.partition("=")[0] == CDI[1]]
    if switched:
        # The name alone is true, too.
        return switched[-1] in ("", *core_text.GO_TRUE)
    return None if version is None else version >= CDI_BY_DEFAULT_SINCE


def cdi_folders(document: json_document.JsonDocument, unit: systemd_units.Unit | None) -> tuple[str, ...] | None:
    """Return the directories of CDI specifications that the file or the unit names, None if they name none."""
    folders = document.value("cdi-spec-dirs")
    if folders is None and unit is not None:
        folders = unit.flag_values("--cdi-spec-dir") or None
    return engines_base.folders_in(folders)


def _action(before: engines_base.ConfiguredState, after: engines_base.ConfiguredState) -> engines_base.Action:
    """Return the smallest action that makes the change effective, measured on dockerd 20.10, 26.1 and 28.5.

    SIGHUP applies a table of runtimes as a whole, but not its absence, and a default, but not its absence (20.10 even
    crashes on a table without the default that it runs with). SIGHUP never changes CDI.
    """
    actions = [engines_base.Action.NONE]
    if before.runtimes != after.runtimes:
        removed = set(before.runtimes) - set(after.runtimes)
        actions.append(
            engines_base.Action.RESTART if removed and not after.lists_runtimes else engines_base.Action.RELOAD
        )
    if before.default_runtime != after.default_runtime:
        actions.append(engines_base.Action.RELOAD if after.default_runtime else engines_base.Action.RESTART)
    if before.cdi != after.cdi:
        actions.append(engines_base.Action.RESTART)
    return max(actions)


def required_action(live: engines_base.LiveState, state: engines_base.ConfiguredState) -> engines_base.Action:
    """Return the smallest action that brings a dockerd in state ``live`` to what its file and flags configure."""
    paths = state.paths()
    # If a runtime is both in the unit and in the file, dockerd uses that of the file.
    foreign = [name for name in state.flagged_runtimes if name not in state.runtimes]
    running = {
        # A runtime that is not registered by path reports no path that could be compared.
        name: {"path": path} if name in paths or name not in state.runtimes else state.runtimes[name]
        for name, path in live.runtimes.items()
        if (not is_builtin(name) or name in state.runtimes) and name not in foreign
    }
    configured = {name: {"path": paths[name]} if name in paths else entry for name, entry in state.runtimes.items()}
    default = state.default_runtime or BUILTIN_DEFAULT
    # A configured default is never "", which lets _action() find a difference if dockerd runs with another one.
    return _action(
        engines_base.ConfiguredState(
            running, state.default_runtime if live.default_runtime == default else "", live.cdi
        ),
        engines_base.ConfiguredState(
            configured,
            state.default_runtime,
            live.cdi if state.cdi is None or live.cdi is None else state.cdi,
            lists_runtimes=state.lists_runtimes,
        ),
    )
