# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: users who run a Docker of their own: their accounts, units and processes, and what is
# theirs in their folders.  Root acts here where they may put what they like: nothing of theirs is run, and no link of
# theirs leads to a file of somebody else.

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR, load_readable_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit, load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# In whose name records are kept: this, and the name of the user.
KEY = "rootless-"
UNIT = "docker.service"
# What starts dockerd in a user's own namespaces, and gives it all its arguments (moby, contrib/dockerd-rootless.sh,
# from 20.10 on).
SCRIPT = "dockerd-rootless.sh"
_PASSWD, _RUNTIME = "/etc/passwd", "/run/user"
# The first number that is given to a person (login.defs(5), UID_MIN).
_FIRST_UID = 1000
# What useradd and systemd allow, with the signs that directory services put between domain and name; never a slash: the
# name becomes part of names of files.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+ -]*\$?\Z")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
# A user's systemd puts its services here, before systemd 246 it put them beside.
_GROUPS = ("app.slice/", "")


class Account(t.NamedTuple):
    """A user of the host."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def runtime_dir(self) -> str:
        """Where the sockets of a user's daemons are while the user's systemd runs (pam_systemd(8))."""
        return f"{_RUNTIME}/{self.uid}"

    def argv(self, words: t.Sequence[str]) -> list[str]:
        """``words`` as root has to run them to speak with the user's systemd."""
        return ["runuser", "-u", self.name, "--", "env", f"XDG_RUNTIME_DIR={self.runtime_dir}", *words]


def account_of(host: HostRoot, user: str) -> Account:
    """The account called ``user``.  Raises GpufleetError where there is none, or where the name is none."""
    if not _NAME.match(user):
        raise GpufleetError(f"user {user!r} is not the name of a user. Write it as in {_PASSWD}.")
    found = next((account for account in _accounts(host) if account.name == user), None)
    found = found or _looked_up(host, "getpwnam", user)
    if found is None:
        raise GpufleetError(f"There is no user {user} on this host. Correct user, or make the account first.")
    if found.uid == 0 or not found.home.startswith("/"):
        raise GpufleetError(f"The user {user} cannot have a rootless Docker: it is root, or has no home. Correct user.")
    return found


def account_behind(host: HostRoot, key: str) -> Account | None:
    """The user in whose engine's name (``key``) records are kept, None where the engine is no user's.

    Raises GpufleetError where there is no such user any more.
    """
    return account_of(host, key[len(KEY) :]) if key.startswith(KEY) else None


def rootless_users(host: HostRoot) -> list[str]:
    """The users with a rootless Docker: set up by its own tool, running, or with files that we have changed.

    No command is run for that.
    """
    present = {int(name) for name in host.readable_entries(_RUNTIME) if _NUMBER.match(name)}
    accounts = [account for account in _accounts(host) if account.uid >= _FIRST_UID or account.uid in present]
    # Accounts of directory services are not in the file; those who are there right now can be looked up.
    strangers = present - {account.uid for account in accounts}
    others = (_looked_up(host, "getpwuid", uid) for uid in sorted(strangers))
    accounts += [account for account in others if account is not None]
    names = [account.name for account in accounts if _has_docker(host, account, account.uid in present)]
    return list(dict.fromkeys([*names, *_recorded_users(host)]))


def _recorded_users(host: HostRoot) -> t.Iterator[str]:
    """Whose files are still to be given back, though their Docker may be gone; not those who are gone themselves."""
    if not any(name.startswith(KEY) for name in host.readable_entries(STATE_DIR)):
        return
    for record in load_readable_records(host):
        with contextlib.suppress(GpufleetError):
            account = account_behind(host, record.engine)
            if account is not None:
                yield account.name


def _has_docker(host: HostRoot, account: Account, present: bool) -> bool:
    places = [f"{account.home}/.config/systemd/user/{UNIT}"] if account.home.strip("/") else []
    places += [f"{account.runtime_dir}/docker.pid", f"{account.runtime_dir}/docker.sock"] if present else []
    usable = account.uid != 0 and _NAME.match(account.name) is not None
    return usable and any(host.is_there(place) for place in places)


def _accounts(host: HostRoot) -> t.Iterator[Account]:
    """The accounts in the host's own file (passwd(5)); lines that are none are left out."""
    for line in host.read_text(_PASSWD).splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and _NUMBER.match(fields[2]) and _NUMBER.match(fields[3]):
            yield Account(fields[0], int(fields[2]), int(fields[3]), fields[5])


def _looked_up(host: HostRoot, question: str, about: str | int) -> Account | None:
    """The answer of the system's own lookup, which knows directory services too, but only those of this machine."""
    if not host.live or host.root != "/":
        return None
    # A file is enough for most hosts.
    import pwd  # noqa: PLC0415

    try:
        found = getattr(pwd, question)(about)
    except (KeyError, OverflowError, OSError):
        return None
    return Account(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir)


# -- units and processes ---------------------------------------------------------------------------------------------


def user_unit(host: HostRoot, account: Account, name: str) -> Unit | None:
    """The user's unit ``name``, whose arguments are those that dockerd gets (systemd.unit(5), user units)."""
    home = account.home
    folders = (
        f"{home}/.config/systemd/user.control",
        f"{home}/.config/systemd/user",
        "/etc/systemd/user",
        f"{account.runtime_dir}/systemd/user",
        "/run/systemd/user",
        f"{home}/.local/share/systemd/user",
        "/usr/local/share/systemd/user",
        "/usr/share/systemd/user",
        "/usr/local/lib/systemd/user",
        "/usr/lib/systemd/user",
        "/lib/systemd/user",
    )
    specifiers = {
        "E": f"{home}/.config",
        "h": home,
        "t": account.runtime_dir,
        "u": account.name,
        "U": str(account.uid),
    }
    return load_unit(host, name, SCRIPT, folders=folders, specifiers=specifiers)


def user_process(
    host: HostRoot, account: Account, unit: Unit | None, name: str, pid_files: t.Iterable[str]
) -> int | None:
    """The process called ``name`` in the control group of the user's unit, else the one in a pid file.

    It has to be the user's: who writes a pid file of their own could name another's process.
    """
    if not host.live:
        return None
    candidates: list[int | None] = []
    if unit is not None:
        for group in _GROUPS:
            place = f"user@{account.uid}.service/{group}{unit.name}"
            candidates.append(process_of(host, unit._replace(name=place, slice=f"user-{account.uid}.slice"), name))
    for path in pid_files:
        text = host.read_text(path).strip()
        if _NUMBER.match(text) and host.read_text(f"/proc/{text}/comm").strip() == name:
            candidates.append(int(text))
    return next((pid for pid in candidates if pid is not None and runs_as(host, pid, account)), None)


def runs_as(host: HostRoot, pid: int, account: Account) -> bool:
    """Whether the process runs as that user: as its root in a namespace of its own, which is the user here."""
    for line in host.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return line.split()[1:2] == [str(account.uid)]
    return False


# -- whose files -----------------------------------------------------------------------------------------------------


def check_own(host: HostRoot, account: Account, path: str) -> None:
    """Raises GpufleetError unless ``path`` (links resolved), or the folder in which it is to be made, is the user's."""
    place = host.resolve(path)
    folder = place
    while not os.path.lexists(host.outer(folder)):
        folder = posixpath.dirname(folder)
    checked = [folder] if folder != place else [place, posixpath.dirname(place)]
    for name in checked:
        uid = os.lstat(host.outer(name)).st_uid
        if uid != account.uid:
            led = f" {path} leads to {place}." if place != posixpath.normpath(path) else ""
            raise GpufleetError(
                f"{path} is not changed for {account.name}: {name} belongs to the user with the number {uid}, not to"
                f" {account.name}.{led} Give it to {account.name} (chown), or remove the link; nothing was changed."
            )


def is_own(host: HostRoot, account: Account, path: str) -> bool:
    """Whether ``path``, to which links may lead, is the user's."""
    try:
        return os.stat(host.outer(path)).st_uid == account.uid
    except (GpufleetError, OSError):
        return False


def trusted_program(host: HostRoot, name: str) -> str | None:
    """The system's program ``name``, links resolved; None if there is none, or others than root could exchange it.

    What a user can write must not be run by root, and neither may a user choose what root runs.
    """
    found = host.find_executable([name])
    if found is None:
        return None
    program = place = host.resolve(found)
    if posixpath.basename(program) != name:
        # A link to another program, which may understand the arguments in its own way.
        return None
    while place != "/":
        status = os.lstat(host.outer(place))
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        place = posixpath.dirname(place)
    return program
