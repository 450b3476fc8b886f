# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every action of the collection refuses facts of a host before it does anything."""

from __future__ import annotations

import importlib
import typing as t
from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="actions run on the controller only")

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._controller_action import CollectionAction

PLUGINS = "ansible_collections.gpufleet.nvidia.plugins"
ACTIONS = sorted(path.stem for path in (Path(__file__).parents[4] / "plugins/action").glob("nvidia_*.py"))
FACTS = {"ansible_facts": {"nvidia_audit_html": "/x", "distribution": "Debian"}}


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_refuses_facts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind: t.Any = importlib.import_module(f"{PLUGINS}.action.{name}").ActionModule
    assert issubclass(kind, CollectionAction)
    work = MagicMock(return_value={"changed": True})
    monkeypatch.setattr(kind, "run_checked", work)
    action = kind(*(MagicMock(async_val=0, check_mode=False) for _part in range(6)))
    if name == "nvidia_check_settings":
        # A host that fails in the check of the variables stops all hosts.
        assert action.run(task_vars=FACTS) == {"changed": False}
    else:
        with pytest.raises(AnsibleActionFail, match="nvidia_audit_html: set by facts of this host"):
            action.run(task_vars=FACTS)
    assert not work.called
    assert action.run(task_vars={"ansible_facts": {"distribution": "Debian"}}) == {"changed": True}
    assert work.called
