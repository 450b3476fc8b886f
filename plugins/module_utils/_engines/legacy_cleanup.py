# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove files that NVIDIA's tools wrote for an engine (`purge_legacy`): drop-ins and OCI hooks.

A file is removed as a whole, or it is kept with a warning. The engine plans as if the file did not exist. Its own
drop-in may have the same path, and then replaces it. The record of a replaced file has no original content, so
`state: absent` does not restore it. The backup of the run contains it.
"""

from __future__ import annotations

import functools
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The kinds of leftovers.
DROP_IN, HOOK = "drop-in", "hook"


class Leftover(t.NamedTuple):
    """A file that is removed. ``reason`` is a sentence for the user."""

    path: str
    kind: str
    reason: str


class FilesWithout(t.NamedTuple):
    """The files of an engine without those in ``removed``, which are paths without links."""

    files: engines_base.Files
    removed: t.Collection[str]

    def read(self, path: str) -> bytes | None:
        return None if self.resolve(path) in self.removed else self.files.read(path)

    def record(self, path: str) -> core_records.OriginalFile | None:
        record = self.files.record(path)
        if record is None or self.resolve(path) not in self.removed:
            return record
        return record._replace(original=None, created=True)

    def resolve(self, path: str) -> str:
        return self.files.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return [path for path in self.files.glob(pattern) if self.resolve(path) not in self.removed]

    def walk(self, folder: str) -> list[str]:
        return [path for path in self.files.walk(folder) if self.resolve(path) not in self.removed]


class LegacyCleanup:
    """What is removed of the files of one engine, and plans that include the removal.

    - ``writes_hook``: this run writes a hook itself.
    - ``leftovers``: everything that is removed.
    - ``warnings``: similar files that are kept.
    - ``removed``: the paths of the removed files, without links.
    - ``read_by_engine``: whether the engine reads one of them at its start. It does not read OCI hooks then.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        engine: engines_base.Engine,
        context: engines_base.Context,
        request: engines_request.RuntimeRequest | None = None,
    ) -> None:
        """Search the files of ``engine``. ``request`` is that of the plan, None for a removal.

        Raises NvidiaError.
        """
        self.host = host
        self.engine = engine
        self.context = context
        self.writes_hook = request is not None and request.config_mode == "hook"
        self.leftovers: list[Leftover] = []
        self.warnings: list[str] = []
        self.removed: list[str] = []
        self.read_by_engine = False
        scan = SCANS.get(engine.key)
        if scan is not None:
            scan(self)
        else:
            self.warnings.append(
                f"{errors.option:purge_legacy} supports only the engines of the system and does nothing for"
                f" {engine.key}."
            )

    # -- files ---------------------------------------------------------------------------------------------------

    def context_without(self, removed: t.Collection[str]) -> engines_base.Context:
        """Return the context of a plan without the files ``removed``."""
        return self.context._replace(files=FilesWithout(self.context.files, removed))

    def foreign_content(self, path: str) -> bytes | None:
        """Return the content of a file that may be removed.

        Returns None if there is no file, or if it belongs to this collection or is no regular file.
        """
        if not self.host.lexists(path):
            return None
        if os.path.islink(self.host.real_path(path, last=False)):
            self.warnings.append(f"{path} was kept, because it is a symbolic link, which NVIDIA's tools do not create.")
            return None
        try:
            content = self.context.files.read(path)
        except errors.NvidiaError as error:
            self.warnings.append(f"{path} was kept. {error}")
            return None
        return None if content is None else self._foreign_part(path, content)

    def _foreign_part(self, path: str, content: bytes) -> bytes | None:
        """Return what was in the file before this collection wrote to it, None if this collection created it."""
        if content.startswith(toml_plan.HEADER):
            return None
        real = self.context.files.resolve(path)
        records = [
            record for record in core_records.load_readable_records(self.host) if record.path == real and record.written
        ]
        last = [record for record in records if record.written[-1] == core_records.digest(content)]
        return last[0].original if last else content

    def remove_drop_in(
        self, path: str, parse: t.Callable[[toml_document.TomlDocument], nvidia_files.DropIn | None], reason: str
    ) -> bool:
        """Plan the removal of the drop-in at ``path``, and return whether it is removed.

        Adds a warning for a file that is kept, because it contains more than the tool's own entries and copies of
        settings that also take effect without the file.
        """
        content = self.foreign_content(path)
        if content is None:
            return False
        try:
            document = toml_document.TomlDocument.from_bytes(path, content)
            found = parse(document)
        except errors.ConfigurationError as error:
            self.warnings.append(f"{path} was kept, because it cannot be parsed. {error}")
            return False
        cause = _reason_to_keep(document, found)
        if found is None or cause:
            self.warnings.append(f"{path} was kept, because {cause}")
            return False
        self.remove(path, DROP_IN, f"{reason} It registers {core_text.listed(found.runtimes)}.")
        return True

    def remove(self, path: str, kind: str, reason: str) -> None:
        """Plan the removal of the file ``path``, and add it to the leftovers."""
        self.removed.append(self.context.files.resolve(path))
        self.leftovers.append(Leftover(path, kind, reason))

    # -- plans ---------------------------------------------------------------------------------------------------

    def plan(self, make: t.Callable[[engines_base.Context], engines_base.EnginePlan]) -> engines_base.EnginePlan:
        """Return the plan that ``make`` creates, including the removal of leftovers. Each file is in it once."""
        plan = make(self.context_without(self.removed)) if self.removed else make(self.context)
        planned = {file.path for file in plan.files}
        # These files come last: when they are removed, no other file may name them.
        others = [core_plan.PlannedFile(path, None, None) for path in self.removed if path not in planned]
        files = tuple(self._replacing(file) if file.path in self.removed else file for file in (*plan.files, *others))
        # containerd and CRI-O read their drop-ins only when they start.
        action = engines_base.Action.RESTART if self.read_by_engine else engines_base.Action.NONE
        return plan._replace(files=files, action=max(plan.action, action), warnings=(*plan.warnings, *self.warnings))

    def _replacing(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        """Return the planned file with its present content, and with a record that does not restore this content."""
        before = self.context.files.read(file.path)
        record = self.context.files.record(file.path) or record_store.new_record(
            self.host, self.engine.key, file.path, before
        )
        return file._replace(
            before=before,
            record=record._replace(
                original=None,
                created=True,
                # A run may be killed before it replaces ``before``.
                written=(core_records.digest(before),),
                exact=True,
                main=self.context.path,
            ),
        )


def _reason_to_keep(document: toml_document.TomlDocument, found: nvidia_files.DropIn | None) -> str:
    """Return why a drop-in is kept, and a step that helps; empty if it contains only what the tool wrote."""
    if found is None:
        return "it contains no NVIDIA runtime. Remove the file if it is not needed."
    comment = document.text.find("#")
    if comment >= 0:
        # The tool writes no comments, so a person edited the file.
        line, _column = core_text.position(document.text, comment)
        return f"it contains a comment (line {line}). Remove the file if it is not needed."
    settings = [
        f"{nvidia_files.short_name(path)} (line {document.line(path)})" for path in (*found.foreign, *found.drifted)
    ]
    if settings:
        return (
            f"it also sets {core_text.listed(settings)}. Without the file, these settings would be lost or have other"
            " values. Move what you need to the main file and remove it here, then run this task again."
        )
    return ""


# -- engines ---------------------------------------------------------------------------------------------------------


def containerd(scan: LegacyCleanup) -> None:
    """Search the files of containerd."""
    before = containerd_config.ContainerdFiles.of(scan.context)
    imported = {file.path for file in before.files[1:]}
    for path in (nvidia_files.STRAY_CONTAINERD, nvidia_files.CONTAINERD_DROP_IN):
        real = scan.context.files.resolve(path)
        without = containerd_config.ContainerdFiles.of(scan.context_without([*scan.removed, real]))
        if real in imported and len(without.missing) > len(before.missing):
            scan.warnings.append(
                f"{path} was kept, because a file imports it by its name and containerd would not start without it."
                " Replace the name in imports by a pattern (*), then run this task again."
            )
            continue
        parse = functools.partial(_parse_containerd, others=_effective_documents(without), has_effect=real in imported)
        is_removed = scan.remove_drop_in(path, parse, f"NVIDIA's tool wrote {path}.")
        scan.read_by_engine |= is_removed and real in imported


def _parse_containerd(
    document: toml_document.TomlDocument, others: t.Sequence[toml_document.TomlDocument], has_effect: bool
) -> nvidia_files.DropIn | None:
    found = nvidia_files.containerd_drop_in(document, others)
    # Without a file that containerd does not read, no setting gets another value.
    return found if found is None or has_effect else found._replace(drifted=())


def _effective_documents(files: containerd_config.ContainerdFiles) -> list[toml_document.TomlDocument]:
    """Return the documents whose CRI settings have effect, the one with precedence first."""
    if files.merges:
        return [file.document for file in reversed(files.files)]
    # Only the last table has effect.
    return [file.document for file, _table in files.cri_tables()[-1:]]


def crio(scan: LegacyCleanup) -> None:
    """Search the files of CRI-O."""
    before = crio_config.CrioFiles.of(scan.context)
    stray = nvidia_files.STRAY_CRIO
    if before.directory != scan.context.files.resolve(os.path.dirname(stray)):
        reason = f"NVIDIA's tool wrote {stray} in a directory that CRI-O does not read."
        scan.remove_drop_in(stray, nvidia_files.crio_drop_in, reason)
    if before.directory:
        path = f"{before.directory}/{crio_config.DROP_IN_NAME}"
        scan.read_by_engine = scan.remove_drop_in(path, nvidia_files.crio_drop_in, f"NVIDIA's tool wrote {path}.")
    hooks(scan)


def hooks(scan: LegacyCleanup) -> None:
    """Search for NVIDIA's hook, which CRI-O and Podman run in addition to CDI and the runtimes."""
    for path in () if scan.writes_hook else nvidia_files.HOOK_PATHS:
        content = scan.foreign_content(path)
        if content is not None and nvidia_files.is_nvidia_hook(content):
            scan.remove(path, HOOK, f"{path} runs NVIDIA's hook for every container of Podman and CRI-O.")
        elif content is not None:
            scan.warnings.append(f"{path} was kept, because it does not run NVIDIA's hook.")


def nothing(_scan: LegacyCleanup) -> None:
    """Search nothing: NVIDIA's tools write only to the main file of Docker, which the cleanup does not edit."""


# By the name of the engine in records. Other flavors have files that this collection does not clean.
SCANS: dict[str, t.Callable[[LegacyCleanup], None]] = {
    "containerd": containerd,
    "crio": crio,
    "docker": nothing,
    "podman": hooks,
}
