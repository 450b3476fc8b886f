# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: packages of Fedora, RHEL and their kin.  What is installed is asked of rpm, everything
# else of dnf, 4 or 5.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._dnf_locks import LockList, is_locked, names_package
from ansible_collections.gpufleet.nvidia.plugins.module_utils._dnf_output import (
    ARCHITECTURES,
    candidates_of,
    is_answered,
    preview_of,
    rows_of,
    version_order,
    with_epoch,
    words_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import PACKAGE_MANAGER_TIMEOUT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (
    Candidate,
    Change,
    CommandError,
    Package,
    PackageFile,
    Preview,
    patiently,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages_kept import give_back, keep, restore
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import DNF_REPOSITORY, DNF_SOURCE

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Commands
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages_kept import KeptFile

# What is locked is installed: no list of any repository is needed for it.
_VERSIONLOCK = ("dnf", "-q", "--disablerepo=*", "versionlock")
_TAGS = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n"
_OFFER = "%{name}\\t%{epoch}\\t%{version}-%{release}\\t%{repoid}\\n"
_ABSENT = re.compile(r"^package (\S+) is not installed$", re.MULTILINE)
# How transactions are run and previewed.
_OPTIONS = ("--setopt=exit_on_lock=1", "--setopt=install_weak_deps=0", "--setopt=clean_requirements_on_remove=0")
_BUSY = re.compile(r"already locked by|another copy is running|Failed to obtain .*lock", re.IGNORECASE)


class Dnf:
    """The packages of one host with rpm."""

    name = "dnf"

    def __init__(self, host: HostRoot, commands: Commands, lock_timeout: int = PACKAGE_MANAGER_TIMEOUT) -> None:
        self.host = host
        self.commands = commands
        self.lock_timeout = lock_timeout
        self.notes: list[str] = []
        self._locks = LockList(host)
        self._twice: list[str] = []

    @property
    def readable(self) -> bool:
        return self.host.live

    # -- what is there -------------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, Package]:
        if not self.readable:
            return {}
        found = self._registered(list(names))
        self._twice = [name for name, package in found.items() if not package.whole]
        return found

    def _registered(self, names: t.Sequence[str]) -> dict[str, Package]:
        # Its status is the number of those that are not installed.
        _status, output, errors = self.commands.read(self.host.argv(["rpm", "-q", "--qf", _TAGS, *names]))
        rows = rows_of(output)
        self._refuse_unreadable(names, rows, output, errors)
        locks = self._locks.patterns()
        found: dict[str, Package] = {}
        for name, epoch, version, architecture in rows:
            # A transaction that was cut off leaves the old version and the new one.
            twice = [found[name].version] if name in found else []
            newest = max([with_epoch(epoch, version), *twice], key=version_order)
            held = is_locked((name, epoch, version, architecture), locks)
            found[name] = Package(newest, held, not twice)
        return found

    @staticmethod
    def _refuse_unreadable(names: t.Sequence[str], rows: list[list[str]], output: str, errors: str) -> None:
        """Raises CommandError where rpm could not tell: it calls the packages of a broken database not installed."""
        # One is of a database in the format of an older release, which it reads nevertheless.
        said = [line for line in errors.splitlines() if line.strip() and not line.startswith("warning:")]
        told = {*(row[0] for row in rows), *_ABSENT.findall(output)}
        if said or not set(names) <= told:
            advice = "Mend the database of rpm (rpm --rebuilddb); nothing was changed."
            words = words_of("", "\n".join(said)) or words_of(output, "")
            raise CommandError("Asking rpm what is installed", words, advice)

    def leftovers(self, names: t.Iterable[str]) -> list[str]:
        del names  # rpm has no such state
        return []

    def interrupted(self) -> bool:
        return bool(self._twice)

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        del own
        raise HostError(
            f"Two versions of {', '.join(self._twice)} are registered: a transaction was cut off. Look at what"
            " dnf check --duplicates lists, run dnf remove --duplicates on the host, then run this again."
        )

    def complete(self, own: t.Sequence[str]) -> None:
        self.refuse_interrupted(own)

    # -- what is on offer ----------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False) -> dict[str, list[Candidate]]:
        cached = ["-C", "--setopt=*.skip_if_unavailable=1"] if offline else []
        # Or it asks whether the repository's key may be used, and takes silence for no.
        argv = ["dnf", "-q", "-y", *cached, "repoquery", "--qf", _OFFER, *names]
        found = candidates_of(self._ask("asking dnf for versions", argv, self.commands.fetch))
        # One repository has no priority over others.
        if len({offer.origin for offers in found.values() for offer in offers}) > 1:
            found = self._preferring(found, names, cached)
        return found

    def _preferring(
        self, offers: dict[str, list[Candidate]], names: t.Sequence[str], cached: list[str]
    ) -> dict[str, list[Candidate]]:
        """``offers`` with what dnf itself would take, for which priorities of repositories count before versions."""
        argv = ["dnf", *cached, "--assumeno", *self._options(names), "--allowerasing", "install", *names]
        status, output, errors = self._patiently(argv, self.commands.fetch)
        if status and not is_answered(output + errors):
            taken = {}
        else:
            # What is not to be changed is the best already.
            standing = {name: package.version for name, package in self._registered(names).items()}
            taken = {**standing, **preview_of(output).install}
        return {
            name: [offer._replace(preferred=offer.version == taken.get(name)) for offer in entries]
            for name, entries in offers.items()
        }

    def refresh(self, everything: bool = False) -> None:
        ours = [DNF_REPOSITORY] if not everything and self.host.exists(DNF_SOURCE) else []
        only = ["--disablerepo=*", *(f"--enablerepo={name}" for name in ours)] if ours else []
        # A repository that is optional elsewhere is what this run is about.
        must = [f"--setopt={name}.skip_if_unavailable=0" for name in ours]
        argv = ["dnf", "-q", "-y", *must, *only, "makecache", "--refresh"]
        status, output, errors = self._patiently(argv, self.commands.fetch)
        if status:
            raise CommandError(
                "Fetching the package lists (dnf makecache)",
                words_of(output, errors),
                "Check the repository's address and key, the proxy and the network; no package was changed.",
            )

    def describe(self, files: t.Iterable[str]) -> list[PackageFile]:
        found = []
        for path in files:
            # Or rpm takes any text for a list of files.
            argv = ["rpm", "-qp", "--nomanifest", "--qf", _TAGS, path]
            rows = rows_of(self._ask(f"reading the package {path}", argv, self.commands.read))
            if len(rows) != 1:
                raise HostError(f"{path} is not a package that rpm can read. Name another file.")
            name, epoch, version, architecture = rows[0]
            found.append(PackageFile(path, name, with_epoch(epoch, version), architecture))
        return found

    def architecture(self) -> str:
        return self._ask("asking rpm for the architecture", ["rpm", "-E", "%{_arch}"], self.commands.read).strip()

    # -- transactions --------------------------------------------------------------------------------------------

    def preview(self, change: Change, offline: bool = False) -> Preview:
        found = Preview()
        options = self._options(self._named(change)) if change.change_held else list(_OPTIONS)
        for arguments in self._steps(change, options):
            argv = ["dnf", *(["-C"] if offline else []), "--assumeno", *arguments]
            status, output, errors = self._patiently(argv, self.commands.fetch)
            if status and not is_answered(output + errors):
                raise CommandError("Trying the change (dnf --assumeno)", words_of(output, errors), "")
            step = preview_of(output)
            found = Preview(
                {**found.install, **step.install},
                tuple(dict.fromkeys([*found.remove, *step.remove])),
                (*found.downgrade, *step.downgrade),
            )
        return found._replace(held=self._held(found))

    def _held(self, preview: Preview) -> tuple[str, ...]:
        """Those that go although they are locked, or come at another version than a lock allows."""
        locks = self._locks.patterns()
        names = tuple(dict.fromkeys([*preview.install, *preview.remove]))
        if not locks or not names:
            return ()
        locked = {name for name, package in self._registered(names).items() if package.held}
        locked |= {name for name in names if any(names_package(lock, name) for lock in locks)}
        return tuple(name for name in names if name in locked and not _allows(locks, name, preview.install.get(name)))

    def carry_out(self, change: Change) -> None:
        kept = self._configuration(change)
        try:
            if change.change_held and self._locks.patterns():
                self._without_locks(change, self._named(change))
            else:
                self._carry_out(change)
        finally:
            for path in give_back(self.host, kept):
                self.notes.append(
                    f"{path} was taken away along with {' or '.join(change.remove)}, and put back as it was before."
                )

    def _carry_out(self, change: Change) -> None:
        first, *second = self._steps(change, list(_OPTIONS))
        self._transact(first)
        if second:
            # What the new packages obsolete is gone by then, and its name would stand for them, who provide it.
            left = [f"{name}-{package.version}" for name, package in self._registered(change.remove).items()]
            for arguments in self._steps(Change(remove=tuple(left)), list(_OPTIONS)):
                self._transact(arguments)

    @staticmethod
    def _replaces(change: Change) -> bool:
        return bool(change.remove and (change.install or change.files))

    def _transact(self, arguments: list[str]) -> None:
        status, output, errors = self._patiently(["dnf", "-y", *arguments], self.commands.change)
        if status:
            raise CommandError(f"dnf {_verb(arguments)}", words_of(output, errors), "")

    def _configuration(self, change: Change) -> list[KeptFile]:
        """The configuration files of packages that are replaced: rpm takes them along, edited or not."""
        if not self._replaces(change):
            return []
        argv = ["rpm", "-qc", *change.remove]
        _status, output, _errors = self._patiently(argv, self.commands.read)
        return keep(self.host, [line for line in output.splitlines() if line.startswith("/")])

    def _without_locks(self, change: Change, names: t.Sequence[str]) -> None:
        """Carry out a change of packages that may be locked; those of others stay locked meanwhile."""
        before, kept = self._registered(names), self._locks.keep()
        try:
            self._release(names)
            self._refuse_locked(names)
            self._carry_out(change)
        except GpufleetError:
            after = self._registered(names)
            if {n: p.version for n, p in after.items()} == {n: p.version for n, p in before.items()}:
                restore(self.host, kept)
            raise

    def _named(self, change: Change) -> list[str]:
        return [*change.install, *(file.name for file in self.describe(change.files)), *change.remove]

    def _options(self, names: t.Collection[str]) -> list[str]:
        """For a preview, which cannot release locks: where those of ``names`` are in the way, none count."""
        return [*_OPTIONS, *(["--disableplugin=versionlock"] if self._locks.releasing(names) else [])]

    def _steps(self, change: Change, options: list[str]) -> list[list[str]]:
        """The arguments of dnf, one list for each transaction: dnf 4 and 5 have no command in common that does both.

        What is replaced goes after the new packages came, so that a host is never without either.
        """
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
                f" {' | '.join(words_of(output, errors)) or 'it does not say why'}."
                " Install python3-dnf-plugin-versionlock, or leave hold out; nothing was changed."
            )

    def hold(self, packages: t.Mapping[str, str]) -> None:
        # Locks at other versions would leave no version that is allowed.
        self.unhold(list(packages))
        named = [f"{name}-{version}" for name, version in packages.items()]
        self._ask("dnf versionlock add", [*_VERSIONLOCK, "add", *named], self.commands.read)

    def unhold(self, names: t.Sequence[str]) -> None:
        self._release(names)
        self._refuse_locked(names)

    def _refuse_locked(self, names: t.Sequence[str]) -> None:
        left = [name for name, package in self._registered(names).items() if package.held]
        if left:
            raise HostError(f"{', '.join(left)} are still locked. Remove the locks by hand (dnf versionlock delete).")

    def _release(self, names: t.Sequence[str]) -> None:
        words = self._locks.releasing(names)
        if words:
            # Whether it did is to be seen in the list.
            self._patiently([*_VERSIONLOCK, "delete", *words], self.commands.read)

    def _ask(self, doing: str, argv: list[str], run: Runner) -> str:
        status, output, errors = self._patiently(argv, run)
        if status:
            raise CommandError(doing[0].upper() + doing[1:], words_of(output, errors), "")
        return output

    def _patiently(self, argv: list[str], run: Runner) -> tuple[int, str, str]:
        return patiently(run, self.host.argv(argv), lambda said: bool(_BUSY.search(said)), self.lock_timeout)


def _allows(locks: t.Sequence[str], name: str, version: str | None) -> bool:
    if version is None:
        return False
    epoch, colon, rest = version.partition(":")
    # A lock of one architecture, too, would be of this one.
    own = [lock for lock in locks if names_package(lock, name)] or locks
    return any(
        is_locked((name, epoch if colon else "0", rest if colon else version, architecture), own)
        for architecture in ARCHITECTURES
    )


def _verb(arguments: list[str]) -> str:
    return "install" if "install" in arguments else "remove"
