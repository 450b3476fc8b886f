"""Inside a host: brings both engines back to their starting point, or does to one of them what a row would.

tamper.py fresh
tamper.py ENGINE FAULT...
"""

from __future__ import annotations

import sys

from engines import ENGINES
from faults import FAULTS
from fresh import fresh

if __name__ == "__main__":
    subject, *names = sys.argv[1:]
    if subject == "fresh":
        fresh(ENGINES["docker"], [])
    for fault in names:
        FAULTS[fault](ENGINES[subject])
