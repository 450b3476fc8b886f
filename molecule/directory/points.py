"""Inside a host: kills a module as molecule/faults/until.py does, at more points: points.py N MODULE ARGUMENTS.

The additional points are the creation of symbolic links, and the call that exchanges two names.
"""

from __future__ import annotations

import until

if __name__ == "__main__":
    # The call that exchanges two names loads the C library. Imports load libraries too, before the first change.
    until.CHANGES.update({"os.symlink", "ctypes.dlopen"})
    until.main()
