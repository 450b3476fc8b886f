# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of a CDI task: their argument specification, their values, and the request for a generator.

A generator creates a specification: `modes.py` does without other programs, `generate.py` runs nvidia-ctk.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


CREATE_SYMLINKS, CHMOD, CUDA_COMPAT = "create-symlinks", "chmod", "enable-cuda-compat"
LDCACHE, NODE_MODIFICATION = "update-ldcache", "disable-device-node-modification"
APPLICATION_PROFILE = "update-application-profile"
HOOKS = (CREATE_SYMLINKS, CHMOD, CUDA_COMPAT, LDCACHE, NODE_MODIFICATION, APPLICATION_PROFILE)
NONE = "none"
HOOK_SOURCES = ("toolkit", NONE)
# chmod repairs the mode of directories that old releases of crun made inaccessible. The toolkit disables it by default
# (internal/discover/hooks.go). First 1.18.0, last without it 1.17.9.
_OFF_BY_DEFAULT = frozenset({CHMOD})

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
# With the flag COHERENCE, there are two more specifications: one for the GPUs with coherent memory, and one for the
# GPUs without. The keys are appended to the class and to the file name (generateSpecs in
# cmd/nvidia-ctk/cdi/generate/generate.go, v1.20.0).
VARIANTS = {"coherent": True, "noncoherent": False}

CDI_HOOK = "/usr/bin/nvidia-cdi-hook"
# Programs that run a hook with `PROGRAM hook NAME`. nvidia-cdi-hook runs it with `nvidia-cdi-hook NAME`.
_WITH_SUBCOMMAND = frozenset({"nvidia-ctk"})


class Request(t.NamedTuple):
    """What a generator must write into the specification. An empty path or list means the default.

    All paths are paths on the host, except ``csv_compat_container_root``, which is a path in containers.

    driver_root: the root directory of the driver.
    dev_root: the directory that contains ``dev``. The default is driver_root.
    device_ids: the default is all devices.
    csv_*: used by mode csv only.
    hooks: "toolkit" for hooks of the toolkit's programs, or "none" for a host without the toolkit.
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


_PATHS = ("driver_root", "dev_root", "csv_compat_container_root", "cdi_hook_path", "ldconfig_path")
_PATH_LISTS = ("library_search_paths", "config_search_paths", "csv_files")


def checked(request: Request, host: hostfs.HostFS) -> Request:
    """Return ``request`` with normalized paths, dev_root set, and the roots without links.

    Raises NvidiaError for a relative path, and for devices without names.
    """
    if not request.device_name_strategies:
        raise errors.NvidiaError(
            f"{errors.option:device_name_strategies} is empty, so the devices have no names. Set one or more of"
            f" {', '.join(STRATEGIES)}."
        )
    request = request._replace(dev_root=request.dev_root or request.driver_root)
    paths: dict[str, t.Any] = {}
    for name in _PATHS:
        value = getattr(request, name)
        paths[name] = host.check_path(name, value) if value else ""
    root = paths["driver_root"]
    for name in ("driver_root", "dev_root"):
        paths[name] = _resolved(host, paths[name])
    for name in _PATH_LISTS:
        given = [host.check_path(name, path) for path in getattr(request, name)]
        paths[name] = tuple(_below(path, root, paths["driver_root"]) for path in given)
    return request._replace(**paths)


def _resolved(host: hostfs.HostFS, path: str) -> str:
    """Return ``path`` without links. Generators do not recognize files below a link as files of the driver."""
    try:
        return host.resolve(path)
    except errors.HostError:
        # The generator reports the loop of links.
        return path


def _below(path: str, old: str, new: str) -> str:
    """Return ``path`` below ``new`` if it is below ``old``."""
    return new.rstrip("/") + path[len(old.rstrip("/")) :] if f"{path}/".startswith(f"{old.rstrip('/')}/") else path


def without_sockets(request: Request) -> Request:
    """Return ``request`` for a specification without sockets, as nvidia-ctk generates it for this collection."""
    return request._replace(feature_flags=tuple(dict.fromkeys([*request.feature_flags, NO_IPC])))


class Hooks:
    """Creates the container edits for hooks. For a hook that the request does not enable, the edits are empty.

    ``off_by_default`` are hooks that are disabled unless ``enabled_hooks`` of the request names them. chmod is always
    one of them.
    """

    def __init__(self, request: Request, off_by_default: t.Iterable[str] = ()) -> None:
        disabled = HOOKS if cdi_edits.ALL in request.disabled_hooks else request.disabled_hooks
        enabled = {*HOOKS} - {*_OFF_BY_DEFAULT, *off_by_default, *disabled} | {*request.enabled_hooks}
        self._enabled = enabled if request.hooks != NONE else set()
        self._path = request.cdi_hook_path
        self._first_arguments = hook_arguments(self._path)

    def symlinks(self, links: t.Iterable[str]) -> cdi_edits.Edits:
        """Return the edits with the hook that creates ``links``. Each link has the hook's format TARGET::PATH."""
        arguments = [argument for link in dict.fromkeys(links) for argument in ("--link", link)]
        return self.edits(CREATE_SYMLINKS, *arguments) if arguments else cdi_edits.Edits()

    def chmod(self, folders: t.Iterable[str]) -> cdi_edits.Edits:
        """Return the edits with the hook that sets the mode of ``folders`` to 755.

        Like nvidia-ctk, this adds the hook even if ``folders`` is empty.
        """
        arguments = [argument for folder in dict.fromkeys(folders) for argument in ("--path", folder)]
        return self.edits(CHMOD, "--mode", "755", *arguments)

    def edits(self, name: str, *arguments: str) -> cdi_edits.Edits:
        """Return the edits with the hook ``name`` and its arguments."""
        if name not in self._enabled:
            return cdi_edits.Edits()
        return cdi_edits.Edits(hooks=(cdi_edits.Hook(self._path, (*self._first_arguments, name, *arguments)),))


def hook_arguments(program: str) -> tuple[str, ...]:
    """Return the arguments of a hook before its name, the program's name first."""
    name = posixpath.basename(program)
    return (name, "hook") if name in _WITH_SUBCOMMAND else (name,)


AUTO, NATIVE, NVIDIA_CTK = "auto", "native", "nvidia-ctk"
BACKENDS = (AUTO, NATIVE, NVIDIA_CTK)
# Whether a task changes the refresh units.
REFRESH = (AUTO, NONE)
MODES = (AUTO, "nvml", "management", "gds", "gdrcopy", "mofed", "nvswitch", "imex", "csv", "wsl")
# The modes that need the driver's kernel modules.
DRIVER_MODES = (AUTO, "nvml", "management", "imex")
YAML, JSON = "yaml", "json"
FORMATS = (YAML, JSON)

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
    """The options of a task for one specification. If a value is None, its default depends on the host."""

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
    backup_dir: str | None = None
    purge_backups: bool = False

    @property
    def kind(self) -> str:
        return f"{self.request.vendor}/{self.request.class_}"


def options_of(params: t.Mapping[str, t.Any]) -> CdiOptions:
    """Return the options from a task's parameters: those of CDI_OPTIONS and those that the module adds."""
    values: dict[str, t.Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in params.items()
    }
    values["class_"] = values["class"]
    # An unset path is an empty string in a request.
    request: dict[str, t.Any] = {name: "" if values[name] is None else values[name] for name in Request._fields}
    values["request"] = Request(**request)
    return CdiOptions(**{name: values[name] for name in CdiOptions._fields if name in values})
