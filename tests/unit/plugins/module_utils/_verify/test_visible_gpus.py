# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import glob
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.visible_gpus import (
    COMMAND,
    HostGpu,
    View,
    gpus_of_host,
    is_seen,
    view_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path

UUID, OTHER, MIG = "GPU-1a", "GPU-2b", "MIG-3c"


def device(**given: t.Any) -> dict[str, t.Any]:
    return {"index": 0, "uuid": UUID, "minor": 3, "bus_id": "0000:01:00.0", "mig_enabled": False, "mig_devices": [],
            **given}  # fmt: skip


def mig(**given: t.Any) -> dict[str, t.Any]:
    return {"index": 1, "uuid": MIG, "gpu_instance": 7, "compute_instance": 2, **given}


def mig_nodes(minor: int, gi: int, ci: int) -> tuple[str, ...]:
    return (f"/dev/nvidia-caps/nvidia-cap{minor}{gi}", f"/dev/nvidia-caps/nvidia-cap{minor}{gi}{ci}")


MIG_NODES = ("/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap37", "/dev/nvidia-caps/nvidia-cap372")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (device(), [HostGpu("GPU 0", UUID, ("/dev/nvidia3",))]),
        (device(uuid=None, minor=None), [HostGpu("GPU 0", "", ())]),
        (device(index=None), [HostGpu("GPU 0000:01:00.0", UUID, ("/dev/nvidia3",))]),
        (device(mig_enabled=None), [HostGpu("GPU 0", UUID, ("/dev/nvidia3",))]),
        # No container can use a GPU in MIG mode without MIG devices.
        (device(mig_enabled=True), []),
        (device(mig_enabled=True, mig_devices=[mig()]), [HostGpu("GPU 0 MIG 1", MIG, MIG_NODES)]),
        (device(mig_enabled=True, mig_devices=[mig(index=None, uuid=None)]), [HostGpu("GPU 0 MIG 0", "", MIG_NODES)]),
        # The node of the GPU alone does not show that a container has the MIG device.
        (device(mig_enabled=True, minor=None, mig_devices=[mig()]), [HostGpu("GPU 0 MIG 1", MIG, ())]),
    ],
)
def test_gpus_of_a_host(described: dict[str, t.Any], expected: list[HostGpu]) -> None:
    assert gpus_of_host([described], mig_nodes) == expected


def test_mig_devices_whose_nodes_are_unknown() -> None:
    described = device(mig_enabled=True, mig_devices=[mig()])
    assert gpus_of_host([described], lambda *_numbers: ()) == [HostGpu("GPU 0 MIG 1", MIG, ())]


def test_view() -> None:
    output = f"""\
hello
device node /dev/nvidia0
 device node /dev/nvidia9
GPU 0: NVIDIA H100 (UUID: {UUID})
  MIG 1g.10gb     Device  0: (UUID: {MIG})
GPU 1: device node /dev/nvidia8 (UUID: {OTHER})
(UUID: none)
"""
    assert view_of(output) == View(frozenset([UUID, MIG, OTHER]), frozenset(["/dev/nvidia0"]))


@pytest.mark.parametrize(
    ("gpu", "uuids", "nodes", "seen"),
    [
        (HostGpu("", UUID, ("/dev/nvidia0",)), [UUID], [], True),
        (HostGpu("", UUID, ("/dev/nvidia0",)), [OTHER], ["/dev/nvidia0"], False),
        # Without nvidia-smi, or if the host does not know the UUID.
        (HostGpu("", UUID, ("/dev/nvidia0",)), [], ["/dev/nvidia0"], True),
        (HostGpu("", "", ("/dev/nvidia0",)), [OTHER], ["/dev/nvidia0"], True),
        (HostGpu("", UUID, MIG_NODES), [], MIG_NODES, True),
        (HostGpu("", UUID, MIG_NODES), [], MIG_NODES[:2], False),
        (HostGpu("", UUID, ("/dev/nvidia0",)), [], ["/dev/nvidia1"], False),
        (HostGpu("", UUID, ("/dev/nvidia0",)), [], [], False),
        # Nothing can be compared.
        (HostGpu("", "", ()), [OTHER], ["/dev/nvidia0"], False),
    ],
)
def test_is_seen(gpu: HostGpu, uuids: t.Sequence[str], nodes: t.Sequence[str], seen: bool) -> None:
    assert is_seen(gpu, View(frozenset(uuids), frozenset(nodes))) is seen


def test_name_in_messages() -> None:
    assert str(HostGpu("GPU 0", UUID, ("/dev/nvidia3",))) == "GPU 0 (GPU-1a, /dev/nvidia3)"
    assert str(HostGpu("GPU 0", "", ())) == "GPU 0"


# The script, with any shell of this machine.
@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
@pytest.mark.parametrize(
    ("program", "status", "output"),
    [
        (None, 0, ""),
        (f"echo 'GPU 0: L4 (UUID: {UUID})'", 0, f"GPU 0: L4 (UUID: {UUID})\n"),
        ("echo failed; exit 9", 9, "failed\n"),
        # The status of a shell if the loader of the program is missing.
        ("exit 127", 0, ""),
    ],
)
def test_script(tmp_path: Path, shell: str, program: str | None, status: int, output: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"needs {shell}: apt install {shell}")
    if glob.glob("/dev/nvidia[0-9]*"):
        pytest.skip("needs a machine without a GPU")
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    argv = [path, *(["sh"] if shell == "busybox" else []), *COMMAND[1:]]
    done = subprocess.run(argv, env={"PATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, output)
