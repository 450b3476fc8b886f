# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read systemd unit files with their drop-ins, as systemd merges them.

This file does not use `systemctl show`, which needs a running systemd and returns what systemd has loaded, not what the
files contain now.
"""

from __future__ import annotations

import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import env_file

# Values of the specifiers in units of the system, in contrast to units of a user (systemd.unit(5), "Specifiers").
# Specifiers that depend on the machine or the boot (%H, %m, %b ...) do not occur in the paths that this collection
# reads, so they are not expanded.
SYSTEM_SPECIFIERS: t.Mapping[str, str] = types.MappingProxyType(
    {
        "C": "/var/cache",
        "E": "/etc",
        "h": "/root",
        "L": "/var/log",
        "S": "/var/lib",
        "t": "/run",
        "T": "/tmp",
        "u": "root",
        "U": "0",
        "V": "/var/tmp",
    }
)

_SPECIFIER = re.compile(r"%(.)", re.DOTALL)


class Specifiers:
    """The values of specifiers such as ``%h`` in the files of the unit ``name``.

    ``common`` contains the values that are the same for all units of one systemd.
    """

    def __init__(self, name: str, common: t.Mapping[str, str] = SYSTEM_SPECIFIERS) -> None:
        stem = posixpath.splitext(name)[0]
        prefix, _at, instance = stem.partition("@")
        self._values = {**common, "%": "%", "n": name, "N": stem, "p": prefix, "i": instance}

    def expand(self, text: str) -> str:
        """Return ``text`` with each specifier replaced. ``%%`` becomes one percent sign; an unknown specifier stays."""
        return _SPECIFIER.sub(lambda match: self._values.get(match.group(1), match.group()), text)


# systemd.unit(5), "Unit File Load Path", system units, highest precedence first.
UNIT_DIRS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# A reference to a variable in an argument.
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
# The maximum number of characters that variables may add to a command line. Linux limits a command line to 2 MiB with
# the default stack size (execve(2)).
_MAX_VARIABLE_CHARACTERS = 2 << 20
# A part of a line: blanks, text without quotation marks, an escaped character, or a quoted text.
_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>[^ \t\r\n"'\\]+)|\\(?P<escaped>.)"""
    r"""|"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"|'(?P<literal>[^']*)'""",
    re.DOTALL,
)
# The characters that a backslash escapes between double quotation marks.
_ESCAPED = re.compile(r"""\\(["\\])""")


class Unit(t.NamedTuple):
    """One unit with its drop-ins.

    - ``path``, ``drop_ins``: the files of the unit.
    - ``arguments``: the command line of its last ExecStart, program first.
    - ``listen``: the addresses in its ListenStream settings.
    - ``slice``: the slice in which systemd starts it.
    - ``wrapper``: the program that the unit starts instead of the expected one. ``arguments`` is then empty, because
      the command line belongs to the wrapper.
    - ``environment``: the variables that the unit sets, including those from its environment files.
    - ``wanted_by``, ``required_by``: the units whose start also starts this one once it is enabled.
    - ``before``, ``after``: its ordering dependencies.
    """

    name: str
    path: str
    drop_ins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    slice: str = "system.slice"
    wrapper: str = ""
    environment: t.Mapping[str, str] = types.MappingProxyType({})
    wanted_by: tuple[str, ...] = ()
    required_by: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def flag_values(self, *names: str) -> list[str]:
        """Return the values of a flag in all its spellings: ``--name=v``, ``--name v``, ``-nv``, ``-n v``."""
        values: list[str] = []
        arguments = iter(self.arguments[1:])
        for argument in arguments:
            for name in names:
                if argument == name:
                    values.append(next(arguments, ""))
                elif argument.startswith(name + "="):
                    values.append(argument[len(name) + 1 :])
                elif not name.startswith("--") and argument.startswith(name):
                    values.append(argument[2:])
        return values


# The settings that are lists. An empty assignment resets them, except Before and After (systemd.unit(5)).
_LISTS = (
    ("Service", "ExecStart"),
    ("Service", "EnvironmentFile"),
    ("Socket", "ListenStream"),
    ("Install", "WantedBy"),
    ("Install", "RequiredBy"),
    ("Unit", "Before"),
    ("Unit", "After"),
)


class _Settings:
    """The settings of a unit that this collection uses. The files of the unit are added in the order of systemd."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.slice = "system.slice"
        self._lists: dict[tuple[str, str], list[str]] = {name: [] for name in _LISTS}

    def assign(self, section: str, key: str, value: str) -> None:
        values = self._lists.get((section, key))
        if values is not None:
            if value:
                values.append(value)
            elif section != "Unit":
                values.clear()
        elif section == "Service" and key == "Slice" and value.endswith(".slice"):
            self.slice = value
        elif section == "Service" and key == "Environment":
            if not value:
                self.environment = {}
            self.environment.update(_pair(assignment) for assignment in _split(value) if "=" in assignment)

    def values(self, section: str, key: str) -> list[str]:
        return self._lists[section, key]

    def names(self, section: str, key: str) -> tuple[str, ...]:
        """Return the names of units that a setting lists."""
        return tuple(name for value in self.values(section, key) for name in value.split())


def find_program(host: hostfs.HostFS, unit: Unit | None, name: str) -> str | None:
    """Return the program ``name`` that the unit starts, else the one in the search path; None if there is none."""
    started = unit.arguments[:1] if unit is not None else ()
    return host.find_executable([*started, name])


def unit_name(name: str) -> str:
    """Return the name as systemctl interprets it: a name without a suffix is a service."""
    return name if posixpath.splitext(name)[1] else f"{name}.service"


def load_unit(
    host: hostfs.HostFS,
    name: str,
    program: str = "",
    *,
    without: str = "",
    folders: t.Sequence[str] = UNIT_DIRS,
    specifiers: t.Mapping[str, str] = SYSTEM_SPECIFIERS,
) -> Unit | None:
    """Return the unit ``name`` as its files describe it; None if there is none or it is masked.

    Args:
        program: the expected program of ExecStart. If the unit starts another one, such as a shell or a wrapper, the
            arguments are empty.
        without: a drop-in that is ignored.
        folders: the directories in which the unit's systemd searches for units.
        specifiers: the values of ``%h`` and others for that systemd.

    Raises HostError for a file that is larger than hostfs.UNIT_BYTES or is not a regular file, and for more drop-ins
    than hostfs.DROP_INS.
    """
    path = unit_file(host, name, folders)
    if path is None or is_masked(host, path):
        return None
    drop_ins = [drop_in for drop_in in _drop_ins(host, name, folders) if drop_in != without]
    settings = _Settings()
    for source in [path, *drop_ins]:
        for section, key, value in _assignments(_text(host, source)):
            settings.assign(section, key, value)
    specified = Specifiers(name, specifiers)
    environment = {key: specified.expand(value) for key, value in settings.environment.items()}
    for setting in settings.values("Service", "EnvironmentFile"):
        for file in _environment_files(host, specified.expand(setting.lstrip("-"))):
            environment.update(env_file.read(host, file, _text(host, file)))
    commands = settings.values("Service", "ExecStart")
    arguments = _arguments(path, commands[-1] if commands else "", environment, specified)
    unit = Unit(
        name,
        path,
        tuple(drop_ins),
        tuple(arguments),
        tuple(specified.expand(address) for address in settings.values("Socket", "ListenStream")),
        settings.slice,
        environment=environment,
        wanted_by=settings.names("Install", "WantedBy"),
        required_by=settings.names("Install", "RequiredBy"),
        before=settings.names("Unit", "Before"),
        after=settings.names("Unit", "After"),
    )
    if program and arguments and posixpath.basename(arguments[0]) != program:
        unit = unit._replace(arguments=(), wrapper=arguments[0])
    return unit


def unit_file(host: hostfs.HostFS, name: str, folders: t.Sequence[str] = UNIT_DIRS) -> str | None:
    """Return the file of the unit ``name``; None if there is none. If the unit is masked, this is the mask."""
    return next((f"{folder}/{name}" for folder in folders if host.lexists(f"{folder}/{name}")), None)


def is_masked(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the unit file masks its unit, because it is a link to /dev/null or empty (systemd.unit(5))."""
    # An image may have no /dev, so every link to a missing file is treated as a mask.
    return not host.exists(path) or not _text(host, path)


def is_masked_name(host: hostfs.HostFS, name: str) -> bool:
    """Return whether the unit ``name`` exists and is masked."""
    path = unit_file(host, name)
    return path is not None and is_masked(host, path)


def _text(host: hostfs.HostFS, path: str) -> str:
    """Return the text of a unit or environment file; empty if it does not exist or this user may not read it."""
    # A link to /dev/null disables a file. Only its path is compared, because an image may have no /dev.
    if host.resolve(path) == "/dev/null":
        return ""
    try:
        content = host.read(path, hostfs.UNIT_BYTES)
    except errors.HostError as error:
        if isinstance(error.__cause__, PermissionError):
            return ""
        raise
    return (content or b"").decode("utf-8", "replace")


def _drop_ins(host: hostfs.HostFS, name: str, folders: t.Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    kind = posixpath.splitext(name)[1][1:]
    for folder in [f"{base}/{name}.d" for base in folders] + [f"{base}/{kind}.d" for base in folders]:
        for entry in host.readable_entries(folder):
            if entry.endswith(".conf"):
                found.setdefault(entry, f"{folder}/{entry}")
    if len(found) > hostfs.DROP_INS:
        problem = f"The unit {name} has more than {hostfs.DROP_INS} drop-ins."
        raise errors.with_advice(errors.HostError, problem, "Remove drop-ins that you do not need.")
    return [found[entry] for entry in sorted(found)]


def _assignments(text: str) -> t.Iterator[tuple[str, str, str]]:
    section = ""
    for line in _lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            yield (section, *_pair(line))


def _environment_files(host: hostfs.HostFS, path: str) -> list[str]:
    """Return the files that EnvironmentFile= names, which may be a pattern (systemd.exec(5))."""
    return host.glob(path) if any(character in path for character in "*?[") else [path]


def _lines(text: str) -> t.Iterator[str]:
    """Return the lines that are not empty, with continued lines joined.

    Comments may stand between the parts of a continued line.
    """
    pending: list[str] = []
    for line in text.splitlines():
        if line.strip()[:1] in ("#", ";"):
            continue
        if line.endswith("\\"):
            pending.append(line[:-1])
            continue
        whole = " ".join([*pending, line]).strip()
        pending = []
        if whole:
            yield whole
    whole = " ".join(pending).strip()
    if whole:
        yield whole


def _pair(assignment: str) -> tuple[str, str]:
    name, _sign, value = assignment.partition("=")
    return name.strip(), value.strip()


def _split(text: str) -> list[str]:
    """Split a line at blanks and remove its quotation marks, as shlex.split() does.

    shlex.split() is not used, because its time is quadratic in the length of an argument.
    """
    arguments: list[list[str]] = []
    position, is_new = 0, True
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            # A closing quotation mark is missing, or a backslash is at the end.
            return text.split()
        position = piece.end()
        if piece.lastgroup == "blank":
            is_new = True
            continue
        if is_new:
            arguments.append([])
        is_new = False
        found = piece.group(piece.lastgroup or 0)
        arguments[-1].append(_ESCAPED.sub(r"\1", found) if piece.lastgroup == "quoted" else found)
    return ["".join(pieces) for pieces in arguments]


def _arguments(path: str, command: str, environment: t.Mapping[str, str], specifiers: Specifiers) -> list[str]:
    """Return the arguments of an ExecStart of the unit file ``path``, program first.

    systemd.service(5) describes the prefixes of a command.
    """
    bare = command.lstrip("@-:+!|")
    prefixes = command[: len(command) - len(bare)]
    # Specifiers are expanded after splitting, because an expanded specifier is never split.
    arguments = [specifiers.expand(argument) for argument in _split(bare)]
    if "@" in prefixes:
        # With @, the second argument is argv[0] of the program.
        del arguments[1:2]
    if ":" in prefixes:
        return arguments
    references = [name for argument in arguments for name in _REFERENCE.findall(argument)]
    if sum(len(environment.get(name, "")) for name in references) > _MAX_VARIABLE_CHARACTERS:
        limit = _MAX_VARIABLE_CHARACTERS >> 20
        problem = f"{path}: the values of the variables in ExecStart are longer than {limit} MiB."
        raise errors.with_advice(errors.HostError, problem, "Correct the unit.")
    return [expanded for argument in arguments for expanded in _expand(argument, environment)]


def _expand(argument: str, environment: t.Mapping[str, str]) -> t.Iterator[str]:
    """Return the arguments that ``argument`` expands to.

    The value of a lone ``$NAME`` is split into any number of arguments. ``${NAME}`` becomes exactly its value, and
    ``$$`` a dollar sign.
    """
    if argument.startswith("$") and argument[1:].isidentifier():
        yield from _split(environment.get(argument[1:], ""))
    else:
        yield _VARIABLE.sub(lambda match: environment.get(match.group(1), "") if match.group(1) else "$", argument)
