# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: a changed configuration in CRI-O's own eyes.  `crio config` prints what all files amount
# to; what is not ours must be in it after a change as it was before.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import DEFAULT, RUNTIMES, CrioFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Trial
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import leaves

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, PlannedFile

    KeyPath = t.Tuple[str, ...]

# A file that --config may name where there is none; CRI-O refuses to start without one that was named.
_NO_FILE = "/dev/null"
_MAIN, _DROP_INS = "crio.conf", "crio.conf.d"
_SHOWN = 3


def trial(binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
    """What CRI-O makes of copies of all its files with ``files`` among them, and of the files as they stand."""
    overlay = {
        file.path: None if file.after is None else TomlDocument.from_bytes(file.path, file.after) for file in files
    }
    planned = CrioFiles.of(context, overlay)
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
    try:
        old, new = (dict(leaves(TomlDocument.from_bytes("config", text.encode()).data)) for text in (before, after))
    except ConfigurationError:
        return ""
    ours = _our_entries(files)
    lost = sorted(
        ".".join(path)
        for path in {**old, **new}
        if old.get(path) != new.get(path) and not any(path[: len(entry)] == entry for entry in ours)
    )
    if not lost:
        return ""
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return f"take {', '.join(lost[:_SHOWN])}{more} for something else than now, which is not ours to change"


def _our_entries(files: t.Sequence[PlannedFile]) -> set[KeyPath]:
    """The entries that a plan writes or takes away: the runtimes whose tables it changes, and the default."""
    found: set[KeyPath] = set()
    for file in files:
        before, after = (TomlDocument.from_bytes(file.path, text or b"") for text in (file.before, file.after))
        if before.value(*DEFAULT) != after.value(*DEFAULT):
            found.add(DEFAULT)
        old, new = (document.value(*RUNTIMES) for document in (before, after))
        old, new = (table if isinstance(table, dict) else {} for table in (old, new))
        found.update((*RUNTIMES, name) for name in {**old, **new} if old.get(name) != new.get(name))
    return found
