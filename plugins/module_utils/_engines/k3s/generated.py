# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the containerd configuration that K3s or RKE2 generated with what they would find now.

This module only reads the generated file. It does not predict the effect of templates or imports of other tools.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import releases

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base


# Generated files import others only in releases whose containerd merges them (K3s pull request 13680, 2026).
_MERGING = (2, 1)
# The version of the files generated for containerd 2 (pull request 11626), whose CDI is on unless a file disables it.
_CDI_BY_DEFAULT_SINCE = 3
# In order of precedence. Only releases with containerd 2 read the first.
_TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
# Matches a template that includes the distribution's base template, as both distributions recommend.
_EXTENDS_BASE = re.compile(rb"template\s+[\"`]base[\"`]")


def host_of(context: engines_base.Context) -> hostfs.HostFS:
    """Return the host, on which the programs of the runtimes are searched."""
    return t.cast("engines_base.HostFiles", context.files).host


def environment_of(context: engines_base.Context) -> t.Mapping[str, str]:
    """Return the environment variables of the distribution's unit."""
    return context.unit.environment if context.unit is not None else {}


def found_in(context: engines_base.Context) -> dict[str, str]:
    """Return the NVIDIA runtimes that the next start would find, with their programs."""
    return releases.found_on(host_of(context), context.version, environment_of(context))


class GeneratedConfig:
    """The file generated at the last start, and what it imports.

    ``template`` is the template of another tool, ``override`` the file that has precedence over the distribution (None:
    there is none). Raises NvidiaError for a file that cannot be read.
    """

    def __init__(self, context: engines_base.Context) -> None:
        self._context = context
        self._files = containerd_config.ContainerdFiles(context.files, context.path, _MERGING)
        folder = posixpath.dirname(context.path)
        paths = [f"{folder}/{name}" for name in _TEMPLATES]
        self.template = next((path for path in paths if context.files.read(path) is not None), None)
        self.override = self._override()

    def _override(self) -> str | None:
        """Return the import or template that has precedence over the search for programs and the settings, or None."""
        imported = [(file.path, table) for file, table in self._files.cri_tables() if file is not self._files.files[0]]
        for path, table in imported:
            programs = [
                containerd_config.program_of(toml_plan.lookup(table, (*containerd_config.RUNTIMES, name)))
                for name in releases.PROGRAMS
            ]
            if toml_plan.lookup(table, containerd_config.DEFAULT) is not None or any(
                program is not None for program in programs
            ):
                return path
        text = self._context.files.read(self.template) if self.template is not None else None
        return self.template if text is not None and not _EXTENDS_BASE.search(text) else None

    def sources(self) -> list[str]:
        """Return the generated file, its imports and its template."""
        return [*(file.path for file in self._files.files), *([self.template] if self.template is not None else [])]

    def state(self) -> engines_base.ConfiguredState:
        """Return the state of a containerd that was started with this file, empty if there is no file yet."""
        state = containerd_plan.configured_state(self._files)
        default = None if state.default_runtime == containerd_runtimes.BUILTIN_DEFAULT else state.default_runtime
        written = toml_plan.lookup(self._files.cri(), containerd_runtimes.CDI)
        cdi = written if isinstance(written, bool) else True if self._files.version >= _CDI_BY_DEFAULT_SINCE else None
        return state._replace(default_runtime=default, cdi=cdi if self._files.main.data else None)

    def expected(self, default: str) -> engines_base.ConfiguredState:
        """Return the state after the next start, with ``default`` as the setting (empty: none)."""
        state = self.state()
        if self.override is not None:
            return state
        runtimes = {name: entry for name, entry in state.runtimes.items() if name not in releases.PROGRAMS}
        for name, found in found_in(self._context).items():
            previous = state.runtimes.get(name, {})
            # Another path to the same file is no difference: systemd may search other directories than listed here.
            known = containerd_config.program_of(previous)
            same = isinstance(known, str) and self._context.same_program(known, found)
            runtimes[name] = {
                "runtime_type": containerd_runtimes.BUILTIN_TYPE,
                **previous,
                "path": known if same else found,
            }
        return state._replace(runtimes=runtimes, default_runtime=default or None)
