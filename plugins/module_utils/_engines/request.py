# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user requests for one engine, in terms that all engines understand."""

from __future__ import annotations

import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors

MODE_NAMES = {mode: f"nvidia-{mode}" for mode in core_constants.MODE_PROGRAMS}
MAIN_NAME = "nvidia"
CDI_AUTO = "auto"
# A runtime with one of these names would hide the low-level runtime that the NVIDIA runtime itself calls.
RESERVED_NAMES = ("runc", "crun")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


# The options that the files of only some engines can contain.
_OF_SOME_ENGINES = engines_facts.RUNTIMES | engines_facts.TABLES | engines_facts.FILE_OPTIONS | {"use_legacy_config"}


class RuntimeRequest(t.NamedTuple):
    """What the user requests for one engine, in terms that all engines understand.

    ``set_as_default`` and ``enable_cdi`` are None if the user did not set them: the engine's setting stays as it is.
    ``enable_cdi`` may also be CDI_AUTO: CDI is enabled in versions in which it is off by default. The fields from
    ``config_mode`` on are for engines that are configured in TOML. Without ``register``, no runtime is requested, and
    ``cdi_alone.py`` makes the plan.
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
    cri_disabled: str = "warn"
    use_legacy_config: bool = False
    register: bool = True

    def for_engine(self, engine: str, flavor: str) -> RuntimeRequest:
        """Return the request without the settings that the files of this engine cannot contain.

        Podman registers no runtimes. Docker has no drop-ins, and K3s and RKE2 generate their tables.
        """
        facts, row = flavors.FACTS[engine], flavors.FLAVORS[engine, flavor]
        unsupported = set(_OF_SOME_ENGINES - facts.options)
        if not row.tables:
            unsupported |= engines_facts.TABLES
        if flavor != core_constants.SYSTEM or (self.config_mode == "hook" and not facts.hook_mode):
            unsupported |= engines_facts.FILE_OPTIONS
        defaults = RuntimeRequest()
        return self._replace(**{name: getattr(defaults, name) for name in unsupported})

    def check(self) -> None:
        """Raise NvidiaError for a runtime name that no engine accepts."""
        if not _NAME.match(self.runtime_name):
            raise errors.NvidiaError(
                f"{errors.option:runtime_name} {self.runtime_name!r} contains unsupported characters. Use only"
                " letters, digits, '_', '.' and '-', and begin with a letter or a digit."
            )
        if self.runtime_name in RESERVED_NAMES or self.runtime_name.startswith("io.containerd."):
            raise errors.NvidiaError(
                f"{errors.option:runtime_name} {self.runtime_name!r} is the name of a low-level runtime. Choose"
                " another name."
            )

    def refuse_toml_settings(self, engine: str) -> None:
        """Raise NvidiaError for settings that an engine without TOML files does not support."""
        names = self.given(
            {"drop_in_path", "use_legacy_config", *engines_facts.TABLES} - {"extra_modes"},
            config_mode=self.config_mode in ("drop_in", "hook"),
        )
        if names:
            raise errors.NvidiaError(f"Unsupported options for {engine}: {names}. Remove them.")

    def given(self, names: t.AbstractSet[str], **others: bool) -> str:
        """Return the placeholders of the options that a message about unsupported options names; empty if none.

        Args:
            names: Options that are unsupported with any value but false, none, or an empty list or dictionary.
            others: Options with whether their value is unsupported.
        """
        values = self._asdict()
        given = {name for name in names if values[name] or values[name] == ""}
        found = [name for name in self._fields if name in given or others.get(name)]
        return ", ".join(f"{errors.option:{name}}" for name in found)

    def runtimes(self) -> dict[str, str]:
        """Return the path of each requested runtime by name, the main one first.

        This follows NVIDIA's installer: if ``runtime_name`` is the name of a mode, the main runtime keeps the name
        nvidia.
        """
        if not self.register:
            return {}
        modes = [
            mode
            for mode in core_constants.MODE_PROGRAMS
            if mode in self.extra_modes or MODE_NAMES[mode] == self.runtime_name
        ]
        main = MAIN_NAME if self.runtime_name in MODE_NAMES.values() else self.runtime_name
        names = {main: core_constants.MAIN_PROGRAM}
        names.update((MODE_NAMES[mode], core_constants.MODE_PROGRAMS[mode]) for mode in modes)
        return {name: posixpath.join(self.runtime_dir, program) for name, program in names.items()}

    def default(self, kept: str | None) -> str | None:
        """Return the runtime to make the default, None for no change.

        Without ``set_as_default``, it is ``kept`` (the default that an earlier run set) while that runtime is still
        requested.
        """
        if self.set_as_default is None:
            return kept if isinstance(kept, str) and kept in self.runtimes() else None
        return self.runtime_name if self.set_as_default else None
