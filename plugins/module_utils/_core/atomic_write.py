# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replace, create and remove files in one step each.

A link in a path is resolved, and root refuses one that another user could replace. Owner, mode, extended attributes and
the SELinux label of a replaced file are kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import changes, errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The prefix and suffix also identify the temporary files of a killed run, and molecule/faults/engines.py repeats the
# prefix. The suffix keeps them out of globs such as *.toml.
_PREFIX = ".gpufleet-"
_SUFFIX = ".tmp"
# Here os.link() finds a file without a name.
_OPEN_FILES = "/proc/self/fd"
_MAX_ATTEMPTS = 100
_ANY_MODE = 0o7777
_ACCESS_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"
# Errors of a move from one directory into another, where creating the file in the target directory may still work.
_CROSS_DIRECTORY_ERRORS = (errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM)
# Errors of a file system that cannot create a file without a name (open(2), O_TMPFILE): NFS, and overlayfs before Linux
# 6.1.
_UNNAMED_ERRORS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


def _target(host: hostfs.HostFS, path: str) -> str:
    """Return the process path of ``path`` with its links resolved, for writing.

    Raises HostError for root if a directory or a link on the way belongs to another user. That user could replace it,
    and so choose which file root overwrites.
    """
    changes.before_change()
    if os.geteuid() != 0:
        return host.real_path(path)
    # The owner of the root directory of a tree also owns the files in it.
    trusted = (0, os.stat(host.root).st_uid)

    def require_trusted(here: str, final: bool) -> None:
        process_path = host.root.rstrip("/") + here
        try:
            status = os.lstat(process_path)
        except OSError:
            # The write itself reports the error.
            return
        if status.st_uid not in trusted and (not final or stat.S_ISLNK(status.st_mode)):
            raise errors.HostError(
                f"{path} is not written: {here} belongs to user {status.st_uid}, who could replace it during the write."
                f" Change its owner (chown -h root {shlex.quote(process_path)}), or run the task as that user"
                " (become_user)."
            )

    return host.root.rstrip("/") + host.follow(path, require_trusted)


def make_directories(host: hostfs.HostFS, path: str, mode: int) -> list[str]:
    """Create ``path`` with ``mode`` and missing parents with 0755; return the created directories, outermost first."""
    created: list[str] = []
    try:
        _target(host, path)
    except OSError as error:
        raise errors.os_error(path, "created", error) from error
    resolved = host.resolve(path)
    missing = _missing(host, resolved)
    attempts = _MAX_ATTEMPTS
    while missing:
        folder = missing.pop(0)
        try:
            _make_directory(host, _target(host, folder), 0o755 if missing else mode)
            created.append(folder)
        except FileExistsError:
            continue
        except FileNotFoundError as error:
            # Another run has just removed a directory that it had created. The limit is for file systems such as /proc,
            # where every attempt fails.
            attempts -= 1
            if not attempts:
                raise errors.os_error(folder, "created", error) from error
            missing = _missing(host, resolved)
        except OSError as error:
            remove_empty_directories(host, created)
            raise errors.os_error(folder, "created", error) from error
    return created


def _make_directory(host: hostfs.HostFS, process_path: str, mode: int) -> None:
    os.mkdir(process_path, mode)
    try:
        # The umask, a default ACL or the set-group-ID bit of the parent may have changed the mode.
        if stat.S_IMODE(os.lstat(process_path).st_mode) != mode:
            os.chmod(process_path, mode)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(process_path)
        raise
    _label(host, process_path, process_path)


def missing_directories(host: hostfs.HostFS, path: str) -> list[str]:
    """Return the directories that make_directories() would create."""
    return _missing(host, host.resolve(path))


def _missing(host: hostfs.HostFS, folder: str) -> list[str]:
    missing: list[str] = []
    while folder != "/" and not host.exists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def remove_empty_directories(host: hostfs.HostFS, paths: t.Iterable[str]) -> None:
    """Remove those of ``paths`` (outermost first) that are empty. Each one that cannot be removed is a warning."""
    kept: set[str] = set()
    for path in reversed(list(paths)):
        try:
            os.rmdir(_target(host, path))
        except (OSError, errors.HostError) as error:
            # A read-only file system refuses every call, also for a directory that is in use or does not exist.
            with contextlib.suppress(OSError, errors.HostError):
                process_path = host.real_path(path)
                if all(os.path.join(process_path, name) in kept for name in os.listdir(process_path)):
                    kept.add(process_path)
                    reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
                    errors.warn(f"{path} is no longer needed, but cannot be removed: {reason}. Remove it with rmdir.")


def replace_file(
    host: hostfs.HostFS,
    path: str,
    content: bytes,
    mode: int,
    owner: tuple[int, int] | None = None,
    *,
    max_mode: int = _ANY_MODE,
    config_dirs: t.Iterable[str] = (),
) -> None:
    """Write ``content`` to ``path`` in one step. A link stays a link; its target is replaced.

    An existing file keeps owner, mode, POSIX ACL and SELinux label. ``mode`` and ``owner`` (uid, gid) apply to a new
    file. A new file has the label of the policy before it has its name. No mode ever exceeds ``max_mode``. The content
    is on the disk before the name points to it.

    No temporary name appears in or below ``config_dirs``, because a daemon would read it as configuration. There are
    two exceptions if no file can be moved from a directory outside ``config_dirs``, as for a separate mount: a replaced
    file briefly has a second name, and so has a new file if the file system does not support files without a name.
    """
    folders = [host.real_path(name) for name in config_dirs]

    def copy_metadata(handle: int, stage: str) -> None:
        _copy_metadata(handle, stage, process_path, mode, owner, host=host)
        if max_mode != _ANY_MODE:
            os.fchmod(handle, os.fstat(handle).st_mode & max_mode)

    def create(stage: str) -> None:
        _create_and_rename(stage, process_path, content, copy_metadata, _is_config_dir(stage, folders))

    try:
        process_path = _target(host, path)
        _require_file(path, process_path, "written")
        _remove_stale_temp_files(os.path.dirname(process_path))
        _in_staging_dir(process_path, folders, create)
    except OSError as error:
        raise errors.os_error(path, "written", error) from error
    sync_entry(path, process_path)


def _in_staging_dir(process_path: str, config_dirs: t.Sequence[str], work: t.Callable[[str], None]) -> None:
    """Call ``work`` with the staging directory, or with that of ``process_path`` if no file can be moved from there.

    Raises OSError.
    """
    folder = os.path.dirname(process_path)
    stage = _staging_dir(folder, config_dirs)
    try:
        work(stage)
    except OSError as error:
        # The target directory is a separate mount, or its parents are not writable. Then the file is created in the
        # target directory.
        if stage == folder or error.errno not in _CROSS_DIRECTORY_ERRORS:
            raise
        work(folder)


def prepare_file(host: hostfs.HostFS, path: str, content: bytes, mode: int, owner: tuple[int, int] | None) -> int:
    """Write the new file as replace_file() does, but without replacing ``path``; return its handle.

    use_prepared_file() takes the handle. The file has no name, so no daemon reads it. It disappears when the handle is
    closed or this process ends.
    """
    try:
        process_path = _target(host, path)
        _require_file(path, process_path, "prepared")
        folder = os.path.dirname(process_path)
        handle = _create_unnamed(folder)
        if handle is None:
            raise errors.HostError(
                f"{path} cannot be prepared: its file system does not support files without a name, or /proc is not"
                " mounted. The file is written later instead."
            )
        try:
            with os.fdopen(handle, "wb", closefd=False) as stream:
                stream.write(content)
            _copy_metadata(handle, folder, process_path, mode, owner, host=host)
            os.fsync(handle)
        except OSError:
            os.close(handle)
            raise
    except OSError as error:
        raise errors.os_error(path, "prepared", error) from error
    return handle


def use_prepared_file(host: hostfs.HostFS, handle: int, path: str, *, config_dirs: t.Iterable[str]) -> bool:
    """Put the prepared file at ``path`` in one step and close its handle; return whether this succeeded."""
    folders = [host.real_path(name) for name in config_dirs]

    def link(stage: str) -> None:
        _link_unnamed(handle, stage, process_path)
        # A run that was killed at this point left the second name of its file.
        with contextlib.suppress(OSError):
            _remove_stale_temp_files(stage)

    try:
        process_path = _target(host, path)
        _in_staging_dir(process_path, folders, link)
    except (OSError, errors.HostError):
        return False
    finally:
        os.close(handle)
    sync_entry(path, process_path)
    return True


def _create_unnamed(folder: str) -> int | None:
    """Return the handle of a new file without a name in ``folder``; None if that is not possible.

    The file system may not support it, and without /proc, as in a chroot, the file could not get a name later.
    """
    if not os.path.isdir(_OPEN_FILES):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _UNNAMED_ERRORS:
            return None
        raise


def _link_unnamed(handle: int, stage: str, process_path: str) -> None:
    """Give a file without a name the name ``process_path``; replace an existing file through a name in ``stage``.

    Raises OSError.
    """
    source = f"{_OPEN_FILES}/{handle}"
    # os.link() follows this link only if it gets a directory handle, which linkat(2) ignores for an absolute path.
    with contextlib.suppress(FileExistsError):
        os.link(source, process_path, src_dir_fd=handle)
        return
    temporary = os.path.join(stage, f"{_PREFIX}{os.getpid()}-{handle}{_SUFFIX}")
    os.link(source, temporary, src_dir_fd=handle)
    try:
        os.replace(temporary, process_path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _require_file(path: str, process_path: str, doing: str) -> None:
    """Raise HostError if ``path`` is a special file, such as /dev/null, to which the link of a masked unit leads."""
    try:
        mode = os.lstat(process_path).st_mode
    except OSError:
        # The write itself reports the error.
        return
    # For a directory, the error of the operating system is clear enough.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise errors.HostError(
            f"{path} cannot be {doing}: it is a special file, such as a device, or a link to one. Remove the link (for"
            " a unit: systemctl unmask), or move the file away."
        )


def _create_and_rename(
    stage: str, process_path: str, content: bytes, copy_metadata: t.Callable[[int, str], None], unnamed: bool
) -> None:
    """Create the new file in ``stage`` and replace ``process_path`` by it; with ``unnamed``, create it without a name.

    Raises OSError.
    """
    _remove_stale_temp_files(stage)
    handle, temporary = _create_unnamed(stage) if unnamed else None, ""
    if handle is None:
        handle, temporary = tempfile.mkstemp(_SUFFIX, _PREFIX, stage)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            copy_metadata(stream.fileno(), stage)
            os.fsync(stream.fileno())
            if not temporary:
                _link_unnamed(stream.fileno(), stage, process_path)
        if temporary:
            os.replace(temporary, process_path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_config_dir(folder: str, config_dirs: t.Sequence[str]) -> bool:
    return any((folder + "/").startswith(name.rstrip("/") + "/") for name in config_dirs)


def _staging_dir(folder: str, config_dirs: t.Sequence[str]) -> str:
    """Return the nearest parent of ``folder`` on its file system outside ``config_dirs``; else ``folder`` itself."""
    stage = folder
    while stage != "/" and _is_config_dir(stage, config_dirs):
        stage = os.path.dirname(stage)
    try:
        return stage if os.stat(stage).st_dev == os.stat(folder).st_dev else folder
    except OSError:
        return folder


def _apply_directory_defaults(handle: int, folder: str) -> None:
    """Give a new file the group and the default ACL that a file created in ``folder`` gets."""
    status = os.stat(folder)
    group = status.st_gid if status.st_mode & stat.S_ISGID else os.getegid()
    if os.fstat(handle).st_gid != group:
        os.fchown(handle, -1, group)
    with contextlib.suppress(OSError):
        if _ACCESS_ACL in os.listxattr(handle):
            os.removexattr(handle, _ACCESS_ACL)
        if _DEFAULT_ACL in os.listxattr(folder):
            os.setxattr(handle, _ACCESS_ACL, os.getxattr(folder, _DEFAULT_ACL))


def set_access(host: hostfs.HostFS, path: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Set the mode of an existing file, and its owner (uid, gid) if given.

    Raises HostError if the operating system refuses, and for root if another user could replace a part of the path.
    """
    try:
        process_path = _target(host, path)
        status = os.stat(process_path)
        if owner is not None and (status.st_uid, status.st_gid) != owner:
            os.chown(process_path, *owner)
        os.chmod(process_path, mode)
    except OSError as error:
        raise errors.os_error(path, "given its mode", error) from error


def remove_file(host: hostfs.HostFS, path: str) -> None:
    """Remove ``path`` (the target of a link, not the link). A missing file is no error."""
    try:
        process_path = _target(host, path)
        _require_file(path, process_path, "removed")
        os.unlink(process_path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.os_error(path, "removed", error) from error
    sync_entry(path, process_path)


def remove_entry(host: hostfs.HostFS, path: str) -> None:
    """Remove the file or link ``path`` itself. A missing one is no error."""
    try:
        os.unlink(host.real_path(path, last=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise errors.os_error(path, "removed", error) from error


def _copy_metadata(
    handle: int, stage: str, process_path: str, mode: int, owner: tuple[int, int] | None, *, host: hostfs.HostFS
) -> None:
    """Copy owner, mode and extended attributes of the old file ``process_path`` to the new one, created in ``stage``.

    A new file without a predecessor gets ``mode``, ``owner`` and the label of the policy. The owner is set first,
    because changing it clears the set-id bits. All calls use the handle: the owner of the directory could replace the
    name by a link to a file of root at any moment.
    """
    folder = os.path.dirname(process_path)
    if stage != folder:
        _apply_directory_defaults(handle, folder)
    try:
        # lstat does not follow links: a link that a user puts here now would select the mode of a file of root.
        status = os.lstat(process_path)
    except FileNotFoundError:
        _set_owner(handle, owner)
        os.fchmod(handle, mode)
        _label(host, handle, process_path)
        return
    _set_owner(handle, (status.st_uid, status.st_gid))
    os.fchmod(handle, status.st_mode & 0o7777)
    # The file is written even if the file system has no attributes, or if only a higher privilege may set them.
    with contextlib.suppress(OSError):
        attributes = os.listxattr(process_path, follow_symlinks=False)
        for name in attributes:
            with contextlib.suppress(OSError):
                os.setxattr(handle, name, os.getxattr(process_path, name, follow_symlinks=False))
        # The default ACL of the directory applies only to new files.
        if _ACCESS_ACL not in attributes and _ACCESS_ACL in os.listxattr(handle):
            os.removexattr(handle, _ACCESS_ACL)


def _set_owner(handle: int, owner: tuple[int, int] | None) -> None:
    status = os.fstat(handle)
    # The group of a new file may be that of its directory.
    if owner is not None and owner != (status.st_uid, status.st_gid):
        os.fchown(handle, *owner)


def _label(host: hostfs.HostFS, new: int | str, process_path: str) -> None:
    """Give ``new`` (a path or a handle) the SELinux label that the policy has for ``process_path``."""
    label = None if host.label_of is None else host.label_of(process_path)
    # A mount may have one label for all of its files.
    with contextlib.suppress(OSError):
        if label is not None:
            os.setxattr(new, "security.selinux", label.encode() + b"\0")


def is_temporary(name: str) -> bool:
    """Return whether ``name`` is a temporary file of this collection, which a killed run leaves behind."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _remove_stale_temp_files(folder: str) -> None:
    """Remove the temporary files of killed runs. The caller holds the host's lock, so no running task uses them."""
    for name in filter(is_temporary, os.listdir(folder)):
        os.unlink(os.path.join(folder, name))


def remove_temporary_files(host: hostfs.HostFS, folder: str, config_dirs: t.Iterable[str] = ()) -> None:
    """Remove the temporary files that killed runs left when they wrote into ``folder`` with these ``config_dirs``.

    The caller holds the host's lock. Raises HostError.
    """
    try:
        process_path = _target(host, folder)
        staging = _staging_dir(process_path, [host.real_path(name) for name in config_dirs])
        for place in dict.fromkeys([process_path, staging]):
            if os.path.isdir(place):
                _remove_stale_temp_files(place)
    except OSError as error:
        raise errors.os_error(folder, "cleaned up", error) from error


def sync_entry(path: str, process_path: str) -> None:
    """Write the directory entry of ``path``, which was just changed, to the disk.

    An error is a warning: the change is complete, and all programs see it. Only a crash of the system may undo it.
    """
    try:
        sync_folder(os.path.dirname(process_path))
    except OSError as error:
        errors.warn(
            f"The changes in {os.path.dirname(path)} are complete, but may be lost if the system crashes now, because"
            f" the directory cannot be written to the disk: {error.strerror}. Check the file system."
        )


def sync_folder(folder: str) -> None:
    """Write the directory entries of ``folder`` (a path for this process) to the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
