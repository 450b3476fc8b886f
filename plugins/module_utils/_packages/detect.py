# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose the package manager of a host."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import (
    apt_sources,
    os_release,
    rpm_sources,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    _Factory = t.Callable[[hostfs.HostFS, packages_base.Commands, int], packages_base.PackageManager]


class Family(t.NamedTuple):
    """Distributions by their ID or ID_LIKE, and the programs of their package manager.

    ``create`` returns the package manager, and ``repository`` its sources. ``database`` is on hosts that it manages.
    """

    ids: tuple[str, ...]
    programs: tuple[str, ...]
    create: _Factory
    repository: packages_base.Repository
    database: str


# A host needs only one of these imports.
def _create_apt(host: hostfs.HostFS, run: packages_base.Commands, lock_timeout: int) -> packages_base.PackageManager:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt  # noqa: PLC0415

    return apt.Apt(host, run, lock_timeout)


def _create_dnf(host: hostfs.HostFS, run: packages_base.Commands, lock_timeout: int) -> packages_base.PackageManager:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import dnf  # noqa: PLC0415

    return dnf.Dnf(host, run, lock_timeout)


def _create_zypper(host: hostfs.HostFS, run: packages_base.Commands, lock_timeout: int) -> packages_base.PackageManager:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import zypper  # noqa: PLC0415

    return zypper.Zypper(host, run, lock_timeout)


FAMILIES = (
    Family(
        ("debian", "ubuntu"),
        ("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-deb"),
        _create_apt,
        apt_sources.REPOSITORY,
        "/var/lib/dpkg/info/dpkg.list",
    ),
    Family(
        ("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn"),
        ("dnf", "rpm"),
        _create_dnf,
        rpm_sources.DNF,
        "/var/lib/rpm/*",
    ),
    Family(
        ("suse", "sles", "sled", "opensuse", "opensuse-leap", "opensuse-tumbleweed"),
        ("zypper", "rpm"),
        _create_zypper,
        rpm_sources.ZYPPER,
        "/var/lib/rpm/*",
    ),
)


def repositories() -> list[packages_base.Repository]:
    """Return the sources of all package managers."""
    return [family.repository for family in FAMILIES]


def detect_package_manager(
    host: hostfs.HostFS,
    run: core_plan.Runner | packages_base.Commands,
    lock_timeout: int = lock.PACKAGE_MANAGER_TIMEOUT,
) -> packages_base.PackageManager | None:
    """Return the package manager of ``host``, or None if there is none, or if several could be its own.

    An unknown distribution, such as openEuler, has the one whose database and programs are there. ``lock_timeout`` is
    in seconds. Raises HostError if a program of the package manager is missing on a live host.
    """
    ids = os_release.distribution_of(host)
    found = [family for name in ids for family in FAMILIES if name in family.ids][:1]
    found = found or [family for family in FAMILIES if host.glob(family.database) and not _missing(family, host)]
    return _create(found[0], (*ids, "an unknown system")[0], host, run, lock_timeout) if len(found) == 1 else None


def _create(
    family: Family,
    distribution: str,
    host: hostfs.HostFS,
    run: core_plan.Runner | packages_base.Commands,
    lock_timeout: int,
) -> packages_base.PackageManager:
    missing = _missing(family, host)
    if missing and host.live:
        raise errors.HostError(
            f"This host runs {distribution}, but lacks {', '.join(missing)}. Install them, or set"
            f" {errors.option:source}: directory."
        )
    commands = run if isinstance(run, packages_base.Commands) else packages_base.Commands.of(run)
    return family.create(host, commands, lock_timeout)


def _missing(family: Family, host: hostfs.HostFS) -> list[str]:
    return [name for name in family.programs if host.find_executable([name]) is None]
