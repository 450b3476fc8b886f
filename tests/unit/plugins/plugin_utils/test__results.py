# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The results of actions are clean before Ansible shows them."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _results

EVIL = "a\x1b[2J\x9b\x7f\u202e\u2028\r\nok: [other]\tb"
LINE = "a\\x1b[2J\\x9b\\x7f\\u202e ok: [other] b"
LINES = "a\\x1b[2J\\x9b\\x7f\\u202e\\u2028\\x0d\nok: [other]\tb"


def test_messages_are_one_line_and_other_texts_keep_line_breaks() -> None:
    result = {
        "msg": EVIL, "error": EVIL, "warnings": [EVIL], "deprecations": [{"msg": EVIL, "version": "2"}],
        "diff": [{"before": EVIL, "after": "a\n\tb\n", "before_header": EVIL}], "output": EVIL,
        "cdi": {"files": [{EVIL: (EVIL,), "valid": True}]}, "changed": False, "count": 5, "nothing": None,
    }  # fmt: skip
    assert _results.cleaned(result) == {
        "msg": LINE, "error": LINE, "warnings": [LINE], "deprecations": [{"msg": LINE, "version": "2"}],
        "diff": [{"before": LINES, "after": "a\n\tb\n", "before_header": LINE}], "output": LINES,
        "cdi": {"files": [{LINES: (LINES,), "valid": True}]}, "changed": False, "count": 5, "nothing": None,
    }  # fmt: skip
    assert _results.cleaned({"msg": "a\nb"}, keep_lines=True) == {"msg": "a\nb"}


@dataclasses.dataclass(frozen=True)
class Event:
    msg: str
    formatted_traceback: str = ""
    events: tuple[t.Any, ...] = ()


def test_objects_of_newer_releases() -> None:
    given = {"exception": Event(EVIL, EVIL, (Event(EVIL),)), "warnings": [Event(EVIL, EVIL)]}
    event = Event(LINE, LINES)
    assert _results.cleaned(given) == {"exception": Event(LINE, LINES, (Event(LINE),)), "warnings": [event]}


def test_exact_values_stay_exact() -> None:
    engine = {"target": "docker", "service": "docker.service", "runtimes": {"nvidia": "/usr/bin/ä"}, "problems": [EVIL]}
    found = _results.cleaned({"engines": [engine], "users_to_inspect": ["alice"]}, "gpu-1")
    assert found == {"engines": [{**engine, "problems": [LINES]}], "users_to_inspect": ["alice"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service", EVIL), ("target", "docker\n"), ("user", "al\u202eice"),
        ("default_runtime", "\x85"), ("backup_files", [{"path": "/x\x7f"}]),
    ],
)  # fmt: skip
def test_names_with_control_characters_are_refused(name: str, value: t.Any) -> None:
    described = {"target": "docker", "service": "docker.service", name: value}
    found = _results.cleaned({"engines": [{"target": "crio"}, described], "warnings": ["w"]}, "gpu-1")
    assert found["engines"] == [{"target": "crio"}]
    assert found["warnings"][0] == "w"
    assert found["warnings"][1].startswith(
        "gpu-1: The host returned names with control characters, which are not used:"
    )
    assert found["warnings"][1].isprintable()
    configured = {**described, "changed": True}
    rows = _results.cleaned({"engines": [configured]}, "gpu-1")["engines"]
    error = "Its names or files contain control characters."
    assert rows == ([] if name == "target" else [{"target": "docker", "changed": True, "error": error}])


def test_runtimes_with_control_characters_are_left_out() -> None:
    runtimes = {"nvidia": "/x", "nvi\x1bdia": "/x", "b": "/x\t"}
    found = _results.cleaned({"engines": [{"target": "docker", "runtimes": runtimes}]}, "gpu-1")
    assert found["engines"] == [{"target": "docker", "runtimes": {"nvidia": "/x"}}]
    assert found["warnings"][0].endswith("not used: runtime nvi\\x1bdia of docker, runtime b of docker")


def test_users_with_control_characters_are_refused() -> None:
    found = _results.cleaned({"users_to_inspect": ["alice", "b\x1bob", 5]}, "gpu-1")
    assert found["users_to_inspect"] == ["alice"]
    assert "user b\\x1bob, user 5" in found["warnings"][0]


# -- the output of a module --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"a": 1}', {"a": 1}), ('\n banner \x1b\n  {"a": {"b": [1]}} junk\nok: [other]', {"a": {"b": [1]}}),
        (json.dumps({"warnings": [EVIL, {"event": {"msg": EVIL}}], "msg": EVIL}),
         {"warnings": [LINE, {"event": {"msg": LINE}}], "msg": EVIL}),
    ],
)  # fmt: skip
def test_other_output_than_the_result_is_dropped(output: str, expected: t.Any) -> None:
    assert json.loads(_results.of_module(output)) == expected


@pytest.mark.parametrize("output", ["", "text", "{", "[1]", '{"a": ' * 100_000, "\n" * 100_000])
def test_output_without_a_result_stays(output: str) -> None:
    assert _results.of_module(output) == output


@pytest.mark.parametrize("warnings", [EVIL, {"a": 1}, 5, None])
def test_warnings_of_a_user_have_the_expected_type(warnings: t.Any) -> None:
    output = json.dumps({"warnings": warnings, "deprecations": 5, "exception": EVIL, "changed": True})
    assert json.loads(_results.of_module(output, "gpu-1: docker/rootless/alice: ")) == {"warnings": [], "changed": True}


def test_warnings_of_a_user_name_the_user() -> None:
    prefix = "gpu-1: docker/rootless/alice: "
    texts = [EVIL, "gpu-1: own", "gpu-2: forged", {"event": {"msg": "new"}}, 5, {"event": []}, "x" * 1000, *"abcdefgh"]
    found = json.loads(_results.of_module(json.dumps({"warnings": texts}), prefix))["warnings"]
    expected = [LINE, "own", "gpu-2: forged", "new", "x" * 500, *"abcde"]
    assert found == [f"{prefix}{text}" for text in expected]
