# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The later tasks of a play that its first module runs ahead. The controller and the host complete their options."""

from __future__ import annotations

import typing as t

# The key of what is sent for the tasks, and of their results.
AHEAD = "ahead"
# The modules of the tasks.
MODULES = INSTALL, CDI, RUNTIME = "nvidia_toolkit_install", "nvidia_cdi_spec", "nvidia_runtime_config"


def completed(module: str, task: t.Mapping[str, t.Any], manager: str, targets: t.Sequence[str]) -> dict[str, t.Any]:
    """Return the options of a task with those that depend on the host.

    Args:
        module: The module of the task.
        task: What is sent for it: ``options``, and for INSTALL ``repository_files`` by package manager.
        manager: The package manager of the host, empty if it has none.
        targets: The engines of the host that the task RUNTIME configures.
    """
    options = {**task["options"]}
    if module == INSTALL:
        options["repository_files"] = task["repository_files"].get(manager, [])
    if module == RUNTIME:
        options["targets"] = list(targets)
    return options
