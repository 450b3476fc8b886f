# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: leftovers of NVIDIA's earlier tools, removed for good.  The engine's own plan is made of
# the files as they are without them, so that the two never disagree, and what was recorded changes likewise: a later
# removal of ours does not bring leftovers back.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    EnginePlan,
    LiveState,
    PlannedFile,
    Purged,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._legacy_files import CLEANERS, Leftover, Sweep
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest, record_path

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        Engine,
        Files,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

_HOOK_MODE = "hook"


class FilesWithout(t.NamedTuple):
    """The files of a host as they are without leftovers; ``after`` is what these are then, by paths without links."""

    files: Files
    after: t.Mapping[str, bytes | None]
    originals: t.Mapping[str, bytes | None]

    def read(self, path: str) -> bytes | None:
        real = self.resolve(path)
        return self.after[real] if real in self.after else self.files.read(path)

    def record(self, path: str) -> FileRecord | None:
        record, real = self.files.record(path), self.resolve(path)
        if record is None or real not in self.originals:
            return record
        now, original = self.files.read(path), self.originals[real]
        undisturbed = now == record.original or digest(now) in record.written
        return record._replace(
            original=original,
            created=record.created or original is None,
            written=(*record.written, digest(self.after[real])) if undisturbed else record.written,
        )

    def resolve(self, path: str) -> str:
        return self.files.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return self._there(self.files.glob(pattern))

    def walk(self, folder: str) -> list[str]:
        return self._there(self.files.walk(folder))

    def _there(self, paths: t.Iterable[str]) -> list[str]:
        gone = {path for path, text in self.after.items() if text is None}
        return [path for path in paths if self.resolve(path) not in gone]


class Purge:
    """What goes for one engine, and plans that take it along.

    ``leftovers`` are all that go, ``stays`` are sentences on what looks like them and does not.
    """

    def __init__(self, host: HostRoot, engine: Engine, context: Context, request: RuntimeRequest | None = None) -> None:
        """``request`` is what the plan will be for, None for a removal.  Raises GpufleetError."""
        wanted = () if request is None else tuple(request.runtimes())
        self._engine = engine
        self._context = context
        self._removal = request is None
        keeps_hooks = request is not None and request.config_mode == _HOOK_MODE
        self._sweep = Sweep(host, context, wanted, keeps_hooks, removal=self._removal)
        cleaner = CLEANERS.get(engine.key)
        if cleaner is not None:
            cleaner(self._sweep)
        else:
            said = f"purge_legacy is for the system's own engines, and does nothing for {engine.key}."
            self._sweep.stays.append(said)
        self.leftovers: tuple[Leftover, ...] = tuple(self._sweep.leftovers)
        self.stays: tuple[str, ...] = tuple(self._sweep.stays)

    def context(self) -> Context:
        """What a plan is made of, without the leftovers."""
        sweep, former = self._sweep, self._context
        if not sweep.after:
            return former
        files = FilesWithout(former.files, sweep.after, sweep.originals)
        return former._replace(files=files, content=files.read(former.path), record=files.record(former.path))

    def plan(self, make: t.Callable[[Context], EnginePlan]) -> EnginePlan:
        """The plan that ``make`` makes, with the leftovers in it; each file is in it once."""
        plan = make(self.context())
        planned = {file.path for file in plan.files}
        files = [self._with_leftovers(file) for file in plan.files]
        # Behind the others: nothing may name them any more when they go.
        alone = [path for path in self._sweep.after if path not in planned]
        files += [self._alone(path) for path in alone]
        if not self._removal:
            # A removal drops all records.
            files += [self._record(path) for path in alone if path in self._sweep.forgotten]
        action = max(plan.action, self._action(plan.state))
        return plan._replace(files=tuple(files), action=action, warnings=(*plan.warnings, *self.stays))

    def _with_leftovers(self, file: PlannedFile) -> PlannedFile:
        if file.path not in self._sweep.after:
            return file
        purged = Purged(self._sweep.originals[file.path])
        return file._replace(before=self._context.files.read(file.path), purged=purged)

    def _alone(self, path: str) -> PlannedFile:
        files, sweep = self._context.files, self._sweep
        record = files.record(path)
        keys = {} if record is None or sweep.after[path] is None else dict(record.keys or {})
        return PlannedFile(path, files.read(path), sweep.after[path], keys, purged=Purged(sweep.originals[path]))

    def _record(self, path: str) -> PlannedFile:
        """The record of a file that is as it should be, which goes: nothing else is left to change."""
        where = self._context.files.resolve(record_path(self._engine.key, path))
        return PlannedFile(where, self._context.files.read(where), None)

    def _action(self, after: ConfiguredState) -> Action:
        """What the daemon needs to forget the leftovers."""
        if not self._sweep.read:
            return Action.NONE
        if not self._engine.tells_all:
            return Action.RESTART
        before = self._engine.configured(self._context)
        default = before.default_runtime or self._engine.default_runtime
        return self._engine.catch_up(LiveState("", before.paths(), default, before.cdi), after)
