# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse a host whose engines cannot be configured, before the first task changes it.

The functions read only the description of the engines (``info.describe_engines``).
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection

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


class Requirement(t.NamedTuple):
    """The engines that later tasks configure.

    - ``wanted``: the engines and users that the play selects.
    - ``user``: the user as whom this task runs. Then only the rootless Docker of that user is required.
    - ``files``: whether the files that the engines read must be readable.
    - ``installed``: whether the named engines must be installed now.
    """

    wanted: selection.Wanted = selection.Wanted()
    user: str | None = None
    files: bool = True
    installed: bool = True


def problems_of(required: Requirement, engines: t.Sequence[selection.Described]) -> list[str]:
    """Return why the engines cannot be configured.

    Args:
        required: What later tasks configure.
        engines: The description of all engines, by the user who runs this task.
    """
    wanted, user = required.wanted, required.user
    own = [engine for engine in engines if engine["inspected"] and engine["user"] == user]
    users = selection.users_of(wanted, engines)
    problems = [] if user is not None else selection.record_errors(engines, users)
    if required.files:
        problems += [message for engine in selection.selected(wanted, own) for message in _reasons(engine)]
    if required.installed and user is not None:
        named = [name for name in wanted.engines if name == selection.target_of(user)]
        problems += selection.missing_errors(named, own, ())
    elif required.installed:
        # Other tasks inspect the engines of users.
        problems += selection.missing_errors(wanted.engines, own, users)
    return list(dict.fromkeys(problems))


def _reasons(engine: selection.Described) -> list[str]:
    if engine["readable"]:
        return []
    return [errors.in_full(problem) for problem in engine["problems"] if problem["code"] in _UNREADABLE]
