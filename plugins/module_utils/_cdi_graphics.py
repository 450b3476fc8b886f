# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what of NVIDIA's driver containers get that draw: libraries of their own, the driver of
# the X server, and the files by which loaders find them.  As in NVIDIA's generator of specifications (1.20).

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_discovery import mounts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import Edits, Mount, merged
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_lookup import under

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Hooks
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_files import DriverFiles, Found

# Their versions are their own.
_LIBRARIES = tuple(f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib"))
# Mounted with all others of the driver's version; looked for here because of their links.
_ALLOCATOR, _VULKAN_PRODUCER = "libnvidia-allocator.so", "libnvidia-vulkan-producer.so"
_X_DRIVER, _X_EXTENSION = "nvidia_drv.so", "libglxserver_nvidia.so"
_X_MODULES = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
_X_FOLDERS = tuple(
    f"{folder}/{modules}"
    for folder in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for modules in _X_MODULES
)
_X_PROGRAM = "nvidia-xconfig"
_SHARED, _SETTINGS = "/usr/share", "/etc"
# Found wherever the host keeps such files, and seen by the container below /usr/share.
_SHARED_FILES = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
# The same below /etc.
_OPENCL = ("OpenCL/vendors/nvidia.icd",)
_VULKAN = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_VULKAN_OF_MACHINE = "vulkan/icd.d/nvidia_icd.{machine}.json"


def graphics_edits(files: DriverFiles, version: str, hooks: Hooks) -> Edits:
    """All that only drawing needs; nothing of it has to be there."""
    folders = files.library_folders(version)
    libraries = [library for pattern in _LIBRARIES for library in files.libraries(pattern)]
    allocators = files.libraries(f"{_ALLOCATOR}.{version}")
    producers = files.libraries(f"{_VULKAN_PRODUCER}.{version}")
    x_files = _x_files(files, folders, version)
    links = [
        *_links(allocators, _ALLOCATOR, "../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
        *_links(producers, _VULKAN_PRODUCER, "", _VULKAN_PRODUCER),
        *_links(x_files, _X_EXTENSION, "", _X_EXTENSION),
    ]
    program = files.program(_X_PROGRAM)
    machine = files.machine(next(iter(allocators or files.libraries(f"lib*.so.{version}")), None))
    vulkan = (*_VULKAN, _VULKAN_OF_MACHINE.format(machine=machine))
    return merged(
        Edits(mounts=mounts(dict.fromkeys([*libraries, *producers, *x_files]))),
        Edits(mounts=tuple(_configs(files, _SHARED, _SHARED_FILES))),
        Edits(mounts=tuple(_configs(files, _SETTINGS, _OPENCL))),
        # Where there is no place for them, they are directly in the driver's root (as on GKE).
        Edits(mounts=tuple(_configs(files, _SETTINGS, vulkan, files.root))),
        Edits(mounts=mounts([program] if program else [])),
        hooks.symlinks(links),
    )


def _x_files(files: DriverFiles, folders: t.Sequence[str], version: str) -> list[Found]:
    places = [f"{folder}/{name}" for folder in folders for name in ("nvidia/xorg", *(f"xorg/{m}" for m in _X_MODULES))]
    found = [files.first([*places, *_X_FOLDERS], name) for name in (_X_DRIVER, f"{_X_EXTENSION}.{version}")]
    return [file for file in found if file is not None]


def _links(libraries: t.Iterable[Found], name: str, target: str, link: str) -> list[str]:
    """A link for each file of that name: to ``target``, or to the file where that is empty."""
    pattern = re.compile(re.escape(name) + r"\..*\..*\Z")
    parts = [posixpath.split(library.inside) for library in libraries]
    return [f"{target or file}::{folder}/{link}" for folder, file in parts if pattern.match(file)]


def _configs(files: DriverFiles, place: str, names: t.Iterable[str], last: str = "") -> t.Iterator[Mount]:
    """Those that are there; ``last`` is where else to look."""
    for name in names:
        path = files.config(name)
        if path is None and last and files.lookup.is_file(under(last, f"/{name}")):
            path = under(last, f"/{name}")
        if path is not None:
            yield Mount(path, f"{place}/{name}")
