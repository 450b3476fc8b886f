# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install, remove and hold packages with apt.

The installed packages are read from dpkg's own files. This needs no process, and works in a directory tree.
"""

from __future__ import annotations

import fcntl
import fnmatch
import os
import re
import struct
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

STATUS_FILE = "/var/lib/dpkg/status"
# The changes that dpkg has made since it wrote that file. Entries exist while dpkg is running, or after it was
# interrupted.
UPDATES = "/var/lib/dpkg/updates"
# A program that uses dpkg holds the first lock all the time. dpkg itself holds the second.
LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")
_NOT_INSTALLED = ("config-files", "not-installed")
# The structure flock of fcntl(2): type, whence, start, length, pid.
_FLOCK = "hhqqi4x"

# This step completes the packages of other software. The toolkit's packages are configured by name.
_CONFIGURE_ADVICE = "Run `dpkg --configure -a` on the host and fix the package that it reports."

# dpkg keeps an edited configuration file and asks no question.
_CONFFILES = ("--force-confdef", "--force-confold")
# Without sources, apt cannot download anything (--no-download fails with package files on apt 2.6). apt uses no cache
# on the disk, because the next run would have to rebuild it.
_NO_SOURCES = (
    "Dir::Etc::SourceList=/dev/null",
    "Dir::Etc::SourceParts=/dev/null",
    "Dir::Cache::pkgcache=",
    "Dir::Cache::srcpkgcache=",
)
# apt takes a version from any source that has it, and can take one package for another of the same version. So it gets
# no other source where only this collection's may be used.
_ONLY_OWN_SOURCE = (f"Dir::Etc::SourceList={apt_sources.REPOSITORY.source}", *_NO_SOURCES[1:])
_PINS = "/etc/apt/preferences"
_BUSY = re.compile(r"Could not get lock|is locked by|was locked by another process|Unable to acquire the dpkg frontend")
# Older versions of apt-get update only warn of these errors. Other warnings are not errors: apt 3.3 prints some of its
# own.
_NOT_FETCHED = re.compile(
    r"^W: (Failed to fetch|Some index files failed|GPG error|An error occurred during the sig)", re.MULTILINE
)
_NOISE = re.compile(
    r"\d+ upgraded,|\(Reading database|(Reading|Building|Solving) .*\.\.\.|(Get|Ign|Hit):\d|After this operation|"
    r"(Need to get|Fetched|Selecting|Preparing|Unpacking|Setting up|Removing|Purging|Processing) |The following .*:$|"
    r"debconf: delaying|N: |Note, |dpkg: warning: downgrading |"
    # Consequences of another failure.
    r"(dpkg: )?dependency problems |\S+ depends on .*; however:|Package \S+ is not configured yet|Errors were enc"
)
_LISTS = re.compile(r"^The following (?!packages have unmet).*:\n(?: .*\n)+", re.MULTILINE)
_VERSION_ROW = re.compile(r"^ (?:\*\*\*|   ) (\S+)(?: -?\d+)?(?: \(.*\))?$")
_SOURCE_ROW = re.compile(r"^ {6,}-?\d+ (\S.*)$")
_DEPENDENCIES = re.compile(r"^(?:Pre-)?Depends: (.*)$", re.MULTILINE)
_STEP = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[[^]]*\])?(?: \((\S+))?", re.MULTILINE)


class Apt:
    """The packages of one host with apt and dpkg."""

    name = "apt"
    repository = apt_sources.REPOSITORY
    records_reboot = True
    # apt reads the key from the file that the source names.
    imports_keys = False
    # dpkg's files are readable in a directory tree, too.
    readable = True
    warnings: tuple[str, ...] = ()

    def __init__(
        self, host: hostfs.HostFS, commands: packages_base.Commands, lock_timeout: int = lock.PACKAGE_MANAGER_TIMEOUT
    ) -> None:
        self.host = host
        self.commands = commands
        self.lock_timeout = lock_timeout

    # -- installed packages --------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, packages_base.Package]:
        found = {}
        for name, (status, version) in self._states(names).items():
            if status[2] not in _NOT_INSTALLED:
                found[name] = packages_base.Package(version, status[0] == "hold", not _is_pending(status))
        return found

    def config_only(self, names: t.Iterable[str]) -> list[str]:
        return [name for name, (status, _version) in self._states(names).items() if status[2] == "config-files"]

    def interrupted(self) -> bool:
        if not packages_base.wait_until_idle(
            lambda: bool(self._updates()) and self._lock() is not None, self.lock_timeout
        ):
            path, pid = self._lock() or (LOCKS[0], 0)
            raise core_errors.HostError(
                f"Another program{f' (process {pid})' if pid > 0 else ''} uses dpkg and has locked {path}."
                f" Run this again when that program has ended, or increase {core_errors.option:lock_timeout}."
            )
        return bool(self._updates())

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        others = self._pending(own)
        if others or not own:
            pending = ", ".join(others) or f"the entries in {UPDATES}"
            raise core_errors.HostError(
                f"dpkg was interrupted, so apt cannot work. Pending: {pending}. {_CONFIGURE_ADVICE}"
            )

    def repair_command(self, names: t.Sequence[str]) -> str:
        return f"dpkg --configure {' '.join(names)}"

    def repair(self, own: t.Sequence[str]) -> None:
        if self.interrupted():
            self.refuse_interrupted(own)
        status, output, errors = self._run(["dpkg", *_CONFFILES, "--configure", *own], self.commands.change)
        # Packages that lack the other half of an upgrade cannot be configured yet. The transaction installs that half.
        if status and self._updates():
            raise packages_base.CommandError(
                f"dpkg --configure {' '.join(own)}", _last_lines(output, errors), _CONFIGURE_ADVICE
            )

    def _pending(self, own: t.Collection[str]) -> list[str]:
        """Return the packages, except ``own``, that dpkg has not completed, each with its state."""
        states = sorted(self._states(None).items())
        return [
            f"{name} ({status[2]})" for name, (status, _version) in states if name not in own and _is_pending(status)
        ]

    def _advice(self) -> str:
        """Return the advice for other packages that may have made apt-get fail, or an empty text."""
        others = self._pending((*packages_base.PACKAGES, *packages_base.REPLACED_PACKAGES))
        return f"Other packages are pending: {', '.join(others)}. {_CONFIGURE_ADVICE}" if others else ""

    def _states(self, names: t.Iterable[str] | None) -> dict[str, tuple[list[str], str]]:
        selected = None if names is None else set(names)
        found: dict[str, tuple[list[str], str]] = {}
        for path in [STATUS_FILE, *self._updates()]:
            found.update(states_of(self.host.read_text(path, hostfs.PACKAGES_BYTES), selected))
        return found

    def _lock(self) -> tuple[str, int] | None:
        """Return the path of a lock that is held and the process that holds it, or None."""
        for path in LOCKS:
            pid = _locked_by(self.host.real_path(path)) if self.host.exists(path) else None
            if pid is not None:
                return path, pid
        return None

    def _updates(self) -> list[str]:
        names = [name for name in self.host.readable_entries(UPDATES) if name.isdigit()]
        return [f"{UPDATES}/{name}" for name in names]

    # -- available packages --------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False, own: bool = False) -> packages_base.Offers:
        del offline  # apt-cache reads only local lists
        options = _set(*_ONLY_OWN_SOURCE) if own else []
        output = self._read("Reading the available versions", ["apt-cache", *options, "policy", *names])
        found = candidates_of(output)
        # An installed version that no source has is listed too.
        return {name: [one for one in found[name] if not own or one.origin != STATUS_FILE] for name in found}

    def hiding(self, names: t.Sequence[str]) -> list[str]:
        paths = [_PINS, *self.host.glob(f"{_PINS}.d/*")]
        return [pin for path in paths for pin in negative_pins(path, self.host.read_text(path), names)]

    def refresh(self, everything: bool = False) -> None:
        only_own = not everything and self.host.exists(apt_sources.REPOSITORY.source)
        # The lists of other sources are kept.
        options = (*_ONLY_OWN_SOURCE, "APT::Get::List-Cleanup=0") if only_own else ()
        argv = ["apt-get", "update", "-q", *_set("APT::Update::Error-Mode=any", *options)]
        status, output, errors = self._run(argv, self.commands.fetch)
        if status or _NOT_FETCHED.search(output + errors):
            raise packages_base.CommandError(
                "Fetching the package lists (apt-get update)",
                _last_lines("", errors) or _last_lines(output, ""),
                "No package was changed. Check the repository's address and key, the proxy, and the network.",
            )

    def describe(self, files: t.Iterable[str]) -> list[packages_base.PackageFile]:
        form = "--showformat=${Package}\\t${Version}\\t${Architecture}\\n"
        found = []
        for path in files:
            fields = self._read(f"Reading the package {path}", ["dpkg-deb", "-W", form, path]).strip().split("\t")
            if len(fields) != 3:
                raise core_errors.HostError(f"{path} is not a valid deb package. Set another file.")
            found.append(packages_base.PackageFile(path, *fields))
        return found

    def architecture(self) -> str:
        return self._read("Reading dpkg's architecture", ["dpkg", "--print-architecture"]).strip()

    # -- transactions --------------------------------------------------------------------------------------------

    def require_transactions(self) -> None:
        """Return without a check, because apt can always change packages."""

    def preview(self, change: packages_base.Change, offline: bool = False) -> packages_base.Preview:
        del offline  # a simulation fetches nothing
        missing = self._missing_dependencies(change)
        # As long as these are missing, apt can simulate the change only with all sources.
        steps = [missing, self._arguments(change._replace(own=False))] if missing else [self._arguments(change)]
        found = preview_of("".join(self._simulate(arguments) for arguments in steps))
        names = (*found.install, *found.remove)
        # If held packages may change, apt's output does not distinguish them.
        packages = self.installed([packages_base.plain_name(name) for name in names])
        held = {name for name, package in packages.items() if package.held}
        return found._replace(held=tuple(name for name in names if packages_base.plain_name(name) in held))

    def apply(self, change: packages_base.Change) -> None:
        missing = self._missing_dependencies(change)
        found = [*preview_of(self._simulate(missing)).install] if missing else []
        present = self.installed([packages_base.plain_name(name) for name in found])
        for arguments in filter(None, (missing, self._arguments(change))):
            status, output, errors = self._run(["apt-get", *arguments], self.commands.change)
            if status:
                command = next(word for word in ("satisfy", "install", "purge") if word in arguments)
                raise packages_base.CommandError(f"apt-get {command}", _last_lines(output, errors), self._advice())
            new = [name for name in found if arguments is missing and packages_base.plain_name(name) not in present]
            if new:
                # As apt marks other dependencies. apt-get satisfy (2.6, 3.0) ignores --mark-auto.
                self._read("apt-mark auto", ["apt-mark", "auto", *new])

    def _simulate(self, arguments: list[str]) -> str:
        return self._read("Simulating the change (apt-get -s)", ["apt-get", "-s", *arguments])

    def _missing_dependencies(self, change: packages_base.Change) -> list[str]:
        """Return the arguments that install, from any source, what the packages of ``change`` lack; often empty.

        This is a transaction of its own, because that of the packages sees only this collection's source.
        """
        if not change.own or not self._run(["apt-get", "-s", *self._arguments(change)], self.commands.read)[0]:
            return []
        packages = [f"{name}={version}" for name, version in change.install.items()]
        argv = ["apt-cache", *_set(*_ONLY_OWN_SOURCE), "show", *packages]
        fields = _DEPENDENCIES.findall(self._read("Reading the dependencies", argv))
        needed = [entry.strip() for field in fields for entry in field.split(",")]
        others = [entry for entry in needed if entry.split(" ", 1)[0] not in change.install]
        if not others:
            return []
        arguments = [*self._options(), "--no-install-recommends", "satisfy", ", ".join(others)]
        own = [name for name in preview_of(self._simulate(arguments)).install if name in packages_base.PACKAGES]
        if own:
            raise core_errors.HostError(
                f"Dependencies of the toolkit's packages would install {', '.join(own)} from another source than"
                f" {apt_sources.REPOSITORY.source}. Install {', '.join(others)} first."
            )
        return arguments

    def _options(self) -> list[str]:
        conffiles = [f"Dpkg::Options::={option}" for option in _CONFFILES]
        timeout = f"DPkg::Lock::Timeout={self.lock_timeout}"
        # The host's apt.conf may let every transaction remove packages that are no longer needed.
        no_removal = "APT::Get::AutomaticRemove=false"
        return ["-y", "-q", *_set(*conffiles, timeout, "Dpkg::Use-Pty=0", no_removal)]

    def _arguments(self, change: packages_base.Change) -> list[str]:
        arguments = self._options()
        if change.change_held:
            arguments.append("--allow-change-held-packages")
        if not change.install and not change.files:
            # A broken source must not prevent the removal of packages.
            return [*arguments, *_set(*_NO_SOURCES), "purge", *change.remove]
        if change.files or change.own:
            arguments += _set(*(_NO_SOURCES if change.files else _ONLY_OWN_SOURCE))
        packages = change.files or [f"{name}={version}" for name, version in change.install.items()]
        # One command names all packages, because apt does not find the exact versions that the four need of each other.
        removals = [f"{name}-" for name in change.remove]
        return [*arguments, "--no-install-recommends", "--allow-downgrades", "install", *packages, *removals]

    # -- holds ---------------------------------------------------------------------------------------------------

    def require_holds(self) -> None:
        """Return without a check, because apt-mark is a part of apt."""

    def hold(self, packages: t.Mapping[str, str]) -> None:
        self._read("apt-mark hold", ["apt-mark", "hold", *packages])

    def unhold(self, names: t.Sequence[str]) -> None:
        self._read("apt-mark unhold", ["apt-mark", "unhold", *names])

    def _read(self, action: str, argv: list[str]) -> str:
        status, output, errors = self._run(argv, self.commands.read)
        if status:
            lines = _last_lines("", errors) or _last_lines(output, "")
            if "unmet dependencies" in output:
                lines = _last_lines(output.split("unmet dependencies:", 1)[1], errors)
            advice = self._advice() if argv[0] == "apt-get" else ""
            raise packages_base.CommandError(action, lines, advice)
        return output

    def _run(self, argv: list[str], run: t.Callable[[list[str]], tuple[int, str, str]]) -> tuple[int, str, str]:
        # Only transactions of apt-get can wait for a lock. apt-get update, apt-mark and dpkg cannot.
        return packages_base.retry_while_locked(
            run, self.host.argv(argv), lambda _status, text: bool(_BUSY.search(text)), self.lock_timeout
        )


def states_of(text: str, names: t.Collection[str] | None) -> dict[str, tuple[list[str], str]]:
    """Return the three words of the status, and the version, of packages in a file of dpkg; of all if names is None."""
    found: dict[str, tuple[list[str], str]] = {}
    for stanza in text.split("\n\n"):
        heading = stanza.lstrip("\n").split("\n", 1)[0]
        if not heading.startswith("Package:") or not (names is None or heading[8:].strip() in names):
            continue
        fields = dict(re.findall(r"^(Status|Version):[ \t]*(.*)$", stanza, re.MULTILINE))
        status = fields.get("Status", "").split()
        name = heading[8:].strip()
        # An entry of a foreign architecture that is not installed must not replace that of the host.
        if len(status) == 3 and not (name in found and status[2] in _NOT_INSTALLED):
            found[name] = (status, fields.get("Version", "").strip())
    return found


def _is_pending(status: t.Sequence[str]) -> bool:
    """Return whether dpkg has not completed a package. A package with unprocessed triggers is configured."""
    _want, flag, state = status
    complete = flag == "ok" and (state == "installed" or state.startswith("triggers-"))
    return state not in _NOT_INSTALLED and not complete


def candidates_of(output: str) -> packages_base.Offers:
    """Return the versions in the output of apt-cache policy, which lists the newest first."""
    found: packages_base.Offers = {}
    name, candidate = "", ""
    for line in output.splitlines():
        version, source = _VERSION_ROW.match(line), _SOURCE_ROW.match(line)
        if line and not line[0].isspace() and line.endswith(":"):
            name = line[:-1]
        elif line.startswith("  Candidate: "):
            candidate = line[13:].strip()
        elif version:
            found.setdefault(name, []).append(
                packages_base.Candidate(version.group(1), "", version.group(1) == candidate)
            )
        elif source and found.get(name):
            last = found[name][-1]
            origin = source.group(1)
            if origin.endswith(" Packages"):
                origin = origin[:-9].rstrip()
            # The first source has the highest priority.
            found[name][-1] = last._replace(origin=last.origin or origin)
    return found


def negative_pins(path: str, text: str, names: t.Sequence[str]) -> t.Iterator[str]:
    """Yield the pins in a file of apt_preferences(5) that hide all versions of one of ``names``."""
    for stanza in apt_sources.stanzas(text):
        patterns = " ".join(value for _line, value in stanza.get("package", ())).split()
        # A pattern in slashes is a regular expression.
        matches = any(pattern[0] == "/" or fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)
        for line, priority in stanza.get("pin-priority", ()) if matches else ():
            if priority.startswith("-"):
                yield f"{path}, line {line} (Pin-Priority: {priority})"


def preview_of(output: str) -> packages_base.Preview:
    """Return the changes that apt-get -s prints."""
    install: dict[str, str] = {}
    remove: list[str] = []
    for step, name, version in _STEP.findall(output):
        if step == "Inst":
            install[name] = version
        elif name not in remove:
            remove.append(name)
    blocks = re.findall(r"^The following packages will be DOWNGRADED:\n((?: .*\n)+)", output, re.MULTILINE)
    return packages_base.Preview(install, tuple(remove), tuple("".join(blocks).split()))


def _locked_by(path: str) -> int | None:
    """Return the process that holds a POSIX lock on a file, 0 if it is not visible, or None if there is no lock.

    The lock is only queried, because a lock by this collection, however short, could make another program fail.
    """
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with open(path, "rb") as stream:
            kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, fcntl.fcntl(stream, fcntl.F_GETLK, query))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _set(*settings: str) -> list[str]:
    return [argument for setting in settings for argument in ("-o", setting)]


def _last_lines(output: str, errors: str) -> list[str]:
    """Return the last lines of the output, without the lists of packages that a change concerns."""
    return packages_base.last_lines(_LISTS.sub("", output), errors, _NOISE)
