# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the containerd of K3s or RKE2 knows of runtimes, by the file that was generated for
# it, and by the one that the next start would generate.

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    DEFAULT,
    PROGRAM,
    RUNTIMES,
    ContainerdFiles,
    program_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import configured_state
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import (
    BUILTIN_DEFAULT,
    BUILTIN_TYPE,
    CDI,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_releases import PROGRAMS, found_on
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_settings import DEFAULT_RUNTIME
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import lookup, merged

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ConfigFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import ConfiguredState, Context, Files
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._rancher_settings import Settings

# A generated file imports others only in releases whose containerd merges them (K3s pull request 13680, 2026).
_MERGING = (2, 1)
# containerd 2, whose CDI is on unless it is switched off, gets files of this version (pull request 11626).
_CDI_BY_DEFAULT_SINCE = 3
# In the order in which they are looked for; the former only by releases with containerd 2.
_TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
# What in a template brings all that the distribution's own text does, the runtimes that were found, and the default.
_BASE, _FOUND, _DEFAULT = re.compile(r"template\s+[\"`]base[\"`]"), ".ExtraRuntimes", ".DefaultRuntime"


class Template(t.NamedTuple):
    """A file of others that takes the place of what would be generated, and what of that is in it too.

    ``extends``: it is about what is added to that, which the distributions recommend.
    """

    path: str
    extends: bool
    brings_found: bool
    brings_default: bool


def host_of(context: Context) -> HostRoot:
    """The host itself: which programs it has, files alone do not tell."""
    return t.cast("HostFiles", context.files).host


def environment_of(context: Context) -> t.Mapping[str, str]:
    """The variables with which it starts."""
    return context.unit.environment if context.unit is not None else {}


def template_of(context: Context) -> Template | None:
    """The template that is used instead of the distribution's own, None where there is none."""
    folder = posixpath.dirname(context.path)
    for name in _TEMPLATES:
        content = context.files.read(f"{folder}/{name}")
        if content is not None:
            text = content.decode("utf-8", "replace")
            base = _BASE.search(text) is not None
            return Template(f"{folder}/{name}", base, base or _FOUND in text, base or _DEFAULT in text)
    return None


def found_in(context: Context) -> dict[str, str]:
    """The runtimes of NVIDIA's that the next start would find, and their programs."""
    return found_on(host_of(context), context.version, environment_of(context))


def generated(files: Files, path: str) -> ConfiguredState:
    """What the file says that was generated last, nothing where there is none.  Raises GpufleetError."""
    return _said(ContainerdFiles(files, path, _MERGING))


def sources_of(files: Files, path: str) -> list[str]:
    """The generated file, and what it imports.  Raises GpufleetError."""
    return [file.path for file in ContainerdFiles(files, path, _MERGING).files]


def overruling(context: Context) -> str:
    """The file that counts more than what would be generated: an import, or a template."""
    template = template_of(context)
    imports = [file.path for file, table in _imported(_read(context)) if table.get("containerd")]
    return (imports or [template.path if template is not None else context.path])[-1]


def next_state(context: Context, settings: Settings) -> ConfiguredState:
    """What it would know after a start.  Raises GpufleetError."""
    read = _read(context)
    state, template = _said(read), template_of(context)
    runtimes, default = dict(state.runtimes), state.default_runtime
    if default == BUILTIN_DEFAULT:
        default = None
    added: dict[str, t.Any] = {}
    for _file, table in _imported(read):
        added = merged(added, table)
    if template is None or template.brings_found:
        kept = lookup(added, RUNTIMES)
        kept = kept if isinstance(kept, dict) else {}
        runtimes = _with_found(context, runtimes, kept)
    if (template is None or template.brings_default) and lookup(added, DEFAULT) is None:
        default = settings.value(DEFAULT_RUNTIME) or None
    return state._replace(runtimes=runtimes, default_runtime=default)


def _with_found(
    context: Context, runtimes: t.Mapping[str, t.Any], kept: t.Mapping[str, t.Any]
) -> dict[str, dict[str, t.Any]]:
    """``runtimes`` as a search on the host makes them; where ``kept`` names a program, that stays."""
    named = {name for name, entry in kept.items() if program_of(entry) is not None}
    result = {name: entry for name, entry in runtimes.items() if name not in PROGRAMS or name in kept}
    for name, program in found_in(context).items():
        if name not in named:
            former = runtimes.get(name, {})
            # Under another name for the same file nothing new is found: systemd may search other folders than we know.
            spelled = program_of(former)
            if isinstance(spelled, str) and context.same_program(spelled, program):
                program = spelled
            options = former.get(PROGRAM[0])
            options = {**(options if isinstance(options, dict) else {}), PROGRAM[1]: program}
            result[name] = {"runtime_type": BUILTIN_TYPE, **former, "path": program, PROGRAM[0]: options}
    return result


def _read(context: Context) -> ContainerdFiles:
    return ContainerdFiles(context.files, context.path, _MERGING)


def _imported(read: ContainerdFiles) -> list[tuple[ConfigFile, dict[str, t.Any]]]:
    """The files beside the generated one, and their settings for the CRI."""
    return [(file, table) for file, table in read.tables() if file is not read.files[0]]


def _said(read: ContainerdFiles) -> ConfiguredState:
    written = lookup(read.cri(), CDI)
    cdi = written if isinstance(written, bool) else True if read.version >= _CDI_BY_DEFAULT_SINCE else None
    # Nothing stands in a file that has not been generated yet.
    return configured_state(read)._replace(cdi=cdi if read.main.data else None)
