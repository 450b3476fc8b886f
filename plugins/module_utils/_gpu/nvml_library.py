# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Call the functions of a loaded NVML: their names, structures and return values.

Signatures, structures and numbers are those of nvml.h (NVML API reference).
"""

from __future__ import annotations

import struct
import typing as t

if t.TYPE_CHECKING:
    import ctypes

# The size of a text buffer in bytes, with the null (NVML_DEVICE_UUID_V2_BUFFER_SIZE and the others).
_TEXT = 96

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INVALID_ARGUMENT, MISMATCH = 3, 4, 6, 2, 18
# The GPU instance profiles with graphics: NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX, 2_, 4_ and, since NVML 595,
# 3_SLICE_GFX.
_GRAPHICS = (0xA, 0xB, 0xC, 0x11)

_ADDRESSING = "nvmlDeviceGetAddressingMode"
# NVML_DEVICE_ADDRESSING_MODE_ATS
_ATS = 2
_VIRTUALIZATION = "nvmlDeviceGetVirtualizationMode"
_LICENSE = "nvmlDeviceGetGridLicensableFeatures_v4"
# NVML_GPU_VIRTUALIZATION_MODE_VGPU: a vGPU inside a virtual machine
_VGPU = 2
# nvmlGridLicensableFeatures_t: whether licenses are supported, the number of features, and at most three features. Each
# feature has its code and state, two texts, whether it is enabled, and the end of the license (16 bytes).
_FEATURES, _FEATURE, _MAX_FEATURES = struct.Struct("=iI"), struct.Struct("=iI128s128sI16x"), 3
# Older drivers lack the first of these functions, and nothing but a report needs the others.
_OPTIONAL = (_ADDRESSING, _VIRTUALIZATION, _LICENSE)

REBOOT = "Check the kernel's log for NVRM and Xid. A restart of the host usually helps."
NO_MEMORY = "Free memory on the host, or end other processes."
# The meaning of NVML's return values (nvmlReturn_t), and the advice.
_MEANINGS = {
    1: ("NVML is not initialised", REBOOT),
    2: ("an argument is invalid", "Use the NVML of the loaded driver."),
    3: ("the call is not supported", "Use the NVML of the loaded driver."),
    NO_PERMISSION: ("the permission is missing", "Run the task as root (become: true)."),
    9: ("the driver is not loaded", "Run modprobe nvidia, and check the kernel's log if that fails."),
    10: ("the call timed out", REBOOT),
    11: ("a GPU has a problem with its interrupts", REBOOT),
    12: ("a library of the driver is missing", "Install all of the driver's libraries, in one version."),
    13: ("NVML lacks the function", "Use the NVML of the loaded driver."),
    14: ("the GPU's inforom is corrupted", "The GPU needs its manufacturer's service."),
    15: ("the GPU is lost: it has fallen off the bus", REBOOT),
    16: ("the GPU must be reset", "Reset it with nvidia-smi --gpu-reset, or restart the host."),
    17: ("the operating system refused the call", "Check that root can open the device nodes below /dev."),
    MISMATCH: (
        "the driver's library and the loaded kernel module have different versions",
        "Restart the host, or load the installed version of the module.",
    ),
    19: ("the GPU is in use", "Run this again when no program uses it."),
    20: ("there is not enough memory", NO_MEMORY),
    999: ("NVML reports an unknown error", REBOOT),
}


class ReturnedError(Exception):
    """The error ``code`` that NVML returned to ``call``."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        meaning, advice = _MEANINGS.get(code, ("an unknown return value", REBOOT))
        self.code = code
        self.message = f"{call} returned {code}: {meaning}."
        self.advice = advice


class Nvml:
    """The loaded library. Every method raises ReturnedError if NVML returns an error.

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
            raise ReturnedError(name, code)

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
        except ReturnedError as error:
            if error.code == NOT_SUPPORTED:
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
        except ReturnedError as error:
            return False if error.code == NOT_SUPPORTED else None
        return bool(mode[1] == _ATS)

    def is_vgpu(self, gpu: ctypes.c_void_p) -> bool:
        """Return whether the GPU is a vGPU inside a virtual machine."""
        mode, ask = self._c.c_int(-1), self._functions[_VIRTUALIZATION]
        return ask is not None and ask(gpu, self._c.byref(mode)) == 0 and mode.value == _VGPU

    def license(self, gpu: ctypes.c_void_p) -> tuple[str, bool | None]:
        """Return the product for which a vGPU needs a license, and whether it has one; None if that is unknown."""
        found = self._c.create_string_buffer(_FEATURES.size + _MAX_FEATURES * _FEATURE.size)
        if self._functions[_LICENSE] is None or self._functions[_LICENSE](gpu, found) != 0:
            return "", None
        supported, count = _FEATURES.unpack_from(found)
        places = [_FEATURES.size + number * _FEATURE.size for number in range(min(count, _MAX_FEATURES))]
        features = [_FEATURE.unpack_from(found, place) for place in places]
        # A vGPU has one feature for its type. Others can be listed without being enabled.
        enabled = [feature for feature in features if feature[4]] or features
        if not supported or not enabled:
            return "", None
        _code, _state, _info, product, _enabled = enabled[0]
        name = product.split(b"\0", 1)[0].decode("utf-8", "replace")
        return name, any(state != 0 for _code, state, *_others in enabled)

    def profile(self, mig: ctypes.c_void_p) -> str:
        """Return the profile in NVML's name of a MIG device, such as "NVIDIA A100-SXM4-40GB MIG 1g.5gb"."""
        try:
            return self.text("nvmlDeviceGetName", mig).partition(" MIG ")[2]
        except ReturnedError:
            # The profile is only informational.
            return ""

    def has_graphics(self, gpu: ctypes.c_void_p, gi: int) -> bool | None:
        """Return whether a GPU instance has graphics; None if only root may know, as nvml.h says."""
        try:
            return self._profile_id(gpu, gi) in self._graphics_ids(gpu)
        except ReturnedError as error:
            if error.code == NO_PERMISSION:
                return None
            raise

    def _profile_id(self, gpu: ctypes.c_void_p, gi: int) -> int:
        # nvmlGpuInstanceInfo_t: the device's handle, the numbers of instance and profile, the placement (two numbers).
        info = (self._c.c_uint * 6)()
        self.call("nvmlGpuInstanceGetInfo", self.handle("nvmlDeviceGetGpuInstanceById", gpu, gi), info)
        return int(info[3])

    def _graphics_ids(self, gpu: ctypes.c_void_p) -> frozenset[int]:
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
        except ReturnedError as error:
            # Each GPU has only some of these profiles, and each version of NVML knows only some.
            if error.code in {NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND}:
                return None
            raise
        return int(info[0])
