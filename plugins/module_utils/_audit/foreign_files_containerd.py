# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Audit rules about other tools that manage the files of containerd. They read files and run nothing.

The rules about all other files are in foreign_files.py.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import foreign_files, report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options

# Together, these keys identify a file of Kubespray. Its templates (config.toml.j2, config-v1.toml.j2) write them by
# default (first 2.21.0, last without it 2.20.0), and no other tool writes all of them.
_KUBESPRAY_TOP = ("root", "state", "oom_score", "grpc", "plugins")
_KUBESPRAY_SPEC = "cri-base.json"
_KUBESPRAY_SETTING = "max_container_log_line_size"


def kubespray(configs: foreign_files.HostConfigs) -> report.Findings:
    """Yield a finding for a main file that Kubespray wrote."""
    files = configs.containerd
    if files is None or not files.files or not _is_kubespray(files.main.data, files.cri()):
        return
    yield report.warning(
        "kubespray-owns-file",
        files.main.path,
        f"{files.main.path} looks like a file of Kubespray. The next run of Kubespray replaces the file and removes"
        " what other tools added.",
        "Let Kubespray register the runtime (containerd_additional_runtimes, containerd_default_runtime), or run this"
        " collection after Kubespray each time. For containerd 2.0 and newer, you can also write a drop-in and add an"
        " imports line for it to Kubespray's variable containerd_extra_args.",
    )


def _is_kubespray(data: t.Mapping[str, t.Any], cri: t.Mapping[str, t.Any]) -> bool:
    specs = [report.text(report.table(entry).get("base_runtime_spec")) for entry in _runtimes(cri).values()]
    return (
        all(name in data for name in _KUBESPRAY_TOP)
        and any(posixpath.basename(spec) == _KUBESPRAY_SPEC for spec in specs)
        and _KUBESPRAY_SETTING in cri
    )


def _runtimes(cri: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return report.table(toml_plan.lookup(cri, containerd_config.RUNTIMES))


def copied_settings(configs: foreign_files.HostConfigs) -> report.Findings:
    """Yield a finding for a drop-in of nvidia-ctk that contains a copy of the main file's CRI settings.

    The message names the settings that have changed in the main file since.
    """
    files = configs.containerd
    if files is None:
        return
    for file in files.files[1:]:
        found = None if configs.is_recorded(file.path) else nvidia_files.containerd_drop_in(file.document, [files.main])
        if found is None or not found.copied:
            continue
        drifted = [nvidia_files.short_name(path) for path in found.drifted]
        changes = f"Changes of {core_text.listed(drifted)}" if drifted else "Later changes of settings"
        message = (
            f"{file.path} contains NVIDIA's runtimes and a copy of other CRI settings. {changes} in the main file have"
            " no effect."
        )
        # The roles keep a file that a person has edited, or without which a setting gets another value.
        own = "Move the settings and comments that you need to the main file, then remove the file."
        is_removable = found.has_only_tool_entries(file.document) and not drifted
        advice = steps.PURGE_LEGACY if is_removable else own
        yield report.warning("legacy-file", file.path, message, advice)


def old_drop_in(configs: foreign_files.HostConfigs) -> report.Findings:
    """Yield a finding for the drop-in of the toolkit 1.18.0, whose directory no file imports by default."""
    files, path = configs.containerd, nvidia_files.STRAY_CONTAINERD
    if files is None or not configs.host.lexists(path) or configs.is_recorded(path):
        return
    is_imported = configs.real(path) in {file.path for file in files.files}
    effect = "The main file imports it." if is_imported else "No file imports it."
    message = f"{path} is a drop-in that the toolkit 1.18.0 wrote. {effect}"
    yield report.warning("legacy-file", path, message, steps.PURGE_LEGACY)


def runtimes(configs: foreign_files.HostConfigs) -> report.Findings:
    """Yield findings for NVIDIA runtimes that several files define."""
    paths: dict[str, list[str]] = {}
    for file, table in configs.containerd.cri_tables() if configs.containerd is not None else ():
        for name, entry in _runtimes(table).items():
            if engines_base.is_nvidia_program(containerd_options.program_of(entry)):
                paths.setdefault(name, []).append(file.path)
    yield from foreign_files.defined_twice(paths)


def disabled_cri(configs: foreign_files.HostConfigs) -> report.Findings:
    """Yield a finding for a file that disables containerd's CRI plugin, without which a kubelet does not start."""
    disabled_in = configs.containerd.cri_disabled_in() if configs.containerd is not None else None
    if disabled_in is not None:
        message = (
            f"{disabled_in} disables containerd's CRI plugin, as Docker's packages do. Kubernetes cannot use this"
            " containerd."
        )
        advice = "Nothing needs to be done if only Docker uses this containerd."
        yield report.info("cri-disabled", disabled_in, message, advice)


FOREIGN_FILE_RULES = (kubespray, copied_settings, old_drop_in, runtimes, disabled_cri)
