# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: names of files that keep a CDI specification fresh, where somebody has put a link to
# elsewhere: systemctl masks a unit by one to /dev/null, and whoever writes through that replaces the device.

from __future__ import annotations

import os
import posixpath
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_NULL = "/dev/null"
_UNITS = (".service", ".path")


def own_place(host: HostRoot, path: str) -> str:
    """Where a file that is wholly ours lies, links in its folder resolved.

    Raises HostError where the file itself is a link: what it leads to is not ours.
    """
    real = host.resolve(path, last=False)
    if not os.path.islink(host.outer(real, last=False)):
        return real
    target = host.resolve(real)
    name = posixpath.basename(path)
    if target == _NULL and name.endswith(_UNITS):
        raise HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, then"
            " run this again."
        )
    if target == _NULL:
        raise HostError(f"{path} is masked: it is a link to {_NULL}. Remove the link, then run this again.")
    raise HostError(
        f"{path} is a link, to {target}; this collection writes a file of its own there, and nothing elsewhere. Remove"
        " the link, then run this again."
    )


def require_file(host: HostRoot, path: str) -> None:
    """Raises HostError where ``path`` is a link to what is no regular file, so that nothing can be written there."""
    if not os.path.islink(host.outer(path, last=False)):
        return
    target = host.resolve(path)
    try:
        regular = stat.S_ISREG(os.stat(host.outer(target)).st_mode)
    except OSError:
        regular = False
    if not regular:
        raise HostError(
            f"{path} is a link to {target}, which is no regular file. Remove the link, or use owner: collection, which"
            " does without it."
        )
