# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which CDI specification a task asks for: the options of the doc fragment cdi_request, and
# what they amount to.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import (
    CDI_HOOK,
    FEATURE_FLAGS,
    HOOKS,
    INDEX,
    NONE,
    STRATEGIES,
    UUID,
    Request,
)

AUTO, NATIVE, REFERENCE = "auto", "native", "nvidia-ctk"
BACKENDS = (AUTO, NATIVE, REFERENCE)
# In the order of the generator's documentation; what makes each is known in _cdi_modes and _cdi_reference.
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
    """A CDI specification and where it is to stand; what is None is for the module to decide."""

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
    # None: the collection's own.
    backup_dir: str | None = None
    purge_backups: bool = False

    @property
    def kind(self) -> str:
        return f"{self.request.vendor}/{self.request.class_}"


def options_of(params: t.Mapping[str, t.Any]) -> CdiOptions:
    """The options of a task's parameters, which are those of CDI_OPTIONS and what a module adds to them."""
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
