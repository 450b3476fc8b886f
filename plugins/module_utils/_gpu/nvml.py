# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Query NVML for GPUs in a separate process, with a deadline.

A library that crashes, hangs in the kernel or writes to any descriptor does not end the task. While NVML is queried,
/dev is read-only: NVIDIA's libraries create missing device nodes and change existing ones, directly if they run as
root, and otherwise through nvidia-modprobe, which is setuid root (modprobe-utils/nvidia-modprobe-utils.c). The calls
are in nvml_library.py.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import signal
import struct
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import nvml_library

if t.TYPE_CHECKING:
    import ctypes


LIBRARY = "libnvidia-ml.so.1"
# The limit in seconds. Without persistence mode, NVML wakes up every GPU, one after the other. The refresh units and
# nvidia-ctk have the same limit (TimeoutStartSec in _cdi/refresh/units.py, LIMIT in _tasks/cdi_spec.py).
TIMEOUT = 120.0

# Limits that no machine reaches: a larger number is an invalid result.
_MAX_GPUS, _MAX_MIGS, _MAX_BYTES = 1024, 1024, 1 << 22
# The size of the result in bytes, 0 until it is complete. The result follows.
_LENGTH = struct.Struct("=Q")
# linux/prctl.h, linux/sched.h, linux/mount.h
_NO_NEW_PRIVILEGES = 38
_NEW_MOUNTS = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DEV = "/dev"


class UnusableNvmlError(errors.NvidiaError):
    """The error for a library that cannot be loaded or lacks a function. Another library, or /proc, can be used."""


class DriverMismatchError(errors.HostError):
    """The error for NVML and a loaded kernel module of different versions."""

    code = "driver-version-differs"


class NvmlMig(t.NamedTuple):
    """A MIG device as NVML reports it.

    ``number`` is its index on its GPU. ``gfx`` says that its GPU instance has graphics; None if only root may know it.
    ``profile``, such as 1g.5gb, is empty if NVML does not report it.
    """

    number: int
    uuid: str
    gi: int
    ci: int
    gfx: bool | None
    profile: str = ""


class NvmlGpu(t.NamedTuple):
    """A GPU as NVML reports it.

    ``number`` is its index. ``bus`` is the address in NVML's own form. ``coherent`` says that the GPU uses the page
    tables of the host's processor (ATS); it is None if NVML returns an error. ``vgpu`` is None, or for the vGPU of a
    virtual machine the name of the product that it needs a license for, which may be empty. ``licensed`` is whether it
    has that license, None if NVML does not report it. With a ``failure``, ``advice`` says what to do, the other values
    are those known before it, and ``unsupported`` is whether NVML does not support the call.
    """

    number: int
    name: str = ""
    uuid: str = ""
    minor: int = -1
    bus: str = ""
    mig: bool = False
    migs: tuple[NvmlMig, ...] = ()
    failure: str = ""
    advice: str = ""
    coherent: bool | None = False
    vgpu: str | None = None
    licensed: bool | None = None
    unsupported: bool = False


class NvmlResult(t.NamedTuple):
    """What NVML reports: the driver's version, and all GPUs in NVML's order."""

    version: str
    gpus: tuple[NvmlGpu, ...]


def query(
    library: str, skipped: t.Collection[str] = (), missing_nodes: t.Sequence[str] | None = None, dev: str = _DEV
) -> NvmlResult:
    """Return what the NVML in the file ``library`` reports.

    Unless ``missing_nodes`` is None, /dev is made read-only. If that is not possible, NVML is queried only if
    ``missing_nodes`` is empty. If ``dev`` is another directory, NVML is queried only if it can be mounted on /dev.

    Args:
        library: The path of the library.
        skipped: The names of GPUs for which nothing but the name is queried.
        missing_nodes: The device nodes that NVML would create; None to let it create them.
        dev: The directory with the driver's nodes. NVML opens only those in /dev.

    Raises:
        UnusableNvmlError: The library cannot be loaded, lacks a function, or would create nodes.
        HostError: NVML returns an error that does not belong to a single GPU, crashes, or takes longer than TIMEOUT.
    """
    return _decode(_run_in_process(lambda: _query(library, skipped, missing_nodes, dev), library), library)


def _decode(text: bytes, library: str) -> NvmlResult:
    try:
        result = json_data.load(text)
        if "unusable" in result:
            raise UnusableNvmlError(f"{library} cannot be used: {result['unusable']}.")
        if "error" in result:
            error_class = DriverMismatchError if result.get("code") == nvml_library.MISMATCH else errors.HostError
            raise errors.with_advice(error_class, f"NVML ({library}): {result['error']}", str(result.get("advice", "")))
        gpus = (NvmlGpu(*gpu) for gpu in result["gpus"])
        # JSON has turned the tuples into lists.
        with_migs = tuple(gpu._replace(migs=tuple(NvmlMig(*mig) for mig in gpu.migs)) for gpu in gpus)
        return NvmlResult(result["version"], with_migs)
    except (KeyError, TypeError, ValueError) as error:
        problem = f"NVML ({library}) returned an invalid result."
        raise errors.with_advice(errors.HostError, problem, nvml_library.REBOOT) from error


# -- the process that loads the library ----------------------------------------------------------------------------


def _run_in_process(work: t.Callable[[], dict[str, t.Any]], library: str) -> bytes:
    """Return the result of ``work``, run in a separate process, as JSON. Raises HostError if there is no result."""
    # The result is in shared memory, because a library may write to any descriptor but not to this memory.
    with mmap.mmap(-1, _LENGTH.size + _MAX_BYTES) as shared:
        try:
            child = os.fork()
        except OSError as error:
            problem = f"NVML cannot be queried, because no process can be started ({error.strerror})."
            raise errors.with_advice(errors.HostError, problem, nvml_library.NO_MEMORY) from error
        if child == 0:
            _run_child(shared, work)
        try:
            ended = _wait(child, shared)
        finally:
            status = _end_process(child)
        (length,) = _LENGTH.unpack_from(shared)
        text = shared[_LENGTH.size : _LENGTH.size + length]
    if length > _MAX_BYTES:
        problem = "returned too much data"
    elif length:
        return text
    elif not ended:
        problem = f"did not respond within {TIMEOUT:.0f} seconds"
    else:
        end = f"was killed by signal {os.WTERMSIG(status)}" if status and os.WIFSIGNALED(status) else "exited"
        problem = f"returned no result: its process {end}"
    raise errors.with_advice(errors.HostError, f"NVML ({library}) {problem}.", nvml_library.REBOOT)


def _run_child(shared: mmap.mmap, work: t.Callable[[], dict[str, t.Any]]) -> t.NoReturn:
    """Run ``work`` in the child process and exit without the exit handlers of the task."""
    status = 1
    try:
        _isolate()
        text = json.dumps(work()).encode()
        if len(text) <= _MAX_BYTES:
            shared[_LENGTH.size : _LENGTH.size + len(text)] = text
        _LENGTH.pack_into(shared, 0, len(text))
        status = 0
    finally:
        # An exception must not leave this function either, because the traceback would be printed by the task's code.
        os._exit(status)


def _isolate() -> None:
    """Close all file descriptors of the task."""
    for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        # Output of the library would corrupt the output of the module.
        os.dup2(null, number)
    # One of these is the task's lock, which a process that hangs must not hold.
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2:
            # The descriptor that listed the directory is already closed.
            with contextlib.suppress(OSError):
                os.close(number)


def _wait(child: int, shared: mmap.mmap) -> bool:
    """Wait for the result or the end of the process; return False if neither comes within TIMEOUT."""
    deadline, pause = time.monotonic() + TIMEOUT, 0.0005
    while time.monotonic() < deadline:
        # WNOWAIT leaves the exit status to _end_process().
        if any(shared[: _LENGTH.size]) or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return False


def _end_process(child: int) -> int | None:
    """Return the exit status of the process; None if it hangs in the driver and cannot be killed."""
    for number in range(100):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if number == 50:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.0005 if number < 50 else 0.02)
    return None


def change_dev(source: str = _DEV, read_only: bool = True) -> str:
    """Mount the directory ``source`` on /dev, and make /dev read-only, for this process and its future children.

    This cannot be undone. Only root can mount; others are kept from becoming root.

    Returns an error message, or an empty text on success.
    """
    failure = "/dev cannot be made read-only" if source == _DEV else f"{source} cannot be mounted on /dev"
    try:
        # Only the NVML process needs ctypes, and some builds of Python lack it.
        import ctypes  # noqa: PLC0415

        libc = ctypes.CDLL(None, use_errno=True)
        steps: list[t.Callable[[], t.Any]] = [lambda: libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)]
        if os.geteuid() != 0 and source != _DEV:
            return f"{failure} (the user is not root)"
        if os.geteuid() == 0:
            dev = _DEV.encode()
            steps += [
                lambda: libc.unshare(_NEW_MOUNTS),
                # Without this, the host would see the mounts that follow.
                lambda: libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None),
                lambda: libc.mount(os.fsencode(source), dev, None, ctypes.c_ulong(_BIND | _RECURSIVE), None),
            ]
            if read_only:
                flags = ctypes.c_ulong(_REMOUNT | _BIND | _READ_ONLY)
                steps.append(lambda: libc.mount(None, dev, None, flags, None))
        for step in steps:
            if step() != 0:
                return f"{failure} ({os.strerror(ctypes.get_errno())})"
    except (ImportError, OSError, AttributeError):
        return f"{failure} (this Python lacks ctypes)"
    return ""


# -- in the separate process ---------------------------------------------------------------------------------------


def _query(
    library: str, skipped: t.Collection[str], missing_nodes: t.Sequence[str] | None, dev: str
) -> dict[str, t.Any]:
    problem = "" if missing_nodes is None and dev == _DEV else change_dev(dev, missing_nodes is not None)
    if problem and dev != _DEV:
        return {"unusable": f"it opens only the device nodes in /dev, and {problem}"}
    if problem and missing_nodes:
        return {"unusable": f"it would create {', '.join(missing_nodes)}, and {problem}"}
    try:
        nvml = nvml_library.Nvml(library)
    except (ImportError, OSError, AttributeError) as error:
        # The loader's message is one line, with the path or the missing name.
        return {"unusable": " ".join(str(error).split())}
    try:
        nvml.call("nvmlInit_v2")
        version = nvml.text("nvmlSystemGetDriverVersion")
        count = nvml.number("nvmlDeviceGetCount_v2")
        if count > _MAX_GPUS:
            return {"error": f"it reports {count} GPUs, more than a machine can have.", "advice": nvml_library.REBOOT}
        gpus = [_gpu(nvml, index, skipped) for index in range(count)]
        nvml.call("nvmlShutdown")
    except nvml_library.ReturnedError as error:
        return {"error": error.message, "advice": error.advice, "code": error.code}
    return {"version": version, "gpus": gpus}


def _gpu(nvml: nvml_library.Nvml, index: int, skipped: t.Collection[str]) -> NvmlGpu:
    gpu = NvmlGpu(index)
    try:
        handle = nvml.handle("nvmlDeviceGetHandleByIndex_v2", index)
        gpu = gpu._replace(name=nvml.text("nvmlDeviceGetName", handle))
        if gpu.name in skipped:
            return gpu
        gpu = gpu._replace(bus=nvml.bus(handle))
        gpu = gpu._replace(uuid=nvml.text("nvmlDeviceGetUUID", handle))
        gpu = gpu._replace(minor=nvml.number("nvmlDeviceGetMinorNumber", handle))
        gpu = gpu._replace(coherent=nvml.coherent(handle))
        if nvml.is_vgpu(handle):
            product, licensed = nvml.license(handle)
            gpu = gpu._replace(vgpu=product, licensed=licensed)
        mode = nvml.mig_mode(handle)
        return gpu._replace(mig=mode == 1, migs=() if mode is None else _migs(nvml, handle))
    except nvml_library.ReturnedError as error:
        unsupported = error.code == nvml_library.NOT_SUPPORTED
        return gpu._replace(failure=error.message, advice=error.advice, unsupported=unsupported)


def _migs(nvml: nvml_library.Nvml, gpu: ctypes.c_void_p) -> tuple[NvmlMig, ...]:
    found: list[NvmlMig] = []
    graphics: dict[int, bool | None] = {}
    maximum = nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if maximum > _MAX_MIGS:
        raise nvml_library.ReturnedError("nvmlDeviceGetMaxMigDeviceCount", 999)
    for index in range(maximum):
        try:
            handle = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        except nvml_library.ReturnedError as error:
            if error.code in {nvml_library.NOT_FOUND, nvml_library.INVALID_ARGUMENT}:
                continue
            raise
        gi = nvml.number("nvmlDeviceGetGpuInstanceId", handle)
        ci = nvml.number("nvmlDeviceGetComputeInstanceId", handle)
        if gi not in graphics:
            graphics[gi] = nvml.has_graphics(gpu, gi)
        found.append(NvmlMig(index, nvml.text("nvmlDeviceGetUUID", handle), gi, ci, graphics[gi], nvml.profile(handle)))
    return tuple(found)
