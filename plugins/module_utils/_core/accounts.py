# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read accounts of users: numeric ids, home directories and the directories that belong to them.

It contains no rule about engines; `_systemd/rootless.py` uses it for the Docker of a user.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The records of a user's engine have this name, followed by the name of the user.
KEY = "rootless-"
_ACCOUNTS = "/etc/passwd"
# What useradd and systemd allow, and the characters that directory services put between domain and name; never a slash,
# because the name becomes part of file names.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+ -]*\$?\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")


class Account(t.NamedTuple):
    """A user of the host, not root."""

    name: str
    uid: int
    home: str

    @property
    def runtime_dir(self) -> str:
        """The directory that exists while the user's systemd runs (pam_systemd(8)); it holds the daemons' sockets."""
        return runtime_dir(self.uid)

    @property
    def data_dir(self) -> str:
        """The directory of the records and backups of the user's engine."""
        return f"{self.home}/.local/state/gpufleet-nvidia"

    def argv(self, command: t.Sequence[str]) -> list[str]:
        """``command`` with the environment in which it finds the user's systemd; become does not set it."""
        bus = f"unix:path={self.runtime_dir}/bus"
        return ["env", f"XDG_RUNTIME_DIR={self.runtime_dir}", f"DBUS_SESSION_BUS_ADDRESS={bus}", *command]


def runtime_dir(uid: int) -> str:
    return f"/run/user/{uid}"


def own_account(host: hostfs.HostFS) -> Account | None:
    """The account of the user who runs this; None for root, and for a number without an account."""
    return None if os.geteuid() == 0 else account_of(host, os.geteuid())


def require_own(host: hostfs.HostFS, user: str | None) -> Account:
    """The account of the user who runs this, who must be ``user`` if one is named.

    Raises NvidiaError for everybody else, root included: a user's files can block or mislead who opens them.
    """
    own = own_account(host)
    if own is None or user not in (None, own.name):
        raise errors.NvidiaError(
            f"The rootless Docker of {'a user' if user is None else user} is only handled by a task that runs as that"
            f" user. Set become: true and become_user: {user or 'NAME'} for the task."
        )
    return own


def account_of(host: hostfs.HostFS, uid: int) -> Account | None:
    """The account with that number, None where there is none that can have an engine of its own."""
    found = next((account for account in _accounts(host) if account.uid == uid), None) or _looked_up(host, uid)
    usable = found is not None and found.uid and found.home.strip("/") and _NAME.match(found.name)
    return found if usable else None


def home_of(host: hostfs.HostFS, user: str) -> str | None:
    """The home directory of ``user`` by the host's own file."""
    return next((account.home for account in _accounts(host) if account.name == user), None)


def _accounts(host: hostfs.HostFS) -> t.Iterator[Account]:
    """The accounts in the host's own file (passwd(5)); lines of another form are skipped."""
    for line in host.read_text(_ACCOUNTS).splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and _NUMBER.match(fields[2]) and fields[5].startswith("/"):
            yield Account(fields[0], int(fields[2]), fields[5])


def _looked_up(host: hostfs.HostFS, uid: int) -> Account | None:
    """The answer of the system's own lookup, which knows directory services too, but only those of this machine."""
    if not host.live or host.root != "/":
        return None
    # A file is enough for most hosts.
    import pwd  # noqa: PLC0415

    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OverflowError, OSError):
        return None
    return Account(found.pw_name, found.pw_uid, found.pw_dir)
