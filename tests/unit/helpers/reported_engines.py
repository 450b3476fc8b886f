# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines as nvidia_container_info reports them, and the settings of the role nvidia_runtime that select some."""

from __future__ import annotations

import typing as t

SETTINGS: dict[str, t.Any] = {
    "engines": "auto", "flavor": "auto", "state": "present", "register": True, "name": "nvidia",
    "enable_cdi": "", "check_mode": False, "host_root": "/", "host_root_live": False, "reuse_inspection": True,
    "toolkit_host_root": "/", "toolkit_host_root_live": False, "restart_mode": "auto", "purge_backups": False,
    "allow_disruption": False, "require_runtime": True, "validate": "auto", "timeout": 60, "retries": 1,
    "backup_dir": "/b", "before": "", "after": "", "verify": "off", "verify_image": "", "verify_pull": False,
    "verify_command": [],
}  # fmt: skip


def engine(target: str = "docker", **values: t.Any) -> dict[str, t.Any]:
    """Return an engine as nvidia_container_info describes it."""
    name, _slash, rest = target.partition("/")
    flavor, _slash, instance = rest.partition("/")
    return {
        "engine": name, "flavor": flavor or "system", "target": target,
        "user": instance if flavor == "rootless" else None,
        "installed": True, "running": True, "service": f"{name}.service", "recorded_files": [],
        "unfinished_restart": False, "inspected": True, "used_by_kubelet": False, "problems": [], **values,
    }  # fmt: skip
