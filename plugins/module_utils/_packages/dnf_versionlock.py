# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the version locks of dnf 4."""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import saved_files

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm


# The configuration file of the plugin, which has no list without this file.
PLUGIN_CONFIG = "/etc/dnf/plugins/versionlock.conf"

# The part of a pattern after the name: a version, perhaps with an epoch.
_VERSION = re.compile(r"-[0-9].*")
_EXCLUSION = "!"


class LockList(t.NamedTuple):
    """The list of version locks of one host."""

    host: hostfs.HostFS

    @property
    def path(self) -> str | None:
        """The path of the list, or None if versions are not locked on this host."""
        path = _plugin_list(self.host.read_text(PLUGIN_CONFIG))
        return path if path is not None and self.host.exists(path) else None

    def patterns(self) -> list[str]:
        """Return the locks as patterns of names with versions, without the entries that exclude a version."""
        path = self.path
        return [] if path is None else parse_locks(self.host.read_text(path))

    def exist(self) -> bool:
        return bool(self.patterns())

    def held_names(self, rows: t.Sequence[rpm.Row]) -> set[str]:
        """Return the names of those installed packages that are locked at their version."""
        locks = self.patterns()
        return {row.name for row in rows if is_locked(row, locks)}

    def delete_arguments(self, names: t.Collection[str]) -> list[str]:
        """Return the arguments of dnf versionlock delete for these packages.

        A lock is included only if it names one package, not several by a pattern. With the name of a package, dnf would
        also delete the entries that exclude a version of it.
        """
        return [lock for lock in self.patterns() if any(names_package(lock, name) for name in names)]

    def snapshot(self) -> list[saved_files.SavedFile]:
        """Return the state of the list, for restore()."""
        return [] if self.path is None else saved_files.snapshot_list(self.host, self.path)


def _plugin_list(text: str) -> str | None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    path = parser.get("main", "locklist", fallback="")
    disabled = parser.get("main", "enabled", fallback="1").strip().lower() in ("0", "no", "false", "off")
    return path if os.path.isabs(path) and not disabled else None


def parse_locks(text: str) -> list[str]:
    """Return the patterns in versionlock.list."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", _EXCLUSION))]


def names_package(lock: str, name: str) -> bool:
    """Return whether ``lock`` names the package ``name``, at any version."""
    return lock == name or (lock.startswith(name) and _VERSION.fullmatch(lock[len(name) :]) is not None)


def is_locked(package: t.Sequence[str], locks: t.Iterable[str]) -> bool:
    """Return whether one of ``locks`` holds a package at its current version.

    ``package`` is (name, epoch, version with release, architecture). A package that is locked at another version is not
    held, because dnf is due to change it.
    """
    name, epoch, version, architecture = package
    names = [f"{name}-{version.split('-')[0]}", f"{name}-{version}", f"{name}-{epoch}:{version}"]
    spellings = [*names, *(f"{spelling}.{architecture}" for spelling in names)]
    return any(fnmatch.fnmatchcase(spelling, lock) for lock in locks for spelling in spellings)
