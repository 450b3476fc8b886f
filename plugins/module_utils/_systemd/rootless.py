# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the systemd units and processes of rootless Docker.

A task that runs as the user reads that user's units. Root reads only the process table.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts as core_accounts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


UNIT = "docker.service"
# The script that starts dockerd in namespaces of the user and passes all its arguments on (moby,
# contrib/dockerd-rootless.sh, from 20.10 on).
SCRIPT = "dockerd-rootless.sh"
_PROGRAMS = ("rootlesskit", "dockerd")
_PID = re.compile(r"[0-9]{1,10}\Z")
# A user's systemd puts services into app.slice. Before systemd 247 it put them directly into the control group of
# user@UID.service.
_CONTROL_GROUPS = ("app.slice/", "")


# -- for a task of the user ------------------------------------------------------------------------------------------


def own_users(host: hostfs.HostFS) -> list[str]:
    """Return the name of the user who runs this process, if that user has a rootless Docker or records of one.

    The result is a list with at most one name; it is empty for root.
    """
    account = core_accounts.own_account(host)
    if account is None:
        return []
    paths = [f"{account.home}/.config/systemd/user/{UNIT}"]
    paths += [f"{account.runtime_dir}/{name}" for name in ("docker.pid", "docker.sock")]
    recorded = (
        name.startswith(f"{core_accounts.ROOTLESS_PREFIX}{account.name}-")
        for name in host.readable_entries(f"{account.data_dir}/state")
    )
    return [account.name] if any(host.lexists(path) for path in paths) or any(recorded) else []


def user_unit(host: hostfs.HostFS, account: core_accounts.Account, name: str) -> systemd_units.Unit | None:
    """Return the user's unit ``name`` with the arguments that dockerd gets (systemd.unit(5), user units)."""
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
    return systemd_units.load_unit(host, name, SCRIPT, folders=folders, specifiers=specifiers)


def user_process(
    host: hostfs.HostFS,
    account: core_accounts.Account,
    unit: systemd_units.Unit | None,
    name: str,
    pid_files: t.Iterable[str],
) -> int | None:
    """Return the process called ``name`` in the control group of the user's unit, else the one in a pid file.

    The process has to run as the user, because an old pid file may contain the number of another user's process.
    """
    if not host.live:
        return None
    candidates: list[int | None] = []
    if unit is not None:
        for group in _CONTROL_GROUPS:
            path = f"user@{account.uid}.service/{group}{unit.name}"
            candidates.append(
                processes.find_process(host, unit._replace(name=path, slice=f"user-{account.uid}.slice"), name)
            )
    for path in pid_files:
        text = host.read_text(path).strip()
        if _PID.match(text) and host.read_text(f"/proc/{text}/comm").strip() == name:
            candidates.append(int(text))
    return next((pid for pid in candidates if pid is not None and processes.uid_of(host, pid) == account.uid), None)


# -- for root --------------------------------------------------------------------------------------------------------


def running_engines(host: hostfs.HostFS) -> list[str]:
    """Return the users whose rootless Docker runs, from the process table.

    It reads only comm and status. The kernel takes other files, such as cmdline, from the memory of the process, so
    reading them may block without limit.
    """
    pids = [pid for pid in host.readable_entries("/proc") if _PID.match(pid)] if host.live else []
    programs = [pid for pid in pids if host.read_text(f"/proc/{pid}/comm").strip() in _PROGRAMS]
    uids = {processes.uid_of(host, pid) for pid in programs} - {None, 0}
    accounts = [core_accounts.account_of(host, uid) for uid in sorted(filter(None, uids))]
    return [account.name for account in accounts if account is not None]
