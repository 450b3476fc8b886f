# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: Docker, configured through daemon.json.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_api import get
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    ConfiguredState,
    Context,
    EnginePlan,
    Installation,
    LiveState,
    PlannedFile,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest, is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit, load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

RUNTIMES = "runtimes"
DEFAULT = "default-runtime"
FEATURES = "features"
CDI = (FEATURES, "cdi")
PID_FILE = "/var/run/docker.pid"


def _is_builtin(name: str) -> bool:
    """Runtimes that dockerd knows without being told (moby, daemon/runtime_unix.go)."""
    return name == "runc" or name.startswith("io.containerd.")


class _Docker:
    name = "docker"
    config_path = "/etc/docker/daemon.json"
    service = "docker.service"
    socket_unit = "docker.socket"
    socket = "/var/run/docker.sock"
    default_runtime = "runc"

    # -- the host ------------------------------------------------------------------------------------------------

    def inspect(self, host: HostRoot) -> Installation:
        unit = load_unit(host, self.service)
        programs = [unit.arguments[0]] if unit is not None and unit.arguments else []
        named = unit.flag_values("--config-file") if unit is not None else []
        pid_files = unit.flag_values("--pidfile", "-p") if unit is not None else []
        return Installation(
            binary=host.find_executable([*programs, "dockerd"]),
            unit=unit,
            service=self.service,
            socket=self._socket(host, unit),
            config_path=named[-1] if named else self.config_path,
            pid=_running(host, pid_files[-1] if pid_files else PID_FILE) if host.live else None,
        )

    def _socket(self, host: HostRoot, unit: Unit | None) -> str:
        addresses = unit.flag_values("--host", "-H") if unit is not None else []
        for address in addresses:
            if address.startswith("unix://"):
                return address[len("unix://") :] or self.socket
        if any(address.startswith("fd://") for address in addresses):
            activation = load_unit(host, self.socket_unit)
            for stream in activation.listen if activation is not None else ():
                if stream.startswith("/"):
                    return stream
        return self.socket

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        # Without a process nobody may be asked: socket activation would start the daemon.
        if installation.pid is None:
            return None
        info = get(host.outer(installation.socket), "/info")
        if not isinstance(info, dict):
            return None
        runtimes = info.get("Runtimes")
        directories = info.get("CDISpecDirs")
        return LiveState(
            version=str(info.get("ServerVersion", "")),
            runtimes={
                name: str(entry.get("path", ""))
                for name, entry in (runtimes if isinstance(runtimes, dict) else {}).items()
                if isinstance(entry, dict)
            },
            default_runtime=str(info.get("DefaultRuntime", "")),
            cdi=None if "CDISpecDirs" not in info else bool(directories),
            live_restore=bool(info.get("LiveRestoreEnabled")),
            running_containers=int(info.get("ContainersRunning") or 0),
        )

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return _Planner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return _Planner(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        document = JsonDocument.from_bytes(context.path, context.content or b"")
        return _state(document, context.unit)

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        if live.cdi is not None and state.cdi is not None and live.cdi != state.cdi:
            return Action.RESTART
        known = {name for name in live.runtimes if not _is_builtin(name)}
        if known - set(state.runtimes) - set(state.flagged_runtimes):
            return Action.RESTART
        if live.default_runtime != (state.default_runtime or self.default_runtime):
            return Action.RELOAD if state.default_runtime else Action.RESTART
        paths = state.paths()
        current = all(
            name in known and live.runtimes[name] == paths.get(name, live.runtimes[name]) for name in state.runtimes
        )
        return Action.NONE if current else Action.RELOAD

    # -- the program ---------------------------------------------------------------------------------------------

    def version_argv(self, binary: str) -> list[str]:
        return [binary, "--version"]

    def validate_argv(self, binary: str, candidate: str, unit: Unit | None) -> list[str]:
        # With the unit's own flags, so that a setting that stands in both is found too.
        flags = _without_config_file(unit.arguments[1:]) if unit is not None else []
        return [binary, "--validate", "--config-file", candidate, *flags]

    def validator_missing(self, output: str) -> bool:
        return "unknown flag: --validate" in output


class _Planner:
    """One plan for one daemon.json."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.before = JsonDocument.from_bytes(context.path, context.content or b"")
        self.original = JsonDocument.from_bytes(context.path + " as recorded", context.original or b"")
        self.document = self.before
        self.wanted: dict[tuple[str, ...], t.Any] = {}
        self.warnings: list[str] = []

    def present(self, request: RuntimeRequest) -> EnginePlan:
        runtimes = request.runtimes()
        self._check_types(runtimes)
        for name, path in runtimes.items():
            existing = self.document.value(RUNTIMES, name, "path")
            if not isinstance(existing, str) or not self.context.same_program(existing, path):
                self._write((RUNTIMES, name, "path"), path)
        if request.enable_cdi is not None:
            self._write(CDI, request.enable_cdi)
        if request.set_as_default:
            self._set_default(request.runtime_name)
        elif request.set_as_default is False:
            self._restore_ours((DEFAULT,))
        for recorded in self._recorded():
            if recorded[0] == RUNTIMES and recorded[1] not in runtimes:
                self._restore_ours(recorded)
        self._mend_default()
        self._check_flags()
        return self._plan(self.document.to_bytes())

    def absent(self) -> EnginePlan:
        context = self.context
        record = context.record
        if record is not None and record.restorable(context.content):
            self.document = self.original
            self._check_flags()
            return self._plan(record.original)
        self._check_types(())
        if record is not None:
            for path in self._recorded():
                self._restore_ours(path)
        else:
            self._remove_unrecorded()
        self._mend_default()
        self._check_flags()
        emptied = self.document.root is None or not self.document.root.members
        if context.content is None or (emptied and record is not None and record.created):
            return self._plan(None)
        return self._plan(self.document.to_bytes())

    # -- steps ---------------------------------------------------------------------------------------------------

    def _recorded(self) -> list[tuple[str, ...]]:
        record = self.context.record
        return list(record.keys or ()) if record is not None else []

    def _write(self, path: tuple[str, ...], value: t.Any) -> None:
        self.document = self.document.set(path, value)
        self.wanted[path] = value

    def _restore_ours(self, path: tuple[str, ...]) -> None:
        """Give back what stood at ``path`` before us, unless somebody changed it since."""
        record = self.context.record
        if record is None or not record.owns(path, self.document.value(*path)):
            return
        if path[0] == RUNTIMES:
            # A runtime without a path would stop dockerd: what was ours from the start goes as a whole.
            entry = self.original.node(*path[:2])
            path = path if entry is not None and entry.is_object else path[:2]
        self.document = self.document.restore(path, self.original)

    def _remove_unrecorded(self) -> None:
        for name in list(_entries(self.document)):
            if is_nvidia_program(self.document.value(RUNTIMES, name, "path")):
                self.document = self.document.delete((RUNTIMES, name))
        if self.document.text != self.before.text and not _entries(self.document):
            self.document = self.document.delete((RUNTIMES,))

    def _set_default(self, name: str) -> None:
        unit = self.context.unit
        flags = unit.flag_values("--default-runtime") if unit is not None else []
        if flags and flags[-1] == name and self.document.node(DEFAULT) is None:
            self.warnings.append(
                f"The unit starts dockerd with --default-runtime {name}: {name} is the default already, and dockerd"
                f" would not start with {DEFAULT} in {self.context.path} too, so it was not written there."
            )
            return
        self._write((DEFAULT,), name)

    def _mend_default(self) -> None:
        """Never leave a default that is not defined: dockerd would not start."""
        default = self.document.value(DEFAULT)
        flagged = _flagged_runtimes(self.context.unit)
        if not isinstance(default, str) or not default or _is_builtin(default) or default in flagged:
            return
        entries = _entries(self.document)
        removed = default in _entries(self.before) and default not in entries
        restored = default != self.before.value(DEFAULT) and default not in entries
        if not removed and not restored:
            return
        previous = self.original.value(DEFAULT)
        if isinstance(previous, str) and (previous in entries or _is_builtin(previous)):
            self.document = self.document.set((DEFAULT,), previous)
        else:
            self.document = self.document.delete((DEFAULT,))
        now = self.document.value(DEFAULT) or "runc"
        self.warnings.append(f"The default runtime {default} is no longer defined: the default is now {now}.")

    # -- refusals ------------------------------------------------------------------------------------------------

    def _check_types(self, runtimes: t.Iterable[str]) -> None:
        self._check_type((RUNTIMES,), "object", "Make it an object of runtimes, or remove it.")
        self._check_type((FEATURES,), "object", "Make it an object of true and false, or remove it.")
        self._check_type(CDI, "boolean", "Write true or false without quotes.")
        self._check_type((DEFAULT,), "string", "Write the name of a runtime in quotes.")
        for name in runtimes:
            self._check_type((RUNTIMES, name), "object", 'Make it an object such as {"path": "…"}, or remove it.')
            self._check_type((RUNTIMES, name, "path"), "string", "Write the path in quotes.")
            kind = self.document.node(RUNTIMES, name, "runtimeType")
            if kind is not None and kind.kind != "null":
                raise self.document.error(
                    kind,
                    f"the runtime {name!r} has a runtimeType, and dockerd refuses one with a path beside it",
                    "Remove this runtime, or choose another runtime_name.",
                )

    def _check_type(self, path: tuple[str, ...], kind: str, advice: str) -> None:
        node = self.document.node(*path)
        if node is not None and node.kind not in (kind, "null"):
            raise self.document.error(node, f"{'.'.join(path)} holds {node.kind} where {kind} is expected", advice)

    def _check_flags(self) -> None:
        """A setting that stands in the file and on the unit's command line stops dockerd, except for runtimes."""
        unit = self.context.unit
        if unit is None:
            return
        place = ", ".join([unit.path, *unit.drop_ins])
        for key, flag in ((DEFAULT, "--default-runtime"), (FEATURES, "--feature")):
            values = unit.flag_values(flag)
            changed = self.document.value(key) != self.before.value(key)
            if values and changed and self.document.node(key) is not None:
                raise GpufleetError(
                    f"{self.context.path}: the unit {unit.name} passes {flag} {values[-1]} ({place}), and dockerd does"
                    f" not start when {key} stands in the file too. Remove the flag from the unit, then run this again."
                )
        default = unit.flag_values("--default-runtime")
        gone = set(_entries(self.before)) - set(_entries(self.document)) - set(_flagged_runtimes(unit))
        if default and default[-1] in gone:
            raise GpufleetError(
                f"{self.context.path}: the runtime {default[-1]} cannot be removed while the unit {unit.name} passes"
                f" --default-runtime {default[-1]} ({place}). Remove the flag from the unit, then run this again."
            )

    # -- result --------------------------------------------------------------------------------------------------

    def _plan(self, after: bytes | None) -> EnginePlan:
        context = self.context
        final = JsonDocument.from_bytes(context.path, after or b"")
        candidates = dict((context.record.keys or {}) if context.record is not None else {})
        candidates.update(self.wanted)
        keys = {
            path: value
            for path, value in candidates.items()
            if final.node(*path) is not None
            and final.value(*path) == value
            and (self.original.node(*path) is None or self.original.value(*path) != value)
        }
        before, state = _state(self.before, context.unit), _state(final, context.unit)
        planned = PlannedFile(context.path, context.content, after, keys)
        return EnginePlan((planned,), state, _action(before, state), tuple(self.warnings))


def _entries(document: JsonDocument) -> dict[str, t.Any]:
    found = document.value(RUNTIMES)
    return found if isinstance(found, dict) else {}


def _flagged_runtimes(unit: Unit | None) -> tuple[str, ...]:
    values = unit.flag_values("--add-runtime") if unit is not None else []
    return tuple(value.split("=", 1)[0] for value in values)


def _state(document: JsonDocument, unit: Unit | None) -> ConfiguredState:
    default = document.value(DEFAULT)
    flags = unit.flag_values("--default-runtime") if unit is not None else []
    cdi = document.value(*CDI) if document.node(FEATURES) is not None else None
    return ConfiguredState(
        runtimes=_entries(document),
        default_runtime=default or (flags[-1] if flags else None),
        cdi=cdi if isinstance(cdi, bool) else None,
        flagged_runtimes=_flagged_runtimes(unit),
    )


def _action(before: ConfiguredState, after: ConfiguredState) -> Action:
    """What SIGHUP makes effective and what needs a restart, measured on dockerd 20.10, 26.1 and 28.5."""
    if before.cdi != after.cdi:
        return Action.RESTART
    if set(before.runtimes) - set(after.runtimes):
        return Action.RESTART
    if before.default_runtime != after.default_runtime:
        return Action.RELOAD if after.default_runtime else Action.RESTART
    return Action.NONE if before.runtimes == after.runtimes else Action.RELOAD


def _running(host: HostRoot, pid_file: str) -> int | None:
    """The process in dockerd's own pid file, if it is indeed a dockerd."""
    text = host.read_text(pid_file).strip()
    if text.isdigit() and host.read_text(f"/proc/{text}/comm").strip() == "dockerd":
        return int(text)
    return None


def _without_config_file(arguments: t.Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--config-file":
            next(words, None)
        elif not word.startswith("--config-file="):
            kept.append(word)
    return kept


DOCKER = _Docker()
