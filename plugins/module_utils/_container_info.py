# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a host has, read without changing or starting anything.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_traces import engines_on
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import ask_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_records, restart_note
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import DIRECTORY

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine, Installation, LiveState
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner


# What can be looked at.
SUBJECTS = ("engines", "toolkit", "gpus", "cdi")


def describe_host(
    host: HostRoot, run: Runner, gather: t.Collection[str] = SUBJECTS, toolkit_dir: str = DIRECTORY
) -> dict[str, t.Any]:
    """Everything about ``host``; a strange one gives problems in the answer, never an error.

    What is not in ``gather`` is None.  ``toolkit_dir``: where a toolkit may be that did not come from packages; raises
    GpufleetError if that is no absolute path.  Where files were left unread for want of a Python package, ``needed``
    names it.
    """
    # Specifications are compared with the GPUs.
    gpus = _describe_gpus(host) if "gpus" in gather or "cdi" in gather else None
    cdi, needed = _describe_cdi(host, run, gpus) if "cdi" in gather else (None, None)
    return {
        "engines": _describe_engines(host, run) if "engines" in gather else None,
        "toolkit": _describe_toolkit(host, run, toolkit_dir) if "toolkit" in gather else None,
        "gpus": gpus if "gpus" in gather else None,
        "cdi": cdi,
        **({} if needed is None else {"needed": needed}),
    }


# Who asks for the engines only need not wait for the imports of the others.


def _describe_gpus(host: HostRoot) -> dict[str, t.Any]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_info import describe_gpus  # noqa: PLC0415

    return describe_gpus(host)


def _describe_cdi(
    host: HostRoot, run: Runner, gpus: t.Mapping[str, t.Any] | None
) -> tuple[dict[str, t.Any], str | None]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_info import describe_cdi  # noqa: PLC0415

    return describe_cdi(host, run, gpus)


def _describe_toolkit(host: HostRoot, run: Runner, directory: str) -> dict[str, t.Any]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_info import (  # noqa: PLC0415
        describe_toolkit,
    )

    return describe_toolkit(host, run, directory)


def _describe_engines(host: HostRoot, run: Runner) -> list[dict[str, t.Any]]:
    return [_describe_engine(engine, host, run) for engine in engines_on(host)]


def _describe_engine(engine: Engine, host: HostRoot, run: Runner) -> dict[str, t.Any]:
    installation = engine.inspect(host)
    problems = installation.doubts()
    live = engine.live(host, installation)
    if installation.pid is not None and live is None:
        problems.append(f"{engine.name} runs but does not answer on {installation.socket}.")
    version = (live.version if live is not None else None) or ask_version(engine, installation, host, run)
    described: dict[str, t.Any] = {
        "engine": engine.name,
        "installed": installation.binary is not None,
        "binary": installation.binary,
        "version": version,
        "running": installation.pid is not None,
        "pid": installation.pid,
        "service": installation.service if installation.unit is not None else None,
        "unit_files": [] if installation.unit is None else [installation.unit.path, *installation.unit.drop_ins],
        "socket": installation.socket,
        "config_path": installation.config_path,
        "config_exists": host.exists(installation.config_path),
        "runtimes": {},
        "default_runtime": engine.default_runtime,
        "recorded_files": [],
        "live": None if live is None else _describe_live(live),
        "restart_required": False,
        "unfinished_restart": host.is_there(restart_note(engine.name)),
        "problems": problems,
    }
    # One after the other: what can be read is told whatever cannot.
    for look in (
        lambda: _describe_files(engine, host, installation, live, version),
        lambda: {"recorded_files": [record.path for record in load_records(host, engine.name)]},
    ):
        try:
            described.update(look())
        except GpufleetError as error:
            problems.append(str(error))
    return described


def _describe_files(
    engine: Engine, host: HostRoot, installation: Installation, live: LiveState | None, version: str | None
) -> dict[str, t.Any]:
    state = engine.configured(HostFiles(host, engine.name).as_configured(installation, version))
    return {
        "runtimes": state.paths(),
        "default_runtime": state.default_runtime or engine.default_runtime,
        "restart_required": live is not None and bool(engine.catch_up(live, state)),
    }


def _describe_live(live: LiveState) -> dict[str, t.Any]:
    return {
        "version": live.version,
        "runtimes": live.runtimes,
        "default_runtime": live.default_runtime,
        "cdi": live.cdi,
        "live_restore": live.live_restore,
        "running_containers": live.running_containers,
    }
