# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Collect the report of nvidia_container_info from the packages of its parts.

Each part imports its package only if it is collected, because imports take time.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import info as kubernetes_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


def describe_host(
    host: hostfs.HostFS,
    run: core_plan.Runner,
    gather_subset: t.Collection[str] = host_parts.SUBJECTS,
    toolkit_dir: str = toolkit_constants.DIRECTORY,
    *,
    driver_root: str | None = None,
    library_search_paths: t.Sequence[str] = (),
    selected_engines: t.Mapping[str, t.Any] | None = None,
) -> dict[str, t.Any]:
    """Return the report of ``host``. Errors on the host become problems in the report.

    ``driver_root`` and ``library_search_paths`` are where the driver's files are, by default the usual directories.
    ``selected_engines`` are the names and the flavor in the variables of the host. A part that is not in
    ``gather_subset`` is None. If files were not read because a Python package is missing, the key ``needed`` names it.

    Raises:
        NvidiaError: ``toolkit_dir``, ``driver_root`` or an entry of ``library_search_paths`` is not an absolute path.
    """
    root = None if driver_root is None else host.check_path("driver_root", driver_root)
    folders = tuple(host.check_path("library_search_paths", path) for path in library_search_paths)
    gpus = None
    if {"gpus", "cdi"} & set(gather_subset):
        # Specifications are compared with the GPUs, so CDI needs them too.
        gpus = _describe_gpus(host, run, "gpus" in gather_subset, (root, folders))
    cdi, missing_yaml = _describe_cdi(host, run, gpus) if "cdi" in gather_subset else (None, None)
    with_kubelet = "kubernetes" in gather_subset
    kubernetes, missing_for_kubelet = kubernetes_info.describe_kubernetes(host) if with_kubelet else (None, None)
    common, missing_toml = host_parts.describe_parts(host, run, gather_subset, toolkit_dir, kubernetes)
    if selected_engines is not None:
        _mark_selected(common["engines"] or (), selected_engines)
    needed = missing_yaml or missing_toml or missing_for_kubelet
    parts = {
        **common,
        "gpus": gpus if "gpus" in gather_subset else None,
        "cdi": cdi,
        "kubernetes": kubernetes,
    }
    findings = _findings(host, parts) if "findings" in gather_subset else None
    return {**parts, "findings": findings, **({} if needed is None else {"needed": needed})}


def _mark_selected(engines: t.Iterable[dict[str, t.Any]], selected: t.Mapping[str, t.Any]) -> None:
    """Add to each engine whether the variables of the host select it. A play of the user selects the others."""
    wanted = selection.wanted_of(selected["names"] or (), selected["flavor"])
    for engine in engines:
        engine["selected"] = engine["user"] is not None or bool(selection.selected(wanted, [engine]))


def _describe_gpus(
    host: hostfs.HostFS, run: core_plan.Runner, with_driver: bool, places: tuple[str | None, tuple[str, ...]]
) -> dict[str, t.Any]:
    # Each part of the report is imported only if it is requested.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import info as gpu_info  # noqa: PLC0415

    root, folders = places
    found = gpu_info.DriverPlaces(library_folders=folders)
    report = gpu_info.describe_gpus(host, found if root is None else found._replace(roots=(root,)))
    return {**report, **gpu_info.describe_driver(host, run, report)} if with_driver else report


def _describe_cdi(
    host: hostfs.HostFS, run: core_plan.Runner, gpus: t.Mapping[str, t.Any] | None
) -> tuple[dict[str, t.Any], str | None]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import info as cdi_info  # noqa: PLC0415

    return cdi_info.describe_cdi(host, run, gpus)


def _findings(host: hostfs.HostFS, parts: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import audit  # noqa: PLC0415

    return audit.findings_of(host, parts)
