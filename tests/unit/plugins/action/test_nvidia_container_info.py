# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the controller's half")

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_container_info import ActionModule


@pytest.mark.parametrize(
    ("args", "packages"),
    [
        ({}, ("tomlkit",)),
        ({"gather": None}, ("tomlkit",)),
        ({"gather": ["engines", "toolkit"]}, ("tomlkit",)),
        ({"gather": ["toolkit"]}, ("tomlkit",)),
        ({"gather": "toolkit"}, ("tomlkit",)),
        ({"gather": "engines, toolkit"}, ("tomlkit",)),
        ({"gather": ["engines"]}, ()),
        ({"gather": "engines"}, ()),
        ({"gather": []}, ()),
        # The module refuses these.
        ({"gather": "toolkits"}, ()),
        ({"gather": [1]}, ()),
        ({"gather": {"toolkit": True}}, ()),
        ({"gather": 5}, ()),
    ],
)
def test_what_travels(args: dict[str, t.Any], packages: tuple[str, ...]) -> None:
    task = MagicMock(args=args, async_val=0)
    action: t.Any = ActionModule(task, *(MagicMock() for _part in range(5)))
    assert action.packages() == packages
