# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""limited.py SECONDS COMMAND...: run a command, and end it with all its children when it takes longer.

It then prints the processes of the machine, those inside the test hosts too, and runs the command once more, because
Ansible's workers can hang in rare cases (ansible/ansible#59642). After the second time it exits with 124, as timeout(1)
does. Without a limit, a scenario that never ends would use up the time of CI and leave no output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

_SECONDS_TO_END = 30
_TIMED_OUT = 124


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process group, and SIGKILL if it does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)


def _run(seconds: str, command: list[str]) -> int:
    """Return the exit status of the command, or 124."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(float(seconds))
        except subprocess.TimeoutExpired:
            print(f"{' '.join(command)} did not end within {seconds} s. The processes of this machine:", flush=True)
            subprocess.run(["ps", "axfww", "-o", "pid,etimes,wchan:24,args"], check=False)
            return _TIMED_OUT
        finally:
            _end(process)


def main() -> int:
    """Return the exit status of the command, or 124."""
    seconds, *command = sys.argv[1:]
    status = _run(seconds, command)
    return _run(seconds, command) if status == _TIMED_OUT else status


if __name__ == "__main__":
    sys.exit(main())
