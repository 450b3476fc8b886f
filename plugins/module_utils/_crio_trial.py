# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a changed configuration in CRI-O's own eyes.  `crio config` prints what all files amount
# to; what is not ours must be in it after a change as it was before.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _toml_trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import DEFAULT, RUNTIMES, CrioFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_trial import changed_tables

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, PlannedFile

    KeyPath = t.Tuple[str, ...]

# A file that --config may name where there is none; CRI-O refuses to start without one that was named.
_NO_FILE = "/dev/null"
_MAIN, _DROP_INS = "crio.conf", "crio.conf.d"


def trial(binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
    """What CRI-O makes of copies of all its files with ``files`` among them, and of the files as they stand."""
    planned = CrioFiles.of(context, _toml_trial.overlay_of(files))
    if planned.missing:
        raise GpufleetError(
            f"{', '.join(planned.missing)} is a link that leads nowhere: CRI-O would not start. Remove it, or put the"
            " file there."
        )
    main, *drop_ins = planned.files
    # The names of drop-ins stay, for they make the order.
    names = {_MAIN: main, **{_DROP_INS + file.name[len(planned.directory) :]: file for file in drop_ins}}
    here = context.path if context.content is not None else _NO_FILE
    return Trial(
        {name: file.document.to_bytes() for name, file in names.items()},
        _argv(binary, f"{folder}/{_MAIN}", f"{folder}/{_DROP_INS}"),
        _argv(binary, here, planned.directory),
        {name: file.path for name, file in names.items()},
    )


def _argv(binary: str, path: str, directory: str) -> list[str]:
    return [binary, "--config", path, "--config-dir", directory, "config"]


def verdict(before: str, after: str, files: t.Sequence[PlannedFile]) -> str:
    """What would change beside our entries; empty if nothing would, or if what was printed cannot be read."""
    names = changed_tables(files, RUNTIMES)
    defaults = {
        TomlDocument.from_bytes(file.path, text or b"").value(*DEFAULT)
        for file in files
        for text in (file.before, file.after)
    }

    def is_ours(path: KeyPath) -> bool:
        depth = len(RUNTIMES)
        return (path == DEFAULT and len(defaults) > 1) or (path[:depth] == RUNTIMES and path[depth] in names)

    return _toml_trial.verdict(before, after, is_ours)
