# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find other tools that manage the same files."""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import (
    host_configs,
    ownership_containerd,
    ownership_engines,
    ownership_host,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# A new one is a function in the room of its subject, and its name there.
LOOKS: tuple[t.Callable[[host_configs.HostConfigs], t.Iterator[audit_finding.Finding]], ...] = (
    *ownership_containerd.LOOKS,
    *ownership_engines.LOOKS,
    *ownership_host.LOOKS,
)


def owners_of(host: hostfs.HostFS, described: audit_finding.Described | None = None) -> list[audit_finding.Finding]:
    """What there is of other owners; ``described`` is what else is known of the host, such as versions of engines.

    Raises MissingPackageError where nothing on this host can read TOML; nothing else is an error.
    """
    look = host_configs.HostConfigs(host, described)
    return [finding for one in LOOKS for finding in host_configs.attempt(functools.partial(_listed, one, look)) or ()]


def _listed(
    one: t.Callable[[host_configs.HostConfigs], t.Iterator[audit_finding.Finding]], look: host_configs.HostConfigs
) -> list[audit_finding.Finding]:
    return list(one(look))
