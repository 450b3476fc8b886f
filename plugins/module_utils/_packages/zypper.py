# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install, remove and hold packages with zypper.

zypper says what it does in XML (--xmlout), and whether it succeeded by its exit status (zypper(8), EXIT CODES). No
decision depends on a message. What was seen of its behavior was seen with zypper 1.14.89 and libzypp 17.36.7.
"""

from __future__ import annotations

import contextlib
import os
import re
import typing as t
from xml.etree import ElementTree

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm, rpm_sources, zypper_locks

_ZYPPER = ("zypper", "--non-interactive", "--xmlout")
# Only refresh() fetches lists that exist already.
_NO_REFRESH = (*_ZYPPER, "--no-refresh")
# The only repository is that of the files. As with apt and dnf, their signatures are not checked.
_ONLY_FILES = (*_NO_REFRESH, "--no-gpg-checks", "--reposd-dir=/nonexistent")
_INSTALL = ("install", "--name", "--no-recommends", "--oldpackage", "--no-force-resolution")
_REMOVE = ("remove", "--name", "--no-clean-deps")

_OWN = packages_base.REPOSITORY_NAME
_FAILED = 4
_LOCKED = 7
_REBOOT_NEEDED = 102
_RESTART_NEEDED = 103
_NOT_FOUND = 104
_REPOSITORIES_SKIPPED = 106
_SCRIPT_FAILED = 107
_INFORMATION = (100, 101, _REBOOT_NEEDED, _RESTART_NEEDED)
# The packages are changed. A repository that a transaction needs cannot be among the skipped ones.
_CHANGED = (0, *_INFORMATION, _REPOSITORIES_SKIPPED, _SCRIPT_FAILED)

# The fetched list of each repository, in a directory of its own. zypper fetches a list that is missing, also with
# --no-refresh.
_LISTS = "/var/cache/zypp/raw"
_REMOVE_LOCK = "zypper removelock"
_UPDATER = "transactional-update"
# zypper adds the proxy of a repository to the addresses that it prints. It masks only the password of the repository.
_PROXY_LOGIN = re.compile(r"(?<=[?&]proxy=)[^\s&]*@")
# Characters that XML does not allow. Ansible decodes bytes that are not UTF-8 as surrogates.
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Zypper(rpm.RpmManager[zypper_locks.LockList]):
    """The packages of one host with zypper and rpm."""

    name = "zypper"
    repository = rpm_sources.ZYPPER
    records_reboot = True
    lock_list = zypper_locks.LockList

    def duplicates_advice(self) -> str:
        return "Remove the older version of each on the host (`rpm --erase --nodeps NAME-VERSION`), and run this again."

    # -- available packages --------------------------------------------------------------------------------------

    def candidates(self, names: t.Sequence[str], offline: bool = False, own: bool = False) -> packages_base.Offers:
        repositories = self._repositories()
        if own:
            repositories = {alias: name for alias, name in repositories.items() if alias == _OWN}
        limit = self._only_cached(repositories) if offline else [f"--repo={_OWN}"] if own else []
        aliases = {name: alias for alias, name in repositories.items()}
        argv = [*_NO_REFRESH, "search", "--details", "--match-exact", "--type=package", *limit, *names]
        output = self._xml("Reading the available versions", argv, (0, _NOT_FOUND, _REPOSITORIES_SKIPPED))
        found: dict[str, list[packages_base.Candidate]] = {}
        for entry in elements(output, "solvable"):
            origin = aliases.get(entry.get("repository", ""))
            # An installed package that no repository has is listed too.
            if origin is not None:
                candidate = packages_base.Candidate(entry.get("edition", ""), origin)
                found.setdefault(entry.get("name", ""), []).append(candidate)
        found = rpm.newest_first(found)
        # Priorities matter only if there is more than one repository.
        if len({candidate.origin for entries in found.values() for candidate in entries}) > 1:
            return rpm.mark_preferred(found, self._default_versions(names, limit))
        return found

    def hiding(self, names: t.Sequence[str]) -> list[str]:
        del names  # locks hide no version
        return []

    def _default_versions(self, names: t.Sequence[str], limit: list[str]) -> dict[str, str]:
        """Return the versions that zypper itself would install, or keep.

        For zypper, the priorities of repositories have precedence over versions.
        """
        argv = [*_NO_REFRESH, *_INSTALL, "--dry-run", *limit, *names]
        with self._without_own_locks(names) as prefix:
            status, output, _errors = self.run([*prefix, *argv], self.commands.fetch)
        if status not in _CHANGED:
            return {}
        installed = {name: package.version for name, package in self.query(names).items()}
        return {**installed, **preview_of(output).install}

    def _repositories(self) -> dict[str, str]:
        """Return the names of the enabled repositories, which the list of packages contains, by their aliases."""
        # The exit status 6 means that there is none.
        output = self._xml("Reading the repositories", [*_NO_REFRESH, "repos"], (0, 6))
        return {
            entry.get("alias", ""): entry.get("name", "")
            for entry in elements(output, "repo")
            if entry.get("enabled") == "1"
        }

    def _only_cached(self, aliases: t.Iterable[str]) -> list[str]:
        """Return the options that limit zypper to the lists on the host. Raises CommandError if there are none."""
        # A file whose name begins with a dot is not a part of the list.
        cached = [
            alias
            for alias in aliases
            if any(not name.startswith(".") for name in self.host.entries(f"{_LISTS}/{alias}"))
        ]
        if not cached:
            raise packages_base.CommandError("Reading the available versions", ["No package list is on this host"], "")
        return [f"--repo={alias}" for alias in cached]

    def refresh(self, everything: bool = False) -> None:
        # zypper checks the signature of a list only when it fetches it, also if the key has changed since.
        own = [] if everything or not self.host.exists(self.repository.source) else [_OWN]
        argv = [*_ZYPPER, "refresh", *(["--force"] if own else []), *own]
        status, output, errors = self.run(argv, self.commands.fetch)
        if status not in (0, *_INFORMATION):
            raise packages_base.CommandError(
                "Fetching the package lists (zypper refresh)",
                self.last_lines(output, errors),
                "No package was changed. Check the repository's address and key, the proxy, and the network.",
            )

    # -- transactions --------------------------------------------------------------------------------------------

    def require_transactions(self) -> None:
        # zypper itself refuses these hosts, too, but only at the transaction.
        read_only = os.statvfs(self.host.real_path("/usr")).f_flag & os.ST_RDONLY
        if read_only and self.host.find_executable([_UPDATER]) is not None:
            raise core_errors.HostError(
                f"The system of this host is read-only and is changed with {_UPDATER}, so zypper cannot change its"
                f" packages. Set {core_errors.option:source}: directory, or install the NVIDIA Container Toolkit with"
                f" {_UPDATER}, reboot, and set {core_errors.option:source}: existing."
            )

    def preview(self, change: packages_base.Change, offline: bool = False) -> packages_base.Preview:
        needs_lists = bool(change.install)
        limit = self._only_cached(self._repositories()) if offline and needs_lists else []
        names = self.names_of(change) if change.change_held else []
        if names and self._locks.exist():
            # unhold() does not remove locks of several packages.
            self.refuse_locked([name for name in names if not self._locks.name_one_of([name])], _REMOVE_LOCK)
        with self._without_own_locks(names) as prefix:
            argv = [*prefix, *self._arguments(change, ("--dry-run", *limit))]
            output = self._xml("Simulating the change (zypper --dry-run)", argv, _CHANGED)
        return preview_of(output)

    @contextlib.contextmanager
    def _without_own_locks(self, names: t.Collection[str]) -> t.Iterator[list[str]]:
        """Yield the beginning of a preview's command. A preview cannot release locks.

        If locks on ``names`` are in the way, the preview ignores all locks.
        """
        if self._locks.name_one_of(names):
            with self._locks.ignored() as prefix:
                yield prefix
        else:
            yield []

    def transact(self, change: packages_base.Change) -> None:
        argv = self._arguments(change)
        status, output, errors = self.run(argv, self.commands.change)
        command = "remove" if "remove" in argv else "install"
        if status == _RESTART_NEEDED and command == "install":
            # zypper has changed only itself. A package that is removed already could not be removed again.
            status, output, errors = self.run(argv, self.commands.change)
        if status not in _CHANGED:
            not_downloaded = _has_failed_download(status, output)
            raise packages_base.CommandError(f"zypper {command}", self.last_lines(output, errors), "", not_downloaded)
        if status == _REBOOT_NEEDED:
            self.warnings.append("zypper reports that this host must be rebooted.")
        elif status == _SCRIPT_FAILED:
            self.warnings.append(
                "The packages are changed, but zypper reports that a script of a package failed. See"
                " /var/log/zypp/history on the host."
            )

    def _arguments(self, change: packages_base.Change, options: t.Sequence[str] = ()) -> list[str]:
        """Return the command of one transaction."""
        if not change.install and not change.files:
            return [*_NO_REFRESH, *_REMOVE, *options, *change.remove]
        # zypper fails if a package that it shall remove is not installed.
        removals = [f"!{name}" for name in (self.query(change.remove) if change.remove else ())]
        if change.files:
            return [*_ONLY_FILES, *_INSTALL, *options, *change.files, *removals]
        packages = [f"{name}={version}" for name, version in change.install.items()]
        # This limits the named packages, and not their dependencies.
        only_own = [f"--from={_OWN}"] if change.own else []
        return [*_NO_REFRESH, *_INSTALL, *options, *only_own, *packages, *removals]

    # -- holds ---------------------------------------------------------------------------------------------------

    def require_holds(self) -> None:
        """Return without a check, because locks are a part of zypper."""

    def hold(self, packages: t.Mapping[str, str]) -> None:
        # A lock without a version keeps the installed one.
        self._xml("zypper addlock", [*_NO_REFRESH, "addlock", "--type=package", *packages])

    def unhold(self, names: t.Sequence[str]) -> None:
        if self._locks.name_one_of(names):
            output = self._xml("zypper locks", [*_NO_REFRESH, "locks"])
            # The name does not select locks of a version or of a repository.
            numbers = [entry.get("number", "") for entry in elements(output, "lock") if _is_lock_of(entry, names)]
            if numbers:
                # The exit status is ignored, because the list is read again.
                self.run([*_NO_REFRESH, "removelock", *numbers], self.commands.read)
        self.refuse_locked(names, _REMOVE_LOCK)

    # -- runs of zypper ------------------------------------------------------------------------------------------

    def _xml(self, action: str, argv: list[str], accepted: t.Container[int] = (0,)) -> str:
        """Return the output of zypper. Raises CommandError for another exit status than the accepted ones."""
        status, output, errors = self.run(argv, self.commands.fetch)
        if status not in accepted:
            raise packages_base.CommandError(action, self.last_lines(output, errors), "")
        return output

    def is_busy(self, status: int, text: str) -> bool:
        del text
        return status == _LOCKED

    def last_lines(self, output: str, errors: str) -> list[str]:
        messages = elements(output, "message")
        found = [entry for entry in messages if entry.get("type") in ("error", "warning")]
        # The explanation of a question, such as which dependencies cannot be satisfied.
        questions = elements(output, "prompt/description")
        # A single error may only say that there are errors.
        found = [*found, *questions] if questions or len(found) > 1 else messages
        # Other programs print nothing but lines of text.
        text = "\n".join(entry.text or "" for entry in found) or output
        lines = packages_base.last_lines(text, errors)
        return [_PROXY_LOGIN.sub("********@", line) for line in lines]


def elements(output: str, path: str) -> list[ElementTree.Element]:
    """Return the elements with this path below any element. Other output, or broken output, contains none."""
    start, end = output.find("<stream>"), output.rfind("</stream>")
    try:
        # Only a document type, which must be before the first element, can define entities.
        root = ElementTree.fromstring(_NOT_IN_XML.sub("", output[max(start, 0) : end + 9]))  # noqa: S314
    except ElementTree.ParseError:
        return []
    return root.findall(f".//{path}")


def preview_of(output: str) -> packages_base.Preview:
    """Return the changes in the summary of zypper."""
    install: dict[str, str] = {}
    remove: list[str] = []
    downgrade: list[str] = []
    for group in elements(output, "install-summary/*"):
        for entry in group.findall("solvable[@type='package']") if group.tag.startswith("to-") else ():
            name = entry.get("name", "")
            if group.tag == "to-remove":
                remove.append(name)
            else:
                install[name] = entry.get("edition", "")
            if group.tag == "to-downgrade":
                downgrade.append(name)
    # A second version that an interrupted transaction has left is removed together with an installation.
    remove = [name for name in dict.fromkeys(remove) if name not in install]
    return packages_base.Preview(install, tuple(remove), tuple(downgrade))


def _has_failed_download(status: int, output: str) -> bool:
    """Return whether a transaction failed because a package could not be fetched.

    libzypp 17.38 fetches packages before the transaction. If this fails, zypper 1.14.101 has no other sign of it than
    the exit status, which it also has for a dependency that cannot be satisfied, but then it asks what to do.
    """
    failed = any(entry.get("done") == "0" for entry in elements(output, "download"))
    return failed or (status == _FAILED and not elements(output, "prompt/description"))


def _is_lock_of(entry: ElementTree.Element, names: t.Collection[str]) -> bool:
    return entry.findtext("type") == "package" and entry.findtext("name") in names
