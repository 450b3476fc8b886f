# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove what earlier NVIDIA tools wrote into the files of engines (`purge_legacy`).

A scan computes the content of each file without leftovers. The engine then plans on these contents, as if another
program had removed the leftovers before. Each file is still written once. A file without a record is recorded with its
cleaned content as the original. The original in an existing record is cleaned too, so `state: absent` restores no
leftovers.
"""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, record_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document, toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import imports as containerd_imports
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import plan as docker_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    KeyPath = t.Tuple[str, ...]

    # Removes one leftover from a document.
    Change = t.Callable[[t.Any], t.Any]


# The kinds of leftovers.
DROP_IN, IMPORT, RUNTIME, HOOK = "drop-in", "import", "runtime", "hook"


class Leftover(t.NamedTuple):
    """An entry or a file that is removed. ``path`` is the file in question, ``reason`` a sentence for the user."""

    path: str
    kind: str
    reason: str


class CleanedFile(t.NamedTuple):
    """A file without leftovers.

    ``text`` is the remaining content, None if nothing remains. ``record`` is the record of the file, None if there is
    none. Its original has no leftovers either.
    """

    text: bytes | None
    record: core_records.OriginalFile | None


class FilesAfter(t.NamedTuple):
    """The files of an engine after the removal of leftovers. ``cleaned`` has paths without links."""

    files: engines_base.Files
    cleaned: t.Mapping[str, CleanedFile]

    def read(self, path: str) -> bytes | None:
        cleaned = self.cleaned.get(self.resolve(path))
        return self.files.read(path) if cleaned is None else cleaned.text

    def record(self, path: str) -> core_records.OriginalFile | None:
        cleaned = self.cleaned.get(self.resolve(path))
        return self.files.record(path) if cleaned is None else cleaned.record

    def resolve(self, path: str) -> str:
        return self.files.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return self._remaining(self.files.glob(pattern))

    def walk(self, folder: str) -> list[str]:
        return self._remaining(self.files.walk(folder))

    def _remaining(self, paths: list[str]) -> list[str]:
        removed = {path for path, cleaned in self.cleaned.items() if cleaned.text is None}
        return [path for path in paths if self.resolve(path) not in removed]


class LegacyCleanup:
    """What is removed from the files of one engine, and plans that include the removal.

    - ``requested``: runtimes that this run registers anyway.
    - ``writes_hook``: this run writes a hook itself.
    - ``removal``: all runtimes of NVIDIA's are removed, even if their programs exist.
    - ``leftovers``: everything that is removed.
    - ``warnings``: files and entries that resemble leftovers but are kept.
    - ``cleaned``: the changed files without leftovers, by their paths without links.
    - ``read_by_engine``: those changed files that the engine reads at its start. OCI hooks are not among them.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        engine: engines_base.Engine,
        context: engines_base.Context,
        request: engines_request.RuntimeRequest | None = None,
    ) -> None:
        """Scan the files of ``engine``. ``request`` is that of the plan, None for a removal.

        Raises NvidiaError.
        """
        self.host = host
        self.engine = engine
        self.context = context
        self.requested = () if request is None else tuple(request.runtimes())
        self.writes_hook = request is not None and request.config_mode == "hook"
        self.removal = request is None
        self.leftovers: list[Leftover] = []
        self.warnings: list[str] = []
        self.cleaned: dict[str, CleanedFile] = {}
        self.read_by_engine: set[str] = set()
        scan = SCANS.get(engine.key)
        if scan is not None:
            scan(self)
        else:
            self.warnings.append(
                f"{errors.option:purge_legacy} supports only the engines of the system and does nothing for"
                f" {engine.key}."
            )

    def cleaned_context(self) -> engines_base.Context:
        """Return the context of a plan without the leftovers that have been found."""
        if not self.cleaned:
            return self.context
        path, files = self.context.path, FilesAfter(self.context.files, self.cleaned)
        return self.context._replace(files=files, content=files.read(path), record=files.record(path))

    def _clean(self, path: str, text: bytes | None, original: bytes | None) -> None:
        """Plan the content ``text`` for the file ``path`` (links resolved), and ``original`` for its record, if any."""
        before, record = self.context.files.read(path), self.context.files.record(path)
        if record is not None:
            now = core_records.digest(before)
            is_own = before == record.original or now in record.written
            record = record._replace(
                original=original,
                created=record.created or original is None,
                # A run may be killed before it replaces ``before``.
                written=(*record.written, now, core_records.digest(text)) if is_own else record.written,
            )
        self.cleaned[path] = CleanedFile(text, record)

    # -- whole files ---------------------------------------------------------------------------------------------

    def foreign_content(self, path: str) -> bytes | None:
        """Return the content of a file that may be removed as a whole.

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
        """Return the part of the file that this collection did not write: all of it, or its original content.

        Returns None for a file that this collection created.
        """
        if content.startswith(toml_plan.HEADER):
            return None
        real = self.context.files.resolve(path)
        records = [
            record for record in core_records.load_readable_records(self.host) if record.path == real and record.written
        ]
        last = [record for record in records if record.written[-1] == core_records.digest(content)]
        return last[0].original if last else content

    def drop_in(
        self, path: str, parse: t.Callable[[toml_document.TomlDocument], nvidia_files.DropIn | None]
    ) -> nvidia_files.DropIn | None:
        """Return the content of the drop-in at ``path`` if only the tool wrote it.

        Returns None otherwise, and adds a warning that tells why the file is kept.
        """
        content = self.foreign_content(path)
        if content is None:
            return None
        try:
            found = parse(toml_document.TomlDocument.from_bytes(path, content))
        except errors.ConfigurationError as error:
            self.warnings.append(f"{path} was kept, because it cannot be parsed. {error}")
            return None
        # The tool writes no comments, so a person edited the file.
        cause = "contains comments" if b"#" in content else ""
        if found is None:
            cause = "contains no NVIDIA runtime"
        elif found.foreign:
            cause = f"also contains {core_text.listed(found.foreign)}, which {self.context.path} does not contain"
        if cause:
            self.warnings.append(f"{path} was kept, because it {cause}. Remove the file if it is not needed.")
            return None
        return found

    def remove(self, path: str, kind: str, reason: str) -> None:
        """Plan the removal of the whole file ``path``, and add it to the leftovers."""
        self._clean(self.context.files.resolve(path), None, None)
        self.leftovers.append(Leftover(path, kind, reason))

    def forget_hook(self, path: str) -> None:
        """Remove the record of a hook that this collection removed or replaced, so that it is not restored later."""
        real = self.context.files.resolve(path)
        record = self.context.files.record(real)
        if (
            record is None
            or not nvidia_files.is_hook_record(record)
            or not nvidia_files.is_nvidia_hook(record.original or b"")
        ):
            return
        with contextlib.suppress(errors.NvidiaError):
            self._clean(real, self.context.files.read(real), None)
            not_restored = f"{errors.option:state}: absent will not restore it."
            reason = f"{path} was NVIDIA's hook, which this collection removed. {not_restored}"
            self.leftovers.append(Leftover(path, HOOK, reason))

    # -- parts of the main file ----------------------------------------------------------------------------------

    def change(self, document: t.Any, leftover: Leftover, change: Change) -> t.Any:
        """Return the main file's ``document`` after ``change``, unless that would change more than the leftover."""
        try:
            changed = change(document)
        except errors.ConfigurationError as error:
            self.warnings.append(f"{leftover.reason} The entry was kept. {error}")
            return document
        if changed is document:
            return document
        path = self.context.path
        self.leftovers.append(leftover)
        self._clean(path, changed.to_bytes(), self._changed_original(document, change))
        self.read_by_engine.add(path)
        return changed

    def _changed_original(self, document: t.Any, change: Change) -> bytes | None:
        """Return the recorded original of the main file after ``change``, or as it is if that fails."""
        path = self.context.path
        cleaned = self.cleaned.get(path)
        record = self.context.record if cleaned is None else cleaned.record
        if record is None or record.original is None:
            return None
        try:
            original = document.from_bytes(f"The recorded original of {path}", record.original)
            text: bytes = change(original).to_bytes()
        except errors.ConfigurationError:
            return record.original
        return text

    def is_recorded(self, path: KeyPath) -> bool:
        """Return whether this collection wrote anything at ``path`` of the main file or below it."""
        record = self.context.record
        return record is not None and any(key[: len(path)] == path for key in record.keys or {})

    def is_leftover(self, name: str, program: t.Any) -> bool:
        """Return whether a runtime is NVIDIA's, not requested, and (unless ``removal``) unusable by containers."""
        if not engines_base.is_nvidia_program(program) or name in self.requested:
            return False
        return self.removal or name == nvidia_files.EXPERIMENTAL or self.host.find_executable([program]) is None

    def reason(self, name: str, program: str) -> str:
        """Return why a runtime is removed."""
        cause = "That program does not exist."
        if name == nvidia_files.EXPERIMENTAL:
            cause = "The toolkit has no such program since version 1.14."
        elif self.host.find_executable([program]) is not None:
            cause = "This collection did not register it."
        return f"{self.context.path} registers the runtime {name} with {program}. {cause}"

    def keep_files_read_by_engine(self, warning: str) -> None:
        """Keep the leftovers in the files that the engine reads, and add ``warning``."""
        self.warnings.append(warning)
        kept, self.read_by_engine = self.read_by_engine, set()
        for path in kept:
            del self.cleaned[path]
        self.leftovers = [one for one in self.leftovers if self.context.files.resolve(one.path) not in kept]

    # -- plans -------------------------------------------------------------------------------------------------------

    def plan(self, make: t.Callable[[engines_base.Context], engines_base.EnginePlan]) -> engines_base.EnginePlan:
        """Return the plan that ``make`` creates, including the removal of leftovers. Each file is in it once."""
        plan = make(self.cleaned_context())
        planned = {file.path for file in plan.files}
        # These files come last: when they are removed, no other file may name them.
        others = [path for path in self.cleaned if path not in planned]
        files = [self._with_leftovers(file) for file in (*plan.files, *map(self._unplanned, others))]
        if not self.removal:
            # A removal removes all records anyway.
            files += [self._planned_record(file.path) for file in files if file.path in others and not file.changed]
        action = max(plan.action, self._action(plan.state))
        return plan._replace(files=tuple(files), action=action, warnings=(*plan.warnings, *self.warnings))

    def _unplanned(self, path: str) -> core_plan.PlannedFile:
        """Return a cleaned file that the engine does not change further."""
        text, record = self.cleaned[path]
        keys = {} if record is None or text is None else dict(record.keys or {})
        return core_plan.PlannedFile(path, text, text, keys)

    def _with_leftovers(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        """Return the planned file with its present content, and with the record of its cleaned content."""
        cleaned = self.cleaned.get(file.path)
        if cleaned is None:
            return file
        before, record = self.context.files.read(file.path), cleaned.record
        if record is None:
            record = record_store.new_record(self.host, self.engine.key, file.path, before)._replace(
                original=cleaned.text,
                created=cleaned.text is None,
                written=(core_records.digest(before),),
                main=self.context.path,
            )
        return file._replace(before=before, record=record)

    def _planned_record(self, path: str) -> core_plan.PlannedFile:
        """Return the planned removal of the record of ``path``, a file that itself does not change."""
        where = self.context.files.resolve(core_records.record_path(self.engine.key, path))
        return core_plan.PlannedFile(where, self.context.files.read(where), None)

    def _action(self, after: engines_base.ConfiguredState) -> engines_base.Action:
        """Return the action after which the daemon no longer uses the leftovers."""
        if not self.read_by_engine:
            return engines_base.Action.NONE
        if not self.engine.reports_full_state:
            return engines_base.Action.RESTART
        before = self.engine.configured(self.context)
        default = before.default_runtime or self.engine.default_runtime
        return self.engine.required_action(engines_base.LiveState("", before.paths(), default, before.cdi), after)


# -- containerd ------------------------------------------------------------------------------------------------------


def containerd(scan: LegacyCleanup) -> None:
    """Scan the files of containerd."""
    before = containerd_config.ContainerdFiles.of(scan.context)
    imported = {file.path for file in before.files[1:]}
    for path in (nvidia_files.STRAY_CONTAINERD, nvidia_files.CONTAINERD_DROP_IN):
        found = scan.drop_in(path, lambda document: nvidia_files.containerd_drop_in(document, before.main))
        if found is not None:
            reason = f"{path} contains only entries of NVIDIA's tool ({core_text.listed(found.runtimes)})."
            if found.drifted:
                reason += (
                    f" The main file has other values of {core_text.listed(found.drifted)}, which then take effect."
                )
            scan.remove(path, DROP_IN, reason)
            scan.read_by_engine.update({scan.context.files.resolve(path)} & imported)
    main = _without_imports(scan, before)
    for root in dict.fromkeys(containerd_config.CRI_TABLE.values()):
        table, default = root + containerd_config.RUNTIMES, root + containerd_config.DEFAULT
        main = without_runtimes(scan, main, table, default, containerd_config.program_of)
    if not scan.cleaned:
        return
    after = containerd_config.ContainerdFiles.of(scan.cleaned_context())
    lost = [name for name in after.missing if name not in before.missing]
    # A default runtime that this run registers is not lost.
    is_lost = _lacks_default(after) and after.default_runtime() not in scan.requested
    if lost or (is_lost and not _lacks_default(before)):
        cause = (
            f"imports would name the removed {core_text.listed(lost)}" if lost else "no default runtime would be left"
        )
        scan.keep_files_read_by_engine(
            f"Leftovers in the files of containerd were kept, because {cause}. Correct {scan.context.path}, then run"
            " this task again."
        )


def _without_imports(scan: LegacyCleanup, before: containerd_config.ContainerdFiles) -> toml_document.TomlDocument:
    """Return the main file without entries of ``imports`` that name removed files.

    A pattern is kept: an administrator wrote it, and containerd accepts a pattern that matches nothing.
    """
    main, path = before.main, scan.context.path
    own = containerd_imports.recorded_imports(scan.context.record)
    removed = {path for path, cleaned in scan.cleaned.items() if cleaned.text is None}
    for entry in list(main.value(*containerd_config.IMPORTS) or []):
        if "*" in entry:
            continue
        pattern = os.path.normpath(os.path.join(os.path.dirname(path), entry))
        imported = {scan.context.files.resolve(name) for name in before.expand(pattern)}
        if imported and imported <= removed and entry not in own:
            reason = f"{path} imports {entry}, which is a leftover."
            main = scan.change(main, Leftover(path, IMPORT, reason), _import_remover(entry))
    return main


def _import_remover(entry: str) -> t.Callable[[toml_document.TomlDocument], toml_document.TomlDocument]:
    def change(document: toml_document.TomlDocument) -> toml_document.TomlDocument:
        entries = document.value(*containerd_config.IMPORTS)
        if not isinstance(entries, list) or entry not in entries:
            return document
        left = [other for other in entries if other != entry]
        without = document.delete(containerd_config.IMPORTS)
        # An empty array is removed, unless it contains comments.
        keep = bool(left) or without.text.count("#") != document.text.count("#")
        return document.set(containerd_config.IMPORTS, left) if keep else without

    return change


def _lacks_default(files: containerd_config.ContainerdFiles) -> bool:
    """Return whether containerd's CRI plugin would not start, because its default runtime is not defined.

    If containerd does not merge tables (``merges``), runtimes in files replace the built-in runtime.
    """
    default, runtimes = files.default_runtime() or containerd_runtimes.BUILTIN_DEFAULT, files.runtimes()
    hidden = default != containerd_runtimes.BUILTIN_DEFAULT or (bool(runtimes) and not files.merges)
    return hidden and default not in runtimes and files.legacy_default() is None


# -- CRI-O, Podman, Docker -------------------------------------------------------------------------------------------


def crio(scan: LegacyCleanup) -> None:
    """Scan the files of CRI-O."""
    before = crio_config.CrioFiles.of(scan.context)
    folder = scan.context.files.resolve(os.path.dirname(nvidia_files.STRAY_CRIO))
    if before.directory != folder:
        found = scan.drop_in(nvidia_files.STRAY_CRIO, nvidia_files.crio_drop_in)
        if found is not None:
            reason = f"NVIDIA's tool wrote {nvidia_files.STRAY_CRIO} in a directory that CRI-O does not read."
            scan.remove(nvidia_files.STRAY_CRIO, DROP_IN, reason)
    path = f"{before.directory}/{crio_config.DROP_IN_NAME}"
    found = scan.drop_in(path, nvidia_files.crio_drop_in) if before.directory else None
    if found is not None:
        reason = f"{path} contains only entries of NVIDIA's tool ({core_text.listed(found.runtimes)})."
        scan.remove(path, DROP_IN, reason)
        scan.read_by_engine.add(path)
    hooks(scan)
    without_runtimes(
        scan, before.files[0].document, crio_config.RUNTIMES, crio_config.DEFAULT, _value_of(crio_config.PROGRAM)
    )
    after = crio_config.CrioFiles.of(scan.cleaned_context())
    default, version = after.default_runtime(), scan.context.version
    if default is None or default in scan.requested:
        return
    if not after.defines(default, version) and before.defines(default, version):
        scan.keep_files_read_by_engine(
            f"Leftovers in the files of CRI-O were kept, because the default runtime {default} is one of them. Set"
            " another default runtime, then run this task again."
        )


def hooks(scan: LegacyCleanup) -> None:
    """Scan for NVIDIA's hook, which CRI-O and Podman run in addition to CDI and the runtimes."""
    for path in nvidia_files.HOOK_PATHS:
        if scan.writes_hook:
            continue
        content = scan.foreign_content(path)
        if content is not None and nvidia_files.is_nvidia_hook(content):
            scan.remove(path, HOOK, f"{path} runs NVIDIA's hook for every container of Podman and CRI-O.")
            continue
        scan.forget_hook(path)
        if content is not None:
            scan.warnings.append(f"{path} was kept, because it does not run NVIDIA's hook.")


def docker(scan: LegacyCleanup) -> None:
    """Scan the file of Docker."""
    context = scan.context
    document = json_document.JsonDocument.from_bytes(context.path, context.content or b"")
    flagged = context.unit.flag_values("--default-runtime") if context.unit is not None else []
    table, default = (docker_plan.RUNTIMES,), (docker_plan.DEFAULT,)
    without_runtimes(scan, document, table, default, _value_of("path"), flagged=flagged)


# -- runtimes --------------------------------------------------------------------------------------------------------


def without_runtimes(
    scan: LegacyCleanup,
    document: t.Any,
    table: KeyPath,
    default: KeyPath,
    program_of: t.Callable[[t.Any], t.Any],
    *,
    flagged: t.Collection[str] = (),
) -> t.Any:
    """Return the main file without the leftovers among the runtimes in ``table``, and without a default that is one.

    ``flagged`` are runtimes that the unit's flags name.
    """
    entries = document.value(*table)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        program = program_of(entry)
        if not scan.is_leftover(name, program) or scan.is_recorded((*table, name)):
            continue
        reason = scan.reason(name, program)
        if name in flagged:
            scan.warnings.append(
                f"{reason} It was kept, because the unit sets it as the default runtime. Remove the flag from the unit."
            )
            continue
        leftover = Leftover(scan.context.path, RUNTIME, reason)
        document = scan.change(document, leftover, _runtime_remover((*table, name), default))
    return document


def _value_of(key: str) -> t.Callable[[t.Any], t.Any]:
    return lambda entry: entry.get(key) if isinstance(entry, dict) else None


def _runtime_remover(path: KeyPath, default: KeyPath) -> Change:
    """Return a change that removes the runtime at ``path``, and a default that names it."""

    def change(document: t.Any) -> t.Any:
        if document.has(*path) and document.value(*default) == path[-1]:
            document = _delete(document, default)
        return _delete(document, path)

    return change


def _delete(document: t.Any, path: KeyPath) -> t.Any:
    """Return the document without the entry at ``path``, and without the tables around it that become empty."""
    if isinstance(document, toml_document.TomlDocument):
        return document.delete(path, prune=True)
    document = document.delete(path)
    return _delete(document, path[:-1]) if path[1:] and document.value(*path[:-1]) == {} else document


# By the name of the engine in records. Other flavors have files that this collection does not clean.
SCANS: dict[str, t.Callable[[LegacyCleanup], None]] = {
    "containerd": containerd,
    "crio": crio,
    "docker": docker,
    "podman": hooks,
}
