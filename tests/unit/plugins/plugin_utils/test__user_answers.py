# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What later tasks may use of a result that a named user can forge."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _user_answers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import engine

ALICE, BOB = "docker/rootless/alice", "docker/rootless/bob"
INFO, CONFIG = "nvidia_container_info", "nvidia_runtime_config"
ROW: dict[str, t.Any] = {
    "target": ALICE, "changed": True, "restart_required": False, "restart_action": "none", "pending_action": None,
    "runtimes": {"nvidia": "/usr/bin/nvidia-container-runtime"}, "default_runtime": "runc", "service": "docker.service",
    "backup_files": [{"path": "/home/alice/.config/docker/daemon.json", "backup": None, "checksum": "absent"}],
    "cdi": None,
}  # fmt: skip


def checked(module: str, **result: t.Any) -> dict[str, t.Any]:
    return _user_answers.checked(module, "alice", result)


def test_an_inspection_has_the_row_of_the_user_only() -> None:
    others = [engine(), engine(BOB, inspected=True), engine("containerd")]
    own = engine(ALICE, live={"version": "28.5.2"}, runtimes={"nvidia": "/x"})
    findings = [
        {"severity": "info", "id": "a", "subject": target, "text": "t", "advice": ""} for target in (ALICE, BOB)
    ]
    found = checked(
        INFO, changed=True, engines=[*others, {**own, "other": 1}], findings=findings, toolkit={}, skipped=True,
        ansible_facts={"a": 1}, results=[], unreachable=False, invocation={}, diff={},
    )  # fmt: skip
    assert found == {"changed": True, "engines": [own], "findings": findings[:1], "warnings": []}


def test_a_user_without_an_engine_is_no_error() -> None:
    assert checked(INFO, engines=[engine(), engine(BOB)])["engines"] == []


@pytest.mark.parametrize(
    "engines",
    [
        None, 5, {"target": ALICE}, [ALICE], [[engine(ALICE)]], [{}], [{"target": ALICE}], [engine(), 5],
        *([{**engine(ALICE), "target": target}] for target in ([ALICE], {"a": 1}, None, 5, True)),
        *([{**engine(ALICE), name: value}] for name, value in (
            ("engine", "crio"), ("flavor", "system"), ("user", None), ("user", "bob"), ("user", ["alice"]),
            ("inspected", "yes"), ("installed", 1), ("running", None), ("service", ["docker.service"]),
            ("recorded_files", "x"), ("recorded_files", [5]), ("problems", {}), ("problems", [{"code": 5}]),
            ("unfinished_restart", 0), ("runtimes", ["nvidia"]), ("runtimes", {"nvidia": 5}), ("pid", True),
            ("live", 5), ("default_runtime", {}), ("version", 28),
        )),
        *([{name: value for name, value in engine(ALICE).items() if name != missing}]
          for missing in ("target", "engine", "installed", "running", "problems")),
    ],
)  # fmt: skip
def test_wrong_types_of_an_inspection_are_a_failure(engines: t.Any) -> None:
    found = checked(INFO, engines=engines)
    assert found["failed"] is True
    assert "no usable result" in found["msg"]
    assert "engines" not in found


@pytest.mark.parametrize(("name", "value"), [("service", "docker\nok: [b]"), ("default_runtime", "a\x9b")])
def test_names_with_control_characters_are_a_failure(name: str, value: t.Any) -> None:
    for module, row in ((INFO, engine(ALICE)), (CONFIG, ROW)):
        found = checked(module, engines=[{**row, name: value}])
        assert (found["failed"], "control characters" in found["msg"]) == (True, True)


def test_a_configuration_has_the_row_of_the_user_only() -> None:
    rows = [{**ROW, "target": "docker"}, {**ROW, "target": BOB}, {**ROW, "other": 1, "unrecorded": ["/x"]}]
    found = checked(CONFIG, changed=True, engines=rows, diff=[{"before": "a", "after": "b"}])
    assert found == {"changed": True, "engines": [{**ROW, "unrecorded": ["/x"]}], "warnings": [],
                     "diff": [{"before": "a", "after": "b"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"target": ALICE, "changed": True, "error": "line 1\nok: [other]"}, "line 1 ok: [other]"),
        ({"target": ALICE, "changed": "yes", "error": ["x"]}, "The module returned no usable result."),
        ({"target": ALICE, "error": "x" * 1000}, "x" * 500 + "..."),
    ],
)
def test_errors_of_a_configuration_are_one_line(row: dict[str, t.Any], error: str) -> None:
    (found,) = checked(CONFIG, engines=[row])["engines"]
    assert found["error"].startswith(error)
    assert found["changed"] is (row.get("changed") is True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("changed", "yes"), ("restart_required", 1), ("restart_action", None), ("pending_action", []), ("runtimes", []),
        ("default_runtime", None), ("service", None), ("cdi", "yes"), ("backup_files", {}), ("backup_files", ["/x"]),
        ("backup_files", [{"path": ["/x"]}]), ("unrecorded", "x"), ("unrecorded", [{}]),
    ],
)  # fmt: skip
def test_wrong_types_of_a_configuration_are_a_failure(name: str, value: t.Any) -> None:
    assert checked(CONFIG, engines=[{**ROW, name: value}])["failed"] is True


@pytest.mark.parametrize("diff", [5, {"before": 5}, [{"before": ["x"]}], [5]])
def test_a_diff_of_another_type_is_dropped(diff: t.Any) -> None:
    assert checked(CONFIG, engines=[ROW], diff=diff)["diff"] == []


def test_values_of_other_modules() -> None:
    found = checked("nvidia_runtime_restart", changed=1, state="rolled_back", attempts="2", journal=["x"], work=[])
    assert found == {"changed": False, "state": "rolled_back", "journal": ["x"], "warnings": []}
    assert checked("nvidia_runtime_verify", changed=False, summary=["x"]) == {"changed": False, "warnings": []}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"failed": True, "msg": "a\x1b[2J\nb"}, "a\\x1b[2J b"),
        ({"failed": "no", "msg": "x" * 1000}, "x" * 500 + "..."),
        ({"failed": True}, "The module returned no usable result."),
        ({"failed": True, "msg": {"a": 1}}, "{'a': 1}"),
        ({"unreachable": True, "msg": "gone"}, "gone"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stdout": "a\nb\n", "module_stderr": ""},
         "The module returned no usable result. The user may have changed the process of the module. b"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stdout": "",
          "module_stderr": "Warning: Permanently added 'gpu-1' to the list\r\nsh: no python3\r\n"},
         "The module returned no usable result. The user may have changed the process of the module. sh: no python3"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stderr": "Shared connection to gpu-1 closed.\r\n",
          "module_stdout": "Traceback (most recent call last):\r\n  File\r\nValueError: no\r\n"},
         "The module returned no usable result. The user may have changed the process of the module. ValueError: no"),
        ({"failed": True, "msg": "MODULE FAILURE", "module_stdout": ""},
         "The module returned no usable result. The user may have changed the process of the module."),
    ],
)  # fmt: skip
def test_a_failure_has_a_message(result: dict[str, t.Any], message: str) -> None:
    for module in (INFO, CONFIG, "nvidia_runtime_restart", "nvidia_runtime_verify"):
        found = checked(module, **result)
        assert (found["failed"], found["msg"][: len(message)]) == (True, message)
        assert not found.get("unreachable")


def test_results_that_are_too_large_or_too_deep_are_a_failure() -> None:
    deep: t.Any = []
    for _level in range(50_000):
        deep = [deep]
    for large in (deep, ["x"] * 20_000, "x" * 2_000_000, {"x" * 2_000_000: 1}):
        assert checked(INFO, engines=[engine(ALICE)], other=large)["failed"] is True
