# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the names of engines' flavours.  They stand apart from the engines' table, which brings
# all engines along: every module has the room of these options, and few have anything to do with engines.

from __future__ import annotations

# Whichever the host has.
AUTO = "auto"
# The engine as the operating system's packages bring it.
SYSTEM = "system"
FLAVOR_NAMES = (SYSTEM, "snap", "rootless", "k3s", "rke2", "k0s", "microk8s")
# What the records of a unit beside the usual one are called by, in front of its name.
UNIT_KEY = "unit-"
