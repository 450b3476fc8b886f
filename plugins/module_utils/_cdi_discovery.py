# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what of NVIDIA's driver every container with a GPU gets: libraries and their links,
# sockets, firmware, programs.  Which, and in which order, is as in NVIDIA's generator of specifications (1.20).

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import SOCKET_OPTIONS, Edits, Mount, merged
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import (
    CUDA_COMPAT,
    EXPLICIT_LIBRARIES,
    LDCACHE,
    NO_IPC,
    NODE_MODIFICATION,
    Hooks,
    Request,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_lookup import under

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._driver_files import DriverFiles, Found

# Whose version is their own.
_OTHER_LIBRARIES = "libnvidia-nvvm70.so.*"
# With the feature flag: those of the loader, too, which other packages have.
_EXPLICIT = (
    "libEGL.so",
    "libGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenCL.so",
    "libOpenGL.so",
    "libnvidia-api.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_RUNTIME_FOLDERS = ("/run", "/var/run")
# NVIDIA's generator takes this only if it is no directory, and MPS makes a directory of it.
_MPS = "/tmp/nvidia-mps"
# Links that programs need, which no soname tells: what is linked to (the file itself where empty), and its name.
_LINKS = (
    (re.compile(r"libcuda\.so\..*\..*\Z"), "libcuda.so.1", "libcuda.so"),
    (re.compile(r"libGLX_nvidia\.so\..*\..*\Z"), "", "libGLX_indirect.so.0"),
    (re.compile(r"libnvidia-opticalflow\.so\..*\..*\Z"), "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
)
_VERSIONED = re.compile(r".*\..*\..*\Z")
# What ldconfig takes for a library.
_LIBRARY = re.compile(r"lib.+\.so(\..*)?\Z")


def driver_edits(files: DriverFiles, version: str, request: Request, hooks: Hooks) -> Edits:
    """All of the driver that is for computing, for a container with GPUs or for one that manages them.

    Raises HostError where there are no libraries of this version.
    """
    files.require(version)
    folders = files.library_folders(version)
    libraries = driver_libraries(files, folders, version, EXPLICIT_LIBRARIES in request.feature_flags)
    return merged(
        Edits(mounts=mounts(libraries)),
        hooks.symlinks(link for library in libraries for link in _links(files, library)),
        hooks.plain(CUDA_COMPAT, f"--host-driver-version={version}"),
        _cache_hook(libraries, request, hooks),
        hooks.plain(NODE_MODIFICATION),
        Edits(env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(folders)}",)),
        Edits() if NO_IPC in request.feature_flags else Edits(mounts=tuple(_sockets(files))),
        Edits(mounts=mounts(files.firmware(version))),
        Edits(mounts=mounts(found for found in map(files.program, _PROGRAMS) if found is not None)),
    )


def driver_libraries(files: DriverFiles, folders: t.Sequence[str], version: str, explicit: bool) -> list[Found]:
    """All libraries of this version in ``folders``, and some others there."""
    found = files.in_folders([*folders, *(f"{folder}/vdpau" for folder in folders)], f"*.so.{version}")
    found += files.in_folders(folders, _OTHER_LIBRARIES)
    for name in _EXPLICIT if explicit else ():
        found += files.in_folders(folders, name)
    return list(dict.fromkeys(found))


def mounts(found: t.Iterable[Found]) -> tuple[Mount, ...]:
    return tuple(Mount(file.host, file.inside) for file in found)


def _links(files: DriverFiles, library: Found) -> list[str]:
    """The links to a library that a container needs, as its hook takes them."""
    folder, name = posixpath.split(library.inside)
    links = [f"{target or name}::{folder}/{link}" for pattern, target, link in _LINKS if pattern.match(name)]
    if not _VERSIONED.match(name):
        return links
    soname = files.soname(library)
    if soname is None:
        return links
    if _is_link_beside(files, library, soname):
        links.append(f"{name}::{folder}/{soname}")
    plain = _plain_name(soname)
    if plain not in {"", soname} and _is_link_beside(files, library, plain):
        links.append(f"{soname}::{folder}/{plain}")
    return links


def _plain_name(soname: str) -> str:
    """As the linker asks for it: libx.so for libx.so.1; empty where the name has no such part."""
    while soname and not soname.endswith(".so"):
        soname = soname.rpartition(".")[0]
    return soname


def _is_link_beside(files: DriverFiles, library: Found, name: str) -> bool:
    # A name with a slash is one of a garbled file.
    return "/" not in name and files.lookup.link(posixpath.join(posixpath.dirname(library.host), name)) is not None


def _cache_hook(libraries: t.Sequence[Found], request: Request, hooks: Hooks) -> Edits:
    inside = [library.inside for library in libraries if _LIBRARY.match(posixpath.basename(library.inside))]
    arguments = ["--ldconfig-path", request.ldconfig_path] if request.ldconfig_path else []
    for folder in dict.fromkeys(map(posixpath.dirname, inside)):
        arguments += ["--folder", folder]
    return hooks.plain(LDCACHE, *arguments)


def _sockets(files: DriverFiles) -> t.Iterator[Mount]:
    for name in _SOCKETS:
        found = files.first(_RUNTIME_FOLDERS, name)
        if found is not None:
            yield Mount(found.host, found.inside, SOCKET_OPTIONS)
    mps = under(files.root, _MPS)
    if files.lookup.is_file(mps):
        yield Mount(mps, _MPS, SOCKET_OPTIONS)
