# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: from what a task asks of the toolkit's settings to what is written on the host.  Nothing
# needs a restart: the toolkit reads the file whenever a container starts.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._backups import check_backup_dir
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import TOOLKIT, PlanWriter
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import BACKUP_DIR, load_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import CONFIG_FILE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_config_plan import ConfigFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import REAL_LDCONFIG, shown

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_config_plan import ToolkitPlan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_profiles import Wishes


class ToolkitOptions(t.NamedTuple):
    """The task's parameters; ``wishes`` is None for state=absent."""

    wishes: Wishes | None
    path: str = CONFIG_FILE
    backup_dir: str = BACKUP_DIR
    purge_backups: bool = False


class ToolkitOutcome(t.NamedTuple):
    """What was found and done, or would be done in check mode; secrets in ``settings`` are hidden."""

    changed: bool
    files: list[PlannedFile]
    backup_files: list[dict[str, str | None]]
    path: str
    settings: dict[str, t.Any]
    changed_keys: list[str]
    warnings: list[str]


class ToolkitConfiguration:
    """config.toml of one host, brought to the state that ``options`` describe."""

    def __init__(self, options: ToolkitOptions, host: HostRoot) -> None:
        self.options = options
        self.host = host
        self.path = host.check_path("path", options.path)
        backup_dir = host.check_path("backup_dir", options.backup_dir)
        check_backup_dir(host, backup_dir, PARSED_FOLDERS)
        self.writer = PlanWriter(
            host,
            TOOLKIT,
            host.resolve(self.path),
            backup_dir,
            removal=options.wishes is None,
            purge=options.purge_backups,
        )

    def execute(self, check_mode: bool) -> ToolkitOutcome:
        """Plan, and unless ``check_mode`` write under the host's lock.  Raises GpufleetError."""
        plan = self._plan()
        changed = self.writer.has_work([plan.file])
        backups: list[dict[str, str | None]] = []
        if changed and not check_mode:
            with host_lock(self.host):
                # Another run may have written since; only what is read under the lock counts.
                plan = self._plan()
                changed = self.writer.has_work([plan.file])
                if changed:
                    backups = self.writer.carry_out([plan.file])
        return ToolkitOutcome(
            changed=changed,
            files=[plan.file] if plan.file.changed else [],
            backup_files=backups,
            path=self.path,
            settings=shown(plan.settings),
            changed_keys=list(plan.changed_keys),
            warnings=list(plan.warnings),
        )

    def _plan(self) -> ToolkitPlan:
        path, wishes = self.writer.main_path, self.options.wishes
        record = load_record(self.host, TOOLKIT, path)
        file = ConfigFile(path, self.host.read(path), record, self.host.exists(REAL_LDCONFIG))
        return file.absent() if wishes is None else file.present(wishes)
