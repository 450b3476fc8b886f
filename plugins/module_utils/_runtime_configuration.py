# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what the user asks to what is written on the host.  Everything that is the same for
# all engines happens here; what differs is in the engine's own file.

from __future__ import annotations

import os
import shutil
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _backups
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    Context,
    EnginePlan,
    Installation,
    LiveState,
    PlannedFile,
    parse_version,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import ENGINES, PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import mask_urls
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    STATE_DIR,
    FileRecord,
    load_record,
    load_records,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    missing_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

    # Runs a command, returns its exit status, standard output and standard error.
    Runner = t.Callable[[t.List[str]], t.Tuple[int, str, str]]

CONFIG_MODE = 0o644
_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600
# Where a candidate is put for the engine's validator, in a directory of its own that only the owner can enter.
_SCRATCH = "/tmp"


class Options(t.NamedTuple):
    """The task's parameters; ``request`` is None for state=absent."""

    engine: str
    request: RuntimeRequest | None
    config_path: str | None = None
    engine_version: str | None = None
    validate: str = "auto"
    backup_dir: str = _backups.BACKUP_DIR
    purge_backups: bool = False
    require_runtime: bool = False


class Outcome(t.NamedTuple):
    """What was found and done, or would be done in check mode."""

    changed: bool
    files: list[PlannedFile]
    backup_files: list[dict[str, str | None]]
    config_path: str
    engine_version: str | None
    runtimes: dict[str, str]
    default_runtime: str
    restart_action: Action
    pending_action: Action
    service: str
    socket: str
    warnings: list[str]


class RuntimeConfiguration:
    """One engine of one host, brought to the state that ``options`` describe."""

    def __init__(self, options: Options, host: HostRoot, run: Runner) -> None:
        self.options = options
        self.host = host
        self.run = run
        self.engine: Engine = ENGINES[options.engine]
        if options.request is not None:
            options.request.check()
            host.check_path("runtime_dir", options.request.runtime_dir)
        self.backup_dir = host.check_path("backup_dir", options.backup_dir)
        _backups.check_backup_dir(host, self.backup_dir, PARSED_FOLDERS)
        self.installation: Installation = self.engine.inspect(host)
        named = host.check_path("config_path", options.config_path) if options.config_path else None
        self.config_path = named or self.installation.config_path
        self.live: LiveState | None = self.engine.live(host, self.installation)
        self.version = self._version()
        self._abandoned: list[str] = []

    def execute(self, check_mode: bool) -> Outcome:
        """Plan, and unless ``check_mode`` write under the host's lock.  Raises GpufleetError."""
        self._require_runtime()
        plans = self._plans()
        obsolete = self._obsolete_backups()
        changing = any(file.changed for plan in plans for file in plan.files) or self._leftover_records(plans)
        backups: list[dict[str, str | None]] = []
        if changing or obsolete:
            self._validate(plans)
            if not check_mode:
                with host_lock(self.host):
                    # Another run may have written since; only what is read under the lock counts.
                    plans = self._plans()
                    backups = [entry for plan in plans for entry in self._write(plan)]
                    self._purge()
                    self._sweep()
        return self._outcome(plans, bool(changing or obsolete), backups)

    # -- planning ------------------------------------------------------------------------------------------------

    def _plans(self) -> list[EnginePlan]:
        """The plan for the configuration file first, then (removal only) for files recorded under other names."""
        paths = [self.host.resolve(self.config_path)]
        if self.options.request is None and not self.options.config_path:
            paths += [record.path for record in load_records(self.host, self.engine.name) if record.path not in paths]
        return [self._plan(path) for path in paths]

    def _plan(self, path: str) -> EnginePlan:
        context = Context(
            path=path,
            content=self.host.read(path),
            record=load_record(self.host, self.engine.name, path),
            unit=self.installation.unit,
            version=parse_version(self.version or ""),
            same_program=self.host.same_program,
        )
        request = self.options.request
        return self.engine.absent(context) if request is None else self.engine.present(request, context)

    def _leftover_records(self, plans: list[EnginePlan]) -> bool:
        """Whether a removal that was killed after the file was restored left its record behind."""
        if self.options.request is not None:
            return False
        return any(load_record(self.host, self.engine.name, file.path) for plan in plans for file in plan.files)

    def _obsolete_backups(self) -> list[str]:
        if not self.options.purge_backups or self.options.request is not None:
            return []
        records = [record.path for record in load_records(self.host, self.engine.name)]
        paths = dict.fromkeys([self.host.resolve(self.config_path), *records])
        return [backup for path in paths for backup in _backups.backups_of(self.host, self.backup_dir, path)]

    def _version(self) -> str | None:
        if self.options.engine_version:
            return self.options.engine_version
        if self.live is not None and self.live.version:
            return self.live.version
        return ask_version(self.engine, self.installation, self.host, self.run)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, plan: EnginePlan) -> list[dict[str, str | None]]:
        backups: list[dict[str, str | None]] = []
        for file in plan.files:
            record = load_record(self.host, self.engine.name, file.path)
            if file.changed:
                kept = self._save_record(file, record)
                try:
                    backups += self._back_up(file)
                    self._put(file, kept)
                except HostError:
                    if record is None:
                        self._drop_record(kept)
                        self._sweep()
                    raise
                record = kept
            if record is not None and self.options.request is None:
                self._drop_record(record)
        return backups

    def _save_record(self, file: PlannedFile, record: FileRecord | None) -> FileRecord:
        """Record what was there, before anything else changes."""
        if record is None:
            record = self._new_record(file)
        record = record.after_write(file.before, file.after, file.keys)
        if self.options.request is not None:
            make_directories(self.host, STATE_DIR, _PRIVATE_DIRECTORY)
            where = record_path(self.engine.name, file.path)
            replace_file(self.host, where, record.to_bytes(), _PRIVATE_FILE)
        return record

    def _new_record(self, file: PlannedFile) -> FileRecord:
        made = missing_directories(self.host, os.path.dirname(file.path))
        made += [path for path in missing_directories(self.host, STATE_DIR) if path not in made]
        if file.before is None:
            uid, gid, mode = os.geteuid(), os.getegid(), CONFIG_MODE
        else:
            status = os.stat(self.host.outer(file.path))
            uid, gid, mode = status.st_uid, status.st_gid, status.st_mode & 0o7777
        return FileRecord(self.engine.name, file.path, file.before, uid, gid, mode, tuple(made))

    def _put(self, file: PlannedFile, record: FileRecord) -> None:
        if file.after is None:
            remove_file(self.host, file.path)
            return
        make_directories(self.host, os.path.dirname(file.path), 0o755)
        replace_file(self.host, file.path, file.after, record.mode, (record.uid, record.gid))

    def _back_up(self, file: PlannedFile) -> list[dict[str, str | None]]:
        if self.options.purge_backups and self.options.request is None:
            return []
        if file.before is None:
            return [{"path": file.path, "backup": None}]
        return [{"path": file.path, "backup": _backups.save(self.host, self.backup_dir, file.path, file.before)}]

    def _drop_record(self, record: FileRecord) -> None:
        remove_file(self.host, record_path(self.engine.name, record.path))
        remove_empty_directories(self.host, [os.path.dirname(STATE_DIR), STATE_DIR])
        self._abandoned += record.created_directories

    def _sweep(self) -> None:
        """Remove the directories that the records dropped in this run say we made, where nothing is left in them."""
        remove_empty_directories(self.host, sorted(self._abandoned, key=len))

    def _purge(self) -> None:
        for backup in self._obsolete_backups():
            remove_file(self.host, backup)
        if self.options.purge_backups and self.options.request is None:
            remove_empty_directories(self.host, [os.path.dirname(STATE_DIR), self.backup_dir])

    # -- judging -------------------------------------------------------------------------------------------------

    def _require_runtime(self) -> None:
        """A default runtime that is not there would stop every container of the host from starting."""
        request = self.options.request
        if request is None or not request.set_as_default or not self.options.require_runtime:
            return
        path = request.runtimes()[request.runtime_name]
        if not self.host.is_executable(path):
            raise GpufleetError(
                f"{request.runtime_name} is not made the default runtime: {path} is not an executable file on this"
                " host. Install the NVIDIA Container Toolkit, or set runtime_dir; nothing was changed."
            )

    def _validate(self, plans: list[EnginePlan]) -> None:
        """Let the engine judge each new text before it replaces the old one; what is given back as it was is exempt."""
        for file in (file for plan in plans for file in plan.files):
            record = load_record(self.host, self.engine.name, file.path)
            given_back = self.options.request is None and record is not None and file.after == record.original
            if self.options.validate != "false" and file.changed and file.after is not None and not given_back:
                self._judge(file.path, file.after)

    def _judge(self, path: str, content: bytes) -> None:
        strict = self.options.validate == "true"
        binary = self.installation.binary
        if not self.host.live or binary is None:
            if strict:
                raise GpufleetError(
                    f"validate is true, but no {self.engine.name} of this host can be run. Use validate: auto."
                )
            return
        folder = tempfile.mkdtemp(prefix="gpufleet-", dir=self.host.outer(_SCRATCH))
        try:
            candidate = os.path.join(folder, os.path.basename(path))
            with open(candidate, "wb") as stream:
                stream.write(content)
            inner = f"{_SCRATCH}/{os.path.basename(folder)}/{os.path.basename(path)}"
            argv = self.engine.validate_argv(binary, inner, self.installation.unit)
            status, output, errors = self.run(self.host.argv(argv))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        said = mask_urls((errors.strip() or output.strip()).replace(inner, path))
        if status == 0 or (self.engine.validator_missing(said) and not strict):
            return
        raise GpufleetError(
            f"{path}: {self.engine.name} refuses what would be written; nothing was changed. It says: {said}."
            " Correct the file or the unit; validate: false writes it unjudged."
        )

    def _outcome(self, plans: list[EnginePlan], changed: bool, backups: list[dict[str, str | None]]) -> Outcome:
        main = plans[0]
        pending, doubts = self._pending(main)
        return Outcome(
            changed=changed,
            files=[file for plan in plans for file in plan.files if file.changed],
            backup_files=backups,
            config_path=self.config_path,
            engine_version=self.version,
            runtimes=main.state.paths(),
            default_runtime=main.state.default_runtime or self.engine.default_runtime,
            restart_action=max(plan.action for plan in plans),
            pending_action=pending,
            service=self.installation.service,
            socket=self.installation.socket,
            warnings=[warning for plan in plans for warning in plan.warnings] + doubts + self._missing_runtimes(),
        )

    def _pending(self, plan: EnginePlan) -> tuple[Action, list[str]]:
        """What the running daemon needs to take the planned file over, and why that may be unknown."""
        installation = self.installation
        if self.host.resolve(self.config_path) != self.host.resolve(installation.config_path):
            doubt = (
                f"{installation.service} reads {installation.config_path}, not {self.config_path}."
                " Leave config_path out to change the file that takes effect."
            )
        elif self.live is not None:
            return self.engine.catch_up(self.live, plan.state), []
        elif installation.pid is not None:
            doubt = (
                f"{self.engine.name} runs (process {installation.pid}) but does not answer on {installation.socket},"
                " so it is unknown whether it has taken the file over."
            )
        else:
            return Action.NONE, []
        return Action.NONE, [doubt]

    def _missing_runtimes(self) -> list[str]:
        request = self.options.request
        if request is None:
            return []
        missing = {name: path for name, path in request.runtimes().items() if not self.host.is_executable(path)}
        return [
            f"The runtime {name} is registered with {path}, which is not an executable file on this host."
            " Install the NVIDIA Container Toolkit, or set runtime_dir."
            for name, path in missing.items()
        ]


def ask_version(engine: Engine, installation: Installation, host: HostRoot, run: Runner) -> str | None:
    """The version that the engine's program prints; None where no program of the host may be run."""
    if not host.live or installation.binary is None:
        return None
    status, output, _errors = run(host.argv(engine.version_argv(installation.binary)))
    words = (word.strip(",") for word in output.split())
    return next((word for word in words if status == 0 and word[:1].isdigit() and parse_version(word)), None)
