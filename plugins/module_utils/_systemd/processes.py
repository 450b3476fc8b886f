# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the processes of a unit, their arguments and start times, and the active one of several units.

It also sends SIGHUP to a process.
"""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import socket
import struct
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs, json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

# systemd's own hierarchy on cgroup v2, on v1, and on both at once.
_HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
# The slices of the first two levels below the root, which are all that distributions and administrators usually have.
_SLICES = ("/*.slice", "/*.slice/*.slice")
# Index of the start time in /proc/PID/stat after the process name, which may contain any character (proc(5)).
_STARTED = 19
# The maximum number of processes that are searched by name.
_MAX_PROCESSES = 65536


def find_process(host: hostfs.HostFS, unit: systemd_units.Unit | None, name: str) -> int | None:
    """Return the process called ``name`` in the unit's control group; None if none runs.

    The group may contain other processes, such as the shims of containers that outlive their engine.
    """
    found = find_processes(host, unit, (name,), exactly=True)
    return found[0] if found else None


def find_processes(
    host: hostfs.HostFS, unit: systemd_units.Unit | None, names: tuple[str, ...], exactly: bool = False
) -> list[int]:
    """Return the processes in the unit's control group whose names begin with (``exactly``: equal) one of ``names``."""
    if unit is None or not host.live:
        return []
    found = []
    # The group of an alias has the name of the unit.
    groups = dict.fromkeys((unit.name, posixpath.basename(host.resolve(unit.path))))
    folders = [f"{hierarchy}{_slice_path(unit.slice)}/{group}" for hierarchy in _HIERARCHIES for group in groups]
    if not any(map(host.exists, folders)):
        # systemd moves a unit into a changed Slice= when it starts the unit again.
        patterns = [
            f"{hierarchy}{slices}/{group}" for hierarchy in _HIERARCHIES for slices in _SLICES for group in groups
        ]
        folders = [folder for pattern in patterns for folder in host.glob(pattern)]
    for folder in folders:
        for text in host.read_text(f"{folder}/cgroup.procs").split():
            name = host.read_text(f"/proc/{text}/comm").strip() if text.isdecimal() else ""
            if name in names or (not exactly and name.startswith(names)):
                found.append(int(text))
    return list(dict.fromkeys(found))


def all_names(host: hostfs.HostFS) -> dict[int, str]:
    """Return the names of all processes and kernel threads by their numbers. The kernel cuts a name to 15 bytes."""
    numbers = [name for name in host.readable_entries("/proc") if name.isdecimal()][:_MAX_PROCESSES]
    return {int(number): host.read_text(f"/proc/{number}/comm").strip() for number in numbers}


def in_container(host: hostfs.HostFS, pid: int) -> bool | None:
    """Return whether a process is in another PID namespace than that of /proc; None if that is unknown."""
    for line in host.read_text(f"/proc/{pid}/status").splitlines():
        # The numbers of the process in all nested namespaces (proc_pid_status(5)).
        if line.startswith("NSpid:"):
            return len(line.split()) > 2
    return None


def uid_of(host: hostfs.HostFS, pid: int | str) -> int | None:
    """Return the UID of a process. For root in a user namespace, that is the UID of the user who created it."""
    for line in host.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


class Moment(t.NamedTuple):
    """A moment that a change of the clock does not move: the ID of the boot, and clock ticks since the boot."""

    boot: str
    ticks: int

    @classmethod
    def of(cls, fields: t.Any) -> Moment:
        """Return the moment in a record. Raises ValueError if there is none."""
        return cls(json_data.field(fields, "boot", str), json_data.field(fields, "ticks", int))

    def is_after(self, other: Moment | None) -> bool:
        """Return whether this moment is later in the same boot."""
        return other is not None and self.boot == other.boot and self.ticks > other.ticks

    @classmethod
    def in_this_boot(cls, host: hostfs.HostFS, ticks: int | None) -> Moment | None:
        """Return the moment ``ticks`` after the last boot; None if the boot or ``ticks`` is unknown."""
        boot = host.read_text(core_constants.BOOT_ID).strip()
        return cls(boot, ticks) if boot and ticks is not None else None


def now(host: hostfs.HostFS) -> Moment | None:
    """Return the present moment, None if the boot is unknown."""
    return Moment.in_this_boot(host, int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")))


def recorded_moment(host: hostfs.HostFS, path: str) -> Moment | None:
    """Return the moment in the record ``path``, None if there is none."""
    try:
        return Moment.of(json_data.load(host.read(path) or b"{}"))
    except (ValueError, errors.HostError):
        return None


def start_ticks(host: hostfs.HostFS, pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot; None if that is unknown."""
    columns = host.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(columns[_STARTED]) if len(columns) > _STARTED and columns[_STARTED].isdecimal() else None


def started(host: hostfs.HostFS, pid: int | None) -> Moment | None:
    """Return when a process was started, None if that is unknown."""
    return None if pid is None else Moment.in_this_boot(host, start_ticks(host, pid))


def with_flags(host: hostfs.HostFS, unit: systemd_units.Unit | None, program: str) -> systemd_units.Unit | None:
    """Return the unit with the command line of its running ``program`` if it starts that through a wrapper."""
    pid = find_process(host, unit, program) if unit is not None and unit.wrapper else None
    arguments = () if pid is None else hostfs.command_line(host, pid)
    return unit._replace(arguments=arguments, wrapper="") if unit is not None and arguments else unit


def changed_since_start(host: hostfs.HostFS, pid: int, paths: t.Iterable[str]) -> bool:
    """Return whether any of ``paths`` has a later time than the start of the process.

    The clock may have been changed since, so the answer proves nothing.
    """
    ticks = start_ticks(host, pid)
    if ticks is None:
        return False
    start = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    return any(host.mtime(path) > start for path in paths)


def _slice_path(name: str) -> str:
    """Return the path of a slice: ``a-b.slice`` lies in ``a.slice``, and ``-.slice`` is the root (systemd.slice(5))."""
    if name == "-.slice":
        return ""
    parts = name[: -len(".slice")].split("-")
    return "".join("/" + "-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))


def active_unit(host: hostfs.HostFS, services: t.Sequence[str], program: str, containerd: str) -> str:
    """Return the running unit of ``services``; else the enabled one, the existing one, or the first.

    The first unit is a server's. RKE2's tarball installs the units of server and agent on every node.
    """
    # Most hosts run it, and need no search of the links that enable a unit.
    checks: tuple[t.Callable[[str], bool], ...] = (
        lambda name: _runs(host, name, program, containerd),
        lambda name: systemd_units.is_enabled(host, name),
        lambda name: systemd_units.unit_file(host, name) is not None,
    )
    return next((name for check in checks for name in services if check(name)), services[0])


def _runs(host: hostfs.HostFS, name: str, program: str, containerd: str) -> bool:
    """Return whether the distribution (k3s-server, rke2) or its containerd runs; the shims outlive both."""
    unit = systemd_units.load_unit(host, name, program)
    return bool(find_processes(host, unit, (program,))) or find_process(host, unit, containerd) is not None


# Seconds to wait for a reply on the socket.
_TIMEOUT = 10.0
# struct ucred of unix(7): process, user, group.
_CREDENTIALS = struct.Struct("3i")
_DELETED = " (deleted)"


def peer_pid(socket_path: str, request: bytes) -> int | None:
    """Return the process that answers ``request`` on a Unix socket; None if none answers.

    It does not use SO_PEERCRED, which returns the process that created the socket. With socket activation, that is
    systemd.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            connection.connect(socket_path)
            connection.sendall(request)
            _data, ancillary, _flags, _address = connection.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
    except OSError:
        return None
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(content)[0]) or None
    return None


def runs_program(host: hostfs.HostFS, pid: int, program: str) -> bool:
    """Return whether ``pid`` of ``host`` runs ``program`` and is the same process for this process; false for PID 1."""
    if pid <= 1:
        return False
    try:
        found = os.readlink(f"/proc/{pid}/exe")
        same = os.path.samestat(os.stat(f"/proc/{pid}"), os.stat(host.real_path(f"/proc/{pid}")))
    except OSError:
        return False
    # An upgrade may have replaced the program file after the start.
    found = found[: -len(_DELETED)] if found.endswith(_DELETED) else found
    return same and os.path.basename(found) == program


def _handle(pid: int) -> int | None:
    """Return a handle that stays with the process even if its number is used again; None if it is not supported."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # The kernel is too old, or a container's seccomp filter blocks the call.
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def send_sighup(host: hostfs.HostFS, pid: int, program: str) -> None:
    """Send SIGHUP to process ``pid`` of ``host``.

    Raises HostError if it does not run ``program``, or if the signal cannot be sent.
    """
    try:
        handle = _handle(pid)
        try:
            if not runs_program(host, pid, program):
                raise errors.HostError(
                    f"Process {pid} is not {program} of this host. No signal was sent. Run the task again."
                )
            if handle is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(handle, signal.SIGHUP)
            else:
                os.kill(pid, signal.SIGHUP)
        finally:
            if handle is not None:
                os.close(handle)
    except OSError as error:
        raise errors.HostError(
            f"SIGHUP cannot be sent to process {pid}: {error.strerror}. Run the task as root, in the PID namespace of"
            " the host."
        ) from error
