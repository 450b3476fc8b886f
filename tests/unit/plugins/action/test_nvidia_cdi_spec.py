# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the controller's half")

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_cdi_spec import ActionModule


@pytest.mark.parametrize("args", [{}, {"engine": "containerd"}, {"state": "absent"}])
def test_what_travels(args: dict[str, t.Any]) -> None:
    task = MagicMock(args=args, async_val=0)
    action: t.Any = ActionModule(task, *(MagicMock() for _part in range(5)))
    assert action.packages() == ()
    assert action.packages_on_demand() == ("yaml",)
