# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the rootless Docker of a user: its unit and process as a task of that user reads them, and
# what root learns of it from the kernel and from its own records.  Root opens no file that the user controls.

from __future__ import annotations

import posixpath
import re
import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._accounts import (
    KEY,
    Account,
    account_of,
    home_of,
    own_account,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import process_of, uid_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import (
    STATE_DIR,
    load_readable_records,
    record_path,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit, load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

UNIT = "docker.service"
# What starts dockerd in a user's own namespaces, and passes it all its arguments (moby, contrib/dockerd-rootless.sh,
# from 20.10 on).
SCRIPT = "dockerd-rootless.sh"
_PROGRAMS = ("rootlesskit", "dockerd")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
# A user's systemd puts its services here, before systemd 246 it put them beside.
_GROUPS = ("app.slice/", "")


# -- for a task of the user ------------------------------------------------------------------------------------------


def own_users(host: HostRoot) -> list[str]:
    """The name of the user who runs this, if that user has a rootless Docker or records of one; root has none."""
    account = own_account(host)
    if account is None:
        return []
    places = [f"{account.home}/.config/systemd/user/{UNIT}"]
    places += [f"{account.runtime_dir}/{name}" for name in ("docker.pid", "docker.sock")]
    recorded = (name.startswith(f"{KEY}{account.name}-") for name in host.readable_entries(f"{account.data_dir}/state"))
    return [account.name] if any(host.is_there(place) for place in places) or any(recorded) else []


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

    It has to run as the user: an old pid file may name a process of another user.
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
    return next((pid for pid in candidates if pid is not None and uid_of(host, pid) == account.uid), None)


# -- for root --------------------------------------------------------------------------------------------------------


def running_engines(host: HostRoot) -> dict[str, int]:
    """By user, the process of a rootless Docker that runs: by the kernel's process table alone.

    Only comm and status are read: what the kernel takes from a process's memory, such as cmdline, may never arrive.
    """
    found: dict[int, dict[str, int]] = {}
    for pid in host.readable_entries("/proc") if host.live else ():
        program = host.read_text(f"/proc/{pid}/comm").strip() if _NUMBER.match(pid) else ""
        uid = uid_of(host, pid) if program in _PROGRAMS else None
        if uid:
            found.setdefault(uid, {})[program] = int(pid)
    accounts = ((account_of(host, uid), pids) for uid, pids in sorted(found.items()))
    return {
        account.name: pids.get("dockerd") or pids["rootlesskit"] for account, pids in accounts if account is not None
    }


def recorded_users(host: HostRoot) -> list[str]:
    """The users for whom root kept records itself, as earlier versions of this collection did."""
    if not any(name.startswith(KEY) for name in host.readable_entries(STATE_DIR)):
        return []
    owners = {record.engine for record in load_readable_records(host)}
    return sorted(owner[len(KEY) :] for owner in owners if owner.startswith(KEY))


def migration(host: HostRoot, user: str) -> str:
    """What an operator does about records that root kept for ``user``; empty where there are none.

    Root only reads its own directory, and a process of the user writes: no link of the user's redirects it.
    """
    key = f"{KEY}{user}"
    if user not in recorded_users(host):
        return ""
    paths = [record.path for record in load_readable_records(host) if record.engine == key]
    notes = [f"{STATE_DIR}/{kind}-{key}.json" for kind in ("restart", "changes")]
    files = [*(record_path(key, path) for path in paths), *(note for note in notes if host.is_there(note))]
    names = " ".join(shlex.quote(posixpath.basename(file)) for file in files)
    home = home_of(host, user) or f"~{user}"
    target = shlex.quote(f"{home}/.local/state/gpufleet-nvidia/state")
    return (
        f"An earlier version of this collection, which ran as root, recorded the original of {', '.join(paths)} in"
        f" {STATE_DIR}. A task that runs as {user} cannot read it there. Move the record, as root: cd {STATE_DIR} &&"
        f' tar -cf - {names} | runuser -u {shlex.quote(user)} -- sh -c \'umask 077 && mkdir -p "$1" && tar -C "$1"'
        f" -xf -' sh {target} && rm {names}"
    )
