# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which program manages a host's packages; one row for each family of distributions.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import PACKAGE_MANAGER_TIMEOUT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Commands
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages_apt import Apt
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages_dnf import Dnf

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import PackageManager

    _Maker = t.Callable[[HostRoot, Commands, int], PackageManager]

# os-release(5): the second is what the first usually links to.
OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")


class UnsupportedError(HostError):
    """A distribution whose packages this collection cannot manage."""


class Family(t.NamedTuple):
    """Distributions by their ID or ID_LIKE, what manages their packages (None: nothing that is supported yet)."""

    ids: tuple[str, ...]
    programs: tuple[str, ...]
    make: _Maker | None


FAMILIES = (
    Family(("debian", "ubuntu"), ("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-deb"), Apt),
    Family(("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn"), ("dnf", "rpm"), Dnf),
    Family(("suse", "sles", "opensuse", "opensuse-leap", "opensuse-tumbleweed"), (), None),
)


def manager_of(
    host: HostRoot, run: Runner | Commands, lock_timeout: int = PACKAGE_MANAGER_TIMEOUT
) -> PackageManager | None:
    """The package manager of ``host``, None where its distribution is not known.

    ``lock_timeout`` in seconds.  Raises HostError if the distribution is known but not supported, or if a program of
    its package manager is missing on a live host.
    """
    ids = distribution_of(host)
    for name in ids:
        for family in FAMILIES:
            if name in family.ids:
                return _made(family, ids[0], host, run, lock_timeout)
    return None


def _made(
    family: Family, distribution: str, host: HostRoot, run: Runner | Commands, lock_timeout: int
) -> PackageManager:
    if family.make is None:
        raise UnsupportedError(
            f"Packages of {distribution} are not supported yet. Install the NVIDIA Container Toolkit by the"
            " distribution's own means, and set source: existing."
        )
    missing = [name for name in family.programs if host.find_executable([name]) is None]
    if missing and host.live:
        raise HostError(
            f"This host is {distribution}, but has no {', '.join(missing)}. Install it, or set source: existing and"
            " install the toolkit by other means."
        )
    commands = run if isinstance(run, Commands) else Commands.of(run)
    return family.make(host, commands, lock_timeout)


def distribution_of(host: HostRoot) -> list[str]:
    """ID and the words of ID_LIKE of os-release, the nearest first; empty where there is none."""
    for path in OS_RELEASE:
        text = host.read_text(path)
        if text:
            fields = dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line)
            words = [fields.get(key, "").strip("\"'") for key in ("ID", "ID_LIKE")]
            return " ".join(words).lower().split()
    return []
