# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the versions of a toolkit directory, and check their integrity.

store.py changes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The version that is built, the link that will replace ``dest``, and the original entry of ``dest``.
NEW, LINK, ORIGINAL = ".new", ".link", "former"
# Suffix of the directory of a removed version that still contains files that this collection did not create.
FOREIGN_SUFFIX = ".left"
# The list of directories that were created for the versions.
CREATED = ".created.json"
# The names that source.name_of() returns, with an optional number.
_VERSION_NAME = re.compile(r".+-[0-9a-f]{12}(-[0-9]+)?\Z")
# Names that NVIDIA's installer and this collection create in such a directory.
TOOLKIT_NAME = re.compile(r"nvidia-[^/]*\Z|libnvidia-container[^/]*\Z|\.config(/nvidia-container-runtime(/[^/]*)?)?\Z")


class IntegrityReport(t.NamedTuple):
    """The differences between a version and its manifest.

    ``changed`` are missing or different names; that of a directory ends with a slash. ``foreign`` are names that are
    not in the manifest. ``fresh`` are new identities, for the manifest, of files that were read and are unchanged.
    """

    changed: tuple[str, ...]
    foreign: tuple[str, ...]
    fresh: t.Mapping[str, toolkit_manifest.Identity]

    @property
    def is_damaged(self) -> bool:
        return bool(self.changed or self.foreign)


class VersionReader:
    """A reader of the versions behind ``dest`` on ``host``. The name of a version is the name of its directory."""

    def __init__(self, host: hostfs.HostFS, dest: str) -> None:
        self.host = host
        self.dest = dest
        self.folder = dest + toolkit_constants.VERSIONS_SUFFIX

    # -- Read ----------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """Return the directory of a version as a path of the host."""
        return f"{self.folder}/{name}"

    def current(self) -> str | None:
        """Return the version that ``dest`` links to, or None if ``dest`` is another entry or links to no version."""
        name = self._version_of(self._real_dest())
        return name if name is not None and toolkit_manifest.is_folder(self._real_path(name)) else None

    def manifest(self, name: str) -> toolkit_manifest.Manifest | None:
        """Return the manifest of a version, or None if the version is incomplete. Raises HostError."""
        content = self.host.read(self._manifest_path(name))
        found = None if content is None else toolkit_manifest.Manifest.from_bytes(content)
        return found if found is not None and found.name == name else None

    def names(self) -> list[str]:
        """Return all versions, complete or not. Entries of other programs are not versions."""
        return [name for name in self.host.entries(self.folder) if self._is_version(name)]

    def leftovers(self) -> list[str]:
        """Return the paths that an interrupted run left beside the versions."""
        names = [
            name for name in self.host.entries(self.folder) if name in (NEW, LINK) or atomic_write.is_temporary(name)
        ]
        # restore_original() of store.py was interrupted after it had exchanged the two entries.
        if self._version_of(self._real_path(ORIGINAL)) is not None:
            names.append(ORIGINAL)
        staging = [path for path in self._staging_paths() if self.host.lexists(path)]
        return [*(self.path(name) for name in names), *staging]

    def is_empty(self) -> bool:
        """Return whether the directory of the versions exists and contains nothing, except for the list CREATED."""
        return self.host.lexists(self.folder) and not set(self.host.entries(self.folder)) - {CREATED}

    def has_original(self) -> bool:
        """Return whether ``dest`` had an original entry, which a removal restores."""
        return os.path.lexists(self._real_path(ORIGINAL)) and self._version_of(self._real_path(ORIGINAL)) is None

    def foreign_entry_type(self) -> str | None:
        """Return the type of a foreign entry at ``dest``: ``link``, ``directory`` or ``file``.

        None if ``dest`` does not exist or is a link of this collection.
        """
        with self._path_errors("read", self.dest):
            try:
                mode = os.lstat(self._real_dest()).st_mode
            except FileNotFoundError:
                return None
        if stat.S_ISLNK(mode):
            return None if self._version_of(self._real_dest()) is not None else "link"
        return "directory" if stat.S_ISDIR(mode) else "file"

    def foreign_names(self) -> list[str]:
        """Return the names in the directory at ``dest`` that do not belong to a toolkit."""
        return [name for name in self.names_at_dest() if not TOOLKIT_NAME.match(name)]

    def names_at_dest(self) -> list[str]:
        """Return all names in the directory at ``dest``, or in the directory that it links to."""
        with self._path_errors("read", self.dest):
            return toolkit_manifest.walk(self.host.real_path(self.dest))

    def check_integrity(self, manifest: toolkit_manifest.Manifest, thorough: bool) -> IntegrityReport:
        """Return how a version differs from its manifest.

        A file's content is read if ``thorough`` is true or if the status of the file has changed.
        """
        process_path = self._real_path(manifest.name)
        with self._path_errors("read"):
            found = {
                name
                for name in toolkit_manifest.walk(process_path)
                if name != toolkit_manifest.NAME and not atomic_write.is_temporary(name)
            }
        owner = next(((entry.uid, entry.gid) for entry in manifest.files.values()), None)
        folders = sorted({folder for name in manifest.files for folder in toolkit_manifest.folders_above(name)})
        changed, fresh = [], {}
        with self._path_errors("read"):
            for name, entry in manifest.files.items():
                identity = (
                    toolkit_manifest.verify_entry(os.path.join(process_path, name), entry, thorough)
                    if name in found
                    else None
                )
                if identity is None:
                    changed.append(name)
                elif entry.known is not None and identity != entry.known.identity:
                    fresh[name] = identity
            # The directory of the versions (".."), that of the version (""), and those in it.
            changed += [
                f"{name}/"
                for name in ("..", "", *folders)
                if not toolkit_manifest.has_folder_mode(os.path.join(process_path, name), owner)
            ]
        return IntegrityReport(tuple(changed), tuple(sorted(found.difference(folders, manifest.files))), fresh)

    # -- Helpers, also for VersionStore --------------------------------------------------------------------------------

    def _manifest_path(self, name: str) -> str:
        return f"{self.path(name)}/{toolkit_manifest.NAME}"

    def _real_path(self, name: str) -> str:
        return os.path.join(self.host.real_path(self.folder), name).rstrip("/")

    def _real_dest(self) -> str:
        return self.host.real_path(self.dest, last=False)

    def _staging_paths(self) -> list[str]:
        """Return the temporary name of the directory of the versions, or of its outermost missing parent.

        The list is empty if there is no such directory.
        """
        outermost = next(iter(atomic_write.missing_directories(self.host, self.folder)), None)
        created = listed_directories(self.host.read(f"{self.folder}/{CREATED}")) if outermost is None else [outermost]
        above = [posixpath.split(path) for path in created[:1]]
        return [posixpath.join(folder, f".gpufleet-{name}.new") for folder, name in above]

    def _is_version(self, name: str) -> bool:
        return bool(_VERSION_NAME.match(name)) and toolkit_manifest.is_folder(self._real_path(name))

    def _version_of(self, link: str) -> str | None:
        """Return the version that a link of this collection names, whether it exists or not. None for other entries."""
        try:
            head, name = posixpath.split(os.readlink(link))
        except OSError:
            return None
        return name if head == posixpath.basename(self.folder) and name not in ("", ORIGINAL) else None

    def may_be_current(self, name: str) -> bool:
        """Return False only if it is certain that ``dest`` does not link to the version."""
        try:
            return posixpath.basename(os.readlink(self._real_dest())) == name
        except OSError as error:
            # EINVAL: it is not a link.
            return error.errno not in (errno.ENOENT, errno.EINVAL)

    @contextlib.contextmanager
    def _path_errors(self, doing: str, path: str | None = None) -> t.Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.os_error(path or self.folder, doing, error) from error


def listed_directories(content: bytes | None) -> list[str]:
    """Return the directories that CREATED lists, outermost first."""
    try:
        found = json_data.load(content or b"[]")
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
