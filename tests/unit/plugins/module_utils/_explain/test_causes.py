# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for the selection of causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import causes as explain_causes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import ALL, Container, Request
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.explained_containers import by_cdi, by_variable, container

CAUSES = Path(explain_causes.__file__)
BY_CDI, BY_VARIABLE = container(by_cdi("nvidia.com/gpu=0")), container(by_variable(ALL))
# Findings in another order than that of causes: by a pod, the toolkit, CDI, and the host.
POD, TOOLKIT, SPECIFICATION, HOST = "device-plugin-not-serving", "toolkit-missing", "cdi-stale", "driver-not-loaded"
TOOLKITS = (TOOLKIT, "hook-missing")
IDS = (POD, TOOLKIT, SPECIFICATION, HOST)


def finding(name: str, subject: str = "host", severity: str = "critical") -> dict[str, str]:
    return {"id": name, "subject": subject, "severity": severity, "text": f"{name}.", "advice": "Do it."}


def find(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    one: Container,
    *found: dict[str, str],
    error: str = "",
    target: str = "docker",
) -> list[str]:
    targets = (Target("docker"), Target("containerd"), Target("containerd", "k3s"))
    engines = [{"engine": engine.engine, "target": str(engine)} for engine in targets]
    report = {"findings": list(found), "engines": engines}
    monkeypatch.setattr(host_info, "describe_host", lambda *_arguments: report)
    host = HostFS.of(str(tmp_path), live=True)
    return [cause.code for cause in explain_causes.find_causes(one, target, error, host, lambda _argv: (1, "", ""))]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (BY_CDI, [HOST, SPECIFICATION]),
        (BY_VARIABLE, [HOST, TOOLKIT]),
        (BY_CDI._replace(in_pod=True), [HOST, SPECIFICATION, POD]),
        (BY_CDI._replace(requests=()), [HOST, SPECIFICATION, TOOLKIT]),
    ],
)
def test_findings_of_its_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one: Container, expected: list[str]
) -> None:
    assert find(monkeypatch, tmp_path, one, *map(finding, IDS)) == expected


def test_findings_of_its_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Findings about other containers are no causes.
    of_others = (finding("another-rule"), finding("containers-lose-gpus"))
    others = (finding(HOST, "containerd/k3s"), finding(HOST, severity="info"), *of_others)
    assert find(monkeypatch, tmp_path, BY_CDI._replace(requests=()), *others) == []
    assert find(monkeypatch, tmp_path, BY_CDI, finding(HOST, "docker")) == [HOST]


@pytest.mark.parametrize(
    ("target", "expected"),
    # Without a target, as for a bundle, each engine of its kind can be the one.
    [("containerd/k3s", [HOST, "toolkit-missing"]), ("containerd", ["hook-missing"]), ("", [HOST, *TOOLKITS])],
)
def test_findings_of_its_flavor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, expected: list[str]
) -> None:
    in_pod = BY_VARIABLE._replace(engine="containerd")
    found = (
        finding(HOST, "containerd/k3s"),
        finding("hook-missing", "containerd"),
        finding("toolkit-missing", "containerd/k3s"),
        finding(HOST, "docker"),
    )
    assert find(monkeypatch, tmp_path, in_pod, *found, target=target) == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [("something else", "start-failed"), ("unknown or invalid runtime name: nvidia", "runtime-unknown")],
)
def test_error_of_the_engine_is_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str, code: str
) -> None:
    assert find(monkeypatch, tmp_path, BY_CDI, finding(HOST), error=error) == [HOST, code]


def test_variable_that_nothing_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_runc = BY_VARIABLE._replace(runtime="runc", program="/usr/bin/runc")
    assert find(monkeypatch, tmp_path, by_runc, finding(HOST)) == ["runtime-not-nvidia", HOST]
    by_annotation = by_runc._replace(requests=(Request("annotation", "cdi.k8s.io/x=a", "Annotations", ("a",)),))
    assert find(monkeypatch, tmp_path, by_annotation) == ["runtime-not-nvidia"]
    assert find(monkeypatch, tmp_path, by_annotation._replace(engine="containerd")) == []
    with_device = by_runc._replace(requests=(*by_runc.requests, by_cdi("nvidia.com/gpu=0")))
    assert find(monkeypatch, tmp_path, with_device) == []


def test_all_ids_belong_to_rules() -> None:
    files = [path for path in (Path(__file__).parents[5] / "plugins/module_utils").rglob("*.py") if path != CAUSES]
    rules = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for group in ("_OF_HOST", "_OF_CDI", "_OF_TOOLKIT", "_OF_PODS"):
        assert [name for name in getattr(explain_causes, group) if f'"{name}"' not in rules] == []
