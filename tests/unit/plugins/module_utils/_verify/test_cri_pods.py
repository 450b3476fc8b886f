# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    LABEL,
    ContainerResult,
    ContainerSpec,
    NotRunError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.cri_pods import Cri, CriPods
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import (
    SOCKET,
    FakeCri,
    cri_host,
    network_of,
    parent_of,
)

ORDER = ContainerSpec("busybox:1", ("echo", "hello"), "nvidia", {"A": "b"}, 5.0)


@pytest.fixture
def cri() -> t.Iterator[FakeCri]:
    with cri_host() as made, made.answers():
        yield made


def pods(cri: FakeCri, engine: str = "containerd", sandbox: str | None = "pause:1", systemd: bool = False) -> CriPods:
    return CriPods(Cri(cri.host, engine, SOCKET, sandbox, systemd))


def failure(cri: FakeCri, order: ContainerSpec = ORDER, **about: t.Any) -> NotRunError:
    runner = pods(cri, **about)
    with pytest.raises(NotRunError) as caught:
        runner.run(order)
    return caught.value


def test_a_container_that_ends_well(cri: FakeCri) -> None:
    runner = pods(cri)
    assert runner.run(ORDER) == ContainerResult(0, "hello")
    assert runner.left_behind == ""
    assert cri.calls == [
        "ImageStatus", "ImageStatus", "ListPodSandbox",
        "RunPodSandbox", "CreateContainer", "StartContainer", "ContainerStatus",
        "ListPodSandbox", "StopPodSandbox", "RemovePodSandbox",
    ]  # fmt: skip
    assert cri.pods == {}
    assert not (cri.root / "run" / "gpufleet-verify").exists()


def test_what_is_asked_for(cri: FakeCri) -> None:
    pods(cri).run(ORDER)
    (pod,) = cri.made
    assert dict(fields(pod))[2] == b"nvidia"
    assert network_of(pod) == 2
    assert parent_of(pod) == ""
    (made,) = cri.containers
    config = list(fields(dict(fields(made))[2]))
    assert [content for number, content in config if number == 3] == [b"echo", b"hello"]
    # As the CRI names it: a name could mean another image by now.
    assert dict(config)[2] == field(1, "sha256:bb")
    assert dict(config)[6] == field(1, "A") + field(2, "b")
    assert dict(config)[9] == field(1, LABEL) + field(2, "1")


def test_a_runtime_with_control_groups_of_systemd(cri: FakeCri) -> None:
    pods(cri, systemd=True).run(ORDER)
    assert parent_of(cri.made[0]) == "system.slice"


def test_a_container_that_fails(cri: FakeCri) -> None:
    cri.status = 3
    assert pods(cri).run(ORDER) == ContainerResult(3, "hello")
    assert cri.pods == {}


def test_output(cri: FakeCri) -> None:
    cri.log = "T stdout P a \nT stdout F b\nT stderr F  c\nT stdout F \n\nbroken\nT stdout F d"
    assert pods(cri).run(ORDER).output == "a b\n c\n\n\n\nd"


@pytest.mark.parametrize(
    ("engine", "advice"), [("containerd", "ctr --namespace k8s.io images import"), ("crio", "podman load")]
)
def test_images_that_are_not_there_are_not_pulled(cri: FakeCri, engine: str, advice: str) -> None:
    missing = failure(cri, ORDER._replace(image="other:2"), engine=engine)
    assert missing.problem == "The image other:2 is not on this host, and nothing is pulled here"
    assert advice in missing.advice
    del cri.images["pause:1"]
    missing = failure(cri, engine=engine)
    assert missing.problem == "The pause image pause:1 is not on this host, and nothing is pulled here"
    assert advice in missing.advice
    assert not missing.tried
    assert set(cri.calls) == {"ImageStatus"}


def test_an_unknown_pause_image_is_the_engines_business(cri: FakeCri) -> None:
    del cri.images["pause:1"]
    assert pods(cri, sandbox=None).run(ORDER).status == 0


@pytest.mark.parametrize(
    ("method", "doing"),
    [
        ("RunPodSandbox", "start the pod"),
        ("CreateContainer", "create the container"),
        ("StartContainer", "start the container"),
        ("ContainerStatus", "tell how the container is"),
    ],
)
def test_words_of_the_engine(cri: FakeCri, method: str, doing: str) -> None:
    cri.errors[method] = 'no runtime for "n%C3%B6pe" is 100%25 configured, 5% %zz'
    refused = failure(cri)
    assert refused.problem == f'containerd cannot {doing}: no runtime for "n\u00f6pe" is 100% configured, 5% %zz'
    assert refused.tried
    assert cri.pods == {}


@pytest.mark.parametrize("method", ["image_status", "container_status", "list_pod_sandbox"])
@pytest.mark.parametrize("answer", [b"\x0a\x05ab", b"\x0a\x02\x0a\x05", b"\x0b"])
def test_an_answer_that_is_not_protobuf(cri: FakeCri, method: str, answer: bytes) -> None:
    setattr(cri, f"do_{method}", lambda _message: answer)
    runner = pods(cri)
    if method == "list_pod_sandbox":
        runner.run(ORDER)
        assert "cannot be read" in runner.left_behind
    else:
        assert "containerd cannot be read" in failure(cri).problem


def test_long_words(cri: FakeCri) -> None:
    cri.errors["RunPodSandbox"] = "x" * 3000
    assert failure(cri).problem.endswith("x" * 3000)


def test_an_error_without_words(cri: FakeCri) -> None:
    cri.errors["RunPodSandbox"] = ""
    assert "gives no proper answer on /run/cri.sock when it is to start the pod" in failure(cri).problem


def test_a_container_without_end(cri: FakeCri) -> None:
    cri.status = None
    started = time.monotonic()
    slow = failure(cri, ORDER._replace(timeout=0.3))
    assert 0.3 <= time.monotonic() - started < 5
    assert slow.problem == "It did not end within 0.3 seconds"
    assert slow.output == "hello"
    assert cri.pods == {}


def test_a_hung_engine(cri: FakeCri) -> None:
    cri.silent = "RunPodSandbox"
    assert "no proper answer" in failure(cri, ORDER._replace(timeout=0.3)).problem


def test_nobody_listens(cri: FakeCri) -> None:
    runner = CriPods(Cri(cri.host, "crio", "/run/none.sock", None, systemd_cgroup=False))
    with pytest.raises(NotRunError, match=r"crio gives no proper answer on /run/none[.]sock"):
        runner.run(ORDER)


def test_leftovers_go_first_and_others_stay(cri: FakeCri) -> None:
    metadata = field(1, field(1, "x"))
    ours, others = (
        field(1, metadata + field(6, field(1, key) + field(2, "1"))) for key in (LABEL, "io.kubernetes.pod.name")
    )
    cri.pods = {"old": ours, "kube": others}
    (cri.root / "run" / "gpufleet-verify").mkdir()
    assert pods(cri).run(ORDER).status == 0
    assert cri.pods == {"kube": others}
    assert cri.calls.index("RemovePodSandbox") < cri.calls.index("RunPodSandbox")


def test_what_is_interrupted_is_removed(cri: FakeCri, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> t.NoReturn:
        raise SystemExit(143)

    monkeypatch.setattr(CriPods, "_status", interrupted)
    with pytest.raises(SystemExit):
        pods(cri).run(ORDER)
    assert cri.pods == {}
    assert not (cri.root / "run" / "gpufleet-verify").exists()


def test_what_cannot_be_removed_is_told(cri: FakeCri) -> None:
    runner = pods(cri)
    cri.errors["StopPodSandbox"] = "busy"
    assert runner.run(ORDER).status == 0
    assert runner.left_behind == "The pod may still be there: containerd cannot stop the pod: busy"


@pytest.mark.parametrize("status", [137, 143])
def test_pods_that_a_kubelet_ends_are_started_again(cri: FakeCri, status: int) -> None:
    cri.statuses = [status, status, 0]
    assert pods(cri).run(ORDER).status == 0
    assert cri.calls.count("RunPodSandbox") == 3
    cri.status = status
    assert pods(cri).run(ORDER).status == status
    assert cri.calls.count("RunPodSandbox") == 6
    assert cri.pods == {}


def test_a_folder_that_cannot_be_made(cri: FakeCri) -> None:
    (cri.root / "run" / "gpufleet-verify").write_text("")
    assert failure(cri).problem.startswith("/run/gpufleet-verify cannot be made: ")
