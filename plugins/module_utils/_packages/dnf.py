# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install, remove and hold packages with dnf 4."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import dnf_versionlock, rpm, rpm_sources

_SECTION = re.compile(r"^(Installing|Upgrading|Downgrading|Reinstalling|Removing)\b.*:$")
_REPLACED = re.compile(r"^\s+replacing\s+(\S+)")
_NOISE = re.compile(
    r"Failed loading plugin|Last metadata expiration|Unable to detect release version|=+$|Operation aborted|"
    r"\(try to add|Ignoring repositories|Dependencies resolved"
)
_ARCHITECTURE = re.compile(r"\.(x86_64|aarch64|noarch|i686|ppc64le|s390x)$")


def candidates_of(output: str) -> dict[str, list[packages_base.Candidate]]:
    """Return the versions in the output of dnf repoquery, newest first.

    If all come from one repository, dnf chooses the newest.
    """
    found: dict[str, list[packages_base.Candidate]] = {}
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            name, epoch, version, origin = fields
            found.setdefault(name, []).append(packages_base.Candidate(rpm.with_epoch(epoch, version), origin))
    return rpm.newest_first(found)


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
    # A package that another one replaces may be installed too, in its new version.
    remove += [name for name in replaced if name not in install and name not in remove]
    return packages_base.Preview(install, tuple(remove), tuple(downgrade))


def _add_row(section: str, row: list[str], install: dict[str, str], remove: list[str], downgrade: list[str]) -> None:
    name, version = row[0], row[2]
    if section == "Removing":
        if name not in remove:
            remove.append(name)
    else:
        install[name] = version
        if section == "Downgrading" and name not in downgrade:
            downgrade.append(name)


def _is_unconfirmed(output: str) -> bool:
    """Return whether a preview failed only because it was not confirmed."""
    return "Operation aborted" in output


def _last_lines(output: str, errors: str) -> list[str]:
    """Return the last lines of the output, from the last error on. dnf prints many lines before it."""
    lines = packages_base.last_lines(output, errors, _NOISE)
    starts = [number for number, line in enumerate(lines) if line.startswith("Error:")]
    return lines[starts[-1] :] if starts else lines


# Locked packages are installed, so no list of any repository is needed.
_VERSIONLOCK = ("dnf", "-q", "--disablerepo=*", "versionlock")
_CANDIDATE_TAGS = "%{name}\\t%{epoch}\\t%{version}-%{release}\\t%{repoid}\\n"
# Settings that hide packages: those that match, or all others.
_HIDES_MATCHES = {"exclude": True, "excludepkgs": True, "includepkgs": False}
_OSTREE = "/run/ostree-booted"
_PROGRAM, _PROGRAM_5 = "/usr/bin/dnf", "dnf5"
_OWN = packages_base.REPOSITORY_NAME
_ONLY_OWN = ("--disablerepo=*", f"--enablerepo={_OWN}")
# dnf takes a version from any repository that has it. All other repositories get these excludes in addition to their
# own ones, and disable_excludes in dnf.conf must not lift them.
_OWN_PACKAGES = (
    "--setopt=disable_excludes=",
    f"--setopt=*.excludepkgs={','.join(packages_base.PACKAGES)}",
    f"--setopt={_OWN}.excludepkgs=",
)
# The options of transactions and previews.
_OPTIONS = ("--setopt=exit_on_lock=1", "--setopt=install_weak_deps=0", "--setopt=clean_requirements_on_remove=0")
_BUSY = re.compile(r"already locked by|another copy is running|Failed to obtain .*lock", re.IGNORECASE)


class Dnf(rpm.RpmManager[dnf_versionlock.LockList]):
    """The packages of one host with dnf and rpm."""

    name = "dnf"
    repository = rpm_sources.DNF
    records_reboot = False
    lock_list = dnf_versionlock.LockList

    def duplicates_advice(self) -> str:
        return (
            "Check the output of `dnf check --duplicates`, run `dnf remove --duplicates` on the host, and run this"
            " again."
        )

    # -- available packages --------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False, own: bool = False) -> packages_base.Offers:
        cached = ["-C", "--setopt=*.skip_if_unavailable=1"] if offline else []
        # Without -y, dnf asks whether the repository's key may be used, and takes a missing answer as no.
        argv = ["dnf", "-q", "-y", *cached, *(_ONLY_OWN if own else ()), "repoquery", "--qf", _CANDIDATE_TAGS, *names]
        found = candidates_of(self.read("Reading the available versions", argv, self.commands.fetch))
        # Priorities matter only if there is more than one repository.
        if len({candidate.origin for entries in found.values() for candidate in entries}) > 1:
            found = self._mark_preferred(found, names, cached)
        return found

    def hiding(self, names: t.Sequence[str]) -> list[str]:
        own = self.repository.source
        paths = ["/etc/dnf/dnf.conf", *([own] if self.host.exists(own) else self.repository.source_files(self.host))]
        return [line for path in paths for line in excludes_of(path, self.host.read_text(path), names)]

    def _mark_preferred(
        self, candidates: dict[str, list[packages_base.Candidate]], names: t.Sequence[str], cached: list[str]
    ) -> dict[str, list[packages_base.Candidate]]:
        """Return ``candidates``, of which those are preferred that dnf itself would install.

        For dnf, the priorities of repositories have precedence over versions.
        """
        argv = ["dnf", *cached, "--assumeno", *self._options(names), "--allowerasing", "install", *names]
        status, output, errors = self.run(argv, self.commands.fetch)
        if status and not _is_unconfirmed(output + errors):
            preferred = {}
        else:
            # An installed package that dnf does not change has dnf's preferred version already.
            installed = {name: package.version for name, package in self.query(names).items()}
            preferred = {**installed, **preview_of(output).install}
        return rpm.mark_preferred(candidates, preferred)

    def refresh(self, everything: bool = False) -> None:
        options = []
        if not everything and self.host.exists(rpm_sources.DNF.source):
            # The repository's own file may make it optional, but this task needs it.
            options = [f"--setopt={_OWN}.skip_if_unavailable=0", *_ONLY_OWN]
        argv = ["dnf", "-q", "-y", *options, "makecache", "--refresh"]
        status, output, errors = self.run(argv, self.commands.fetch)
        if status:
            raise packages_base.CommandError(
                "Fetching the package lists (dnf makecache)",
                _last_lines(output, errors),
                "No package was changed. Check the repository's address and key, the proxy, and the network.",
            )

    # -- transactions --------------------------------------------------------------------------------------------

    def require_transactions(self) -> None:
        if posixpath.basename(self.host.resolve(_PROGRAM)) == _PROGRAM_5:
            raise core_errors.HostError(
                f"{_PROGRAM} of this host is dnf 5, and this module needs dnf 4. Set"
                f" {core_errors.option:source}: directory, or install the NVIDIA Container Toolkit in another way and"
                f" set {core_errors.option:source}: existing."
            )
        # dnf itself refuses such a host only at the transaction, or changes packages until the next boot.
        if self.host.exists(_OSTREE):
            raise core_errors.HostError(
                f"The system of this host is an image ({_OSTREE} exists), so dnf cannot change its packages. Set"
                f" {core_errors.option:source}: directory, or add the NVIDIA Container Toolkit to the image"
                f" (rpm-ostree, bootc), reboot, and set {core_errors.option:source}: existing."
            )

    def preview(self, change: packages_base.Change, offline: bool = False) -> packages_base.Preview:
        found = packages_base.Preview()
        options = self._options(self.names_of(change)) if change.change_held else list(_OPTIONS)
        for arguments in self._steps(change, options):
            argv = ["dnf", *(["-C"] if offline else []), "--assumeno", *arguments]
            status, output, errors = self.run(argv, self.commands.fetch)
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
        return found

    def transact(self, change: packages_base.Change) -> None:
        first, *second = self._steps(change, list(_OPTIONS))
        self._change(first)
        if second:
            # The new packages have removed the packages that they obsolete, and provide their names. A bare name would
            # now select a new package, so names with versions are used.
            remaining = [f"{name}-{package.version}" for name, package in self.query(change.remove).items()]
            for arguments in self._steps(packages_base.Change(remove=tuple(remaining)), list(_OPTIONS)):
                self._change(arguments)

    def _change(self, arguments: list[str]) -> None:
        status, output, errors = self.run(["dnf", "-y", *arguments], self.commands.change)
        if status:
            command = "install" if "install" in arguments else "remove"
            raise packages_base.CommandError(f"dnf {command}", _last_lines(output, errors), "")

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
            steps.append([*options, *(_OWN_PACKAGES if change.own else ()), *erasing, "install", *packages])
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
        self.read("dnf versionlock add", [*_VERSIONLOCK, "add", *versions], self.commands.read)

    def unhold(self, names: t.Sequence[str]) -> None:
        arguments = self._locks.delete_arguments(names)
        if arguments:
            # The exit status is ignored, because the list is read again.
            self.run([*_VERSIONLOCK, "delete", *arguments], self.commands.read)
        self.refuse_locked(names, "dnf versionlock delete")

    def is_busy(self, status: int, text: str) -> bool:
        del status  # it is the same for other failures
        return bool(_BUSY.search(text))

    def last_lines(self, output: str, errors: str) -> list[str]:
        return _last_lines(output, errors)


def excludes_of(path: str, text: str, names: t.Sequence[str]) -> t.Iterator[str]:
    """Yield the lines of a file of dnf.conf(5) that may hide a version of one of ``names``."""
    key = ""
    for number, line in enumerate(text.splitlines(), 1):
        value = line
        if line[:1] not in (" ", "\t"):
            key, _sign, value = line.partition("=")
        patterns = value.replace(",", " ").split()
        matches = any(fnmatch.fnmatchcase(n, p) or p.startswith((f"{n}-", f"{n}.")) for n in names for p in patterns)
        if patterns and matches is _HIDES_MATCHES.get(key.strip().lower()):
            yield f"{path}, line {number} ({line.strip()})"
