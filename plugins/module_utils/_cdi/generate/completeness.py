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
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files

    Data = t.Mapping[str, t.Any]


def warnings_of(
    document: Data,
    host: hostfs.HostFS,
    files: driver_files.DriverFiles,
    found: inventory.GpuInventory,
    dev_root: str = "/",
) -> list[str]:
    """Return a warning for the GPUs, for their DRM nodes, and for the libraries that a specification of all GPUs lacks.

    Args:
        document: A specification of mode nvml for all devices.
        host: The host.
        files: The files of the driver.
        found: The GPUs from which the document was generated.
        dev_root: The directory that contains ``dev``.
    """
    parts = [document, *document.get("devices", ())]
    nodes = {node.get("path") for part in parts for node in part.get("containerEdits", {}).get("deviceNodes", ())}
    return [
        *_missing_gpus(nodes, host, found),
        *_missing_drm_nodes(nodes, host, found, dev_root),
        *_missing_libraries(document, files, found.version),
    ]


def _missing_gpus(nodes: t.Collection[str], host: hostfs.HostFS, found: inventory.GpuInventory) -> t.Iterator[str]:
    # Containers cannot use a GPU in MIG mode itself. Another warning names those without MIG devices.
    known = {*found.omitted, *(gpu.bus for gpu in found.gpus if gpu.mig and not gpu.migs)}
    missing: list[str] = []
    with contextlib.suppress(errors.NvidiaError):
        missing = [
            f"{gpu.bus} (/dev/nvidia{gpu.minor})"
            for gpu in procfs.read_gpus(host)
            if gpu.name not in procfs.SKIPPED_NAMES and gpu.bus not in known and f"/dev/nvidia{gpu.minor}" not in nodes
        ]
    if missing:
        yield (
            f"The specification lacks the GPU {core_text.listed(missing)}, which {procfs.GPUS} lists."
            f" {procfs.CHECK_LOG} Then run this task again."
        )


def _missing_drm_nodes(
    nodes: t.Collection[str], host: hostfs.HostFS, found: inventory.GpuInventory, dev_root: str
) -> t.Iterator[str]:
    # Few MIG devices support graphics.
    whole = [gpu.bus for gpu in found.gpus if not gpu.mig]
    paths = [f"/dev/dri/{name}" for bus in whole for name in host.readable_entries(f"{inventory.PCI}/{bus}/drm")]
    missing = [path for path in paths if path not in nodes and host.exists(file_lookup.under(dev_root, path))]
    if missing:
        yield (
            f"The specification lacks {core_text.listed(missing)}, so containers cannot use these GPUs for graphics."
            f" Set {errors.option:backend}: native."
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
