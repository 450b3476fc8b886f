# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of hosts with GPUs: the driver's files below /proc, and a fake NVML library."""

from __future__ import annotations

import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

VERSION = "550.163.01"
SOURCE = Path(__file__).with_name("mock_nvml.c")
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
NAME = "NVIDIA A100-SXM4-40GB"
UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"
# The numbers of GPU instance profiles in nvml.h.
ONE_SLICE, TWO_SLICES, ONE_GFX, TWO_GFX, FOUR_GFX, THREE_GFX = 0x0, 0x1, 0xA, 0xB, 0xC, 0x11

INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t 302
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.45.00.03
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Firmware: \t 550.163.01
GPU Excluded:\t {excluded}
"""


class FakeMig(t.NamedTuple):
    """A MIG device; ``slot`` is its index on the GPU."""

    slot: int
    gi: int
    ci: int
    profile: int = ONE_SLICE


class FakeGpu(t.NamedTuple):
    """A GPU; ``mig`` is -1 without MIG mode, 0 if it is off, and 1 if it is on."""

    bus: str
    minor: int
    name: str = NAME
    mig: int = -1
    migs: tuple[FakeMig, ...] = ()
    excluded: bool = False
    uuid: str = ""

    def identity(self) -> str:
        """Return its UUID, by default with the minor number."""
        return self.uuid or f"GPU-{self.minor:08d}-0000-0000-0000-000000000000"


# The order is not that of the minor numbers. One GPU is in another domain, one is a display adapter, one is excluded.
FIRST, SECOND = FakeGpu("0000:0f:00.0", 3), FakeGpu("0000:47:00.0", 0)
FAR = FakeGpu("10000:01:00.0", 1)
SCREEN = FakeGpu("0000:10:00.0", 4, name="NVIDIA DGX Display")
EXCLUDED = FakeGpu("0000:01:00.0", 5, excluded=True, uuid=UNKNOWN_UUID)


def mig_uuid(gpu: FakeGpu, mig: FakeMig) -> str:
    return f"MIG-{gpu.minor:08d}-0000-0000-{mig.gi:04d}-{mig.ci:012d}"


def compiled(folder: Path, *options: str) -> Path:
    """Compile the fake NVML in ``folder``, and return its path. The test is skipped if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt install gcc libc6-dev")
    library = folder / "libnvidia-ml.so"
    arguments = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *options, "-o", str(library), str(SOURCE)]
    # Older C libraries have dladdr() in a separate library.
    done = subprocess.run([*arguments, "-ldl"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def write(root: Path, files: t.Mapping[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def gpu_host(root: Path, gpus: t.Sequence[FakeGpu], live: bool = True, version: str = VERSION) -> HostFS:
    """Return a host with a loaded driver and these GPUs, but no libraries."""
    root.mkdir(parents=True, exist_ok=True)
    driver = "proc/driver/nvidia"
    write(root, {f"{driver}/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Apr  8\n"})
    (root / driver / "gpus").mkdir()
    for gpu in gpus:
        excluded = "Yes" if gpu.excluded else "No"
        text = INFORMATION.format(name=gpu.name, uuid=gpu.identity(), bus=gpu.bus, minor=gpu.minor, excluded=excluded)
        write(root, {f"{driver}/gpus/{gpu.bus}/information": text})
        for mig in gpu.migs:
            write(root, {f"{driver}/capabilities/gpu{gpu.minor}/mig/gi{mig.gi}/ci{mig.ci}/access": ""})
    if any(gpu.mig >= 0 for gpu in gpus):
        write(root, {f"{driver}-caps/mig-minors": mig_minors()})
    return HostFS(str(root), live)


def mig_minors(gpus: int = 32) -> str:
    """Return the file mig-minors, which has a numbered line for each possible capability."""
    names = ["config", "monitor"]
    for gpu in range(gpus):
        for gi in range(15):
            names.append(f"gpu{gpu}/gi{gi}/access")
            names += [f"gpu{gpu}/gi{gi}/ci{ci}/access" for ci in range(8)]
    return "".join(f"{name} {number}\n" for number, name in enumerate(names, 1))


def nvml_files(root: Path, library: Path, gpus: t.Sequence[FakeGpu], *rules: str, folder: str = LIBRARY_FOLDER) -> Path:
    """Install the fake NVML with its configuration, and libcuda, in ``folder``, and return the path of NVML."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(library), str(place / f"libnvidia-ml.so.{VERSION}"))
    (place / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")
    (place / f"libcuda.so.{VERSION}").write_text("")
    (place / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (place / "nvml.conf").write_text("\n".join([*nvml_lines(gpus), *rules, ""]))
    return place / f"libnvidia-ml.so.{VERSION}"


def nvml_lines(gpus: t.Sequence[FakeGpu]) -> t.Iterator[str]:
    yield f"driver {VERSION}"
    for index, gpu in enumerate(gpu for gpu in gpus if not gpu.excluded):
        domain, rest = gpu.bus.split(":", 1)
        yield f"gpu {gpu.identity()} {gpu.minor} {int(domain, 16):08X}:{rest.upper()} {gpu.mig} {gpu.name}"
        for mig in gpu.migs:
            yield f"mig {index} {mig.slot} {mig_uuid(gpu, mig)} {mig.gi} {mig.ci} {mig.profile}"
