# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare a generated specification with all GPUs and libraries of the driver that the host has.

The generators describe what they find, and report success for what they have not found.
"""

from __future__ import annotations

import contextlib
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup, inventory, procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files

    Data = t.Mapping[str, t.Any]


def warnings_of(document: Data, files: driver_files.DriverFiles, found: inventory.GpuInventory) -> list[str]:
    """Return a warning for the GPUs and their nodes, and one for the libraries, that a specification of all GPUs lacks.

    Args:
        document: A specification of mode nvml for all devices.
        files: The files of the driver.
        found: The GPUs from which the document was generated.
    """
    return [*_missing_gpus(document, files, found), *_missing_libraries(document, files, found.version)]


def _missing_gpus(document: Data, files: driver_files.DriverFiles, found: inventory.GpuInventory) -> t.Iterator[str]:
    host, folder = files.lookup.host, file_lookup.under(files.root, "/dev/dri")
    parts = [document, *document.get("devices", ())]
    nodes = {node.get("path") for part in parts for node in part.get("containerEdits", {}).get("deviceNodes", ())}
    # Containers cannot use a GPU in MIG mode itself. Another warning names those without MIG devices.
    in_mig_mode = {gpu.bus for gpu in found.gpus if gpu.mig}
    known = {*found.omitted, *(gpu.bus for gpu in found.gpus if gpu.mig and not gpu.migs)}
    missing: list[str] = []
    with contextlib.suppress(errors.NvidiaError):
        for gpu in procfs.read_gpus(host):
            drm = () if gpu.bus in in_mig_mode else host.readable_entries(f"{inventory.PCI}/{gpu.bus}/drm")
            paths = [f"/dev/dri/{name}" for name in drm if files.lookup.is_file(f"{folder}/{name}")]
            lacking = [path for path in (f"/dev/nvidia{gpu.minor}", *paths) if path not in nodes]
            if lacking and gpu.name not in procfs.SKIPPED_NAMES and gpu.bus not in known:
                missing.append(f"{gpu.bus} ({', '.join(lacking)})")
    if missing:
        yield (
            f"The specification lacks nodes of the GPU {core_text.listed(missing)}, which {procfs.GPUS} lists."
            f" {procfs.CHECK_LOG} Then run this task again, with {errors.option:backend}: native."
        )


def _missing_libraries(document: Data, files: driver_files.DriverFiles, version: str) -> t.Iterator[str]:
    mounts = document.get("containerEdits", {}).get("mounts", ())
    sources = {mount.get("hostPath") for mount in mounts}
    names = {posixpath.basename(path) for path in sources if isinstance(path, str)}
    found: list[str] = []
    with contextlib.suppress(errors.NvidiaError):
        found = [library.host for library in files.libraries(f"lib*.so.{version}")]
    missing = [path for path in found if path not in sources and posixpath.basename(path) not in names]
    if missing:
        yield (
            f"The specification lacks libraries of the driver: {core_text.listed(missing)}. Set"
            f" {errors.option:library_search_paths} to the directories of all libraries."
        )
