# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the kubelet of a node, its device plugins and DRA drivers, and the devices that it offers and that pods hold.

It reads files and asks the kubelet, and changes nothing. `_audit/rules_kubernetes.py` compares the report with the GPUs
and the engines. Most hosts have no kubelet, so the files that only a node needs are imported by `node.py`.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import distributions

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


def describe_kubernetes(host: hostfs.HostFS) -> tuple[dict[str, t.Any], str | None]:
    """Return the report of the kubelet of ``host``. Errors become problems in the report.

    The second value names the Python package that is missing if files could not be read without it, otherwise it is
    None.
    """
    report: dict[str, t.Any] = {
        "distribution": None,
        "service": None,
        "running": None,
        "root_dir": None,
        "config_files": [],
        "cri_endpoint": None,
        "engine": None,
        "source": None,
        "resources": [],
        "claims": [],
        "device_plugins": [],
        "plugin_pods": [],
        "plugin_processes": [],
        "plugin_logs": [],
        "device_list_strategies": [],
        "dra_drivers": [],
        "nri_plugin": None,
    }
    problems: list[errors.Problem] = []
    missing = None
    try:
        found = distributions.find_kubelet(host)
        if found is not None:
            # Most hosts have no kubelet.
            from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import node  # noqa: PLC0415

            missing = node.add_kubelet(host, found, report, problems)
    except errors.NvidiaError as error:
        problems.append(errors.Problem.of(error))
    report["problems"] = errors.as_dicts(dict.fromkeys(problems))
    return report, missing
