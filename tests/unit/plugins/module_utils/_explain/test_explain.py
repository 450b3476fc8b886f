# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests for the result about one container, from its record, a measurement, a copy and causes."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import causes as explain_causes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import contents as explain_contents
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import copies as explain_copies
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import explain as explain_explain
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import host as explain_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.causes import Cause
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.copies import Tried
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.record import CREATED, Container
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.search import EngineState, FoundContainer
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.explained_containers import (
    HOST,
    container,
    contents,
    node,
)

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.contents import Contents

    Copy = t.Callable[..., Tried]

NO_COPY, COPY = explain_explain.CopyOptions(), explain_explain.CopyOptions(enabled=True)
WHOLE = contents("/dev/nvidia0", "/dev/nvidia1")
STOPPED = container(state=CREATED, pid=None)
# The process of a copy.
COPY_PID = 999


class Simulation:
    """A host on which ``has`` is measured in the container, and ``copy_has`` in its copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.host = HostFS.of(str(folder), live=True)
        self.has, self.copy_has = WHOLE, WHOLE
        self.tried = Tried()
        self.causes = [Cause("cdi-stale", "It is stale.", "Write it again.")]
        self.errors: list[str] = []
        monkeypatch.setattr(explain_host, "read_host", lambda _host: HOST)
        monkeypatch.setattr(explain_contents, "read_contents", self._measured)
        monkeypatch.setattr(explain_causes, "find_causes", self._causes)
        monkeypatch.setattr(explain_copies, "try_copy", self._try)

    def _measured(self, _host: HostFS, pid: int) -> Contents:
        return self.copy_has if pid == COPY_PID else self.has

    def _causes(self, _container: Container, _target: str, error: str, _host: HostFS, _run: object) -> list[Cause]:
        self.errors.append(error)
        return list(self.causes)

    def _try(self, *_arguments: t.Any, measure: t.Callable[[int], None], timeout: float) -> Tried:
        assert timeout
        if not self.tried.error and not self.tried.reason:
            measure(COPY_PID)
        return self.tried

    def explain(self, one: Container, options: explain_explain.CopyOptions = NO_COPY) -> dict[str, t.Any]:
        found = FoundContainer(one, EngineState())
        result = explain_explain.explain(found, options, self.host, lambda _argv: (1, "", ""))
        json.dumps(result)
        assert result["changed"] is False
        return {**result["explanation"], "warnings": result.get("warnings", [])}


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulation:
    return Simulation(monkeypatch, tmp_path)


def test_container_with_its_gpus(simulation: Simulation) -> None:
    result = simulation.explain(container())
    assert (result["ok"], result["code"], result["causes"], result["tried"]) == (True, "ok", [], None)
    assert result["message"].startswith("job (docker, ab1200000000): It has GPU 0, GPU 1 and may open")
    assert result["has"]["gpus"] == ["GPU 0", "GPU 1"]
    assert [file["version"] for file in result["has"]["files"]] == [HOST.driver, HOST.driver]
    assert result["asked"]["requests"][0]["gpus"] == ["all"]
    assert not simulation.errors


def test_advice_of_the_first_cause(simulation: Simulation) -> None:
    simulation.has = contents("/dev/nvidia0")
    simulation.causes.insert(0, Cause("other", "Other."))
    result = simulation.explain(container())
    assert (result["ok"], result["code"], result["advice"]) == (False, "devices-missing", "Write it again.")
    assert [cause["code"] for cause in result["causes"]] == ["other", "cdi-stale"]


def test_stopped_container(simulation: Simulation) -> None:
    result = simulation.explain(STOPPED)
    assert (result["ok"], result["code"], result["has"]) == (None, "not-running", None)


@pytest.mark.parametrize(("copy_has", "ok"), [(WHOLE, True), (contents("/dev/nvidia0"), False)])
def test_copy_answers_for_a_stopped_container(simulation: Simulation, copy_has: Contents, ok: bool) -> None:
    simulation.copy_has = copy_has
    result = simulation.explain(STOPPED, COPY)
    assert (result["ok"], result["tried"]["ok"], result["has"]) == (ok, ok, None)
    assert "A copy of it was measured. It " in result["message"]
    assert result["tried"]["has"]["gpus"]


def test_copy_with_gpus_that_the_record_does_not_show(simulation: Simulation) -> None:
    without_request = STOPPED._replace(requests=())
    assert simulation.explain(without_request, COPY)["ok"] is True
    simulation.tried = Tried(error="no such thing")
    assert simulation.explain(without_request, COPY)["code"] == "no-gpu-requested"


def test_copy_that_does_not_start(simulation: Simulation) -> None:
    simulation.tried = Tried(error="no such thing", cleanup_error="It stays.")
    result = simulation.explain(STOPPED, COPY)
    assert (result["ok"], result["code"], result["tried"]["error"]) == (False, "start-failed", "no such thing")
    assert "no such thing" in result["message"]
    assert simulation.errors == ["no such thing"]
    assert result["warnings"] == ["It stays."]


def test_copy_that_is_not_started(simulation: Simulation) -> None:
    simulation.tried = Tried(reason="CRI-O does not report what it requests")
    result = simulation.explain(STOPPED, COPY)
    assert (result["ok"], result["code"]) == (None, "copy-unknown")
    assert "CRI-O does not" in result["message"]


def test_copy_without_the_groups_of_the_image(simulation: Simulation) -> None:
    denied = node("/dev/nvidia0", usable=False, denied_by="mode")
    simulation.copy_has = contents(denied, "/dev/nvidia1")
    assert simulation.explain(STOPPED, COPY)["code"] == "nodes-denied"
    simulation.tried = Tried(groups_known=False)
    result = simulation.explain(STOPPED, COPY)
    assert (result["ok"], result["code"]) == (None, "access-unknown")


def test_copy_beside_a_running_container(simulation: Simulation) -> None:
    simulation.has = contents("/dev/nvidia0")
    result = simulation.explain(container(), COPY)
    assert (result["ok"], result["tried"]["ok"]) == (False, True)
    assert result["causes"][0]["code"] == "copy-has-gpus"
    assert result["advice"].startswith("Create the container again. If it fails, look at its volumes")


def test_failed_start_stays_failed(simulation: Simulation) -> None:
    result = simulation.explain(STOPPED._replace(error="no such thing"), COPY)
    assert (result["ok"], result["code"], result["tried"]["ok"]) == (False, "start-failed", True)


def test_variable_of_cuda(simulation: Simulation) -> None:
    result = simulation.explain(container(variables={"CUDA_VISIBLE_DEVICES": "all"}))
    assert result["ok"]
    assert "CUDA_VISIBLE_DEVICES=all" in result["message"]


def test_long_texts_and_passwords(simulation: Simulation) -> None:
    error = "x\ny https://user:secret@registry " + "z" * 3000
    result = simulation.explain(STOPPED._replace(error=error))
    assert "secret" not in str(result)
    assert "\n" not in result["asked"]["error"]
    assert max(len(text) for text in (result["message"], result["asked"]["error"])) <= explain_explain.LONGEST
