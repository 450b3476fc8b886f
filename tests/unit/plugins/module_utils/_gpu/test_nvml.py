# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.nvml import (
    NvmlGpu,
    NvmlMig,
    NvmlResult,
    UnusableNvmlError,
    query,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    FOUR_GFX,
    NAME,
    ONE_GFX,
    ONE_SLICE,
    THREE_GFX,
    TWO_GFX,
    TWO_SLICES,
    VERSION,
    FakeGpu,
    FakeMig,
    compiled,
    mig_uuid,
    nvml_files,
)

PLAIN = FakeGpu("0000:07:00.0", 2)
CAPABLE = FakeGpu("0000:0f:00.0", 3, mig=0)
WITH_MIG = FakeGpu("10000:47:00.0", 0, mig=1, migs=(FakeMig(0, 7, 0), FakeMig(2, 8, 0), FakeMig(6, 8, 1)))
SCREEN = FakeGpu("0000:c1:00.0", 4, name="DGX Display")


def assert_no_children() -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def query_gpus(root: Path, library: Path, gpus: t.Sequence[FakeGpu], *rules: str) -> NvmlResult:
    """Query the fake NVML. ``rules`` are lines of its file nvml.conf, which mock_nvml.c describes."""
    return query(str(nvml_files(root, library, gpus, *rules)), (SCREEN.name,))


def test_gpus_and_mig_devices(tmp_path: Path, library: Path) -> None:
    found = query_gpus(tmp_path, library, [PLAIN, CAPABLE, WITH_MIG])
    assert found.version == VERSION
    migs = tuple(
        NvmlMig(mig.slot, mig_uuid(WITH_MIG, mig), mig.gi, mig.ci, gfx=False, profile="1g") for mig in WITH_MIG.migs
    )
    assert found.gpus == (
        NvmlGpu(0, NAME, PLAIN.identity(), 2, "00000000:07:00.0"),
        NvmlGpu(1, NAME, CAPABLE.identity(), 3, "00000000:0F:00.0"),
        NvmlGpu(2, NAME, WITH_MIG.identity(), 0, "00010000:47:00.0", mig=True, migs=migs),
    )
    assert [type(gpu.migs) for gpu in found.gpus] == [tuple] * 3


def test_no_gpu_and_mig_mode_without_devices(tmp_path: Path, library: Path) -> None:
    assert query_gpus(tmp_path / "none", library, []).gpus == ()
    (gpu,) = query_gpus(tmp_path / "empty", library, [CAPABLE._replace(mig=1)]).gpus
    assert gpu.mig is True
    assert gpu.migs == ()


@pytest.mark.parametrize("profile", [ONE_GFX, TWO_GFX, FOUR_GFX, THREE_GFX])
def test_graphics(tmp_path: Path, library: Path, profile: int) -> None:
    # In nvml.h, the numbers that the GPU gives to the two other profiles stand for graphics (profile_id() in
    # mock_nvml.c). nvml.py must compare with the GPU's own numbers.
    migs = (FakeMig(0, 3, 0, profile), FakeMig(1, 5, 0, ONE_SLICE), FakeMig(2, 6, 0, TWO_SLICES))
    (gpu,) = query_gpus(tmp_path, library, [WITH_MIG._replace(migs=migs)]).gpus
    assert [mig.gfx for mig in gpu.migs] == [True, False, False]


@pytest.mark.parametrize(
    ("function", "failure"),
    [("nvmlDeviceGetGpuInstanceById", ""), ("nvmlDeviceGetGpuInstanceId", "returned 4: the")],
)
def test_only_root_may_know_whether_an_instance_has_graphics(
    tmp_path: Path, library: Path, function: str, failure: str
) -> None:
    (gpu,) = query_gpus(tmp_path, library, [WITH_MIG], f"fail {function} -1 4").gpus
    assert failure in gpu.failure
    assert [mig.gfx for mig in gpu.migs] == ([] if failure else [None] * len(WITH_MIG.migs))


def test_skipped_names(tmp_path: Path, library: Path) -> None:
    rule = "fail nvmlDeviceGetMinorNumber 1 999"
    found = query_gpus(tmp_path, library, [PLAIN, SCREEN, CAPABLE], rule)
    assert found.gpus[1] == NvmlGpu(1, "DGX Display")
    assert [gpu.failure for gpu in found.gpus] == ["", "", ""]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetGpuInstanceProfileInfo",
    ],
)
def test_failure_of_one_gpu(tmp_path: Path, library: Path, function: str) -> None:
    rule = f"fail {function} {-1 if function == 'nvmlDeviceGetMigDeviceHandleByIndex' else 1} 15"
    gpus = [PLAIN, WITH_MIG, PLAIN._replace(minor=5)]
    found = query_gpus(tmp_path, library, gpus, rule)
    assert [gpu.failure[:60] for gpu in (found.gpus[0], found.gpus[2])] == ["", ""]
    failure = found.gpus[1].failure
    assert failure.startswith(f"{function} returned 15: the GPU is lost")
    assert "restart" in found.gpus[1].advice


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        (
            "nvmlInit_v2",
            18,
            "nvmlInit_v2 returned 18: the driver's library and the loaded kernel module",
        ),
        ("nvmlInit_v2", 9, "the driver is not loaded. Run modprobe nvidia"),
        ("nvmlSystemGetDriverVersion", 4, "Run the task as root"),
        ("nvmlDeviceGetCount_v2", 999, "NVML reports an unknown error"),
        ("nvmlShutdown", 1234, "nvmlShutdown returned 1234: an unknown return value"),
    ],
)
def test_errors(tmp_path: Path, library: Path, function: str, code: int, message: str) -> None:
    with pytest.raises(HostError) as caught:
        query_gpus(tmp_path, library, [PLAIN], f"fail {function} -1 {code}")
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("count", [1025, 4294967294])
def test_too_many_gpus(tmp_path: Path, library: Path, count: int) -> None:
    with pytest.raises(HostError, match=f"reports {count} GPUs"):
        query_gpus(tmp_path, library, [PLAIN], f"count {count}")


def test_library_cannot_be_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    for content in (b"", b"INPUT(-lc)", b"\x7fELF\x02\x01\x01" + bytes(57)):
        broken.write_bytes(content)
        with pytest.raises(UnusableNvmlError) as caught:
            query(str(broken))
        assert str(broken) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnusableNvmlError, match="cannot be used"):
        query(str(tmp_path / "none"))


def test_library_lacks_function(tmp_path: Path) -> None:
    library = compiled(tmp_path, "-DWITHOUT_PROFILES")
    with pytest.raises(UnusableNvmlError, match="nvmlDeviceGetGpuInstanceProfileInfo"):
        query_gpus(tmp_path, library, [PLAIN])


@pytest.mark.parametrize(
    ("rules", "coherent"),
    [
        ([], [False, False]),
        (["addressing 0 2", "addressing 1 1"], [True, False]),
        (["addressing 0 0", "addressing 1 2"], [False, True]),
        (["addressing 0 2", "fail nvmlDeviceGetAddressingMode 0 999"], [None, False]),
    ],
)
def test_coherence(tmp_path: Path, library: Path, rules: list[str], coherent: list[bool | None]) -> None:
    found = query_gpus(tmp_path, library, [PLAIN, WITH_MIG], *rules)
    assert [gpu.coherent for gpu in found.gpus] == coherent
    assert not any(gpu.failure for gpu in found.gpus)


@pytest.mark.parametrize(
    ("rules", "vgpu", "licensed"),
    [
        ([], None, None),
        (["vgpu 0 1 1 1 1 Passthrough"], None, None),
        (["vgpu 0 2 1 1 1 NVIDIA RTX Virtual Workstation"], "NVIDIA RTX Virtual Workstation", True),
        (["vgpu 0 2 1 0 1 NVIDIA Virtual Compute Server"], "NVIDIA Virtual Compute Server", False),
        (["vgpu 0 2 0 0 0 x"], "", None),
        (["vgpu 0 2 1 1 1 x", "fail nvmlDeviceGetGridLicensableFeatures_v4 0 999"], "", None),
        (["vgpu 0 2 1 1 1 x", "fail nvmlDeviceGetVirtualizationMode 0 999"], None, None),
    ],
)
def test_license(tmp_path: Path, library: Path, rules: list[str], vgpu: str | None, licensed: bool | None) -> None:
    found = query_gpus(tmp_path, library, [PLAIN, WITH_MIG], *rules)
    assert [(gpu.vgpu, gpu.licensed) for gpu in found.gpus] == [(vgpu, licensed), (None, None)]
    assert not any(gpu.failure for gpu in found.gpus)


# -- the separate process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "message"),
    [("crash", f"its process was killed by signal {int(signal.SIGABRT)}"), ("exit", "its process exited")],
)
def test_library_ends_the_process(tmp_path: Path, library: Path, action: str, message: str) -> None:
    with pytest.raises(HostError, match=message):
        query_gpus(tmp_path, library, [PLAIN], f"do nvmlDeviceGetName {action}")
    assert_no_children()


def test_library_hangs(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "TIMEOUT", 0.05)
    with pytest.raises(HostError, match="did not respond within 0 seconds"):
        query_gpus(tmp_path, library, [PLAIN], "do nvmlDeviceGetName hang")
    assert_no_children()


@pytest.mark.parametrize("action", ["print", "write"])
def test_library_writes_to_descriptors(
    tmp_path: Path, library: Path, capfd: pytest.CaptureFixture[str], action: str
) -> None:
    expected = query_gpus(tmp_path / "quiet", library, [PLAIN, WITH_MIG])
    assert query_gpus(tmp_path / "loud", library, [PLAIN, WITH_MIG], f"do nvmlDeviceGetName {action}") == expected
    assert capfd.readouterr() == ("", "")
    assert_no_children()


def answer_with(gpus: t.Any) -> bytes:
    """Return a result of the separate process. Only ``gpus`` can make it invalid."""
    return json.dumps({"version": "1", "gpus": gpus}).encode()


def test_valid_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """If answer_with() lacks a new key, this test fails. The next test would not notice it."""
    gpu = NvmlGpu(0, migs=(NvmlMig(0, "", 1, 0, gfx=False),))
    monkeypatch.setattr(nvml, "_run_in_process", lambda _work, _library: answer_with([gpu]))
    assert query("x") == NvmlResult("1", (gpu,))


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"\xff", b"[]", b"1", b"null", b"{}", b'{"gpus": []}', b'{"version": "1"}',
     answer_with(1), answer_with([1]),
     # One value too many for a GPU, and too few for a MIG device.
     answer_with([[*NvmlGpu(0), 0]]), answer_with([[0, "", "", 1, "", True, [[1]]]]), b"[" * 100_000],
)  # fmt: skip
def test_invalid_results(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(nvml, "_run_in_process", lambda _work, _library: answer)
    with pytest.raises(HostError, match=r"NVML \(x\) returned an invalid result"):
        query("x")


def test_process_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    monkeypatch.setattr(os, "kill", lambda _process, _signal: None)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    assert nvml._end_process(child) is None
    os.close(writing)
    os.close(reading)
    assert os.waitpid(child, 0) == (child, 0)


def test_process_closes_descriptors() -> None:
    reading, writing = os.pipe()
    try:
        text = nvml._run_in_process(lambda: {"open": [int(name) for name in os.listdir("/proc/self/fd")]}, "x")
    finally:
        os.close(reading)
        os.close(writing)
    # The standard streams, and the directory.
    assert len(json.loads(text)["open"]) <= 4
    assert_no_children()


def test_work_fails_or_returns_too_much() -> None:
    def fails() -> dict[str, t.Any]:
        raise ValueError

    with pytest.raises(HostError, match="its process exited"):
        nvml._run_in_process(fails, "x")
    with pytest.raises(HostError, match="returned too much data"):
        nvml._run_in_process(lambda: {"x": "x" * (nvml._MAX_BYTES + 1)}, "x")
    assert_no_children()


def test_process_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuses)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(HostError, match=r"no process can be started \(Resource temporarily unavailable\)"):
        query("x")
    assert os.listdir("/proc/self/fd") == before


CREATED = f"/dev/gpufleet-mock-nvml-{os.getpid()}"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_nvml_creates_nodes_only_if_allowed(tmp_path: Path, library: Path) -> None:
    path = str(nvml_files(tmp_path, library, [PLAIN], "do nvmlInit_v2 make"))
    try:
        try:
            assert len(query(path, missing_nodes=["/dev/nvidia2"]).gpus) == 1
        except UnusableNvmlError as error:
            pytest.skip(str(error))
        assert not os.path.exists(CREATED)
        query(path)
        assert os.path.exists(CREATED)
    finally:
        if os.path.exists(CREATED):
            os.unlink(CREATED)


def test_refuses_library_that_would_create_nodes(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(nvml_files(tmp_path, library, [PLAIN]))
    monkeypatch.setattr(nvml, "change_dev", lambda *_arguments: "/dev is writable")
    with pytest.raises(UnusableNvmlError, match="it would create /dev/nvidia2, and /dev is"):
        query(path, missing_nodes=["/dev/nvidia2"])
    assert len(query(path, missing_nodes=[]).gpus) == 1
    with pytest.raises(UnusableNvmlError, match="it opens only the device nodes in /dev, and /dev is"):
        query(path, missing_nodes=[], dev="/run/nvidia/driver/dev")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("missing_nodes", [None, []])
def test_nodes_are_in_another_directory(tmp_path: Path, library: Path, missing_nodes: list[str] | None) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    path = str(nvml_files(tmp_path, library, [PLAIN], "do nvmlInit_v2 make"))
    try:
        assert len(query(path, missing_nodes=missing_nodes, dev=str(folder)).gpus) == 1
    except UnusableNvmlError as error:
        pytest.skip(str(error))
    # NVML has this directory as /dev, and it is read-only unless nodes may be created.
    assert [name.name for name in folder.iterdir()] == ([os.path.basename(CREATED)] if missing_nodes is None else [])
    assert not os.path.exists(CREATED)


# -- /dev is read-only -------------------------------------------------------------------------------------------------

# Parallel runs of the tests have other names.
_PROBE = f"/dev/gpufleet-test-{os.getpid()}"


def in_child(work: t.Callable[[], str]) -> str:
    """Return the result of ``work`` in a separate process, because it changes the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        result = stream.read()
    os.waitpid(child, 0)
    return result


def try_to_create() -> str:
    problem = nvml.change_dev()
    if problem:
        return problem
    with open(os.devnull, "wb") as stream:
        stream.write(b"can still be opened")
    try:
        os.close(os.open(_PROBE, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        return error.strerror or ""
    return "created"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_cannot_create_nodes() -> None:
    result = in_child(try_to_create)
    if result.startswith("/dev cannot be made read-only"):
        pytest.skip(result)
    assert result == "Read-only file system"
    assert not os.path.exists(_PROBE)
    # /dev of other processes is still writable.
    os.close(os.open(_PROBE, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(_PROBE)


def test_users_cannot_become_root() -> None:
    def status() -> str:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        return nvml.change_dev() + Path("/proc/self/status").read_text()

    assert "NoNewPrivs:\t1\n" in in_child(status)


def test_users_cannot_mount_another_directory() -> None:
    def problem() -> str:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        return nvml.change_dev("/run")

    assert in_child(problem) == "/run cannot be mounted on /dev (the user is not root)"


def test_dev_cannot_be_made_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingLibrary:
        @staticmethod
        def prctl(*_arguments: object) -> int:
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: FailingLibrary)
    assert "(Operation not permitted)" in nvml.change_dev()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: object())
    assert "ctypes" in nvml.change_dev()
