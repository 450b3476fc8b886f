# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the containerd configuration that K3s or RKE2 generated with what they would find now.

This module contains the directories that each release searches for NVIDIA's runtimes. Both distributions share this
code and have the version of their Kubernetes. It does not predict the effect of templates or imports of other tools.
"""

from __future__ import annotations

import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import config as k3s_config

if t.TYPE_CHECKING:
    Version = t.Tuple[int, ...]


# Generated files import others only in releases whose containerd merges them (K3s pull request 13680, 2026).
_MERGING = (2, 1)
# The version of the files generated for containerd 2 (pull request 11626), whose CDI is on unless a file disables it.
_CDI_BY_DEFAULT_SINCE = 3
# In order of precedence. Only releases with containerd 2 read the first.
_TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
# Matches a template that includes the distribution's base template, as both distributions recommend.
_EXTENDS_BASE = re.compile(rb"\{\{-?\s*template\s+[\"`]base[\"`]")

# The first Kubernetes of either distribution. A lower version is that of its containerd.
_FIRST = (1, 16)

# By minor series: the first patch release with a feature, which the patch release before lacks. Later series always
# have it, earlier ones never.
# K3s pull requests 8936 and 9027 with their backports: the flag default-runtime (also pkg/cli/cmds of RKE2's releases).
_DEFAULT_RUNTIME = {26: 12, 27: 9, 28: 5}
# 9311 and its backports 9429 to 9431, February 2024: programs are searched in a list of directories instead of two.
_FIXED_PATH = {26: 14, 27: 11, 28: 7, 29: 2}
# 10953, 11065 and their backports 11092 to 11095, October 2024: PATH is searched too, and nvidia-cdi is registered.
_OWN_PATH_AND_CDI = {28: 15, 29: 10, 30: 6, 31: 2}

# Containerd 2, February 2025 (Dockerfile of RKE2's releases, K3s' documentation, "Advanced Options / Configuration").
# The series 1.29 and 1.30 keep containerd 1.7 up to their last releases (1.29.15, 1.30.14; K3s #11945, #12263).
_CONTAINERD_2 = {31: 6, 32: 2}

# The directory of the GPU operator, which is searched first (pkg/agent/containerd/runtimes.go, config_linux.go).
_OPERATOR = "/usr/local/nvidia/toolkit"
_WASM = "/opt/kwasm/bin"

# Name and program of each NVIDIA runtime that the distributions search (runtimes.go).
_ALWAYS = {
    engines_request.MAIN_NAME: core_constants.MAIN_PROGRAM,
    "nvidia-experimental": core_constants.MAIN_PROGRAM + "-experimental",
}
_WITH_CDI = {engines_request.MODE_NAMES["cdi"]: core_constants.MODE_PROGRAMS["cdi"]}
# The runtimes of all releases together.
PROGRAMS: t.Mapping[str, str] = types.MappingProxyType({**_ALWAYS, **_WITH_CDI})


def release_of(version: Version | None) -> Version | None:
    """Return ``version`` if it may be the distribution's, None if it is unknown or its containerd's."""
    return version if version is not None and version[:1] == _FIRST[:1] and version >= _FIRST else None


def sets_default(version: Version | None) -> bool:
    """Return whether the release has the setting default-runtime. An unknown release is treated as a recent one."""
    return _has_feature(version, _DEFAULT_RUNTIME)


def default_since() -> str:
    """Return the first releases with that setting, as text for a message."""
    return _releases_text(_DEFAULT_RUNTIME)


def own_path_since() -> str:
    """Return the first releases that search their own PATH, as text for a message."""
    return _releases_text(_OWN_PATH_AND_CDI)


def registered_programs(version: Version | None) -> dict[str, str]:
    """Return name and program of each NVIDIA runtime that the release registers if it finds the program."""
    return {**_ALWAYS, **(_WITH_CDI if _has_feature(version, _OWN_PATH_AND_CDI) else {})}


def templates(version: Version | None) -> tuple[str, ...]:
    """Return the templates that the release reads, in order of precedence."""
    return _TEMPLATES if _has_feature(version, _CONTAINERD_2) else _TEMPLATES[1:]


def search_dirs(context: engines_base.Context) -> list[str]:
    """Return the directories in which the release searches these programs, in this order."""
    if not _has_feature(context.version, _FIXED_PATH):
        return [_OPERATOR, "/usr/bin"]
    if not _has_feature(context.version, _OWN_PATH_AND_CDI):
        return [_OPERATOR, _WASM, "/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]
    environment = context.unit.environment if context.unit is not None else {}
    # Go refuses to run a program from a relative directory (os/exec, ErrDot).
    own = environment["PATH"].split(":") if "PATH" in environment else _service_path(host_of(context))
    return list(dict.fromkeys([_OPERATOR, _WASM, *(folder for folder in own if folder.startswith("/"))]))


def _service_path(host: hostfs.HostFS) -> list[str]:
    """Return the PATH of a service, without directories that are links to other directories in it.

    systemd omits sbin where that is a link to bin (as in Fedora 42).
    """
    real = {folder: host.resolve(folder) for folder in hostfs.SERVICE_PATH}
    return [folder for folder in hostfs.SERVICE_PATH if real[folder] == folder or real[folder] not in real]


def find_programs(context: engines_base.Context) -> dict[str, str]:
    """Return the NVIDIA runtimes that the release would register at its next start, and their programs' paths."""
    folders, host = search_dirs(context), host_of(context)
    paths = {
        name: host.find_executable(f"{folder.rstrip('/')}/{program}" for folder in folders)
        for name, program in registered_programs(context.version).items()
    }
    return {name: path for name, path in paths.items() if path is not None}


def _has_feature(version: Version | None, since: t.Mapping[int, int]) -> bool:
    release = release_of(version)
    if release is None or len(release) < 2:
        return True
    minor, patch = (*release[1:3], 0)[:2]
    return minor > max(since) or (minor in since and patch >= since[minor])


def _releases_text(since: t.Mapping[int, int]) -> str:
    return ", ".join(f"v1.{minor}.{patch}" for minor, patch in since.items()) + f" and v1.{max(since) + 1}.0"


def host_of(context: engines_base.Context) -> hostfs.HostFS:
    """Return the host, on which the programs of the runtimes are searched.

    Raises TypeError for other files than HostFiles, which have no host.
    """
    if not isinstance(context.files, engines_base.HostFiles):
        raise TypeError(f"There is no host in {type(context.files).__name__}.")
    return context.files.host


class GeneratedConfig:
    """The file generated at the last start, and what it imports.

    ``template`` is the template of another tool, ``override`` the file that overrides the distribution (None: there is
    none). Raises NvidiaError for a file that cannot be read.
    """

    def __init__(self, context: engines_base.Context) -> None:
        self._context = context
        self._files = containerd_config.ContainerdFiles(context.files, context.path, _MERGING)
        folder = posixpath.dirname(context.path)
        paths = [f"{folder}/{name}" for name in templates(context.version)]
        self.template = next((path for path in paths if context.files.read(path) is not None), None)
        self.override = self._override()

    def _override(self) -> str | None:
        """Return the import or template that overrides the programs that were found and the settings, or None."""
        for file, table in self._files.cri_tables():
            runtimes = [toml_plan.lookup(table, (*containerd_config.RUNTIMES, name)) for name in PROGRAMS]
            sets_default = toml_plan.lookup(table, containerd_config.DEFAULT) is not None
            sets_program = any(containerd_options.program_of(runtime) is not None for runtime in runtimes)
            if file is not self._files.files[0] and (sets_default or sets_program):
                return file.path
        text = self._context.files.read(self.template) if self.template is not None else None
        return self.template if text is not None and not _EXTENDS_BASE.search(text) else None

    def sources(self) -> list[str]:
        """Return the generated file, its imports and its template."""
        return [*(file.path for file in self._files.files), *([self.template] if self.template is not None else [])]

    def state(self) -> engines_base.ConfiguredState:
        """Return the state of a containerd that was started with this file; without a file, only whether CDI is on."""
        state = containerd_plan.configured_state(self._files)
        default = None if state.default_runtime == containerd_runtimes.BUILTIN_DEFAULT else state.default_runtime
        cdi = False if state.cdi_folders == () else self._cdi()
        return state._replace(default_runtime=default, cdi=cdi)

    def _cdi(self) -> bool | None:
        """Return whether CDI is on, None if that depends on the release, which is unknown, or on an unread template.

        The template of the distribution has no setting of CDI (see ``flavors``), so the default of containerd applies.
        """
        found = toml_plan.lookup(self._files.cri(), containerd_runtimes.CDI)
        if isinstance(found, bool):
            return found
        generated = bool(self._files.main.data)
        if generated and self._files.version >= _CDI_BY_DEFAULT_SINCE:
            return True
        if not generated and self.template is not None:
            return None
        release = release_of(self._context.version)
        return None if release is None else _has_feature(release, _CONTAINERD_2)

    def expected(self, default: str) -> engines_base.ConfiguredState:
        """Return the state after the next start, with ``default`` as the setting (empty: none)."""
        state = self.state()
        if self.override is not None:
            return state
        runtimes = {name: entry for name, entry in state.runtimes.items() if name not in PROGRAMS}
        for name, found in find_programs(self._context).items():
            previous = state.runtimes.get(name, {})
            program = containerd_options.program_of(previous)
            # Another path to the same file is no difference: systemd may search other directories than listed here.
            same = isinstance(program, str) and self._context.same_program(program, found)
            path = program if same else found
            runtimes[name] = {"runtime_type": containerd_runtimes.BUILTIN_TYPE, **previous, "path": path}
        return state._replace(runtimes=runtimes, default_runtime=default or None)

    def default_source(self, settings: k3s_config.RancherSettings) -> str:
        """Return the file or unit that sets the default runtime of the next start, or in which it can be set."""
        if self.override is not None and settings.value(k3s_config.DEFAULT_RUNTIME) != self.state().default_runtime:
            return self.override
        return settings.source(k3s_config.DEFAULT_RUNTIME) or settings.config_file
