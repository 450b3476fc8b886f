# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an installation changes: the packages that it installs, and the required changes."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import versions as package_versions

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import packages as toolkit_packages
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        repository as toolkit_repository,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import rpm_keys


def select(options: toolkit_packages.InstallOptions, installed: t.Iterable[str]) -> tuple[str, ...]:
    """Return the packages that get one version: the requested ones, and the other ``installed`` ones of the toolkit.

    No package is removed: programs that use nvidia-container-cli, such as enroot of Slurm, name no dependency. The
    package nvidia-container-toolkit needs the base package of its own version.
    """
    wanted = packages_base.PACKAGE_SETS[options.packages]
    return (*wanted, *(name for name in installed if name not in wanted))


def refuse_other_files(
    options: toolkit_packages.InstallOptions, installed: t.Mapping[str, packages_base.Package], version: str | None
) -> None:
    """Raise HostError if package files of ``version`` would separate the base package from other installed ones."""
    wanted = packages_base.PACKAGE_SETS[options.packages]
    others = [name for name in installed if name not in wanted]
    if others and version is not None and not package_versions.satisfies(installed, version, others):
        raise errors.HostError(
            f"{errors.option:files} contains only version {version} of {', '.join(wanted)}, but {', '.join(others)}"
            f" must have the same version. Add the other packages to {errors.option:files}, and set"
            f" {errors.option:packages}: {packages_base.FULL}."
        )


class PendingChanges(t.NamedTuple):
    """The required changes, as far as they are known without the package lists.

    ``names`` are the packages that have one version afterwards. ``packages`` and ``hold`` say whether packages or their
    holds change. ``former`` are packages to remove, because the toolkit replaces them. ``sources`` are conflicting
    source files to remove. ``stale`` are files to remove from the package cache. ``keys`` are the changes in rpm.
    """

    names: tuple[str, ...]
    packages: bool
    former: tuple[str, ...]
    hold: bool
    sources: tuple[str, ...]
    stale: tuple[str, ...]
    repository: toolkit_repository.RepositoryPlan
    keys: rpm_keys.KeyPlan

    def common_version(self, state: toolkit_packages.State) -> str | None:
        """Return the version that all ``names`` have; None if they differ, or if one is missing or half installed."""
        return package_versions.common_version(state.packages, self.names)

    @property
    def needs_transaction(self) -> bool:
        return self.packages or bool(self.former)

    @property
    def changes_files(self) -> bool:
        """Whether files, or the keys of rpm, change."""
        return bool(self.sources or self.stale) or self.repository.has_changes or self.keys.has_changes

    @property
    def has_changes(self) -> bool:
        return self.needs_transaction or self.hold or self.changes_files or self.repository.untested
