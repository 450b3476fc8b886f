# Copyright (c) gpufleet.nvidia maintainers
# SPDX-License-Identifier: GPL-3.0-or-later
"""limited.py SECONDS COMMAND...: run a command, and end it with all its children when it takes longer.

It then prints the processes of the machine, those inside the test hosts too, and exits with 124 as timeout(1) does: a
scenario that never ends is a failure with a reason, not a run of CI without output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

_SECONDS_TO_END = 30


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process group, and SIGKILL if it does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)


def main() -> int:
    """Return the exit status of the command, or 124."""
    seconds, *command = sys.argv[1:]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(float(seconds))
        except subprocess.TimeoutExpired:
            print(f"{' '.join(command)} did not end within {seconds} s. The processes of this machine:", flush=True)
            subprocess.run(["ps", "axfww", "-o", "pid,etimes,wchan:24,args"], check=False)
            return 124
        finally:
            _end(process)


if __name__ == "__main__":
    sys.exit(main())
