# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that the action plugins send to a host: with the task, and only if the host lacks them."""

from __future__ import annotations

import importlib
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action plugins import ansible-core")

PLUGINS = "ansible_collections.gpufleet.nvidia.plugins.action"
TOML, YAML = ("tomlkit",), ("yaml",)


@pytest.mark.parametrize(
    ("plugin", "args", "with_the_task", "on_demand"),
    [
        ("nvidia_cdi_refresh", {}, (), YAML),
        ("nvidia_cdi_refresh", {"engine": "containerd", "state": "absent"}, (), YAML),
        ("nvidia_cdi_spec", {}, (), YAML),
        ("nvidia_cdi_spec", {"engine": "containerd", "state": "absent"}, (), YAML),
        # The toolkit's file and those of two engines are in TOML.
        ("nvidia_container_info", {}, TOML, YAML),
        ("nvidia_container_info", {"gather_subset": ["engines"]}, TOML, YAML),
        ("nvidia_container_info", {"gather_subset": 5}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "docker"}, (), ()),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "config"}, (), ()),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "engine"}, TOML, ()),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "gpu"}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "docker", "level": None}, (), ()),
        # The settings of k3s and RKE2 are in YAML.
        ("nvidia_runtime_verify", {"engine": "containerd"}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "crio", "level": "config"}, TOML, ()),
        ("nvidia_runtime_verify", {"level": ["gpu"]}, (), ()),
        ("nvidia_runtime_verify", {"engine": "containerd", "level": "engine"}, TOML, YAML),
        ("nvidia_runtime_verify", {}, (), ()),
        ("nvidia_runtime_config", {"engine": "podman"}, TOML, ()),
        ("nvidia_runtime_restart", {"engine": "docker"}, (), ()),
        ("nvidia_toolkit_config", {}, TOML, ()),
        ("nvidia_toolkit_key", {}, (), ()),
    ],
)
def test_packages(
    plugin: str, args: dict[str, t.Any], with_the_task: tuple[str, ...], on_demand: tuple[str, ...]
) -> None:
    task = MagicMock(action=f"gpufleet.nvidia.{plugin}", args=args, async_val=0)
    action: t.Any = importlib.import_module(f"{PLUGINS}.{plugin}").ActionModule(task, *map(MagicMock, [None] * 5))
    assert action.packages() == with_the_task
    # The answer is the same each time.
    assert [action.packages_on_demand(), action.packages_on_demand()] == [on_demand, on_demand]
