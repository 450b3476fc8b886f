"""Inside a host: runs a module and kills it just before its Nth change: until.py N MODULE ARGUMENTS.

A change is an event of CHANGES, or the opening of a file for writing. Creating a link does not count.
Starting a program counts, because the program may change a daemon.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from itertools import count
from typing import Any

CHANGES = {
    "os.chmod",
    "os.chown",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.setxattr",
    "os.truncate",
    "subprocess.Popen",
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changes(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether this audit event precedes a change."""
    if event == "open":
        path, _mode, flags = arguments
        return bool(flags & WRITES) and path != os.devnull
    return event in CHANGES


def main() -> None:
    """Run the module as a program, and count its changes."""
    last, name, file = sys.argv[1:]
    numbers = count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if changes(event, arguments) and next(numbers) == int(last):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = [name, file]
    sys.path[0] = os.getcwd()
    sys.addaudithook(watch)
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main()
