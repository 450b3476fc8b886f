"""Inside a host: restores both engines to the state before the first row of vars/rows.yml, or applies faults to one.

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
        # It restores both engines. Only faults are of one engine.
        fresh(ENGINES["docker"], [])
    for fault in names:
        FAULTS[fault](ENGINES[subject])
