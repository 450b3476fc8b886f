# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configuration files that NVIDIA's own tools wrote, and files of other owners, for tests of the cleanup.

nvidia-ctk is NVIDIA's command-line tool. ``*_STRAY`` are paths that it writes although the engine does not read them.
"""

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
    """Return the table of one runtime, as nvidia-ctk writes it for containerd."""
    return (
        f"\n[{root}.containerd.runtimes.{name}]\n"
        f'runtime_type = "io.containerd.runc.v2"\n\n'
        f"[{root}.containerd.runtimes.{name}.options]\n"
        f'BinaryName = "{program}"\n'
        "SystemdCgroup = true\n"
    )


def main_file(sandbox: str = "registry.k8s.io/pause:3.9", imports: str = '"/etc/containerd/conf.d/*.toml"') -> str:
    """Return the main file of containerd 1.x, with a comment of its owner."""
    return (
        f"version = 2\nimports = [{imports}]\n\n# Ours.\n[{_CRI}]\n"
        f'sandbox_image = "{sandbox}"\n\n[{_CRI}.containerd]\ndefault_runtime_name = "runc"\n'
        + runtime("runc", "/usr/bin/runc")
    )


def snapshot(sandbox: str = "registry.k8s.io/pause:3.8", program: str = NVIDIA, default: str = "nvidia") -> str:
    """Return the drop-in that nvidia-ctk 1.19 writes for main_file(): a copy of the CRI section, and its runtime."""
    return (
        f'version = 2\n\n[{_CRI}]\nsandbox_image = "{sandbox}"\nenable_cdi = true\n\n'
        f'[{_CRI}.containerd]\ndefault_runtime_name = "{default}"\n'
        + runtime("runc", "/usr/bin/runc")
        + runtime("nvidia", program)
    )


def small_drop_in(program: str = NVIDIA) -> str:
    """Return the drop-in that nvidia-ctk writes if the main file has no section for the CRI."""
    return "version = 2\n" + runtime("nvidia", program)


CRIO_DROP_IN = (
    '[crio.runtime]\ndefault_runtime = "nvidia"\n\n[crio.runtime.runtimes.nvidia]\n'
    f'runtime_path = "{NVIDIA}"\nruntime_type = "oci"\nmonitor_path = "/usr/bin/conmon"\n'
)
# The drop-in that nvidia-ctk 1.20.0 writes to CRIO_READ, which CRI-O reads.
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
