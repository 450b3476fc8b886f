# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the version locks of dnf."""

from __future__ import annotations

import configparser
import fnmatch
import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import saved_files

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import rpm


# The configuration file of dnf 4's plugin, which has no list without this file, and the list of dnf 5.
PLUGIN_CONFIG = "/etc/dnf/plugins/versionlock.conf"
LOCKS_5 = "/etc/dnf/versionlock.toml"
_PROGRAM = "/usr/bin/dnf"
_PROGRAM_5 = "dnf5"

# The part of a pattern after the name: a version, perhaps with an epoch.
_VERSION = re.compile(r"-[0-9].*")
_ASSIGNMENT = re.compile(r"""(\w+)\s*=\s*["']([^"']*)["']""")
_HEADING = re.compile(r"\[+\s*([\w.]+)\s*\]+")
_EXCLUSION = "!"


class LockList(t.NamedTuple):
    """The list of version locks of one host."""

    host: hostfs.HostFS

    @property
    def path(self) -> str | None:
        """The path of the list, or None if versions are not locked on this host."""
        if posixpath.basename(self.host.resolve(_PROGRAM)) == _PROGRAM_5:
            return LOCKS_5 if self.host.exists(LOCKS_5) else None
        path = _plugin_list(self.host.read_text(PLUGIN_CONFIG))
        return path if path is not None and self.host.exists(path) else None

    def patterns(self) -> list[str]:
        """Return the locks as patterns of names with versions, without the entries that exclude a version."""
        path = self.path
        if path is None:
            return []
        text = self.host.read_text(path)
        return parse_dnf5_locks(text) if path == LOCKS_5 else parse_dnf4_locks(text)

    def exist(self) -> bool:
        return bool(self.patterns())

    def held_names(self, rows: t.Sequence[rpm.Row]) -> set[str]:
        """Return the names of those installed packages that are locked at their version."""
        locks = self.patterns()
        return {row.name for row in rows if is_locked(row, locks)}

    def delete_arguments(self, names: t.Collection[str]) -> list[str]:
        """Return the arguments of dnf versionlock delete for these packages.

        A lock is included only if it names one package, not several by a pattern.
        """
        locks = [lock for lock in self.patterns() if any(names_package(lock, name) for name in names)]
        if self.path != LOCKS_5:
            # With the name of a package, dnf 4 would also delete the entries that exclude a version of it.
            return locks
        # dnf 5 deletes all entries of a package. patterns() has no package with other entries than locks.
        return [name for name in names if any(names_package(lock, name) for lock in locks)]

    def loose_entries(self, names: t.Collection[str]) -> list[str]:
        """Return the entries of these packages with which dnf 5 allows more than one version."""
        entries = _dnf5_entries(self.host.read_text(LOCKS_5)) if self.path == LOCKS_5 else []
        return [
            f"{entry.name} {' '.join(entry.conditions)}"
            for entry in entries
            if not entry.versions and any(fnmatch.fnmatchcase(name, entry.name) for name in names)
        ]

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


def parse_dnf4_locks(text: str) -> list[str]:
    """Return the patterns in versionlock.list."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", _EXCLUSION))]


def parse_dnf5_locks(text: str) -> list[str]:
    """Return the equivalent patterns of versionlock.toml: the packages that must have one certain version.

    dnf 5 allows each version that one of the entries of a package allows (load_versionlock_excludes() of libdnf5), so
    that a package with an exclusion or a range is not locked at a version.
    """
    entries = _dnf5_entries(text)
    loose = [entry.name for entry in entries if not entry.versions]
    pinned = [entry for entry in entries if not any(fnmatch.fnmatchcase(entry.name, name) for name in loose)]
    return [f"{entry.name}-{version}" for entry in pinned for version in entry.versions]


class _Entry(t.NamedTuple):
    """An entry of versionlock.toml. ``name`` is a pattern, ``versions`` those of its conditions that are versions."""

    name: str
    conditions: tuple[str, ...]
    versions: tuple[str, ...]


def _dnf5_entries(text: str) -> list[_Entry]:
    """Return the entries of versionlock.toml. dnf 5 ignores those without a name or a condition."""
    tables: list[dict[str, str]] = []
    found: list[list[dict[str, str]]] = []
    for line in (line.strip() for line in text.splitlines()):
        heading, assignment = _HEADING.match(line), _ASSIGNMENT.match(line)
        if heading and heading.group(1) == "packages.conditions" and found:
            tables.append({})
        elif heading:
            tables = [{}]
            if heading.group(1) == "packages":
                found.append(tables)
        elif assignment and tables:
            tables[-1][assignment.group(1)] = assignment.group(2)
    return [_entry(entry[0]["name"], entry[1:]) for entry in found if entry[0].get("name") and entry[1:]]


def _entry(name: str, conditions: t.Sequence[t.Mapping[str, str]]) -> _Entry:
    texts = [tuple(one.get(key, "") for key in ("key", "comparator", "value")) for one in conditions]
    versions = [value for key, comparator, value in texts if key == "evr" and comparator in ("=", "==") and value]
    return _Entry(name, tuple(" ".join(text) for text in texts), tuple(versions))


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
