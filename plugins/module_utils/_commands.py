# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: commands of the host.  Not AnsibleModule.run_command, which ends the task where a program
# is not there, and waits for ever: whoever runs a command here may have to clean up after it.

from __future__ import annotations

import os
import subprocess

# Seconds.  The commands that are run here answer within one.
TIMEOUT = 60.0
# What a shell gives for them.
_NOT_RUN, _NOT_ENDED = 127, 124


def run(argv: list[str]) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command, which speaks English so that it can be understood."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}
    try:
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return _NOT_ENDED, "", f"{argv[0]} did not end within {TIMEOUT:.0f} seconds"
    except OSError as error:
        return _NOT_RUN, "", f"{argv[0]} cannot be run: {error.strerror}"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
