# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read systemd unit files with their drop-ins, as systemd merges them.

It does not use `systemctl show`, which needs a running systemd and returns the loaded state instead of the present
files.
"""

from __future__ import annotations

import posixpath
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs

# Values of the specifiers for the system's own manager. Specifiers that depend on the machine or the boot (%H, %m, %b
# ...) do not occur in the paths that this collection reads, so they are not expanded.
SYSTEM: t.Mapping[str, str] = types.MappingProxyType(
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

    ``manager`` contains the values that do not depend on the name of the unit.
    """

    def __init__(self, name: str, manager: t.Mapping[str, str] = SYSTEM) -> None:
        whole = posixpath.splitext(name)[0]
        prefix, _at, instance = whole.partition("@")
        self._values = {**manager, "%": "%", "n": name, "N": whole, "p": prefix, "i": instance}

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
# Every variable that an argument may name, and the maximum number of characters of a command line (execve(2)).
_REFERENCE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_COMMAND_CHARACTERS = 2 << 20
# The pieces of a line, and the characters that a backslash escapes between double quotation marks.
_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<plain>[^ \t\r\n"'\\]+)|\\(?P<escaped>.)"""
    r"""|"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"|'(?P<literal>[^']*)'""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"""\\(["\\])""")


class Unit(t.NamedTuple):
    """One unit with its drop-ins.

    ``arguments`` is the command line of its ExecStart, program first. ``wrapper`` is the program that the unit starts
    instead of the expected one; in that case ``arguments`` is empty, because the command line belongs to the wrapper.
    ``environment`` contains the variables that the unit sets, including those from its environment files. ``wanted_by``
    and ``required_by`` are the units whose start also starts this one once it is enabled. ``before`` and ``after`` are
    its ordering dependencies, as in its files.
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
        words = iter(self.arguments[1:])
        for word in words:
            for name in names:
                if word == name:
                    values.append(next(words, ""))
                elif word.startswith(name + "="):
                    values.append(word[len(name) + 1 :])
                elif not name.startswith("--") and word.startswith(name):
                    values.append(word[2:])
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
    """The settings of a unit that this collection uses, accumulated over its files."""

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
            self.environment.update(_pair(word) for word in _words(value) if "=" in word)

    def values(self, section: str, key: str) -> list[str]:
        return self._lists[section, key]

    def names(self, section: str, key: str) -> tuple[str, ...]:
        """Return the names of units in a list."""
        return tuple(name for value in self.values(section, key) for name in value.split())


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
    specifiers: t.Mapping[str, str] = SYSTEM,
) -> Unit | None:
    """Return the unit ``name`` as its files describe it; None if there is none or it is masked.

    Args:
        program: the expected program of ExecStart. If the unit starts another one, such as a shell or a wrapper, the
            arguments are empty.
        without: a drop-in that is ignored.
        folders: the directories in which the unit's systemd searches for units.
        specifiers: the values of ``%h`` and others for that systemd.

    Raises HostError for a file that is above its limit or is not a regular file, and for too many drop-ins.
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
    for file in settings.values("Service", "EnvironmentFile"):
        environment.update(_environment_file(_text(host, specified.expand(file.lstrip("-")))))
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
    """Return the file of the unit ``name``, which may also be a mask; None if there is none."""
    return next((f"{folder}/{name}" for folder in folders if host.lexists(f"{folder}/{name}")), None)


def is_masked(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the unit file is a link to /dev/null or empty (systemd.unit(5)); an image may have no /dev."""
    return not host.exists(path) or not _text(host, path)


def _text(host: hostfs.HostFS, path: str) -> str:
    """Return the text of a unit or environment file; empty if it does not exist or this user may not read it."""
    # A link to /dev/null disables a file. It is compared by path, because an image may have no /dev.
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
        raise errors.HostError(
            f"The unit {name} has more than {hostfs.DROP_INS} drop-ins. Remove drop-ins that you do not need."
        )
    return [found[entry] for entry in sorted(found)]


def _assignments(text: str) -> t.Iterator[tuple[str, str, str]]:
    section = ""
    for line in _lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            yield (section, *_pair(line))


def _environment_file(text: str) -> dict[str, str]:
    assignments = (_pair(line) for line in _lines(text) if "=" in line)
    return {name: " ".join(_words(value)) for name, value in assignments}


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


def _words(text: str) -> list[str]:
    """Return the words of a line, as shlex.split() does; the time of that function is quadratic in a word's length."""
    words: list[list[str]] = []
    here, between = 0, True
    while here < len(text):
        piece = _PIECE.match(text, here)
        if piece is None:
            # A quotation mark has no counterpart, or a backslash is at the end.
            return text.split()
        here = piece.end()
        if piece.lastgroup == "blank":
            between = True
            continue
        if between:
            words.append([])
        between = False
        found = piece.group(piece.lastgroup or 0)
        words[-1].append(_ESCAPED.sub(r"\1", found) if piece.lastgroup == "quoted" else found)
    return ["".join(pieces) for pieces in words]


def _arguments(path: str, command: str, environment: t.Mapping[str, str], specifiers: Specifiers) -> list[str]:
    """Return the words of an ExecStart, program first; for its prefixes see systemd.service(5)."""
    bare = command.lstrip("@-:+!|")
    prefixes = command[: len(command) - len(bare)]
    # Specifiers are expanded after splitting, because an expanded specifier is never split.
    words = [specifiers.expand(word) for word in _words(bare)]
    if "@" in prefixes:
        # With @, the second word is only the name under which the program runs.
        del words[1:2]
    if ":" in prefixes:
        return words
    if sum(len(environment.get(name, "")) for word in words for name in _REFERENCE.findall(word)) > _COMMAND_CHARACTERS:
        raise errors.HostError(
            f"{path}: the command line of ExecStart is too long with its variables. Correct the unit."
        )
    return [word for given in words for word in _expand(given, environment)]


def _expand(word: str, environment: t.Mapping[str, str]) -> t.Iterator[str]:
    """Return the words that ``word`` expands to.

    ``$NAME`` alone becomes any number of words. ``${NAME}`` becomes exactly its value, and ``$$`` a dollar sign.
    """
    if word.startswith("$") and word[1:].isidentifier():
        yield from _words(environment.get(word[1:], ""))
    else:
        yield _VARIABLE.sub(lambda match: environment.get(match.group(1), "") if match.group(1) else "$", word)
