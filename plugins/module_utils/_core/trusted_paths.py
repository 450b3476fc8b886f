# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find out whether another user than root can replace a file or a directory, before root writes, loads or mounts it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants, errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_ACCESS_ACL = "system.posix_acl_access"


def require_trusted_root(host: hostfs.HostFS) -> None:
    """Raise HostError if another user can move or replace ``host.root`` or a directory above it.

    That user could put a link there while a file is written, so that root writes outside the tree. That user could also
    put a program there that root runs. A tree that is not live may also belong to the user who runs the task through
    sudo.
    """
    found = _first_untrusted(_components(host.root), _owners(host.live))
    if found is None:
        return
    folder, problem, command = found
    other = "" if host.live else ", or run the task as the owner or through sudo of the owner"
    raise errors.HostError(
        f"{errors.option:host_root} {host.root!r} is not safe: {folder} {problem}, so another user could replace it"
        f" while the task runs. Run `{command}`{other}."
    )


def require_trusted_folder(host: hostfs.HostFS, parameter: str, folder: str) -> None:
    """Raise HostError if another user can replace files in ``folder`` or a directory above it on the host."""
    _require_trusted(host, parameter, folder, _places(host, folder))


def is_trusted_folder(host: hostfs.HostFS, folder: str) -> bool:
    """Return whether no other user can replace files in ``folder`` or a directory above it on the host."""
    return _first_untrusted(_places(host, folder), _owners(host.live)) is None


def require_trusted_file(host: hostfs.HostFS, parameter: str, file: str) -> None:
    """Raise HostError if another user can replace ``file``, which may be missing, or the target of a link there.

    The owner and the mode of an existing file are not checked in a directory where only root can write, because a write
    in its place keeps both.
    """
    *places, last = _places(host, file)
    status, folder = _status(last), _status(os.path.dirname(last))
    is_shared = folder is not None and folder.st_mode & stat.S_ISVTX
    _require_trusted(host, parameter, file, [*places, *([last] if status is None or is_shared else [])])


def replaceable(host: hostfs.HostFS, paths: t.Iterable[str]) -> dict[str, str]:
    """Return those of ``paths`` that another user can replace after this check, with the reasons as parts of sentences.

    This is for paths that root only names, and that another program follows later, such as the source of a mount. So a
    link in a directory that all users can write is never accepted, nor is a file with several names there: another user
    can give a second name to a file of root. The directory ``host.root`` is the first that is checked.
    """
    owners, prefix, above = _owners(host.live), host.root.rstrip("/"), len(_components(host.root)) - 1
    reasons: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        found = _first_untrusted(_places(host, path)[above:], owners, followed_later=True)
        if found is not None:
            reasons[path] = f"{found[0][len(prefix) :] or '/'} {found[1]}"
    return reasons


def _places(host: hostfs.HostFS, path: str) -> list[str]:
    """Return the process paths of all components of ``path``, links and their targets included, above it first."""
    places = _components(host.root)
    # Links on the way are checked too, because a user who can replace a link selects another directory. The components
    # of a loop of links are checked as far as they were followed, and its user reports the loop.
    with contextlib.suppress(errors.HostError):
        host.follow(path, lambda here, _final: places.append(host.root.rstrip("/") + here))
    return places


def _require_trusted(host: hostfs.HostFS, parameter: str, path: str, places: t.Sequence[str]) -> None:
    found = _first_untrusted(places, _owners(host.live))
    if found is not None:
        process_path, problem, command = found
        is_missing_file = parameter in _FILES and process_path == places[-1] and _status(process_path) is None
        # A directory there would be in the way of the file.
        step = "" if is_missing_file else f", or run `{command}`"
        raise errors.HostError(
            f"{errors.option:{parameter}} {path!r} is not safe: {process_path} {problem}, so another user could replace"
            f" files there. Choose another path{step}."
        )


# The options of all modules that name what root writes, and what root loads, runs, or writes into specifications.
# Options that name the source of a copy (src) are not here: a task that names a file there wants its content.
WRITTEN_FILES = frozenset({"config_path", "drop_in_path", "path"})
WRITTEN_FOLDERS = frozenset({"dest", "package_cache"})
USED = frozenset({
    "cdi_hook_path", "config_search_paths", "csv_files", "default_runtime_executable", "dev_root", "driver_root",
    "ldconfig_path", "library_search_paths", "low_level_runtimes", "runtime_dir", "toolkit_dir",
})  # fmt: skip
_FILES = WRITTEN_FILES | {
    "cdi_hook_path", "csv_files", "default_runtime_executable", "files", "ldconfig_path", "low_level_runtimes",
    "rollback.backup",
}  # fmt: skip


def require_trusted_options(
    host: hostfs.HostFS, params: t.Mapping[str, t.Any], argument_spec: t.Mapping[str, t.Mapping[str, t.Any]]
) -> None:
    """Raise HostError if an option of a task names a file or directory that another user can replace.

    Defaults are not checked, because they are in directories of the system. With ``state: absent``, only what is
    written is checked. Relative paths are refused elsewhere, or are names of programs in root's search path.
    """
    names = WRITTEN_FILES | WRITTEN_FOLDERS | (frozenset() if params.get("state") == "absent" else USED)
    for name in sorted(names.intersection(params)):
        value = params[name]
        if value is None or value == argument_spec.get(name, {}).get("default"):
            continue
        for path in value if isinstance(value, list) else [value]:
            if os.path.isabs(path):
                check = require_trusted_file if name in WRITTEN_FILES else require_trusted_folder
                check(host, name, os.path.normpath(path))


def check_backup_dir(host: hostfs.HostFS, directory: str, config_dirs: t.Iterable[str]) -> None:
    """Raise NvidiaError if an engine reads ``directory`` as configuration, or if other users can change it."""
    real = host.resolve(directory)
    for folder in config_dirs:
        if (real + "/").startswith(host.resolve(folder) + "/"):
            raise errors.NvidiaError(
                f"{errors.option:backup_dir} {directory!r} is below {folder}, where a program reads every file as"
                " configuration. Choose another directory."
            )
    require_trusted_folder(host, "backup_dir", directory)


def _components(path: str) -> list[str]:
    """Return the root directory and each directory down to ``path`` (absolute and normalized), which comes last."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:number]) for number in range(len(parts) + 1)]


def _first_untrusted(
    places: t.Sequence[str], owners: frozenset[int], followed_later: bool = False
) -> tuple[str, str, str] | None:
    """Return the first of ``places`` that others can change, the reason, and the command that prevents it.

    ``places`` are the components of a path, from the root directory on. Returns None if others can change none of them.
    ``followed_later`` adds the rules of replaceable().
    """
    # Directories with the sticky bit, in which other users can only add names. That is safe for a name that exists.
    shared: set[str] = set()
    for place in places:
        folder, status = os.path.dirname(place), _status(place)
        if status is None:
            # This collection creates missing directories for its own user. A directory such as /tmp must keep its mode,
            # so the advice is to create the missing directory in it.
            problem = "does not exist, and its directory is writable by other users"
            return (place, problem, f"mkdir -m 700 {shlex.quote(place)}") if folder in shared else None
        is_link = stat.S_ISLNK(status.st_mode)
        quoted = shlex.quote(place)
        # The driver can give its device nodes to a user (NVreg_DeviceFileUID), who then may not replace them.
        is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        if status.st_uid not in owners and not (is_device and folder not in shared):
            option = "-h " if is_link else ""
            return place, f"belongs to user {status.st_uid}", f"chown {option}{os.geteuid()} {quoted}"
        if followed_later and folder in shared and place != folder:
            if is_link:
                return place, "is a link in a directory that is writable by other users", f"rm {quoted}"
            if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
                return place, "is a second name in a directory that is writable by other users", f"rm {quoted}"
        # Who may write to a socket or a device may not replace it.
        is_content = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        if is_content and _others_can_write(place, status):
            if not status.st_mode & stat.S_ISVTX or place == places[-1]:
                return place, "is writable by other users", f"chmod go-w {quoted}"
            shared.add(place)
    return None


def _status(place: str) -> os.stat_result | None:
    try:
        return os.lstat(place)
    except OSError:
        return None


def _owners(live: bool) -> frozenset[int]:
    """Return the UIDs that may own a host's directories.

    These are root, this user, for an offline tree the user of sudo, and in a user namespace the UID of unmapped users.
    """
    owners = {0, os.geteuid()}
    sudo = os.environ.get("SUDO_UID", "")
    if not live and os.geteuid() == 0 and sudo.isdigit():
        owners.add(int(sudo))
    try:
        with open("/proc/self/uid_map", encoding="utf-8") as stream:
            mapped = " ".join(stream.read().split())
        if mapped != constants.ALL_USERS:
            # In a user namespace, the real root and all other unmapped users appear under this UID.
            with open("/proc/sys/kernel/overflowuid", encoding="utf-8") as stream:
                owners.add(int(stream.read()))
    except (OSError, ValueError):
        pass
    return frozenset(owners)


def _others_can_write(path: str, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    # With a POSIX ACL, the group bits are the upper limit of all its entries.
    return not _is_private(status.st_gid, status.st_uid) or _ACCESS_ACL in _attributes(path)


def _is_private(group: int, user: int) -> bool:
    """Return whether a group belongs to one user alone (useradd(8), USERGROUPS_ENAB): same number or same name."""
    try:
        members = grp.getgrgid(group)
    except (KeyError, OSError):
        return group == user
    try:
        account = pwd.getpwuid(user)
    except (KeyError, OSError):
        return group == user and not members.gr_mem
    same_name = members.gr_name == account.pw_name and account.pw_gid == group
    return (group == user or same_name) and set(members.gr_mem) <= {account.pw_name}


def _attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError:
        return []
