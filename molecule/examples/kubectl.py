"""A stand-in for kubectl on the controller: it records its calls, and remembers annotations of nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ANNOTATION = "gpufleet.nvidia/cordoned"


def main() -> None:
    """Record the call, and answer it from the calls before."""
    words = sys.argv[1:]
    file = Path(os.environ["KUBECTL_CALLS"])
    before = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    with file.open("a") as log:
        log.write(" ".join(words) + "\n")
    if words[0] == "get" and "annotations" in words[-1]:
        node = words[2]
        changes = [call for call in before if call[0] == "annotate" and node in call]
        if changes and changes[-1][-1] == f"{ANNOTATION}=true":
            print("true", end="")


main()
