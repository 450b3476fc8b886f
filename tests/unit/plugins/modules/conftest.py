# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a module of the collection in this process, as AnsibleModule runs it on a host."""

from __future__ import annotations

import importlib.util
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _results


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
        require_documented_values(name, result)
        return result

    return run


def require_documented_values(name: str, result: dict[str, t.Any]) -> None:
    """Compare a result with what the controller keeps of it: each value that a module returns has to be documented."""
    values = pytest.importorskip("ansible_collections.gpufleet.nvidia.plugins.plugin_utils._return_values")
    kept = _results.rebuilt(result, values.OF_MODULE[name])
    # Newer releases describe these as events, of which the controller keeps the text.
    events = ("warnings", "deprecations", "exception")
    assert list(dropped(result, {**kept, **{key: result[key] for key in events if key in result}})) == []


def dropped(value: t.Any, kept: t.Any, path: str = "") -> t.Iterator[str]:
    """Yield the paths of values that are missing."""
    if isinstance(value, dict) and isinstance(kept, dict):
        for key, item in value.items():
            yield from dropped(item, kept.get(key, ...), f"{path}.{key}")
    elif isinstance(value, list) and isinstance(kept, list) and len(value) == len(kept):
        for item, other in zip(value, kept):
            yield from dropped(item, other, f"{path}[]")
    elif value != kept:
        yield f"{path}: {value!r}"
