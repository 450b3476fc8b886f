# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what the user asks to what is written on the host.  Everything that is the same for
# all engines happens here and in the rooms around it; what differs is in the engine's own file.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._backups import check_backup_dir
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._outcome import outcome_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import PlanWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Planning
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import default_backup_dir, digest, load_record

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import EnginePlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._outcome import Outcome
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Options


class RuntimeConfiguration:
    """One engine of one host, brought to the state that ``options`` describe."""

    def __init__(self, options: Options, host: HostRoot, run: Runner) -> None:
        self.options = options
        self.host = host
        self.run = run
        named = host.check_path("backup_dir", options.backup_dir) if options.backup_dir is not None else None
        if named is not None:
            check_backup_dir(host, named, PARSED_FOLDERS)
        self.planning = Planning(options, host, run)
        self.writer = PlanWriter(
            host,
            self.planning.engine.key,
            self.planning.main_path,
            named or default_backup_dir(host, self.planning.engine.key),
            removal=self.planning.removal,
            purge=options.purge_backups,
            drop_in_path=self.planning.engine.drop_in_path,
        )

    def execute(self, check_mode: bool) -> Outcome:
        """Plan, and unless ``check_mode`` write under the host's lock.  Raises GpufleetError."""
        self._require_runtime()
        plan = self.planning.plan()
        # Before the records go.
        unrecorded = self.planning.unrecorded(plan)
        changed = self.writer.has_work(plan.files)
        backups: list[dict[str, str | None]] = []
        objection = self._objection(plan) if changed else None
        if objection is not None and check_mode:
            raise objection
        if changed and not check_mode:
            # Only a change pays for this import.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import (  # noqa: PLC0415
                remove_abandoned,
            )

            remove_abandoned(self.host)
            with host_lock(self.host):
                # Another run may have written since, or restarted the engine; only what is read under the lock counts.
                self.planning.observe()
                self.writer.main_path = self.planning.main_path
                fresh = self.planning.plan()
                # Nor need an objection hold that was raised while another run wrote.
                if fresh.files != plan.files or objection is not None:
                    self._validate(fresh)
                plan, changed = fresh, self.writer.has_work(fresh.files)
                if changed:
                    self._note_changes(fresh)
                    backups = self.writer.carry_out(fresh.files)
        return outcome_of(self.planning, plan, changed, backups, unrecorded)

    def _note_changes(self, plan: EnginePlan) -> None:
        """Keep what a running engine works with now, for a restart in whatever play: this one may end before it."""
        planning, host = self.planning, self.host
        engine = planning.engine
        changed = [file for file in plan.files if file.changed]
        if not changed or planning.installation.pid is None or not planning.takes_effect:
            return
        # Only a change of a live host pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._notes import Note  # noqa: PLC0415
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Former, joined  # noqa: PLC0415

        steps = []
        for file in changed:
            record = load_record(host, engine.key, file.path)
            recorded = None if record is None else record.to_bytes()
            steps.append(Former(file.path, file.before, recorded, digest(file.after)))
        live = planning.live
        taken = live is not None and engine.catch_up(live, engine.configured(planning.context())) is Action.NONE
        note = Note.of_changes(host, engine.key)
        note.write(joined(() if taken else note.formers(), steps))

    def _require_runtime(self) -> None:
        """A default runtime that is not there would stop every container of the host from starting."""
        request = self.planning.request
        if request is None or not request.set_as_default or not self.options.require_runtime:
            return
        if request.config_mode == "hook" or not self.planning.engine.default_runtime:
            # Where no runtime is registered, the plan refuses one as the default.
            return
        path = request.runtimes()[request.runtime_name]
        if not self.host.is_executable(path):
            raise GpufleetError(
                f"{request.runtime_name} is not made the default runtime: {path} is not an executable file on this"
                " host. Install the NVIDIA Container Toolkit, or set runtime_dir; nothing was changed."
            )

    def _objection(self, plan: EnginePlan) -> GpufleetError | None:
        try:
            self._validate(plan)
        except GpufleetError as error:
            return error
        return None

    def _validate(self, plan: EnginePlan) -> None:
        """Let the engine judge each new text before it replaces the old one; what is given back as it was is exempt."""
        planning = self.planning
        changed = [file for file in plan.files if file.changed]
        foreign = [file for file in changed if not planning.gives_back(file)]
        if self.options.validate == "false" or not foreign:
            return
        strict = self.options.validate == "true"
        # Only a change pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Judge  # noqa: PLC0415

        judge = Judge(planning.engine, self.host, self.run, planning.installation.binary, strict)
        judge.check(changed if planning.engine.judged_together else foreign, planning.context())
