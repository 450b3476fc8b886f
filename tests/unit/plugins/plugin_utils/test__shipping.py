# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the controller's half")

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.action import (
    nvidia_cdi_refresh,
    nvidia_cdi_spec,
    nvidia_container_info,
    nvidia_runtime_config,
    nvidia_runtime_restart,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.bundled import PACKAGES
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _shipping
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import pack

RESULT = {"changed": True, "diff": [{"before": "", "after": "x"}], "invocation": {"module_args": {}}}


class Run(t.NamedTuple):
    result: dict[str, t.Any]
    task_args: dict[str, t.Any]
    sent: dict[str, t.Any]
    call: dict[str, t.Any]


@pytest.fixture(scope="module")
def packed_tomlkit() -> str:
    shipment = pack("tomlkit")
    assert shipment is not None
    return shipment


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., Run]:
    """Runs the action plugin up to where Ansible would send the module."""
    calls: list[dict[str, t.Any]] = []

    def execute(_self: ActionBase, **call: t.Any) -> dict[str, t.Any]:
        calls.append(call)
        return dict(RESULT)

    monkeypatch.setattr(ActionBase, "_execute_module", execute)

    def run(async_val: int = 0, check_mode: bool = False, **args: t.Any) -> Run:
        task = MagicMock(args=args, async_val=async_val, check_mode=check_mode, action="gpufleet.nvidia.x")
        action: t.Any = _shipping.ShippingAction(task, *(MagicMock(has_native_async=False) for _part in range(5)))
        result = action.run(task_vars={"a": 1})
        (call,) = calls
        return Run(result, args, call.pop("module_args"), call)

    return run


@pytest.mark.parametrize(("engine", "check_mode"), [("containerd", False), ("crio", True)])
def test_engines_of_toml_take_tomlkit_along(
    run: t.Callable[..., Run], packed_tomlkit: str, engine: str, check_mode: bool
) -> None:
    done = run(engine=engine, state="absent", check_mode=check_mode)
    assert done.sent == {"engine": engine, "state": "absent", "shipped_tomlkit": packed_tomlkit}
    assert done.task_args == {"engine": engine, "state": "absent"}


@pytest.mark.parametrize("engine", ["docker", "unknown", "", None, ["containerd"], {"a": 1}, 5])
def test_nothing_else_travels(run: t.Callable[..., Run], engine: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shipping, "packed", lambda *_args: pytest.fail("was packed"))
    assert run(engine=engine).sent == {"engine": engine}


def test_no_engine_is_the_modules_business(run: t.Callable[..., Run]) -> None:
    assert run().sent == {}


def test_a_controller_without_tomlkit_sends_none(run: t.Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shipping, "packed", lambda *_args: None)
    assert run(engine="containerd").sent == {"engine": "containerd"}


@pytest.mark.parametrize("async_val", [0, 60])
def test_all_else_is_as_without_the_plugin(run: t.Callable[..., Run], async_val: int) -> None:
    done = run(engine="crio", async_val=async_val)
    assert done.result == RESULT
    assert set(done.call) == {"task_vars", "wrap_async"}
    assert done.call["task_vars"] == {"a": 1}
    assert bool(done.call["wrap_async"]) is bool(async_val)


def test_whatever_travels_is_in_the_table_of_packages() -> None:
    tables = (_shipping.PACKAGES_OF_ENGINE, _shipping.PACKAGES_OF_MODULE, _shipping.PACKAGES_OF_LEVEL)
    rows = [packages for table in tables for packages in table.values()]
    assert {name for row in rows for name in (*row.always, *row.on_demand)} == set(PACKAGES)


@pytest.mark.parametrize(
    "plugin",
    [nvidia_runtime_config, nvidia_runtime_restart, nvidia_cdi_spec, nvidia_cdi_refresh, nvidia_container_info],
)
def test_every_module_that_reads_configurations_has_it(plugin: t.Any) -> None:
    assert issubclass(plugin.ActionModule, _shipping.ShippingAction)


UNANSWERED = {"failed": True, "module_stdout": "", "module_stderr": "SyntaxError", "msg": "x", "rc": 1}


@pytest.mark.parametrize(
    ("result", "printed", "message"),
    [
        (UNANSWERED, "3.6\n", "/usr/bin/python3 on the host is Python 3.6, but Python 3."),
        (UNANSWERED, "2.7\r\n", "/usr/bin/python3 on the host is Python 2.7, but Python 3."),
        (UNANSWERED, "3.99\n", "x"),
        (UNANSWERED, "3.6 {{ template }}", "x"),
        # A module that answers ran on a Python that it supports.
        ({"failed": True, "msg": "x"}, None, "x"),
    ],
)
def test_a_python_that_is_too_old_is_reported(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, t.Any], printed: str | None, message: str
) -> None:
    def execute(action: t.Any, **_call: t.Any) -> dict[str, t.Any]:
        action._used_interpreter = "#!/usr/bin/python3"
        return dict(result)

    def ask(_action: ActionBase, command: str) -> dict[str, t.Any]:
        assert command.startswith("/usr/bin/python3 -c ")
        assert printed is not None
        return {"stdout": printed}

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    monkeypatch.setattr(ActionBase, "_low_level_execute_command", ask)
    task = MagicMock(args={}, async_val=0, check_mode=False, action="gpufleet.nvidia.x")
    action: t.Any = _shipping.ShippingAction(task, *(MagicMock(has_native_async=False) for _part in range(5)))
    done = action.run(task_vars={})
    assert done["msg"].startswith(message)
    assert ("module_stderr" in done) == (result is UNANSWERED and message == "x")


NEEDED = {"failed": True, "msg": "No PyYAML.", "needed": "yaml"}


class Demanding(_shipping.ShippingAction):
    """Sends tomlkit in any case, and PyYAML on demand."""

    def packages(self) -> tuple[str, ...]:
        return ("tomlkit",)

    def packages_on_demand(self) -> tuple[str, ...]:
        return ("yaml",)


class TestOnDemand:
    @pytest.fixture(autouse=True)
    def _no_packing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packed: list[str] = []

        def packed(name: str, _cache: str) -> str | None:
            self.packed.append(name)
            return f"<{name}>"

        monkeypatch.setattr(_shipping, "packed", packed)

    def run(
        self, monkeypatch: pytest.MonkeyPatch, *results: dict[str, t.Any], async_val: int = 0
    ) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
        """The action's result, and the arguments of each run of the module; ``results`` is what they return."""
        sent: list[dict[str, t.Any]] = []
        answers = iter(results)

        def execute(_self: ActionBase, module_args: dict[str, t.Any], **call: t.Any) -> dict[str, t.Any]:
            assert call["task_vars"] == {"a": 1}
            sent.append(dict(module_args))
            # As Ansible does.
            module_args["_ansible_check_mode"] = False
            return dict(next(answers))

        monkeypatch.setattr(ActionBase, "_execute_module", execute)
        task = MagicMock(args={"path": "/x"}, async_val=async_val, check_mode=False, action="gpufleet.nvidia.x")
        action: t.Any = Demanding(task, *(MagicMock(has_native_async=False) for _part in range(5)))
        result = action.run(task_vars={"a": 1})
        assert task.args == {"path": "/x"}
        return result, sent

    def test_a_host_that_asks_for_nothing_gets_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result, sent = self.run(monkeypatch, RESULT)
        assert result == RESULT
        assert sent == [{"path": "/x", "shipped_tomlkit": "<tomlkit>"}]
        assert self.packed == ["tomlkit"]

    def test_a_host_that_asks_gets_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result, sent = self.run(monkeypatch, NEEDED, RESULT)
        assert result == RESULT
        first = {"path": "/x", "shipped_tomlkit": "<tomlkit>"}
        assert sent == [first, {**first, "shipped_yaml": "<yaml>"}]

    def test_a_host_that_asks_again_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result, sent = self.run(monkeypatch, NEEDED, NEEDED)
        assert result == {"failed": True, "msg": "No PyYAML.", "error": "No PyYAML."}
        assert len(sent) == 2

    def test_a_controller_that_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_shipping, "packed", lambda *_args: None)
        result, sent = self.run(monkeypatch, NEEDED)
        assert result == {"failed": True, "msg": "No PyYAML.", "error": "No PyYAML."}
        assert sent == [{"path": "/x"}]

    def test_in_the_background_it_travels_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result, sent = self.run(monkeypatch, RESULT, async_val=60)
        assert result == RESULT
        assert sent == [{"path": "/x", "shipped_tomlkit": "<tomlkit>", "shipped_yaml": "<yaml>"}]

    def test_what_travelled_in_any_case_is_not_sent_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        result, sent = self.run(monkeypatch, {**NEEDED, "needed": "tomlkit"})
        assert result == {"failed": True, "msg": "No PyYAML.", "error": "No PyYAML."}
        assert len(sent) == 1

    @pytest.mark.parametrize("needed", ["toolkit", None, ["yaml"]])
    def test_what_is_somebody_elses_business_stays(self, monkeypatch: pytest.MonkeyPatch, needed: object) -> None:
        result, sent = self.run(monkeypatch, {"needed": needed})
        assert result == {"needed": needed}
        assert len(sent) == 1


@pytest.mark.parametrize("discovered", [{}, {"discovered_interpreter_python": "/usr/bin/python3.13"}])
def test_a_forged_answer_changes_no_other_task(monkeypatch: pytest.MonkeyPatch, discovered: dict[str, str]) -> None:
    """A hostile host, or a user as whom a module runs, can return anything."""
    facts = {"ansible_become": False, "nvidia_audit_dir": "/etc", "discovered_interpreter_python": "/home/x/python"}
    forged = {"ansible_facts": facts, "add_host": {"host_name": "x"}, "add_group": "x"}
    monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **_call: {**RESULT, **forged})
    task = MagicMock(args={"engine": "docker"}, async_val=0, check_mode=False, action="gpufleet.nvidia.x")
    action: t.Any = _shipping.ShippingAction(task, *(MagicMock(has_native_async=False) for _part in range(5)))
    for name, interpreter in discovered.items():
        action._discovered_interpreter_key, action._discovered_interpreter = name, interpreter
    result = action.run(task_vars={})
    assert result.pop("ansible_facts", {}) == discovered
    assert not forged.keys() & result.keys()


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("raised", [True, False])
def test_a_role_that_continues_after_an_error_finds_it(
    monkeypatch: pytest.MonkeyPatch, continues: bool, raised: bool
) -> None:
    """Also one of Ansible itself, such as a user that it cannot become: other items of a loop are still to be run."""

    def execute(_self: t.Any, **_call: t.Any) -> dict[str, t.Any]:
        if raised:
            raise AnsibleError("x")
        return {"failed": True, "msg": "x", "error": "forged"}

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    task = MagicMock(args={}, async_val=0, check_mode=False, action="gpufleet.nvidia.x")
    task.failed_when = [False] if continues else []
    action: t.Any = _shipping.ShippingAction(task, *(MagicMock(has_native_async=False) for _part in range(5)))
    assert action.run(task_vars={}) == {"failed": True, "msg": "x", **({"error": "x"} if continues else {})}
