# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Query NVML for GPUs in a separate process, with a deadline.

A library that crashes, hangs in the kernel or writes to any descriptor does not end the task. While NVML is queried,
/dev is read-only: NVIDIA's libraries create missing device nodes and change existing ones, directly if they run as
root, and otherwise through nvidia-modprobe, which is setuid root (modprobe-utils/nvidia-modprobe-utils.c). Signatures,
structures and numbers are those of nvml.h (NVML API reference).
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

if t.TYPE_CHECKING:
    import ctypes


LIBRARY = "libnvidia-ml.so.1"
# The limit in seconds. Without persistence mode, NVML wakes up every GPU, one after the other. The refresh units and
# nvidia-ctk have the same limit (TimeoutStartSec in _cdi/refresh/units.py, LIMIT in nvidia_cdi_spec.py).
TIMEOUT = 120.0

# Limits that no machine reaches: a larger number is an invalid result.
_MAX_GPUS, _MAX_MIGS, _MAX_BYTES = 1024, 1024, 1 << 22
# The size of the result in bytes, 0 until it is complete. The result follows.
_LENGTH = struct.Struct("=Q")
# The size of a text buffer in bytes, with the null (NVML_DEVICE_UUID_V2_BUFFER_SIZE and the others).
_TEXT = 96

_NOT_SUPPORTED, _NOT_FOUND, _INVALID_ARGUMENT, _MISMATCH = 3, 6, 2, 18
# The GPU instance profiles with graphics: NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX, 2_, 4_ and, since NVML 595,
# 3_SLICE_GFX.
_GRAPHICS = (0xA, 0xB, 0xC, 0x11)

_ADDRESSING, _PERSISTENCE = "nvmlDeviceGetAddressingMode", "nvmlDeviceGetPersistenceMode"
# NVML_DEVICE_ADDRESSING_MODE_ATS
_ATS = 2
_CUDA, _ARCH, _BRAND = (
    *("nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCudaComputeCapability"),
    "nvmlDeviceGetBrand",
)
# Older drivers lack the first of these functions, and nothing but a report needs the others.
_OPTIONAL = (_ADDRESSING, _CUDA, _ARCH, _BRAND, _PERSISTENCE)
# nvmlBrandType_t as nvidia-container-cli names it in requirements of images (src/driver.c of libnvidia-container).
_BRANDS = {1: "Quadro", 2: "Tesla", 3: "NVS", 4: "GRID", 5: "GeForce", 6: "TITAN"}

_REBOOT = "Check the kernel's log for NVRM and Xid. A restart of the host usually helps."
_NO_MEMORY = "Free memory on the host, or end other processes."
# The meaning of NVML's return values (nvmlReturn_t), and the advice.
_MEANINGS = {
    1: ("NVML is not initialised", _REBOOT),
    2: ("an argument is invalid", "Use the NVML of the loaded driver."),
    3: ("the call is not supported", "Use the NVML of the loaded driver."),
    4: ("the permission is missing", "Run the task as root (become: true)."),
    9: ("the driver is not loaded", "Run modprobe nvidia, and check the kernel's log if that fails."),
    10: ("the call timed out", _REBOOT),
    11: ("a GPU has a problem with its interrupts", _REBOOT),
    12: ("a library of the driver is missing", "Install all of the driver's libraries, in one version."),
    13: ("NVML lacks the function", "Use the NVML of the loaded driver."),
    14: ("the GPU's inforom is corrupted", "The GPU needs its manufacturer's service."),
    15: ("the GPU is lost: it has fallen off the bus", _REBOOT),
    16: ("the GPU must be reset", "Reset it with nvidia-smi --gpu-reset, or restart the host."),
    17: ("the operating system refused the call", "Check that root can open the device nodes below /dev."),
    _MISMATCH: (
        "the driver's library and the loaded kernel module have different versions",
        "Restart the host, or load the installed version of the module.",
    ),
    19: ("the GPU is in use", "Run this again when no program uses it."),
    20: ("there is not enough memory", _NO_MEMORY),
    999: ("NVML reports an unknown error", _REBOOT),
}


# linux/prctl.h, linux/sched.h, linux/mount.h
_NO_NEW_PRIVILEGES = 38
_NEW_MOUNTS = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DEVICES = b"/dev"


class UnusableNvmlError(errors.NvidiaError):
    """The error for a library that cannot be loaded or lacks a function. Another library, or /proc, can be used."""


class DriverMismatchError(errors.HostError):
    """The error for NVML and a loaded kernel module of different versions."""

    code = "driver-library-differs"


class NvmlMig(t.NamedTuple):
    """A MIG device as NVML reports it.

    ``gfx`` says that its GPU instance has graphics. ``profile``, such as 1g.5gb, is empty if NVML does not report it.
    """

    # Hides tuple.index on purpose.
    index: int  # type: ignore[assignment]
    uuid: str
    gi: int
    ci: int
    gfx: bool
    profile: str = ""


class NvmlGpu(t.NamedTuple):
    """A GPU as NVML reports it.

    ``bus`` is the address in NVML's own form. ``coherent`` says that the GPU uses the page tables of the host's
    processor (ATS); it is None if NVML returns an error. ``arch`` is its compute capability, such as 9.0, and
    ``brand`` its brand as requirements of images name it; both are empty if they are unknown. ``persistent`` is whether
    persistence mode is on, None if NVML does not report it. With a ``failure``, ``advice`` says what to do, and the
    other values are those known before it.
    """

    # Hides tuple.index on purpose.
    index: int  # type: ignore[assignment]
    name: str = ""
    uuid: str = ""
    minor: int = -1
    bus: str = ""
    mig: bool = False
    migs: tuple[NvmlMig, ...] = ()
    failure: str = ""
    advice: str = ""
    coherent: bool | None = False
    arch: str = ""
    brand: str = ""
    persistent: bool | None = None


class NvmlResult(t.NamedTuple):
    """What NVML reports: the driver's version, all GPUs in NVML's order, and the driver's CUDA version.

    ``cuda`` is empty if it is unknown.
    """

    version: str
    gpus: tuple[NvmlGpu, ...]
    cuda: str = ""


def query(library: str, skipped: t.Collection[str] = (), missing_nodes: t.Sequence[str] | None = None) -> NvmlResult:
    """Return what the NVML in the file ``library`` reports.

    Unless ``missing_nodes`` is None, /dev is made read-only. If that is not possible, NVML is queried only if
    ``missing_nodes`` is empty.

    Args:
        library: The path of the library.
        skipped: The names of GPUs for which nothing but the name is queried.
        missing_nodes: The device nodes that NVML would create; None to let it create them.

    Raises:
        UnusableNvmlError: The library cannot be loaded, lacks a function, or would create nodes.
        HostError: NVML returns an error that does not belong to a single GPU, crashes, or takes longer than TIMEOUT.
    """
    return _decode(_run_in_process(lambda: _query(library, skipped, missing_nodes), library), library)


def _decode(text: bytes, library: str) -> NvmlResult:
    try:
        result = json_data.load(text)
        if "unusable" in result:
            raise UnusableNvmlError(f"{library} cannot be used: {result['unusable']}.")
        if "error" in result:
            error_class = DriverMismatchError if result.get("code") == _MISMATCH else errors.HostError
            raise errors.with_advice(error_class, f"NVML ({library}): {result['error']}", str(result.get("advice", "")))
        gpus = (NvmlGpu(*gpu) for gpu in result["gpus"])
        # JSON has turned the tuples into lists.
        with_migs = tuple(gpu._replace(migs=tuple(NvmlMig(*mig) for mig in gpu.migs)) for gpu in gpus)
        return NvmlResult(result["version"], with_migs, result["cuda"])
    except (KeyError, TypeError, ValueError) as error:
        problem = f"NVML ({library}) returned an invalid result."
        raise errors.with_advice(errors.HostError, problem, _REBOOT) from error


# -- the process that loads the library ----------------------------------------------------------------------------


def _run_in_process(work: t.Callable[[], dict[str, t.Any]], library: str) -> bytes:
    """Return the result of ``work``, run in a separate process, as JSON. Raises HostError if there is no result."""
    # The result is in shared memory, because a library may write to any descriptor but not to this memory.
    with mmap.mmap(-1, _LENGTH.size + _MAX_BYTES) as shared:
        try:
            child = os.fork()
        except OSError as error:
            problem = f"NVML cannot be queried, because no process can be started ({error.strerror})."
            raise errors.with_advice(errors.HostError, problem, _NO_MEMORY) from error
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
    raise errors.with_advice(errors.HostError, f"NVML ({library}) {problem}.", _REBOOT)


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


def make_dev_read_only() -> str:
    """Make /dev read-only for this process and its future children; this cannot be undone.

    Returns an error message, or an empty text on success.
    """
    try:
        # Only the NVML process needs ctypes, and some builds of Python lack it.
        import ctypes  # noqa: PLC0415

        libc = ctypes.CDLL(None, use_errno=True)
        steps: list[t.Callable[[], t.Any]] = [lambda: libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)]
        if os.geteuid() == 0:
            steps += [
                lambda: libc.unshare(_NEW_MOUNTS),
                # Without this, the host would see the mounts that follow.
                lambda: libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None),
                lambda: libc.mount(_DEVICES, _DEVICES, None, ctypes.c_ulong(_BIND | _RECURSIVE), None),
                lambda: libc.mount(None, _DEVICES, None, ctypes.c_ulong(_REMOUNT | _BIND | _READ_ONLY), None),
            ]
        for step in steps:
            if step() != 0:
                return f"/dev cannot be made read-only ({os.strerror(ctypes.get_errno())})"
    except (ImportError, OSError, AttributeError):
        return "/dev cannot be made read-only (this Python lacks ctypes)"
    return ""


# -- in the separate process ---------------------------------------------------------------------------------------


class _ReturnedError(Exception):
    """The error ``code`` that NVML returned to ``call``."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        meaning, advice = _MEANINGS.get(code, ("an unknown return value", _REBOOT))
        self.code = code
        self.message = f"{call} returned {code}: {meaning}."
        self.advice = advice


def _query(library: str, skipped: t.Collection[str], missing_nodes: t.Sequence[str] | None) -> dict[str, t.Any]:
    problem = "" if missing_nodes is None else make_dev_read_only()
    if problem and missing_nodes:
        return {"unusable": f"it would create {', '.join(missing_nodes)}, and {problem}"}
    try:
        nvml = _Nvml(library)
    except (ImportError, OSError, AttributeError) as error:
        # The loader's message is one line, with the path or the missing name.
        return {"unusable": " ".join(str(error).split())}
    try:
        nvml.call("nvmlInit_v2")
        version, cuda = nvml.text("nvmlSystemGetDriverVersion"), nvml.cuda()
        count = nvml.number("nvmlDeviceGetCount_v2")
        if count > _MAX_GPUS:
            return {"error": f"it reports {count} GPUs, more than a machine can have.", "advice": _REBOOT}
        gpus = [_gpu(nvml, index, skipped) for index in range(count)]
        nvml.call("nvmlShutdown")
    except _ReturnedError as error:
        return {"error": error.message, "advice": error.advice, "code": error.code}
    return {"version": version, "gpus": gpus, "cuda": cuda}


def _gpu(nvml: _Nvml, index: int, skipped: t.Collection[str]) -> NvmlGpu:
    gpu = NvmlGpu(index)
    try:
        handle = nvml.handle("nvmlDeviceGetHandleByIndex_v2", index)
        gpu = gpu._replace(name=nvml.text("nvmlDeviceGetName", handle))
        if gpu.name in skipped:
            return gpu
        gpu = gpu._replace(bus=nvml.bus(handle))
        gpu = gpu._replace(uuid=nvml.text("nvmlDeviceGetUUID", handle))
        gpu = gpu._replace(minor=nvml.number("nvmlDeviceGetMinorNumber", handle))
        gpu = gpu._replace(coherent=nvml.coherent(handle), persistent=nvml.persistent(handle))
        gpu = gpu._replace(arch=nvml.arch(handle), brand=nvml.brand(handle))
        mode = nvml.mig_mode(handle)
        return gpu._replace(mig=mode == 1, migs=() if mode is None else _migs(nvml, handle))
    except _ReturnedError as error:
        return gpu._replace(failure=error.message, advice=error.advice)


def _migs(nvml: _Nvml, gpu: ctypes.c_void_p) -> tuple[NvmlMig, ...]:
    found: list[NvmlMig] = []
    graphics: dict[int, bool] = {}
    maximum = nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if maximum > _MAX_MIGS:
        raise _ReturnedError("nvmlDeviceGetMaxMigDeviceCount", 999)
    for index in range(maximum):
        try:
            handle = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        except _ReturnedError as error:
            if error.code in {_NOT_FOUND, _INVALID_ARGUMENT}:
                continue
            raise
        gi = nvml.number("nvmlDeviceGetGpuInstanceId", handle)
        ci = nvml.number("nvmlDeviceGetComputeInstanceId", handle)
        if gi not in graphics:
            graphics[gi] = nvml.profile_id(gpu, gi) in nvml.graphics_ids(gpu)
        found.append(NvmlMig(index, nvml.text("nvmlDeviceGetUUID", handle), gi, ci, graphics[gi], nvml.profile(handle)))
    return tuple(found)


class _Nvml:
    """The loaded library. Every method raises _ReturnedError if NVML returns an error.

    Raises:
        OSError: The library cannot be loaded.
        AttributeError: The library lacks a function.
    """

    _FUNCTIONS = (
        "nvmlInit_v2",
        "nvmlShutdown",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlGpuInstanceGetInfo",
        "nvmlDeviceGetGpuInstanceProfileInfo",
    )

    def __init__(self, library: str) -> None:
        # Only this process needs ctypes, and some builds of Python lack it.
        import ctypes  # noqa: PLC0415

        self._c = ctypes
        loaded = ctypes.CDLL(library)
        self._functions = {name: getattr(loaded, name) for name in self._FUNCTIONS}
        self._functions.update({name: getattr(loaded, name, None) for name in _OPTIONAL})
        self._graphics: dict[int, frozenset[int]] = {}

    def call(self, name: str, *arguments: t.Any) -> None:
        code = int(self._functions[name](*arguments))
        if code != 0:
            raise _ReturnedError(name, code)

    def text(self, name: str, *handle: t.Any) -> str:
        buffer = self._c.create_string_buffer(_TEXT)
        self.call(name, *handle, buffer, self._c.c_uint(_TEXT))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *handle: t.Any) -> int:
        found = self._c.c_uint()
        self.call(name, *handle, self._c.byref(found))
        return found.value

    def handle(self, name: str, *arguments: t.Any) -> ctypes.c_void_p:
        """Return the handle of the device or instance whose number is the last of ``arguments``."""
        found = self._c.c_void_p()
        self.call(name, *arguments[:-1], self._c.c_uint(arguments[-1]), self._c.byref(found))
        return found

    def bus(self, gpu: ctypes.c_void_p) -> str:
        # nvmlPciInfo_t: the short address (16 bytes), five numbers, the long address (32 bytes).
        info = self._c.create_string_buffer(16 + 5 * 4 + 32)
        self.call("nvmlDeviceGetPciInfo_v3", gpu, info)
        return info.raw[36:].split(b"\0", 1)[0].decode("utf-8", "replace")

    def mig_mode(self, gpu: ctypes.c_void_p) -> int | None:
        """Return 1 if MIG mode is on, 0 if it is off, and None if the GPU does not support it."""
        current, pending = self._c.c_uint(), self._c.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", gpu, self._c.byref(current), self._c.byref(pending))
        except _ReturnedError as error:
            if error.code == _NOT_SUPPORTED:
                return None
            raise
        return current.value

    def coherent(self, gpu: ctypes.c_void_p) -> bool | None:
        """Return whether the GPU is coherent, like IsCoherent() in pkg/nvlib/device/device.go of go-nvlib."""
        if self._functions[_ADDRESSING] is None:
            return False
        # nvmlDeviceAddressingMode_v1_t: its own size and version, and the mode.
        mode = (self._c.c_uint * 2)(8 | 1 << 24, 0)
        try:
            self.call(_ADDRESSING, gpu, mode)
        except _ReturnedError as error:
            return False if error.code == _NOT_SUPPORTED else None
        return bool(mode[1] == _ATS)

    def cuda(self) -> str:
        """Return the CUDA version of the driver, such as 12.4."""
        (number,) = self._optional(_CUDA, 1)
        return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else ""

    def arch(self, gpu: ctypes.c_void_p) -> str:
        """Return the compute capability of a GPU, such as 9.0."""
        major, minor = self._optional(_ARCH, 2, gpu)
        return f"{major}.{minor}" if major > 0 else ""

    def brand(self, gpu: ctypes.c_void_p) -> str:
        """Return the brand of a GPU. nvidia-container-cli calls all newer brands Unknown."""
        (number,) = self._optional(_BRAND, 1, gpu)
        return "" if number < 0 else _BRANDS.get(number, "Unknown")

    def persistent(self, gpu: ctypes.c_void_p) -> bool | None:
        """Return whether persistence mode is on, which nvidia-persistenced also switches on; None if it is unknown."""
        (mode,) = self._optional(_PERSISTENCE, 1, gpu)
        return None if mode < 0 else mode == 1

    def _optional(self, name: str, count: int, *handle: t.Any) -> tuple[int, ...]:
        """Return ``count`` numbers of a function; -1 for each if NVML lacks it or returns an error."""
        found = [self._c.c_int(-1) for _number in range(count)]
        if self._functions[name] is None or self._functions[name](*handle, *map(self._c.byref, found)) != 0:
            return (-1,) * count
        return tuple(number.value for number in found)

    def profile(self, mig: ctypes.c_void_p) -> str:
        """Return the profile in NVML's name of a MIG device, such as "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
        try:
            return self.text("nvmlDeviceGetName", mig).partition(" MIG ")[2]
        except _ReturnedError:
            # The profile is only informational.
            return ""

    def profile_id(self, gpu: ctypes.c_void_p, gi: int) -> int:
        # nvmlGpuInstanceInfo_t: the device's handle, the numbers of instance and profile, the placement (two numbers).
        info = (self._c.c_uint * 6)()
        self.call("nvmlGpuInstanceGetInfo", self.handle("nvmlDeviceGetGpuInstanceById", gpu, gi), info)
        return int(info[3])

    def graphics_ids(self, gpu: ctypes.c_void_p) -> frozenset[int]:
        """Return the numbers of this GPU's profiles with graphics, which differ between models."""
        key = gpu.value or 0
        if key not in self._graphics:
            found = [self._profile(gpu, number) for number in _GRAPHICS]
            self._graphics[key] = frozenset(number for number in found if number is not None)
        return self._graphics[key]

    def _profile(self, gpu: ctypes.c_void_p, number: int) -> int | None:
        # nvmlGpuInstanceProfileInfo_t: ten numbers, of which the first is the profile's, and the memory (64 bits).
        info = (self._c.c_uint * 12)()
        try:
            self.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, self._c.c_uint(number), info)
        except _ReturnedError as error:
            # Each GPU has only some of these profiles, and each version of NVML knows only some.
            if error.code in {_NOT_SUPPORTED, _INVALID_ARGUMENT, _NOT_FOUND}:
                return None
            raise
        return int(info[0])
