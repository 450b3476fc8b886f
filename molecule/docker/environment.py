# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the systemd of this host with the table FILES of tests/unit/helpers/environment_files.py, which is on stdin.

For each text of the table, a transient unit reads it with EnvironmentFile= and prints its environment. Prints the
differences.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import typing as t

NAMES = ("A", "B", "C")


def set_by_systemd(text: str) -> dict[str, str]:
    """Return the variables of the table that a unit with this environment file gets."""
    with tempfile.NamedTemporaryFile("w", newline="") as file:
        file.write(text)
        file.flush()
        argv = ["systemd-run", "--quiet", "--wait", "--pipe", f"--property=EnvironmentFile={file.name}", "env", "-0"]
        output = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()
    pairs = (entry.partition("=") for entry in output.split("\0"))
    return {name: value for name, _sign, value in pairs if name in NAMES}


def main() -> None:
    table: dict[str, t.Any] = {}
    exec(sys.stdin.read(), table)  # noqa: S102 - the table of the unit tests of this clone
    version = subprocess.run(["systemctl", "--version"], check=True, stdout=subprocess.PIPE).stdout.decode()
    match = re.match(r"systemd ([0-9]+)", version)
    newer = match is not None and int(match.group(1)) >= table["COMMENTS_END_SINCE"]
    for text, expected in table["FILES"]:
        variables = expected[newer] if isinstance(expected, tuple) else expected
        found = set_by_systemd(text)
        if found != variables:
            print(f"{text!r}: systemd sets {found}, the table says {variables}")


if __name__ == "__main__":
    main()
