# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests for the table of known error texts. Each row has an example, as an engine or a hook prints it."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import error_texts

GPUS = "gpus-unsupported"
# runc quotes what a hook printed; an engine adds the steps before it.
HOOK = "runc create failed: error running createContainer hook #3: exit status 3, stdout: , stderr:"
CLI = f"{HOOK} Auto-detected mode as 'legacy'\nnvidia-container-cli:"
START = f"{CLI} initialization error:"
SHIM = "unable to retrieve OCI runtime error (open /run/log.json: no such file or directory):"
INIT = "runc create failed: unable to start container process: error during container init:"
CDI = "CDI device injection failed: unresolvable CDI devices"
LIBRARY = "/usr/lib/libcuda.so.550.54.14"

# The code, words of the advice, and an error.
EXAMPLES = [
    ("cdi-unsupported", "28.2 or newer", 'could not select device driver "cdi" with capabilities: []'),
    ("cdi-unsupported", "28.2 or newer", 'no CDI device driver registered: could not select device driver "" with'),
    (GPUS, "nvidia-container-runtime-hook", 'could not select device driver "" with capabilities: [[gpu]]'),
    (GPUS, "--device nvidia.com/gpu=all", 'could not select device driver "nvidia" with capabilities: [[compute gpu]]'),
    ("request-invalid", "name of the driver", 'could not select device driver "gpu" with capabilities: [[gpu]]'),
    (GPUS, "nvidia-cdi-hook", "failed to discover GPU vendor from CDI: no known GPU vendor found"),
    (GPUS, "nvidia-cdi-hook", "AMD CDI spec not found"),
    ("request-invalid", "device_ids", "cannot set both Count and DeviceIDs on device request"),
    ("runtime-unknown", "reload Docker", "unknown or invalid runtime name: nvidia"),
    ("cdi-unsupported", "25.0 or newer", 'while adding custom device "nvidia.com/gpu=all": no such file'),
    ("mounts-refused", "as-volume-mounts", f"{CLI} device error: /var/run/nvidia-container-devices: unknown device"),
    ("mounts-refused", "as-volume-mounts", f"{CDI} nvidia.com/gpu=/var/run/nvidia-container-devices: unknown"),
    ("mounts-refused", "true", 'not a valid UUID or index: "/var/run/nvidia-container-devices"'),
    ("cdi-device-missing", "runtimeClassName", f"{CDI} management.nvidia.com/gpu=GPU-1"),
    ("cdi-device-missing", "DRA driver", f"{CDI} k8s.gpu.nvidia.com/claim=a-gpu-0, k8s.gpu.nvidia.com/claim=a-gpu-1"),
    ("cdi-device-missing", "device plugin", f"{CDI} k8s.device-plugin.nvidia.com/gpu=GPU-1"),
    ("cdi-device-missing", "for_engines", "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"),
    ("cdi-device-missing", "for_engines", f"{CDI} vendor.com/nic=0, nvidia.com/gpu=1"),
    ("cdi-stale", "nvidia-smi", 'failed to stat CDI host device "/dev/nvidia-uvm": no such file or directory'),
    ("cdi-stale", "again", 'failed to stat CDI host device "/dev/dri/card1": no such file or directory'),
    ("cdi-stale", "library", f"{INIT} failed to fulfil mount request: open {LIBRARY}: no such file or directory"),
    ("cdi-stale", "library", f'error mounting "{LIBRARY}" to rootfs at "/x": stat {LIBRARY}: no such file'),
    ("cdi-stale", "library", "crun: cannot stat `/usr/lib64/libEGL_nvidia.so.550.54.14`: No such file or directory"),
    ("device-missing", "nvidia-smi", 'while adding custom device "/dev/nvidia0": no such file'),
    ("device-missing", "nvidia-smi", "failed to apply OCI options: lstat /dev/nvidia-uvm: no such file or directory"),
    ("runtime-unknown", "restart", 'failed to get sandbox runtime: no runtime for "nvidia" is configured'),
    ("runtime-unknown", "restart", "failed to find runtime handler nvidia-cdi from runtime list map[crun:0xc000]"),
    ("device-unavailable", "device plugin", "requested number of devices unavailable for nvidia.com/gpu. Requested: 1"),
    ("program-missing", "path", f'{SHIM} exec: "nvidia-container-runtime": executable file not found in $PATH'),
    ("program-missing", "path", f"{SHIM} fork/exec /usr/bin/nvidia-container-runtime: no such file or directory"),
    ("files-missing", "utility", f'{INIT} exec: "nvidia-smi": executable file not found in $PATH'),
    ("files-missing", "utility", "crun: executable file `nvidia-smi` not found in $PATH: No such file or directory"),
    ("hook-unknown", "Update the toolkit", f"{HOOK} No help topic for 'disable-device-node-modification': unknown"),
    ("hook-failed", "read-only", f"{HOOK} failed to create application profiles directory: mkdirat etc: read-only"),
    ("hook-refused", "--runtime nvidia", f"{HOOK} invoking the NVIDIA Container Runtime Hook directly (e.g. --gpus)"),
    ("capabilities-refused", "CAPABILITIES", f"{HOOK} unsupported capabilities found in 'x' (allowed 'y')"),
    ("program-missing", "runtimes", "error locating runtime: no runtime binary found from candidate list: [runc crun]"),
    ("device-missing", "nvidia-smi -L", f"{CLI} device error: GPU-9: unknown device: unknown"),
    ("device-missing", "lower case", 'identifier is not a valid UUID or index: "ALL"'),
    ("device-missing", "nvidia-smi -L", "failed to get device handle from index: Not Found"),
    ("driver-version-differs", "Restart the host", f"{START} nvml error: driver/library version mismatch"),
    ("driver-version-differs", "Restart the host", "Failed to initialize NVML: Driver/library version mismatch"),
    ("driver-missing", "modprobe", f"{START} nvml error: driver not loaded: unknown"),
    ("driver-library-missing", "libraries", f"{START} load library failed: libnvidia-ml.so.1: cannot"),
    ("driver-library-missing", "libraries", "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND"),
    ("driver-timeout", "persistenced", f"{START} driver rpc error: timed out"),
    ("driver-timeout", "persistenced", f"{START} nvcgo rpc error: timed out"),
    ("driver-timeout", "nvidia-smi", f"{START} driver error: failed to process request"),
    ("requirement-unmet", "newer driver", f"{CLI} requirement error: unsatisfied condition: cuda>=13.1, please update"),
    ("files-in-image", "from the image", f"{CLI} mount error: file creation failed: /x/libcuda.so.1: file exists"),
    ("cgroups-refused", "CDI devices", f"{CLI} mount error: failed to add device rules: unable to find any"),
    ("cgroups-refused", "CDI devices", f"{CLI} container error: cgroup subsystem devices not found"),
    ("ldcache-failed", "ldconfig", f"{CLI} ldcache error: process /sbin/ldconfig failed with error code: 1"),
    ("hook-failed", "info", f"{CLI} detection error: nvml error: unknown error"),
]


@pytest.mark.parametrize(("code", "advice", "error"), EXAMPLES)
def test_known_texts(code: str, advice: str, error: str) -> None:
    found = error_texts.find(error)
    assert found is not None
    assert (found.code, found.about_gpu) == (code, True)
    assert advice in found.advice


@pytest.mark.parametrize(
    "error",
    [
        f'{INIT} exec: "app": executable file not found in $PATH',
        f'{INIT} exec: "/app": stat /app: no such file or directory: unknown',
        "crun: executable file `app` not found in $PATH: No such file or directory",
        f'{SHIM} exec: "runsc": executable file not found in $PATH',
    ],
)
def test_a_missing_command_is_not_about_the_gpu(error: str) -> None:
    found = error_texts.find(error)
    assert found is not None
    assert (found.code, found.about_gpu) == ("command-missing", False)


@pytest.mark.parametrize(
    "error",
    [
        "",
        "permission denied",
        "unknown device",
        "read-only file system",
        "unknown or invalid runtime name: kata",
        'could not select device driver "" with capabilities: [[tpu]]',
        f"{CDI} vendor.com/nic=0: the image is of nvidia.com/x",
        'failed to stat CDI host device "/dev/vfio/1": no such file or directory',
        f"{INIT} failed to fulfil mount request: open /srv/nvidia-models: no such file or directory",
        f'error mounting "{LIBRARY}" to rootfs at "/x": permission denied',
        'error gathering device information while adding custom device "/dev/ttyUSB0": no such file or directory',
        "requested number of devices unavailable for amd.com/gpu. Requested: 1, Available: 0",
    ],
)
def test_other_texts_are_not_known(error: str) -> None:
    assert error_texts.find(error) is None


def test_quotes_of_logs_and_long_texts() -> None:
    """A kubelet quotes the engine's error in its log, and the cause of a long error is at its end."""
    quoted = r'"RunPodSandbox failed" err="rpc error: desc = \"no runtime for \\\"nvidia\\\" is configured\""'
    found = error_texts.find("x" * 100_000 + quoted)
    assert found is not None
    assert found.code == "runtime-unknown"


def test_no_advice_switches_device_rules_off() -> None:
    """It is right only where an engine cannot change device rules at all, so the advice names these engines."""
    advices = [row.advice for row in error_texts.TEXTS if "no-cgroups" in row.advice]
    assert len(advices) == 1
    assert "rootless" in advices[0]


def test_each_row_has_an_example() -> None:
    used = {error_texts.find(error) for _code, _advice, error in EXAMPLES}
    assert [row for row in error_texts.TEXTS if row not in used and row.about_gpu] == []
    assert len(error_texts.TEXTS) <= 40
