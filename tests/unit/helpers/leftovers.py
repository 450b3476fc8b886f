# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files as NVIDIA's own tools, and other owners, leave them."""

from __future__ import annotations

NVIDIA = "/usr/bin/nvidia-container-runtime"
OPERATOR = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
STRAY = "/etc/containerd/config.d/99-nvidia.toml"
CRIO_MAIN = "/etc/crio/crio.conf"
CRIO_STRAY = "/etc/crio/conf.d/99-nvidia.toml"
CRIO_READ = "/etc/crio/crio.conf.d/99-nvidia.toml"
DAEMON_JSON = "/etc/docker/daemon.json"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
OWN_HOOK = "/etc/containers/oci/hooks.d/oci-nvidia-hook.json"

_CRI = 'plugins."io.containerd.grpc.v1.cri"'


def runtime(name: str, program: str, root: str = _CRI) -> str:
    """One runtime as nvidia-ctk writes it."""
    return (
        f"\n[{root}.containerd.runtimes.{name}]\n"
        f'runtime_type = "io.containerd.runc.v2"\n\n'
        f"[{root}.containerd.runtimes.{name}.options]\n"
        f'BinaryName = "{program}"\n'
        "SystemdCgroup = true\n"
    )


def main_file(sandbox: str = "registry.k8s.io/pause:3.9", imports: str = '"/etc/containerd/conf.d/*.toml"') -> str:
    """A main file of containerd 1.x with a comment."""
    return (
        f"version = 2\nimports = [{imports}]\n\n# Ours.\n[{_CRI}]\n"
        f'sandbox_image = "{sandbox}"\n\n[{_CRI}.containerd]\ndefault_runtime_name = "runc"\n'
        + runtime("runc", "/usr/bin/runc")
    )


def snapshot(sandbox: str = "registry.k8s.io/pause:3.8", program: str = NVIDIA, default: str = "nvidia") -> str:
    """What nvidia-ctk 1.19 makes of it: a copy of the whole section, and its runtime."""
    return (
        f'version = 2\n\n[{_CRI}]\nsandbox_image = "{sandbox}"\nenable_cdi = true\n\n'
        f'[{_CRI}.containerd]\ndefault_runtime_name = "{default}"\n'
        + runtime("runc", "/usr/bin/runc")
        + runtime("nvidia", program)
    )


def small_drop_in(program: str = NVIDIA) -> str:
    """What it makes where the main file has no section for the CRI."""
    return "version = 2\n" + runtime("nvidia", program)


CRIO_DROP_IN = (
    '[crio.runtime]\ndefault_runtime = "nvidia"\n\n[crio.runtime.runtimes.nvidia]\n'
    f'runtime_path = "{NVIDIA}"\nruntime_type = "oci"\nmonitor_path = "/usr/bin/conmon"\n'
)
# The same of 1.20.0, where CRI-O reads it.
CRIO_CTK = (
    '\n[crio]\n\n  [crio.runtime]\n    default_runtime = "nvidia"\n\n    [crio.runtime.runtimes]\n\n'
    f'      [crio.runtime.runtimes.nvidia]\n        runtime_path = "{NVIDIA}"\n        runtime_type = "oci"\n'
)
HOOK_FILE = """{
  "version": "1.0.0",
  "hook": {
    "path": "/usr/bin/nvidia-container-runtime-hook",
    "args": ["nvidia-container-runtime-hook", "prestart"]
  },
  "when": {"always": true, "commands": [".*"]},
  "stages": ["prestart"]
}
"""
