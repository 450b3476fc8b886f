# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the config.toml of a toolkit in a directory of its own, which is written as a whole.

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_profiles import Wishes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import SETTINGS, effective, unsafe
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_wrappers import CLI, CTK, HOOK

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]

RUNTIMES_KEY = "nvidia-container-runtime.runtimes"
_HEAD = "# Written by Ansible, gpufleet.nvidia.nvidia_toolkit_install. What is changed here by hand does not last.\n"


class Wanted(t.NamedTuple):
    """What is asked of the file: ``settings`` win over ``profile`` and ``debug``, and these over NVIDIA's usual ones.

    ``real_ldconfig``: whether the root of the driver has an ldconfig of that name.
    """

    driver_root: str
    runtimes: t.Sequence[str]
    settings: t.Mapping[str, t.Any]
    profile: str | None = None
    debug: bool | None = None
    real_ldconfig: bool = False
    allow_unknown: bool = False


class OwnConfig(t.NamedTuple):
    """The file, and what it amounts to by dotted keys."""

    text: str
    settings: dict[str, t.Any]
    warnings: tuple[str, ...]


def own_config(wanted: Wanted, programs: t.Collection[str], folder: str) -> OwnConfig:
    """The file for ``programs`` in ``folder``.  Raises GpufleetError for settings that cannot be."""
    values = {tuple(key.split(".")): value for key, value in _usual(wanted, programs, folder).items()}
    values.update(Wishes(wanted.settings, wanted.profile, wanted.debug, allow_unknown=wanted.allow_unknown).asked())
    # Null is as if nobody had set it.
    data = _nested({path: value for path, value in values.items() if value is not None})
    settings = effective(data, wanted.real_ldconfig)
    return OwnConfig(_HEAD + "".join(_lines(data)), settings, tuple(unsafe(settings)))


def _usual(wanted: Wanted, programs: t.Collection[str], folder: str) -> dict[str, t.Any]:
    """What NVIDIA's installer (1.20) writes at least; the programs are those of this version."""
    ldconfig = posixpath.join(wanted.driver_root, "sbin/ldconfig.real" if wanted.real_ldconfig else "sbin/ldconfig")
    paths = {CLI: "nvidia-container-cli.path", HOOK: "nvidia-container-runtime-hook.path", CTK: "nvidia-ctk.path"}
    return {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "nvidia-container-cli.root": wanted.driver_root,
        "nvidia-container-cli.ldconfig": f"@{ldconfig}",
        RUNTIMES_KEY: list(wanted.runtimes),
        "nvidia-container-runtime-hook.skip-mode-detection": True,
        **{key: f"{folder}/{name}" for name, key in paths.items() if name in programs},
    }


def _nested(values: t.Mapping[KeyPath, t.Any]) -> dict[str, t.Any]:
    """Tables within tables, everything in the order of the packages' file."""
    places = {setting.path: place for place, setting in enumerate(SETTINGS)}
    data: dict[str, t.Any] = {}
    for path in sorted(values, key=lambda path: (places.get(path, len(places)), path)):
        table = data
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = values[path]
    return data


def _lines(data: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """The text: values at the top first, then each table that has some."""
    tables: dict[KeyPath, list[str]] = {(): []}
    for path, value in leaves(data):
        tables.setdefault(path[:-1], []).append(f"{path[-1]} = {_spelled(value)}\n")
    for path, lines in tables.items():
        if path:
            yield f"\n[{'.'.join(path)}]\n"
        yield from lines


def _spelled(value: bool | str | list[str]) -> str:
    """As TOML writes it: strings are JSON's, but that DEL has to be escaped (TOML 1.0)."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
