# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="it runs on the controller only")

import yaml
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_audit_report import ARGUMENTS, ActionModule
from ansible_collections.gpufleet.nvidia.plugins.modules.nvidia_audit_report import DOCUMENTATION

if t.TYPE_CHECKING:
    from pathlib import Path

FINDING = {"severity": "warning", "id": "x", "subject": "docker", "text": "{{ text }}", "advice": "{% advice %}"}
SEEN: dict[str, t.Any] = {
    "a": {"engines": [], "findings": [FINDING, {**FINDING, "severity": "info"}]},
    "b": {"unreachable": True, "msg": "No route to host"},
    "c": None,
}


class HostVars:
    """The variables of all hosts, which are read without evaluation."""

    def __init__(self, seen: t.Mapping[str, t.Any]) -> None:
        self.seen = seen

    def raw_get(self, host: str) -> dict[str, t.Any]:
        return {"seen": self.seen[host]} if host in self.seen else {}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., dict[str, t.Any]]:
    """Runs the action in an empty directory, for the hosts of SEEN and for one without any result."""
    monkeypatch.chdir(tmp_path)

    def run(
        check_mode: bool = False, seen: t.Mapping[str, t.Any] | None = None, own: t.Mapping[str, t.Any] | None = None,
        **args: t.Any,
    ) -> dict[str, t.Any]:  # fmt: skip
        seen = SEEN if seen is None else seen
        given = {name: value for name, value in {"results": "seen", **args}.items() if value is not None}
        task = MagicMock(args=given, async_val=0, check_mode=check_mode, action="x")
        action: t.Any = ActionModule(task, *(MagicMock(has_native_async=False) for _part in range(5)))
        variables = {"hostvars": HostVars(seen), "ansible_play_hosts_all": [*seen, "missing"], **(own or {})}
        return dict(action.run(task_vars=variables))

    return run


def test_files_are_written(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    result = run()
    assert sorted(os.listdir(tmp_path)) == ["gpufleet-audit.html", "gpufleet-audit.json"]
    assert (result["json"], result["html"]) == tuple(str(tmp_path / f"gpufleet-audit.{x}") for x in ("json", "html"))
    report = json.loads((tmp_path / "gpufleet-audit.json").read_text(encoding="utf-8"))
    assert {host["host"]: host["state"] for host in report["hosts"]} == {
        "a": "ok", "b": "unreachable", "c": "failed", "missing": "failed",
    }  # fmt: skip
    assert report["hosts"][-1]["findings"][0] == FINDING
    assert (tmp_path / "gpufleet-audit.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (result["changed"], result["failed"]) == (True, False)
    assert not run()["changed"]


def test_the_page_has_the_time_of_the_last_run(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    page = tmp_path / "gpufleet-audit.html"
    run()
    page.write_bytes(re.sub(b"<time>.*?</time>", b"<time>earlier</time>", page.read_bytes()))
    # The page is written again, and a new time alone is not a change.
    assert not run()["changed"]
    assert re.search(r"<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d</time>", page.read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "gpufleet-audit.json").read_text(encoding="utf-8"))["generated"] is None
    page.write_bytes(page.read_bytes().replace(b"GPU fleet", b"Other"))
    assert run()["changed"]


def test_result(run: t.Callable[..., dict[str, t.Any]]) -> None:
    result = run(limit=1)
    assert result["counts"] == {"critical": 3, "warning": 1, "info": 1}
    assert result["lines"] == [
        (
            "4 hosts: 3 critical, 1 with a warning at most, 0 with info only, 0 without findings (1 unreachable and 2"
            " failed)."
        ),
        "5 findings: 3 critical, 1 warning, 1 info.",
        "critical  b  No route to host -> Make the host reachable for Ansible, or remove it from the play.",
        "and 4 more.",
    ]
    assert result["msg"] == " ".join(result["lines"][:2])
    assert set(result) == {"changed", "failed", "msg", "lines", "counts", "json", "html", "_ansible_verbose_always"}


def test_page_names_its_origin(
    run: t.Callable[..., dict[str, t.Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "args": ("gpufleet.nvidia.audit",),
        "inventory": ("hosts",),
        "become": True,
        "extra_vars": ("a=secret",),
    }
    monkeypatch.setattr(context, "CLIARGS", arguments)
    run()
    text = (tmp_path / "gpufleet-audit.html").read_text(encoding="utf-8")
    assert "<code>ansible-playbook gpufleet.nvidia.audit -i hosts -b -e a=...</code>" in text
    assert re.search(r"<span>gpufleet\.nvidia \d+\.\d+\.\d+", text)
    assert "secret" not in text


def test_check_mode_writes_nothing(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    result = run(check_mode=True)
    assert result["changed"]
    assert len(result["lines"]) == 7
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("fail_on", "severity", "failed"),
    [
        ("never", "critical", False), ("critical", "critical", True), ("critical", "warning", False),
        ("warning", "critical", True), ("warning", "warning", True), ("warning", "info", False),
    ],
)  # fmt: skip
def test_fail_on(
    run: t.Callable[..., dict[str, t.Any]], tmp_path: Path, fail_on: str, severity: str, failed: bool
) -> None:
    seen = {"missing": {"engines": [], "findings": [{**FINDING, "severity": severity}]}}
    assert run(fail_on=fail_on, seen=seen)["failed"] is failed
    assert len(os.listdir(tmp_path)) == 2


def test_prepare_only(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    result = run(results=None, prepare_only=True, directory="reports", html="pages/a.html")
    assert (result["changed"], "lines" in result) == (True, False)
    assert result["html"] == str(tmp_path / "reports/pages/a.html")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["reports", "reports/pages"]
    assert not run(prepare_only=True, directory="reports", html="pages/a.html")["changed"]
    run(directory="reports/other")
    assert sorted(os.listdir(tmp_path / "reports/other")) == ["gpufleet-audit.html", "gpufleet-audit.json"]


def test_misspelled_variables(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path) -> None:
    """A pipeline relies on nvidia_audit_fail_on. A variable of a role must not prevent the report."""
    with pytest.raises(AnsibleActionFail, match=r"nvidia_audit_fail is .* Did you mean nvidia_audit_fail_on\?"):
        run(prepare_only=True, own={"nvidia_audit_fail": "critical"})
    assert os.listdir(tmp_path) == []
    result = run(prepare_only=True, own={"nvidia_toolkit_verison": "1", "nvidia_audit_dir": "x", "nvidia_host": "x"})
    assert ["toolkit_version?" in text for text in result["warnings"]] == [True, False]


def test_paths(run: t.Callable[..., dict[str, t.Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "reports").mkdir()
    result = run(directory="reports", json="~/a.json", html="b.html", generated="today")
    assert (result["json"], result["html"]) == (str(tmp_path / "a.json"), str(tmp_path / "reports/b.html"))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["generated"] == "today"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"directory": "/dev/null"}, "/dev/null/gpufleet-audit.json on the controller cannot be written: Not a dir"),
        ({"directory": "/dev/null", "prepare_only": True}, "gpufleet-audit.json on the controller cannot be written"),
        ({"json": "/dev/null", "prepare_only": True}, "/dev/null on the controller .* is not a regular file"),
        ({"results": None}, "results"),
        ({"json": "/dev/null"}, "/dev/null on the controller cannot be written: It exists and is not a regular file"),
        ({"json": "x", "html": "x"}, "are the same file"),
        ({"fail_on": "info"}, "fail_on"),
        ({"limit": "many"}, "limit"),
        ({"diff": True}, "diff"),
    ],
)
def test_invalid_arguments(run: t.Callable[..., dict[str, t.Any]], args: dict[str, t.Any], message: str) -> None:
    with pytest.raises(AnsibleError, match=message) as caught:
        run(**args)
    assert isinstance(caught.value, AnsibleActionFail)


def test_arguments_match_the_documentation() -> None:
    documented = yaml.safe_load(DOCUMENTATION)["options"]
    assert {name: {key: value for key, value in option.items() if key != "description"} for name, option in
            documented.items()} == ARGUMENTS  # fmt: skip
