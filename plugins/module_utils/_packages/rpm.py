# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What dnf and zypper share: queries of rpm, the order of versions, and transactions that keep files and locks."""

from __future__ import annotations

import abc
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import saved_files

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_TAGS = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n"
_ABSENT = re.compile(r"^package (\S+) is not installed$", re.MULTILINE)


class Row(t.NamedTuple):
    """A package as rpm lists it. ``version`` includes the release."""

    name: str
    epoch: str
    version: str
    architecture: str

    @property
    def full_version(self) -> str:
        return with_epoch(self.epoch, self.version)


class Locks(t.Protocol):
    """The list of the package manager's locks, which hold packages."""

    def __init__(self, host: hostfs.HostFS) -> None: ...

    def exist(self) -> bool:
        """Return whether there is any lock."""

    def held_names(self, rows: t.Sequence[Row]) -> set[str]:
        """Return the names of those installed packages that are held at their version."""

    def snapshot(self) -> list[saved_files.SavedFile]:
        """Return the state of the list, for restore()."""


_Locks = t.TypeVar("_Locks", bound=Locks)


class RpmManager(abc.ABC, t.Generic[_Locks]):
    """The packages of one host with rpm. A subclass changes them. ``lock_list`` is the class of its locks."""

    name: str
    lock_list: type[_Locks]
    imports_keys = True

    def __init__(
        self,
        host: hostfs.HostFS,
        commands: packages_base.Commands,
        lock_timeout: int = core_lock.PACKAGE_MANAGER_TIMEOUT,
    ) -> None:
        self.host = host
        self.commands = commands
        self.lock_timeout = lock_timeout
        self.warnings: list[str] = []
        self.duplicates: list[str] = []
        self._locks = self.lock_list(host)

    @property
    def readable(self) -> bool:
        return self.host.live

    # -- installed packages --------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, packages_base.Package]:
        if not self.readable:
            return {}
        found = self.query(list(names))
        self.duplicates = [name for name, package in found.items() if not package.complete]
        return found

    def query(self, names: t.Sequence[str]) -> dict[str, packages_base.Package]:
        """Return the installed packages among ``names``."""
        # The exit status of rpm is the number of packages that are not installed.
        _status, output, errors = self.commands.read(self.host.argv(["rpm", "-q", "--qf", _TAGS, *names]))
        rows = _rows(output)
        self._check_database(names, rows, output, errors)
        held = self._locks.held_names(rows)
        found: dict[str, packages_base.Package] = {}
        for row in rows:
            # An interrupted transaction leaves the old version and the new one.
            other = [found[row.name].version] if row.name in found else []
            newest = max([row.full_version, *other], key=version_order)
            found[row.name] = packages_base.Package(newest, row.name in held, not other)
        return found

    def _check_database(self, names: t.Sequence[str], rows: list[Row], output: str, errors: str) -> None:
        """Raise CommandError if rpm cannot read its database: it then reports packages as not installed."""
        # Warnings are not errors: rpm warns of a database in the format of an older release, but reads it.
        problems = [line for line in errors.splitlines() if line.strip() and not line.startswith("warning:")]
        reported = {*(row.name for row in rows), *_ABSENT.findall(output)}
        if problems or not set(names) <= reported:
            advice = "Run `rpm --rebuilddb` on the host."
            lines = self.last_lines("", "\n".join(problems)) or self.last_lines(output, "")
            raise packages_base.CommandError("Reading the installed packages (rpm -q)", lines, advice)

    def config_only(self, names: t.Iterable[str]) -> list[str]:
        del names  # rpm has no such state
        return []

    def interrupted(self) -> bool:
        return bool(self.duplicates)

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        del own
        raise core_errors.HostError(
            f"rpm lists two versions of {', '.join(self.duplicates)}, because a transaction was interrupted."
            f" {self.duplicates_advice()}"
        )

    def repair_command(self, _names: t.Sequence[str]) -> str:
        return ""

    def repair(self, own: t.Sequence[str]) -> None:
        self.refuse_interrupted(own)

    # -- files of packages ---------------------------------------------------------------------------------------

    def describe(self, files: t.Iterable[str]) -> list[packages_base.PackageFile]:
        found = []
        for path in files:
            # Without --nomanifest, rpm reads any text as a list of files.
            argv = ["rpm", "-qp", "--nomanifest", "--qf", _TAGS, path]
            rows = _rows(self.read(f"Reading the package {path}", argv, self.commands.read))
            if len(rows) != 1:
                raise core_errors.HostError(f"{path} is not a valid rpm package. Set another file.")
            found.append(packages_base.PackageFile(path, rows[0].name, rows[0].full_version, rows[0].architecture))
        return found

    def architecture(self) -> str:
        return self.read("Reading rpm's architecture", ["rpm", "-E", "%{_arch}"], self.commands.read).strip()

    # -- transactions --------------------------------------------------------------------------------------------

    def apply(self, change: packages_base.Change) -> None:
        saved = self._save_configuration(change)
        try:
            if change.change_held and self._locks.exist():
                self._apply_without_locks(change, self.names_of(change))
            else:
                self.transact(change)
        finally:
            for path in saved_files.restore_missing(self.host, saved):
                self.warnings.append(
                    f"{self.name} removed {path} together with {' or '.join(change.remove)}. Its previous content is"
                    " restored."
                )

    def _save_configuration(self, change: packages_base.Change) -> list[saved_files.SavedFile]:
        """Return the configuration files of packages that are replaced. rpm removes these files, edited or not."""
        if not change.remove or not (change.install or change.files):
            return []
        argv = ["rpm", "-qc", *change.remove]
        _status, output, _errors = self.run(argv, self.commands.read)
        return saved_files.snapshot_files(self.host, [line for line in output.splitlines() if line.startswith("/")])

    def _apply_without_locks(self, change: packages_base.Change, names: t.Sequence[str]) -> None:
        """Apply a change of packages that may be locked. Other packages stay locked meanwhile."""
        before, saved = self.query(names), self._locks.snapshot()
        released = None
        try:
            self.unhold(names)
            released = self._locks.snapshot()
            self.transact(change)
        except core_errors.NvidiaError:
            after = self.query(names)
            same = {n: p.version for n, p in after.items()} == {n: p.version for n, p in before.items()}
            # A list that another program has changed meanwhile is not replaced.
            if same and released in (None, self._locks.snapshot()):
                saved_files.restore(self.host, saved)
            raise

    def names_of(self, change: packages_base.Change) -> list[str]:
        """Return the names of the packages that ``change`` names."""
        return [*change.install, *(file.name for file in self.describe(change.files)), *change.remove]

    def refuse_locked(self, names: t.Sequence[str], command: str) -> None:
        """Raise HostError for packages that are still held. ``command`` removes a lock."""
        locked = [name for name, package in self.query(names).items() if package.held] if names else []
        if locked:
            raise core_errors.HostError(
                f"{', '.join(locked)} {'is' if len(locked) == 1 else 'are'} still locked. Remove the locks on the host"
                f" (`{command}`)."
            )

    def read(self, action: str, argv: list[str], run: core_plan.Runner) -> str:
        """Return the output of a program. Raises CommandError if it fails."""
        status, output, errors = self.run(argv, run)
        if status:
            raise packages_base.CommandError(action, self.last_lines(output, errors), "")
        return output

    def run(self, argv: list[str], run: core_plan.Runner) -> tuple[int, str, str]:
        """Run a program, and repeat it while another program holds a lock."""
        return packages_base.retry_while_locked(run, self.host.argv(argv), self.is_busy, self.lock_timeout)

    # -- what a subclass knows -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def transact(self, change: packages_base.Change) -> None:
        """Apply ``change``, with the locks of the host in force. Raises CommandError."""

    @abc.abstractmethod
    def unhold(self, names: t.Sequence[str]) -> None: ...

    @abc.abstractmethod
    def duplicates_advice(self) -> str:
        """Return how an administrator removes the second version of a package."""

    @abc.abstractmethod
    def is_busy(self, status: int, text: str) -> bool:
        """Return whether a program failed because another one holds a lock, from its exit status and output."""

    @abc.abstractmethod
    def last_lines(self, output: str, errors: str) -> list[str]:
        """Return the lines of the output that say why a program failed."""


def mark_preferred(
    candidates: t.Mapping[str, t.Sequence[packages_base.Candidate]], versions: t.Mapping[str, str]
) -> dict[str, list[packages_base.Candidate]]:
    """Return ``candidates``, of which those with ``versions`` (by name) are preferred."""
    return {
        name: [candidate._replace(preferred=candidate.version == versions.get(name)) for candidate in entries]
        for name, entries in candidates.items()
    }


def newest_first(
    candidates: t.Mapping[str, t.Sequence[packages_base.Candidate]],
) -> dict[str, list[packages_base.Candidate]]:
    """Return ``candidates``, newest first. The newest is preferred, as it is if all come from one repository."""
    found = {}
    for name, entries in candidates.items():
        newest, *others = sorted(entries, key=lambda candidate: version_order(candidate.version), reverse=True)
        found[name] = [newest._replace(preferred=True), *others]
    return found


def version_order(version: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return a key that sorts full versions as rpm does, if they consist of digits, letters and tildes."""
    epoch, colon, rest = version.partition(":")
    pieces = [epoch if colon else "0", *(rest if colon else version).split("-")]
    return tuple(_segments(piece) for piece in pieces)


def _segments(piece: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"~|\d+|[A-Za-z]+", piece)
    found = [(0, 0, "") if part == "~" else (3, int(part), "") if part.isdigit() else (2, 0, part) for part in parts]
    return (*found, (1, 0, ""))


def _rows(output: str) -> list[Row]:
    """Return the rows of the output that have the four fields of _TAGS."""
    return [Row(*fields) for fields in (line.split("\t") for line in output.splitlines()) if len(fields) == 4]


def with_epoch(epoch: str, version: str) -> str:
    return version if epoch in ("0", "(none)", "") else f"{epoch}:{version}"
