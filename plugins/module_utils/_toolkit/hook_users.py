# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find what uses the hook in NVIDIA's packages: engines whose runtime is in mode legacy, and OCI hooks.

The package nvidia-container-toolkit contains the hook, and the packages on which it depends contain what it runs.
Nothing else uses these packages (nvidia-container-toolkit 1.18 to 1.20). The engines of users other than the one who
runs the task are not known, because root opens no files of users.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import usage as toolkit_usage
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_PACKAGED_HOOK = f"{toolkit_installed.PROGRAM_DIR}/{runtime_settings.HOOK}"
# Programs in a snap use the files of the snap.
_SNAPS = "/snap/"


def hook_users(host: hostfs.HostFS, version: str | None, planned_mode: str | None = None) -> list[str]:
    """Return a description of each user of the packaged hook.

    A user is an engine whose files, flags or running daemon have a runtime of NVIDIA in mode legacy, or an OCI hook. An
    engine whose files cannot be read, or that has not read them yet, may be one. Raises MissingPackageError if the
    package that reads such files is missing.

    Args:
        host: The host.
        version: The version that the toolkit has after the task; None: the newest.
        planned_mode: The mode that the task writes to config.toml; None: the mode stays.
    """
    needs_hook = _HookTest(host, version, planned_mode)
    found = {engine: ", ".join(names) for engine, names in toolkit_usage.selected_programs(host, needs_hook).items()}
    # A daemon whose files have the runtime is one user.
    found = {**toolkit_usage.daemons_using(host, needs_hook), **found}
    return [*(f"{engine} ({reason.rstrip('.')})" for engine, reason in found.items()), *_oci_hooks(host)]


class _HookTest:
    """A test whether a program is a runtime of NVIDIA that runs the packaged hook."""

    def __init__(self, host: hostfs.HostFS, version: str | None, planned_mode: str | None) -> None:
        self._host = host
        self._version = version
        self._planned_mode = planned_mode
        self._settings: dict[str, runtime_settings.RuntimeSettings | None] = {}

    def __call__(self, program: str) -> bool:
        path = self._host.find_executable([program])
        names = [program]
        if path is not None:
            # A runtime may have another name, which is a link to NVIDIA's program.
            names.append(self._host.resolve(path))
        name = next((each for each in names if engines_base.is_nvidia_program(each)), None)
        if name is None or program.startswith(_SNAPS):
            return False
        folder = posixpath.dirname(path) if path is not None else toolkit_installed.PROGRAM_DIR
        config_path = toolkit_constants.config_file(self._host, folder)
        settings = self._read(config_path)
        if settings is None:
            return True
        modes = {settings.mode}
        if config_path == toolkit_constants.CONFIG_FILE and self._planned_mode is not None:
            # The file has the present mode until the task has changed the packages.
            modes.add(self._planned_mode)
        in_use = any(runtime_settings.needs_hook(name, mode, self._version) for mode in modes)
        return in_use and self._is_packaged(settings.hook_path)

    def _read(self, path: str) -> runtime_settings.RuntimeSettings | None:
        """Return the settings in config.toml; None for a file that cannot be read and may have any mode."""
        if path not in self._settings:
            try:
                self._settings[path] = runtime_settings.read(self._host, path)
            except errors.MissingPackageError:
                raise
            except errors.NvidiaError:
                self._settings[path] = None
        return self._settings[path]

    def _is_packaged(self, hook: str) -> bool:
        """Return whether the hook that config.toml names may be the packaged one. A toolkit may have its own."""
        found = self._host.find_executable([hook])
        return found is None or self._host.same_program(found, _PACKAGED_HOOK)


def _oci_hooks(host: hostfs.HostFS) -> t.Iterator[str]:
    """Yield NVIDIA's hooks in the directories of engines, and those that this collection wrote to others."""
    engines = engines_registry.engines_on(host)
    own = [record.path for engine in engines for record in core_records.load_records(host, engine.key)]
    files = engines_base.HostFiles(host, "")
    folders = [*nvidia_files.HOOK_FOLDERS, *map(posixpath.dirname, own)]
    yield from nvidia_files.nvidia_hooks(files, dict.fromkeys(folders))
