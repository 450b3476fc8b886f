# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Remove the toolkit's packages, the config.toml that they created, cached package files, and the repository's files.

It does not install anything: `install.py` does.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    rpm_keys,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
    versions as package_versions,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records


class RemovalPlan(t.NamedTuple):
    """What the task removes.

    - ``packages``: names of packages.
    - ``config``: the record of a config.toml that the packages created.
    - ``cached``: files in the package cache.
    - ``repository``: the files of the package repository.
    - ``keys``: the keys of the repository in rpm.
    - ``removes_list``: whether the list of the packages that this collection installed is removed too.
    - ``unrecorded``: installed packages that are kept, because they are not in that list.
    """

    packages: tuple[str, ...]
    config: core_records.OriginalFile | None
    cached: tuple[str, ...]
    repository: toolkit_repository.RepositoryPlan
    keys: rpm_keys.KeyPlan
    removes_list: bool = False
    unrecorded: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to remove."""
        has_files = bool(self.cached) or self.config is not None or self.removes_list
        return bool(self.packages) or has_files or self.repository.has_changes or self.repository.untested


class Removal(toolkit_packages.PackageTask):
    """The task that removes the toolkit's packages (PACKAGES) from the host."""

    def execute(self, check_mode: bool) -> toolkit_packages.TaskResult:
        """Remove the packages and files unless ``check_mode``. Raises NvidiaError."""
        state = self.installed_state()
        removal = self._removal_plan(state, config_restored=check_mode and self.options.config_restored)
        if not removal.has_changes:
            return _unchanged(state, removal)
        self._check_preconditions(state, removal)
        if check_mode:
            if removal.packages and not self.manager.interrupted():
                self._preview(removal)
            remaining = {name: package for name, package in state.packages.items() if name not in removal.packages}
            return self._result(state, toolkit_packages.State(remaining, state.former), removal, predicted=True)
        with lock.host_lock(self.host):
            # Another run may have changed the host since, so the plan is made again under the lock.
            state = self.installed_state()
            removal = self._removal_plan(state)
            if not removal.has_changes:
                return _unchanged(state, removal)
            self._check_preconditions(state, removal)
            return self._apply(state, removal)

    def _check_preconditions(self, state: toolkit_packages.State, removal: RemovalPlan) -> None:
        """Raise an error, or warn, for every problem that is known before the host is changed."""
        if removal.packages:
            self.manager.require_transactions()
        if removal.packages and self.manager.interrupted():
            self.manager.refuse_interrupted(state.half_installed)
        # Packages of which only configuration files remain are not used by containers.
        if not removal.packages or not state.packages:
            return
        self.check_gpu_containers()
        self.check_containers(
            gpu_containers.toolkit_runtime_containers(self.host),
            "run with a runtime of the toolkit. Without this runtime, no engine can stop them.",
            "Remove the containers first",
            "Kill their processes, and remove the containers by hand.",
        )

    def _removal_plan(self, state: toolkit_packages.State, *, config_restored: bool = False) -> RemovalPlan:
        repository = toolkit_repository.plan_removal(self.host)
        keys = self.plan_keys(repository)
        cached = tuple(toolkit_packages.stale_files(self.host, self.cache, ()))
        # ``source: existing`` never removes packages. Without a known package manager this collection has installed
        # none.
        if self.options.source == "existing" or self._manager is None:
            return RemovalPlan((), None, cached, repository, keys)
        config = toolkit_packages.recorded_config(self.host)
        if config is not None and toolkit_packages.has_written_settings(self.host) and not config_restored:
            self._warn_about_settings(config.path)
            config = None
        recorded = toolkit_packages.recorded_packages(self.host)
        packages = [
            name for name in (*state.packages, *self.manager.config_only(packages_base.PACKAGES)) if name in recorded
        ]
        unrecorded = tuple(name for name in state.packages if name not in recorded)
        removes_list = self.host.lexists(toolkit_packages.INSTALLED)
        return RemovalPlan(tuple(packages), config, cached, repository, keys, removes_list, unrecorded)

    def _warn_about_settings(self, path: str) -> None:
        self.warn(
            f"{path} is not removed, because it contains settings of nvidia_toolkit_config. Run nvidia_toolkit_config"
            f" with {errors.option:state}: absent, then run this task again."
        )

    def _preview(self, removal: RemovalPlan) -> None:
        """Let the package manager simulate the removal. Raise NvidiaError if it would change unrelated packages."""
        preview = self.manager.preview(_purge_change(removal))
        package_versions.refuse_unrelated_changes(preview, packages_base.PACKAGES, removal.packages)

    def _apply(self, before: toolkit_packages.State, removal: RemovalPlan) -> toolkit_packages.TaskResult:
        if removal.packages:
            self._remove_packages(before, removal)
        try:
            backups = self._remove_files(removal)
        except errors.NvidiaError as error:
            error.details = {**error.details, "changed": True}
            raise
        return self._result(before, self.installed_state(), removal)._replace(backups=tuple(backups))

    def _remove_files(self, removal: RemovalPlan) -> list[dict[str, str | None]]:
        backups: list[dict[str, str | None]] = []
        if removal.config is not None:
            backups = toolkit_packages.remove_config(self.host, removal.config, self.backup_dir)
        if self.cache is not None and removal.cached:
            toolkit_packages.clean_cache(self.host, self.cache, removal.cached)
        # The files and their records name the keys, so that the next run can complete an interrupted removal.
        rpm_keys.remove_keys(self.host, self.run, removal.keys.unused)
        backups += toolkit_repository.write_files(self.host, removal.repository, self.backup_dir)
        toolkit_repository.remove_unused_keys(self.host, removal.repository)
        if removal.repository.untested:
            toolkit_repository.remove_marker(self.host)
        if removal.removes_list:
            toolkit_packages.restore_packages(self.host, None)
        return backups

    def _remove_packages(self, before: toolkit_packages.State, removal: RemovalPlan) -> None:
        if before.half_installed:
            self.manager.repair(before.half_installed)
        self._preview(removal)
        removed = {name: package for name, package in before.packages.items() if name in removal.packages}
        held = {name: package.version for name, package in removed.items() if package.held}
        if held:
            # Otherwise the hold would apply to a package that is installed later.
            self.manager.unhold(list(held))
        try:
            self.manager.apply(_purge_change(removal))
        except packages_base.CommandError as error:
            after = self.installed_state()
            if held and set(held) <= set(after.packages):
                self.manager.hold(held)
                after = self.installed_state()
            raise toolkit_packages.explain_failure(error, before, after) from error

    def _result(
        self,
        before: toolkit_packages.State,
        after: toolkit_packages.State,
        removal: RemovalPlan,
        predicted: bool = False,
    ) -> toolkit_packages.TaskResult:
        config = [removal.config.path] if removal.config is not None else []
        return toolkit_packages.TaskResult(
            changed=True,
            before=before,
            after=after,
            removed_files=(*removal.cached, *config, *removal.repository.unused_keys),
            repository=removal.repository,
            keys=removal.keys,
            predicted=predicted,
            unrecorded=removal.unrecorded,
        )


def _unchanged(state: toolkit_packages.State, removal: RemovalPlan) -> toolkit_packages.TaskResult:
    return toolkit_packages.TaskResult(changed=False, before=state, after=state, unrecorded=removal.unrecorded)


def _purge_change(removal: RemovalPlan) -> packages_base.Change:
    # Held packages are removed too. The task removes their holds first, but a simulation runs while they are held.
    return packages_base.Change(remove=removal.packages, change_held=True)
