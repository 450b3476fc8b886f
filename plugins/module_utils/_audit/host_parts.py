# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Collect the parts of the report of nvidia_container_info on which the tasks of a play decide: engines and toolkit."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

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
    engines, needed = _describe_engines(host, run) if "engines" in gather_subset else (None, None)
    if engines is not None:
        _mark_engine_of_kubelet(host, engines, kubernetes)
    toolkit = _describe_toolkit(host, run, toolkit_dir) if "toolkit" in gather_subset else None
    return {"engines": engines, "toolkit": toolkit}, needed


def describe_host(
    host: hostfs.HostFS, run: core_plan.Runner, gather_subset: t.Collection[str], toolkit_dir: str, **_more: t.Any
) -> dict[str, t.Any]:
    """Return the report as host_info.describe_host() does. It has no other parts than ``engines`` and ``toolkit``."""
    parts, needed = describe_parts(host, run, gather_subset, toolkit_dir)
    return {**dict.fromkeys(SUBJECTS), **parts, **({} if needed is None else {"needed": needed})}


def _describe_toolkit(host: hostfs.HostFS, run: core_plan.Runner, directory: str) -> dict[str, t.Any]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import info as toolkit_info  # noqa: PLC0415

    return toolkit_info.describe_toolkit(host, run, directory)


def _describe_engines(host: hostfs.HostFS, run: core_plan.Runner) -> tuple[list[dict[str, t.Any]], str | None]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info as engines_info  # noqa: PLC0415

    return engines_info.describe_engines(host, run)


def _mark_engine_of_kubelet(
    host: hostfs.HostFS, engines: list[dict[str, t.Any]], kubernetes: t.Mapping[str, t.Any] | None
) -> None:
    """Add to each engine whether the kubelet of ``host`` uses it."""
    target = kubernetes["engine"] if kubernetes is not None else _engine_of_kubelet(host)
    for engine in engines:
        engine["used_by_kubelet"] = engine["target"] == target


def _engine_of_kubelet(host: hostfs.HostFS) -> str | None:
    """Return the target of the engine that the kubelet uses; None without a kubelet, or if it is unknown."""
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions  # noqa: PLC0415

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
