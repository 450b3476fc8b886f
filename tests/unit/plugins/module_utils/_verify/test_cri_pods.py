# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field, fields
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.containers import (
    LABEL,
    ContainerError,
    ContainerResult,
    ContainerSpec,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.cri_pods import Cri, CriPods
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import (
    SOCKET,
    FakeCri,
    cri_host,
    network_of,
    parent_of,
)

SPEC = ContainerSpec("busybox:1", ("echo", "hello"), "nvidia", {"A": "b"}, 5.0)


@pytest.fixture
def cri() -> t.Iterator[FakeCri]:
    with cri_host() as made, made.answers():
        yield made


def pods(cri: FakeCri, engine: str = "containerd", sandbox: str | None = "pause:1", systemd: bool = False) -> CriPods:
    return CriPods(Cri(cri.host, engine, SOCKET, sandbox, systemd))


def failure(pods: CriPods, spec: ContainerSpec = SPEC) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        pods.run(spec)
    return caught.value


def test_runs_a_pod(cri: FakeCri) -> None:
    containers = pods(cri)
    assert containers.run(SPEC) == ContainerResult(0, "hello")
    assert containers.cleanup_error == ""
    assert cri.calls == [
        "ImageStatus", "ImageStatus", "ListPodSandbox",
        "RunPodSandbox", "CreateContainer", "StartContainer", "ContainerStatus",
        "ListPodSandbox", "StopPodSandbox", "RemovePodSandbox",
    ]  # fmt: skip
    assert cri.pods == {}
    assert not (cri.root / "run" / "gpufleet-verify").exists()
    cri.status = 3
    assert containers.run(SPEC) == ContainerResult(3, "hello")
    assert cri.pods == {}


def test_requests(cri: FakeCri) -> None:
    pods(cri).run(SPEC)
    (pod,) = cri.made
    assert dict(fields(pod))[2] == b"nvidia"
    assert network_of(pod) == 2
    assert parent_of(pod) == ""
    (made,) = cri.containers
    config = list(fields(dict(fields(made))[2]))
    assert [content for number, content in config if number == 3] == [b"echo", b"hello"]
    # The identifier of the image: its name may refer to another image at this time.
    assert dict(config)[2] == field(1, "sha256:bb")
    assert dict(config)[6] == field(1, "A") + field(2, "b")
    assert dict(config)[9] == field(1, LABEL) + field(2, "1")
    pods(cri, systemd=True).run(SPEC)
    assert parent_of(cri.made[1]) == "system.slice"


def test_output(cri: FakeCri) -> None:
    cri.log = "T stdout P a \nT stdout F b\r1\nT stderr F  c\nT stdout F \n\nbroken\nT stdout F d"
    assert pods(cri).run(SPEC).output == "a b\r1\n c\n\n\n\nd"


@pytest.mark.parametrize(
    ("engine", "advice"), [("containerd", "ctr --namespace k8s.io images import"), ("crio", "podman load")]
)
def test_pulls_no_image(cri: FakeCri, engine: str, advice: str) -> None:
    error = failure(pods(cri, engine), SPEC._replace(image="other:2"))
    assert error.problem == "The image other:2 is not on this host, and no image is pulled"
    assert advice in error.advice
    del cri.images["pause:1"]
    error = failure(pods(cri, engine))
    assert error.problem == "The pause image pause:1 is not on this host, and no image is pulled"
    assert advice in error.advice
    assert not error.started
    assert set(cri.calls) == {"ImageStatus"}
    # An unknown pause image is not checked.
    assert pods(cri, engine, sandbox=None).run(SPEC).status == 0


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("RunPodSandbox", "start the pod"),
        ("CreateContainer", "create the container"),
        ("StartContainer", "start the container"),
        ("ContainerStatus", "report the container's state"),
    ],
)
def test_reports_errors_of_the_engine(cri: FakeCri, method: str, action: str) -> None:
    cri.errors[method] = 'no runtime for "n%C3%B6pe" is 100%25 configured, 5% %zz'
    error = failure(pods(cri))
    assert error.problem == f'containerd cannot {action}: no runtime for "n\u00f6pe" is 100% configured, 5% %zz'
    assert error.started
    assert cri.pods == {}


@pytest.mark.parametrize("method", ["image_status", "container_status", "list_pod_sandbox"])
@pytest.mark.parametrize("answer", [b"\x0a\x05ab", b"\x0a\x02\x0a\x05", b"\x0b"])
def test_reports_an_answer_that_is_not_protobuf(cri: FakeCri, method: str, answer: bytes) -> None:
    setattr(cri, f"do_{method}", lambda _message: answer)
    containers = pods(cri)
    if method == "list_pod_sandbox":
        containers.run(SPEC)
        assert "cannot be read" in containers.cleanup_error
    else:
        assert "containerd cannot be read" in failure(containers).problem


def test_reports_an_answer_without_identifier(cri: FakeCri) -> None:
    setattr(cri, "do_run_pod_sandbox", lambda _message: b"")  # noqa: B010
    assert failure(pods(cri)).problem == "containerd returned no identifier when it was requested to start the pod"


def test_reports_long_and_empty_errors(cri: FakeCri) -> None:
    cri.errors["RunPodSandbox"] = "x" * 3000
    assert failure(pods(cri)).problem.endswith("x" * 3000)
    cri.errors["RunPodSandbox"] = ""
    problem = "containerd does not answer correctly on /run/cri.sock when it is requested to start the pod"
    assert failure(pods(cri)).problem.startswith(problem)


def test_an_engine_that_hangs_or_does_not_listen(cri: FakeCri) -> None:
    cri.silent = "RunPodSandbox"
    assert "does not answer correctly" in failure(pods(cri), SPEC._replace(timeout=0.3)).problem
    error = failure(CriPods(Cri(cri.host, "crio", "/run/none.sock", None, systemd_cgroup=False)))
    assert error.problem.startswith("crio does not answer correctly on /run/none.sock")


def test_removes_only_own_leftovers_first(cri: FakeCri) -> None:
    metadata = field(1, field(1, "x"))
    own, others = (
        field(1, metadata + field(6, field(1, key) + field(2, "1"))) for key in (LABEL, "io.kubernetes.pod.name")
    )
    cri.pods = {"old": own, "kube": others}
    (cri.root / "run" / "gpufleet-verify").mkdir()
    assert pods(cri).run(SPEC).status == 0
    assert cri.pods == {"kube": others}
    assert cri.calls.index("RemovePodSandbox") < cri.calls.index("RunPodSandbox")


def test_reports_a_pod_that_cannot_be_removed(cri: FakeCri) -> None:
    containers = pods(cri)
    cri.errors["StopPodSandbox"] = "busy"
    assert containers.run(SPEC).status == 0
    assert containers.cleanup_error == "The pod may still exist: containerd cannot stop the pod: busy"


@pytest.mark.parametrize("status", [137, 143])
def test_repeats_a_pod_that_was_killed(cri: FakeCri, status: int) -> None:
    cri.statuses = [status, status, 0]
    assert pods(cri).run(SPEC).status == 0
    assert cri.calls.count("RunPodSandbox") == 3
    cri.status = status
    assert pods(cri).run(SPEC).status == status
    assert cri.calls.count("RunPodSandbox") == 6
    assert cri.pods == {}


def test_reports_a_directory_that_cannot_be_created(cri: FakeCri) -> None:
    (cri.root / "run" / "gpufleet-verify").write_text("")
    assert failure(pods(cri)).problem.startswith("The directory /run/gpufleet-verify cannot be created: ")


# -- pulled images -----------------------------------------------------------------------------------------------------


def pulling(cri: FakeCri) -> CriPods:
    cri.registry["example.com/cuda:1"] = "sha256:dd"
    return CriPods(Cri(cri.host, "containerd", SOCKET, "pause:1", systemd_cgroup=False, pull=True))


def test_pulls_a_missing_image_and_removes_it(cri: FakeCri) -> None:
    containers, spec = pulling(cri), SPEC._replace(image="example.com/cuda:1")
    assert containers.run(spec).status == 0
    assert (cri.calls.count("PullImage"), cri.calls[-1], containers.cleanup_error) == (1, "RemoveImage", "")
    assert sorted(cri.images) == ["busybox:1", "pause:1"]
    # Also after a failure.
    cri.errors["CreateContainer"] = "no"
    failure(pulling(cri), spec)
    assert sorted(cri.images) == ["busybox:1", "pause:1"]
    cri.errors = {"RemoveImage": "busy"}
    containers = pulling(cri)
    containers.run(spec)
    assert "may still exist: containerd cannot remove the image: " in containers.cleanup_error


def test_keeps_an_image_that_has_another_name(cri: FakeCri) -> None:
    containers = pulling(cri)
    cri.images["mirror.example/cuda:1"] = cri.registry["example.com/cuda:1"]
    assert containers.run(SPEC._replace(image="example.com/cuda:1")).status == 0
    assert "mirror.example/cuda:1" in cri.images
    assert "example.com/cuda:1 under another name, so its new name stays" in containers.cleanup_error


def test_keeps_an_image_that_was_present(cri: FakeCri) -> None:
    pulling(cri).run(SPEC)
    assert not {"PullImage", "RemoveImage"}.intersection(cri.calls)


def test_pull_that_fails(cri: FakeCri) -> None:
    cri.errors["PullImage"] = "unauthorized"
    error = failure(pulling(cri), SPEC._replace(image="example.com/cuda:1"))
    assert error.problem == "containerd cannot pull the image example.com/cuda:1: unauthorized"
    assert ("image" in error.advice, error.started) == (True, False)
    assert cri.pods == {}
