# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the engines of a host that the role nvidia_runtime configures. This file imports nothing of Ansible.

Private to this collection. The facts are the results of nvidia_container_info: one of root, and one of each named user.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection

PRESENT, ABSENT = "present", "absent"
_OWN_ROOTLESS = "docker/rootless"
# What the tasks need to know of each engine.
_NEEDED = ("engine", "flavor", "target", "inspected", "installed", "running", "service", "recorded_files", "problems")

EngineInfo = selection.Described


@dataclasses.dataclass(frozen=True)
class Settings:
    """The variables of the role that select engines.

    ``offline`` is true for a directory tree that is not the file system of a running host.
    """

    wanted: selection.Wanted = dataclasses.field(default_factory=selection.Wanted)
    state: str = PRESENT
    offline: bool = False
    check_mode: bool = False

    @classmethod
    def of(cls, values: t.Mapping[str, t.Any]) -> Settings:
        """Build the settings from the values of the variables, by their names without the prefix of the role."""
        root = str(values["host_root"])
        return cls(
            wanted=selection.wanted_of(values["engines"], values["flavor"], values["users"]),
            state=str(values["state"]),
            offline=root != "/" and not values["host_root_live"],
            check_mode=bool(values["check_mode"]),
        )


@dataclasses.dataclass(frozen=True)
class Selection:
    """The engines of a host that the role configures.

    Attributes:
        engines: The engines that were inspected, as nvidia_container_info describes them.
        targets: The names of the engines to configure.
        users: The users as whom tasks for rootless engines run.
        kubelet: The engines that the kubelet uses.
        errors: Reasons not to configure anything on this host.
    """

    engines: tuple[EngineInfo, ...]
    targets: tuple[str, ...]
    users: tuple[str, ...]
    kubelet: tuple[str, ...]
    errors: tuple[str, ...]


def select(
    settings: Settings, of_root: t.Sequence[EngineInfo], of_users: t.Mapping[str, t.Sequence[EngineInfo]]
) -> Selection:
    """Select the engines of a host.

    Args:
        settings: The variables of the role.
        of_root: The engines that root has found.
        of_users: The engines that each user has found. A user can forge them, so only the user's own engine is used.

    Returns:
        The selection, with the reasons not to configure anything.
    """
    complete = [engine for engine in of_root if all(name in engine for name in _NEEDED)]
    errors = ["The host returned an engine without all of its values."] if len(complete) < len(of_root) else []
    of_root = complete
    users = selection.users_of(settings.wanted, of_root)
    # Root opens no file of a user, and reports only that such an engine runs.
    inspected = [engine for engine in of_root if engine["inspected"]]
    for user in users:
        own = [engine for engine in of_users.get(user, ()) if engine.get("inspected")]
        inspected += [engine for engine in own if engine.get("target") == selection.target_of(user)]
    if not settings.offline and not settings.check_mode and settings.state == PRESENT:
        # Whether a user has an engine must not decide about others, because only the user's own task can tell.
        errors += selection.missing_errors(settings.wanted.named, inspected, users, settings.wanted.flavor)
    return Selection(
        engines=tuple(inspected),
        targets=selection.targets(settings.wanted, inspected, removal=settings.state == ABSENT),
        users=tuple(users),
        kubelet=tuple(dict.fromkeys(str(engine["target"]) for engine in of_root if engine.get("used_by_kubelet"))),
        errors=tuple(errors),
    )


def groups_of_root(targets: t.Iterable[str]) -> list[list[str]]:
    """Return the targets of each run of nvidia_runtime_config that does not run as a named user.

    A rootless engine without a user belongs to the user of the connection, and has a run of its own.
    """
    of_root = [target for target in targets if not selection.is_of_user(target)]
    own = [target for target in of_root if target == _OWN_ROOTLESS]
    others = [target for target in of_root if target not in own]
    return [group for group in (others, own) if group]
