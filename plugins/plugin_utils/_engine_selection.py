# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the engines of a host that the role nvidia_runtime configures. This file imports nothing of Ansible.

Private to this collection. The facts are the result of nvidia_container_info.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection

PRESENT, ABSENT = "present", "absent"
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
            wanted=selection.wanted_of(values["engines"], values["flavor"]),
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
        kubelet: The engines that the kubelet uses.
        errors: Reasons not to configure anything on this host.
    """

    engines: tuple[EngineInfo, ...]
    targets: tuple[str, ...]
    kubelet: tuple[str, ...]
    errors: tuple[str, ...]


def select(settings: Settings, engines: t.Sequence[EngineInfo]) -> Selection:
    """Select the engines of a host.

    Args:
        settings: The variables of the role.
        engines: The engines that the inspection has found.

    Returns:
        The selection, with the reasons not to configure anything.
    """
    complete = [engine for engine in engines if all(name in engine for name in _NEEDED)]
    errors = ["The host returned an engine without all of its values."] if len(complete) < len(engines) else []
    # Of the engine of another user, the inspection reports only that it runs.
    inspected = [engine for engine in complete if engine["inspected"]]
    if not settings.offline and not settings.check_mode and settings.state == PRESENT:
        errors += selection.missing_errors(settings.wanted.named, inspected, settings.wanted.flavor)
    # A play of a user cannot configure the engine of the kubelet.
    of_kubelet = [str(engine["target"]) for engine in complete if engine.get("used_by_kubelet")]
    if not settings.wanted.of_root:
        of_kubelet = []
    return Selection(
        engines=tuple(inspected),
        targets=selection.targets(settings.wanted, inspected, removal=settings.state == ABSENT),
        kubelet=tuple(dict.fromkeys(of_kubelet)),
        errors=tuple(errors),
    )
