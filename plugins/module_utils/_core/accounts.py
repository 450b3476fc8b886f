# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read user accounts: numeric IDs, home directories, and the directories that belong to a user.

It contains no rule about engines. `_systemd/rootless.py` uses it for the rootless Docker of a user.
"""

from __future__ import annotations

import os
import pwd
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Prefix of the owner name under which records of a user's engine are kept. The name of the user follows.
ROOTLESS_PREFIX = "rootless-"
_ACCOUNTS_FILE = "/etc/passwd"
# The characters that useradd and systemd allow, and those that directory services put between domain and name. A slash
# is excluded, because the name becomes part of file names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+ -]*\$?\Z")
_UID = re.compile(r"[0-9]{1,10}\Z")


class Account(t.NamedTuple):
    """A user of the host other than root."""

    name: str
    uid: int
    home: str

    @property
    def runtime_dir(self) -> str:
        """The directory with the sockets of the user's daemons.

        It exists while the user's systemd runs (pam_systemd(8)).
        """
        return runtime_dir(self.uid)

    @property
    def data_dir(self) -> str:
        """The directory of the records and backups of the user's engine."""
        return f"{self.home}/.local/state/gpufleet-nvidia"

    def argv(self, command: t.Sequence[str]) -> list[str]:
        """Return ``command`` with the environment variables that it needs to reach the user's systemd.

        Ansible's become does not set them.
        """
        bus = f"unix:path={self.runtime_dir}/bus"
        return ["env", f"XDG_RUNTIME_DIR={self.runtime_dir}", f"DBUS_SESSION_BUS_ADDRESS={bus}", *command]


def runtime_dir(uid: int) -> str:
    return f"/run/user/{uid}"


def own_account(host: hostfs.HostFS) -> Account | None:
    """Return the account of the user who runs this process; None for root or for a UID without an account."""
    return None if os.geteuid() == 0 else account_of(host, os.geteuid())


def require_own(host: hostfs.HostFS, user: str | None) -> Account:
    """Return the account of the user who runs this process.

    Raises NvidiaError if that user is root, or is not ``user`` where ``user`` is given: the owner of a directory can
    block or redirect a process of another user that opens files in it.
    """
    own = own_account(host)
    if own is None or user not in (None, own.name):
        raise errors.NvidiaError(
            f"Only a task that runs as {user or 'the user'} can manage the rootless Docker of"
            f" {user or 'that user'}. Set become: true and become_user: {user or 'NAME'} for the task."
        )
    return own


def account_of(host: hostfs.HostFS, uid: int) -> Account | None:
    """Return the account with the UID ``uid``; None if there is none that can own an engine."""
    found = next((account for account in _accounts(host) if account.uid == uid), None) or _from_name_service(host, uid)
    usable = found is not None and found.uid and found.home.strip("/") and _NAME.match(found.name)
    return found if usable else None


def _accounts(host: hostfs.HostFS) -> t.Iterator[Account]:
    """Return the accounts in the passwd file of the host (passwd(5)), without malformed lines."""
    for line in host.read_text(_ACCOUNTS_FILE).splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and _UID.match(fields[2]) and fields[5].startswith("/"):
            yield Account(fields[0], int(fields[2]), fields[5])


def _from_name_service(host: hostfs.HostFS, uid: int) -> Account | None:
    """Return the account from getpwuid(3), which also asks directory services; None unless the host is this machine."""
    if not host.live or host.root != "/":
        return None

    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OverflowError, OSError):
        return None
    return Account(found.pw_name, found.pw_uid, found.pw_dir)
