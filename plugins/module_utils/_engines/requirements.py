# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse a host whose engines cannot be configured, before the first task changes it.

problems_of() reads the description of the engines (``info.describe_engines``). planned() plans the change of an engine
as nvidia_runtime_config does in check mode, so it needs no rules of its own.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info, selection

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

# The codes of problems with which nvidia_runtime_config would fail.
_UNREADABLE = {
    errors.NvidiaError.code,
    errors.ConfigurationError.code,
    errors.HostError.code,
    errors.PermissionDeniedError.code,
    errors.MissingPackageError.code,
    "engine-release-fails",
}


class Requirement(t.NamedTuple):
    """The engines that later tasks configure.

    - ``wanted``: the engines that the play selects.
    - ``files``: whether the files that the engines read must be readable.
    - ``installed``: whether the named engines must be installed now.
    """

    wanted: selection.Wanted = selection.Wanted()
    files: bool = True
    installed: bool = True


def problems_of(required: Requirement, engines: t.Sequence[selection.Described]) -> list[str]:
    """Return why the engines cannot be configured, as far as their description tells.

    Args:
        required: What later tasks configure.
        engines: The description of all engines, by the user who runs this task.
    """
    wanted, own = required.wanted, _inspected(engines)
    problems = []
    if required.files:
        problems += [message for engine in selection.selected(wanted, own) for message in _reasons(engine)]
    if required.installed:
        problems += selection.missing_errors(wanted.named, own, wanted.flavor)
    return list(dict.fromkeys(problems))


def _inspected(engines: t.Sequence[selection.Described]) -> list[selection.Described]:
    """Return the engines that this task has inspected, without those of other users."""
    return [engine for engine in engines if engine["inspected"]]


def _reasons(engine: selection.Described) -> list[str]:
    if engine["readable"]:
        return []
    return [errors.in_full(problem) for problem in engine["problems"] if problem["code"] in _UNREADABLE]


def targets_of(required: Requirement, engines: t.Sequence[selection.Described]) -> list[str]:
    """Return the engines whose change planned() can plan.

    An engine that is not readable is reported by problems_of().
    """
    own = _inspected(engines)
    unreadable = {engine["target"] for engine in own if required.files and not engine["readable"]}
    return [name for name in selection.targets(required.wanted, own) if name not in unreadable]


def planned(
    params: t.Mapping[str, t.Any],
    targets: t.Sequence[str],
    engines: t.Sequence[selection.Described],
    host: hostfs.HostFS,
    run: core_plan.Runner,
) -> list[str]:
    """Plan the change of each engine, write nothing, and return why it is not possible.

    The programs of the toolkit count as installed, since an earlier task of the play may install them.

    Args:
        params: The options of the later task, as in ``parameters.SPEC``.
        targets: The engines.
        engines: The description of all engines, by the user who runs this task.
        host: The host.
        run: Runs the validator of an engine whose files would change.

    Raises:
        MissingPackageError: The Python of the host lacks a package.
    """
    # Only an inspection with the options of the later task needs these imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import configure, parameters  # noqa: PLC0415

    request = parameters.request_of(params)
    versions = {engine["target"]: engine["version"] for engine in engines}
    missing = [path for path in request.runtimes().values() if not host.is_executable(path)]
    later = host.with_programs(None, missing) if missing else host
    problems = []
    for name in targets:

        def plan(name: str = name) -> None:
            parameters.check_for_targets(params, targets)
            options = parameters.options_of(params, request).for_target(name)
            if options.user is not None:
                # Only root can write to the directory of the other backups.
                options = options._replace(backup_dir=None)
            # The description has the version. To ask an engine for it again takes time.
            known = options.engine_version or versions.get(name)
            if core_text.parse_version(known or ""):
                options = options._replace(engine_version=known)
            configure.ConfigureEngine(options, later, run).execute(check_mode=True)

        try:
            # A plan that takes longer tells nothing. The later task plans without this limit.
            info.in_time(info.TIMEOUT, plan)
        except errors.MissingPackageError:
            raise
        except errors.NvidiaError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))
