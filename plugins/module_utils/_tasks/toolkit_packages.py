# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_toolkit_install for packages and for an existing toolkit."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes, errors, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect as packages_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure as toolkit_configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import install as install_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import remove as remove_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

# Seconds to fetch package lists.
_FETCHING = 300


def install(module: _module.Module) -> dict[str, t.Any]:
    """Install or remove the packages, or check an existing toolkit. Return the result as documented."""
    toolkit_options.refuse_unsuitable(module)
    params = module.params
    host = _module.host_from_params(module)
    for path in params["files"] if params["source"] == "files" and params["state"] == "present" else ():
        # The scripts of these packages run as root.
        trusted_paths.require_trusted_folder(host, "files", host.check_path("files", path))
    options = toolkit_packages.InstallOptions(
        state=params["state"],
        source=params["source"],
        packages=params["packages"],
        version=params["version"],
        files=tuple(params["files"]),
        pending=params["pending"],
        repository_files=_repository_files(params["repository_files"]),
        key_fingerprint=_fingerprint(params["key_fingerprint"]),
        proxy=params["proxy"],
        hold=params["hold"],
        remove_conflicts=params["remove_conflicts"],
        running_gpu_containers=params["running_gpu_containers"],
        minimum_version=params["minimum_version"],
        minimum_version_policy=params["minimum_version_policy"],
        backup_dir=params["backup_dir"],
        package_cache=params["package_cache"],
        config_restored=params["config_restored"],
    )
    _module.load_bundled_packages(module)
    run = _module.command_runner(module)
    config_task = _config_task(module, host)
    if config_task is not None:
        # Wrong settings and a file that cannot be read are refused before a package changes.
        config_task.plan()
    kind = remove_packages.Removal if options.state == "absent" else install_packages.Installation
    task = kind(options, host, _manager(module, host), run)
    result = task.module_result(task.execute(module.check_mode))
    if config_task is None:
        return result
    try:
        # The packages may have written the file.
        return _with_config(result, config_task.execute(module.check_mode))
    except errors.NvidiaError as error:
        error.details = {**error.details, "changed": result["changed"] and not module.check_mode}
        raise


def _config_task(module: _module.Module, host: hostfs.HostFS) -> toolkit_configure.ConfigTask | None:
    """Return the task that writes config.toml, or None if the parameters do not request it."""
    params = module.params
    given = [f"{errors.option:{name}}" for name in toolkit_constants.CONFIG_OPTIONS if params[name] is not None]
    if not given:
        return None
    if params["state"] == "absent":
        raise errors.NvidiaError(
            f"{errors.option:state}: absent does not support these options: {', '.join(given)}. Remove them."
        )
    request = toolkit_configure.SettingsRequest(
        settings=params["settings"] or {},
        profile=params["profile"],
        debug=params["debug"],
        exclusive=True,
        allow_unknown=params["allow_unknown"],
    )
    # Ansible adds the parameters to the result, so secrets in them are masked.
    params["settings"] = toolkit_settings.masked(params["settings"] or {})
    return toolkit_configure.ConfigTask(toolkit_configure.ConfigOptions(request, backup_dir=params["backup_dir"]), host)


def _with_config(result: dict[str, t.Any], config: toolkit_configure.ConfigResult) -> dict[str, t.Any]:
    """Return the result of the packages together with that of config.toml."""
    return {
        **result,
        "changed": result["changed"] or config.changed,
        "diff": [*result["diff"], *_module.diff_of(config.files, toml_document.mask_toml)],
        "backup_files": [*result["backup_files"], *config.backup_files],
        "settings": config.settings,
        "warnings": [*result["warnings"], *config.warnings],
    }


def _repository_files(entries: list[dict[str, t.Any]] | None) -> tuple[toolkit_repository.RepositoryFile, ...] | None:
    if entries is None:
        return None
    return tuple(
        toolkit_repository.RepositoryFile(entry["path"], entry["content"], entry["src"], entry["mode"])
        for entry in entries
    )


def _fingerprint(text: str | None) -> str | None:
    return None if text is None else text.replace(" ", "").upper()


def _manager(module: _module.Module, host: hostfs.HostFS) -> packages_base.PackageManager | None:
    commands = packages_base.Commands(
        read=_module.command_runner(module),
        fetch=changes.refusable(_module.command_runner(module, _FETCHING)),
        change=changes.refusable(_module.command_runner(module, None)),
    )
    try:
        return packages_detect.detect_package_manager(host, commands, module.params["lock_timeout"])
    except errors.HostError:
        # An existing toolkit needs no package manager.
        if module.params["source"] == "existing":
            return None
        raise
