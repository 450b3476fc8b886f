# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a task asks of the toolkit's settings, in whatever form it is written, and what its
# profile and its switch for logs stand for.

from __future__ import annotations

import difflib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import same
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import (
    BY_PATH,
    SETTINGS,
    TABLES,
    Setting,
    dotted,
    spelled,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_values import (
    LEVEL_KEY,
    checked,
    checked_unknown,
    kind_of,
)

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]
    # None: as if nobody had ever set it.
    Asked = t.Dict[KeyPath, t.Any]

PROFILES: dict[str, dict[str, t.Any]] = {
    # Pods get GPUs from the device plugin only, and not by an environment variable of their own.
    "kubernetes_hardened": {
        "accept-nvidia-visible-devices-as-volume-mounts": True,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
    },
    # Who is not root may not change control groups.
    "rootless": {"nvidia-container-cli.no-cgroups": True},
}
# The hook has no log of its own: it hands that of nvidia-container-cli on.
_LOGS = ("nvidia-container-cli.debug", "nvidia-container-runtime.debug")
_DEBUG: dict[str, t.Any] = {
    **{setting.key: setting.default for setting in SETTINGS if setting.key in _LOGS},
    LEVEL_KEY: "debug",
}
# What a person may have turned on with the same purpose.
_LOUD: dict[str, tuple[t.Any, ...]] = {
    **{key: (value,) for key, value in _DEBUG.items()},
    LEVEL_KEY: ("debug", "trace"),
}


class Wishes(t.NamedTuple):
    """The task's parameters; ``debug`` None leaves the logs alone.

    ``exclusive``: what earlier runs wrote and this one does not name goes back to what it was.
    """

    settings: t.Mapping[str, t.Any]
    profile: str | None = None
    debug: bool | None = None
    exclusive: bool = False
    allow_unknown: bool = False
    create: bool = True

    def asked(self) -> Asked:
        """Every setting that is asked for, by its path: those named themselves win over the switches' and profile's.

        Raises GpufleetError for settings that do not exist, or cannot have their value.
        """
        found: Asked = {}
        if self.profile is not None:
            found.update(_by_path(PROFILES[self.profile]))
        if self.debug:
            found.update(_by_path(_DEBUG))
        found.update(_Reader(self.allow_unknown).read(self.settings))
        return found

    def silenced(self) -> dict[KeyPath, tuple[t.Any, ...]]:
        """What ``debug`` False turns off, as far as it is not named itself: for each setting its loud values."""
        named = self.asked()
        loud = _by_path(_LOUD) if self.debug is False else {}
        return {path: values for path, values in loud.items() if path not in named}


def _by_path(settings: t.Mapping[str, t.Any]) -> Asked:
    return {tuple(key.split(".")): value for key, value in settings.items()}


class _Reader:
    """Settings in nested dictionaries, with dotted keys, or in a mix of both, made flat and checked."""

    def __init__(self, allow_unknown: bool) -> None:
        self.allow_unknown = allow_unknown
        self.found: Asked = {}

    def read(self, settings: t.Mapping[str, t.Any]) -> Asked:
        self._table((), settings)
        self._refuse_nested()
        return self.found

    def _table(self, outer: KeyPath, table: t.Mapping[t.Any, t.Any]) -> None:
        for name, value in table.items():
            # YAML takes some names for something else.
            names = tuple(name.split(".")) if isinstance(name, str) else ("",)
            path = (*outer, *names)
            if not all(part.strip() for part in path):
                raise GpufleetError(f"settings: {dotted((*outer, str(name)))!r} is not the name of a setting.")
            self._entry(path, value)

    def _entry(self, path: KeyPath, value: t.Any) -> None:
        setting = BY_PATH.get(path) or self._new_feature(path)
        if setting is not None:
            if isinstance(value, dict):
                raise GpufleetError(
                    f"settings: {setting.key} is a dictionary, but should be {kind_of(setting)}. Nothing was changed."
                )
            self._put(path, None if value is None else checked(setting, value))
        elif isinstance(value, dict) and (value or path in TABLES):
            self._table(path, value)
        elif path in TABLES:
            raise GpufleetError(
                f"settings: {dotted(path)} is a table, and not one setting that could be"
                f" {'null' if value is None else spelled(value)}. Name the settings in it; nothing was changed."
            )
        elif self.allow_unknown and not _inside_a_value(path):
            self._put(path, None if value is None else checked_unknown(dotted(path), value))
        else:
            raise _unknown(path)

    def _new_feature(self, path: KeyPath) -> Setting | None:
        """A switch of a newer toolkit: all in that table are booleans."""
        return Setting(dotted(path), bool, None) if self.allow_unknown and _is_feature(path) else None

    def _put(self, path: KeyPath, value: t.Any) -> None:
        if path in self.found and not same(self.found[path], value):
            raise GpufleetError(
                f"settings: {dotted(path)} is there twice, with different values. Leave one of them out; nothing was"
                " changed."
            )
        self.found[path] = value

    def _refuse_nested(self) -> None:
        for path in self.found:
            outer = next((path[:depth] for depth in range(1, len(path)) if path[:depth] in self.found), None)
            if outer is not None:
                raise GpufleetError(
                    f"settings: {dotted(outer)} is given both as a value and as a table, with {dotted(path)} in it."
                    " Leave one of them out; nothing was changed."
                )


def _inside_a_value(path: KeyPath) -> bool:
    return any(path[:depth] in BY_PATH or _is_feature(path[:depth]) for depth in range(1, len(path)))


def _is_feature(path: KeyPath) -> bool:
    return path[:1] == ("features",) and len(path[1:]) == 1


def _unknown(path: KeyPath) -> GpufleetError:
    key = dotted(path)
    if _inside_a_value(path):
        return GpufleetError(
            f"settings: {key} cannot be: what it would be in is no table. Correct the name; nothing was changed."
        )
    nearest = _nearest(path)
    hint = f" The nearest that there is: {nearest}." if nearest else ""
    return GpufleetError(
        f"settings: {key} is not a setting of the NVIDIA Container Toolkit.{hint} Correct it, or set allow_unknown to"
        " write it nevertheless; nothing was changed."
    )


def _nearest(path: KeyPath) -> str | None:
    """The known name that was perhaps meant: the same in another table, or one that looks alike."""
    last = path[-1].replace("_", "-").lower()
    same_name = [setting.key for setting in SETTINGS if setting.path[-1] == last]
    keys = same_name if len(same_name) > 0 else [setting.key for setting in SETTINGS]
    wanted = dotted(path).replace("_", "-").lower()
    found = difflib.get_close_matches(wanted, keys, 1, 0.0 if same_name else 0.6)
    if not found:
        names = {setting.path[-1]: setting.key for setting in SETTINGS}
        found = [names[name] for name in difflib.get_close_matches(last, list(names), 1, 0.75)]
    return found[0] if found else None
