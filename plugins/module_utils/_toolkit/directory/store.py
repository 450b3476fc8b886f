# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Change the versions of a toolkit directory on the disk: build, switch, remove.

versions.py only reads them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors, hostfs, remove_tree
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import versions as directory_versions

if t.TYPE_CHECKING:
    # Gives the file at the first path the SELinux label that the policy has for the second path, which need not exist.
    # Both are process paths (see hostfs.HostFS).
    Label = t.Callable[[str, str], None]


# RENAME_EXCHANGE of linux/fs.h and AT_FDCWD of fcntl.h.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def rename_exchange(one: str, other: str) -> None:
    """Exchange two names in one step, so that both always exist.

    Links themselves are exchanged. Raises OSError with ENOSYS, EINVAL or EXDEV if the C library, the kernel or the file
    system does not support this (renameat2(2), since Linux 3.15 and glibc 2.28).
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = ctypes.c_char_p(os.fsencode(one)), ctypes.c_char_p(os.fsencode(other))
    here, flags = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_RENAME_EXCHANGE)
    if not hasattr(library, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one)
    if library.renameat2(here, names[0], here, names[1], flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), one)


# Bytes needed in addition to the content: texts, directories and rounding.
_MARGIN = 1 << 20


class VersionStore(directory_versions.VersionReader):
    """The versions of a toolkit directory, with methods that change them."""

    # -- Build ---------------------------------------------------------------------------------------------------------

    def check_free_space(self, size: int) -> None:
        """Raise HostError unless the file system has ``size`` free bytes and can run programs."""
        place = self.host.resolve(self.folder)
        while not self.host.exists(place):
            place = posixpath.dirname(place)
        state = os.statvfs(self.host.real_path(place))
        if state.f_flag & os.ST_NOEXEC and self.host.live:
            raise errors.HostError(
                f"{place} is on a file system that is mounted noexec, so programs cannot run. Choose another"
                f" {errors.option:dest}."
            )
        free = state.f_bavail * state.f_frsize
        if free < size + _MARGIN:
            raise errors.HostError(
                f"{place} has {free >> 20} MiB of free space, but a new version needs {(size + _MARGIN) >> 20} MiB."
                f" Free some space, or choose another {errors.option:dest}."
            )

    def prepare_build(self) -> None:
        """Create an empty directory to build a version in."""
        missing = atomic_write.missing_directories(self.host, self.folder)
        if missing:
            self._make_folders(missing)
        with self._path_errors("given its mode"):
            # A user who can write into this directory could replace programs that root runs.
            os.chown(self._real_path(""), os.geteuid(), os.getegid())
            toolkit_manifest.make_folder(self._real_path(""))
        self.remove_leftovers()
        with self._path_errors("created"):
            toolkit_manifest.make_folder(self.process_build_dir)

    def _make_folders(self, missing: t.Sequence[str]) -> None:
        """Create the directory of the versions and its missing parents in one step.

        They are created with a temporary name, together with the list CREATED, and then renamed. An interrupted run
        therefore leaves no directory that is not in the list.
        """
        (staging,), outermost = self._staging_paths(), self.host.real_path(missing[0])
        with self._path_errors("created", missing[0]):
            process_path = self.host.real_path(staging, last=False)
            if os.path.lexists(process_path):
                remove_tree.remove_tree(process_path)
            folders = [process_path + self.host.real_path(path)[len(outermost) :] for path in missing]
            for folder in folders:
                toolkit_manifest.make_folder(folder)
            toolkit_manifest.create(
                os.path.join(folders[-1], directory_versions.CREATED), 0o644, [json.dumps(list(missing)).encode()]
            )
            os.rename(process_path, outermost)

    @property
    def process_build_dir(self) -> str:
        """The process path of the directory in which a version is built."""
        return self._real_path(directory_versions.NEW)

    @property
    def build_dir(self) -> str:
        """The directory in which a version is built, as a path of the host."""
        return self.path(directory_versions.NEW)

    def remove_leftovers(self) -> None:
        """Remove the files of an interrupted run.

        An entry that this run moved away from ``dest`` becomes the original entry.
        """
        link = self._real_path(directory_versions.LINK)
        with self._path_errors("cleaned up"):
            if toolkit_manifest.is_folder(link):
                os.rename(link, self._real_path(directory_versions.ORIGINAL))
            toolkit_manifest.unlink(link)
            if self._version_of(self._real_path(directory_versions.ORIGINAL)) is not None:
                toolkit_manifest.unlink(self._real_path(directory_versions.ORIGINAL))
            for name in filter(atomic_write.is_temporary, self.host.entries(self.folder)):
                toolkit_manifest.unlink(self._real_path(name))
            for path in (
                self.process_build_dir,
                *(self.host.real_path(path, last=False) for path in self._staging_paths()),
            ):
                if os.path.lexists(path):
                    remove_tree.remove_tree(path)

    def copy_part(self, name: str, entry: toolkit_manifest.ManifestEntry, source: str) -> None:
        """Copy ``source``, a path of this process, into the version that is built. Raises HostError."""
        with self._path_errors("written"):
            digest = toolkit_manifest.create(
                os.path.join(self.process_build_dir, name), entry.mode, toolkit_manifest.read_chunks(source)
            )
        if digest != entry.sha256:
            raise errors.HostError(f"{source} changed while it was read. Run the task again.")

    def write_entry(self, name: str, entry: toolkit_manifest.ManifestEntry) -> None:
        """Write a text or a link into the version that is built. Raises HostError."""
        path = os.path.join(self.process_build_dir, name)
        with self._path_errors("written"):
            for folder in toolkit_manifest.folders_above(name):
                toolkit_manifest.make_folder(os.path.join(self.process_build_dir, folder))
            if entry.target:
                os.symlink(entry.target, path)
            else:
                toolkit_manifest.create(path, entry.mode, [entry.text])

    def new_name(self, name: str) -> str:
        """Return ``name``. If it is taken, a number from 2 on is added to it."""
        taken = set(self.host.entries(self.folder))
        stem, end = (
            (name[: -len(directory_versions.FOREIGN_SUFFIX)], directory_versions.FOREIGN_SUFFIX)
            if name.endswith(directory_versions.FOREIGN_SUFFIX)
            else (name, "")
        )
        names = [name, *(f"{stem}-{number}{end}" for number in range(2, len(taken) + 3))]
        return next(each for each in names if each not in taken)

    def finish(
        self, manifest: toolkit_manifest.Manifest, entries: t.Mapping[str, toolkit_manifest.ManifestEntry], label: Label
    ) -> toolkit_manifest.Manifest:
        """Write the manifest of the new version and rename the version. Returns the manifest. Raises HostError."""
        new, final = self.process_build_dir, self._real_path(manifest.name)
        folders = [name for name in toolkit_manifest.walk(new) if toolkit_manifest.is_folder(os.path.join(new, name))]
        label(self._real_path(""), self._real_path(""))
        for name in ("", *folders, *entries):
            label(os.path.join(new, name).rstrip("/"), os.path.join(final, name).rstrip("/"))
        with self._path_errors("written"):
            files = {
                name: toolkit_manifest.installed_entry(os.path.join(new, name), entry)
                for name, entry in entries.items()
            }
            manifest = manifest._replace(files=files)
            toolkit_manifest.create(os.path.join(new, toolkit_manifest.NAME), 0o644, [manifest.to_bytes()])
            for name in (*reversed(folders), ""):
                atomic_write.sync_folder(os.path.join(new, name))
            os.rename(new, final)
        atomic_write.sync_entry(self.path(manifest.name), final)
        return manifest

    def refresh_manifest(self, manifest: toolkit_manifest.Manifest) -> None:
        """Write a manifest with the current sizes, times and inodes of unchanged files.

        Errors are ignored, because the next run can read the files again instead.
        """
        with contextlib.suppress(errors.HostError):
            atomic_write.replace_file(
                self.host, f"{self.path(manifest.name)}/{toolkit_manifest.NAME}", manifest.to_bytes(), 0o644
            )

    # -- Switch --------------------------------------------------------------------------------------------------------

    def check_switch(self) -> None:
        """Raise HostError if the entry at ``dest`` cannot be replaced."""
        entry_type = self.foreign_entry_type()
        if entry_type == "file":
            raise errors.HostError(f"{self.dest} is a file. Remove it, or choose another {errors.option:dest}.")
        if entry_type == "directory":
            foreign = self.foreign_names()
            if foreign:
                raise errors.HostError(
                    f"{self.dest} contains files that do not belong to a toolkit: {', '.join(foreign[:3])}. Choose"
                    f" another {errors.option:dest}."
                )
            if toolkit_manifest.is_mount_point(self._real_dest()):
                raise errors.HostError(
                    f"{self.dest} is a mount point, which cannot be replaced. Choose another {errors.option:dest}."
                )
        if self.host.lexists(self.folder):
            above = os.stat(os.path.dirname(self._real_dest())).st_dev
            if os.lstat(self._real_path("")).st_dev != above:
                raise errors.HostError(
                    f"{self.folder} is on another file system than {self.dest}, so that versions cannot be switched in"
                    f" one step. Choose another {errors.option:dest}."
                )
        if entry_type is not None and self.has_original() and not self._original_equals_dest():
            raise errors.HostError(
                f"{self.dest} is a {entry_type} of another program, and {self.path(directory_versions.ORIGINAL)} is the"
                f" entry that was at {self.dest} before the toolkit was installed. Remove one of the two."
            )

    def switch(self, name: str) -> None:
        """Replace ``dest`` with a link to a version in one step.

        The previous entry is kept, so that a removal can restore it. Raises HostError.
        """
        self.check_switch()
        entry_type, link = self.foreign_entry_type(), self._real_path(directory_versions.LINK)
        with self._path_errors("written"):
            os.symlink(f"{posixpath.basename(self.folder)}/{name}", link)
        if entry_type == "directory":
            self._exchange(link)
            with self._path_errors("moved"):
                os.rename(link, self._real_path(directory_versions.ORIGINAL))
        else:
            with self._path_errors("replaced", self.dest):
                if entry_type == "link" and not self.has_original():
                    os.symlink(os.readlink(self._real_dest()), self._real_path(directory_versions.ORIGINAL))
                os.replace(link, self._real_dest())
        atomic_write.sync_entry(self.dest, self._real_dest())
        atomic_write.sync_entry(self.path(name), self._real_path(name))

    def restore_original(self) -> None:
        """Restore the original entry at ``dest``, unless another program replaced the link there. Raises HostError."""
        original = self._real_path(directory_versions.ORIGINAL)
        if self.foreign_entry_type() is not None:
            if self._original_equals_dest():
                toolkit_manifest.unlink(original)
            return
        if self.has_original() and toolkit_manifest.is_folder(original) and os.path.lexists(self._real_dest()):
            self._exchange(original)
            with self._path_errors("removed"):
                toolkit_manifest.unlink(original)
            return
        with self._path_errors("restored", self.dest):
            if self.has_original():
                os.rename(original, self._real_dest())
            else:
                toolkit_manifest.unlink(self._real_dest())

    def _original_equals_dest(self) -> bool:
        """Return whether ORIGINAL is a copy of the link that is still at ``dest``, as after an interrupted run."""
        original, dest = self._real_path(directory_versions.ORIGINAL), self._real_dest()
        if not (os.path.islink(original) and os.path.islink(dest)):
            return False
        return hostfs.read_link(original, self.path(directory_versions.ORIGINAL)) == hostfs.read_link(dest, self.dest)

    def _exchange(self, process_path: str) -> None:
        """Exchange the entry at ``process_path`` with the entry at ``dest``. Raises HostError."""
        try:
            rename_exchange(process_path, self._real_dest())
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP):
                raise errors.os_error(self.dest, "replaced", error) from error
            raise errors.HostError(
                f"{self.dest} is a directory, and this file system cannot exchange it in one step ({error.strerror})."
                f" Choose another {errors.option:dest}, or remove the directory while no container starts."
            ) from error

    # -- Remove --------------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> list[str]:
        """Remove a version, except files that this collection did not create.

        Those files are kept in a directory with another name. Returns their paths.
        """
        manifest, process_path = self.manifest(name), self._real_path(name)
        foreign = []
        folders = []
        with self._path_errors("removed"):
            for each in toolkit_manifest.walk(process_path):
                path = os.path.join(process_path, each)
                if toolkit_manifest.is_folder(path):
                    folders.append(each)
                    continue
                own = directory_versions.TOOLKIT_NAME.match(each) if manifest is None else each in manifest.files
                if own or atomic_write.is_temporary(each):
                    toolkit_manifest.unlink(path)
                elif each != toolkit_manifest.NAME:
                    foreign.append(each)
            for folder in reversed(folders):
                _remove_unless_used(os.path.join(process_path, folder))
        kept = ""
        if foreign:
            # A directory with this name is never treated as a version again.
            kept = self.new_name(f"{name}{directory_versions.FOREIGN_SUFFIX}")
            with self._path_errors("moved"):
                os.rename(process_path, self._real_path(kept))
            process_path = self._real_path(kept)
        # The manifest is removed last. Until then, the next run recognizes the files of an interrupted run.
        with self._path_errors("removed"):
            toolkit_manifest.unlink(os.path.join(process_path, toolkit_manifest.NAME))
            _remove_unless_used(process_path)
        return [f"{self.path(kept)}/{each}" for each in foreign]

    def remove_folder(self) -> None:
        """Remove the directory of the versions if it is empty, and the parents that were created for it."""
        self.remove_leftovers()
        if not self.is_empty():
            return
        created = directory_versions.listed_directories(self.host.read(f"{self.folder}/{directory_versions.CREATED}"))
        if not created or any(len(self.host.entries(path)) > 1 for path in created):
            with self._path_errors("removed"):
                toolkit_manifest.unlink(self._real_path(directory_versions.CREATED))
            atomic_write.remove_empty_directories(self.host, created or [self.folder])
            return
        # The directories are removed in one step, as in _make_folders().
        (staging,) = self._staging_paths()
        with self._path_errors("removed", created[0]):
            os.rename(self.host.real_path(created[0]), self.host.real_path(staging, last=False))
            remove_tree.remove_tree(self.host.real_path(staging, last=False))


def _remove_unless_used(folder: str) -> None:
    """Remove a directory unless it contains entries. Raises OSError."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
