# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The results of modules are built again before Ansible shows them."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _results
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._results import Shape

EVIL = "a\x1b[2J\x9b\x7f\u202e\u2028\r\nok: [other]\tb"
LINE = "a\\x1b[2J\\x9b\\x7f\\u202e ok: [other] b"
LINES = "a\\x1b[2J\\x9b\\x7f\\u202e\\u2028\\x0d\nok: [other]\tb"
GPU_1 = "gpu-1: "
SHAPES = {
    "text": Shape("str"), "path": Shape("path"), "count": Shape("int"), "share": Shape("float"), "on": Shape("bool"),
    "texts": Shape("list", Shape("str")), "any": Shape("raw"), "names": Shape("dict"), "free": Shape("list"),
    "row": Shape("dict", contains={"name": Shape("str")}),
    "rows": Shape("list", Shape("dict", contains={"name": Shape("str"), "on": Shape("bool")})),
    "engines": Shape("list", Shape("dict")),
    "other": Shape("result", contains={"path": Shape("path")}), "error": Shape("str"),
}  # fmt: skip


def rebuilt(result: dict[str, t.Any], prefix: str = "") -> dict[str, t.Any]:
    return _results.rebuilt(result, SHAPES, prefix)


@pytest.mark.parametrize(
    "key",
    [
        "ansible_facts", "ansible_stats", "add_host", "add_group", "ansible_included_var_files", "_ansible_no_log",
        "_ansible_verbose_always", "_ansible_delegated_vars", "unreachable", "attempts", "retries", "results",
        "include", "notify", "item", "failed_when_result", "ansible_loop_var", "no_log", "meta", "a\x9b31m",
        "\u202etxet", "a\nb", "",
    ],
)  # fmt: skip
def test_only_known_keys_are_passed_on(key: str) -> None:
    given = {"text": "a", "changed": True, key: {"data": {"x": 1}}}
    assert rebuilt(given) == {"text": "a", "changed": True}
    assert json.loads(_results.rebuilt_output(json.dumps(given), SHAPES, "")) == {"text": "a", "changed": True}


@pytest.mark.parametrize(
    ("name", "kept", "dropped"),
    [
        ("text", ["a", "", None], [5, True, ["a"], {"a": 1}]),
        ("path", ["/etc", None], [5]),
        ("count", [5, -1, 0, None], [True, "5", 1.5, 1 << 63, 10**4000, float("inf")]),
        ("share", [5, 1.5, None], [True, "5", float("nan"), float("-inf")]),
        ("on", [True, False, None], [0, 1, "yes"]),
        ("texts", [["a", None], [], None], ["a", {"a": "b"}, 5]),
        ("any", ["a", 5, True, None, [1, {"a": [None]}], {"a": 1}], [float("inf")]),
        ("names", [{"a": {"b": [1]}}, {}, None], ["a", ["a"]]),
        ("free", [[1, "a", {"b": 1}]], ["a"]),
        ("row", [{"name": "a"}, {}, None], [["a"], "a"]),
        ("rows", [[{"name": "a", "on": True}], []], [{"name": "a"}]),
    ],
)
def test_values_have_their_types(name: str, kept: list[t.Any], dropped: list[t.Any]) -> None:
    assert [rebuilt({name: value}) for value in kept] == [{name: value} for value in kept]
    assert [rebuilt({name: value}) for value in dropped] == [{} for _value in dropped]


def test_parts_of_other_types_are_dropped() -> None:
    given = {"texts": ["a", 5, "b"], "row": {"name": 5, "more": 1}, "rows": [{"name": "a", "on": 1}, "b", {"x": 1}]}
    assert rebuilt(given) == {"texts": ["a", "b"], "row": {}, "rows": [{"name": "a"}, {}]}


def test_keys_of_free_values_are_cleaned_and_no_types_of_ansible() -> None:
    given = {EVIL: EVIL, "__ansible_type": "TaggedStr", "_ansible_x": 1, "a": {"__ansible_vault": "x", "b": [{}]}}
    assert rebuilt({"names": given}) == {"names": {LINES: LINES, "a": {"b": [{}]}}}


def test_a_failure_stays_a_failure() -> None:
    assert rebuilt({"failed": "yes", "changed": 1, "skipped": None}) == {
        "failed": True, "changed": True, "skipped": False,
    }  # fmt: skip


def test_deep_values_end() -> None:
    value: t.Any = "end"
    for _level in range(100):
        value = [value]
    assert "end" not in json.dumps(rebuilt({"any": value}))


@pytest.mark.parametrize("name", ["target", "service"])
def test_an_output_with_very_deep_names_is_no_result(name: str) -> None:
    output = f'{{"engines": [{{"{name}": {"[" * 990}{"]" * 990}}}], "failed": false}}'
    assert _results.rebuilt_output(output, SHAPES, "").startswith("> {")


def test_messages_are_one_line_and_other_texts_keep_line_breaks() -> None:
    result = {
        "msg": EVIL, "error": EVIL, "warnings": [EVIL], "deprecations": [{"msg": EVIL, "version": "2", "x": "y"}],
        "diff": [{"before": EVIL, "after": "a\n\tb\n", "before_header": EVIL, "more": 1}], "text": EVIL,
        "any": {"files": [{EVIL: [EVIL], "valid": True}]}, "changed": False, "count": 5, "path": None,
        "exception": EVIL,
    }  # fmt: skip
    assert rebuilt(result) == {
        "msg": LINE, "error": LINE, "warnings": [LINE], "deprecations": [{"msg": LINE, "version": "2"}],
        "diff": [{"before": LINES, "after": "a\n\tb\n", "before_header": LINE}], "text": LINES,
        "any": {"files": [{LINES: [LINES], "valid": True}]}, "changed": False, "count": 5, "path": None,
        "exception": LINES,
    }  # fmt: skip
    assert rebuilt({"diff": {"before": "a", "after": "b"}}) == {"diff": [{"before": "a", "after": "b"}]}
    assert _results.cleaned({"msg": "a\nb\x1b"}) == {"msg": "a\nb\\x1b"}


@dataclasses.dataclass(frozen=True)
class Event:
    msg: str
    formatted_traceback: str = ""
    events: tuple[t.Any, ...] = ()


def test_objects_of_newer_releases() -> None:
    """The controller has made them, and may have put texts of the host into them."""
    given = {
        "exception": Event(EVIL, EVIL, (Event(EVIL),)), "warnings": [Event(EVIL, EVIL)], "deprecations": [Event("")],
    }  # fmt: skip
    event = Event(LINE, LINES)
    expected = {"exception": Event(LINE, LINES, (Event(LINE),)), "warnings": [event], "deprecations": [Event("")]}
    assert rebuilt(given, GPU_1) == expected


def test_events_of_newer_releases_in_the_output_of_a_module() -> None:
    event = {"__ansible_type": "Event", "msg": EVIL, "formatted_traceback": EVIL}
    given = {
        "warnings": [{"__ansible_type": "WarningSummary", "event": event}, {"event": 5}, {}, 5],
        "deprecations": [{"__ansible_type": "DeprecationSummary", "event": event, "version": "3"}],
        "exception": {"__ansible_type": "ErrorSummary", "event": event},
    }
    assert rebuilt(given) == {
        "warnings": [LINE], "deprecations": [{"msg": LINE, "version": "3"}], "exception": LINES,
    }  # fmt: skip
    unusable = {"exception": {"event": 5}, "warnings": 5, "deprecations": ["text", {"msg": 5}]}
    assert rebuilt(unusable) == {"warnings": [], "deprecations": []}


def test_the_controller_writes_the_host_before_each_warning() -> None:
    warnings = ["forged", "gpu-2: forged", {"event": {"msg": "new"}}]
    given = {"warnings": warnings, "deprecations": [{"msg": "gpu-2: old"}]}
    assert rebuilt(given, GPU_1) == {
        "warnings": ["gpu-1: forged", "gpu-1: gpu-2: forged", "gpu-1: new"],
        "deprecations": [{"msg": "gpu-1: gpu-2: old"}],
    }


def test_the_number_and_size_of_messages_is_limited() -> None:
    found = rebuilt({"warnings": ["w" * 100_000] * 1000, "msg": "m" * 100_000, "module_stdout": "o" * 100_000})
    assert (len(found["warnings"]), {len(text) for text in found["warnings"]}) == (50, {8_000})
    assert (len(found["msg"]), len(found["module_stdout"])) == (8_000, 20_000)
    assert len(rebuilt({"deprecations": [{"msg": "d"}] * 1000})["deprecations"]) == 50


def test_a_deprecation_names_no_collection() -> None:
    """In ansible-core 2.19, a name that is none ends with an error of Ansible's own code."""
    given = {"msg": "d", "version": "2.0.0", "collection_name": "no name"}
    assert rebuilt({"deprecations": [given]}) == {"deprecations": [{"msg": "d", "version": "2.0.0"}]}


def test_the_result_of_another_module() -> None:
    given = {"other": {"path": "/a", "changed": False, "diff": [], "ansible_facts": {"a": 1}}}
    assert rebuilt(given) == {"other": {"path": "/a", "changed": False, "diff": []}}
    assert rebuilt({"other": ["a"]}) == {}


# -- names -------------------------------------------------------------------------------------------------------------


def test_exact_values_stay_exact() -> None:
    engine = {"target": "docker", "service": "docker.service", "runtimes": {"nvidia": "/usr/bin/ä"}, "problems": [EVIL]}
    found = rebuilt({"engines": [engine]}, GPU_1)
    assert found == {"engines": [{**engine, "problems": [LINES]}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service", EVIL), ("target", "docker\n"), ("user", "al\u202eice"),
        ("default_runtime", "\x85"), ("backup_files", [{"path": "/x\x7f"}]),
    ],
)  # fmt: skip
def test_names_with_control_characters_are_refused(name: str, value: t.Any) -> None:
    described = {"target": "docker", "service": "docker.service", name: value}
    output = json.dumps({"engines": [{"target": "crio"}, described], "warnings": ["w"]})
    found = json.loads(_results.rebuilt_output(output, SHAPES, GPU_1))
    assert found["engines"] == [{"target": "crio"}]
    assert found["warnings"][0] == "gpu-1: w"
    assert found["warnings"][1].startswith(
        "gpu-1: The host returned names with control characters, which are not used:"
    )
    assert found["warnings"][1].isprintable()
    rows = rebuilt({"engines": [{**described, "changed": True}]})["engines"]
    error = "Its names or files contain control characters."
    assert rows == ([] if name == "target" else [{"target": "docker", "changed": True, "error": error}])


def test_runtimes_with_control_characters_are_left_out() -> None:
    runtimes = {"nvidia": "/x", "nvi\x1bdia": "/x", "b": "/x\t"}
    found = rebuilt({"engines": [{"target": "docker", "runtimes": runtimes}]})
    assert found["engines"] == [{"target": "docker", "runtimes": {"nvidia": "/x"}}]
    assert found["warnings"][0].endswith("not used: runtime nvi\\x1bdia of docker, runtime b of docker")


# -- the output of a module --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"count": 1}', {"count": 1}),
        ('\n banner \x1b\n  {"any": {"b": [1]}} junk\nok: [other]', {"any": {"b": [1]}}),
        ('{"count": 1}{"count": 2}', {"count": 1}),
        ('{"count": 1e999, "share": NaN, "any": [-Infinity]}', {"any": []}),
    ],
)
def test_other_output_than_the_result_is_dropped(output: str, expected: t.Any) -> None:
    assert json.loads(_results.rebuilt_output(output, SHAPES, "")) == expected


@pytest.mark.parametrize("output", ["", "text", "\n\n", "Traceback (most recent call last)\n  x"])
def test_output_without_a_result_stays(output: str) -> None:
    assert _results.rebuilt_output(output, SHAPES, "") == "\n".join(output.splitlines())


@pytest.mark.parametrize(
    "output",
    [
        "{", "[1]", '{"a": ' * 100_000, '\x0b{"ansible_facts": {}}', '\u2028{"ansible_facts": {}}',
        '\xa0 {"warnings": ["x"]}', '{"text": "a"\n{"ansible_facts": {}}', f'{{"count": {"9" * 5000}}}', "x\r[{}]",
    ],
)  # fmt: skip
def test_output_that_cannot_be_read_has_no_line_that_ansible_reads(output: str) -> None:
    found = _results.rebuilt_output(output, SHAPES, "")
    assert not any(line.strip().startswith(("{", "[")) for line in found.splitlines())
    assert found.count("{") + found.count("[") > 0


def test_a_large_output_is_an_error() -> None:
    output = json.dumps({"text": "a" * _results.MOST_OUTPUT})
    assert json.loads(_results.rebuilt_output(output, SHAPES, "")) == {
        "failed": True, "msg": "The module returned more than 8 MiB.",
    }  # fmt: skip
    smaller = json.dumps({"text": "a" * (_results.MOST_OUTPUT - 100)})
    assert json.loads(_results.rebuilt_output(smaller, SHAPES, "")).keys() == {"text"}
