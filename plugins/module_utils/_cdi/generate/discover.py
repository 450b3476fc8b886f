# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Discover device nodes, libraries and graphics files for CDI specifications.

What is found, and its order, are those of nvidia-ctk 1.20.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup, inventory, procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import driver_files


_DRI, _CAPABILITIES = "/dev/dri", "/dev/nvidia-caps"
_BY_PATH = f"{_DRI}/by-path"
# Directories that old releases of crun made inaccessible to users other than root.
_CHMOD_FOLDERS = frozenset({_DRI, _CAPABILITIES})


class DeviceNodes:
    """The device nodes below ``dev`` in the directory ``root``.

    Methods omit nodes that do not exist. They raise HostError for a path that exists but cannot be read.
    """

    def __init__(self, lookup: file_lookup.CachedFS, root: str, hooks: cdi_options.Hooks, with_gids: bool) -> None:
        self._lookup = lookup
        self.root = root
        self._hooks = hooks
        self._with_gids = with_gids
        self._capabilities = procfs.MigCapabilities(lookup.host)

    def named(self, paths: t.Iterable[str]) -> list[cdi_edits.DeviceNode]:
        """Return the character devices among ``paths``, which are paths inside the container."""
        return [node for node in map(self._node, paths) if node is not None]

    def matching(self, *patterns: str) -> list[cdi_edits.DeviceNode]:
        """Return the character devices whose paths match ``patterns``, without duplicates."""
        found = [path for pattern in patterns for path in self._lookup.glob(self.root, pattern.lstrip("/"))]
        return self.named(dict.fromkeys(file_lookup.strip_root(self.root, path) for path in found))

    def edits(self, nodes: t.Iterable[cdi_edits.DeviceNode]) -> cdi_edits.Edits:
        return cdi_edits.node_edits(nodes, self._with_gids)

    def gpu(self, gpu: inventory.Gpu) -> cdi_edits.Edits:
        """Return the edits of a whole GPU: its device node, its DRM nodes, their links, and the hook of folders()."""
        nodes = self.named([f"/dev/nvidia{gpu.minor}", *self._drm_paths(gpu.bus)])
        return cdi_edits.merged(self.edits(nodes), self._links(gpu.bus, nodes), self.folders(nodes))

    def mig(self, gpu: inventory.Gpu, mig_device: inventory.MigDevice) -> cdi_edits.Edits:
        """Return the edits of a MIG device: the node of its GPU and the capability nodes of its instances.

        A MIG device that supports graphics also gets the DRM nodes of the GPU, and their links.

        Raises HostError or ConfigurationError if the driver does not report the numbers of the capability nodes.
        """
        paths = [f"/dev/nvidia{gpu.minor}", *self._capabilities.nodes(gpu.minor, mig_device.gi, mig_device.ci)]
        nodes = self.named([*paths, *(self._drm_paths(gpu.bus) if mig_device.gfx else [])])
        return cdi_edits.merged(self.edits(nodes), self._links(gpu.bus, nodes))

    def folders(self, nodes: t.Iterable[cdi_edits.DeviceNode]) -> cdi_edits.Edits:
        """Return the hook that makes the directories of ``nodes`` accessible to all users."""
        folders = dict.fromkeys(posixpath.dirname(node.path) for node in nodes)
        return self._hooks.chmod(folder for folder in folders if folder in _CHMOD_FOLDERS)

    def _node(self, path: str) -> cdi_edits.DeviceNode | None:
        host_path = file_lookup.under(self.root, path)
        status = self._lookup.lstat(host_path)
        if status is None or not stat.S_ISCHR(status.st_mode):
            return None
        return cdi_edits.DeviceNode(
            path,
            host_path if host_path != path else "",
            os.major(status.st_rdev),
            os.minor(status.st_rdev),
            stat.S_IMODE(status.st_mode) & 0o777,
            gid=status.st_gid,
        )

    def _drm_paths(self, bus: str) -> list[str]:
        return [f"{_DRI}/{name}" for name in self._lookup.names(f"{inventory.PCI}/{bus}/drm")]

    def _links(self, bus: str, nodes: t.Iterable[cdi_edits.DeviceNode]) -> cdi_edits.Edits:
        paths = {file_lookup.under(self.root, node.path) for node in nodes}
        links = []
        for kind in ("card", "render"):
            path = file_lookup.under(self.root, f"{_BY_PATH}/pci-{bus}-{kind}")
            target = self._lookup.link_target(path)
            if target is not None and posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) in paths:
                links.append(f"{target}::{path}")
        return self._hooks.symlinks(links)


# This library has its own version, not the driver's.
_OTHER_VERSION_LIBRARIES = "libnvidia-nvvm70.so.*"
# Libraries that the feature flag enable-explicit-driver-libraries adds. They include loader libraries, which other
# packages also install.
_EXPLICIT_LIBRARIES = (
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
_SOCKET_FOLDERS = ("/run", "/var/run")
# nvidia-ctk mounts this path only if it is not a directory. MPS creates a directory there.
_MPS_PATH = "/tmp/nvidia-mps"
# Links that programs need and that no soname defines: pattern of the file, target (empty: the file), name of the link.
_EXTRA_LINKS = (
    (re.compile(r"libcuda\.so\..*\..*\Z"), "libcuda.so.1", "libcuda.so"),
    (re.compile(r"libGLX_nvidia\.so\..*\..*\Z"), "", "libGLX_indirect.so.0"),
    (re.compile(r"libnvidia-opticalflow\.so\..*\..*\Z"), "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
)
_VERSIONED_NAME = re.compile(r".*\..*\..*\Z")
# The names that ldconfig accepts as libraries.
_LDCONFIG_NAME = re.compile(r"lib.+\.so(\..*)?\Z")


def driver_edits(
    files: driver_files.DriverFiles, version: str, request: cdi_options.Request, hooks: cdi_options.Hooks
) -> cdi_edits.Edits:
    """Return the driver's edits for compute, for containers with GPUs and for containers that manage GPUs.

    Raises HostError if the host has no libraries of this version.
    """
    files.require_version(version)
    folders = files.library_folders(version)
    libraries = driver_libraries(files, folders, version, cdi_options.EXPLICIT_LIBRARIES in request.feature_flags)
    return cdi_edits.merged(
        cdi_edits.Edits(mounts=mounts(libraries)),
        hooks.symlinks(link for library in libraries for link in _library_links(files, library)),
        hooks.edits(cdi_options.CUDA_COMPAT, f"--host-driver-version={version}"),
        _cache_hook(libraries, request, hooks),
        hooks.edits(cdi_options.NODE_MODIFICATION),
        cdi_edits.Edits(env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(folders)}",)),
        cdi_edits.Edits()
        if cdi_options.NO_IPC in request.feature_flags
        else cdi_edits.Edits(mounts=tuple(_sockets(files))),
        cdi_edits.Edits(mounts=mounts(files.firmware(version))),
        cdi_edits.Edits(mounts=mounts(found for found in map(files.program, _PROGRAMS) if found is not None)),
    )


def driver_libraries(
    files: driver_files.DriverFiles, folders: t.Sequence[str], version: str, explicit: bool
) -> list[driver_files.DriverFile]:
    """Return all libraries of this version in ``folders``, and the libraries there that have other versions."""
    found = files.in_folders([*folders, *(f"{folder}/vdpau" for folder in folders)], f"*.so.{version}")
    found += files.in_folders(folders, _OTHER_VERSION_LIBRARIES)
    for name in _EXPLICIT_LIBRARIES if explicit else ():
        found += files.in_folders(folders, name)
    return list(dict.fromkeys(found))


def mounts(found: t.Iterable[driver_files.DriverFile]) -> tuple[cdi_edits.Mount, ...]:
    return tuple(cdi_edits.Mount(file.host, file.inside) for file in found)


def _library_links(files: driver_files.DriverFiles, library: driver_files.DriverFile) -> list[str]:
    """Return the links that a container needs for a library, in the hook's format."""
    folder, name = posixpath.split(library.inside)
    links = [f"{target or name}::{folder}/{link}" for pattern, target, link in _EXTRA_LINKS if pattern.match(name)]
    if not _VERSIONED_NAME.match(name):
        return links
    soname = files.soname(library)
    if soname is None:
        return links
    if _is_link_beside(files, library, soname):
        links.append(f"{name}::{folder}/{soname}")
    plain = _linker_name(soname)
    if plain not in {"", soname} and _is_link_beside(files, library, plain):
        links.append(f"{soname}::{folder}/{plain}")
    return links


def _linker_name(soname: str) -> str:
    """Return the name that the linker uses, such as libx.so for libx.so.1; empty if ``soname`` has no ".so"."""
    while soname and not soname.endswith(".so"):
        soname = soname.rpartition(".")[0]
    return soname


def _is_link_beside(files: driver_files.DriverFiles, library: driver_files.DriverFile, name: str) -> bool:
    # Only a damaged file has a soname with a slash.
    return (
        "/" not in name and files.lookup.link_target(posixpath.join(posixpath.dirname(library.host), name)) is not None
    )


def _cache_hook(
    libraries: t.Sequence[driver_files.DriverFile], request: cdi_options.Request, hooks: cdi_options.Hooks
) -> cdi_edits.Edits:
    inside = [library.inside for library in libraries if _LDCONFIG_NAME.match(posixpath.basename(library.inside))]
    arguments = ["--ldconfig-path", request.ldconfig_path] if request.ldconfig_path else []
    for folder in dict.fromkeys(map(posixpath.dirname, inside)):
        arguments += ["--folder", folder]
    return hooks.edits(cdi_options.LDCACHE, *arguments)


def _sockets(files: driver_files.DriverFiles) -> t.Iterator[cdi_edits.Mount]:
    for name in _SOCKETS:
        found = files.first(_SOCKET_FOLDERS, name)
        if found is not None:
            yield cdi_edits.Mount(found.host, found.inside, cdi_edits.SOCKET_OPTIONS)
    mps = file_lookup.under(files.root, _MPS_PATH)
    if files.lookup.is_file(mps):
        yield cdi_edits.Mount(mps, _MPS_PATH, cdi_edits.SOCKET_OPTIONS)


# The libraries of platforms for EGL, and the files that name them. They have their own versions, not the driver's.
_PLATFORMS = {
    "libnvidia-egl-gbm": "15_nvidia_gbm.json",
    "libnvidia-egl-wayland": "10_nvidia_wayland.json",
    "libnvidia-egl-wayland2": "09_nvidia_wayland2.json",
    "libnvidia-egl-xcb": "20_nvidia_xcb.json",
    "libnvidia-egl-xlib": "20_nvidia_xlib.json",
}
# Libraries, and patterns of the JSON files by which the loaders of EGL and Vulkan find them.
DESCRIPTIONS = {"libEGL_nvidia": "10_nvidia.json", "libGLX_nvidia": "nvidia_icd*.json", **_PLATFORMS}
# driver_edits() mounts these libraries, and graphics_edits() adds their links. It also mounts the second
# one.
_ALLOCATOR, _VULKAN_PRODUCER = "libnvidia-allocator.so", "libnvidia-vulkan-producer.so"
_X_DRIVER, _X_EXTENSION = "nvidia_drv.so", "libglxserver_nvidia.so"
_X_MODULES = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
_X_FOLDERS = tuple(
    f"{folder}/{modules}"
    for folder in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for modules in _X_MODULES
)
_X_PROGRAM = "nvidia-xconfig"
_SHARED_FOLDER, _CONFIG_FOLDER = "/usr/share", "/etc"
# The host may keep these in several places. In the container they are below /usr/share.
_SHARED_FILES = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    *(f"egl/egl_external_platform.d/{file}" for file in _PLATFORMS.values()),
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
# In the container these are below /etc.
_OPENCL_FILES = ("OpenCL/vendors/nvidia.icd",)
_VULKAN_FILES = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_VULKAN_MACHINE_FILE = "vulkan/icd.d/nvidia_icd.{machine}.json"


def graphics_edits(files: driver_files.DriverFiles, version: str, hooks: cdi_options.Hooks) -> cdi_edits.Edits:
    """Return the edits that only graphics needs. All of its files are optional."""
    folders = files.library_folders(version)
    libraries = [library for name in _PLATFORMS for library in files.libraries(f"{name}.so.*.*")]
    allocators = files.libraries(f"{_ALLOCATOR}.{version}")
    producers = files.libraries(f"{_VULKAN_PRODUCER}.{version}")
    x_files = _x_files(files, folders, version)
    links = [
        *_graphics_links(allocators, _ALLOCATOR, "../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
        *_graphics_links(producers, _VULKAN_PRODUCER, "", _VULKAN_PRODUCER),
        *_graphics_links(x_files, _X_EXTENSION, "", _X_EXTENSION),
    ]
    program = files.program(_X_PROGRAM)
    machine = files.machine(next(iter(allocators or files.libraries(f"lib*.so.{version}")), None))
    vulkan = (*_VULKAN_FILES, _VULKAN_MACHINE_FILE.format(machine=machine))
    return cdi_edits.merged(
        cdi_edits.Edits(mounts=mounts(dict.fromkeys([*libraries, *producers, *x_files]))),
        cdi_edits.Edits(mounts=tuple(_configs(files, _SHARED_FOLDER, _SHARED_FILES))),
        cdi_edits.Edits(mounts=tuple(_configs(files, _CONFIG_FOLDER, _OPENCL_FILES))),
        # If the usual directories lack these files, they are directly in the driver's root (as on GKE).
        cdi_edits.Edits(mounts=tuple(_configs(files, _CONFIG_FOLDER, vulkan, files.root))),
        cdi_edits.Edits(mounts=mounts([program] if program else [])),
        hooks.symlinks(links),
    )


def _x_files(files: driver_files.DriverFiles, folders: t.Sequence[str], version: str) -> list[driver_files.DriverFile]:
    paths = [f"{folder}/{name}" for folder in folders for name in ("nvidia/xorg", *(f"xorg/{m}" for m in _X_MODULES))]
    found = [files.first([*paths, *_X_FOLDERS], name) for name in (_X_DRIVER, f"{_X_EXTENSION}.{version}")]
    return [file for file in found if file is not None]


def _graphics_links(libraries: t.Iterable[driver_files.DriverFile], name: str, target: str, link: str) -> list[str]:
    """Return a link for each file of that name. It leads to ``target``, or to the file if ``target`` is empty."""
    pattern = re.compile(re.escape(name) + r"\..*\..*\Z")
    parts = [posixpath.split(library.inside) for library in libraries]
    return [f"{target or file}::{folder}/{link}" for folder, file in parts if pattern.match(file)]


def _configs(
    files: driver_files.DriverFiles, container_folder: str, names: t.Iterable[str], fallback_folder: str = ""
) -> t.Iterator[cdi_edits.Mount]:
    """Yield mounts of the files that exist. ``fallback_folder`` is searched after the usual directories.

    ``container_folder`` is the directory of the files in the container.
    """
    for name in names:
        path = files.config(name)
        if path is None and fallback_folder and files.lookup.is_file(file_lookup.under(fallback_folder, f"/{name}")):
            path = file_lookup.under(fallback_folder, f"/{name}")
        if path is not None:
            yield cdi_edits.Mount(path, f"{container_folder}/{name}")
