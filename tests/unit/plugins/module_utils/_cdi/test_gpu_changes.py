# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.info import changed_gpus
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import mig_minors, write

if t.TYPE_CHECKING:
    from pathlib import Path

# gpu0/gi0 and gpu0/gi0/ci0 in mig-minors.
CAPABILITIES = ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4")


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    write(tmp_path, {"proc/driver/nvidia-caps/mig-minors": mig_minors()})
    return HostFS(str(tmp_path), live=False)


def device(name: str, *nodes: str) -> dict[str, t.Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in nodes]}}


def document(*devices: dict[str, t.Any]) -> dict[str, t.Any]:
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl"}]}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": list(devices), "containerEdits": edits}


def gpu(index: int | None, minor: int | None, **changes: t.Any) -> dict[str, t.Any]:
    report = {"index": index, "uuid": f"GPU-{minor}", "minor": minor}
    return {**report, "mig_enabled": False, "mig_devices": [], **changes}


def gpus(*devices: dict[str, t.Any], source: str | None = "nvml") -> dict[str, t.Any]:
    return {"source": source, "devices": devices}


FIRST, SECOND = gpu(0, 0), gpu(1, 1)
PART = {"index": 2, "uuid": "MIG-5", "gpu_instance": 0, "compute_instance": 0}
DIVIDED = gpu(0, 0, mig_enabled=True, mig_devices=[PART])
ZERO, ONE = device("0", "/dev/nvidia0"), device("1", "/dev/nvidia1")
ALL = device("all", "/dev/nvidia0", "/dev/nvidia1")


@pytest.mark.parametrize(
    ("devices", "known"),
    [
        ([ZERO, ONE, ALL], [FIRST, SECOND]),
        ([ALL], [FIRST, SECOND]),
        ([device("GPU-0", "/dev/nvidia0"), device("GPU-1", "/dev/nvidia1"), ZERO, ONE], [FIRST, SECOND]),
        ([device("gpu0", "/dev/nvidia0")], [FIRST]),
        ([device("0:2", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        ([device("mig0:2", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        ([device("MIG-5", "/dev/nvidia0", *CAPABILITIES)], [DIVIDED]),
        # Names of a user's own.
        ([device("training", "/dev/nvidia0")], [FIRST]),
        # In MIG mode without MIG devices.
        ([ZERO], [FIRST, gpu(1, 1, mig_enabled=True)]),
        # NVML was cut short: nobody knows.
        ([ZERO], [FIRST, gpu(1, None, uuid=None, mig_enabled=None)]),
        ([ZERO, ONE], [FIRST, gpu(1, None, uuid=None, mig_enabled=None)]),
        ([device("GPU-0", "/dev/nvidia0"), device("GPU-9", "/dev/nvidia1")], [FIRST, gpu(None, 1, uuid=None)]),
        # Another mode's specification, under the kind that the tool gives to all of them.
        ([device("5", "/dev/nvidia-caps/nvidia-cap3")], [FIRST]),
    ],
)
def test_what_fits(host: HostFS, devices: list[dict[str, t.Any]], known: list[dict[str, t.Any]]) -> None:
    assert changed_gpus(document(*devices), host, gpus(*known)) == []


@pytest.mark.parametrize(
    ("devices", "known", "reasons"),
    [
        ([ZERO], [FIRST, SECOND], ["It lacks 1, which the driver reports."]),
        ([ZERO, ONE], [FIRST], ["It has 1, which the driver does not report."]),
        ([device("GPU-0", "/dev/nvidia0"), ONE, ZERO], [FIRST, SECOND], ["It lacks GPU-1, which the driver reports."]),
        (
            [device("GPU-0", "/dev/nvidia0"), device("GPU-7", "/dev/nvidia1")],
            [FIRST, SECOND],
            ["It lacks GPU-1, which the driver reports.", "It has GPU-7, which the driver does not report."],
        ),
        (
            [device("0", "/dev/nvidia1"), device("1", "/dev/nvidia0")],
            [FIRST, SECOND],
            ["It has other device nodes for 0, 1 than the driver."],
        ),
        ([device("training", "/dev/nvidia0")], [FIRST, SECOND], ["It lacks 1, which the driver reports."]),
        # The GPU was divided after the specification had been made.
        (
            [ZERO],
            [DIVIDED],
            ["It lacks 0:2, which the driver reports.", "It has 0, which the driver does not report."],
        ),
        (
            [device("0:2", "/dev/nvidia0", CAPABILITIES[0])],
            [DIVIDED],
            ["It has other device nodes for 0:2 than the driver."],
        ),
    ],
)
def test_gpus_that_changed(
    host: HostFS, devices: list[dict[str, t.Any]], known: list[dict[str, t.Any]], reasons: list[str]
) -> None:
    assert [reason.message for reason in changed_gpus(document(*devices), host, gpus(*known))] == reasons


def test_without_a_driver_there_is_nothing_to_compare_with(host: HostFS) -> None:
    assert changed_gpus(document(ZERO), host, gpus(source=None)) == []
    assert changed_gpus(document(ZERO), host, gpus(source="proc")) != []


def test_capabilities_without_numbers(host: HostFS) -> None:
    with open(host.real_path("/proc/driver/nvidia-caps/mig-minors"), "wb"):
        pass
    assert changed_gpus(document(device("0:2", "/dev/nvidia0")), host, gpus(DIVIDED)) == []


def test_a_file_for_some_of_the_gpus(host: HostFS) -> None:
    """The others are in another file, or nobody asked for them; but what is gone is gone."""
    both = gpus(FIRST, SECOND)
    assert changed_gpus(document(ZERO), host, both, frozenset({"1"})) == []
    assert changed_gpus(document(ZERO), host, both, None) == []
    (lacking,) = changed_gpus(document(ZERO), host, both, frozenset({"5"}))
    assert lacking == ("gpu-lacking", "It lacks 1, which the driver reports.")
    (gone,) = changed_gpus(document(ONE), host, gpus(FIRST), None)
    assert gone == ("gpu-gone", "It has 1, which the driver does not report.")
