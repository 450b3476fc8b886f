# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Collect the parts of the report of nvidia_container_info on which the tasks of a play decide: engines and toolkit."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info as engines_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

# The parts of the report. The findings are derived from the others.
SUBJECTS = ("engines", "toolkit", "gpus", "cdi", "kubernetes", "findings")


def describe_parts(
    host: hostfs.HostFS,
    run: core_plan.Runner,
    gather_subset: t.Collection[str],
    toolkit_dir: str,
    kubernetes: t.Mapping[str, t.Any] | None = None,
) -> tuple[dict[str, t.Any], str | None]:
    """Return the parts ``engines`` and ``toolkit`` of the report, and the Python package that was missing.

    A part that is not in ``gather_subset`` is None. ``kubernetes`` is that part, None if it is not collected.

    Raises:
        NvidiaError: ``toolkit_dir`` is not an absolute path.
    """
    engines, needed = engines_info.describe_engines(host, run) if "engines" in gather_subset else (None, None)
    if engines is not None:
        _mark_engine_of_kubelet(host, engines, kubernetes)
    directories = runtime_directories(host, engines or ())
    toolkit = _describe_toolkit(host, run, toolkit_dir, directories) if "toolkit" in gather_subset else None
    return {"engines": engines, "toolkit": toolkit}, needed


def describe_host(
    host: hostfs.HostFS, run: core_plan.Runner, gather_subset: t.Collection[str], toolkit_dir: str, **_more: t.Any
) -> dict[str, t.Any]:
    """Return the report as host_info.describe_host() does. It has no other parts than ``engines`` and ``toolkit``."""
    parts, needed = describe_parts(host, run, gather_subset, toolkit_dir)
    return {**dict.fromkeys(SUBJECTS), **parts, **({} if needed is None else {"needed": needed})}


def runtime_directories(host: hostfs.HostFS, engines: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, list[str]]:
    """Return the directories from which installed engines run NVIDIA's runtimes, with the targets of these engines.

    A runtime of a snap is not among them: it reads the files of the snap.
    """
    found: dict[str, list[str]] = {}
    for engine in engines:
        target = str(engine.get("target"))
        for program in _programs_of(engine) if engine.get("installed") is True else ():
            path = host.find_executable([program]) if engines_base.is_nvidia_program(program) else None
            if path is not None and not path.startswith("/snap/"):
                targets = found.setdefault(posixpath.dirname(path), [])
                targets += [target] if target not in targets else []
    return found


def _programs_of(engine: t.Mapping[str, t.Any]) -> list[t.Any]:
    """Return the programs of the runtimes in the files of an engine, and of those that the daemon reports."""
    tables = [part.get("runtimes") for part in (engine, engine.get("live")) if isinstance(part, dict)]
    return [program for table in tables if isinstance(table, dict) for program in table.values()]


def _describe_toolkit(
    host: hostfs.HostFS, run: core_plan.Runner, directory: str, runtime_dirs: t.Mapping[str, t.Sequence[str]]
) -> dict[str, t.Any]:
    # Each part of the report is imported only if it is requested.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import info as toolkit_info  # noqa: PLC0415

    return toolkit_info.describe_toolkit(host, run, directory, runtime_dirs)


def _mark_engine_of_kubelet(
    host: hostfs.HostFS, engines: list[dict[str, t.Any]], kubernetes: t.Mapping[str, t.Any] | None
) -> None:
    """Add to each engine whether the kubelet of ``host`` uses it."""
    target = kubernetes["engine"] if kubernetes is not None else _engine_of_kubelet(host)
    for engine in engines:
        engine["used_by_kubelet"] = engine["target"] == target


def _engine_of_kubelet(host: hostfs.HostFS) -> str | None:
    """Return the target of the engine that the kubelet uses; None without a kubelet, or if it is unknown."""
    try:
        found = distributions.find_kubelet(host)
        if found is None:
            # Most hosts with Docker or Podman. They do not need what reads the settings of a kubelet.
            return None
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import kubelet  # noqa: PLC0415

        settings = kubelet.read_settings(host, found)
        return kubelet.target_of_endpoint(host, settings.endpoint, found.distribution.name)
    except errors.NvidiaError:
        # The part kubernetes reports what cannot be read.
        return None
