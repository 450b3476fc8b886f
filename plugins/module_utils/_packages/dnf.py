# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install, remove and hold packages with dnf."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock as core_lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import dnf_sources, dnf_versionlock

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_SECTION = re.compile(r"^(Installing|Upgrading|Downgrading|Reinstalling|Removing|Replacing)\b.*:$")
_REPLACED = re.compile(r"^\s+replacing\s+(\S+)")
_NOISE = re.compile(
    r"Failed loading plugin|Last metadata expiration|Unable to detect release version|=+$|Operation aborted|"
    r"\(try to add|Ignoring repositories|Updating and loading|Repositories loaded|Dependencies resolved"
)
ARCHITECTURES = ("x86_64", "aarch64", "noarch", "i686", "ppc64le", "s390x")
_ARCHITECTURE = re.compile(rf"\.({'|'.join(ARCHITECTURES)})$")


def candidates_of(output: str) -> dict[str, list[packages_base.Candidate]]:
    """Return the versions in the output of dnf repoquery, newest first.

    If all come from one repository, dnf chooses the newest.
    """
    found: dict[str, list[packages_base.Candidate]] = {}
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, epoch, version, origin = fields
            found.setdefault(name, []).append(packages_base.Candidate(with_epoch(epoch, version), origin))
    for name, candidates in found.items():
        candidates.sort(key=lambda candidate: version_order(candidate.version), reverse=True)
        found[name] = [candidates[0]._replace(preferred=True), *candidates[1:]]
    return found


def preview_of(output: str) -> packages_base.Preview:
    """Return the changes that dnf --assumeno prints.

    A long name is on a line of its own, and so is a replaced package.
    """
    install: dict[str, str] = {}
    remove: list[str] = []
    downgrade: list[str] = []
    replaced: list[str] = []
    section = ""
    row: list[str] = []
    for line in output.splitlines():
        heading, replacing = _SECTION.match(line), _REPLACED.match(line)
        if heading:
            section, row = heading.group(1), []
        elif not line.strip() or not line[0].isspace():
            # The summary has the same headings without a colon. Only its title has one.
            section = section if line.startswith("=") else ""
        elif replacing:
            replaced.append(_ARCHITECTURE.sub("", replacing.group(1)))
        elif section:
            fields = line.split()
            row = fields if line[1:2].strip() else [*row, *fields]
            if len(row) >= 3:
                _add_row(section, row, install, remove, downgrade)
    # In dnf 5, an upgrade replaces the previous version of the same package.
    remove += [name for name in replaced if name not in install and name not in remove]
    return packages_base.Preview(install, tuple(remove), tuple(downgrade))


def _add_row(section: str, row: list[str], install: dict[str, str], remove: list[str], downgrade: list[str]) -> None:
    name, version = row[0], row[2]
    if section == "Removing":
        if name not in remove:
            remove.append(name)
    elif section != "Replacing":
        install[name] = version
        if section == "Downgrading" and name not in downgrade:
            downgrade.append(name)


def version_order(version: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return a key that sorts full versions as rpm does, if they consist of digits, letters and tildes."""
    epoch, colon, rest = version.partition(":")
    pieces = [epoch if colon else "0", *(rest if colon else version).split("-")]
    return tuple(_segments(piece) for piece in pieces)


def _segments(piece: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"~|\d+|[A-Za-z]+", piece)
    found = [(0, 0, "") if part == "~" else (3, int(part), "") if part.isdigit() else (2, 0, part) for part in parts]
    return (*found, (1, 0, ""))


def _rows(output: str) -> list[list[str]]:
    """Return the rows of the output that have the four fields of _TAGS."""
    return [fields for fields in (line.split("\t") for line in output.splitlines()) if len(fields) == 4]


def _is_unconfirmed(output: str) -> bool:
    """Return whether a preview failed only because it was not confirmed."""
    return "Operation aborted" in output


def with_epoch(epoch: str, version: str) -> str:
    return version if epoch in ("0", "(none)", "") else f"{epoch}:{version}"


def _last_lines(output: str, errors: str) -> list[str]:
    """Return the last lines of the output, from the last error on. dnf prints many lines before it."""
    lines = packages_base.last_lines(output, errors, _noise)
    starts = [number for number, line in enumerate(lines) if line.startswith("Error:")]
    return lines[starts[-1] :] if starts else lines


def _noise(line: str) -> bool:
    return bool(_NOISE.match(line))


# Locked packages are installed, so no list of any repository is needed.
_VERSIONLOCK = ("dnf", "-q", "--disablerepo=*", "versionlock")
_TAGS = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\n"
_CANDIDATE_TAGS = "%{name}\\t%{epoch}\\t%{version}-%{release}\\t%{repoid}\\n"
_ABSENT = re.compile(r"^package (\S+) is not installed$", re.MULTILINE)
# The options of transactions and previews.
_OPTIONS = ("--setopt=exit_on_lock=1", "--setopt=install_weak_deps=0", "--setopt=clean_requirements_on_remove=0")
_BUSY = re.compile(r"already locked by|another copy is running|Failed to obtain .*lock", re.IGNORECASE)


class Dnf:
    """The packages of one host with dnf and rpm."""

    name = "dnf"
    repository = dnf_sources.REPOSITORY
    records_reboot = False
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
        self._locks = dnf_versionlock.LockList(host)
        self._duplicates: list[str] = []

    @property
    def readable(self) -> bool:
        return self.host.live

    # -- installed packages --------------------------------------------------------------------------------------

    def installed(self, names: t.Iterable[str]) -> dict[str, packages_base.Package]:
        if not self.readable:
            return {}
        found = self._query(list(names))
        self._duplicates = [name for name, package in found.items() if not package.complete]
        return found

    def _query(self, names: t.Sequence[str]) -> dict[str, packages_base.Package]:
        # The exit status of rpm is the number of packages that are not installed.
        _status, output, errors = self.commands.read(self.host.argv(["rpm", "-q", "--qf", _TAGS, *names]))
        rows = _rows(output)
        self._check_database(names, rows, output, errors)
        locks = self._locks.patterns()
        found: dict[str, packages_base.Package] = {}
        for name, epoch, version, architecture in rows:
            # An interrupted transaction leaves the old version and the new one.
            other = [found[name].version] if name in found else []
            newest = max([with_epoch(epoch, version), *other], key=version_order)
            held = dnf_versionlock.is_locked((name, epoch, version, architecture), locks)
            found[name] = packages_base.Package(newest, held, not other)
        return found

    @staticmethod
    def _check_database(names: t.Sequence[str], rows: list[list[str]], output: str, errors: str) -> None:
        """Raise CommandError if rpm cannot read its database: it then reports packages as not installed."""
        # Warnings are not errors: rpm warns of a database in the format of an older release, but reads it.
        problems = [line for line in errors.splitlines() if line.strip() and not line.startswith("warning:")]
        reported = {*(row[0] for row in rows), *_ABSENT.findall(output)}
        if problems or not set(names) <= reported:
            advice = "Run `rpm --rebuilddb` on the host."
            lines = _last_lines("", "\n".join(problems)) or _last_lines(output, "")
            raise packages_base.CommandError("Reading the installed packages (rpm -q)", lines, advice)

    def config_only(self, names: t.Iterable[str]) -> list[str]:
        del names  # rpm has no such state
        return []

    def interrupted(self) -> bool:
        return bool(self._duplicates)

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        del own
        raise core_errors.HostError(
            f"rpm lists two versions of {', '.join(self._duplicates)}, because a transaction was interrupted. Check the"
            " output of `dnf check --duplicates`, run `dnf remove --duplicates` on the host, and run this again."
        )

    def repair_command(self, _names: t.Sequence[str]) -> str:
        return ""

    def repair(self, own: t.Sequence[str]) -> None:
        self.refuse_interrupted(own)

    # -- available packages --------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False) -> dict[str, list[packages_base.Candidate]]:
        cached = ["-C", "--setopt=*.skip_if_unavailable=1"] if offline else []
        # Without -y, dnf asks whether the repository's key may be used, and takes a missing answer as no.
        argv = ["dnf", "-q", "-y", *cached, "repoquery", "--qf", _CANDIDATE_TAGS, *names]
        found = candidates_of(self._read("Reading the available versions", argv, self.commands.fetch))
        # Priorities matter only if there is more than one repository.
        if len({candidate.origin for entries in found.values() for candidate in entries}) > 1:
            found = self._mark_preferred(found, names, cached)
        return found

    def _mark_preferred(
        self, candidates: dict[str, list[packages_base.Candidate]], names: t.Sequence[str], cached: list[str]
    ) -> dict[str, list[packages_base.Candidate]]:
        """Return ``candidates``, of which those are preferred that dnf itself would install.

        For dnf, the priorities of repositories have precedence over versions.
        """
        argv = ["dnf", *cached, "--assumeno", *self._options(names), "--allowerasing", "install", *names]
        status, output, errors = self._run(argv, self.commands.fetch)
        if status and not _is_unconfirmed(output + errors):
            preferred = {}
        else:
            # An installed package that dnf does not change has dnf's preferred version already.
            installed = {name: package.version for name, package in self._query(names).items()}
            preferred = {**installed, **preview_of(output).install}
        return {
            name: [candidate._replace(preferred=candidate.version == preferred.get(name)) for candidate in entries]
            for name, entries in candidates.items()
        }

    def refresh(self, everything: bool = False) -> None:
        options = []
        if not everything and self.host.exists(dnf_sources.REPOSITORY.source):
            name = packages_base.REPOSITORY_NAME
            # The repository's own file may make it optional, but this task needs it.
            options = [f"--setopt={name}.skip_if_unavailable=0", "--disablerepo=*", f"--enablerepo={name}"]
        argv = ["dnf", "-q", "-y", *options, "makecache", "--refresh"]
        status, output, errors = self._run(argv, self.commands.fetch)
        if status:
            raise packages_base.CommandError(
                "Fetching the package lists (dnf makecache)",
                _last_lines(output, errors),
                "No package was changed. Check the repository's address and key, the proxy, and the network.",
            )

    def describe(self, files: t.Iterable[str]) -> list[packages_base.PackageFile]:
        found = []
        for path in files:
            # Without --nomanifest, rpm reads any text as a list of files.
            argv = ["rpm", "-qp", "--nomanifest", "--qf", _TAGS, path]
            rows = _rows(self._read(f"Reading the package {path}", argv, self.commands.read))
            if len(rows) != 1:
                raise core_errors.HostError(f"{path} is not a valid rpm package. Set another file.")
            name, epoch, version, architecture = rows[0]
            found.append(packages_base.PackageFile(path, name, with_epoch(epoch, version), architecture))
        return found

    def architecture(self) -> str:
        return self._read("Reading rpm's architecture", ["rpm", "-E", "%{_arch}"], self.commands.read).strip()

    # -- transactions --------------------------------------------------------------------------------------------

    def preview(self, change: packages_base.Change, offline: bool = False) -> packages_base.Preview:
        found = packages_base.Preview()
        options = self._options(self._names_of(change)) if change.change_held else list(_OPTIONS)
        for arguments in self._steps(change, options):
            argv = ["dnf", *(["-C"] if offline else []), "--assumeno", *arguments]
            status, output, errors = self._run(argv, self.commands.fetch)
            if status and not _is_unconfirmed(output + errors):
                raise packages_base.CommandError(
                    "Simulating the change (dnf --assumeno)", _last_lines(output, errors), ""
                )
            step = preview_of(output)
            found = packages_base.Preview(
                {**found.install, **step.install},
                tuple(dict.fromkeys([*found.remove, *step.remove])),
                (*found.downgrade, *step.downgrade),
            )
        return found._replace(held=self._held(found))

    def _held(self, preview: packages_base.Preview) -> tuple[str, ...]:
        """Return the locked packages that would be removed, or would get a version that no lock allows."""
        locks = self._locks.patterns()
        names = tuple(dict.fromkeys([*preview.install, *preview.remove]))
        if not locks or not names:
            return ()
        locked = {name for name, package in self._query(names).items() if package.held}
        locked |= {name for name in names if any(dnf_versionlock.names_package(lock, name) for lock in locks)}
        return tuple(name for name in names if name in locked and not _allows(locks, name, preview.install.get(name)))

    def apply(self, change: packages_base.Change) -> None:
        saved = self._save_configuration(change)
        try:
            if change.change_held and self._locks.patterns():
                self._apply_without_locks(change, self._names_of(change))
            else:
                self._apply(change)
        finally:
            for path in dnf_versionlock.restore_missing(self.host, saved):
                self.warnings.append(
                    f"dnf removed {path} together with {' or '.join(change.remove)}. Its previous content is restored."
                )

    def _apply(self, change: packages_base.Change) -> None:
        first, *second = self._steps(change, list(_OPTIONS))
        self._transact(first)
        if second:
            # The new packages have removed the packages that they obsolete, and provide their names. A bare name would
            # now select a new package, so names with versions are used.
            remaining = [f"{name}-{package.version}" for name, package in self._query(change.remove).items()]
            for arguments in self._steps(packages_base.Change(remove=tuple(remaining)), list(_OPTIONS)):
                self._transact(arguments)

    def _transact(self, arguments: list[str]) -> None:
        status, output, errors = self._run(["dnf", "-y", *arguments], self.commands.change)
        if status:
            command = "install" if "install" in arguments else "remove"
            raise packages_base.CommandError(f"dnf {command}", _last_lines(output, errors), "")

    def _save_configuration(self, change: packages_base.Change) -> list[dnf_versionlock.SavedFile]:
        """Return the configuration files of packages that are replaced. rpm removes these files, edited or not."""
        if not change.remove or not (change.install or change.files):
            return []
        argv = ["rpm", "-qc", *change.remove]
        _status, output, _errors = self._run(argv, self.commands.read)
        return dnf_versionlock.snapshot_files(self.host, [line for line in output.splitlines() if line.startswith("/")])

    def _apply_without_locks(self, change: packages_base.Change, names: t.Sequence[str]) -> None:
        """Apply a change of packages that may be locked. Other packages stay locked meanwhile."""
        before, saved = self._query(names), self._locks.snapshot()
        released = None
        try:
            self.unhold(names)
            released = self._locks.snapshot()
            self._apply(change)
        except core_errors.NvidiaError:
            after = self._query(names)
            same = {n: p.version for n, p in after.items()} == {n: p.version for n, p in before.items()}
            # A list that another program has changed meanwhile is not replaced.
            if same and released in (None, self._locks.snapshot()):
                dnf_versionlock.restore(self.host, saved)
            raise

    def _names_of(self, change: packages_base.Change) -> list[str]:
        return [*change.install, *(file.name for file in self.describe(change.files)), *change.remove]

    def _options(self, names: t.Collection[str]) -> list[str]:
        """Return the options of a preview, which cannot release locks.

        If locks on ``names`` are in the way, the preview ignores all locks.
        """
        return [*_OPTIONS, *(["--disableplugin=versionlock"] if self._locks.delete_arguments(names) else [])]

    def _steps(self, change: packages_base.Change, options: list[str]) -> list[list[str]]:
        """Return the arguments of dnf, one list for each transaction.

        dnf 4 and 5 have no common command that both installs and removes. Replaced packages are removed after the new
        packages are installed, so that a host always has one of the two.
        """
        steps = []
        erasing = ["--allowerasing"] if change.remove else []
        if change.files:
            steps.append([*options, "--disablerepo=*", *erasing, "install", *change.files])
        elif change.install:
            packages = [f"{name}-{version}" for name, version in change.install.items()]
            steps.append([*options, *erasing, "install", *packages])
        if change.remove:
            steps.append([*options, "remove", *change.remove])
        return steps

    # -- holds ---------------------------------------------------------------------------------------------------

    def require_holds(self) -> None:
        status, output, errors = self.commands.read(self.host.argv([*_VERSIONLOCK, "list"]))
        if status:
            raise core_errors.HostError(
                f"{core_errors.option:hold} is set, but dnf versionlock failed on this host:"
                f" {' | '.join(_last_lines(output, errors)) or 'it printed nothing'}. Install"
                f" python3-dnf-plugin-versionlock, or leave {core_errors.option:hold} out."
            )

    def hold(self, packages: t.Mapping[str, str]) -> None:
        # Together with locks at other versions, no version would be allowed.
        self.unhold(list(packages))
        versions = [f"{name}-{version}" for name, version in packages.items()]
        self._read("dnf versionlock add", [*_VERSIONLOCK, "add", *versions], self.commands.read)

    def unhold(self, names: t.Sequence[str]) -> None:
        arguments = self._locks.delete_arguments(names)
        if arguments:
            # The exit status is ignored, because the list is read again.
            self._run([*_VERSIONLOCK, "delete", *arguments], self.commands.read)
        locked = [name for name, package in self._query(names).items() if package.held]
        if locked:
            raise core_errors.HostError(
                f"{', '.join(locked)} {'is' if len(locked) == 1 else 'are'} still locked. Remove the locks on the host"
                " (`dnf versionlock delete`)."
            )

    def _read(self, action: str, argv: list[str], run: core_plan.Runner) -> str:
        status, output, errors = self._run(argv, run)
        if status:
            raise packages_base.CommandError(action, _last_lines(output, errors), "")
        return output

    def _run(self, argv: list[str], run: core_plan.Runner) -> tuple[int, str, str]:
        return packages_base.retry_while_locked(
            run, self.host.argv(argv), lambda text: bool(_BUSY.search(text)), self.lock_timeout
        )


def _allows(locks: t.Sequence[str], name: str, version: str | None) -> bool:
    if version is None:
        return False
    epoch, colon, rest = version.partition(":")
    # The preview has no architecture. A lock that names an architecture is assumed to match.
    own = [lock for lock in locks if dnf_versionlock.names_package(lock, name)] or locks
    return any(
        dnf_versionlock.is_locked((name, epoch if colon else "0", rest if colon else version, architecture), own)
        for architecture in ARCHITECTURES
    )
