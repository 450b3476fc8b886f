# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_toolkit_install for packages and for an existing toolkit, and the options of the module."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes, errors, lock, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure as toolkit_configure
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        install as install_packages,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        remove as remove_packages,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        repository as toolkit_repository,
    )


# Seconds to fetch package lists.
_FETCHING = 300

SPEC: dict[str, dict[str, t.Any]] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "source": {
        "type": "str",
        "choices": ["repository", "files", "existing", "directory"],
        "default": "repository",
    },
    "packages": {"type": "str", "choices": ["full", "base"], "default": "full"},
    "version": {"type": "str"},
    "files": {"type": "list", "elements": "path", "default": []},
    "pending": {"type": "bool", "default": False},
    "repository_files": {
        "type": "list",
        "elements": "dict",
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str"},
            "src": {"type": "path"},
            "mode": {"type": "str", "default": "0644"},
        },
    },
    "key_fingerprint": {"type": "str", "no_log": False},
    "proxy": {"type": "str", "no_log": True},
    "hold": {"type": "bool"},
    "remove_conflicts": {"type": "bool", "default": True},
    "config_restored": {"type": "bool", "default": False},
    "running_gpu_containers": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "fail"},
    "minimum_version": {"type": "str"},
    "minimum_version_policy": {"type": "str", "choices": ["fail", "warn", "ignore"], "default": "warn"},
    "lock_timeout": {"type": "int", "default": lock.PACKAGE_MANAGER_TIMEOUT},
    "backup_dir": {"type": "path", "default": core_records.BACKUP_DIR},
    "package_cache": {"type": "path"},
    "src": {"type": "path"},
    "remote_src": {"type": "bool", "default": True},
    "dest": {"type": "path", "default": toolkit_constants.DIRECTORY},
    "components": {
        "type": "list",
        "elements": "str",
        "choices": ["runtime", "hook", "cli", "ctk", "cdi_hook"],
    },
    "driver_root": {"type": "path", "default": "/"},
    "settings": {"type": "dict"},
    "profile": {"type": "str", "choices": ["kubernetes_hardened", "rootless"]},
    "allow_unknown": {"type": "bool", "default": False},
    "debug": {"type": "bool"},
    "low_level_runtimes": {"type": "list", "elements": "str"},
    "default_runtime_executable": {"type": "str"},
    "create_device_nodes": {"type": "bool", "default": False},
    "checksum": {"type": "str", "choices": ["stat", "full"], "default": "stat"},
    **_module.HOST_ROOT_OPTIONS,
    **_module.BUNDLED_OPTIONS,
}


def refuse_unsuitable(module: _module.Module) -> None:
    """Raise NvidiaError for options that do not belong to the source."""
    of_directory = module.params["source"] == "directory"
    unsuitable = toolkit_constants.OPTIONS_OF_PACKAGES if of_directory else toolkit_constants.OPTIONS_OF_DIRECTORY
    given = [f"{errors.option:{name}}" for name in unsuitable if module.params[name] not in (None, {}, [])]
    if of_directory and module.params["packages"] == "base":
        given.append(f"{errors.option:packages}: base")
    if not of_directory and not module.params["remote_src"]:
        given.append(f"{errors.option:remote_src}: false")
    if given:
        problem = (
            f"{errors.option:source}: directory does not support"
            if of_directory
            else f"Only {errors.option:source}: directory supports"
        )
        raise errors.NvidiaError(
            f"{problem} these options: {', '.join(given)}. Remove them, or change {errors.option:source}."
        )


def install(module: _module.Module) -> dict[str, t.Any]:
    """Install or remove the packages, or check an existing toolkit. Return the result as documented."""
    refuse_unsuitable(module)
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (  # noqa: PLC0415
        packages as toolkit_packages,
    )

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
    task = _package_task(options.state)(options, host, _manager(module, host), run)
    result = task.module_result(task.execute(module.check_mode))
    if config_task is None:
        return result
    try:
        # The packages may have written the file.
        return _with_config(result, config_task.execute(module.check_mode))
    except errors.NvidiaError as error:
        error.details = {**error.details, "changed": result["changed"] and not module.check_mode}
        raise


def _package_task(state: str) -> type[install_packages.Installation | remove_packages.Removal]:
    if state == "absent":
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (  # noqa: PLC0415
            remove as remove_packages,
        )

        return remove_packages.Removal
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (  # noqa: PLC0415
        install as install_packages,
    )

    return install_packages.Installation


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
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import (  # noqa: PLC0415
        configure as toolkit_configure,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import (  # noqa: PLC0415
        settings as toolkit_settings,
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
        "diff": [*result["diff"], *diff_of(config.files)],
        "backup_files": [*result["backup_files"], *config.backup_files],
        "settings": config.settings,
        "warnings": [*result["warnings"], *config.warnings],
    }


def diff_of(files: t.Sequence[core_plan.PlannedFile]) -> list[dict[str, str]]:
    """Return the diff of config.toml with secrets hidden."""
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document  # noqa: PLC0415

    return _module.diff_of(files, toml_document.mask_toml)


def _repository_files(entries: list[dict[str, t.Any]] | None) -> tuple[toolkit_repository.RepositoryFile, ...] | None:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (  # noqa: PLC0415
        repository as toolkit_repository,
    )

    if entries is None:
        return None
    return tuple(
        toolkit_repository.RepositoryFile(entry["path"], entry["content"], entry["src"], entry["mode"])
        for entry in entries
    )


def _fingerprint(text: str | None) -> str | None:
    return None if text is None else text.replace(" ", "").upper()


def _manager(module: _module.Module, host: hostfs.HostFS) -> packages_base.PackageManager | None:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (  # noqa: PLC0415
        base as packages_base,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (  # noqa: PLC0415
        detect as packages_detect,
    )

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
