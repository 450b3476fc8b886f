# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install the toolkit's packages at one version in one transaction.

package_versions.py chooses the version; the package managers in _packages change the host.
"""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import access
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import names as packages_names
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import package_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import undoing as toolkit_undoing

_UNKNOWN = "(not known yet)"


class PendingChanges(t.NamedTuple):
    """The required changes, as far as they are known without the package lists.

    ``packages`` and ``hold`` say whether packages or their holds change. ``former`` are packages to remove,
    ``sources`` are conflicting source files to remove, and ``stale`` are files to remove from the cache.
    """

    packages: bool
    former: tuple[str, ...]
    hold: bool
    sources: tuple[str, ...]
    stale: tuple[str, ...]
    repository: toolkit_repository.RepositoryPlan

    @property
    def transaction(self) -> bool:
        return self.packages or bool(self.former)

    @property
    def files(self) -> bool:
        return bool(self.sources or self.stale) or self.repository.changes

    @property
    def something(self) -> bool:
        return self.transaction or self.hold or self.files or self.repository.unproven


class Installation(toolkit_packages.PackageTask):
    """The task that installs the four packages at one version."""

    # The packages that earlier runs installed.
    _recorded: tuple[str, ...] = ()

    def execute(self, check_mode: bool) -> toolkit_packages.Outcome:
        """Install the missing packages unless ``check_mode``. Raises NvidiaError."""
        if self.options.source == "existing":
            return self._existing(check_mode)
        wanted = self._wanted(check_mode)
        seen = self.look()
        needs = self._needs(seen, wanted, foretold=check_mode)
        if not needs.something:
            if not check_mode:
                self._try_source(needs)
            self._check_parts(seen)
            return toolkit_packages.Outcome(changed=False, before=seen, after=seen)
        self._object(seen, needs, wanted)
        if check_mode:
            return self._check_mode_result(seen, needs, wanted)
        with lock.host_lock(self.host):
            # Another run may have changed packages since, and containers may have started.
            seen = self.look()
            needs = self._needs(seen, wanted)
            self._object(seen, needs, wanted)
            return self._work(seen, needs, wanted)

    # -- Requested and installed state ---------------------------------------------------------------------------------

    def _existing(self, check_mode: bool) -> toolkit_packages.Outcome:
        """Check the installed toolkit for ``source: existing``. This changes nothing."""
        seen = self.look()
        found = self.ask_programs()
        versions = {name: package.version for name, package in seen.packages.items()}
        version = toolkit_installed.one_version(versions, found)
        problem = package_versions.problem_of(
            versions, found, self.options.version, self.options.minimum_version_policy
        )
        if problem is not None:
            # In check mode, earlier tasks of the play have not installed what they would install.
            if not check_mode:
                raise errors.HostError(problem)
            self.warnings.append(problem)
        self.check_minimum(version)
        return toolkit_packages.Outcome(changed=False, before=seen, after=seen)

    def _wanted(self, check_mode: bool) -> str | None:
        """Return the requested version. With files, this is their full version if the files are on the host already."""
        options = self.options
        if options.source != "files":
            return options.version
        if check_mode and options.pending and not all(self.host.exists(path) for path in self.files):
            return options.version
        manager = self.manager
        return package_versions.version_of_files(manager.describe(self.files), manager.architecture(), options.version)

    def _needs(self, seen: toolkit_packages.State, wanted: str | None, *, foretold: bool = False) -> PendingChanges:
        options = self.options
        packages = not package_versions.satisfies(seen.packages, wanted)
        # The newest version, and the version of files that are not on the host yet, are unknown here.
        packages = packages or wanted == package_versions.LATEST or (options.source == "files" and wanted is None)
        hold = options.hold is not None and any(p.held != options.hold for p in seen.packages.values())
        keep = self.files if options.source == "files" else ()
        return PendingChanges(
            packages,
            tuple(seen.former) if options.remove_conflicts else (),
            hold,
            self._sources_in_the_way(),
            tuple(toolkit_packages.stale_files(self.host, self.cache, keep)),
            self._repository(foretold),
        )

    def _repository(self, foretold: bool) -> toolkit_repository.RepositoryPlan:
        plan = toolkit_repository.plan_of(self.host, self.repository_files, self.options.proxy, foretold=foretold)
        # Packages that are given as files do not test a repository.
        if self.repository_files is None and self.options.source != "repository":
            return toolkit_repository.RepositoryPlan()
        return plan

    def _sources_in_the_way(self) -> tuple[str, ...]:
        # An installation from files needs no source and does not change the existing sources.
        if not self.options.remove_conflicts or self.options.source != "repository":
            return ()
        family = self.manager.name
        address = toolkit_repository.address_of(self.host, self.repository_files, family)
        if address is None:
            # This collection has no repository here, so the other sources are the only ones.
            return ()
        found = packages_sources.conflicts(self.host, family, address)
        for entry in found.mixed:
            raise errors.ConfigurationError(
                entry.path,
                f"the source {entry.address} conflicts with the one of this collection, and the file has others too",
                "Take the entry out, or set remove_conflicts: false.",
                entry.line,
            )
        return tuple(found.files)

    # -- Refusals ------------------------------------------------------------------------------------------------------

    def _object(self, seen: toolkit_packages.State, needs: PendingChanges, wanted: str | None) -> None:
        """Raise an error, or warn, for every problem that is known before the host is changed."""
        if self.options.hold:
            self.manager.require_holds()
        known = wanted if wanted != package_versions.LATEST else None
        self.check_minimum(known)
        if known is not None:
            self._refuse_held(seen, needs, known)
        # With "latest" the packages may stay unchanged. This is checked again when the version is known.
        if needs.former or (
            needs.packages
            and not (wanted == package_versions.LATEST and package_versions.common_version(seen.packages))
        ):
            self.guard_containers()
            if self.manager.interrupted():
                self.manager.refuse_interrupted(seen.half)

    def _refuse_held(self, seen: toolkit_packages.State, needs: PendingChanges, version: str) -> None:
        if self.options.hold is not None:
            return
        changing = [
            n for n, p in seen.packages.items() if p.held and not package_versions.is_version(p.version, version)
        ]
        package_versions.refuse_held(changing + [name for name in needs.former if seen.former[name].held])

    # -- Check mode ----------------------------------------------------------------------------------------------------

    def _check_mode_result(
        self, seen: toolkit_packages.State, needs: PendingChanges, wanted: str | None
    ) -> toolkit_packages.Outcome:
        standing = (
            package_versions.common_version(seen.packages)
            if not needs.packages or wanted == package_versions.LATEST
            else None
        )
        target = package_versions.Target(
            standing or (wanted if wanted not in (None, package_versions.LATEST) else None) or _UNKNOWN
        )
        blind = self.options.pending or needs.sources or needs.repository.to_prove or self.manager.interrupted()
        if needs.transaction and not blind:
            try:
                target = self._choose(seen, needs, wanted, offline=True)
                self._preview(seen, needs, target, wanted, offline=True)
            except (packages_base.CommandError, package_versions.NotOfferedError):
                # The lists on the host may be old or missing. Only a real run fetches lists.
                self.warnings.append(
                    "The package lists on this host do not tell all that would change; check mode fetches no others."
                )
        packages = {
            name: packages_base.Package(target.version, held=self._held_afterwards(seen, name))
            for name in packages_names.PACKAGES
        }
        former = {} if needs.former else seen.former
        others = needs.former or needs.hold or needs.files
        changed = bool(others) or packages != seen.packages
        return self._outcome(changed, seen, toolkit_packages.State(packages, former), needs, target, foretold=True)

    def _held_afterwards(self, seen: toolkit_packages.State, name: str) -> bool:
        if self.options.hold is not None:
            return self.options.hold
        return name in seen.packages and seen.packages[name].held

    # -- Changes under the lock ----------------------------------------------------------------------------------------

    def _work(
        self, before: toolkit_packages.State, needs: PendingChanges, wanted: str | None
    ) -> toolkit_packages.Outcome:
        undo = toolkit_undoing.Undo(self.host, self.backup_dir)
        try:
            return self._change_host(before, needs, wanted, undo)
        except errors.NvidiaError as error:
            with contextlib.suppress(errors.NvidiaError):
                changed = undo.changed or self.look() != before
                error.details = {**error.details, "changed": changed}
            raise

    def _change_host(
        self, before: toolkit_packages.State, needs: PendingChanges, wanted: str | None, undo: toolkit_undoing.Undo
    ) -> toolkit_packages.Outcome:
        seen = before
        if needs.transaction and seen.half:
            # This waits for another program that is changing the packages.
            self.manager.interrupted()
            seen = self.look()
        if needs.transaction and seen.half:
            self.manager.complete(seen.half)
            seen = self.look()
        # This is read before this run records the repository: without a list, such a record marks all packages as
        # installed by this collection.
        self._recorded = toolkit_packages.recorded_packages(self.host)
        try:
            backups = self._put_sources(needs, undo)
            target = self._transaction(seen, needs, wanted)
            self._set_holds()
            after = self.look()
            self._check_parts(after)
        except errors.NvidiaError as error:
            self._go_back(seen, needs, undo, error)
            raise
        undo.settle()
        if needs.repository.touched and not self.host.lexists(toolkit_packages.INSTALLED):
            toolkit_packages.record_packages(self.host, self._recorded)
        toolkit_repository.clean_staged(self.host, needs.repository)
        if self.cache is not None and needs.stale:
            toolkit_packages.clean_cache(self.host, self.cache, needs.stale)
        changed = after != before or needs.files
        return self._outcome(changed, before, after, needs, target)._replace(backups=tuple(backups))

    def _put_sources(self, needs: PendingChanges, undo: toolkit_undoing.Undo) -> list[dict[str, str | None]]:
        """Write the requested sources and remove the conflicting ones. Returns the backups."""
        if not needs.sources and not needs.repository.to_prove:
            return []
        undo.begin([file.path for file in needs.repository.touched], needs.sources)
        backups = toolkit_packages.remove_sources(self.host, needs.sources, self.backup_dir)
        return [*backups, *toolkit_repository.carry_out(self.host, needs.repository, self.backup_dir)]

    def _go_back(
        self, seen: toolkit_packages.State, needs: PendingChanges, undo: toolkit_undoing.Undo, error: errors.NvidiaError
    ) -> None:
        """Restore the previous sources, unless packages from the new sources were installed."""
        if self.look() != seen:
            undo.settle()
            return
        try:
            undo.put_back()
        except errors.HostError as another:
            raise errors.HostError(f"{error} The sources of packages could not be put back: {another}") from error
        if undo.begun:
            # A key that this run did not change worked before. After an interrupted run this is unknown for all keys.
            concerned = {file.path for file in needs.repository.files}
            every = needs.repository.unproven
            tried = [f for f in self.repository_files or () if every or self.host.resolve(f.path) in concerned]
            toolkit_repository.forget_staged(self.host, tried)

    def _transaction(
        self, seen: toolkit_packages.State, needs: PendingChanges, wanted: str | None
    ) -> package_versions.Target:
        """Find the version, preview the change, and apply it. Returns the version that the packages now have."""
        if not needs.transaction:
            self._try_source(needs)
            return package_versions.Target(package_versions.common_version(seen.packages) or "")
        target = self._find(seen, needs, wanted)
        failure = self._carry_out(seen, needs, target)
        if failure is not None and self._may_be_outdated(failure) and self.look() == seen:
            # If a package is still missing, the first failure is the one to report.
            with contextlib.suppress(packages_base.CommandError):
                target = self._find(seen, needs, wanted, again=True)
                failure = self._carry_out(seen, needs, target)
        if failure is not None:
            raise toolkit_packages.explain_failure(failure, seen, self.look()) from failure
        return target

    def _may_be_outdated(self, failure: packages_base.CommandError) -> bool:
        """Return whether a newer list of the mirror may avoid this failure."""
        return self.options.source == "repository" and toolkit_packages.not_downloaded(failure)

    def _carry_out(
        self, seen: toolkit_packages.State, needs: PendingChanges, target: package_versions.Target
    ) -> packages_base.CommandError | None:
        """Apply the change. Returns the error of the package manager, or None."""
        if package_versions.common_version(seen.packages) == target.version and not needs.former:
            return None
        record = toolkit_packages.track_config(self.host)
        missing = [name for name in packages_names.PACKAGES if name not in seen.packages]
        listed = toolkit_packages.record_packages(self.host, {*self._recorded, *missing})
        try:
            self.manager.carry_out(self._change(needs, target))
        except packages_base.CommandError as error:
            if self.look() == seen:
                toolkit_packages.restore_packages(self.host, listed)
            return error
        finally:
            toolkit_packages.untrack_config(self.host, record)
        return None

    def _find(
        self, seen: toolkit_packages.State, needs: PendingChanges, wanted: str | None, *, again: bool = False
    ) -> package_versions.Target:
        """Return the target, from lists that are as new as necessary.

        The list of this collection's repository is fetched first. The lists of other sources are fetched only if the
        version, or a package that it depends on, is not found without them.
        """
        changed = self.options.pending or needs.sources or needs.repository.to_prove
        fresh = [False] if changed or wanted == package_versions.LATEST else [None, False]
        if again:
            # If the first attempt fetched the list of this collection's repository, this one fetches all lists.
            # Otherwise it fetches that list.
            fresh = [None not in fresh]
        problem: errors.HostError | None = None
        for everything in [*fresh, True] if self.options.source == "repository" else [None]:
            try:
                if everything is not None:
                    self._refresh(everything)
            except packages_base.CommandError:
                # Any of all sources may be broken, so the error about the missing package is more useful.
                if not everything or problem is None:
                    raise
                break
            try:
                target = self._choose(seen, needs, wanted)
                self._preview(seen, needs, target, wanted)
            except (packages_base.CommandError, package_versions.NotOfferedError) as error:
                problem = error
            else:
                return target
        raise problem or errors.HostError("No package list could be asked.")

    def _try_source(self, needs: PendingChanges) -> None:
        """Fetch the list of a source that has just changed, to test it, although no package comes from it now."""
        if self.options.source == "repository" and (self.options.pending or needs.repository.to_prove):
            self._refresh()

    def _refresh(self, everything: bool = False) -> None:
        """Fetch package lists. A failure also reports how this host connects to the repository of this collection."""
        try:
            self.manager.refresh(everything)
        except packages_base.CommandError as error:
            address, proxy = (
                toolkit_repository.address_of(self.host, self.repository_files, self.manager.name),
                self.options.proxy,
            )
            problem = access.connection_error(address, proxy)
            error.args = (" ".join(filter(None, (str(error), problem, access.access_advice(address, proxy)))),)
            error.details = {"code": access.UNREACHABLE} if problem else error.details
            raise

    def _choose(
        self, seen: toolkit_packages.State, needs: PendingChanges, wanted: str | None, offline: bool = False
    ) -> package_versions.Target:
        if self.options.source == "files":
            return package_versions.Target(wanted or _UNKNOWN, "files")
        if not needs.packages:
            return package_versions.Target(package_versions.common_version(seen.packages) or "")
        return package_versions.choose(self.manager.candidates(packages_names.PACKAGES, offline), wanted, seen.packages)

    def _preview(
        self,
        seen: toolkit_packages.State,
        needs: PendingChanges,
        target: package_versions.Target,
        wanted: str | None,
        offline: bool = False,
    ) -> None:
        """Raise NvidiaError if this collection refuses ``target``, CommandError if the package manager does."""
        self.check_minimum(target.version)
        if package_versions.common_version(seen.packages) == target.version and not needs.former:
            return
        self._refuse_held(seen, needs, target.version)
        if wanted == package_versions.LATEST:
            self.guard_containers()
        if not offline and self.manager.interrupted():
            self.manager.refuse_interrupted(())
        preview = self.manager.preview(self._change(needs, target), offline)
        package_versions.refuse_unrelated_changes(preview, packages_names.PACKAGES, needs.former)

    def _change(self, needs: PendingChanges, target: package_versions.Target) -> packages_base.Change:
        install = {} if self.files else dict.fromkeys(packages_names.PACKAGES, target.version)
        return packages_base.Change(install, self.files, needs.former, change_held=self.options.hold is not None)

    def _set_holds(self) -> None:
        """Set or remove holds as requested. A transaction removes the holds of packages that it may change."""
        hold, seen = self.options.hold, self.look()
        other = {name: package.version for name, package in seen.packages.items() if package.held != hold}
        if hold is None or not other:
            return
        if hold:
            self.manager.hold(other)
        else:
            self.manager.unhold(list(other))

    # -- Result --------------------------------------------------------------------------------------------------------

    def _check_parts(self, seen: toolkit_packages.State) -> None:
        """Raise HostError if packages and programs are not of one version."""
        versions = {name: package.version for name, package in seen.packages.items()}
        self.check_minimum(package_versions.common_version(seen.packages))
        found = toolkit_installed.version_mismatches(versions, self.ask_programs())
        if found:
            raise errors.HostError(
                f"The packages are installed, but the toolkit's parts do not go together: {' '.join(found)} Remove what"
                " does not come from the packages."
            )

    def _outcome(
        self,
        changed: bool,
        before: toolkit_packages.State,
        after: toolkit_packages.State,
        needs: PendingChanges,
        target: package_versions.Target,
        *,
        foretold: bool = False,
    ) -> toolkit_packages.Outcome:
        return toolkit_packages.Outcome(
            changed,
            before,
            after,
            target.origin if before.packages != after.packages else None,
            needs.sources,
            (*needs.stale, *needs.repository.staged),
            needs.repository,
            foretold=foretold,
        )
