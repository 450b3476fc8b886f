"""Inside a host: runs a command on a terminal, and types the password on request: terminal.py PASSWORD COMMAND...

Prints the output of the command, which is not on the terminal, and ends with its status.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading


def main() -> None:
    """Run the command."""
    password, command = sys.argv[1], sys.argv[2:]
    keyboard, terminal = pty.openpty()

    # The terminal becomes that of the session, which getpass and sudo open as /dev/tty.
    session = ["setsid", "--ctty", "--wait", *command]
    process = subprocess.Popen(session, stdin=terminal, stderr=subprocess.STDOUT)
    os.close(terminal)

    def type_it() -> None:
        text = b""
        while True:
            try:
                part = os.read(keyboard, 1024)
            except OSError:
                # The command has ended.
                return
            text += part
            if text.rstrip().lower().endswith(b"password:"):
                os.write(keyboard, password.encode() + b"\n")
                text = b""

    threading.Thread(target=type_it, daemon=True).start()
    sys.exit(process.wait())


if __name__ == "__main__":
    main()
