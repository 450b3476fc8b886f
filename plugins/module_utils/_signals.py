# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the signal that makes a daemon read its files again, sent to it and to nobody else.

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# Seconds for an answer on the socket.
_TIMEOUT = 10.0
# struct ucred of unix(7): process, user, group.
_CREDENTIALS = struct.Struct("3i")
_DELETED = " (deleted)"


def sender_of(socket_path: str, request: bytes) -> int | None:
    """The process that answers ``request`` on a Unix socket, None where nobody does.

    Not SO_PEERCRED: that names whoever made the socket, which is systemd where it listens in the daemon's place.
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


def is_program(host: HostRoot, pid: int, program: str) -> bool:
    """Whether ``pid`` is a process of ``host`` that runs ``program``, and means the same process here; never pid 1."""
    if pid <= 1:
        return False
    try:
        found = os.readlink(f"/proc/{pid}/exe")
        same = os.path.samestat(os.stat(f"/proc/{pid}"), os.stat(host.outer(f"/proc/{pid}")))
    except OSError:
        return False
    # An upgrade may have replaced the file that it was started from.
    found = found[: -len(_DELETED)] if found.endswith(_DELETED) else found
    return same and os.path.basename(found) == program


def _handle(pid: int) -> int | None:
    """A handle that stays with the process, whatever becomes of its number; None where there is no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # An old kernel, or a container's filter of system calls.
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def hang_up(host: HostRoot, pid: int, program: str) -> None:
    """Send SIGHUP to process ``pid`` of ``host``, which has to run ``program``.  Raises HostError where it does not."""
    try:
        handle = _handle(pid)
        try:
            if not is_program(host, pid, program):
                raise HostError(f"Process {pid} is not {program} of this host, so it gets no signal.")
            if handle is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(handle, signal.SIGHUP)
            else:
                os.kill(pid, signal.SIGHUP)
        finally:
            if handle is not None:
                os.close(handle)
    except OSError as error:
        raise HostError(
            f"Process {pid} cannot be sent a signal: {error.strerror}. Run the task as root, where the processes of the"
            " host are seen under their own numbers."
        ) from error
