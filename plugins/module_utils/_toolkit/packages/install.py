# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install the toolkit's packages at one version in one transaction.

versions.py chooses the version; the package managers in _packages change the host.
"""

from __future__ import annotations

import contextlib

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes as core_changes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import connection as packages_connection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    pending_changes,
    rpm_keys,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    versions as package_versions,
)

_UNKNOWN = "(not known yet)"


class Installation(toolkit_packages.PackageTask):
    """The task that installs the requested packages at one version."""

    # The requested version. With files this is the full version of the files, or the option version in check mode if
    # the files are not on the host yet.
    _requested: str | None = None

    def execute(self, check_mode: bool) -> toolkit_packages.TaskResult:
        """Install the missing packages unless ``check_mode``. Raises NvidiaError."""
        if self.options.source == "existing":
            return self._check_existing(check_mode)
        self._requested = self._requested_version(check_mode)
        state = self.installed_state()
        changes = self._pending_changes(state, predicted=check_mode)
        if not changes.has_changes:
            if not check_mode:
                self._test_source(changes)
            self._check_versions(state, changes)
            return toolkit_packages.TaskResult(changed=False, before=state, after=state)
        core_changes.before_change()
        self._check_preconditions(state, changes)
        if check_mode:
            return self._check_mode_result(state, changes)
        with lock.host_lock(self.host):
            # Another run may have changed packages since, and containers may have started.
            state = self.installed_state()
            changes = self._pending_changes(state)
            self._check_preconditions(state, changes)
            return self._apply(state, changes)

    # -- Requested and installed state ---------------------------------------------------------------------------------

    def _check_existing(self, check_mode: bool) -> toolkit_packages.TaskResult:
        """Check the installed toolkit for ``source: existing``. This changes nothing."""
        state = self.installed_state()
        found = self.read_programs()
        versions = {name: package.version for name, package in state.packages.items()}
        version = toolkit_installed.single_version(versions, found)
        options = self.options
        names = packages_base.PACKAGE_SETS[options.packages]
        problem = package_versions.existing_problem(
            versions, found, options.version, options.minimum_version_policy, names
        )
        if problem is not None:
            # In check mode, earlier tasks of the play have not installed what they would install.
            if not check_mode:
                raise errors.HostError(problem)
            self.warnings.append(problem)
        self.check_minimum(version)
        return toolkit_packages.TaskResult(changed=False, before=state, after=state)

    @property
    def _wants_latest(self) -> bool:
        return self._requested == package_versions.LATEST

    def _requested_version(self, check_mode: bool) -> str | None:
        options = self.options
        if options.source != "files":
            return options.version
        if check_mode and options.pending and not all(self.host.exists(path) for path in self.files):
            return options.version
        manager, names = self.manager, packages_base.PACKAGE_SETS[options.packages]
        files = manager.describe(self.files)
        return package_versions.version_of_files(files, manager.architecture(), options.version, names)

    def _pending_changes(
        self, state: toolkit_packages.State, *, predicted: bool = False
    ) -> pending_changes.PendingChanges:
        options = self.options
        names = pending_changes.select(options, state.packages)
        packages = not package_versions.satisfies(state.packages, self._requested, names)
        # The newest version, and the version of files that are not on the host yet, are unknown here.
        packages = packages or self._wants_latest or (options.source == "files" and self._requested is None)
        hold = options.hold is not None and any(p.held != options.hold for p in state.packages.values())
        keep = self.files if options.source == "files" else ()
        self.require_key_check()
        repository = self._repository(predicted)
        return pending_changes.PendingChanges(
            names,
            packages,
            tuple(state.former) if options.remove_conflicts else (),
            hold,
            self._conflicting_sources(),
            tuple(toolkit_packages.stale_files(self.host, self.cache, keep)),
            repository,
            self._keys(repository, predicted),
        )

    def _repository(self, predicted: bool) -> toolkit_repository.RepositoryPlan:
        plan = toolkit_repository.plan_files(self.host, self.repository_files, self.options.proxy, predicted=predicted)
        # A run that installs files fetches no package list, so it cannot test the repository of an interrupted run.
        if self.repository_files is None and self.options.source != "repository":
            return toolkit_repository.RepositoryPlan()
        return plan

    def _keys(self, repository: toolkit_repository.RepositoryPlan, predicted: bool) -> rpm_keys.KeyPlan:
        try:
            return self.plan_keys(repository)
        except rpm_keys.WrongKeyError:
            if not predicted:
                # Otherwise the next run would not fetch the key again.
                toolkit_repository.remove_fetched_keys(self.host, self.repository_files or ())
            raise

    def _conflicting_sources(self) -> tuple[str, ...]:
        # An installation from files needs no source and does not change the existing sources.
        if not self.options.remove_conflicts or self.options.source != "repository":
            return ()
        repository = self.manager.repository
        address = toolkit_repository.address_of(self.host, self.repository_files, repository)
        if address is None:
            # Without a repository of this collection, no source can conflict with it.
            return ()
        found = packages_sources.conflicts(self.host, repository, address)
        for entry in found.mixed:
            raise errors.ConfigurationError(
                entry.path,
                f"the source {entry.address} conflicts with the repository of this collection, and the file also"
                " contains other sources",
                f"Remove this entry from the file, or set {errors.option:remove_conflicts}: false.",
                entry.line,
            )
        return tuple(found.files)

    # -- Preconditions -------------------------------------------------------------------------------------------------

    def _check_preconditions(self, state: toolkit_packages.State, changes: pending_changes.PendingChanges) -> None:
        """Raise an error, or warn, for every problem that is known before the host is changed."""
        if changes.needs_transaction:
            self.manager.require_transactions()
        if self.options.source == "files":
            pending_changes.refuse_other_files(self.options, state.packages, self._requested)
        if self.options.hold:
            self.manager.require_holds()
        known = self._requested if not self._wants_latest else None
        self.check_minimum(known)
        if known is not None:
            self._refuse_held(state, changes, known)
        # With "latest" the packages may stay unchanged. _preview() then makes these checks when the version is known.
        if changes.former or (changes.packages and not (self._wants_latest and changes.common_version(state))):
            self.check_gpu_containers()
            if self.manager.interrupted():
                self.manager.refuse_interrupted(state.half_installed)

    def _refuse_held(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges, version: str
    ) -> None:
        if self.options.hold is not None:
            return
        changing = [
            n for n, p in state.packages.items() if p.held and not package_versions.is_version(p.version, version)
        ]
        removed = [n for n, p in state.former.items() if p.held and n in changes.former]
        package_versions.refuse_held(changing + removed)

    # -- Check mode ----------------------------------------------------------------------------------------------------

    def _check_mode_result(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges
    ) -> toolkit_packages.TaskResult:
        current = changes.common_version(state) if not changes.packages or self._wants_latest else None
        target = package_versions.Target(current or (None if self._wants_latest else self._requested) or _UNKNOWN)
        unpredictable = (
            self.options.pending or changes.sources or changes.repository.needs_test or self.manager.interrupted()
        )
        if changes.needs_transaction and not unpredictable:
            try:
                target = self._choose_version(state, changes, offline=True)
                self._preview(state, changes, target, offline=True)
            except (packages_base.CommandError, package_versions.NotOfferedError) as error:
                # In check mode, earlier tasks of the play may not have installed what the packages need.
                lists = " Check mode fetches no package lists." if self.options.source == "repository" else ""
                self.warnings.append(
                    f"The change could not be simulated, so the predicted changes may be incomplete: {error}{lists}"
                )
        packages = {
            name: packages_base.Package(target.version, held=self._held_after(state, name)) for name in changes.names
        }
        former = {} if changes.former else state.former
        others = changes.former or changes.hold or changes.changes_files
        changed = bool(others) or packages != state.packages
        if target.version == _UNKNOWN:
            self.warnings.append(
                "The version that would be installed is not known yet, so check mode predicts later tasks for the"
                f" newest release. Set {errors.option:version} to predict them exactly."
            )
        return self._result(changed, state, toolkit_packages.State(packages, former), changes, target, predicted=True)

    def _held_after(self, state: toolkit_packages.State, name: str) -> bool:
        if self.options.hold is not None:
            return self.options.hold
        return name in state.packages and state.packages[name].held

    # -- Changes under the lock ----------------------------------------------------------------------------------------

    def _apply(
        self, before: toolkit_packages.State, changes: pending_changes.PendingChanges
    ) -> toolkit_packages.TaskResult:
        saved = toolkit_repository.SavedSources(self.host, self.backup_dir)
        try:
            return self._change_host(before, changes, saved)
        except errors.NvidiaError as error:
            with contextlib.suppress(errors.NvidiaError):
                changed = saved.changed or self.installed_state() != before
                error.details = {**error.details, "changed": changed}
            raise

    def _change_host(
        self,
        before: toolkit_packages.State,
        changes: pending_changes.PendingChanges,
        saved: toolkit_repository.SavedSources,
    ) -> toolkit_packages.TaskResult:
        state = before
        if changes.needs_transaction and state.half_installed:
            # interrupted() waits until no other program changes packages.
            self.manager.interrupted()
            state = self.installed_state()
        if changes.needs_transaction and state.half_installed:
            self.manager.repair(state.half_installed)
            state = self.installed_state()
        try:
            backups = self._write_sources(changes, saved)
            rpm_keys.apply_keys(self.host, self.run, changes.keys)
            target = self._change_packages(state, changes)
            self._set_holds()
            after = self.installed_state()
            self._check_versions(after, changes)
        except errors.NvidiaError as error:
            self._restore_sources(state, changes, saved, error)
            raise
        saved.discard()
        toolkit_repository.remove_unused_keys(self.host, changes.repository)
        if self.cache is not None and changes.stale:
            toolkit_packages.clean_cache(self.host, self.cache, changes.stale)
        changed = after != before or changes.changes_files
        return self._result(changed, before, after, changes, target)._replace(backups=tuple(backups))

    def _write_sources(
        self, changes: pending_changes.PendingChanges, saved: toolkit_repository.SavedSources
    ) -> list[dict[str, str | None]]:
        """Write the requested sources and remove the conflicting ones. Returns the backups."""
        if not changes.sources and not changes.repository.needs_test:
            return []
        saved.save([file.path for file in changes.repository.changed_files], changes.sources)
        backups = toolkit_packages.remove_sources(self.host, changes.sources, self.backup_dir)
        return [*backups, *toolkit_repository.write_files(self.host, changes.repository, self.backup_dir)]

    def _restore_sources(
        self,
        state: toolkit_packages.State,
        changes: pending_changes.PendingChanges,
        saved: toolkit_repository.SavedSources,
        error: errors.NvidiaError,
    ) -> None:
        """Restore the previous sources, unless packages from the new sources were installed."""
        try:
            if self.installed_state() != state:
                saved.discard()
                return
            saved.restore()
            rpm_keys.undo_keys(self.host, self.run, changes.keys)
        except errors.HostError as another:
            raise _joined(error, f"The previous package sources could not be restored: {another}") from error
        if saved.saved:
            # A key that this run did not change worked before. After an interrupted run it is unknown which keys work.
            changed_paths = {file.path for file in changes.repository.files}
            all_files = changes.repository.untested
            untested = [
                f for f in self.repository_files or () if all_files or self.host.resolve(f.path) in changed_paths
            ]
            toolkit_repository.remove_fetched_keys(self.host, untested)

    def _change_packages(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges
    ) -> package_versions.Target:
        """Find the version, preview the change, and apply it. Returns the target that the packages now have."""
        if not changes.needs_transaction:
            self._test_source(changes)
            return package_versions.Target(changes.common_version(state) or "")
        target = self._find_version(state, changes)
        failure = self._execute_transaction(state, changes, target)
        if failure is not None and self._lists_may_be_outdated(failure) and self.installed_state() == state:
            # If the second attempt fails before its transaction, the first failure is reported.
            with contextlib.suppress(packages_base.CommandError, package_versions.NotOfferedError):
                target = self._find_version(state, changes, again=True)
                failure = self._execute_transaction(state, changes, target)
        if failure is not None:
            raise toolkit_packages.explain_failure(failure, state, self.installed_state()) from failure
        return target

    def _lists_may_be_outdated(self, failure: packages_base.CommandError) -> bool:
        """Return whether a newer list of the mirror may avoid this failure."""
        return self.options.source == "repository" and toolkit_packages.is_download_error(failure)

    def _execute_transaction(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges, target: package_versions.Target
    ) -> packages_base.CommandError | None:
        """Apply the change. Returns the error of the package manager, or None."""
        if changes.common_version(state) == target.version and not changes.former:
            return None
        missing = [name for name in changes.names if name not in state.packages]
        # The list comes first: a killed run may have installed packages.
        recorded = toolkit_packages.recorded_packages(self.host)
        previous_list = toolkit_packages.record_packages(self.host, {*recorded, *missing}, renew=bool(missing))
        record = None
        try:
            record = toolkit_packages.track_config(self.host)
            self.manager.apply(self._change(changes, target))
        except (packages_base.CommandError, errors.HostError) as error:
            try:
                if self.installed_state() == state:
                    toolkit_packages.restore_packages(self.host, previous_list)
            except errors.HostError as another:
                raise _joined(error, str(another)) from error
            if not isinstance(error, packages_base.CommandError):
                raise
            return error
        finally:
            toolkit_packages.untrack_config(self.host, record)
        return None

    def _find_version(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges, *, again: bool = False
    ) -> package_versions.Target:
        """Return the target. Only the package lists that are needed to find it are fetched.

        The list of this collection's repository is fetched before the lists of other sources. Those are fetched only if
        the version, or a package that it depends on, is not found without them.
        """
        changed = self.options.pending or changes.sources or changes.repository.needs_test
        # The argument of _refresh() before each attempt. None: the lists on the host are used as they are.
        steps = [False] if changed or self._wants_latest else [None, False]
        if again:
            # If the first call fetched the list of this collection's repository, this one fetches all lists. Otherwise
            # it fetches that list.
            steps = [None not in steps]
        problem: errors.HostError | None = None
        for all_lists in dict.fromkeys([*steps, True] if self.options.source == "repository" else [None]):
            try:
                if all_lists is not None:
                    self._refresh(all_lists)
            except packages_base.CommandError:
                # A source that this task does not need may have failed. The earlier error about the missing package is
                # reported instead.
                if not all_lists or problem is None:
                    raise
                break
            try:
                target = self._choose_version(state, changes)
                self._preview(state, changes, target)
            except (packages_base.CommandError, package_versions.NotOfferedError) as error:
                problem = error
                if all_lists is False and self._own_source and isinstance(error, package_versions.NotOfferedError):
                    break  # the version of other sources does not matter
            else:
                return target
        raise problem or errors.HostError("No package list could be read.")

    def _test_source(self, changes: pending_changes.PendingChanges) -> None:
        """Fetch the list of a changed source to test it, even if this run installs no package from it."""
        if self.options.source == "repository" and (self.options.pending or changes.repository.needs_test):
            self._refresh()

    def _refresh(self, all_lists: bool = False) -> None:
        """Fetch package lists. A failure also reports how this host connects to the repository of this collection."""
        try:
            self.manager.refresh(all_lists)
        except packages_base.CommandError as error:
            address, proxy = (
                toolkit_repository.address_of(self.host, self.repository_files, self.manager.repository),
                self.options.proxy,
            )
            problem = packages_connection.connection_error(address, proxy)
            error.args = (
                " ".join(filter(None, (str(error), problem, packages_connection.access_advice(address, proxy)))),
            )
            error.details = {"code": packages_connection.UNREACHABLE} if problem else error.details
            raise

    def _choose_version(
        self, state: toolkit_packages.State, changes: pending_changes.PendingChanges, offline: bool = False
    ) -> package_versions.Target:
        if self.options.source == "files":
            return package_versions.Target(self._requested or _UNKNOWN, "files")
        if not changes.packages:
            return package_versions.Target(changes.common_version(state) or "")
        own = self._own_source
        offers = self.manager.candidates(changes.names, offline, own is not None)
        try:
            target = package_versions.choose(offers, self._requested, state.packages, changes.names, own)
        except package_versions.NotOfferedError as error:
            hiding = "; ".join(self.manager.hiding(changes.names))
            if hiding:
                advice = f"These settings of the host may hide versions: {hiding}. Except the packages from them."
                error.args = (f"{error} {advice}",)
            raise
        if own and target.origin is None:
            self.warn(
                f"The installed version {target.version} stays, because {own}, the only source that this task uses for"
                f" the toolkit's packages, offers no newer one. Set {errors.option:version} to install an older one."
            )
        return target

    @property
    def _own_source(self) -> str | None:
        """The file of this collection's source if there is one. The toolkit's packages then come from no other."""
        if self.options.source != "repository":
            return None
        own = self.manager.repository
        return own.source if toolkit_repository.address_of(self.host, self.repository_files, own) else None

    def _preview(
        self,
        state: toolkit_packages.State,
        changes: pending_changes.PendingChanges,
        target: package_versions.Target,
        offline: bool = False,
    ) -> None:
        """Raise NvidiaError if this collection refuses ``target``, CommandError if the package manager does."""
        self.check_minimum(target.version)
        if changes.common_version(state) == target.version and not changes.former:
            return
        self._refuse_held(state, changes, target.version)
        if self._wants_latest:
            self.check_gpu_containers()
        if not offline and self.manager.interrupted():
            self.manager.refuse_interrupted(())
        preview = self.manager.preview(self._change(changes, target), offline)
        package_versions.refuse_unrelated_changes(preview, packages_base.PACKAGES, changes.former)

    def _change(self, changes: pending_changes.PendingChanges, target: package_versions.Target) -> packages_base.Change:
        install = {} if self.files else dict.fromkeys(changes.names, target.version)
        own = target.origin is not None and self._own_source is not None
        return packages_base.Change(install, self.files, changes.former, self.options.hold is not None, own)

    def _set_holds(self) -> None:
        """Set or remove holds as requested. A transaction removes the holds of packages that it may change."""
        hold, state = self.options.hold, self.installed_state()
        differing = {name: package.version for name, package in state.packages.items() if package.held != hold}
        if hold is None or not differing:
            return
        if hold:
            self.manager.hold(differing)
        else:
            self.manager.unhold(list(differing))

    # -- Result --------------------------------------------------------------------------------------------------------

    def _check_versions(self, state: toolkit_packages.State, changes: pending_changes.PendingChanges) -> None:
        """Raise HostError if packages and programs are not of one version."""
        versions = {name: package.version for name, package in state.packages.items()}
        self.check_minimum(changes.common_version(state))
        found = toolkit_installed.version_mismatches(versions, self.read_programs(), required=changes.names)
        if found:
            raise errors.HostError(
                f"The packages are installed, but parts of the toolkit have other versions: {' '.join(found)} Remove"
                " the programs that do not come from the packages."
            )

    def _result(
        self,
        changed: bool,
        before: toolkit_packages.State,
        after: toolkit_packages.State,
        changes: pending_changes.PendingChanges,
        target: package_versions.Target,
        *,
        predicted: bool = False,
    ) -> toolkit_packages.TaskResult:
        return toolkit_packages.TaskResult(
            changed,
            before,
            after,
            target.origin if before.packages != after.packages else None,
            changes.sources,
            (*changes.stale, *changes.repository.unused_keys),
            changes.repository,
            changes.keys,
            predicted=predicted,
        )


def _joined(error: errors.NvidiaError, text: str) -> errors.HostError:
    """Return ``error`` with another sentence."""
    joined = errors.HostError(f"{error} {text}")
    joined.details = error.details
    return joined
