# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a run tells afterwards, or in check mode beforehand.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Action

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import EnginePlan, PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._legacy_files import Leftover
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Planning


class Outcome(t.NamedTuple):
    """What was found and done, or would be done in check mode.

    ``restart_action`` is what the change alone needs, ``pending_action`` what the running daemon needs, None where it
    could not be asked.  ``unrecorded`` are files with NVIDIA's runtimes that a removal has left.
    """

    changed: bool
    files: list[PlannedFile]
    backup_files: list[dict[str, str | None]]
    syntax: str
    config_path: str
    drop_in_path: str | None
    config_version: int | None
    engine_version: str | None
    runtimes: dict[str, str]
    default_runtime: str
    cdi: bool | None
    restart_action: Action
    pending_action: Action | None
    service: str
    socket: str
    warnings: list[str]
    target: str
    leftovers: tuple[Leftover, ...]
    unrecorded: list[str]


def outcome_of(
    planning: Planning,
    plan: EnginePlan,
    changed: bool,
    backups: list[dict[str, str | None]],
    unrecorded: list[str],
) -> Outcome:
    pending, doubts = _pending(planning, plan)
    return Outcome(
        changed=changed,
        files=[file for file in plan.files if file.changed],
        backup_files=backups,
        syntax=planning.engine.syntax,
        config_path=planning.config_path,
        drop_in_path=plan.drop_in_path,
        config_version=plan.config_version,
        engine_version=planning.version,
        runtimes=plan.state.paths(),
        default_runtime=plan.state.default_runtime or planning.engine.default_runtime,
        cdi=plan.state.cdi,
        # A file that the daemon does not read is no reason to disturb it.
        restart_action=plan.action if planning.takes_effect else Action.NONE,
        pending_action=pending,
        service=planning.installation.service,
        socket=planning.installation.socket,
        warnings=[*plan.warnings, *doubts, *_missing_runtimes(planning, plan)],
        target=str(planning.target),
        leftovers=planning.leftovers,
        unrecorded=unrecorded,
    )


def _pending(planning: Planning, plan: EnginePlan) -> tuple[Action | None, list[str]]:
    """What the running daemon needs to take the planned file over, and why that may be unknown."""
    installation, live = planning.installation, planning.live
    doubts = list(installation.doubts())
    if planning.keeps_everything and not any(file.changed for file in plan.files):
        return None, doubts
    if not planning.takes_effect:
        doubts.append(
            f"{installation.service} reads {installation.config_path}, not {planning.config_path}."
            " Leave config_path out to change the file that takes effect."
        )
    elif live is not None:
        action = planning.engine.catch_up(live, plan.state)
        # What a daemon does not tell it has to be given, and its age was looked at before the change.
        changing = not planning.engine.tells_all and any(file.changed for file in plan.files)
        return max(action, plan.action if changing else Action.NONE), doubts
    elif installation.pid is not None:
        doubts.append(
            f"{planning.engine.name} runs (process {installation.pid}) but does not answer on {installation.socket},"
            " so it is unknown whether it has taken the file over."
        )
    return None, doubts


def _missing_runtimes(planning: Planning, plan: EnginePlan) -> list[str]:
    asked = planning.request.runtimes() if planning.request is not None else {}
    # Some engines look for the programs themselves, and some need none.
    runtimes = {name: path for name, path in plan.state.paths().items() if name in asked}
    return [
        f"The runtime {name} is registered with {path}, which is not an executable file on this host."
        " Install the NVIDIA Container Toolkit, or set runtime_dir."
        for name, path in runtimes.items()
        if not planning.host.is_executable(path)
    ]
