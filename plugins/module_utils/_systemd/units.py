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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
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


# The types of units (systemd.unit(5)).
_SUFFIXES = (
    ".service", ".socket", ".device", ".mount", ".automount", ".swap",
    ".target", ".path", ".timer", ".slice", ".scope",
)  # fmt: skip
# The directories with the unit files of administrators and packages, highest precedence first.
UNIT_DIRS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
# systemd.unit(5), "Unit File Load Path", system units, with the directories of systemd's own programs.
LOAD_PATH = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
    "/run/systemd/generator.early", UNIT_DIRS[0], "/etc/systemd/system.attached", UNIT_DIRS[1],
    "/run/systemd/system.attached", "/run/systemd/generator", *UNIT_DIRS[2:], "/run/systemd/generator.late",
)  # fmt: skip
# Suffixes of directories with links that make a unit start together with another unit (systemd.unit(5)).
_LINK_FOLDERS = ("wants", "requires", "upholds")

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# A reference to a variable in an argument.
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
# The maximum number of characters that variables may add to a command line. Linux limits a command line to 2 MiB with
# the default stack size (execve(2)).
_MAX_VARIABLE_CHARACTERS = 2 << 20
# A part of a line: blanks, text without quotation marks, or a quoted text.
_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>(?:[^ \t\r\n"'\\]|\\.)+)"""
    r"""|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|'(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_CHARACTERS = {**dict(zip("abfnrtvs", "\a\b\f\n\r\t\v ")), **{mark: mark for mark in "\\\"'"}}
# Other control characters do not end a line.
_LINE_END = re.compile(r"\r\n|\n|\r")


class Unit(t.NamedTuple):
    """One unit with its drop-ins.

    - ``path``, ``drop_ins``: the files of the unit.
    - ``arguments``: the command line of its last ExecStart, program first.
    - ``listen``: the addresses in its ListenStream settings.
    - ``slice``: the slice in which systemd starts it.
    - ``wrapper``: the program that the unit starts instead of the expected one. ``arguments`` is then empty, because
      the command line belongs to the wrapper.
    - ``environment``: the variables that the unit sets, including those from its environment files.
    - ``directory``: the directory from which its program resolves relative paths.
    """

    name: str
    path: str
    drop_ins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    slice: str = "system.slice"
    wrapper: str = ""
    environment: t.Mapping[str, str] = types.MappingProxyType({})
    directory: str = "/"

    def flag_values(self, *names: str) -> list[str]:
        """Return the values of a flag in all its spellings: ``--name=v``, ``--name v``, ``-nv``, ``-n v``.

        The flag package of Go, which containerd uses, takes one dash for two.
        """
        attached = tuple(name for name in names if not name.startswith("--"))
        values: list[str] = []
        arguments = iter(self.arguments[1:])
        for argument in arguments:
            flag, sign, value = argument.partition("=")
            if flag in names or (flag.startswith("-") and f"-{flag}" in names):
                values.append(value if sign else next(arguments, ""))
                continue
            values += [argument[len(name) :] for name in attached if argument.startswith(name)]
        return values

    def is_on(self, name: str) -> bool:
        """Return whether the unit sets a boolean flag, in a spelling that Go reads as true. The last one counts."""
        flags = [argument.partition("=") for argument in self.arguments[1:]]
        values = [value if sign else "true" for flag, sign, value in flags if flag in (f"-{name}", f"--{name}")]
        return bool(values) and values[-1] in core_text.GO_TRUE

    def absolute(self, value: str) -> str:
        """Return the absolute path of a ``value`` of a flag."""
        return posixpath.join(self.directory, value)


# The settings that are lists. An empty assignment resets them, except Before and After (systemd.unit(5)).
_LISTS = (
    ("Service", "ExecStart"),
    ("Service", "EnvironmentFile"),
    ("Service", "UnsetEnvironment"),
    ("Socket", "ListenStream"),
)


class _Settings:
    """The settings of a unit that this collection uses. The files of the unit are added in the order of systemd."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.slice = "system.slice"
        self.directory = ""
        self._lists: dict[tuple[str, str], list[str]] = {name: [] for name in _LISTS}

    def assign(self, section: str, key: str, value: str) -> None:
        values = self._lists.get((section, key))
        if values is not None:
            if value:
                values.append(value)
            else:
                values.clear()
        elif section == "Service" and key == "Slice" and value.endswith(".slice"):
            self.slice = value
        elif section == "Service" and key == "WorkingDirectory":
            self.directory = value[value.startswith("-") :]
        elif section == "Service" and key == "Environment":
            if not value:
                self.environment = {}
            pairs = (assignment.partition("=") for assignment in _words(value))
            self.environment.update({name: text for name, sign, text in pairs if sign})

    def values(self, section: str, key: str) -> list[str]:
        return self._lists[section, key]


def find_program(host: hostfs.HostFS, unit: Unit | None, name: str) -> str | None:
    """Return the program ``name`` that the unit starts, else the one in the search path; None if there is none."""
    started = unit.arguments[:1] if unit is not None else ()
    return host.find_executable([*started, name])


def unit_name(name: str) -> str:
    """Return the name as systemctl interprets it: a name without the suffix of a type of units is a service."""
    return name if posixpath.splitext(name)[1] in _SUFFIXES else f"{name}.service"


def load_unit(
    host: hostfs.HostFS,
    name: str,
    program: str = "",
    *,
    folders: t.Sequence[str] = LOAD_PATH,
    specifiers: t.Mapping[str, str] = SYSTEM_SPECIFIERS,
) -> Unit | None:
    """Return the unit ``name`` as its files describe it; None if there is none or it is masked.

    Args:
        program: the expected program of ExecStart. If the unit starts another one, such as a shell or a wrapper, the
            arguments are empty.
        folders: the directories in which the unit's systemd searches for units.
        specifiers: the values of ``%h`` and others for that systemd.

    Raises HostError for a file that is larger than hostfs.UNIT_BYTES or is not a regular file, and for more drop-ins
    than hostfs.DROP_INS.
    """
    path = unit_file(host, name, folders)
    if path is None or is_masked(host, path):
        return None
    real_name = _real_name(host, name, path, folders)
    names = (real_name, name, *_aliases(host, real_name, folders))
    drop_ins = _drop_ins(host, names, folders)
    settings = _Settings()
    for source in [path, *drop_ins]:
        for section, key, value in _assignments(_text(host, source)):
            settings.assign(section, key, value)
    specified = Specifiers(real_name, specifiers)
    environment = {key: specified.expand(value) for key, value in settings.environment.items()}
    for setting in settings.values("Service", "EnvironmentFile"):
        for file in _environment_files(host, specified.expand(setting[setting.startswith("-") :])):
            environment.update(env_file.read(file, _text(host, file)))
    for removed in settings.values("Service", "UnsetEnvironment"):
        for variable, sign, value in (word.partition("=") for word in _words(specified.expand(removed))):
            if not sign or environment.get(variable) == value:
                environment.pop(variable, None)
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
        directory=posixpath.join("/", specified.expand("%h" if settings.directory == "~" else settings.directory)),
    )
    if program and arguments and posixpath.basename(arguments[0]) != program:
        unit = unit._replace(arguments=(), wrapper=arguments[0])
    return unit


def _aliases(host: hostfs.HostFS, name: str, folders: t.Sequence[str]) -> list[str]:
    """Return the aliases of the unit ``name`` that have drop-ins."""
    end = f"{posixpath.splitext(name)[1]}.d"
    entries = {entry[:-2] for folder in folders for entry in host.readable_entries(folder) if entry.endswith(end)}
    found = []
    for entry in sorted(entries - {name}):
        path = unit_file(host, entry, folders)
        if path is not None and _real_name(host, entry, path, folders) == name:
            found.append(entry)
    return found


def unit_file(host: hostfs.HostFS, name: str, folders: t.Sequence[str] = LOAD_PATH) -> str | None:
    """Return the file of the unit ``name``; None if there is none. If the unit is masked, this is the mask.

    An instance without a file of its own has that of its template.
    """
    names = dict.fromkeys((name, _template(name)))
    paths = (f"{folder}/{entry}" for entry in names for folder in folders)
    return next((path for path in paths if host.lexists(path)), None)


def _template(name: str) -> str:
    """Return the template of an instance, otherwise ``name``."""
    stem, suffix = posixpath.splitext(name)
    prefix, at, _instance = stem.partition("@")
    return f"{prefix}{at}{suffix}"


def _real_name(host: hostfs.HostFS, name: str, path: str, folders: t.Sequence[str]) -> str:
    """Return the name of the unit of which ``name`` is an alias: a link to another file in ``folders``."""
    target = host.resolve(path)
    real, own = posixpath.basename(target), posixpath.basename(path)
    is_alias = real != own and posixpath.splitext(real)[1] == posixpath.splitext(own)[1]
    if is_alias and own == name and posixpath.dirname(target) in {host.resolve(folder) for folder in folders}:
        return real if real != _template(name) else name
    return name


def is_masked(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the unit file masks its unit, because it is a link to /dev/null or empty (systemd.unit(5))."""
    # An image may have no /dev, so every link to a missing file is treated as a mask.
    return not host.exists(path) or not _text(host, path)


def is_masked_name(host: hostfs.HostFS, name: str) -> bool:
    """Return whether the unit ``name`` exists and is masked."""
    path = unit_file(host, name)
    return path is not None and is_masked(host, path)


def is_enabled(host: hostfs.HostFS, name: str) -> bool:
    """Return whether a link makes another unit start the unit ``name``.

    systemd uses only the name of the link. Its target may not exist, for example after an upgrade of the toolkit from
    1.19.1, whose package has the units in /etc/systemd/system, to 1.20.0, whose package has them in /usr/lib.
    """
    patterns = (f"{folder}/*.{links}" for folder in UNIT_DIRS for links in _LINK_FOLDERS)
    links = (f"{folder}/{name}" for pattern in patterns for folder in host.glob(pattern))
    return any(map(host.lexists, links))


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


def _drop_in_names(name: str) -> list[str]:
    """Return the names whose drop-ins apply to the unit ``name``, highest precedence first.

    These are the unit, its template, and the beginnings of both up to each dash, such as foo- for foo-bar.
    """
    stem, suffix = posixpath.splitext(name)
    prefix, at, instance = stem.partition("@")
    parts = prefix.split("-")
    prefixes = [prefix, *("-".join([*parts[:end], ""]) for end in range(len(parts) - 1, 0, -1))]
    names = [f"{one}{rest}{suffix}" for one in prefixes for rest in (f"{at}{instance}", at) if one.strip("-")]
    return list(dict.fromkeys(names))


def _drop_ins(host: hostfs.HostFS, names: t.Iterable[str], folders: t.Sequence[str]) -> list[str]:
    """Return the drop-ins of a unit, which may have several ``names``."""
    found: dict[str, str] = {}
    names = list(dict.fromkeys(names))
    name = names[0]
    kind = posixpath.splitext(name)[1][1:]
    own = [f"{base}/{entry}.d" for one in names for base in folders for entry in _drop_in_names(one)]
    for folder in [*own, *(f"{base}/{kind}.d" for base in folders)]:
        for entry in host.readable_entries(folder):
            if entry.endswith(".conf") and not entry.startswith("."):
                found.setdefault(entry, f"{folder}/{entry}")
    if len(found) > hostfs.DROP_INS:
        problem = f"The unit {name} has more than {hostfs.DROP_INS} drop-ins."
        raise errors.with_advice(errors.HostError, problem, "Remove drop-ins that you do not need.")
    return [found[entry] for entry in sorted(found)]


def _assignments(text: str) -> t.Iterator[tuple[str, str, str]]:
    section = ""
    for line in _lines(text[1:] if text.startswith("\ufeff") else text):
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
    for line in _LINE_END.split(text):
        if line.strip()[:1] in ("#", ";"):
            continue
        # A backslash that another one escapes does not continue the line.
        if (len(line) - len(line.rstrip("\\"))) % 2:
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


def _words(text: str) -> list[str]:
    """Return the words of a setting, with the escapes of C (systemd.syntax(7), "Quoting")."""
    return _split(text, _c_character)


def _plain_character(match: re.Match[str]) -> str:
    """Return the character after a backslash in a variable, where it has no other meaning."""
    return match.group()[1:]


def _c_character(match: re.Match[str]) -> str:
    """Return the character of an escape sequence of C. An unknown sequence stays (cunescape_one() of systemd)."""
    byte, short, long, octal, single = match.groups()
    if single is not None:
        return _CHARACTERS.get(single, match.group())
    number = int(octal, 8) if octal else int(byte or short or long, 16)
    if 0 < number < (0x80 if byte or octal else 0x110000) and not 0xD800 <= number < 0xE000:
        return chr(number)
    return match.group()


def _split(text: str, character: t.Callable[[re.Match[str]], str] = _plain_character) -> list[str]:
    """Split a line at blanks, and remove its quotation marks. ``character`` returns the text of an escape sequence.

    The rules are those of extract_first_word() of systemd.
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
        arguments[-1].append(_ESCAPE.sub(character, piece.group(piece.lastgroup or 0)))
    return ["".join(pieces) for pieces in arguments]


def _arguments(path: str, command: str, environment: t.Mapping[str, str], specifiers: Specifiers) -> list[str]:
    """Return the arguments of an ExecStart of the unit file ``path``, program first.

    systemd.service(5) describes the prefixes of a command.
    """
    bare = command.lstrip("@-:+!|")
    prefixes = command[: len(command) - len(bare)]
    # Specifiers are expanded after splitting, because an expanded specifier is never split.
    arguments = [";" if argument == r"\;" else specifiers.expand(argument) for argument in _words(bare)]
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
    if argument.startswith("$") and argument[1:2] not in ("$", "{"):
        yield from _split(environment.get(argument[1:], ""))
    else:
        yield _VARIABLE.sub(lambda match: environment.get(match.group(1), "") if match.group(1) else "$", argument)
