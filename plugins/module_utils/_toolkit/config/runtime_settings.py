# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the settings of config.toml that the checks of verify need, as the toolkit's programs read them."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


AUTO, LEGACY = "auto", "legacy"
# From this version on, auto is just-in-time CDI instead of legacy, and one function (VisibleDevices) is used by the
# hook and by all modes.
_UNIFIED = toolkit_settings.JIT_CDI_SINCE
HOOK = "nvidia-container-runtime-hook"


class RuntimeSettings(t.NamedTuple):
    """The settings of config.toml that the checks of verify need. The defaults are those of the programs."""

    mode: str = AUTO
    accept_variable: bool = True
    spec_dirs: tuple[str, ...] = core_constants.CDI_SPEC_DIRS
    driver_root: str = ""

    @property
    def cdi_folders(self) -> tuple[str, ...]:
        """The directories of CDI specifications that the runtime reads. Paths that are not absolute are ignored."""
        paths = dict.fromkeys(path.rstrip("/") for path in self.spec_dirs if path.startswith("/"))
        return tuple(paths) or core_constants.CDI_SPEC_DIRS


# The dotted key of each setting, by its name in RuntimeSettings.
KEYS = {
    "mode": "nvidia-container-runtime.mode",
    "accept_variable": "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "spec_dirs": "nvidia-container-runtime.modes.cdi.spec-dirs",
    "driver_root": "nvidia-container-cli.root",
}


def settings_of(data: t.Mapping[str, t.Any]) -> RuntimeSettings:
    """Return the settings in the parsed config.toml ``data``. A value of a wrong type counts as missing."""
    values = toolkit_settings.known_values(data)
    found: dict[str, t.Any] = {}
    for name, key in KEYS.items():
        path = toolkit_settings.path_of(key)
        if path in values and toolkit_settings.fits(toolkit_settings.BY_PATH[path], values[path]):
            found[name] = tuple(values[path]) if isinstance(values[path], list) else values[path]
    return RuntimeSettings(**found)


def read(host: hostfs.HostFS, path: str) -> RuntimeSettings:
    """Return the settings in config.toml at ``path`` as settings_of() does; the defaults if it does not exist.

    Raises NvidiaError if it cannot be read, ConfigurationError if it is not TOML.
    """
    content = host.read(path)
    if content is None:
        return RuntimeSettings()
    return settings_of(toml_document.TomlDocument.from_bytes(path, content).data)


def mode_of_program(program: str) -> str | None:
    """Return the mode of a runtime that has only one (cmd/nvidia-container-runtime.{cdi,legacy}/main.go)."""
    name = posixpath.basename(program)
    return next((mode for mode, file in core_constants.MODE_PROGRAMS.items() if file == name), None)


def is_unified(version: str | None) -> bool:
    """Return whether the toolkit ``version`` is 1.18 or newer. An unknown version counts as the newest."""
    return toolkit_installed.is_at_least(version, _UNIFIED)


def needs_hook(program: str, mode: str, version: str | None) -> bool:
    """Return whether the runtime ``program`` of the toolkit ``version`` gives containers GPUs by NVIDIA's hook.

    ``mode`` is the one in config.toml. On Tegra, auto is csv, and containers that request only CDI devices never need
    the hook (ResolveRuntimeMode() in internal/info/auto.go, 1.20); this function does not know either of them.
    """
    mode = mode_of_program(program) or mode
    return mode == LEGACY or (mode == AUTO and not is_unified(version))
