"""Inside a host: as molecule/faults/until.py, at more points: points.py N MODULE ARGUMENTS.

These are the making of links, and the call that exchanges two names.
"""

from __future__ import annotations

import until

if __name__ == "__main__":
    # The C library is loaded for that call alone.
    until.CHANGES.update({"os.symlink", "ctypes.dlopen"})
    until.main()
