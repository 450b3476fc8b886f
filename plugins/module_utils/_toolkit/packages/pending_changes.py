# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an installation changes: the packages that it installs, removes and keeps, and the required changes."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import versions as package_versions

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        repository as toolkit_repository,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import rpm_keys


class Selection(t.NamedTuple):
    """The packages that a task installs, removes and keeps.

    ``names`` are installed at one version. ``surplus`` are installed, and are removed. ``kept`` are not requested, but
    are among ``names``, because ``users`` use NVIDIA's hook, which the kept packages contain.
    """

    names: tuple[str, ...]
    surplus: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def warning(self) -> str:
        """Return the warning about the kept packages."""
        return (
            f"{errors.option:packages} is {packages_base.BASE}, but {', '.join(self.kept)} stay installed, because"
            f" NVIDIA's hook is in use: {'; '.join(self.users)}. Let each of them use CDI, which modes cdi and, from"
            " toolkit 1.18 on, auto do. Remove OCI hooks, restart the engines, and run this task again."
        )


def select(
    host: hostfs.HostFS,
    options: toolkit_packages.InstallOptions,
    installed: t.Mapping[str, packages_base.Package],
    requested: str | None,
) -> Selection:
    """Return the packages for ``options``. Packages beyond those requested stay only if something uses the hook.

    ``installed`` are the installed packages of the toolkit, and ``requested`` is the requested version.
    """
    wanted = packages_base.PACKAGE_SETS[options.packages]
    others = tuple(name for name in installed if name not in wanted)
    if not others:
        return Selection(wanted)
    # Only a host with more packages than requested needs the engines.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import hook_users  # noqa: PLC0415

    users = hook_users.hook_users(host, _later_version(installed, requested), options.planned_mode)
    if users:
        return Selection((*wanted, *others), kept=others, users=tuple(users))
    return Selection(wanted, surplus=others)


def _later_version(installed: t.Mapping[str, packages_base.Package], requested: str | None) -> str:
    """Return the version that decides what mode auto is: the requested one, or the oldest installed one.

    If the package manager chooses a newer one, the next run finds the newer one installed.
    """
    if requested not in (None, package_versions.LATEST):
        return str(requested)
    return min((package.version for package in installed.values()), key=toolkit_installed.version_key)


def refuse_other_files(
    selection: Selection, installed: t.Mapping[str, packages_base.Package], version: str | None
) -> None:
    """Raise HostError if package files of ``version`` would separate the kept packages from the base package."""
    is_same = version is None or package_versions.satisfies(installed, version, selection.kept)
    if selection.kept and not is_same:
        raise errors.HostError(
            f"{errors.option:files} contains only version {version} of {selection.names[0]}, but"
            f" {', '.join(selection.kept)} must have the same version, and cannot be removed, because NVIDIA's hook is"
            f" in use: {'; '.join(selection.users)}. Let each of them use CDI first, or set {errors.option:packages}:"
            f" {packages_base.FULL} and add the other packages to {errors.option:files}."
        )


class PendingChanges(t.NamedTuple):
    """The required changes, as far as they are known without the package lists.

    ``selection`` are the packages that the task installs, removes and keeps. ``packages`` and ``hold`` say whether
    packages or their holds change. ``former`` are packages to remove, because the toolkit replaces them. ``sources``
    are conflicting source files to remove. ``stale`` are files to remove from the package cache. ``keys`` are the
    changes in rpm.
    """

    selection: Selection
    packages: bool
    former: tuple[str, ...]
    hold: bool
    sources: tuple[str, ...]
    stale: tuple[str, ...]
    repository: toolkit_repository.RepositoryPlan
    keys: rpm_keys.KeyPlan

    @property
    def names(self) -> tuple[str, ...]:
        """The packages that have one version afterwards."""
        return self.selection.names

    @property
    def remove(self) -> tuple[str, ...]:
        """The packages to remove together with the installation."""
        return (*self.former, *self.selection.surplus)

    def common_version(self, state: toolkit_packages.State) -> str | None:
        """Return the version that all ``names`` have; None if they differ, or if one is missing or half installed."""
        return package_versions.common_version(state.packages, self.names)

    @property
    def needs_transaction(self) -> bool:
        return self.packages or bool(self.remove)

    @property
    def changes_files(self) -> bool:
        """Whether files, or the keys of rpm, change."""
        return bool(self.sources or self.stale) or self.repository.has_changes or self.keys.has_changes

    @property
    def has_changes(self) -> bool:
        return self.needs_transaction or self.hold or self.changes_files or self.repository.untested
