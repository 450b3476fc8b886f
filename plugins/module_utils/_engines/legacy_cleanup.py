# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove what earlier NVIDIA tools wrote into the files of engines (`purge_legacy`)."""

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document, toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import plan as docker_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    KeyPath = t.Tuple[str, ...]


Doc = t.TypeVar("Doc", toml_document.TomlDocument, json_document.JsonDocument)

# The kinds of leftovers.
DROP_IN, IMPORT, RUNTIME, HOOK = "drop-in", "import", "runtime", "hook"


class Leftover(t.NamedTuple):
    """Something that is removed. ``path`` is the file that contains it, ``reason`` a sentence for the user."""

    path: str
    kind: str
    reason: str


class LegacyScan:
    """What is removed from the files of one engine.

    - ``wanted``: runtimes that this run registers anyway.
    - ``keeps_hooks``: this run writes a hook itself.
    - ``removal``: all runtimes of NVIDIA's are removed, even if their programs exist.
    - ``stays``: warnings about files and entries that resemble leftovers but are kept.
    - ``after``: the remaining content of each changed file, by its path without links.
    - ``originals``: the content that replaces the recorded original of each file.
    - ``read``: those changed files that the engine reads.
    - ``forgotten``: files of which only the record is removed.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        context: engines_base.Context,
        wanted: t.Collection[str],
        keeps_hooks: bool,
        removal: bool,
    ) -> None:
        self.host = host
        self.context = context
        self.wanted = wanted
        self.keeps_hooks = keeps_hooks
        self.removal = removal
        self.leftovers: list[Leftover] = []
        self.stays: list[str] = []
        self.after: dict[str, bytes | None] = {}
        self.originals: dict[str, bytes | None] = {}
        self.read: set[str] = set()
        self.forgotten: list[str] = []

    # -- whole files ---------------------------------------------------------------------------------------------

    def candidate(self, path: str) -> bytes | None:
        """Return the content of a file that may be removed as a whole.

        Returns None if there is no file, or if it belongs to this collection or is no regular file.
        """
        if not self.host.lexists(path):
            return None
        if os.path.islink(self.host.real_path(path, last=False)):
            self.stays.append(f"{path} is a link, which NVIDIA's tools do not make, and stays.")
            return None
        try:
            content = self.context.files.read(path)
        except errors.NvidiaError as error:
            self.stays.append(f"{path} stays. {error}")
            return None
        return None if content is None else self._of_others(path, content)

    def _of_others(self, path: str, content: bytes) -> bytes | None:
        """Return the part of the file that this collection did not write: all of it, or its original content.

        Returns None for a file that this collection created.
        """
        if content.startswith((toml_plan.HEADER, containerd_plan.SNAPSHOT_HEADER)):
            return None
        real = self.context.files.resolve(path)
        records = [
            record for record in core_records.load_readable_records(self.host) if record.path == real and record.written
        ]
        last = [record for record in records if record.written[-1] == core_records.digest(content)]
        return last[0].original if last else content

    def drop_in(
        self, path: str, look: t.Callable[[toml_document.TomlDocument], nvidia_files.DropIn | None]
    ) -> nvidia_files.DropIn | None:
        """Return what the drop-in at ``path`` contains if only the tool wrote it.

        Returns None otherwise. A warning then says why the file is kept.
        """
        content = self.candidate(path)
        if content is None:
            return None
        try:
            found = look(toml_document.TomlDocument.from_bytes(path, content))
        except errors.ConfigurationError as error:
            self.stays.append(f"{path} stays, for it cannot be judged. {error}")
            return None
        # The tool writes no comments, so a person edited the file.
        why = "holds comments" if b"#" in content else ""
        if found is None:
            why = "holds no runtime of NVIDIA's"
        elif found.foreign:
            why = f"also holds {core_text.listed(found.foreign)}, which {self.context.path} does not have"
        if why:
            self.stays.append(f"{path} {why}, so it is not NVIDIA's tool's alone and stays. Look at it, and remove it.")
            return None
        return found

    def remove(self, path: str, kind: str, reason: str) -> None:
        """Plan the removal of the whole file ``path``, and add it to the leftovers."""
        real = self.context.files.resolve(path)
        self.after[real] = self.originals[real] = None
        self.leftovers.append(Leftover(path, kind, reason))

    def forget(self, path: str) -> None:
        """Drop the record of a hook that this collection removed or replaced, so that it is not restored later."""
        real = self.context.files.resolve(path)
        record = self.context.files.record(real)
        if (
            record is None
            or not nvidia_files.is_hook_record(record)
            or not nvidia_files.is_nvidia_hook(record.original or b"")
        ):
            return
        with contextlib.suppress(errors.NvidiaError):
            self.after[real] = self.context.files.read(real)
            self.originals[real] = None
            self.forgotten.append(real)
            reason = f"{path} was NVIDIA's hook until this collection took it away, and does not come back."
            self.leftovers.append(Leftover(path, HOOK, reason))

    # -- parts of the main file ----------------------------------------------------------------------------------

    def change(self, document: Doc, leftover: Leftover, change: t.Callable[[Doc], Doc]) -> Doc:
        """Return the main file's ``document`` after ``change``, unless that would change more than the leftover."""
        try:
            changed = change(document)
        except errors.ConfigurationError as error:
            self.stays.append(f"{leftover.reason} It stays: {error}")
            return document
        if changed is document:
            return document
        path = self.context.path
        self.leftovers.append(leftover)
        self.after[path] = changed.to_bytes()
        self.originals[path] = self._changed_original(document, change)
        self.read.add(path)
        return changed

    def _changed_original(self, document: Doc, change: t.Callable[[Doc], Doc]) -> bytes | None:
        """Return the recorded original of the main file after the same change."""
        path, record = self.context.path, self.context.record
        if record is None:
            return self.after[path]
        original = self.originals.get(path, record.original)
        try:
            former = None if original is None else document.from_bytes(f"{path} as recorded", original)
            return None if former is None else change(former).to_bytes()
        except errors.ConfigurationError:
            return original

    def is_recorded(self, path: KeyPath) -> bool:
        """Return whether this collection wrote anything at ``path`` of the main file or below it."""
        record = self.context.record
        return record is not None and any(key[: len(path)] == path for key in record.keys or {})

    def is_dead(self, name: str, program: t.Any) -> bool:
        """Return whether a runtime is NVIDIA's, is not requested now, and is not needed by any container."""
        if not engines_base.is_nvidia_program(program) or name in self.wanted:
            return False
        return self.removal or name == nvidia_files.EXPERIMENTAL or self.host.find_executable([program]) is None

    def reason(self, name: str, program: str) -> str:
        """Return why a runtime is removed."""
        why = "which is not there"
        if name == nvidia_files.EXPERIMENTAL:
            why = "which the toolkit has had no program for since 1.14"
        elif self.host.find_executable([program]) is not None:
            why = "and this collection did not"
        return f"{self.context.path} registers {name} with {program}, {why}."

    def give_up(self, why: str) -> None:
        """Keep the leftovers in the files that the engine reads, with ``why`` as a warning."""
        self.stays.append(why)
        for path in self.read:
            del self.after[path], self.originals[path]
        gone = self.read
        self.leftovers = [one for one in self.leftovers if self.context.files.resolve(one.path) not in gone]
        self.read = set()


# -- containerd ------------------------------------------------------------------------------------------------------


def containerd(sweep: LegacyScan) -> None:
    """Scan the files of containerd.

    Raises NvidiaError if they cannot be read.
    """
    before = containerd_config.ContainerdFiles.of(sweep.context)
    imported = {file.path for file in before.files[1:]}
    for path in (nvidia_files.STRAY_CONTAINERD, nvidia_files.CONTAINERD_DROP_IN):
        found = sweep.drop_in(path, lambda document: nvidia_files.containerd_drop_in(document, before.main))
        if found is not None:
            real = sweep.context.files.resolve(path)
            changes = (
                f" Of the copy in it, {core_text.listed(found.drifted)} will be as in the main file."
                if found.drifted
                else ""
            )
            reason = f"{path} holds only what NVIDIA's tool wrote ({core_text.listed(found.runtimes)}).{changes}"
            sweep.remove(path, DROP_IN, reason)
            sweep.read.update({real} & imported)
    main = _without_imports(sweep, before)
    for root in dict.fromkeys(containerd_config.CRI_TABLE.values()):
        tables = main.value(*root, *containerd_config.RUNTIMES)
        for name, entry in tables.items() if isinstance(tables, dict) else ():
            program = containerd_config.program_of(entry)
            if sweep.is_dead(name, program) and not sweep.is_recorded((*root, *containerd_config.RUNTIMES, name)):
                reason = sweep.reason(name, program)
                leftover = Leftover(sweep.context.path, RUNTIME, reason)
                main = sweep.change(
                    main,
                    leftover,
                    _without_table((*root, *containerd_config.RUNTIMES, name), root + containerd_config.DEFAULT),
                )
    overlay: dict[str, toml_document.TomlDocument | None] = {
        path: None for path, text in sweep.after.items() if text is None
    }
    after = containerd_config.ContainerdFiles.of(
        sweep.context, {**overlay, before.main.path: main} if sweep.after else {}
    )
    lost = [name for name in after.missing if name not in before.missing]
    if sweep.after and (lost or (_lacks_default(after) and not _lacks_default(before))):
        why = f"imports name {core_text.listed(lost)}" if lost else "no default runtime would be left"
        sweep.give_up(f"Leftovers in files that containerd reads stay, for {why}. Correct that, then run this again.")


def _without_imports(sweep: LegacyScan, before: containerd_config.ContainerdFiles) -> toml_document.TomlDocument:
    """Return the main file without entries of ``imports`` that name removed files.

    A pattern is kept: an administrator wrote it, and containerd accepts a pattern that matches nothing.
    """
    main, path = before.main, sweep.context.path
    record = sweep.context.record
    ours = ((record.keys or {}).get(containerd_config.IMPORTS) or []) if record is not None else []
    for entry in list(main.value(*containerd_config.IMPORTS) or []):
        if "*" in entry:
            continue
        pattern = os.path.normpath(os.path.join(os.path.dirname(path), entry))
        means = {sweep.context.files.resolve(name) for name in before.expand(pattern)}
        if means and means <= {real for real, text in sweep.after.items() if text is None} and entry not in ours:
            reason = f"{path} imports {entry}, which is a leftover."
            main = sweep.change(main, Leftover(path, IMPORT, reason), _without_import(entry))
    return main


def _without_import(entry: str) -> t.Callable[[toml_document.TomlDocument], toml_document.TomlDocument]:
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


def _without_table(
    path: KeyPath, default: KeyPath
) -> t.Callable[[toml_document.TomlDocument], toml_document.TomlDocument]:
    """Return a change that removes the runtime at ``path``, and a default that names it."""

    def change(document: toml_document.TomlDocument) -> toml_document.TomlDocument:
        if document.has(*path) and document.value(*default) == path[-1]:
            document = document.delete(default, prune=True)
        return document.delete(path, prune=True)

    return change


def _lacks_default(files: containerd_config.ContainerdFiles) -> bool:
    """Return whether a CRI with these files would not work: before 2.1, runtimes in files hide the built-in one."""
    default, runtimes = files.default_runtime() or containerd_runtimes.BUILTIN_DEFAULT, files.runtimes()
    hidden = default != containerd_runtimes.BUILTIN_DEFAULT or (bool(runtimes) and not files.merges)
    return hidden and default not in runtimes and files.legacy_default() is None


# -- CRI-O, Podman, Docker -------------------------------------------------------------------------------------------


def crio(sweep: LegacyScan) -> None:
    """Scan the files of CRI-O.

    Raises NvidiaError if they cannot be read.
    """
    before = crio_config.CrioFiles.of(sweep.context)
    folder = sweep.context.files.resolve(os.path.dirname(nvidia_files.STRAY_CRIO))
    if before.directory != folder:
        found = sweep.drop_in(nvidia_files.STRAY_CRIO, nvidia_files.crio_drop_in)
        if found is not None:
            sweep.remove(
                nvidia_files.STRAY_CRIO,
                DROP_IN,
                f"{nvidia_files.STRAY_CRIO} is where NVIDIA's tool wrote what CRI-O never reads.",
            )
    path = f"{before.directory}/{crio_config.DROP_IN_NAME}"
    found = sweep.drop_in(path, nvidia_files.crio_drop_in) if before.directory else None
    if found is not None:
        sweep.remove(path, DROP_IN, f"{path} holds only what NVIDIA's tool wrote ({core_text.listed(found.runtimes)}).")
        sweep.read.add(path)
    hooks(sweep)
    main = before.files[0].document
    tables = main.value(*crio_config.RUNTIMES)
    for name, entry in tables.items() if isinstance(tables, dict) else ():
        program = entry.get(crio_config.PROGRAM) if isinstance(entry, dict) else None
        if sweep.is_dead(name, program) and not sweep.is_recorded((*crio_config.RUNTIMES, name)):
            leftover = Leftover(sweep.context.path, RUNTIME, sweep.reason(name, str(program)))
            main = sweep.change(main, leftover, _without_table((*crio_config.RUNTIMES, name), crio_config.DEFAULT))
    gone: dict[str, toml_document.TomlDocument | None] = {
        path: None for path, text in sweep.after.items() if text is None
    }
    after = crio_config.CrioFiles.of(sweep.context, {**gone, before.files[0].path: main})
    default, version = after.default_runtime(), sweep.context.version
    if default is not None and not after.defines(default, version) and before.defines(default, version):
        sweep.give_up(f"Leftovers in {sweep.context.path} stay, for {default}, the default runtime, is among them.")


def hooks(sweep: LegacyScan) -> None:
    """Scan for NVIDIA's hook, which CRI-O and Podman run in addition to CDI and the runtimes."""
    for path in (f"{folder}/{nvidia_files.HOOK_NAME}" for folder in nvidia_files.HOOK_FOLDERS):
        if sweep.keeps_hooks:
            continue
        content = sweep.candidate(path)
        if content is not None and nvidia_files.is_nvidia_hook(content):
            sweep.remove(path, HOOK, f"{path} runs NVIDIA's hook for every container of Podman and CRI-O.")
            continue
        sweep.forget(path)
        if content is not None:
            sweep.stays.append(f"{path} does not run NVIDIA's hook, in spite of its name, and stays.")


def docker(sweep: LegacyScan) -> None:
    """Scan the file of Docker.

    Raises NvidiaError if it cannot be read.
    """
    context = sweep.context
    document = json_document.JsonDocument.from_bytes(context.path, context.content or b"")
    flagged = context.unit.flag_values("--default-runtime") if context.unit is not None else []
    entries = document.value(docker_plan.RUNTIMES)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        program = entry.get("path") if isinstance(entry, dict) else None
        if not sweep.is_dead(name, program) or sweep.is_recorded((docker_plan.RUNTIMES, name)):
            continue
        reason = sweep.reason(name, str(program))
        if name in flagged:
            sweep.stays.append(f"{reason} It stays, for the unit names it as the default runtime. Remove that flag.")
            continue
        document = sweep.change(document, Leftover(context.path, RUNTIME, reason), _without_entry(name))


def _without_entry(name: str) -> t.Callable[[json_document.JsonDocument], json_document.JsonDocument]:
    """Return a change of Docker's file that removes the runtime ``name``, and a default that names it."""

    def change(document: json_document.JsonDocument) -> json_document.JsonDocument:
        if document.has(docker_plan.RUNTIMES, name) and document.value(docker_plan.DEFAULT) == name:
            document = document.delete((docker_plan.DEFAULT,))
        document = document.delete((docker_plan.RUNTIMES, name))
        return document.delete((docker_plan.RUNTIMES,)) if document.value(docker_plan.RUNTIMES) == {} else document

    return change


# By the key of an engine's records. Other flavors have files that this collection does not clean.
CLEANERS: dict[str, t.Callable[[LegacyScan], None]] = {
    "containerd": containerd,
    "crio": crio,
    "docker": docker,
    "podman": hooks,
}


_HOOK_MODE = "hook"


class FilteredFiles(t.NamedTuple):
    """The files of a host without leftovers.

    ``after`` has the content of the changed files and ``originals`` their recorded originals, by paths without links.
    """

    files: engines_base.Files
    after: t.Mapping[str, bytes | None]
    originals: t.Mapping[str, bytes | None]

    def read(self, path: str) -> bytes | None:
        real = self.resolve(path)
        return self.after[real] if real in self.after else self.files.read(path)

    def record(self, path: str) -> core_records.OriginalFile | None:
        record, real = self.files.record(path), self.resolve(path)
        if record is None or real not in self.originals:
            return record
        now, original = self.files.read(path), self.originals[real]
        undisturbed = now == record.original or core_records.digest(now) in record.written
        return record._replace(
            original=original,
            created=record.created or original is None,
            written=(*record.written, core_records.digest(self.after[real])) if undisturbed else record.written,
        )

    def resolve(self, path: str) -> str:
        return self.files.resolve(path)

    def glob(self, pattern: str) -> list[str]:
        return self._there(self.files.glob(pattern))

    def walk(self, folder: str) -> list[str]:
        return self._there(self.files.walk(folder))

    def _there(self, paths: t.Iterable[str]) -> list[str]:
        gone = {path for path, text in self.after.items() if text is None}
        return [path for path in paths if self.resolve(path) not in gone]


class LegacyCleanup:
    """What is removed for one engine, and plans that include the removal.

    ``leftovers`` is everything that is removed. ``stays`` are warnings about what resembles a leftover but is kept.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        engine: engines_base.Engine,
        context: engines_base.Context,
        request: engines_base.RuntimeRequest | None = None,
    ) -> None:
        """Scan the files of ``engine``. ``request`` is that of the plan, None for a removal.

        Raises NvidiaError.
        """
        wanted = () if request is None else tuple(request.runtimes())
        self._engine = engine
        self._context = context
        self._removal = request is None
        keeps_hooks = request is not None and request.config_mode == _HOOK_MODE
        self._sweep = LegacyScan(host, context, wanted, keeps_hooks, removal=self._removal)
        cleaner = CLEANERS.get(engine.key)
        if cleaner is not None:
            cleaner(self._sweep)
        else:
            said = f"purge_legacy is for the system's own engines, and does nothing for {engine.key}."
            self._sweep.stays.append(said)
        self.leftovers: tuple[Leftover, ...] = tuple(self._sweep.leftovers)
        self.stays: tuple[str, ...] = tuple(self._sweep.stays)

    def context(self) -> engines_base.Context:
        """Return the context of a plan, without the leftovers."""
        sweep, former = self._sweep, self._context
        if not sweep.after:
            return former
        files = FilteredFiles(former.files, sweep.after, sweep.originals)
        return former._replace(files=files, content=files.read(former.path), record=files.record(former.path))

    def plan(self, make: t.Callable[[engines_base.Context], engines_base.EnginePlan]) -> engines_base.EnginePlan:
        """Return the plan that ``make`` creates, including the removal of leftovers. Each file is in it once."""
        plan = make(self.context())
        planned = {file.path for file in plan.files}
        files = [self._with_leftovers(file) for file in plan.files]
        # These files come last: when they are removed, no other file may name them.
        alone = [path for path in self._sweep.after if path not in planned]
        files += [self._alone(path) for path in alone]
        if not self._removal:
            # A removal drops all records anyway.
            files += [self._record(path) for path in alone if path in self._sweep.forgotten]
        action = max(plan.action, self._action(plan.state))
        return plan._replace(files=tuple(files), action=action, warnings=(*plan.warnings, *self.stays))

    def _with_leftovers(self, file: core_plan.PlannedFile) -> core_plan.PlannedFile:
        if file.path not in self._sweep.after:
            return file
        purged = core_plan.Purged(self._sweep.originals[file.path])
        return file._replace(before=self._context.files.read(file.path), purged=purged)

    def _alone(self, path: str) -> core_plan.PlannedFile:
        files, sweep = self._context.files, self._sweep
        record = files.record(path)
        keys = {} if record is None or sweep.after[path] is None else dict(record.keys or {})
        return core_plan.PlannedFile(
            path, files.read(path), sweep.after[path], keys, purged=core_plan.Purged(sweep.originals[path])
        )

    def _record(self, path: str) -> core_plan.PlannedFile:
        """Return the planned removal of the record of ``path``, a file that itself does not change."""
        where = self._context.files.resolve(core_records.record_path(self._engine.key, path))
        return core_plan.PlannedFile(where, self._context.files.read(where), None)

    def _action(self, after: engines_base.ConfiguredState) -> engines_base.Action:
        """Return the action after which the daemon no longer uses the leftovers."""
        if not self._sweep.read:
            return engines_base.Action.NONE
        if not self._engine.reports_full_state:
            return engines_base.Action.RESTART
        before = self._engine.configured(self._context)
        default = before.default_runtime or self._engine.default_runtime
        return self._engine.required_action(engines_base.LiveState("", before.paths(), default, before.cdi), after)
