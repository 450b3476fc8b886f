"""Inside a host: prints its files and packages as JSON.

The entry of a file in one of the directories READ has what a removal must restore, a tab, and the inode and time, which
change whenever the file is written. The entry of any other file has its mode, owner, size and time.
"""

from __future__ import annotations

import json
import subprocess
import sys

sys.path[:0] = ["/molecule/shared", "/molecule/toolkit"]
import observe  # noqa: E402
from watched import identify, watched  # noqa: E402

PACKAGES = (("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Abbrev}\\n"), ("rpm", "-qa"))


def describe(path: str) -> str:
    """Return the description of a file."""
    return observe.tell(path, identify)


def main() -> None:
    """Print the manifest."""
    found = watched(observe.TREES, observe.PRIVATE, describe)
    for command in PACKAGES:
        try:
            lines = subprocess.check_output(command, text=True).splitlines()
        except FileNotFoundError:
            continue
        found.update({f"{command[0]} {line}": "installed" for line in lines})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
