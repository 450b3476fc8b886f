# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task of nvidia_toolkit_install for a toolkit in a directory."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import directory as toolkit_directory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import install as directory_install
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source


def install(module: _module.Module) -> dict[str, t.Any]:
    """Install or remove the directory. Return the result as documented."""
    toolkit_options.refuse_unsuitable(module)
    _module.load_bundled_packages(module)
    params = module.params
    one_source = (params["src"] is None) != (not params["files"])
    controller_source = _controller_source(params["_bundled"] or {})
    if params["state"] == "present" and one_source and not params["remote_src"] and controller_source is None:
        raise errors.NvidiaError(
            f"{errors.option:remote_src} is false, but the controller sent no toolkit, because the module was run"
            " without its action plugin. Run gpufleet.nvidia.nvidia_toolkit_install as a task of a play."
        )
    options = _directory_options(module.params, controller_source)
    # Ansible adds the parameters to the result, so secrets in them are masked.
    module.params["settings"] = toolkit_settings.masked(module.params["settings"] or {})
    removes = module.params["state"] == "absent"
    kind = toolkit_directory.DirectoryRemoval if removes else directory_install.DirectoryInstallation
    task = kind(options, _module.host_from_params(module), _tools(module))
    try:
        result = task.execute(module.check_mode)
    except toolkit_source.NotSentError as error:
        # The action plugin sends it, and runs the module again.
        error.details = {"needed": "toolkit_archive"}
        raise
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (result.before, result.after))
    names = {"before_header": options.dest, "after_header": options.dest, "before": before, "after": after}
    files = [result.config] if result.config is not None and result.config.changed else []
    predicted = task.predicted_toolkit(result) if module.check_mode else None
    diff = [names, *_module.diff_of(files, toml_document.mask_toml)]
    return {**task.module_result(result), "predicted": predicted, "diff": diff}


def _directory_options(
    params: dict[str, t.Any], controller_source: toolkit_source.ControllerSource | None
) -> toolkit_directory.DirectoryOptions:
    components, runtimes = params["components"], params["low_level_runtimes"]
    return toolkit_directory.DirectoryOptions(
        dest=params["dest"],
        src=params["src"],
        files=tuple(params["files"]),
        controller_source=controller_source,
        components=None if components is None else tuple(components),
        driver_root=params["driver_root"],
        settings=params["settings"] or {},
        profile=params["profile"],
        allow_unknown=params["allow_unknown"],
        debug=params["debug"],
        default_runtime=params["default_runtime_executable"],
        low_level_runtimes=None if runtimes is None else tuple(runtimes),
        create_device_nodes=params["create_device_nodes"],
        thorough=params["checksum"] == "full",
        version=params["version"],
        running_gpu_containers=params["running_gpu_containers"],
        minimum_version=params["minimum_version"],
        minimum_version_policy=params["minimum_version_policy"],
        backup_dir=params["backup_dir"],
    )


def _controller_source(bundled: t.Mapping[str, str]) -> toolkit_source.ControllerSource | None:
    """Return the toolkit that the action plugin describes in the option _bundled."""
    if "toolkit" not in bundled:
        return None
    parts = tuple(toolkit_manifest.PartDigest(**part) for part in json_data.load(bundled["toolkit"]))
    return toolkit_source.ControllerSource(parts, bundled.get("toolkit_archive"))


def _tools(module: _module.Module) -> toolkit_directory.Tools:
    run = _module.command_runner(module)

    def unpack_into(files: list[str], folder: str) -> None:
        # Only packages need this import and that of tarfile.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (  # noqa: PLC0415
            unpack as toolkit_unpack,
        )

        toolkit_unpack.unpack(files, folder)

    return toolkit_directory.Tools(run, unpack_into, _module.selinux_labeler(module, _module.host_from_params(module)))
