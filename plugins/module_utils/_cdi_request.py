# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a CDI specification is asked to be, in the words of NVIDIA's generator (the options
# of "nvidia-ctk cdi generate"), and its hooks.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import ALL, Edits, Hook
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

CREATE_SYMLINKS, CHMOD, CUDA_COMPAT = "create-symlinks", "chmod", "enable-cuda-compat"
LDCACHE, NODE_MODIFICATION = "update-ldcache", "disable-device-node-modification"
APPLICATION_PROFILE = "update-application-profile"
HOOKS = (CREATE_SYMLINKS, CHMOD, CUDA_COMPAT, LDCACHE, NODE_MODIFICATION, APPLICATION_PROFILE)
# It repairs what crun did once; NVIDIA has switched it off in 1.18.
_OFF = frozenset({CHMOD})
NONE = "none"

INDEX, TYPE_INDEX, UUID = "index", "type-index", "uuid"
STRATEGIES = (INDEX, TYPE_INDEX, UUID)

EXPLICIT_LIBRARIES, NO_IPC = "enable-explicit-driver-libraries", "disable-ipc-discoverer"
NO_GIDS = "no-additional-gids-for-device-nodes"
COHERENCE = "enable-coherent-annotations"
# The two without a constant change nothing in a specification made here: it uses no libnvidia-sandboxutils, and is of
# no Tegra.
FEATURE_FLAGS = (
    EXPLICIT_LIBRARIES,
    NO_IPC,
    NO_GIDS,
    "disable-nvsandboxutils",
    "disable-multiple-csv-devices",
    COHERENCE,
)
# With COHERENCE, what is added to the class, and to the file's name, for a specification of such GPUs alone
# (generateSpecs in cmd/nvidia-ctk/cdi/generate/generate.go, v1.20.0).
VARIANTS = {"coherent": True, "noncoherent": False}

CDI_HOOK = "/usr/bin/nvidia-cdi-hook"
# Programs that have the hooks as a subcommand; nvidia-cdi-hook is one of hooks only.
_WITH_SUBCOMMAND = frozenset({"nvidia-ctk"})


class Request(t.NamedTuple):
    """Which specification is wanted; every path is one on the host.

    driver_root: where the driver is; dev_root: where the folder ``dev`` is, in driver_root if empty.  ``device_ids``:
    empty for all.  The fields that begin with csv count in mode csv only; the last is a path in containers.
    ``hooks`` is "toolkit", or "none" for a host without NVIDIA's toolkit.
    """

    vendor: str = "nvidia.com"
    class_: str = "gpu"
    device_name_strategies: tuple[str, ...] = (INDEX, UUID)
    device_ids: tuple[str, ...] = ()
    all_device: bool = True
    driver_root: str = "/"
    dev_root: str = ""
    library_search_paths: tuple[str, ...] = ()
    config_search_paths: tuple[str, ...] = ()
    csv_files: tuple[str, ...] = ()
    csv_ignore_patterns: tuple[str, ...] = ()
    csv_compat_container_root: str = ""
    cdi_hook_path: str = CDI_HOOK
    ldconfig_path: str = ""
    enabled_hooks: tuple[str, ...] = ()
    disabled_hooks: tuple[str, ...] = ()
    feature_flags: tuple[str, ...] = ()
    hooks: str = "toolkit"


def checked(request: Request, host: HostRoot) -> Request:
    """``request`` with its paths normalised; raises GpufleetError for what no specification can be made of."""
    _known("device_name_strategies", request.device_name_strategies, STRATEGIES)
    _known("enabled_hooks", request.enabled_hooks, HOOKS)
    _known("disabled_hooks", request.disabled_hooks, (*HOOKS, ALL))
    _known("feature_flags", request.feature_flags, FEATURE_FLAGS)
    _known("hooks", (request.hooks,), ("toolkit", NONE))
    if not request.device_name_strategies:
        raise GpufleetError(
            "device_name_strategies is empty, so no device would have a name. Name one or more of"
            f" {', '.join(STRATEGIES)}."
        )
    ldconfig, compat = request.ldconfig_path, request.csv_compat_container_root
    return request._replace(
        driver_root=host.check_path("driver_root", request.driver_root),
        dev_root=host.check_path("dev_root", request.dev_root or request.driver_root),
        library_search_paths=tuple(
            host.check_path("library_search_paths", path) for path in request.library_search_paths
        ),
        config_search_paths=tuple(host.check_path("config_search_paths", path) for path in request.config_search_paths),
        csv_files=tuple(host.check_path("csv_files", path) for path in request.csv_files),
        csv_compat_container_root=host.check_path("csv_compat_container_root", compat) if compat else "",
        cdi_hook_path=host.check_path("cdi_hook_path", request.cdi_hook_path),
        ldconfig_path=host.check_path("ldconfig_path", ldconfig) if ldconfig else "",
    )


class Hooks:
    """The hooks that a request wants; what it does not want comes out as no edit at all.

    ``off`` are those that the mode has only where they are enabled.
    """

    def __init__(self, request: Request, off: t.Iterable[str] = ()) -> None:
        disabled = {*_OFF, *off, *(HOOKS if ALL in request.disabled_hooks else request.disabled_hooks)}
        wanted = {*HOOKS} - disabled | {*request.enabled_hooks}
        self._wanted = wanted if request.hooks != NONE else set()
        self._path = request.cdi_hook_path
        name = posixpath.basename(self._path)
        self._start = (name, "hook") if name in _WITH_SUBCOMMAND else (name,)

    def symlinks(self, links: t.Iterable[str]) -> Edits:
        """Links as the hook takes them, TARGET::PATH; each is made once."""
        arguments = [word for link in dict.fromkeys(links) for word in ("--link", link)]
        return self.plain(CREATE_SYMLINKS, *arguments) if arguments else Edits()

    def chmod(self, folders: t.Iterable[str]) -> Edits:
        """Only for who asks for it by its name, and so the generator makes it for no folder, too."""
        arguments = [word for folder in dict.fromkeys(folders) for word in ("--path", folder)]
        return self.plain(CHMOD, "--mode", "755", *arguments)

    def plain(self, name: str, *arguments: str) -> Edits:
        if name not in self._wanted:
            return Edits()
        return Edits(hooks=(Hook(self._path, (*self._start, name, *arguments)),))


def _known(parameter: str, values: t.Iterable[str], known: t.Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise GpufleetError(f"{parameter}: {value!r} is not known. Use one of {', '.join(known)}.")
