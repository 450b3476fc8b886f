# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all engines with TOML files share: their installation, the edits of a plan, and the comparison of dumps."""

from __future__ import annotations

import copy
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import key_names
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]

    TomlEdit = core_plan.TrackedEdit[toml_document.TomlDocument]


class TomlEngine(engines_base.EngineDefaults):
    """The installation of an engine with TOML files.

    ``socket_flags`` are the flags of the unit that name its socket.
    """

    name: str
    flavor: str
    key: str
    program: str
    service: str
    socket: str
    socket_flags: tuple[str, ...]
    config_path: str
    no_reload: str
    syntax = "toml"
    validates_all_files = True
    reports_full_state = False

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        service = systemd_units.unit_name(service or self.service)
        unit = processes.with_flags(host, systemd_units.load_unit(host, service, self.program), self.program)
        pid = processes.find_process(host, unit, self.program)
        unit = self.with_all_flags(unit) if unit is not None else None
        named = unit.flag_values("--config", "-c", "--c") if unit is not None else []
        sockets = unit.flag_values(*self.socket_flags) if unit is not None else []
        return engines_base.Installation(
            binary=systemd_units.find_program(host, unit, self.program),
            unit=unit,
            service=service,
            socket=(sockets[-1] if sockets else "") or self.socket,
            config_path=unit.absolute(named[-1]) if unit is not None and named and named[-1] else self.config_path,
            pid=pid,
        )

    @staticmethod
    def with_all_flags(unit: systemd_units.Unit) -> systemd_units.Unit:
        """Return the unit with its flags in the spelling with two dashes.

        The engines parse them with Go's package flag, for which one dash is the same.
        """
        return unit._replace(arguments=tuple(_ONE_DASH.sub("--", argument) for argument in unit.arguments))


# The dash of a flag whose name is longer than one letter.
_ONE_DASH = re.compile(r"\A-(?=[A-Za-z][\w-])")

# The beginning of a drop-in of this collection.
HEADER = b"# Written by gpufleet.nvidia.nvidia_runtime_config, which takes it away again with state: absent.\n"

_KINDS = {dict: "a table", str: "a string", bool: "true or false", list: "an array", int: "a number"}


class TomlFiles:
    """The files of one configuration that a plan reads or changes. Each is read once."""

    def __init__(self, context: engines_base.Context) -> None:
        self.context = context
        self.edits: dict[str, TomlEdit] = {}

    def edit(self, path: str) -> TomlEdit:
        """Return the edit of the file at ``path``, with the changes made so far."""
        path = self.context.files.resolve(path)
        if path not in self.edits:
            about = self.context if path == self.context.path else self.context.for_file(path)
            header = HEADER if (about.content or b"").startswith(HEADER) else b""
            self.edits[path] = core_plan.TrackedEdit(
                toml_document.TomlDocument.from_bytes, path, about.content, about.record, header
            )
        return self.edits[path]

    def overlay(self) -> dict[str, toml_document.TomlDocument]:
        """Return the documents after all edits so far, of files that exist or will exist."""
        existing = {path: edit for path, edit in self.edits.items() if edit.content is not None or edit.wanted}
        return {path: edit.document for path, edit in existing.items()}

    def planned_documents(self) -> dict[str, toml_document.TomlDocument | None]:
        """Return the same documents as ``overlay``, with None for files that are removed."""
        overlay = self.overlay()
        return {path: document if _after(self.edits[path]) is not None else None for path, document in overlay.items()}

    def planned(self, read: t.Sequence[str] = ()) -> tuple[core_plan.PlannedFile, ...]:
        """Return all files in an order that survives a crash.

        A new drop-in is written before the file that reads it, and a removed one is deleted after that file. ``read``
        are the files of the configuration: a drop-in copies settings from them, so it must not be readable by more
        users than they are.
        """
        main = self.context.path
        like = tuple(dict.fromkeys([main, *read]))
        files = [
            edit.planned(_after(edit), like if _is_own_file(edit) and path != main else ())
            for path, edit in self.edits.items()
            if edit.content is not None or edit.wanted or path == main
        ]

        def turn(file: core_plan.PlannedFile) -> tuple[bool, bool]:
            vanishes = file.after is None
            return vanishes, (file.path == main) is not vanishes

        return tuple(sorted(files, key=turn))


def _is_own_file(edit: TomlEdit) -> bool:
    return edit.content is None or (edit.record is not None and edit.record.created)


def _after(edit: TomlEdit) -> bytes | None:
    """Return the planned content, None if the file is removed.

    A file that this collection created is removed with the last entry of this collection.
    """
    if edit.removed or (_is_own_file(edit) and (edit.emptied or (edit.content is None and not edit.wanted))):
        return None
    return edit.document.to_bytes()


def revert_own_entries(edit: TomlEdit, keep: t.Callable[[KeyPath], bool] = lambda _path: False) -> None:
    """Remove entries that earlier runs wrote and this one does not want. Entries that ``keep`` accepts stay."""
    record = edit.record
    if record is None:
        return
    unwanted = [path for path in edit.recorded() if path not in edit.wanted and not keep(path)]
    if not edit.wanted and len(unwanted) == len(edit.recorded()) and record.restorable(edit.content):
        edit.document = toml_document.TomlDocument.from_bytes(
            edit.path, edit.header if record.original is None else record.original
        )
        return
    for path in unwanted:
        edit.restore(path)
    if record.original is not None and record.restorable(edit.content):
        original = toml_document.TomlDocument.from_bytes(edit.path, record.original)
        # If the entries are those from before the first run, restore blank lines and comments too.
        if toml_parser.equal(edit.document.data, original.data):
            edit.document = original


def is_original(edit: TomlEdit) -> bool:
    """Return whether the file has the content that it had before the first change."""
    return edit.record is not None and edit.document.to_bytes() == edit.record.original


def other_mains(files: TomlFiles) -> list[str]:
    """Return the recorded main files of other configurations of the same engine."""
    records = (files.edit(path).record for path in files.context.recorded)
    return [record.path for record in records if record is not None and record.main == record.path]


def write_table(edit: TomlEdit, path: KeyPath, table: t.Mapping[str, t.Any]) -> None:
    """Write the entries of ``table`` at ``path`` and keep all other entries there."""
    if not edit.document.has(*path) and table:
        edit.document = edit.document.set(path, plain_copy(table))
    for leaf, value in toml_parser.iter_leaves(table, path):
        if toml_parser.equal(edit.document.value(*leaf), value):
            edit.wanted[leaf] = value
        else:
            edit.write(leaf, value)


def merged(below: t.Mapping[str, t.Any], above: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return both tables merged at every depth. Where both have a value, that of ``above`` is used."""
    result = dict(below)
    for name, value in above.items():
        beneath = result.get(name)
        result[name] = merged(beneath, value) if isinstance(value, dict) and isinstance(beneath, dict) else value
    return result


def plain_copy(table: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return a copy of the table without empty tables in it."""
    copied: dict[str, t.Any] = {}
    for name, value in table.items():
        inner = plain_copy(value) if isinstance(value, dict) else copy.deepcopy(value)
        if inner != {}:
            copied[name] = inner
    return copied


def lookup(data: t.Any, path: KeyPath) -> t.Any:
    """Return the value at ``path``, None if there is none."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def put(table: dict[str, t.Any], path: KeyPath, value: t.Any) -> None:
    """Set the value at ``path``, and create missing tables on the way."""
    for name in path[:-1]:
        table = table.setdefault(name, {})
    table[path[-1]] = value


def require(document: toml_document.TomlDocument, path: KeyPath, kind: type, advice: str) -> t.Any:
    """Return the value at ``path``, None if there is none.

    Raises ConfigurationError if the value is of another type than ``kind``.
    """
    for depth in range(1, len(path)):
        around = document.value(*path[:depth])
        if around is not None and not isinstance(around, dict):
            raise document.error(
                path[:depth], f"{'.'.join(path[:depth])} is not a table", "Make it a table, or remove it."
            )
    value = document.value(*path)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)):
        raise document.error(path, f"{'.'.join(path)} is not {_KINDS[kind]}", advice)
    return value


def check_options(options: t.Mapping[str, t.Any], reserved: t.Mapping[KeyPath, str], known: key_names.Fields) -> None:
    """Raise NvidiaError for runtime_options that another parameter sets, that TOML cannot express, or of another case.

    ``known`` are the names of the entries of a runtime.
    """
    # containerd compares the names of options without regard to case.
    parameters = {tuple(map(str.lower, path)): parameter for path, parameter in reserved.items()}
    for path, value in toml_parser.iter_leaves(options):
        beginnings = (tuple(map(str.lower, path[:depth])) for depth in range(1, len(path) + 1))
        parameter = next((parameters[start] for start in beginnings if start in parameters), None)
        if parameter is not None:
            raise errors.NvidiaError(
                f"Remove {'.'.join(path)} from {errors.option:runtime_options} and set"
                f" {errors.option:{parameter}} instead."
            )
        name = known.other_case(path[0])
        if name is not None:
            raise errors.NvidiaError(
                f"{errors.option:runtime_options}: {path[0]} differs from {name} in case only. Rename it to {name}."
            )
        values = value if isinstance(value, list) else [value]
        if any(item is None or not isinstance(item, (str, bool, int, float)) for item in values):
            raise errors.NvidiaError(
                f"{errors.option:runtime_options}: {'.'.join(path)} has an unsupported type. Use a string, a number,"
                " true, false, a list of these, or a dictionary."
            )


# -- comparing dumps ---------------------------------------------------------------------------------------------------

# A missing value equals its zero value: programs print all fields of built-in entries, but not of written ones.
_ZERO: tuple[t.Any, ...] = (None, "", 0, False, [])


def overlay_of(files: t.Sequence[core_plan.PlannedFile]) -> dict[str, toml_document.TomlDocument | None]:
    """Return the planned documents by path, None for a file that is removed."""
    return {
        file.path: None if file.after is None else toml_document.TomlDocument.from_bytes(file.path, file.after)
        for file in files
    }


def parse_dump(text: str) -> toml_document.TomlDocument | None:
    """Return the configuration that a program printed, None if it is not TOML."""
    try:
        return toml_document.TomlDocument.from_bytes("output", text.encode())
    except errors.ConfigurationError:
        return None


def compare_dumps(before: str, after: str, is_own: t.Callable[[KeyPath], bool]) -> str:
    """Return the settings that would change, besides entries that ``is_own`` accepts.

    Returns an empty string if none would change, or if a dump cannot be parsed.
    """
    documents = [parse_dump(text) for text in (before, after)]
    if None in documents:
        return ""
    old, new = (dict(toml_parser.iter_leaves(document.data)) for document in documents if document is not None)
    changed = sorted(path for path in {**old, **new} if _differ(old.get(path), new.get(path)) and not is_own(path))
    return core_text.listed([".".join(path) for path in changed])


def changed_tables(files: t.Sequence[core_plan.PlannedFile], path: KeyPath) -> set[str]:
    """Return the names of the tables at ``path`` that a plan adds, changes or removes."""
    found: set[str] = set()
    for file in files:
        documents = (
            toml_document.TomlDocument.from_bytes(file.path, text or b"") for text in (file.before, file.after)
        )
        old, new = (document.value(*path) for document in documents)
        old, new = (table if isinstance(table, dict) else {} for table in (old, new))
        found.update(name for name in {**old, **new} if old.get(name) != new.get(name))
    return found


def _differ(one: t.Any, other: t.Any) -> bool:
    return one != other and not (one in _ZERO and other in _ZERO)
