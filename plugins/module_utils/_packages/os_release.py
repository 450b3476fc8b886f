# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the distribution of a host from os-release."""

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# os-release(5): the first path is usually a link to the second.
_OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")


def distribution_of(host: hostfs.HostFS) -> list[str]:
    """Return ID and the parts of ID_LIKE of os-release, the nearest first; empty if there is no os-release."""
    for path in _OS_RELEASE:
        text = host.read_text(path)
        if text:
            fields = dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line)
            values = [fields.get(key, "").strip("\"'") for key in ("ID", "ID_LIKE")]
            return " ".join(values).lower().split()
    return []
