# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: with what a unit of K3s or RKE2 starts.

from __future__ import annotations

import posixpath
import shlex
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# The units name them as /etc/default/%N and /etc/sysconfig/%N (install.sh of K3s v1.31, RKE2's tarball).
_ENVIRONMENT_FOLDERS = ("/etc/default", "/etc/sysconfig")


def load(host: HostRoot, name: str, program: str) -> Unit | None:
    """The unit with the variables of all its files, also of those that it names by a specifier."""
    unit = load_unit(host, name, program)
    if unit is None:
        return None
    environment: dict[str, str] = {}
    for folder in _ENVIRONMENT_FOLDERS:
        environment.update(_variables(host.read_text(f"{folder}/{posixpath.splitext(name)[0]}")))
    environment.update(unit.environment)
    return unit._replace(environment=environment)


def _variables(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, sign, value = line.strip().partition("=")
        if not sign or not name.isidentifier():
            continue
        try:
            found[name] = " ".join(shlex.split(value))
        except ValueError:
            found[name] = value
    return found
