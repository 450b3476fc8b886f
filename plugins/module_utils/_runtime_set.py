# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the set of runtimes that one installation registers, the same for every engine.

from __future__ import annotations

import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError

# NVIDIA Container Toolkit 1.20: one program per mode, each with the name it is registered under beside the main one.
MAIN_PROGRAM = "nvidia-container-runtime"
MODE_PROGRAMS = {"cdi": MAIN_PROGRAM + ".cdi", "legacy": MAIN_PROGRAM + ".legacy"}
MODE_NAMES = {mode: f"nvidia-{mode}" for mode in MODE_PROGRAMS}
MAIN_NAME = "nvidia"
CDI_AUTO = "auto"
# Releases 1.12 and 1.13 had another program, in two spellings.
_EXPERIMENTAL = (f"{MAIN_PROGRAM}.experimental", f"{MAIN_PROGRAM}-experimental")
_PROGRAMS = (MAIN_PROGRAM, *MODE_PROGRAMS.values(), *_EXPERIMENTAL)

# A runtime under one of these names would shadow the low-level runtime that the NVIDIA one itself calls.
RESERVED_NAMES = ("runc", "crun")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


class RuntimeRequest(t.NamedTuple):
    """What the user asks of one engine, in words that every engine understands.

    ``set_as_default`` and ``enable_cdi`` are None where the user said nothing: leave it as it is.  ``enable_cdi`` may
    also be CDI_AUTO: on in a version in which it is off by default.  From ``config_mode`` on the fields are for engines
    that are configured in TOML.
    """

    runtime_name: str = MAIN_NAME
    runtime_dir: str = "/usr/bin"
    extra_modes: tuple[str, ...] = ()
    set_as_default: bool | None = None
    enable_cdi: bool | str | None = None
    config_mode: str = "auto"
    drop_in_path: str | None = None
    runtime_type: str | None = None
    runtime_options: t.Mapping[str, t.Any] = types.MappingProxyType({})
    container_annotations: tuple[str, ...] = ()
    cri_disabled: str = "note"
    use_legacy_config: bool = False

    def check(self) -> None:
        """Raises GpufleetError for a name or a directory that no engine should be given."""
        if not _NAME.match(self.runtime_name):
            raise GpufleetError(
                f"runtime_name {self.runtime_name!r} is not usable. Use letters, digits, '_', '.' and '-' only."
            )
        if self.runtime_name in RESERVED_NAMES or self.runtime_name.startswith("io.containerd."):
            raise GpufleetError(
                f"runtime_name {self.runtime_name!r} belongs to a low-level runtime. Choose another name."
            )

    def check_plain(self, engine: str) -> None:
        """Raises GpufleetError for what an engine that is not configured in TOML has no place for."""
        given = {
            "config_mode": self.config_mode in ("drop_in", "hook"),
            "drop_in_path": self.drop_in_path is not None,
            "runtime_type": self.runtime_type is not None,
            "runtime_options": bool(self.runtime_options),
            "container_annotations": bool(self.container_annotations),
            "use_legacy_config": self.use_legacy_config,
        }
        unfit = [name for name, is_given in given.items() if is_given]
        if unfit:
            raise GpufleetError(f"{engine} has no {' and no '.join(unfit)}. Leave it out for this engine.")

    def runtimes(self) -> dict[str, str]:
        """Name to path of each runtime, the main one first.

        As in NVIDIA's installer: if the name asked for is that of a mode, the main runtime keeps the name nvidia.
        """
        modes = [mode for mode in MODE_PROGRAMS if mode in self.extra_modes or MODE_NAMES[mode] == self.runtime_name]
        main = MAIN_NAME if self.runtime_name in MODE_NAMES.values() else self.runtime_name
        names = {main: MAIN_PROGRAM}
        names.update((MODE_NAMES[mode], MODE_PROGRAMS[mode]) for mode in modes)
        return {name: posixpath.join(self.runtime_dir, program) for name, program in names.items()}

    def default(self, kept: str | None) -> str | None:
        """The runtime to make the default: the one asked for, or where nothing is said, ours so far while it stays."""
        if self.set_as_default is None:
            return kept if kept in self.runtimes() else None
        return self.runtime_name if self.set_as_default else None


def is_nvidia_program(path: t.Any) -> bool:
    """Whether ``path`` names one of NVIDIA's runtimes, of whatever version and wherever it was installed."""
    return isinstance(path, str) and posixpath.basename(path) in _PROGRAMS


def is_nvidia_runtime(name: str, program: t.Any) -> bool:
    """Whether a runtime is one of NVIDIA's by its name or its program, from which no other may inherit."""
    return name.startswith("nvidia") or is_nvidia_program(program)
