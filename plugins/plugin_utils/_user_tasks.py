# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as a named user, within limits of time and memory, so that the user cannot stop the play.

Private to this collection. The user controls the process of the module: it may never end, write without end, exit with
the status of a broken connection, or leave processes that keep the connection open.
"""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import sys
import time
import typing as t
import uuid

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _user_answers

if t.TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

# Seconds for one module, from the transfer to its result, besides the time that its own options allow.
SECONDS = 120
# Seconds for a command that ends processes or tests the connection.
_SHORT = 20
# Seconds between two checks of the limits.
_TICK = 0.25
# Bytes by which the memory of the controller's process may grow while it reads the output.
_MEMORY = 256 << 20
# Linux counts in KiB, macOS in bytes.
_UNIT = 1 if sys.platform == "darwin" else 1024
# The variable in the environment by which the processes of a task are found on the host.
MARK = "GPUFLEET_TASK"
# The user's processes are ended by the same user, who can signal no process of others. The shell reads no file of the
# user. It joins the name and the value of the variable, since sudo puts the text of this command into the environment
# of the shell (SUDO_COMMAND).
_END = """\
_name={name}
_find() {{ grep -lsF "$_name={mark}" /proc/[0-9]*/environ | tr -cd '0-9\\n'; }}
for _n in 1 2 3; do
_ids=$(_find)
[ -n "$_ids" ] || break
kill -9 $_ids; _ended=1; sleep 1
done 2>/dev/null
echo "{mark} ended=$_ended left="$(_find)
"""


class _LimitError(BaseException):
    """A limit was exceeded. Code that catches Exception does not catch this error."""


def seconds_of(module: str, args: t.Mapping[str, t.Any]) -> int:
    """Return the seconds that a module may take.

    Args:
        module: The name of the module, without the collection.
        args: Its options.
    """
    timeout, retries = (_number(args.get(name), default) for name, default in (("timeout", 60), ("retries", 1)))
    if module == "nvidia_runtime_restart":
        # A rollback waits again.
        return SECONDS + 2 * timeout * (retries + 1)
    if module == "nvidia_runtime_verify":
        # A user's engine pulls no image.
        return SECONDS + timeout
    return SECONDS


def _number(value: object, default: int) -> int:
    try:
        return max(0, int(str(value)))
    except ValueError:
        return default


def not_started(user: str) -> str:
    """Return what to check if Ansible cannot start a module as a user."""
    return (
        f"The module could not run as the user {user}. Check that this user exists on the host, and that Ansible can"
        " become this user and pass it files (README of the role nvidia_runtime, Rootless Docker). "
    )


def run(action: ActionBase, user: str, seconds: int, execute: t.Callable[[], dict[str, t.Any]]) -> dict[str, t.Any]:
    """Run a module as a user.

    Args:
        action: The action of the task.
        user: The user as whom the task runs.
        seconds: How long it may take.
        execute: Runs the module and returns its result.

    Returns:
        The result, or a failure with its reason. Raises AnsibleConnectionFailure only if the host cannot be reached.
    """
    task: t.Any = action._task  # noqa: SLF001 - the parts of an action have no public names
    environment, mark = task.environment, f"gpufleet-{uuid.uuid4()}"
    task.environment = [*(environment or ()), {MARK: mark}]
    try:
        with limits(seconds):
            return execute()
    except _LimitError as error:
        return _user_answers.failure(f"The task that ran as {user} {error}. {_end(action, user, mark)}")
    except AnsibleConnectionFailure as error:
        # A module that exits with the status 255 looks like a broken connection to ssh.
        if not _is_reachable(action):
            raise
        return _user_answers.failure(f"The module ended without a result: {error}")
    except AnsibleError as error:
        return _user_answers.failure(f"{not_started(user)}{error}")
    except Exception as error:  # noqa: BLE001 - the user chooses the output that Ansible reads
        return _user_answers.failure(f"The result of the module cannot be read: {error}")
    finally:
        task.environment = environment


@contextlib.contextmanager
def limits(seconds: float) -> t.Iterator[None]:
    """Raise an error in the block if it takes too long, or reads too much.

    Ansible may have an alarm of its own for the task. It is set again afterwards.
    """
    start, memory = time.monotonic(), _peak()

    def check(_signal: int, _frame: object) -> None:
        if time.monotonic() - start >= seconds:
            raise _LimitError(f"did not end within {seconds:g} seconds")
        if _peak() - memory > _MEMORY:
            raise _LimitError(f"wrote more than {_MEMORY >> 20} MiB")

    previous = signal.signal(signal.SIGALRM, check)
    left, interval = signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
    if left:
        seconds = min(seconds, left)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if left:
            # Enough for the commands of this file.
            left = max(left - (time.monotonic() - start), 3 * _SHORT)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _end(action: ActionBase, user: str, mark: str) -> str:
    """End the processes of a task on the host. Return what is known about them."""
    answer = _command(action, _END.format(name=MARK, mark=mark))
    # A connection with a terminal ends lines with \r\n.
    found = re.search(rf"{mark} ended=(1?) left=([0-9 ]*)\r?$", answer or "", re.MULTILINE)
    if found is None:
        return f"Whether its processes still run is not known. List them with: ps -u {user}"
    if found[2].strip():
        ids = " ".join(found[2].split()[:10])
        return f"Its processes {ids} still run on the host. End them with: kill -9 {ids}"
    if found[1]:
        return f"Its processes that were found on the host were ended. List others with: ps -u {user}"
    return f"None of its processes was found on the host. List those of this user with: ps -u {user}"


def _is_reachable(action: ActionBase) -> bool:
    return _command(action, "echo", sudoable=False) is not None


def _command(action: ActionBase, command: str, *, sudoable: bool = True) -> str | None:
    """Return the output of a short command, None if it could not be run."""
    execute: t.Any = action._low_level_execute_command  # noqa: SLF001
    try:
        with limits(_SHORT):
            return str(execute(command, sudoable=sudoable).get("stdout", ""))
    except (_LimitError, Exception):  # noqa: BLE001 - the user may prevent it in any way
        return None
