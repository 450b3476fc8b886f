# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: packages of Fedora, RHEL and their kin.  What is installed is asked of rpm, everything
# else of dnf, 4 or 5.

from __future__ import annotations

import fnmatch
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (
    LOCK_TIMEOUT,
    Candidate,
    Change,
    CommandError,
    Package,
    PackageFile,
    Preview,
    last_words,
    patiently,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Commands

REPOSITORY_FILE = "/etc/yum.repos.d/nvidia-container-toolkit.repo"
# Where versions are locked there is one of these: dnf 4's plugin has the first two, dnf 5 the third.
LOCK_FILES = (
    "/etc/dnf/plugins/versionlock.conf",
    "/etc/dnf/plugins/versionlock.list",
    "/etc/dnf/versionlock.toml",
)

# What is locked is installed: no list of any repository is needed for it.
_VERSIONLOCK = ("dnf", "-q", "--disablerepo=*", "versionlock")
_TAGS = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n"
_OFFER = "%{name}\\t%{epoch}\\t%{version}-%{release}\\t%{repoid}\\n"
_SECTION = re.compile(r"^(Installing|Upgrading|Downgrading|Reinstalling|Removing|Replacing)\b.*:$")
_REPLACED = re.compile(r"^\s+replacing\s+(\S+)")
_BUSY = re.compile(r"already locked by|another copy is running|Failed to obtain .*lock", re.IGNORECASE)
_NOISE = re.compile(
    r"Failed loading plugin|Last metadata expiration|Unable to detect release version|=+$|Operation aborted|"
    r"\(try to add|Ignoring repositories|Updating and loading|Repositories loaded|Dependencies resolved"
)
_ARCHITECTURES = re.compile(r"\.(x86_64|aarch64|noarch|i686|ppc64le|s390x)$")


class Dnf:
    """The packages of one host with rpm."""

    name = "dnf"

    def __init__(self, host: HostRoot, commands: Commands, lock_timeout: int = LOCK_TIMEOUT) -> None:
        self.host = host
        self.commands = commands
        self.lock_timeout = lock_timeout
        self._twice: list[str] = []

    @property
    def readable(self) -> bool:
        return self.host.live

    # -- what is there -------------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, Package]:
        if not self.readable:
            return {}
        # Its status is the number of those that are not installed.
        _status, output, _errors = self.commands.read(self.host.argv(["rpm", "-q", "--qf", _TAGS, *names]))
        locks = self._locks()
        found: dict[str, Package] = {}
        for name, epoch, version, architecture in _rows(output):
            # A transaction that was cut off leaves the old version and the new one.
            twice = [found[name].version] if name in found else []
            newest = max([_with_epoch(epoch, version), *twice], key=version_order)
            held = is_locked((name, epoch, version, architecture), locks)
            found[name] = Package(newest, held, not twice)
        self._twice = [name for name, package in found.items() if not package.whole]
        return found

    def leftovers(self, names: t.Iterable[str]) -> list[str]:
        del names  # rpm has no such state
        return []

    def interrupted(self) -> bool:
        return bool(self._twice)

    def mend(self, ours: bool) -> None:
        del ours
        raise HostError(
            f"Two versions of {', '.join(self._twice)} are registered: a transaction was cut off. Look at what"
            " dnf check --duplicates lists, run dnf remove --duplicates on the host, then run this again."
        )

    def _locks(self) -> list[str]:
        if not self._has_locks():
            return []
        status, output, _errors = self.commands.read(self.host.argv([*_VERSIONLOCK, "list"]))
        return [] if status else locks_in(output)

    # -- what is on offer ----------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False) -> dict[str, list[Candidate]]:
        cached = ["-C", "--setopt=*.skip_if_unavailable=1"] if offline else []
        # Or it asks whether the repository's key may be used, and takes silence for no.
        argv = ["dnf", "-q", "-y", *cached, "repoquery", "--qf", _OFFER, *names]
        output = self._ask("asking dnf for versions", argv, self.commands.fetch)
        return candidates_of(output)

    def refresh(self, everything: bool = False) -> None:
        ours = [] if everything else self._our_repositories()
        only = ["--disablerepo=*", *(f"--enablerepo={name}" for name in ours)] if ours else []
        # A repository that is optional elsewhere is what this run is about.
        must = [f"--setopt={name}.skip_if_unavailable=0" for name in ours]
        argv = ["dnf", "-q", "-y", *must, *only, "makecache", "--refresh"]
        status, output, errors = self._patiently(argv, self.commands.fetch)
        if status:
            raise CommandError(
                "Fetching the package lists (dnf makecache)",
                _words(output, errors),
                "Check the repository's address and key, the proxy and the network; no package was changed.",
            )

    def _our_repositories(self) -> list[str]:
        return re.findall(r"^\[([^]\s]+)\]\s*$", self.host.read_text(REPOSITORY_FILE), re.MULTILINE)

    def describe(self, files: t.Iterable[str]) -> list[PackageFile]:
        found = []
        for path in files:
            # Or rpm takes any text for a list of files.
            argv = ["rpm", "-qp", "--nomanifest", "--qf", _TAGS, path]
            rows = _rows(self._ask(f"reading the package {path}", argv, self.commands.read))
            if len(rows) != 1:
                raise HostError(f"{path} is not a package that rpm can read. Name another file.")
            name, epoch, version, architecture = rows[0]
            found.append(PackageFile(path, name, _with_epoch(epoch, version), architecture))
        return found

    def architecture(self) -> str:
        return self._ask("asking rpm for the architecture", ["rpm", "-E", "%{_arch}"], self.commands.read).strip()

    # -- transactions --------------------------------------------------------------------------------------------

    def preview(self, change: Change, offline: bool = False) -> Preview:
        found = Preview()
        for arguments in self._steps(change):
            argv = ["dnf", *(["-C"] if offline else []), "--assumeno", *arguments]
            status, output, errors = self._patiently(argv, self.commands.fetch)
            if status and "Operation aborted" not in output + errors:
                raise CommandError("Trying the change (dnf --assumeno)", _words(output, errors), "")
            step = preview_of(output)
            found = Preview(
                {**found.install, **step.install},
                tuple(dict.fromkeys([*found.remove, *step.remove])),
                (*found.downgrade, *step.downgrade),
            )
        return found

    def carry_out(self, change: Change) -> None:
        for arguments in self._steps(change):
            status, output, errors = self._patiently(["dnf", "-y", *arguments], self.commands.change)
            if status:
                raise CommandError(f"dnf {_verb(arguments)}", _words(output, errors), "")
        if change.change_held and self._has_locks():
            # Locks at the former versions would soon take the packages back.
            files = [file.name for file in self.describe(change.files)]
            self._release([*change.install, *files, *change.remove])

    def _steps(self, change: Change) -> list[list[str]]:
        """The arguments of dnf, one list for each transaction: dnf 4 and 5 have no command in common that does both.

        What is replaced goes after the new packages came, so that a host is never without either.
        """
        options = ["--setopt=exit_on_lock=1", "--setopt=install_weak_deps=0", "--setopt=clean_requirements_on_remove=0"]
        if change.change_held:
            options.append("--disableplugin=versionlock")
        steps = []
        if change.files:
            steps.append([*options, "--disablerepo=*", *self._erasing(change), "install", *change.files])
        elif change.install:
            named = [f"{name}-{version}" for name, version in change.install.items()]
            steps.append([*options, *self._erasing(change), "install", *named])
        if change.remove:
            steps.append([*options, "remove", *change.remove])
        return steps

    @staticmethod
    def _erasing(change: Change) -> list[str]:
        return ["--allowerasing"] if change.remove else []

    # -- holds ---------------------------------------------------------------------------------------------------

    def require_holds(self) -> None:
        status, output, errors = self.commands.read(self.host.argv([*_VERSIONLOCK, "list"]))
        if status:
            raise HostError(
                "hold is asked for, but this dnf cannot lock versions:"
                f" {' | '.join(_words(output, errors)) or 'it does not say why'}."
                " Install python3-dnf-plugin-versionlock, or leave hold out; nothing was changed."
            )

    def hold(self, packages: t.Mapping[str, str]) -> None:
        # Locks at other versions would leave no version that is allowed.
        self.unhold(list(packages))
        named = [f"{name}-{version}" for name, version in packages.items()]
        self._ask("dnf versionlock add", [*_VERSIONLOCK, "add", *named], self.commands.read)

    def unhold(self, names: t.Sequence[str]) -> None:
        self._release(names)
        left = [name for name, package in self.installed(names).items() if package.held]
        if left:
            raise HostError(f"{', '.join(left)} are still locked. Remove the locks by hand (dnf versionlock delete).")

    def _release(self, names: t.Sequence[str]) -> None:
        if self._has_locks():
            # One that is not locked may be an error for dnf, so its status says nothing.
            self._patiently([*_VERSIONLOCK, "delete", *names], self.commands.read)

    def _has_locks(self) -> bool:
        return any(self.host.exists(path) for path in LOCK_FILES)

    def _ask(self, doing: str, argv: list[str], run: Runner) -> str:
        status, output, errors = self._patiently(argv, run)
        if status:
            raise CommandError(doing[0].upper() + doing[1:], _words(output, errors), "")
        return output

    def _patiently(self, argv: list[str], run: Runner) -> tuple[int, str, str]:
        return patiently(run, self.host.argv(argv), lambda said: bool(_BUSY.search(said)), self.lock_timeout)


def candidates_of(output: str) -> dict[str, list[Candidate]]:
    """The versions in the output of dnf repoquery; dnf would take the newest."""
    found: dict[str, list[Candidate]] = {}
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, epoch, version, origin = fields
            found.setdefault(name, []).append(Candidate(_with_epoch(epoch, version), origin))
    for name, offers in found.items():
        offers.sort(key=lambda offer: version_order(offer.version), reverse=True)
        found[name] = [offers[0]._replace(preferred=True), *offers[1:]]
    return found


def preview_of(output: str) -> Preview:
    """What dnf --assumeno would do.  A long name stands on a line of its own, and what is replaced has one too."""
    install: dict[str, str] = {}
    remove: list[str] = []
    downgrade: list[str] = []
    replaced: list[str] = []
    section = ""
    row: list[str] = []
    for line in output.splitlines():
        heading, gone = _SECTION.match(line), _REPLACED.match(line)
        if heading:
            section, row = heading.group(1), []
        elif not line.strip() or not line[0].isspace():
            # The summary, whose words are the same, has no colons but at its own head.
            section = section if line.startswith("=") else ""
        elif gone:
            replaced.append(_ARCHITECTURES.sub("", gone.group(1)))
        elif section:
            fields = line.split()
            row = fields if line[1:2].strip() else [*row, *fields]
            if len(row) >= 3:
                _sort_in(section, row, install, remove, downgrade)
    # An upgrade, for dnf 5, replaces its own former version.
    remove += [name for name in replaced if name not in install and name not in remove]
    return Preview(install, tuple(remove), tuple(downgrade))


def _sort_in(section: str, row: list[str], install: dict[str, str], remove: list[str], downgrade: list[str]) -> None:
    name, version = row[0], row[2]
    if section == "Removing":
        if name not in remove:
            remove.append(name)
    elif section != "Replacing":
        install[name] = version
        if section == "Downgrading" and name not in downgrade:
            downgrade.append(name)


def locks_in(output: str) -> list[str]:
    """The patterns in the output of versionlock list of dnf 4, or what amounts to them of dnf 5, but no exclusions."""
    found = []
    name = ""
    for line in output.splitlines():
        named, version = re.match(r"Package name: (\S+)", line), re.match(r"evr = (\S+)", line)
        if named:
            name = named.group(1)
        elif version:
            found.append(f"{name}-{version.group(1)}")
        elif line.strip() and line[0] not in "#!":
            found.append(line.strip())
    return found


def is_locked(package: t.Sequence[str], locks: t.Iterable[str]) -> bool:
    """Whether one of ``locks`` holds a package (name, epoch, version with release, architecture) where it is.

    One that is locked at another version is not held, but due to change.
    """
    name, epoch, version, architecture = package
    plain = [f"{name}-{version.split('-')[0]}", f"{name}-{version}", f"{name}-{epoch}:{version}"]
    spellings = [*plain, *(f"{spelling}.{architecture}" for spelling in plain)]
    return any(fnmatch.fnmatchcase(spelling, lock) for lock in locks for spelling in spellings)


def version_order(version: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """A key that sorts full versions as rpm does, where they are made of digits, letters and tildes."""
    epoch, colon, rest = version.partition(":")
    pieces = [epoch if colon else "0", *(rest if colon else version).split("-")]
    return tuple(_segments(piece) for piece in pieces)


def _segments(piece: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"~|\d+|[A-Za-z]+", piece)
    found = [(0, 0, "") if part == "~" else (3, int(part), "") if part.isdigit() else (2, 0, part) for part in parts]
    return (*found, (1, 0, ""))


def _rows(output: str) -> list[list[str]]:
    return [fields for fields in (line.split("\t") for line in output.splitlines()) if len(fields) == 4]


def _with_epoch(epoch: str, version: str) -> str:
    return version if epoch in ("0", "(none)", "") else f"{epoch}:{version}"


def _verb(arguments: list[str]) -> str:
    return "install" if "install" in arguments else "remove"


def _words(output: str, errors: str) -> list[str]:
    """The last words, from the one on that is marked as the error; dnf has a lot to say before it."""
    said = last_words(output, errors, _noise)
    marked = [place for place, line in enumerate(said) if line.startswith("Error:")]
    return said[marked[-1] :] if marked else said


def _noise(line: str) -> bool:
    return bool(_NOISE.match(line))
