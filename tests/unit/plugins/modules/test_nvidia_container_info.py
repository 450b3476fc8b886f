# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The refusal of a task without root's privileges."""

from __future__ import annotations

import os
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.module_utils.basic")

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import container_info


@pytest.mark.parametrize(
    ("user", "params", "refused"),
    [
        (1000, {"require_root": True, "host_root": "/"}, True),
        (1000, {"require_root": True, "host_root": "/tree"}, False),
        (1000, {"require_root": False, "host_root": "/"}, False),
        (0, {"require_root": True, "host_root": "/"}, False),
    ],
)
def test_requires_root(monkeypatch: pytest.MonkeyPatch, user: int, params: dict[str, t.Any], refused: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name in ("load_bundled_packages", "host_from_params", "command_runner"):
        monkeypatch.setattr(_module, name, lambda _task: None)
    module = MagicMock(
        params={
            **dict.fromkeys(("gather_subset", "toolkit_dir", "driver_root", "library_search_paths", "require_engines")),
            **params,
        }
    )
    if refused:
        with pytest.raises(HostError, match=r"runs as user 1000, not as root\. Run with -b \(become\)\."):
            container_info.describe(module, lambda *_args, **_options: {})
    else:
        assert container_info.describe(module, lambda *_args, **_options: {}) == {}
