"""Inside a host: runs a module until it is about to do its Nth change, and kills it there: until.py N MODULE ARGUMENTS.

A change is one of the file system, and each start of a program, which may be one of a daemon.
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
    """Whether the interpreter is about to do one."""
    if event == "open":
        path, _mode, flags = arguments
        return bool(flags & WRITES) and path != os.devnull
    return event in CHANGES


def main() -> None:
    """Count, and run the module as its own program."""
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
