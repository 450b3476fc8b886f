"""Inside a host: restores both engines to the state before the first row, or applies faults to one of them.

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
