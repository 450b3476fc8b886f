# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a pod of containerd needs beside its own containers, as the running CRI tells it.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import lookup

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

# Where the name of the pause image stands: in what the CRI tells (1.x; CRI-O), in what the program prints (2.x).
_TOLD = "sandboxImage"
_PRINTED = ("plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")


def sandbox_image(
    told: t.Mapping[str, t.Any], binary: str | None, config_path: str, host: HostRoot, run: Runner
) -> str | None:
    """The image that every pod begins with, None where nobody tells.  containerd 2 tells it only in its dump."""
    found = told.get(_TOLD)
    if found is None and binary is not None:
        known = host.exists(config_path)
        argv = [binary, "--config", config_path, "config", "dump"] if known else [binary, "config", "default"]
        status, output, _errors = run(host.argv(argv))
        try:
            printed = TomlDocument.from_bytes("", output.encode("utf-8")).data if not status else {}
        except GpufleetError:
            printed = {}
        found = lookup(printed, _PRINTED)
    return found if isinstance(found, str) and found else None


def wants_slice(told: t.Mapping[str, t.Any], runtime: str) -> bool:
    """Whether pods of a runtime need a slice for their control groups: systemd makes them, at runc's wish."""
    options = lookup(told, ("containerd", "runtimes", runtime, "options"))
    chosen = options.get("SystemdCgroup") if isinstance(options, dict) else None
    return bool(chosen) or told.get("systemdCgroup") is True
