# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import (
    counted,
    host_row,
    lines_of,
    natural,
    needs_subject,
    report_of,
    text_of,
    texts,
)

EMPTY: dict[str, t.Any] = {"engines": [], "toolkit": {}, "gpus": {}, "cdi": {}, "findings": []}
TRACEBACK = 'Traceback (most recent call last):\n  File "x", line 1\nValueError: no\n'
CLOSED = "Shared connection to gpu-1 closed.\r\n"
NAMES = st.sampled_from([
    "engines", "toolkit", "gpus", "cdi", "findings", "unreachable", "failed", "msg", "module_stderr", "severity", "id",
    "subject", "text", "advice", "engine", "flavor", "target", "version", "default_runtime", "devices", "healthy",
    "mig_devices", "model", "files", "kind", "valid", "stale", "path", "packages", "programs", "known_cves", "name",
    "gpu", "driver_version", "running",
])  # fmt: skip
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["critical", "nvidia.com/gpu"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=8),
    max_leaves=30,
)


def finding(severity: str, name: str = "name", subject: str = "docker", advice: str = "Do it.") -> dict[str, str]:
    return {"severity": severity, "id": name, "subject": subject, "text": "It is so.", "advice": advice}


def host(*severities: str, **parts: t.Any) -> dict[str, t.Any]:
    return {
        **EMPTY,
        "findings": [finding(severity, f"{severity}-{n}") for n, severity in enumerate(severities)],
        **parts,
    }


def row(**parts: t.Any) -> dict[str, t.Any]:
    return host_row("gpu-1", {**EMPTY, **parts})


# -- the fleet -------------------------------------------------------------------------------------------------------


def test_hosts_are_sorted_by_severity() -> None:
    results = {
        "gpu-10": host(),
        "gpu-2": host(),
        "noted": host("info", "info"),
        "warned": host("warning"),
        "warned-twice": host("warning", "warning"),
        "bad": host("critical"),
        "bad-and-warned": host("critical", "warning"),
        "gone": {"unreachable": True, "msg": "No route to host"},
    }
    hosts = [found["host"] for found in report_of(results)["hosts"]]
    assert hosts == ["bad-and-warned", "bad", "gone", "warned-twice", "warned", "noted", "gpu-2", "gpu-10"]


def test_totals_count_hosts_and_findings() -> None:
    results = {
        "a": host("critical", "warning", "warning", gpus={"devices": [{"healthy": False}, {"healthy": True}]}),
        "b": host("info", toolkit={"known_cves": [{"name": "CVE-1"}]}, cdi={"files": []}),
        "c": host(),
        "d": {"failed": True, "msg": "no"},
        "e": {"unreachable": True, "msg": "no"},
    }
    totals = report_of(results)["totals"]
    assert totals["hosts"] == 5
    assert (totals["unreachable"], totals["failed"]) == (1, 1)
    assert totals["hosts_by_severity"] == {"critical": 3, "warning": 0, "info": 1, "none": 1}
    assert totals["findings"] == {"critical": 3, "warning": 2, "info": 1}
    assert (totals["gpus"], totals["unhealthy_gpus"], totals["hosts_with_known_cves"]) == (2, 1, 1)
    assert totals["cdi"] == {"none": 1, "not read": 4}


def test_totals_by_finding() -> None:
    results = {
        "a": {**EMPTY, "findings": [finding("info", "x"), finding("info", "x", "crio"), finding("info", "y")]},
        "b": {**EMPTY, "findings": [finding("warning", "x")]},
        "c": {**EMPTY, "findings": [finding("info", "z"), finding("critical", "w")]},
        "d": {**EMPTY, "findings": [finding("info", "z")]},
    }
    assert [tuple(found.values()) for found in report_of(results)["totals"]["by_finding"]] == [
        ("w", "critical", 1),
        ("x", "warning", 2),
        ("z", "info", 2),
        ("y", "info", 1),
    ]


def test_report_is_reproducible() -> None:
    results = {"b": host("info"), "a": host("info")}
    assert json.dumps(report_of(results)) == json.dumps(report_of(dict(reversed(list(results.items())))))
    assert report_of(results)["generated"] is None
    assert report_of(results, "today")["generated"] == "today"


def test_report_without_hosts() -> None:
    report = report_of({})
    assert report["hosts"] == []
    assert lines_of(report, 5)[0].startswith("0 hosts: ")
    assert "No host matches." in page_of(report)
    assert "0 with a warning at most" in lines_of(report, 5)[0]
    assert "a warning at most" in page_of(report)


# -- one host --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "state", "reason", "name"),
    [
        ({"unreachable": True, "msg": "No route to host"}, "unreachable", "No route to host", "host-unreachable"),
        ({"unreachable": True}, "unreachable", "Ansible reports no reason.", "host-unreachable"),
        ({"failed": True, "msg": "host_root is relative."}, "failed", "host_root is relative.", "inspection-failed"),
        ({"failed": True}, "failed", "The module reports no reason.", "inspection-failed"),
        (
            {"failed": True, "msg": "MODULE FAILURE\nSee stdout", "module_stdout": "sh: python3: not found\r\n"},
            "failed", "sh: python3: not found", "inspection-failed",
        ),
        (
            {"failed": True, "msg": "No JSON.", "module_stderr": "Warning: Permanently added\npython3: not found\n"},
            "failed", "No JSON. python3: not found", "inspection-failed",
        ),
        ({"failed": True, "msg": "It broke.", "module_stderr": TRACEBACK}, "failed", "It broke. ValueError: no",
         "inspection-failed"),
        (
            {"failed": True, "msg": "It broke.", "module_stderr": TRACEBACK.replace("File", "File " * 1000)},
            "failed", "It broke. ValueError: no", "inspection-failed",
        ),
        # With ssh -tt, the module prints everything to the standard output.
        (
            {"failed": True, "msg": "It broke.", "module_stderr": CLOSED, "module_stdout": TRACEBACK},
            "failed", "It broke. ValueError: no", "inspection-failed",
        ),
        (
            {"failed": True, "msg": "It broke.", "module_stderr": CLOSED, "module_stdout": "\r\nsh: not found\r\n"},
            "failed", "It broke. sh: not found", "inspection-failed",
        ),
        ({"failed": True, "msg": "It broke.", "module_stderr": CLOSED}, "failed", "It broke.", "inspection-failed"),
        ({"failed": True, "msg": "It broke.", "module_stdout": 5}, "failed", "It broke.", "inspection-failed"),
        # A name that differs in each run.
        ({"unreachable": True, "msg": "mkdir /x/ansible-tmp-1763.5-1-22"}, "unreachable", "mkdir /x/ansible-tmp",
         "host-unreachable"),
        (None, "failed", "The audit has no result for this host.", "inspection-failed"),
        ("odd", "failed", "The audit has no result for this host.", "inspection-failed"),
        ({"changed": False}, "failed", "The audit has no result for this host.",
         "inspection-failed"),
    ],
)  # fmt: skip
def test_host_that_was_not_read(result: object, state: str, reason: str, name: str) -> None:
    found = host_row("gone", result)
    assert (found["state"], found["reason"], found["severity"]) == (state, reason, "critical")
    assert [(one["id"], one["text"]) for one in found["findings"]] == [(name, reason)]
    assert found["counts"] == {"critical": 1, "warning": 0, "info": 0}
    assert (found["driver"], found["engines"], found["cdi"]["state"]) == (None, [], None)
    assert found["toolkit"]["installed"] is None


def test_values_of_a_failed_host_are_ignored() -> None:
    found = host_row("a", {**host("info", gpus={"driver_version": "580.1"}), "failed": True, "msg": "no"})
    assert found["driver"] is None
    assert [one["id"] for one in found["findings"]] == ["inspection-failed"]


def test_healthy_host() -> None:
    found = host_row("gpu-1", EMPTY)
    assert (found["state"], found["reason"], found["severity"]) == ("ok", None, None)
    assert found["counts"] == {"critical": 0, "warning": 0, "info": 0}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([finding("info"), finding("critical"), finding("warning")], ["critical", "warning", "info"]),
        ([finding("info"), finding("info")], ["info"]),
        # An unknown severity is a warning.
        ([finding("fatal")], ["warning"]),
        ([{"text": "It is so."}], ["warning"]),
        ([{"severity": ["critical"]}], ["warning"]),
        ([None, 5, "critical", []], []),
        ("critical", []),
        (None, []),
    ],
)
def test_findings(reported: object, expected: list[str]) -> None:
    found = row(findings=reported)
    assert [one["severity"] for one in found["findings"]] == expected
    assert found["severity"] == (expected[0] if expected else None)


def test_finding_without_values() -> None:
    (found,) = row(findings=[{"severity": "info"}])["findings"]
    assert found == {
        "severity": "info", "id": "unnamed", "subject": "host", "text": "No description.", "advice": "",
    }  # fmt: skip


def test_long_text_is_cut() -> None:
    (found,) = row(findings=[{**finding("info"), "text": "x" * 100_000}])["findings"]
    assert len(found["text"]) == 2001


@pytest.mark.parametrize(
    ("gpus", "expected"), [({"driver_version": "580.1"}, "580.1"), ({}, None), ({"driver_version": True}, None)]
)
def test_driver(gpus: object, expected: str | None) -> None:
    assert row(gpus=gpus)["driver"] == expected


@pytest.mark.parametrize(
    ("gpus", "toolkit", "expected"),
    [
        ({}, {}, (None, None, {}, 0)),
        (None, {"gpu": {"present": False}}, (False, None, {}, 0)),
        ({"devices": []}, {"gpu": {"present": True}}, (True, 0, {}, 0)),
        ({"devices": [{"model": "B"}, {"model": "A"}, {"model": "B", "healthy": True}]}, {},
         (True, 3, {"A": 1, "B": 2}, 0)),
        ({"devices": [{"healthy": False}, {"mig_devices": [{"healthy": True}, {"healthy": False}]}]}, {},
         (True, 2, {"unknown": 2}, 2)),
        ({"devices": [None, 4]}, {"gpu": []}, (None, 0, {}, 0)),
    ],
)  # fmt: skip
def test_gpus(gpus: object, toolkit: object, expected: tuple[object, ...]) -> None:
    assert tuple(row(gpus=gpus, toolkit=toolkit)["gpus"].values()) == expected


@pytest.mark.parametrize(
    ("toolkit", "expected"),
    [
        (None, (None, [], None, None)),
        ({"version": "1.19.1", "known_cves": []}, ("1.19.1", ["1.19.1"], True, [])),
        ({"version": None, "packages": {}, "programs": {}, "known_cves": []}, (None, [], False, [])),
        (
            {
                "packages": {"a": {"version": "1.19.1-1"}, "b": {"version": "1.17.8-1.el9"}},
                "programs": {"c": {"version": "1.19.1"}, "d": {"version": None}},
                "known_cves": [{"name": "CVE-1"}, {"name": None}, "CVE-2", {"name": "CVE-3"}],
            },
            (None, ["1.17.8", "1.19.1"], True, ["CVE-1", "CVE-3"]),
        ),
        ({"packages": [1], "programs": "x", "known_cves": None, "gpu": {}}, (None, [], False, None)),
        # Toolkits in other directories that engines use.
        (
            {
                "version": "1.19.0",
                "known_cves": [{"name": "CVE-1"}],
                "other_toolkits": [{"known_cves": [{"name": "CVE-2"}, {"name": "CVE-1"}]}, {"known_cves": None}, "x"],
            },
            ("1.19.0", ["1.19.0"], True, ["CVE-1", "CVE-2"]),
        ),
        (
            {"version": "1.19.0", "other_toolkits": [{"version": "1.17.7", "programs": {"a": {"version": "1.17.7"}}}]},
            ("1.19.0", ["1.17.7", "1.19.0"], True, None),
        ),
        (
            {"version": None, "other_toolkits": [{"version": "1.17.7", "programs": {"a": {"version": "1.17.7"}}}]},
            ("1.17.7", ["1.17.7"], True, None),
        ),
        ({"other_toolkits": [{"version": None, "programs": {"a": {"version": None}}}]}, (None, [], True, None)),
    ],
)
def test_toolkit(toolkit: object, expected: tuple[object, ...]) -> None:
    assert tuple(row(toolkit=toolkit)["toolkit"].values()) == expected


def test_engines() -> None:
    engines = [
        {"engine": "docker", "flavor": "rootless", "user": "alice", "target": "docker/rootless/alice",
         "version": "28.5", "installed": True, "running": False, "default_runtime": "nvidia", "restart_required": True},
        {"engine": "crio", "unfinished_restart": True},
        {"engine": "podman", "restart_required": None, "running": "yes"},
        "odd",
    ]  # fmt: skip
    alice, crio, podman = row(engines=engines)["engines"]
    assert alice == {
        "engine": "docker", "flavor": "rootless", "user": "alice", "target": "docker/rootless/alice", "version": "28.5",
        "installed": True, "running": False, "default_runtime": "nvidia", "restart_pending": True,
    }  # fmt: skip
    assert (crio["target"], crio["restart_pending"], crio["running"]) == ("crio", True, None)
    assert (podman["restart_pending"], podman["running"]) == (False, None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (None, None),
        ([], "none"),
        ([{"kind": "example.com/net", "valid": False}], "none"),
        ([{"kind": "nvidia.com/gpu", "valid": True, "stale": False}], "fresh"),
        ([{"kind": "nvidia.com/gpu", "valid": True, "stale": True}], "stale"),
        ([{"kind": "nvidia.com/gpu", "valid": None}], "unknown"),
        ([{"kind": "nvidia.com/gpu", "valid": "yes"}], "unknown"),
        ([{"kind": None, "valid": False}], "invalid"),
        ([{"kind": "nvidia.com/gpu", "valid": True}, {"kind": "nvidia.com/x", "valid": None}], "unknown"),
        ([{"kind": "nvidia.com/gpu", "valid": None}, {"kind": "nvidia.com/x", "valid": True, "stale": True}], "stale"),
        ([{"kind": "nvidia.com/gpu", "valid": True, "stale": True}, {"kind": None, "valid": False}], "invalid"),
    ],
)
def test_cdi(files: object, expected: str | None) -> None:
    assert row(cdi={"files": files})["cdi"]["state"] == expected


@given(st.dictionaries(st.text(), ODD, max_size=3))
def test_no_result_is_an_error(results: dict[str, object]) -> None:
    report = report_of(results)
    json.dumps(report)
    for line in lines_of(report, 100):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    page_of(report).encode()


# -- lines -----------------------------------------------------------------------------------------------------------


def test_lines_are_sorted_by_severity() -> None:
    results = {
        "a": host("critical", "info"),
        "long-name": host("warning"),
        "c": {"unreachable": True, "msg": "No route"},
    }
    assert lines_of(report_of(results), 10) == [
        "3 hosts: 2 critical, 1 with a warning at most, 0 with info only, 0 without findings (1 unreachable).",
        "4 findings: 2 critical, 1 warning, 1 info.",
        "critical  a          docker: It is so. -> Do it.",
        "critical  c          No route -> Make the host reachable for Ansible, or remove it from the play.",
        "warning   long-name  docker: It is so. -> Do it.",
        "info      a          docker: It is so. -> Do it.",
    ]


@pytest.mark.parametrize(
    ("subject", "text", "expected"),
    [
        ("/etc/cdi/a.json", "/etc/cdi/a.json is stale.", False),
        ("/etc/cdi/a.json, /etc/cdi/b.json", "/etc/cdi/a.json, /etc/cdi/b.json do not match.", False),
        ("/etc/cdi/a", "Engines skip /etc/cdi/a.json.", True),
        ("/etc/cdi/a", "Engines skip /x/etc/cdi/a.", True),
        ("/etc/cdi/a", "Engines skip /etc/cdi/a.", False),
        ("docker", "docker does not run.", False),
        ("docker", "/etc/docker/daemon.json, line 1: odd.", True),
        ("docker", "live-restore is off.", True),
        ("gpu 0, gpu 1, gpu 2, gpu 3, gpu 4 and 2 more", "It is lost.", True),
        ("gpu 0, gpu 1", "gpu 0 is lost.", False),
        ("gpu 0 and 2 more", "gpu 0 is lost.", False),
        ("host", "It needs a reboot.", False),
    ],
)
def test_subject_is_not_repeated(subject: str, text: str, expected: bool) -> None:
    assert needs_subject({"subject": subject, "text": text}) is expected


READY: dict[str, t.Any] = {
    "engines": [{"engine": "docker", "installed": True, "running": True}],
    "toolkit": {"version": "1.19.1", "gpu": {"present": True}},
}


@pytest.mark.parametrize(
    ("parts", "remarks"),
    [
        ({}, []),
        ({"gpus": {"devices": [{"model": "A"}]}, "toolkit": {"version": "1"}}, []),
        ({"toolkit": {"version": "1.19.1", "gpu": {"present": False}}}, ["no GPU"]),
        ({"toolkit": {"version": "1.19.1", "gpu": {"present": None}}}, ["GPU unknown"]),
        ({"toolkit": {"packages": {}, "programs": {}, "gpu": {"present": True}}}, ["no toolkit"]),
        ({"engines": []}, ["no engine"]),
        ({"engines": [{"engine": "docker", "installed": False}]}, ["no engine"]),
        ({"engines": [{"engine": "docker", "target": "d", "installed": True, "running": False}]}, ["d stopped"]),
        # Podman has no daemon.
        ({"engines": [{"engine": "podman", "installed": True, "running": False}]}, []),
        ({"cdi": None}, ["partly inspected"]),
    ],
)
def test_remarks_on_a_host(parts: dict[str, t.Any], remarks: list[str]) -> None:
    assert row(**{**READY, **parts})["remarks"] == remarks
    report = report_of({"a": {**EMPTY, **READY, **parts}, "b": {"failed": True, "msg": "no"}})
    assert report["totals"]["remarks"] == dict.fromkeys(remarks, 1)
    assert report["hosts"][0]["remarks"] == []
    notes = [line for line in lines_of(report, 5) if line.startswith("Without findings, but not OK: ")]
    assert notes == [f"Without findings, but not OK: {remark} (1 host)." for remark in remarks]


@pytest.mark.parametrize(("limit", "shown"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_limit_of_lines(limit: int, shown: int) -> None:
    lines = lines_of(report_of({"a": host("critical", "warning", "info")}), limit)[2:]
    assert [line.split()[0] for line in lines] == ["critical", "warning", "info"][:shown] + ["and"] * (shown < 3)
    if shown < 3:
        assert lines[-1] == f"and {3 - shown} more."


def test_lines_have_no_control_characters() -> None:
    results = {"a\x1b[2J": {**EMPTY, "findings": [{**finding("info", advice=""), "text": "x\n\u2028critical \u202eb"}]}}
    assert lines_of(report_of(results), 5)[2] == "info      a\\x1b[2J  docker: x critical \\u202eb"


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"), ("  text\n", "text"), ("", None), (" ", None), (5, "5"), (1.5, "1.5"), (0, "0"), (True, None),
        (None, None), ([], None), ({}, None), (b"x", None), (float("nan"), None),
        (float("inf"), None), ("x" * 2000, "x" * 2000), ("x" * 2001, "x" * 2000 + "…"),
    ],
)  # fmt: skip
def test_text_of(value: object, expected: str | None) -> None:
    assert text_of(value) == expected


def test_huge_number_is_none() -> None:
    assert text_of(10**5000) is None
    assert text_of(-(10**5000)) is None


def test_texts() -> None:
    assert texts(["a", None, 1, [], "b"]) == ["a", "1", "b"]
    assert texts("ab") == []


def test_natural_order() -> None:
    names = ["", "1", "2", "10", "a", "A1", "a2", "a10", "a10b", "b" + "9" * 5000, "b٣"]
    assert sorted(set(names), key=natural) == names


def test_counted() -> None:
    assert [counted(number, "host") for number in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]
