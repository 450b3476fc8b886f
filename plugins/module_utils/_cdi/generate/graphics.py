# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the JSON files for Vulkan and EGL in a specification with its libraries.

A loader of Vulkan or EGL reads the name of the driver's library from such a file. Without one of the two it finds no
GPU, and reports no error.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import discover as cdi_discover
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_DESCRIPTION = re.compile(r"/(?:vulkan|glvnd|egl)/.*nvidia[^/]*\.json\Z")
_MAX_BYTES, _MAX_LEVELS, _MAX_PATH = 1 << 16, 10, 256


def problem_of(name: str, document: t.Mapping[str, t.Any], host: hostfs.HostFS) -> errors.Problem | None:
    """Return the problem of libraries and JSON files that the specification ``name`` lacks; None if it has all."""
    mounts = [mount for _field, edits in host_check.all_edits(document) for mount in edits.get("mounts", ())]
    sources = {mount["containerPath"]: mount["hostPath"] for mount in mounts}
    files = {path: source for path, source in sources.items() if _DESCRIPTION.search(path)}
    missing = [
        f"{host_check.shown(library)} (which {host_check.shown(source)} names)"
        for path, source in files.items()
        for library in _libraries(host, source)
        if not _has_library(host, sources, posixpath.dirname(path), library)
    ]
    # A specification with only the device "all" is of mode management, which has no graphics.
    if [device["name"] for device in document.get("devices", ())] != [cdi_edits.ALL]:
        names = [posixpath.basename(path) for path in files]
        missing += [
            f"{pattern} (for {library})"
            for library, pattern in cdi_discover.DESCRIPTIONS.items()
            if any(f"/{library}.so." in path for path in sources) and not fnmatch.filter(names, pattern)
        ]
    if not missing:
        return None
    message = f"{name} lacks {core_text.listed(missing)}, so some programs for Vulkan or EGL find no GPU in containers."
    advice = "Install all of the driver's packages for graphics, then write the specification again."
    return errors.Problem("cdi-graphics-incomplete", message, advice)


def _libraries(host: hostfs.HostFS, path: str) -> list[str]:
    """Return the libraries that a JSON file names. There are none in a file that cannot be read."""
    try:
        data = json_data.load(host.read(path, _MAX_BYTES) or b"", _MAX_LEVELS)
    except (errors.NvidiaError, ValueError):
        return []
    layers: list[t.Any] = json_data.get(data, "layers", [])
    parts = [json_data.get(data, "ICD", {}), json_data.get(data, "layer", {}), *layers]
    found = [json_data.get(part, "library_path", "") for part in parts]
    return [path for path in dict.fromkeys(found) if path and path.isprintable() and len(path) < _MAX_PATH]


def _has_library(host: hostfs.HostFS, sources: t.Mapping[str, str], folder: str, library: str) -> bool:
    """Return whether a container has a library that a JSON file in ``folder`` names.

    The linker searches a name without a directory. Other versions count, because hooks make links with sonames. A
    mounted directory may contain the library.
    """
    place, name = posixpath.split(posixpath.normpath(posixpath.join(folder if "/" in library else "", library)))
    start = name.partition(".so")[0] + ".so"
    return any(
        (not place or posixpath.dirname(path) == place) and posixpath.basename(path).startswith(start)
        for path in sources
    ) or any((not place or path == place) and host.exists(f"{source}/{name}") for path, source in sources.items())
