# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what earlier versions of NVIDIA's tools have left in the files of an engine: files that
# hold nothing else, and runtimes in the main file that have no program any more.  What others may have written stays,
# and is told.

from __future__ import annotations

import contextlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import (
    CRI_TABLE,
    DEFAULT,
    RUNTIMES,
    ContainerdFiles,
    program_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_imports import IMPORTS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import SNAPSHOT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import BUILTIN_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import DEFAULT as CRIO_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import DROP_IN_NAME, CrioFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import PROGRAM as CRIO_PROGRAM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import RUNTIMES as CRIO_RUNTIMES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import DEFAULT as DOCKER_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_plan import RUNTIMES as DOCKER_RUNTIMES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    GpufleetError,
    few,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._oci_hook import (
    HOOK_FOLDERS,
    HOOK_NAME,
    is_hook_record,
    is_nvidia_hook,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners_vendor import (
    CONTAINERD_DROP_IN,
    EXPERIMENTAL,
    STRAY_CONTAINERD,
    STRAY_CRIO,
    containerd_drop_in,
    crio_drop_in,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest, load_readable_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import OPENING

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._owners_vendor import DropIn

    KeyPath = t.Tuple[str, ...]

Doc = t.TypeVar("Doc", TomlDocument, JsonDocument)

# The kinds of leftovers.
DROP_IN, IMPORT, RUNTIME, HOOK = "drop-in", "import", "runtime", "hook"


class Leftover(t.NamedTuple):
    """Something that goes; ``path`` is the file that it is in, ``reason`` a sentence."""

    path: str
    kind: str
    reason: str


class Sweep:
    """What goes from the files of one engine: ``after`` is what is left of each, ``stays`` says what does not go.

    ``wanted`` are runtimes that this run registers anyway, ``keeps_hooks``: it writes a hook itself.  With ``removal``
    all runtimes of NVIDIA go, whether their programs are there or not.  ``read`` are the files among them that the
    engine reads, ``forgotten`` those of which only the record goes.
    """

    def __init__(
        self, host: HostRoot, context: Context, wanted: t.Collection[str], keeps_hooks: bool, removal: bool
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
        """The content of a file that may go as a whole; None where there is none, or it is ours or not plain."""
        if not self.host.is_there(path):
            return None
        if os.path.islink(self.host.outer(path, last=False)):
            self.stays.append(f"{path} is a link, which NVIDIA's tools do not make, and stays.")
            return None
        try:
            content = self.context.files.read(path)
        except GpufleetError as error:
            self.stays.append(f"{path} stays. {error}")
            return None
        return None if content is None else self._of_others(path, content)

    def _of_others(self, path: str, content: bytes) -> bytes | None:
        """What others have left of the file: all of it, or what stood there before our entries."""
        if content.startswith((OPENING, SNAPSHOT)):
            return None
        real = self.context.files.resolve(path)
        records = [record for record in load_readable_records(self.host) if record.path == real and record.written]
        last = [record for record in records if record.written[-1] == digest(content)]
        return last[0].original if last else content

    def drop_in(self, path: str, look: t.Callable[[TomlDocument], DropIn | None]) -> DropIn | None:
        """What the file at ``path`` holds if that is the tool's alone; else a sentence says why it stays."""
        content = self.candidate(path)
        if content is None:
            return None
        try:
            found = look(TomlDocument.from_bytes(path, content))
        except ConfigurationError as error:
            self.stays.append(f"{path} stays, for it cannot be judged. {error}")
            return None
        # The tool writes no comments, so somebody else was here.
        why = "holds comments" if b"#" in content else ""
        if found is None:
            why = "holds no runtime of NVIDIA's"
        elif found.foreign:
            why = f"also holds {few(found.foreign)}, which {self.context.path} does not have"
        if why:
            self.stays.append(f"{path} {why}, so it is not NVIDIA's tool's alone and stays. Look at it, and remove it.")
            return None
        return found

    def remove(self, path: str, kind: str, reason: str) -> None:
        real = self.context.files.resolve(path)
        self.after[real] = self.originals[real] = None
        self.leftovers.append(Leftover(path, kind, reason))

    def forget(self, path: str) -> None:
        """What was recorded of a hook that this collection removed, or replaced: it must not come back."""
        real = self.context.files.resolve(path)
        record = self.context.files.record(real)
        if record is None or not is_hook_record(record) or not is_nvidia_hook(record.original or b""):
            return
        with contextlib.suppress(GpufleetError):
            self.after[real] = self.context.files.read(real)
            self.originals[real] = None
            self.forgotten.append(real)
            reason = f"{path} was NVIDIA's hook until this collection took it away, and does not come back."
            self.leftovers.append(Leftover(path, HOOK, reason))

    # -- parts of the main file ----------------------------------------------------------------------------------

    def change(self, document: Doc, leftover: Leftover, change: t.Callable[[Doc], Doc]) -> Doc:
        """The main file's ``document`` after ``change``, unless that would touch more than the leftover."""
        try:
            changed = change(document)
        except ConfigurationError as error:
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
        """What was recorded of the file from before us, after the same change."""
        path, record = self.context.path, self.context.record
        if record is None:
            return self.after[path]
        original = self.originals.get(path, record.original)
        try:
            former = None if original is None else document.from_bytes(f"{path} as recorded", original)
            return None if former is None else change(former).to_bytes()
        except ConfigurationError:
            return original

    def is_recorded(self, path: KeyPath) -> bool:
        """Whether anything at ``path`` of the main file, or below, was written by this collection."""
        record = self.context.record
        return record is not None and any(key[: len(path)] == path for key in record.keys or {})

    def is_dead(self, name: str, program: t.Any) -> bool:
        """Whether a runtime is NVIDIA's, is not asked for now, and is not needed by any container."""
        if not is_nvidia_program(program) or name in self.wanted:
            return False
        return self.removal or name == EXPERIMENTAL or self.host.find_executable([program]) is None

    def reason(self, name: str, program: str) -> str:
        """Why a runtime goes."""
        why = "which is not there"
        if name == EXPERIMENTAL:
            why = "which the toolkit has had no program for since 1.14"
        elif self.host.find_executable([program]) is not None:
            why = "and this collection did not"
        return f"{self.context.path} registers {name} with {program}, {why}."

    def give_up(self, why: str) -> None:
        """Leave the files alone that the engine reads."""
        self.stays.append(why)
        for path in self.read:
            del self.after[path], self.originals[path]
        gone = self.read
        self.leftovers = [one for one in self.leftovers if self.context.files.resolve(one.path) not in gone]
        self.read = set()


# -- containerd ------------------------------------------------------------------------------------------------------


def containerd(sweep: Sweep) -> None:
    """Raises GpufleetError where containerd's files cannot be read."""
    before = ContainerdFiles.of(sweep.context)
    imported = {file.path for file in before.files[1:]}
    for path in (STRAY_CONTAINERD, CONTAINERD_DROP_IN):
        found = sweep.drop_in(path, lambda document: containerd_drop_in(document, before.main))
        if found is not None:
            real = sweep.context.files.resolve(path)
            changes = f" Of the copy in it, {few(found.drifted)} will be as in the main file." if found.drifted else ""
            reason = f"{path} holds only what NVIDIA's tool wrote ({few(found.runtimes)}).{changes}"
            sweep.remove(path, DROP_IN, reason)
            sweep.read.update({real} & imported)
    main = _without_imports(sweep, before)
    for root in dict.fromkeys(CRI_TABLE.values()):
        tables = main.value(*root, *RUNTIMES)
        for name, entry in tables.items() if isinstance(tables, dict) else ():
            program = program_of(entry)
            if sweep.is_dead(name, program) and not sweep.is_recorded((*root, *RUNTIMES, name)):
                reason = sweep.reason(name, program)
                leftover = Leftover(sweep.context.path, RUNTIME, reason)
                main = sweep.change(main, leftover, _without_table((*root, *RUNTIMES, name), root + DEFAULT))
    overlay: dict[str, TomlDocument | None] = {path: None for path, text in sweep.after.items() if text is None}
    after = ContainerdFiles.of(sweep.context, {**overlay, before.main.path: main} if sweep.after else {})
    lost = [name for name in after.missing if name not in before.missing]
    if sweep.after and (lost or (_lacks_default(after) and not _lacks_default(before))):
        why = f"imports name {few(lost)}" if lost else "no default runtime would be left"
        sweep.give_up(f"Leftovers in files that containerd reads stay, for {why}. Correct that, then run this again.")


def _without_imports(sweep: Sweep, before: ContainerdFiles) -> TomlDocument:
    """The main file without entries of ``imports`` that name what goes.

    A pattern stays: it is an administrator's, and one that matches nothing is no error to containerd.
    """
    main, path = before.main, sweep.context.path
    record = sweep.context.record
    ours = ((record.keys or {}).get(IMPORTS) or []) if record is not None else []
    for entry in list(main.value(*IMPORTS) or []):
        if "*" in entry:
            continue
        pattern = os.path.normpath(os.path.join(os.path.dirname(path), entry))
        means = {sweep.context.files.resolve(name) for name in before.expand(pattern)}
        if means and means <= {real for real, text in sweep.after.items() if text is None} and entry not in ours:
            reason = f"{path} imports {entry}, which is a leftover."
            main = sweep.change(main, Leftover(path, IMPORT, reason), _without_import(entry))
    return main


def _without_import(entry: str) -> t.Callable[[TomlDocument], TomlDocument]:
    def change(document: TomlDocument) -> TomlDocument:
        entries = document.value(*IMPORTS)
        if not isinstance(entries, list) or entry not in entries:
            return document
        left = [other for other in entries if other != entry]
        without = document.delete(IMPORTS)
        # An array that is left empty goes, unless there are comments in it.
        keep = bool(left) or without.text.count("#") != document.text.count("#")
        return document.set(IMPORTS, left) if keep else without

    return change


def _without_table(path: KeyPath, default: KeyPath) -> t.Callable[[TomlDocument], TomlDocument]:
    """Without the runtime at ``path``, and without a default that names it."""

    def change(document: TomlDocument) -> TomlDocument:
        if document.has(*path) and document.value(*default) == path[-1]:
            document = document.delete(default, prune=True)
        return document.delete(path, prune=True)

    return change


def _lacks_default(files: ContainerdFiles) -> bool:
    """Whether a CRI with these files would be dead: before 2.1 runtimes in files hide the built-in one."""
    default, runtimes = files.default_runtime() or BUILTIN_DEFAULT, files.runtimes()
    hidden = default != BUILTIN_DEFAULT or (bool(runtimes) and not files.merges)
    return hidden and default not in runtimes and files.legacy_default() is None


# -- CRI-O, Podman, Docker -------------------------------------------------------------------------------------------


def crio(sweep: Sweep) -> None:
    """Raises GpufleetError where CRI-O's files cannot be read."""
    before = CrioFiles.of(sweep.context)
    folder = sweep.context.files.resolve(os.path.dirname(STRAY_CRIO))
    if before.directory != folder:
        found = sweep.drop_in(STRAY_CRIO, crio_drop_in)
        if found is not None:
            sweep.remove(STRAY_CRIO, DROP_IN, f"{STRAY_CRIO} is where NVIDIA's tool wrote what CRI-O never reads.")
    path = f"{before.directory}/{DROP_IN_NAME}"
    found = sweep.drop_in(path, crio_drop_in) if before.directory else None
    if found is not None:
        sweep.remove(path, DROP_IN, f"{path} holds only what NVIDIA's tool wrote ({few(found.runtimes)}).")
        sweep.read.add(path)
    hooks(sweep)
    main = before.files[0].document
    tables = main.value(*CRIO_RUNTIMES)
    for name, entry in tables.items() if isinstance(tables, dict) else ():
        program = entry.get(CRIO_PROGRAM) if isinstance(entry, dict) else None
        if sweep.is_dead(name, program) and not sweep.is_recorded((*CRIO_RUNTIMES, name)):
            leftover = Leftover(sweep.context.path, RUNTIME, sweep.reason(name, str(program)))
            main = sweep.change(main, leftover, _without_table((*CRIO_RUNTIMES, name), CRIO_DEFAULT))
    gone: dict[str, TomlDocument | None] = {path: None for path, text in sweep.after.items() if text is None}
    after = CrioFiles.of(sweep.context, {**gone, before.files[0].path: main})
    default, version = after.default_runtime(), sweep.context.version
    if default is not None and not after.defines(default, version) and before.defines(default, version):
        sweep.give_up(f"Leftovers in {sweep.context.path} stay, for {default}, the default runtime, is among them.")


def hooks(sweep: Sweep) -> None:
    """NVIDIA's hook, which CRI-O and Podman run beside CDI and the runtimes."""
    for path in (f"{folder}/{HOOK_NAME}" for folder in HOOK_FOLDERS):
        if sweep.keeps_hooks:
            continue
        content = sweep.candidate(path)
        if content is not None and is_nvidia_hook(content):
            sweep.remove(path, HOOK, f"{path} runs NVIDIA's hook for every container of Podman and CRI-O.")
            continue
        sweep.forget(path)
        if content is not None:
            sweep.stays.append(f"{path} does not run NVIDIA's hook, in spite of its name, and stays.")


def docker(sweep: Sweep) -> None:
    """Raises GpufleetError where the file cannot be read."""
    context = sweep.context
    document = JsonDocument.from_bytes(context.path, context.content or b"")
    flagged = context.unit.flag_values("--default-runtime") if context.unit is not None else []
    entries = document.value(DOCKER_RUNTIMES)
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        program = entry.get("path") if isinstance(entry, dict) else None
        if not sweep.is_dead(name, program) or sweep.is_recorded((DOCKER_RUNTIMES, name)):
            continue
        reason = sweep.reason(name, str(program))
        if name in flagged:
            sweep.stays.append(f"{reason} It stays, for the unit names it as the default runtime. Remove that flag.")
            continue
        document = sweep.change(document, Leftover(context.path, RUNTIME, reason), _without_entry(name))


def _without_entry(name: str) -> t.Callable[[JsonDocument], JsonDocument]:
    """The same of one in Docker's file."""

    def change(document: JsonDocument) -> JsonDocument:
        if document.has(DOCKER_RUNTIMES, name) and document.value(DOCKER_DEFAULT) == name:
            document = document.delete((DOCKER_DEFAULT,))
        document = document.delete((DOCKER_RUNTIMES, name))
        return document.delete((DOCKER_RUNTIMES,)) if document.value(DOCKER_RUNTIMES) == {} else document

    return change


# By the names under which the engines keep their records: what others of a kind have is their own business.
CLEANERS: dict[str, t.Callable[[Sweep], None]] = {
    "containerd": containerd,
    "crio": crio,
    "docker": docker,
    "podman": hooks,
}
