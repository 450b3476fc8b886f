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
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import SETTINGS, engine

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
        # In the order of the option, and without others that a hostile host adds.
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
    monkeypatch.setattr(_packing, "pack_once", lambda name, _cache: f"<{name}>")
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
    monkeypatch.setattr(_packing, "pack_once", lambda name, _cache: f"<{name}>")
    monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **_call: dict(returned))
    assert "engines" not in new_action(**task).run(task_vars={})


# -- the task of the role ----------------------------------------------------------------------------------------------


class RoleTask:
    """A task of the role nvidia_runtime, and the modules that it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: dict[str, t.Any]) -> None:
        self.calls: list[tuple[str, dict[str, t.Any]]] = []
        self._answers = answers
        monkeypatch.setattr(_packing, "pack_once", lambda _name, _cache: None)
        monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **call: self._answer(**call))

    def _answer(self, module_name: str, module_args: dict[str, t.Any], **_call: t.Any) -> dict[str, t.Any]:
        name = module_name.rpartition(".")[2]
        self.calls.append((name, module_args))
        return dict(self._answers[name])

    def run(self, variables: dict[str, t.Any] | None = None, **settings: t.Any) -> dict[str, t.Any]:
        args = {"targets": "selected", "backup_dir": "/b", "set_as_default": True, "require_runtime": True}
        action = new_action(args=args, failed_when=None, ignore_errors=False, loop=None)
        action._templar.template = lambda value: value
        action._task.get_play.return_value._uuid = "the play"
        known = {"nvidia_runtime_settings": {**SETTINGS, **settings}, "inventory_hostname": "host", **(variables or {})}
        result: dict[str, t.Any] = action.run(task_vars=known)
        return result


def test_the_role_inspects_a_host_that_was_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    info, config = {"engines": [engine(), engine("containerd/k3s")]}, {"changed": True, "engines": []}
    task = RoleTask(monkeypatch, nvidia_container_info=info, nvidia_runtime_config=config)
    result = task.run()
    assert [(name, args.get("targets")) for name, args in task.calls] == [
        ("nvidia_container_info", None), ("nvidia_runtime_config", ["docker", "containerd/k3s"]),
    ]  # fmt: skip
    assert task.calls[0][1]["require_root"] is True
    assert result["errors"] == [f"docker: {NONE_RETURNED}", f"containerd/k3s: {NONE_RETURNED}"]
    assert (result["changed"], result["work"], result.get("failed")) == (True, [], None)


@pytest.mark.parametrize(
    ("variables", "settings", "message"),
    [
        ({}, {}, "become is needed"),
        ({"nvidia_toolkit_info": {"engines": [engine()]}}, {"engines": ["docker", "crio"]},
         "nvidia_runtime_engines names crio, which this host does not have."),
    ],
)  # fmt: skip
def test_the_role_refuses_before_any_change(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, t.Any], settings: dict[str, t.Any], message: str
) -> None:
    task = RoleTask(monkeypatch, nvidia_container_info={"failed": True, "msg": "become is needed"})
    result = task.run(variables, **settings)
    assert (result["failed"], result["msg"][: len(message)]) == (True, message)
    assert "nvidia_runtime_config" not in dict(task.calls)


def test_a_play_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    alice = "docker/rootless/alice"
    info = {"engines": [engine(alice), engine("docker")]}
    result = configured(alice, ansible_facts={"a": 1}, service="docker.service")
    answer = {"changed": True, "engines": [result], "ansible_facts": {"nvidia_runtime_engines": ["docker"]}}
    task = RoleTask(monkeypatch, nvidia_container_info=info, nvidia_runtime_config=answer)
    found = task.run(flavor="rootless")
    ((_info, of_info), (_config, args)) = task.calls
    assert of_info["require_root"] is False
    # Only root can write to the directory of the option.
    assert (args["targets"], "backup_dir" in args) == ([alice], False)
    (entry,) = found["work"]
    assert (entry["user"], entry["action"], entry["engine_info"]["target"]) == ("alice", "restart", alice)
    assert "nvidia_runtime_engines" not in str(found)


def test_a_host_without_the_engine_runs_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    task = RoleTask(monkeypatch)
    result = task.run({"nvidia_toolkit_info": {"engines": [engine()]}}, flavor="rootless")
    assert (result["changed"], result["engines"], result["work"], task.calls) == (False, [], [], [])


def test_a_second_run_keeps_the_work_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handlers run once, for both runs."""
    changed = configured("docker", pending_action="restart", backup_files=[{"path": "/x"}])
    task = RoleTask(monkeypatch, nvidia_runtime_config={"changed": True, "engines": [changed]})
    known: dict[str, t.Any] = {"nvidia_toolkit_info": {"engines": [engine()]}}
    known["nvidia_runtime_result"] = task.run(known)
    other: dict[str, t.Any] = {
        "host_root": "/srv",
        "host_root_live": True,
        "toolkit_host_root": "/srv",
        "toolkit_host_root_live": True,
    }
    both = task.run(known, **other)
    assert [entry["engine_info"]["host_root"] for entry in both["work"]] == ["/", "/srv"]
    # The same engine again, before and after the handlers.
    again = task.run(known)
    assert [len(entry["rollback"]) for entry in again["work"]] == [2]
    known["nvidia_runtime_completed"] = [entry["id"] for entry in known["nvidia_runtime_result"]["work"]]
    assert [len(entry["rollback"]) for entry in task.run(known)["work"]] == [1]


def test_errors_with_which_the_host_has_failed_are_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A play can rescue a host that failed in the role, and run the role again."""
    task = RoleTask(monkeypatch, nvidia_runtime_config={"failed": True, "msg": "line 1"})
    known: dict[str, t.Any] = {"nvidia_toolkit_info": {"engines": [engine()]}}
    known["nvidia_runtime_result"] = task.run(known)
    known["nvidia_toolkit_info"] = {"engines": []}
    assert task.run(known)["errors"] == ["docker: line 1"]
    known["nvidia_runtime_reported_errors"] = ["docker: line 1"]
    assert task.run(known)["errors"] == []


def test_warnings_name_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    task = RoleTask(monkeypatch, nvidia_runtime_config={"changed": False})
    (warning,) = task.run({"nvidia_toolkit_info": {"engines": []}})["warnings"]
    assert warning.startswith("host: No container engine was found on this host")
