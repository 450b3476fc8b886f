# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the specifiers in a unit's files (systemd.unit(5), "Specifiers").

from __future__ import annotations

import posixpath
import re
import types
import typing as t

# What they are to the system's own manager.  Those that tell of the machine or the boot (%H, %m, %b ...) are no part
# of a path that matters here, and stay as they are.
SYSTEM: t.Mapping[str, str] = types.MappingProxyType(
    {
        "C": "/var/cache",
        "E": "/etc",
        "h": "/root",
        "L": "/var/log",
        "S": "/var/lib",
        "t": "/run",
        "T": "/tmp",
        "u": "root",
        "U": "0",
        "V": "/var/tmp",
    }
)

_SPECIFIER = re.compile(r"%(.)", re.DOTALL)


class Specifiers:
    """What stands for ``%h`` and the like in the files of the unit ``name``; ``manager`` are those not of the name."""

    def __init__(self, name: str, manager: t.Mapping[str, str] = SYSTEM) -> None:
        whole = posixpath.splitext(name)[0]
        prefix, _at, instance = whole.partition("@")
        self._values = {**manager, "%": "%", "n": name, "N": whole, "p": prefix, "i": instance}

    def expand(self, text: str) -> str:
        """The text with each specifier replaced; ``%%`` is one sign, and what is unknown stays."""
        return _SPECIFIER.sub(lambda match: self._values.get(match.group(1), match.group()), text)
