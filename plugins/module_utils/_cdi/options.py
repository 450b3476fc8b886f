# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of a CDI task, validated."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


CREATE_SYMLINKS, CHMOD, CUDA_COMPAT = "create-symlinks", "chmod", "enable-cuda-compat"
LDCACHE, NODE_MODIFICATION = "update-ldcache", "disable-device-node-modification"
APPLICATION_PROFILE = "update-application-profile"
HOOKS = (CREATE_SYMLINKS, CHMOD, CUDA_COMPAT, LDCACHE, NODE_MODIFICATION, APPLICATION_PROFILE)
# This hook repairs directories that old releases of crun made inaccessible. NVIDIA switched it off in 1.18.
_OFF = frozenset({CHMOD})
NONE = "none"

INDEX, TYPE_INDEX, UUID = "index", "type-index", "uuid"
STRATEGIES = (INDEX, TYPE_INDEX, UUID)

EXPLICIT_LIBRARIES, NO_IPC = "enable-explicit-driver-libraries", "disable-ipc-discoverer"
NO_GIDS = "no-additional-gids-for-device-nodes"
COHERENCE = "enable-coherent-annotations"
# The two flags without a constant have no effect on specifications of this collection: it does not use
# libnvidia-sandboxutils, and does not describe Tegra.
FEATURE_FLAGS = (
    EXPLICIT_LIBRARIES,
    NO_IPC,
    NO_GIDS,
    "disable-nvsandboxutils",
    "disable-multiple-csv-devices",
    COHERENCE,
)
# With COHERENCE, suffixes of the class and of the file name for specifications of only coherent or only other GPUs
# (generateSpecs in cmd/nvidia-ctk/cdi/generate/generate.go, v1.20.0).
VARIANTS = {"coherent": True, "noncoherent": False}

CDI_HOOK = "/usr/bin/nvidia-cdi-hook"
# Programs that contain the hooks as a subcommand. nvidia-cdi-hook contains only hooks.
_WITH_SUBCOMMAND = frozenset({"nvidia-ctk"})


class Request(t.NamedTuple):
    """The specification to generate. All paths are paths on the host.

    driver_root: the root directory of the driver.
    dev_root: the directory that contains ``dev``; driver_root if empty.
    device_ids: empty for all devices.
    csv_*: used by mode csv only. ``csv_compat_container_root`` is a path in containers.
    hooks: "toolkit", or "none" for a host without NVIDIA's toolkit.
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


def checked(request: Request, host: hostfs.HostFS) -> Request:
    """Return ``request`` with normalized paths. Raises NvidiaError for values that cannot make a specification."""
    _known("device_name_strategies", request.device_name_strategies, STRATEGIES)
    _known("enabled_hooks", request.enabled_hooks, HOOKS)
    _known("disabled_hooks", request.disabled_hooks, (*HOOKS, cdi_edits.ALL))
    _known("feature_flags", request.feature_flags, FEATURE_FLAGS)
    _known("hooks", (request.hooks,), ("toolkit", NONE))
    if not request.device_name_strategies:
        raise errors.NvidiaError(
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
    """The hooks that a request enables. Methods return empty edits for other hooks.

    ``off`` are hooks that the mode uses only if the request enables them.
    """

    def __init__(self, request: Request, off: t.Iterable[str] = ()) -> None:
        disabled = {*_OFF, *off, *(HOOKS if cdi_edits.ALL in request.disabled_hooks else request.disabled_hooks)}
        wanted = {*HOOKS} - disabled | {*request.enabled_hooks}
        self._wanted = wanted if request.hooks != NONE else set()
        self._path = request.cdi_hook_path
        name = posixpath.basename(self._path)
        self._start = (name, "hook") if name in _WITH_SUBCOMMAND else (name,)

    def symlinks(self, links: t.Iterable[str]) -> cdi_edits.Edits:
        """Return the hook that creates ``links``, in the hook's format TARGET::PATH, without duplicates."""
        arguments = [word for link in dict.fromkeys(links) for word in ("--link", link)]
        return self.plain(CREATE_SYMLINKS, *arguments) if arguments else cdi_edits.Edits()

    def chmod(self, folders: t.Iterable[str]) -> cdi_edits.Edits:
        """Return the hook that changes modes, also for no directory, like the generator. It must be enabled by name."""
        arguments = [word for folder in dict.fromkeys(folders) for word in ("--path", folder)]
        return self.plain(CHMOD, "--mode", "755", *arguments)

    def plain(self, name: str, *arguments: str) -> cdi_edits.Edits:
        if name not in self._wanted:
            return cdi_edits.Edits()
        return cdi_edits.Edits(hooks=(cdi_edits.Hook(self._path, (*self._start, name, *arguments)),))


def _known(parameter: str, values: t.Iterable[str], known: t.Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise errors.NvidiaError(f"{parameter}: {value!r} is not known. Use one of {', '.join(known)}.")


AUTO, NATIVE, REFERENCE = "auto", "native", "nvidia-ctk"
BACKENDS = (AUTO, NATIVE, REFERENCE)
# In the order of the generator's documentation. _cdi/modes and _cdi/generate implement them.
MODES = (AUTO, "nvml", "management", "gds", "gdrcopy", "mofed", "nvswitch", "imex", "csv", "wsl")
YAML, JSON = "yaml", "json"
FORMATS = (YAML, JSON)
HOOK_SOURCES = ("toolkit", NONE)

CDI_OPTIONS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path"},
    "format": {"type": "str", "choices": list(FORMATS)},
    "backend": {"type": "str", "choices": list(BACKENDS), "default": AUTO},
    "mode": {"type": "str", "choices": list(MODES), "default": AUTO},
    "vendor": {"type": "str", "default": "nvidia.com"},
    "class": {"type": "str", "default": "gpu"},
    "device_name_strategies": {
        "type": "list",
        "elements": "str",
        "choices": list(STRATEGIES),
        "default": [INDEX, UUID],
    },
    "device_ids": {"type": "list", "elements": "str", "default": []},
    "all_device": {"type": "bool", "default": True},
    "driver_root": {"type": "path", "default": "/"},
    "dev_root": {"type": "path"},
    "library_search_paths": {"type": "list", "elements": "path", "default": []},
    "config_search_paths": {"type": "list", "elements": "path", "default": []},
    "csv_files": {"type": "list", "elements": "path", "default": []},
    "csv_ignore_patterns": {"type": "list", "elements": "str", "default": []},
    "csv_compat_container_root": {"type": "path"},
    "cdi_hook_path": {"type": "path", "default": CDI_HOOK},
    "ldconfig_path": {"type": "path"},
    "hooks": {"type": "str", "choices": list(HOOK_SOURCES), "default": "toolkit"},
    "enabled_hooks": {"type": "list", "elements": "str", "choices": list(HOOKS), "default": []},
    "disabled_hooks": {"type": "list", "elements": "str", "choices": [*HOOKS, "all"], "default": []},
    "feature_flags": {"type": "list", "elements": "str", "choices": list(FEATURE_FLAGS), "default": []},
    "use_nvml": {"type": "bool"},
    "for_engines": {"type": "list", "elements": "str", "default": [AUTO]},
    "require_devices": {"type": "bool", "default": True},
}


class CdiOptions(t.NamedTuple):
    """The options of a task for one specification. The module chooses the values that are None."""

    state: str = "present"
    path: str | None = None
    format: str | None = None
    backend: str = AUTO
    mode: str = AUTO
    request: Request = Request()
    use_nvml: bool | None = None
    for_engines: tuple[str, ...] = (AUTO,)
    require_devices: bool = True
    exclusive: bool = False
    # None: the backup directory of this collection.
    backup_dir: str | None = None
    purge_backups: bool = False

    @property
    def kind(self) -> str:
        return f"{self.request.vendor}/{self.request.class_}"


def options_of(params: t.Mapping[str, t.Any]) -> CdiOptions:
    """Return the options from a task's parameters: those of CDI_OPTIONS and those that the module adds."""
    request = Request(
        vendor=params["vendor"],
        class_=params["class"],
        device_name_strategies=tuple(params["device_name_strategies"]),
        device_ids=tuple(params["device_ids"]),
        all_device=params["all_device"],
        driver_root=params["driver_root"],
        dev_root=params["dev_root"] or "",
        library_search_paths=tuple(params["library_search_paths"]),
        config_search_paths=tuple(params["config_search_paths"]),
        csv_files=tuple(params["csv_files"]),
        csv_ignore_patterns=tuple(params["csv_ignore_patterns"]),
        csv_compat_container_root=params["csv_compat_container_root"] or "",
        cdi_hook_path=params["cdi_hook_path"],
        ldconfig_path=params["ldconfig_path"] or "",
        enabled_hooks=tuple(params["enabled_hooks"]),
        disabled_hooks=tuple(params["disabled_hooks"]),
        feature_flags=tuple(params["feature_flags"]),
        hooks=params["hooks"],
    )
    return CdiOptions(
        state=params["state"],
        path=params["path"],
        format=params["format"],
        backend=params["backend"],
        mode=params["mode"],
        request=request,
        use_nvml=params["use_nvml"],
        for_engines=tuple(params["for_engines"]),
        require_devices=params["require_devices"],
        exclusive=bool(params.get("exclusive")),
        backup_dir=params.get("backup_dir"),
        purge_backups=bool(params.get("purge_backups")),
    )
