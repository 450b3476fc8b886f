# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    ConfiguredState,
    Installation,
    LiveState,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import grpc
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.cri import (
    CriContainer,
    Plugin,
    container_status,
    list_containers,
    list_plugins,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Engine

GRPC, CRI = "io.containerd.grpc.v1", "io.containerd.cri.v1"
INSTALLATION = Installation(None, None, "containerd.service", "/run/x.sock", "/etc/containerd/config.toml", 7)
SILENT = LiveState("", {}, "", runtimes_unknown=True)
REASON = 'invalid plugin config: no corresponding runtime configured for default_runtime_name = "nope"'


def _message(kind: str, identifier: str, error: str | None = None) -> bytes:
    content = field(1, kind) + field(2, identifier) + field(4, field(1, "linux") + field(2, "amd64"))
    if error is not None:
        content += field(7, field(1, 2) + field(2, error))
    return field(1, content)


def _answer(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception) -> list[str]:
    asked: list[str] = []

    def call(_path: str, method: str, _message: bytes, **_limit: int) -> bytes:
        asked.append(method)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(grpc, "call", call)
    return asked


def test_plugins_and_why_they_were_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _answer(monkeypatch, _message(GRPC, "cri", REASON) + _message("io.containerd.service.v1", "x"))
    assert list_plugins("/run/x.sock") == [Plugin(GRPC, "cri", REASON), Plugin("io.containerd.service.v1", "x", "")]
    assert asked == ["/containerd.services.introspection.v1.Introspection/Plugins"]


def test_an_error_without_words_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, field(1, field(1, GRPC) + field(2, "cri") + field(7, b"")))
    (plugin,) = list_plugins("/run/x.sock") or []
    assert plugin.error


@pytest.mark.parametrize("problem", [OSError("gone"), ValueError("no HTTP/2")])
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    _answer(monkeypatch, problem)
    assert list_plugins("/run/x.sock") is None


@pytest.mark.parametrize(
    ("answer", "lists_runtimes", "problem"),
    [
        # Causes for a CRI that reports no runtimes: in 1.6 and 1.7, in 2.1, and disabled as in Docker's packages.
        (_message(GRPC, "cri"), True, "its CRI does not answer on /run/x.sock"),
        (_message(GRPC, "cri", REASON), True, f"its CRI failed to load (io.containerd.grpc.v1.cri: {REASON})"),
        (_message(CRI, "images") + _message(CRI, "runtime"), True, "its CRI does not answer on /run/x.sock"),
        (
            _message(CRI, "images") + _message(CRI, "runtime", REASON) + _message(GRPC, "cri"),
            True,
            f"its CRI failed to load (io.containerd.cri.v1.runtime: {REASON})",
        ),
        (_message("io.containerd.snapshotter.v1", "zfs", "skip"), True, "its CRI is disabled"),
        (_message("io.containerd.snapshotter.v1", "zfs", "skip"), False, None),
        (OSError("gone"), True, "it does not answer on /run/x.sock"),
        (OSError("gone"), False, "it does not answer on /run/x.sock"),
    ],
)
def test_health_problem_of_a_containerd_whose_cri_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception, lists_runtimes: bool, problem: str | None
) -> None:
    _answer(monkeypatch, answer)
    state = ConfiguredState(lists_runtimes=lists_runtimes)
    found = CONTAINERD.health_problem(HostFS(), INSTALLATION, SILENT, state)
    assert (found.message if found is not None else None) == problem
    # Only a missing answer may be temporary.
    assert found is None or found.final is ("answer" not in found.message)


def test_a_containerd_whose_cri_reports_runtimes_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, OSError("is not even asked"))
    live = SILENT._replace(runtimes_unknown=False)
    assert CONTAINERD.health_problem(HostFS(), INSTALLATION, live, ConfiguredState()) is None


RUNC, NVIDIA = {"runc": {"path": "runc"}}, {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}


@pytest.mark.parametrize(
    ("engine", "name", "state", "version", "known"),
    [
        (DOCKER, "runc", ConfiguredState(NVIDIA), None, True),
        (DOCKER, "io.containerd.runc.v2", ConfiguredState(), None, True),
        (DOCKER, "nvidia", ConfiguredState(NVIDIA), None, True),
        (DOCKER, "nope", ConfiguredState(NVIDIA), None, False),
        (DOCKER, "nope", ConfiguredState(flagged_runtimes=("nope",)), None, True),
        (CONTAINERD, "runc", ConfiguredState(), (1, 7), True),
        # In 1.x, a file that defines only nvidia hides the built-in runc.
        (CONTAINERD, "runc", ConfiguredState(NVIDIA), (1, 6, 20), False),
        (CONTAINERD, "runc", ConfiguredState(NVIDIA), (1, 7, 24), False),
        (CONTAINERD, "runc", ConfiguredState(NVIDIA), (2, 1, 9), True),
        (CONTAINERD, "runc", ConfiguredState(NVIDIA), None, True),
        (CONTAINERD, "runc", ConfiguredState({**RUNC, **NVIDIA}), (1, 7), True),
        (CONTAINERD, "nope", ConfiguredState({**RUNC, **NVIDIA}), (2, 1), False),
        (CONTAINERD, "nope", ConfiguredState(lists_runtimes=False), (1, 7), True),
        (CRIO, "crun", ConfiguredState(), (1, 31), True),
        (CRIO, "nvidia", ConfiguredState(NVIDIA), (1, 31), True),
        (CRIO, "nope", ConfiguredState(NVIDIA), (1, 31), False),
    ],
)
def test_whether_a_default_runtime_would_be_defined(
    engine: Engine, name: str, state: ConfiguredState, version: tuple[int, ...] | None, known: bool
) -> None:
    assert engine.defines_runtime(name, state, version) is known


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 20])
def test_fields_are_written_as_they_are_read(number: int) -> None:
    message = field(1, "x" * number) + field(2, number) + field(3, b"end")
    assert list(fields(message)) == [(1, b"x" * number), (3, b"end")]


# -- containers ------------------------------------------------------------------------------------------------------


def _labels(**labels: str) -> bytes:
    return b"".join(field(8, field(1, f"io.kubernetes.pod.{name}") + field(2, value)) for name, value in labels.items())


def test_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    of_pod = (
        field(1, "aa")
        + field(2, "pod")
        + field(3, field(1, "main"))
        + field(7, 9)
        + _labels(namespace="ns", name="web-0")
    )
    # A container without a kubelet, and a label of another program.
    loose = field(1, "bb") + field(3, field(1, "x")) + field(8, field(1, "app") + field(2, "y"))
    asked = _answer(monkeypatch, field(1, of_pod) + field(1, loose) + field(1, b""))
    assert list_containers("/run/x.sock") == [
        CriContainer("aa", ("ns/web-0/main", "web-0/main", "main"), 9, "pod"),
        CriContainer("bb", ("x",)),
        CriContainer("", ("",)),
    ]
    assert asked == ["/runtime.v1.RuntimeService/ListContainers"]


def test_status_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    info = field(2, field(1, "other") + field(2, "[")) + field(2, field(1, "info") + field(2, '{"pid": 7}'))
    _answer(monkeypatch, field(1, field(1, "aa") + field(3, 2)) + info)
    assert container_status("/run/x.sock", "aa") == (2, {"pid": 7}, "")
    # The message of an exit is no reason for a failed start.
    for reason, error in (("StartError", "no device"), ("Error", "")):
        _answer(monkeypatch, field(1, field(1, "aa") + field(10, reason) + field(11, "no device")) + info)
        assert container_status("/run/x.sock", "aa").error == error
    # CONTAINER_CREATED is 0, and an engine need not report more.
    _answer(monkeypatch, field(1, field(1, "aa")))
    assert container_status("/run/x.sock", "aa") == (0, {}, "")
    for reply in (b"", info, field(1, b"") + field(2, field(1, "info") + field(2, "{")), b"\xff"):
        _answer(monkeypatch, reply)
        with pytest.raises(ValueError, match=r"\S"):
            container_status("/run/x.sock", "aa")
