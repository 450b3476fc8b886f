# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse a host whose engines cannot be configured, before the first task changes it.

The functions read only the description of the engines (``info.describe_engines``).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

_ROOTLESS = "docker/rootless/"
_ALL = "all"
# The codes of problems that end nvidia_runtime_config with the same message.
_UNREADABLE = {
    errors.NvidiaError.code,
    errors.ConfigurationError.code,
    errors.HostError.code,
    errors.PermissionDeniedError.code,
    errors.MissingPackageError.code,
    "engine-unreadable",
    "engine-release-fails",
}

Described = t.Mapping[str, t.Any]


class Requirement(t.NamedTuple):
    """The engines that later tasks configure.

    - ``names``: as in the variable nvidia_runtime_engines: engines, targets, or only ``auto``.
    - ``flavor``: the only flavor to configure, or ``auto``.
    - ``users``: the users whose rootless Docker is configured by tasks that run as them, or only ``all``.
    - ``user``: the user as whom this task runs. Then only the rootless Docker of that user is required.
    - ``files``: whether the files that the engines read must be readable.
    - ``installed``: whether the engines in ``names`` must be installed now.
    """

    names: tuple[str, ...] = (core_constants.AUTO,)
    flavor: str = core_constants.AUTO
    users: tuple[str, ...] = ()
    user: str | None = None
    files: bool = True
    installed: bool = True

    @property
    def targets(self) -> list[str]:
        """``names`` without auto, in the spelling of ``target`` in the description."""
        return [_as_target(name) for name in self.names if name != core_constants.AUTO]


def _as_target(name: str) -> str:
    engine, _slash, rest = name.partition("/")
    flavor, _slash, unit = rest.partition("/")
    if flavor != core_constants.SYSTEM:
        return name
    suffix = "" if "." in unit else ".service"
    return f"{engine}/{flavor}/{unit}{suffix}" if unit else engine


def users_of(required: Requirement, engines: t.Sequence[Described]) -> list[str]:
    """Return the users whose rootless Docker later tasks configure."""
    running = [engine["user"] for engine in engines if engine["user"] is not None]
    users = running if required.users == (_ALL,) else list(required.users)
    named = [name[len(_ROOTLESS) :] for name in required.targets if name.startswith(_ROOTLESS)]
    return [user for user in dict.fromkeys([*users, *named]) if user]


def problems_of(required: Requirement, engines: t.Sequence[Described]) -> list[str]:
    """Return why the engines cannot be configured.

    Args:
        required: What later tasks configure.
        engines: The description of all engines, by the user who runs this task.
    """
    own = [engine for engine in engines if engine["inspected"] and engine["user"] == required.user]
    problems = [] if required.user is not None else _records_of_root(users_of(required, engines), engines)
    if required.files:
        problems += [message for engine in _selected(required, own) for message in _reasons(engine)]
    missing = _missing(required, own) if required.installed else []
    if missing:
        problems.append(
            f"nvidia_runtime_engines names {' and '.join(missing)}, which this host does not have. Install the engine"
            " first, remove it from nvidia_runtime_engines, or set that to auto."
        )
    return list(dict.fromkeys(problems))


def _records_of_root(users: t.Collection[str], engines: t.Sequence[Described]) -> list[str]:
    """Return the advice about records that an earlier version wrote as root, which a task of the user cannot read."""
    return [
        errors.in_full(problem)
        for engine in engines
        if not engine["inspected"] and engine["user"] in users
        for problem in engine["problems"]
    ]


def _selected(required: Requirement, own: t.Sequence[Described]) -> list[Described]:
    """Return the engines that are configured if they are installed."""
    of_flavor = [engine for engine in own if required.flavor in (core_constants.AUTO, engine["flavor"])]
    if required.user is not None or core_constants.AUTO in required.names:
        return of_flavor
    return [engine for engine in of_flavor if engine["engine"] in required.targets] + [
        engine for engine in own if "/" in engine["target"] and engine["target"] in required.targets
    ]


def _reasons(engine: Described) -> list[str]:
    if engine["readable"]:
        return []
    return [errors.in_full(problem) for problem in engine["problems"] if problem["code"] in _UNREADABLE]


def _missing(required: Requirement, own: t.Sequence[Described]) -> list[str]:
    """Return the targets that are named and not installed. An engine that cannot be inspected may be installed."""
    existing = [engine for engine in own if engine["installed"] or engine["problems"]]
    found = {str(engine[key]) for engine in existing for key in ("engine", "target")}
    if required.user is not None:
        wanted = [name for name in required.targets if name == f"{_ROOTLESS}{required.user}"]
    else:
        # Another task inspects the engines of users. The unit of a second containerd shows only then that it exists,
        # when the module reads it.
        wanted = [
            name
            for name in required.targets
            if not name.startswith(_ROOTLESS) and f"/{core_constants.SYSTEM}/" not in name
        ]
    return [name for name in wanted if name not in found]
