# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the controller's half")

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_runtime_verify import ActionModule


@pytest.mark.parametrize(
    ("args", "packages"),
    [
        ({"engine": "docker"}, ()),
        ({"engine": "docker", "level": "config"}, ()),
        ({"engine": "docker", "level": "engine"}, ("tomlkit",)),
        ({"engine": "docker", "level": "gpu"}, ("tomlkit",)),
        ({"engine": "containerd"}, ("tomlkit",)),
        ({"engine": "crio", "level": "config"}, ("tomlkit",)),
        ({"level": ["gpu"]}, ()),
        ({}, ()),
    ],
)
def test_what_travels(args: dict[str, t.Any], packages: tuple[str, ...]) -> None:
    task = MagicMock(args=args, async_val=0)
    action: t.Any = ActionModule(task, *(MagicMock() for _part in range(5)))
    assert action.packages() == packages


@pytest.mark.parametrize(("level", "packages"), [("gpu", ("yaml",)), ("engine", ()), (None, ())])
def test_what_travels_on_demand(level: str | None, packages: tuple[str, ...]) -> None:
    task = MagicMock(args={"engine": "docker", "level": level}, async_val=0)
    action: t.Any = ActionModule(task, *(MagicMock() for _part in range(5)))
    assert action.packages_on_demand() == packages
