# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the settings of K3s and RKE2 from their configuration files, units and environment.

This file writes nothing. K3s reads settings in this order (pkg/configfilearg/parser.go of K3s 1.31): the configuration
file, the files in the directory of the same name with the suffix .d, then the flags in the command of the unit. The
last value has effect.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


DATA_DIR, DEFAULT_RUNTIME = "data-dir", "default-runtime"
# With either setting, K3s and RKE2 do not start their own containerd.
DOCKER, ENDPOINT = "docker", "container-runtime-endpoint"
# The settings that this collection reads, by the names of their keys and flags.
_NAMES = {name: name for name in (DATA_DIR, DEFAULT_RUNTIME, DOCKER, ENDPOINT)}
_NAMES["d"] = DATA_DIR
# Flags that need no value.
_SWITCHES = (DOCKER,)

# Matches the content of a file that may contain one of these settings. Other files are not parsed, so that they do not
# need PyYAML.
_MENTIONS_SETTING = re.compile(rb"(?<![\w.-])(?:" + "|".join(_NAMES).encode() + rb")\+?[\"']?\s*:")
_SUFFIXES = (".yaml", ".yml")
# The drop-in of this collection, if it is unchanged.
_OWN_FILE = re.compile(re.escape(toml_plan.HEADER) + DEFAULT_RUNTIME.encode() + rb": ([A-Za-z0-9_.-]+)\n\Z")


class RancherSetting(t.NamedTuple):
    """The values of one setting. The last one has effect. ``source`` is the file or unit that sets the last one."""

    values: tuple[str, ...]
    source: str

    @property
    def value(self) -> str:
        return self.values[-1] if self.values else ""


class RancherDistribution(t.NamedTuple):
    """The paths of K3s or RKE2. ``program`` is the name k3s or rke2 in paths, units and environment variables."""

    program: str

    @property
    def config_file(self) -> str:
        return f"/etc/rancher/{self.program}/config.yaml"

    @property
    def data_dir(self) -> str:
        return f"/var/lib/rancher/{self.program}"

    def variable(self, name: str) -> str:
        """Return the environment variable with the suffix ``name``, such as K3S_DATA_DIR."""
        return f"{self.program.upper()}_{name}"


def own_line(name: str) -> bytes:
    """Return the line that sets the default runtime in the drop-in of this collection."""
    return f"{DEFAULT_RUNTIME}: {name}\n".encode()


def is_own_line(line: bytes, name: str) -> bool:
    """Return whether a line is own_line(), which somebody may have saved with quotes, a comment or another end."""
    pattern = rf"{DEFAULT_RUNTIME}:[ \t]+(['\"]?){re.escape(name)}\1(?:[ \t]+#[^\r\n]*)?[ \t]*\r?\n?"
    return re.fullmatch(pattern.encode(), line) is not None


def own_text(name: str) -> bytes:
    """Return the whole content of the drop-in of this collection."""
    return toml_plan.HEADER + own_line(name)


def own_default(content: bytes | None) -> str | None:
    """Return the default runtime in an unchanged drop-in of this collection, None for any other file."""
    match = _OWN_FILE.match(content or b"")
    return match.group(1).decode() if match is not None else None


class RancherSettings:
    """The settings of K3s or RKE2 on one host.

    ``overlay`` maps resolved paths to planned contents, which replace the files on the host (None: the file is
    removed).
    """

    def __init__(
        self,
        distribution: RancherDistribution,
        host: hostfs.HostFS,
        unit: systemd_units.Unit | None,
        overlay: t.Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Read all files.

        Raises NvidiaError for a file that cannot be read, and MissingPackageError if PyYAML is needed and missing.
        """
        self._host = host
        self._overlay = overlay or {}
        self.config_file = config_file(distribution, unit)
        self._found: dict[str, RancherSetting] = {}
        for path in self.files():
            for name, value in self._read(path).items():
                self._add(str(name), value, path)
        self._found.update(flags(unit))

    def value(self, name: str) -> str:
        """Return the value of a setting, empty if it is not set."""
        found = self._found.get(name)
        return found.value if found is not None else ""

    def value_in(self, path: str, name: str) -> str:
        """Return the value of a setting in one file, whatever other files and the unit set; empty if it is not set."""
        return _to_text(self._read(path).get(name, ""))

    def source(self, name: str) -> str:
        """Return the file or the unit that sets a value, empty if it is not set."""
        found = self._found.get(name)
        return found.source if found is not None else ""

    def files(self) -> list[str]:
        """Return the files that exist or are planned, in the order in which they are read."""
        return [path for path in self._candidates() if self._host.exists(path) or self._planned(path) is not None]

    def _candidates(self) -> list[str]:
        folder = f"{self.config_file}.d"
        if not folder.startswith("/"):
            # K3s also accepts a URL, which this collection does not read.
            return []
        names = set(self._host.readable_entries(folder))
        real_folder = self._host.resolve(folder)
        names.update(os.path.basename(path) for path in self._overlay if os.path.dirname(path) == real_folder)
        paths = [f"{folder}/{name}" for name in sorted(names) if name.lower().endswith(_SUFFIXES)]
        return [self.config_file, *(path for path in paths if not os.path.isdir(self._host.real_path(path)))]

    def _planned(self, path: str) -> bytes | None:
        return self._overlay.get(self._host.resolve(path))

    def _read(self, path: str) -> t.Mapping[t.Any, t.Any]:
        real = self._host.resolve(path)
        content = self._overlay[real] if real in self._overlay else self._host.read(path)
        if content is None or not _MENTIONS_SETTING.search(content):
            return {}
        own = own_default(content)
        if own is not None:
            return {DEFAULT_RUNTIME: own}
        # Imported here, because most hosts have these settings in no file, or only in the drop-in of this collection.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
            yaml_document,
        )

        advice = "Correct the file. K3s and RKE2 read it at every start."
        try:
            data = yaml_document.parse(path, content)
        except errors.ConfigurationError as error:
            raise errors.ConfigurationError(path, error.problem, advice, error.line, error.column) from error
        if data is None:
            return {}
        if not isinstance(data, dict):
            raise errors.ConfigurationError(path, "the file contains no mapping of settings", advice)
        return data

    def _add(self, key: str, value: t.Any, path: str) -> None:
        # K3s appends the values of a key that ends in +.
        appends = key.endswith("+")
        name = _NAMES.get(key[:-1] if appends else key)
        if name is None:
            return
        values = tuple(_to_text(each) for each in (value if isinstance(value, list) else [value]))
        before = self._found.get(name)
        self._found[name] = RancherSetting(
            (*before.values, *values) if appends and before is not None else values, path
        )


def config_file(distribution: RancherDistribution, unit: systemd_units.Unit | None) -> str:
    """Return the configuration file: the one in the unit's environment, else in its flags, else the default."""
    variable = unit.environment.get(distribution.variable("CONFIG_FILE")) if unit is not None else None
    flag = _flag_values(unit, ("config", "c")) if unit is not None else []
    return variable or (flag[0] if flag else distribution.config_file)


def data_dir(distribution: RancherDistribution, host: hostfs.HostFS, unit: systemd_units.Unit | None) -> str:
    """Return the data directory. If a configuration file cannot be read, only the unit is used."""
    try:
        found = RancherSettings(distribution, host, unit).value(DATA_DIR)
    except errors.NvidiaError:
        # The error is not lost: K3sPlanner reads the same files again and raises it.
        flag = flags(unit).get(DATA_DIR)
        found = flag.value if flag is not None else ""
    variable = unit.environment.get(distribution.variable("DATA_DIR")) if unit is not None else None
    folder = found or variable or distribution.data_dir
    return folder.rstrip("/") if folder.startswith("/") else distribution.data_dir


def flags(unit: systemd_units.Unit | None) -> dict[str, RancherSetting]:
    """Return the settings on the command line of the unit."""
    if unit is None:
        return {}
    found = {name: _flag_values(unit, [flag for flag in _NAMES if _NAMES[flag] == name]) for name in _NAMES.values()}
    return {name: RancherSetting(tuple(values), f"the unit {unit.name}") for name, values in found.items() if values}


def _flag_values(unit: systemd_units.Unit, names: t.Collection[str]) -> list[str]:
    """Return the values of a flag with any of ``names``, as Go parses flags.

    A flag begins with one or two dashes. Its value follows after ``=`` or is the next argument.
    """
    found = []
    arguments = iter(unit.arguments[1:])
    for argument in arguments:
        name, sign, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in names:
            found.append(value if sign else "true" if name in _SWITCHES else next(arguments, ""))
    return found


def _to_text(value: t.Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
