# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Know error texts with which a container that requests GPUs fails to start, and what to do about each.

This is the only place where the wording of an error counts. A row has the fixed parts of a sentence as its program
prints it, never words that other errors have too. A text that is not in the table gets no advice. It is pure.
"""

from __future__ import annotations

import re
import typing as t

# Where the last error of an engine is longer, its cause is at its end.
_LONGEST = 8192
# Logs quote an error once more for each program that passes it on.
_QUOTE = re.compile(r'\\+"')


class KnownText(t.NamedTuple):
    """An error text.

    - ``code``: the code of the cause. ``advice``: what to do. ``about_gpu``: whether the error is about the GPUs.
    - ``source``: the programs that print it, with the first and the last tag or commit in which it was looked up.
    - ``pattern``: the fixed parts of the sentence, as a regular expression that ignores the case.
    """

    code: str
    source: str
    pattern: str
    advice: str
    about_gpu: bool = True


def find(text: str) -> KnownText | None:
    """Return the first row of TEXTS whose sentence is in ``text``, the error of an engine; None if there is none."""
    searched = _QUOTE.sub('"', text[-_LONGEST:])
    return next((row for row in TEXTS if re.search(row.pattern, searched, re.IGNORECASE)), None)


# A row with a more precise sentence stands before one that also matches it.
TEXTS = (
    # Docker: `--gpus`, and CDI devices of older releases.
    KnownText(
        "cdi-unsupported",
        "dockerd v19.03.0 to docker-v29.7.2, the first sentence docker-v29.2.0 to docker-v29.7.2",
        r'no CDI device driver registered: |could not select device driver "cdi"',
        "Use Docker 28.2 or newer without `cdi: false` in daemon.json, or `--gpus` with nvidia-container-runtime-hook.",
    ),
    KnownText(
        "gpus-unsupported",
        "dockerd v19.03.0 to docker-v29.7.2",
        r'could not select device driver "(nvidia[^"]*)?" with capabilities: \[\[[^]]*gpu',
        "Use `--device nvidia.com/gpu=all` of Docker 25.0 or newer with CDI. For `--gpus`, install the NVIDIA Container"
        " Toolkit with nvidia-container-runtime-hook, which Docker before 29.2 needs, and restart Docker.",
    ),
    KnownText(
        "request-invalid",
        "dockerd v19.03.0 to docker-v29.7.2",
        r'could not select device driver "[^"]+" with capabilities: \[\[[^]]*gpu',
        "Remove the name of the driver from the request: Docker has no device driver of this name.",
    ),
    KnownText(
        "gpus-unsupported",
        "dockerd docker-v29.3.0 to docker-v29.7.2",
        r"failed to discover GPU vendor from CDI: no known GPU vendor found|AMD CDI spec not found",
        "Install the NVIDIA Container Toolkit, write a CDI specification, and restart Docker, which looks for"
        " nvidia-cdi-hook in its PATH only when it starts.",
    ),
    KnownText(
        "request-invalid",
        "dockerd v19.03.0 to docker-v29.7.2",
        r"cannot set both Count and DeviceIDs on device request",
        "Remove the number of GPUs (`count`) or their names (`device_ids`) from the request.",
    ),
    KnownText(
        "runtime-unknown",
        "dockerd v23.0.0 to docker-v29.7.2",
        r"unknown or invalid runtime name: nvidia",
        "Register the runtime with nvidia_runtime_config, reload Docker, and start the container again.",
    ),
    KnownText(
        "cdi-unsupported",
        "dockerd v19.03.0 to docker-v29.7.2",
        r'while adding custom device "([\w.-]+\.)?nvidia\.com/',
        "Update Docker to 25.0 or newer, and Compose, as older ones take a CDI name for a path, or use `--gpus`.",
    ),
    # CDI of all engines, by the program that writes the specification.
    KnownText(
        "mounts-refused",
        "CDI v0.3.2 to v1.1.0, toolkit v1.15.0 to v1.20.0, libnvidia-container 1aea987376e5",
        r'(nvidia\.com/gpu=|UUID or index: "|device error: )/var/run/nvidia-container-devices',
        "Set `accept-nvidia-visible-devices-as-volume-mounts` to true with nvidia_toolkit_config.",
    ),
    KnownText(
        "cdi-device-missing",
        "CDI v0.3.2 to v1.1.0",
        r"unresolvable CDI devices (\S+, )*management\.nvidia\.com/",
        "Request only `all` of this kind, which its toolkit container or nvidia_cdi_spec (mode management) defines. For"
        " other devices, remove `runtimeClassName` from the pod, or set `default-kind` to nvidia.com/gpu.",
    ),
    KnownText(
        "cdi-device-missing",
        "CDI v0.3.2 to v1.1.0",
        r"unresolvable CDI devices (\S+, )*k8s\.(gpu|device-plugin)\.nvidia\.com/",
        "Restart the pod that writes this kind: the DRA driver's for k8s.gpu.nvidia.com, else the device plugin's.",
    ),
    KnownText(
        "cdi-device-missing",
        "CDI v0.3.2 to v1.1.0",
        r"unresolvable CDI devices (\S+, )*nvidia\.com/",
        "Write the specification with nvidia_cdi_spec, whose `for_engines` keeps it readable for older engines, and"
        " request a name that `nvidia-ctk cdi list` prints.",
    ),
    KnownText(
        "cdi-stale",
        "CDI v0.3.2 to v1.1.0",
        r'failed to stat CDI host device "/dev/(nvidia|dri/)',
        "Run `nvidia-smi` on the host, which creates missing device nodes, and write the specification again.",
    ),
    KnownText(
        "cdi-stale",
        "runc v1.0.3 to v1.5.1, crun 1.10 to 1.29.1",
        r'(mount request: open |mounting "|cannot stat `)[^\s"`]*/lib[\w-]*(nvidia|cuda)[\w-]*\.so[^\n]*no such file',
        "Write the CDI specification again: it names a library of a driver that the host no longer has.",
    ),
    # Engines and their runtimes.
    KnownText(
        "device-missing",
        "dockerd v19.03.0 to docker-v29.7.2, podman v3.4.7 to v5.8.2, containerd v1.6.39 to v2.3.4",
        r'(while adding custom device "|stat )/dev/nvidia',
        "Run `nvidia-smi` on the host, which creates missing device nodes, and start the container again.",
    ),
    KnownText(
        "runtime-unknown",
        "containerd v1.3.0 to v2.3.4, CRI-O v1.17.0 to v1.36.3",
        r'no runtime for "nvidia|failed to find runtime handler nvidia',
        "Register the runtime with nvidia_runtime_config, and restart the engine.",
    ),
    KnownText(
        "device-unavailable",
        "kubelet 0022bec3a2af and 7510f32987fe",
        r"requested number of devices unavailable for nvidia\.com/",
        "Read the log of the device plugin on this node: too few of its GPUs are healthy and free.",
    ),
    KnownText(
        "program-missing",
        "containerd and runc, by os/exec of Go, with Docker 28.5.2 and runc 1.3.6",
        r'(fork/exec |exec: ")[^\s"]*nvidia-(container-|ctk|cdi-hook)[^\n]*(no such file|executable file not found)',
        "Install the NVIDIA Container Toolkit, or correct the path of its program in the engine or the specification.",
    ),
    KnownText(
        "files-missing",
        "runc 1.3.6 by os/exec of Go, crun 0.17 to 1.29.1",
        r'exec: "[^\s"]*nvidia-smi": |executable file `[^`]*nvidia-smi` not found',
        "Request the GPUs with the driver capability `utility`: the container got no nvidia-smi.",
    ),
    KnownText(
        "command-missing",
        "runc 1.3.6 by os/exec of Go, crun 0.17 to 1.29.1",
        r'exec: "[^"]+": (executable file not found|stat [^\n]*no such file)|executable file `[^`]+` not found',
        "Correct the name of the program: the image does not have it, or the host if it is a runtime.",
        about_gpu=False,
    ),
    # The NVIDIA Container Toolkit.
    KnownText(
        "hook-unknown",
        "nvidia-cdi-hook v1.14.6 to v1.17.8, by urfave/cli",
        r"hook[^\n]*No help topic for '",
        "Update the toolkit, which is older than this hook, or disable the hook with nvidia_cdi_spec.",
    ),
    KnownText(
        "hook-failed",
        "nvidia-cdi-hook v1.20.0",
        r"failed to create application profiles directory: ",
        "Do not mount /etc/nvidia read-only, update the toolkit to a newer one than 1.20.0, or disable the hook"
        " update-application-profile with nvidia_cdi_spec or the setting `nvcdi-disable-hooks`.",
    ),
    KnownText(
        "hook-refused",
        "nvidia-container-runtime-hook v1.10.0 to v1.20.0",
        r"invoking the NVIDIA Container Runtime Hook directly ",
        "Create the container with `--runtime nvidia` or with CDI devices instead of `--gpus`.",
    ),
    KnownText(
        "capabilities-refused",
        "nvidia-container-runtime-hook v1.9.0 to v1.20.0",
        r"unsupported capabilities found in '",
        "Remove the capability from NVIDIA_DRIVER_CAPABILITIES, or add it to `supported-driver-capabilities`.",
    ),
    KnownText(
        "program-missing",
        "nvidia-container-runtime v1.9.0 to v1.20.0",
        r"no runtime binary found from candidate list: ",
        "Set `nvidia-container-runtime.runtimes` to the full path of runc or crun with nvidia_toolkit_config.",
    ),
    KnownText(
        "device-missing",
        "toolkit v1.15.0 to v1.20.0, libnvidia-container 1aea987376e5",
        r"not a valid UUID or index: |get device handle from (index|UUID): |device error: [^\n]*: unknown device",
        "Request GPUs by a number or UUID that `nvidia-smi -L` prints on the host, or `all` in lower case.",
    ),
    KnownText(
        "driver-version-differs",
        "NVML, passed on by toolkit v1.15.0 to v1.20.0, libnvidia-container 06deb20d1ca4 and 947344949f26",
        r"(nvml error|initialize NVML): driver/library version mismatch",
        "Restart the host, to load the module of the installed driver.",
    ),
    KnownText(
        "driver-missing",
        "NVML, passed on by toolkit v1.15.0 to v1.20.0, libnvidia-container 06deb20d1ca4 and 947344949f26",
        r"(nvml error|initialize NVML): driver not loaded",
        "Load the driver with `modprobe nvidia`. If that fails, read the kernel's log.",
    ),
    KnownText(
        "driver-library-missing",
        "libnvidia-container 135219787556, toolkit v1.15.0 to v1.20.0",
        r"load library failed: libnvidia-ml\.so\.1: |initialize NVML: ERROR_LIBRARY_NOT_FOUND",
        "Install the libraries of the driver on the host, or correct `nvidia-container-cli.root` in config.toml.",
    ),
    KnownText(
        "driver-timeout",
        "libnvidia-container 06deb20d1ca4 and 392a3a5e85d3",
        r"nvidia-container-cli: initialization error: (driver|nvcgo)( rpc)? error: ",
        "Start nvidia-persistenced.service. If it does not help, run `nvidia-smi`: the driver does not answer in time.",
    ),
    KnownText(
        "requirement-unmet",
        "libnvidia-container 5823754b8577",
        r"requirement error: unsatisfied condition: ",
        "Install a newer driver, or use an image for an older CUDA version.",
    ),
    KnownText(
        "files-in-image",
        "libnvidia-container 077f498c2098",
        r"mount error: file creation failed: [^\n]*: file exists",
        "Remove the files of the driver from the image, which has this one itself, or use CDI devices.",
    ),
    KnownText(
        "cgroups-refused",
        "libnvidia-container 02c1d95f0777",
        r"failed to add device rules: |cgroup subsystem devices not found",
        "Use CDI devices. Only rootless engines, and engines in unprivileged LXC, can instead set `no-cgroups = true`.",
    ),
    KnownText(
        "ldcache-failed",
        "libnvidia-container 0f8e13d6627d and e27a4a758050",
        r"nvidia-container-cli: ldcache error: ",
        "Set `nvidia-container-cli.ldconfig` to @ and the path of the host's ldconfig, or use CDI devices.",
    ),
    KnownText(
        "hook-failed",
        "libnvidia-container 09df17a24247 and e27a4a758050",
        r"nvidia-container-cli: ",
        "Run `nvidia-container-cli -k -d /dev/tty info` as root on the host, and correct the first error.",
    ),
)
