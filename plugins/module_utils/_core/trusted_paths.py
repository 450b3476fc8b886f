# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse directories that another user than root can change, before anything is written below them."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


_ACCESS_ACL = "system.posix_acl_access"
_ALL_USERS = "0 0 4294967295"


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
        f"host_root {host.root!r} is not safe: {folder} {problem}, so another user could replace it while the task"
        f" runs. Run `{command}`{other}."
    )


def require_trusted_folder(host: hostfs.HostFS, parameter: str, folder: str) -> None:
    """Raise HostError if another user can replace files in ``folder`` or a directory above it on the host."""
    places = _components(host.root)
    # Links on the way are checked too, because a user who can replace a link selects another directory.
    host.follow(folder, lambda here, _final: places.append(host.root.rstrip("/") + here))
    found = _first_untrusted(places, _owners(host.live))
    if found is not None:
        process_path, problem, command = found
        raise errors.HostError(
            f"{parameter} {folder!r} is not safe: {process_path} {problem}, so another user could replace files there."
            f" Choose another directory, or run `{command}`."
        )


def check_backup_dir(host: hostfs.HostFS, directory: str, config_dirs: t.Iterable[str]) -> None:
    """Raise NvidiaError if an engine reads ``directory`` as configuration, or if other users can change it."""
    real = host.resolve(directory)
    for folder in config_dirs:
        if (real + "/").startswith(host.resolve(folder) + "/"):
            raise errors.NvidiaError(
                f"backup_dir {directory!r} is below {folder}, where a program reads every file as configuration. Choose"
                " another directory."
            )
    require_trusted_folder(host, "backup_dir", directory)


def _components(path: str) -> list[str]:
    """Return the root directory and each directory down to ``path`` (absolute and normalized), which comes last."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:number]) for number in range(len(parts) + 1)]


def _first_untrusted(places: t.Sequence[str], owners: frozenset[int]) -> tuple[str, str, str] | None:
    """Return the first of ``places`` that others can change, the reason, and the command that prevents it.

    ``places`` are the components of a path. Returns None if others can change none of them.
    """
    for place, following in zip(places, [*places[1:], ""]):
        try:
            status = os.lstat(place)
        except OSError:
            # This collection creates missing directories for its own user.
            return None
        is_link = stat.S_ISLNK(status.st_mode)
        if status.st_uid not in owners:
            option = "-h " if is_link else ""
            return place, f"belongs to user {status.st_uid}", f"chown {option}{os.geteuid()} {shlex.quote(place)}"
        # In a directory with the sticky bit, other users can only add names. That is safe if the next component exists.
        sticky = status.st_mode & stat.S_ISVTX
        if not is_link and _others_can_write(place, status) and not (sticky and os.path.lexists(following)):
            # A directory such as /tmp must keep its mode, so the advice is to create the missing directory in it.
            below = f"mkdir -m 700 {shlex.quote(following)}"
            command = below if sticky and following else f"chmod go-w {shlex.quote(place)}"
            return place, "is writable by other users", command
    return None


def _owners(live: bool) -> frozenset[int]:
    """Return the UIDs that may own a host's directories: root, this user and, for an offline tree, the user of sudo."""
    owners = {0, os.geteuid()}
    sudo = os.environ.get("SUDO_UID", "")
    if not live and os.geteuid() == 0 and sudo.isdigit():
        owners.add(int(sudo))
    try:
        with open("/proc/self/uid_map", encoding="ascii") as stream:
            mapped = " ".join(stream.read().split())
        if mapped != _ALL_USERS:
            # In a user namespace, the real root and all other unmapped users appear under this UID.
            with open("/proc/sys/kernel/overflowuid", encoding="ascii") as stream:
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
    if group == user:
        return True
    try:
        account, members = pwd.getpwuid(user), grp.getgrgid(group)
    except (KeyError, OSError):
        return False
    alone = set(members.gr_mem) <= {account.pw_name}
    return alone and members.gr_name == account.pw_name and account.pw_gid == group


def _attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError:
        return []
