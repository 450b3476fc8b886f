# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate planned CRI-O files with `crio config`.

The command prints the merged configuration of all files. This module compares the output before and after a change, in
which all entries of other tools must be equal. It does not run the commands.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    KeyPath = t.Tuple[str, ...]


# A value for --config where there is no main file: CRI-O refuses to start if the named file is missing.
_NO_FILE = "/dev/null"
_MAIN, _DROP_INS = "crio.conf", "crio.conf.d"


def validation_command(
    binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
) -> engines_base.ValidationCommand:
    """Return the validation command, which prints the configuration of copies of all files with ``files`` among them.

    The command in ``compare`` prints the present configuration. Raises NvidiaError for a dangling link.
    """
    planned = crio_config.CrioFiles.of(context, toml_plan.overlay_of(files))
    if planned.missing:
        raise errors.NvidiaError(
            f"{', '.join(planned.missing)} is a link that leads nowhere: CRI-O would not start. Remove it, or put the"
            " file there."
        )
    main, *drop_ins = planned.files
    # The drop-ins keep their names, which determine the order.
    names = {_MAIN: main, **{_DROP_INS + file.name[len(planned.directory) :]: file for file in drop_ins}}
    here = context.path if context.content is not None else _NO_FILE
    return engines_base.ValidationCommand(
        {name: file.document.to_bytes() for name, file in names.items()},
        _argv(binary, f"{folder}/{_MAIN}", f"{folder}/{_DROP_INS}"),
        _argv(binary, here, planned.directory),
        {name: file.path for name, file in names.items()},
    )


def _argv(binary: str, path: str, directory: str) -> list[str]:
    return [binary, "--config", path, "--config-dir", directory, "config"]


def compare_dumps(before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
    """Return the entries of other tools that would change; empty if none would, or if the output cannot be parsed."""
    names = toml_plan.changed_tables(files, crio_config.RUNTIMES)
    defaults = {
        toml_document.TomlDocument.from_bytes(file.path, text or b"").value(*crio_config.DEFAULT)
        for file in files
        for text in (file.before, file.after)
    }

    def is_ours(path: KeyPath) -> bool:
        depth = len(crio_config.RUNTIMES)
        return (path == crio_config.DEFAULT and len(defaults) > 1) or (
            path[:depth] == crio_config.RUNTIMES and path[depth] in names
        )

    return toml_plan.compare_dumps(before, after, is_ours)
