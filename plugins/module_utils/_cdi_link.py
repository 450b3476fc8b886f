# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: whether a container can get GPUs by the CDI specifications in given folders, and why not.

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_files import check_size
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_folders import SUFFIXES, Resolution, resolve
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import qualified_name
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import judge
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_staleness import why_stale
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_yaml import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, MissingPackageError, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# All sentences of a broken link would be too many.
_TOLD = 3
_MAKE = "with gpufleet.nvidia.nvidia_cdi_spec"


class Finding(t.NamedTuple):
    """Whether containers get GPUs, in words; ``advice`` where they do not."""

    ok: bool
    detail: str
    advice: str = ""


def judge_folders(host: HostRoot, folders: t.Sequence[str]) -> Finding:
    """What engines make of the specifications in ``folders``, the one that goes before all others last.

    Raises MissingPackageError where a file needs PyYAML and there is none, HostError as check_size().
    """
    # The library reads no folder that is a link.
    real = [folder for folder in folders if not os.path.islink(host.outer(folder, last=False))]
    paths = [path for folder in real for path in _paths(host, folder)]
    check_size(host, paths)
    files = {path: _parsed(host, path) for path in paths}
    found = resolve(files, real)
    start = qualified_name(GPU_KIND, "")
    used = dict.fromkeys(path for name, path in found.devices.items() if name.startswith(start))
    if not used:
        return _nothing(found, folders, start)
    driver = loaded_driver(host)
    version = driver.version if driver is not None else None
    for path in used:
        reasons, _missing = why_stale(judge(files[path]).document, host, version)
        if reasons:
            advice = f"Make it anew {_MAKE}, or remove it if nobody needs it."
            return Finding(
                ok=False,
                detail=f"{path} does not fit this host. {' '.join(reason.message for reason in reasons[:_TOLD])}",
                advice=advice,
            )
    return Finding(ok=True, detail=f"{few(list(used))} {'describes' if len(used) == 1 else 'describe'} {GPU_KIND}.")


def _nothing(found: Resolution, folders: t.Sequence[str], start: str) -> Finding:
    """Why there are no devices."""
    fewer = {name: paths for name, paths in found.unresolvable.items() if name.startswith(start)}
    # Of a file that cannot be read nobody knows the kind.
    faulty = tuple(file for file in found.files if file.faults and file.kind in ("", GPU_KIND))
    said = found._replace(files=faulty, shadowed={}, unresolvable=fewer).warnings()
    if said:
        return Finding(
            ok=False, detail=" ".join(said[:_TOLD]), advice=f"Make one that is valid {_MAKE}, and remove the others."
        )
    return Finding(
        ok=False,
        detail=f"No specification in {' or '.join(folders)} describes {GPU_KIND}.",
        advice=f"Make one {_MAKE}.",
    )


def _paths(host: HostRoot, folder: str) -> list[str]:
    paths = [f"{folder}/{name}" for name in host.readable_entries(folder) if name.endswith(SUFFIXES)]
    return [path for path in paths if not os.path.isdir(host.outer(path, last=False))]


def _parsed(host: HostRoot, path: str) -> t.Any:
    try:
        return parse(path, host.read(path) or b"")
    except MissingPackageError:
        raise
    except GpufleetError as error:
        return error
