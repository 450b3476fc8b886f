# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: commands run without Ansible, by the program that keeps a CDI specification fresh.

from __future__ import annotations

import os
import signal
import tempfile
import time
import typing as t

# Seconds for one command.
TIMEOUT = 60.0
_PAUSE = 0.005
# As shells have it.
NOT_ENDED, _NOT_RUN = 124, 127
# What commands of ours are told: plain English, and where a service finds programs.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "LANGUAGE": "C",
}


def run(argv: list[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command, also of one that cannot be run or does not end."""
    return run_pinned(argv, ENVIRONMENT)


def run_pinned(argv: list[str], environment: t.Mapping[str, str], limit: float = TIMEOUT) -> tuple[int, str, str]:
    """The same with ``environment``, and nothing else, around it; ``limit`` in seconds."""
    # Files rather than pipes: whatever a command leaves behind, nobody waits for the end of its output.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
        ]
        try:
            # At boot there is no module to run it.
            child = os.posix_spawnp(  # pylint: disable=ansible-bad-function
                argv[0], argv, dict(environment), file_actions=actions, setpgroup=0
            )
        except OSError as error:
            return _NOT_RUN, "", f"{argv[0]} cannot be run: {error.strerror}"
        status = _wait(child, time.monotonic() + limit)
        if status is None:
            return NOT_ENDED, _text(output), f"{argv[0]} did not end within {limit:.0f} seconds"
        return status, _text(output), _text(errors)


def _wait(child: int, deadline: float) -> int | None:
    """The exit status of the process, as shells have it; None for one that had to be killed."""
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE)
    os.killpg(child, signal.SIGKILL)
    # One that hangs in the driver does not even end now; systemd ends the unit then.
    time.sleep(_PAUSE)
    os.waitpid(child, os.WNOHANG)
    return None


def _text(stream: t.BinaryIO) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")
