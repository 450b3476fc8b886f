# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Replace, create and remove files in one step each, without following links.

Owner, mode, extended attributes and the SELinux label of a replaced file are kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Also how the leftovers of a killed run are recognised.  The suffix keeps them out of globs such as *.toml.
_PREFIX = ".gpufleet-"
_SUFFIX = ".tmp"
_PATIENCE = 100
_ANY_MODE = 0o7777
_ACCESS_LIST = "system.posix_acl_access"
_DEFAULT_LIST = "system.posix_acl_default"
# What keeps a file from being made in one folder and moved into another, but not from being made in the latter.
_NO_WAY = (errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM)
# Why a file system makes no file without a name (open(2), O_TMPFILE): NFS, and overlayfs before Linux 6.1.
_NEEDS_NAME = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


def os_error(path: str, doing: str, error: OSError) -> errors.HostError:
    """An operating system's error in words that say what to do."""
    advice = "Check the file system."
    if isinstance(error, PermissionError):
        advice = "Run the task as root (become: true); a file marked immutable (lsattr) must be released first."
        return errors.PermissionDeniedError(f"{path} cannot be {doing}: {error.strerror}. {advice}")
    if error.errno == errno.ENOSPC:
        advice = "Make room on the file system, then run this again."
    elif error.errno == errno.EROFS:
        advice = "Mount the file system read-write, or configure the host where its image is built."
    return errors.HostError(f"{path} cannot be {doing}: {error.strerror}. {advice}")


def _target(host: hostfs.HostFS, path: str) -> str:
    """Where ``path``, links resolved, stands for this process, which is about to write there.

    Raises HostError for root if a directory or a link on the way belongs to another user, who could exchange it and so
    choose what root overwrites.
    """
    if os.geteuid() != 0:
        return host.real_path(path)
    # The owner of a whole tree owns the files in it, too.
    trusted = (0, os.stat(host.root).st_uid)

    def require_trusted(here: str, final: bool) -> None:
        outer = host.root.rstrip("/") + here
        try:
            status = os.lstat(outer)
        except OSError:
            # The write itself will report it.
            return
        if status.st_uid not in trusted and (not final or stat.S_ISLNK(status.st_mode)):
            raise errors.HostError(
                f"{path} is not written: {here} belongs to the user {status.st_uid}, who could exchange it meanwhile."
                f" Give it to root (chown -h root {shlex.quote(outer)}), or run the task as that user (become_user)."
            )

    return host.root.rstrip("/") + host.follow(path, require_trusted)


def make_directories(host: hostfs.HostFS, path: str, mode: int) -> list[str]:
    """Make ``path`` and what is missing above it, the latter with mode 0755; returns what was made, outermost first."""
    made: list[str] = []
    try:
        _target(host, path)
    except OSError as error:
        raise os_error(path, "created", error) from error
    wanted = host.resolve(path)
    missing = _missing(host, wanted)
    patience = _PATIENCE
    while missing:
        folder = missing.pop(0)
        try:
            outer = _target(host, folder)
            os.mkdir(outer)
            os.chmod(outer, 0o755 if missing else mode)
            _label(host, outer, outer)
            made.append(folder)
        except FileExistsError:
            continue
        except FileNotFoundError as error:
            # Another run has just removed a folder that it had made; but /proc, say, refuses for ever.
            patience -= 1
            if not patience:
                raise os_error(folder, "created", error) from error
            missing = _missing(host, wanted)
        except OSError as error:
            raise os_error(folder, "created", error) from error
    return made


def missing_directories(host: hostfs.HostFS, path: str) -> list[str]:
    """What make_directories would make."""
    return _missing(host, host.resolve(path))


def _missing(host: hostfs.HostFS, folder: str) -> list[str]:
    missing: list[str] = []
    while folder != "/" and not host.exists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def remove_empty_directories(host: hostfs.HostFS, paths: t.Iterable[str]) -> None:
    """Remove those of ``paths`` (outermost first) that are empty by now."""
    for path in reversed(list(paths)):
        with contextlib.suppress(OSError, errors.HostError):
            os.rmdir(_target(host, path))


def replace_file(
    host: hostfs.HostFS,
    path: str,
    content: bytes,
    mode: int,
    owner: tuple[int, int] | None = None,
    *,
    ceiling: int = _ANY_MODE,
    parsed: t.Iterable[str] = (),
) -> None:
    """Put ``content`` at ``path`` in one step; a link stays a link, its target is replaced.

    An existing file keeps owner, mode, access list and SELinux label; ``mode`` and ``owner`` (uid, gid) are for a
    new one, which has the label of the policy before it has its name.  No mode ever exceeds ``ceiling``.  The content
    is on the disk before the name points to it.  In the folders ``parsed`` and below them no other name appears
    meanwhile, for there it would be read as configuration.  Only where such a folder is a mount of its own, a file that
    is replaced has a second name for an instant.
    """
    folders = [host.real_path(name) for name in parsed]

    def dress(handle: int, stage: str) -> None:
        _dress(handle, stage, outer, mode, owner, host=host)
        if ceiling != _ANY_MODE:
            os.fchmod(handle, os.fstat(handle).st_mode & ceiling)

    try:
        outer = _target(host, path)
        _require_file(path, outer, "written")
        _replace_at(outer, content, dress, folders)
    except OSError as error:
        raise os_error(path, "written", error) from error


def _replace_at(outer: str, content: bytes, dress: t.Callable[[int, str], None], parsed: t.Sequence[str]) -> None:
    _remove_stale_temp_files(os.path.dirname(outer))
    _staged(outer, parsed, lambda stage: _replace_by_way_of(stage, outer, content, dress, _is_parsed(stage, parsed)))


def _staged(outer: str, parsed: t.Sequence[str], work: t.Callable[[str], None]) -> None:
    """Do ``work`` in the folder in which the new file is made, else in that of ``outer``.  Raises OSError."""
    folder = os.path.dirname(outer)
    stage = _staging_dir(folder, parsed)
    try:
        work(stage)
    except OSError as error:
        # A mount of its own, or no one may write around it: then there is no other way.
        if stage == folder or error.errno not in _NO_WAY:
            raise
        work(folder)


def prepare_file(host: hostfs.HostFS, path: str, content: bytes, mode: int, owner: tuple[int, int] | None) -> int:
    """Do all of replace_file() but the replacement; returns the handle of the new file, for use_prepared_file().

    The file has no name, so that no daemon reads it, and is gone when the handle is closed or this process ends.
    """
    try:
        outer = _target(host, path)
        _require_file(path, outer, "prepared")
        folder = os.path.dirname(outer)
        handle = _nameless(folder)
        if handle is None:
            raise errors.HostError(f"{path} cannot be prepared: its file system needs a name for each file.")
        try:
            with os.fdopen(handle, "wb", closefd=False) as stream:
                stream.write(content)
            _dress(handle, folder, outer, mode, owner, host=host)
            os.fsync(handle)
        except OSError:
            os.close(handle)
            raise
    except OSError as error:
        raise os_error(path, "prepared", error) from error
    return handle


def use_prepared_file(host: hostfs.HostFS, handle: int, path: str, *, parsed: t.Iterable[str]) -> bool:
    """Put the prepared file at ``path`` in one step, and close it; returns whether that could be done."""
    folders = [host.real_path(name) for name in parsed]
    try:
        outer = _target(host, path)
        _staged(outer, folders, lambda stage: _give_name(handle, stage, outer))
        sync_folder(os.path.dirname(outer))
    except (OSError, errors.HostError):
        return False
    finally:
        os.close(handle)
    return True


def _nameless(folder: str) -> int | None:
    """A new file in ``folder`` without a name, None where the file system has none."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NEEDS_NAME:
            return None
        raise


def _give_name(handle: int, stage: str, outer: str) -> None:
    """Let a file without a name be ``outer``; where that is there, by way of a name in ``stage``.  Raises OSError."""
    source = f"/proc/self/fd/{handle}"
    # os.link() only follows this link where it is given a handle, which linkat(2) ignores for an absolute path.
    with contextlib.suppress(FileExistsError):
        os.link(source, outer, src_dir_fd=handle)
        return
    temporary = os.path.join(stage, f"{_PREFIX}{os.getpid()}-{handle}{_SUFFIX}")
    os.link(source, temporary, src_dir_fd=handle)
    try:
        os.replace(temporary, outer)
    except OSError:
        os.unlink(temporary)
        raise


def _require_file(path: str, outer: str, doing: str) -> None:
    """Raises HostError where something else than a file would go: /dev/null, to which a link may lead, above all."""
    try:
        mode = os.lstat(outer).st_mode
    except OSError:
        # Whatever is wrong here comes up again where it is written.
        return
    # A folder is in nobody's way by mistake, and the system's own words tell of it.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise errors.HostError(
            f"{path} cannot be {doing}: it is, or leads to, {_kind(mode)}, which is no file. If a link leads there,"
            " remove the link (a unit's: systemctl unmask); else move it away."
        )


def _kind(mode: int) -> str:
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "a device"
    return "a socket" if stat.S_ISSOCK(mode) else "a pipe" if stat.S_ISFIFO(mode) else "something special"


def _replace_by_way_of(
    stage: str, outer: str, content: bytes, dress: t.Callable[[int, str], None], hidden: bool
) -> None:
    """Make the new file in ``stage``, without a name if it has to be ``hidden``.  Raises OSError."""
    _remove_stale_temp_files(stage)
    handle, temporary = _nameless(stage) if hidden else None, ""
    if handle is None:
        handle, temporary = tempfile.mkstemp(_SUFFIX, _PREFIX, stage)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            dress(stream.fileno(), stage)
            os.fsync(stream.fileno())
            if not temporary:
                _give_name(stream.fileno(), stage, outer)
        if temporary:
            os.replace(temporary, outer)
        sync_folder(os.path.dirname(outer))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _is_parsed(folder: str, parsed: t.Sequence[str]) -> bool:
    return any((folder + "/").startswith(name.rstrip("/") + "/") for name in parsed)


def _staging_dir(folder: str, parsed: t.Sequence[str]) -> str:
    """The nearest folder around ``folder`` on its file system that is not ``parsed``; itself if there is none."""
    stage = folder
    while stage != "/" and _is_parsed(stage, parsed):
        stage = os.path.dirname(stage)
    try:
        return stage if os.stat(stage).st_dev == os.stat(folder).st_dev else folder
    except OSError:
        return folder


def _move_in(handle: int, folder: str) -> None:
    """Give a new file what one that is made in ``folder`` gets from it: its group, and its default access list."""
    status = os.stat(folder)
    group = status.st_gid if status.st_mode & stat.S_ISGID else os.getegid()
    if os.fstat(handle).st_gid != group:
        os.fchown(handle, -1, group)
    with contextlib.suppress(OSError):
        if _ACCESS_LIST in os.listxattr(handle):
            os.removexattr(handle, _ACCESS_LIST)
        if _DEFAULT_LIST in os.listxattr(folder):
            os.setxattr(handle, _ACCESS_LIST, os.getxattr(folder, _DEFAULT_LIST))


def set_access(host: hostfs.HostFS, path: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Give a file that is there its mode, and its owner (uid, gid) if that is said.  Raises HostError."""
    outer = host.real_path(path)
    try:
        status = os.stat(outer)
        if owner is not None and (status.st_uid, status.st_gid) != owner:
            os.chown(outer, *owner)
        os.chmod(outer, mode)
    except OSError as error:
        raise os_error(path, "given its mode", error) from error


def remove_file(host: hostfs.HostFS, path: str) -> None:
    """Remove ``path`` (a link's target, not the link); no error where there is none."""
    try:
        outer = _target(host, path)
        _require_file(path, outer, "removed")
        os.unlink(outer)
        sync_folder(os.path.dirname(outer))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise os_error(path, "removed", error) from error


def _dress(
    handle: int, stage: str, outer: str, mode: int, owner: tuple[int, int] | None, *, host: hostfs.HostFS
) -> None:
    """Give the new file, made in ``stage``, what the old one wears.  Owner first: changing it clears set-id bits.

    By its handle: under its name whoever owns the folder may put a link to a file of root's at any moment.
    """
    folder = os.path.dirname(outer)
    if stage != folder:
        _move_in(handle, folder)
    try:
        # Not what a link leads to: whoever puts one here now would choose the mode of a file of root's.
        status = os.lstat(outer)
    except FileNotFoundError:
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(handle, *owner)
        os.fchmod(handle, mode)
        _label(host, handle, outer)
        return
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(handle, status.st_uid, status.st_gid)
    os.fchmod(handle, status.st_mode & 0o7777)
    # A file system without attributes, or one that only a greater privilege may set, is no reason not to write.
    with contextlib.suppress(OSError):
        worn = os.listxattr(outer, follow_symlinks=False)
        for name in worn:
            with contextlib.suppress(OSError):
                os.setxattr(handle, name, os.getxattr(outer, name, follow_symlinks=False))
        # The folder's default access list is for files that are new in it.
        if _ACCESS_LIST not in worn and _ACCESS_LIST in os.listxattr(handle):
            os.removexattr(handle, _ACCESS_LIST)


def _label(host: hostfs.HostFS, new: int | str, outer: str) -> None:
    """Give what is ``new`` the SELinux label that the policy has for ``outer``."""
    label = None if host.label_of is None else host.label_of(outer)
    # A mount may have one label for all of its files.
    with contextlib.suppress(OSError):
        if label is not None:
            os.setxattr(new, "security.selinux", label.encode() + b"\0")


def is_temporary(name: str) -> bool:
    """Whether a file is one of replace_file()'s that a killed run has left."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _remove_stale_temp_files(folder: str) -> None:
    """Remove what a killed run left; the host's lock is held, so no living run owns it."""
    for name in filter(is_temporary, os.listdir(folder)):
        os.unlink(os.path.join(folder, name))


def sync_folder(folder: str) -> None:
    """Have the names in ``folder``, a path for this process, on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
