# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option targets of nvidia_runtime_config on the controller: the packages to send, and a result for each target."""

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action plugins import ansible-core")

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_runtime_config import ActionModule
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _packing
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import Packages

NONE_RETURNED = "The module has returned no result for this engine."


def new_action(**task: t.Any) -> t.Any:
    task = {"async_val": 0, "check_mode": False, "action": "gpufleet.nvidia.nvidia_runtime_config", **task}
    return ActionModule(MagicMock(**task), *(MagicMock(has_native_async=False) for _part in range(5)))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"targets": ["docker"]}, Packages()),
        ({"targets": ["docker", "crio"]}, Packages(("tomlkit",))),
        ({"targets": ["docker", "containerd"]}, Packages(("tomlkit",), ("yaml",))),
        ({"targets": ["containerd/k3s"]}, Packages(("tomlkit",), ("yaml",))),
        # After a change of another engine, the module cannot request a package.
        ({"targets": "crio, containerd/k3s"}, Packages(("tomlkit", "yaml"), ("yaml",))),
        ({"targets": 5}, Packages()),
        ({"targets": [], "engine": "crio"}, Packages(("tomlkit",))),
        ({"engine": "crio"}, Packages(("tomlkit",))),
    ],
)
def test_packages_of_all_targets(args: dict[str, t.Any], expected: Packages) -> None:
    assert new_action(args=args).packages() == expected


def failed(name: str, message: str) -> dict[str, t.Any]:
    return {"target": name, "changed": False, "error": message}


def configured(name: str, changed: bool = True, **values: t.Any) -> dict[str, t.Any]:
    return {
        "target": name, "changed": changed, "restart_required": changed, "restart_action": "restart",
        "pending_action": None, "runtimes": {}, "default_runtime": "runc", "backup_files": [],
        "service": f"{name}.service", "cdi": None, **values,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        # In the order of the option, and without others that a hostile user adds.
        (
            {"engines": [configured(name) for name in ("docker/rootless/eve", "crio", "docker")]},
            [configured("docker"), configured("crio")],
        ),
        (
            {"failed": True, "msg": "x", "engines": [failed("docker", "y"), configured("crio", changed=False)]},
            [failed("docker", "y"), configured("crio", changed=False)],
        ),
        ({"failed": True, "msg": "x"}, [failed("docker", "x"), failed("crio", "x")]),
        ({"engines": [5, {"target": ["crio"]}]}, [failed("docker", NONE_RETURNED), failed("crio", NONE_RETURNED)]),
        # A later task cannot use these.
        (
            {"engines": [configured("docker", runtimes="x"), {"target": "crio", "changed": True}]},
            [failed("docker", NONE_RETURNED), failed("crio", NONE_RETURNED)],
        ),
        (
            {"engines": [{**failed("docker", "x"), "error": {}}, {**failed("crio", "y"), "changed": "x"}]},
            [failed("docker", NONE_RETURNED), failed("crio", "y")],
        ),
        ({"engines": 5}, [failed("docker", NONE_RETURNED), failed("crio", NONE_RETURNED)]),
    ],
)
def test_one_result_for_each_target(
    monkeypatch: pytest.MonkeyPatch, returned: dict[str, t.Any], expected: list[dict[str, t.Any]]
) -> None:
    monkeypatch.setattr(_packing, "packed", lambda name, _cache: f"<{name}>")
    monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **_call: dict(returned))
    result = new_action(args={"targets": ["docker", "crio"]}).run(task_vars={})
    assert result["engines"] == expected


@pytest.mark.parametrize(
    ("task", "returned"),
    [
        ({"args": {"engine": "docker"}}, {"changed": False}),
        ({"args": {"targets": ["docker"]}}, {"skipped": True}),
        ({"args": {"targets": ["docker"]}, "async_val": 5}, {"started": 1}),
    ],
)
def test_other_tasks_have_no_engines(
    monkeypatch: pytest.MonkeyPatch, task: dict[str, t.Any], returned: dict[str, t.Any]
) -> None:
    monkeypatch.setattr(_packing, "packed", lambda name, _cache: f"<{name}>")
    monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **_call: dict(returned))
    assert "engines" not in new_action(**task).run(task_vars={})
