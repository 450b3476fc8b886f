# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a module of the collection in this process, as AnsibleModule runs it on a host."""

from __future__ import annotations

import importlib.util
import json
import typing as t

import pytest


@pytest.fixture
def run_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> t.Callable[..., dict[str, t.Any]]:
    """Return a function that runs a module with these arguments, and returns its result."""
    basic = pytest.importorskip("ansible.module_utils.basic")
    messages = pytest.importorskip("ansible.module_utils.common.warnings")
    # Modules return their warnings, even if another test has imported files of the controller.
    internal = "ansible.module_utils._internal"
    if importlib.util.find_spec(internal) is not None:
        monkeypatch.setattr(importlib.import_module(internal), "is_controller", False, raising=False)

    def run(name: str, **arguments: t.Any) -> dict[str, t.Any]:
        module = importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.modules.{name}")
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        # Those of the modules that ran before in this process.
        messages._global_warnings.clear()
        messages._global_deprecations.clear()
        with pytest.raises(SystemExit):
            module.main()
        result: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        return result

    return run
