# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the versions of a toolkit directory, and check their integrity."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# What is being built, the link on its way, and what stood at the path before us.
NEW, LINK, FORMER = ".new", ".link", "former"
# What the name of a version ends with of which only files are left that are nobody's.
LEFT = ".left"
# Which folders were made for all this.
CREATED = ".created.json"
# As _toolkit_source.name_of() calls them, perhaps with a number behind.
_VERSION_NAME = re.compile(r".+-[0-9a-f]{12}(-[0-9]+)?\Z")
# What NVIDIA's installer and this collection put into such a directory.
TOOLKIT_NAME = re.compile(r"nvidia-[^/]*\Z|libnvidia-container[^/]*\Z|\.config(/nvidia-container-runtime(/[^/]*)?)?\Z")


class IntegrityReport(t.NamedTuple):
    """How a version differs from its manifest: names that are missing or other, and names that are nobody's.

    ``fresh`` are identities for the manifest, of files that were read and have their content.
    """

    changed: tuple[str, ...]
    strangers: tuple[str, ...]
    fresh: t.Mapping[str, toolkit_manifest.Identity]

    @property
    def something(self) -> bool:
        return bool(self.changed or self.strangers)


class VersionReader:
    """The versions behind ``dest`` on ``host``, to be looked at; names are those of their directories."""

    def __init__(self, host: hostfs.HostFS, dest: str) -> None:
        self.host = host
        self.dest = dest
        self.folder = dest + toolkit_constants.VERSIONS_SUFFIX

    # -- what is there -------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """The directory of a version, as the host sees it."""
        return f"{self.folder}/{name}"

    def current(self) -> str | None:
        """The version that ``dest`` leads to; None if it is no link of ours, or leads to nothing."""
        name = self._version_of(self._dest())
        return name if name is not None and toolkit_manifest.is_folder(self._outer(name)) else None

    def manifest(self, name: str) -> toolkit_manifest.Manifest | None:
        """What a version is; None if it does not say, so that it is not whole.  Raises HostError."""
        content = self.host.read(self._manifest_path(name))
        found = None if content is None else toolkit_manifest.Manifest.from_bytes(self._manifest_path(name), content)
        return found if found is not None and found.name == name else None

    def names(self) -> list[str]:
        """All versions, whole or not; what somebody else put there is none."""
        return [name for name in self.host.entries(self.folder) if self._is_version(name)]

    def leftovers(self) -> list[str]:
        """The paths of what a run that was cut off has left beside versions."""
        names = [
            name for name in self.host.entries(self.folder) if name in (NEW, LINK) or atomic_write.is_temporary(name)
        ]
        if self._version_of(self._outer(FORMER)) is not None:
            names.append(FORMER)
        staging = [path for path in self._staging() if self.host.lexists(path)]
        return [*(self.path(name) for name in names), *staging]

    def is_empty(self) -> bool:
        """Whether there is the folder, but no version in it, nor anything else."""
        return self.host.lexists(self.folder) and not set(self.host.entries(self.folder)) - {CREATED}

    def has_former(self) -> bool:
        """Whether something stood at ``dest`` before us, to be given back."""
        return os.path.lexists(self._outer(FORMER)) and self._version_of(self._outer(FORMER)) is None

    def foreign_entry_type(self) -> str | None:
        """What stands at ``dest`` that is not ours: ``link``, ``directory``, or ``file``; None for ours and nothing."""
        with self._explained("read", self.dest):
            try:
                mode = os.lstat(self._dest()).st_mode
            except FileNotFoundError:
                return None
        if stat.S_ISLNK(mode):
            return None if self._version_of(self._dest()) is not None else "link"
        return "directory" if stat.S_ISDIR(mode) else "file"

    def foreign_names(self) -> list[str]:
        """What of the directory at ``dest`` is not of a toolkit."""
        return [name for name in self.names_at_dest() if not TOOLKIT_NAME.match(name)]

    def names_at_dest(self) -> list[str]:
        """Everything in the directory that ``dest`` is, or leads to."""
        with self._explained("read", self.dest):
            return toolkit_manifest.walk(
                os.path.realpath(self._dest()) if self.host.root == "/" else self.host.real_path(self.dest)
            )

    def damage(self, manifest: toolkit_manifest.Manifest, thorough: bool) -> IntegrityReport:
        """How a version differs from its manifest; contents are read if ``thorough``, or if they may be others."""
        outer = self._outer(manifest.name)
        with self._explained("read"):
            found = {
                name
                for name in toolkit_manifest.walk(outer)
                if name != toolkit_manifest.NAME and not atomic_write.is_temporary(name)
            }
        owner = next(((entry.uid, entry.gid) for entry in manifest.files.values()), None)
        folders = sorted({folder for name in manifest.files for folder in toolkit_manifest.folders_above(name)})
        changed, fresh = [], {}
        with self._explained("read"):
            for name, entry in manifest.files.items():
                identity = (
                    toolkit_manifest.unharmed(os.path.join(outer, name), entry, thorough) if name in found else None
                )
                if identity is None:
                    changed.append(name)
                elif entry.known is not None and identity != entry.known.identity:
                    fresh[name] = identity
            changed += [
                f"{name}/"
                for name in ("..", "", *folders)
                if not toolkit_manifest.is_open(os.path.join(outer, name), owner)
            ]
        return IntegrityReport(tuple(changed), tuple(sorted(found.difference(folders, manifest.files))), fresh)

    # -- helpers, also for those who write -------------------------------------------------------------------------

    def _manifest_path(self, name: str) -> str:
        return f"{self.path(name)}/{toolkit_manifest.NAME}"

    def _outer(self, name: str) -> str:
        return os.path.join(self.host.real_path(self.folder), name).rstrip("/")

    def _dest(self) -> str:
        return self.host.real_path(self.dest, last=False)

    def _staging(self) -> list[str]:
        """Under which name the folder, or the outermost that is missing above it, comes and goes."""
        outermost = next(iter(atomic_write.missing_directories(self.host, self.folder)), None)
        made = names_in(self.host.read(f"{self.folder}/{CREATED}")) if outermost is None else [outermost]
        above = [posixpath.split(path) for path in made[:1]]
        return [posixpath.join(folder, f".gpufleet-{name}.new") for folder, name in above]

    def _is_version(self, name: str) -> bool:
        return bool(_VERSION_NAME.match(name)) and toolkit_manifest.is_folder(self._outer(name))

    def _version_of(self, link: str) -> str | None:
        """The version that a link of ours leads to, be it there or not; None for anything else."""
        try:
            head, name = posixpath.split(os.readlink(link))
        except OSError:
            return None
        return name if head == posixpath.basename(self.folder) and name not in ("", FORMER) else None

    @contextlib.contextmanager
    def _explained(self, doing: str, path: str | None = None) -> t.Iterator[None]:
        try:
            yield
        except OSError as error:
            raise atomic_write.os_error(path or self.folder, doing, error) from error


def names_in(content: bytes | None) -> list[str]:
    """The folders that CREATED names, outermost first."""
    try:
        found = json_data.load(content or b"[]")
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
