# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find other tools that manage the same files. The rules are in ``ownership_*``."""

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


# A new rule is a function in the ownership_* file of its subject, listed in LOOKS there.
LOOKS: tuple[t.Callable[[host_configs.HostConfigs], t.Iterator[audit_finding.Finding]], ...] = (
    *ownership_containerd.LOOKS,
    *ownership_engines.LOOKS,
    *ownership_host.LOOKS,
)


def owners_of(host: hostfs.HostFS, described: audit_finding.Described | None = None) -> list[audit_finding.Finding]:
    """Return the findings about other tools. Only a missing TOML parser is an error.

    Args:
        host: The host.
        described: The report of the host, such as the versions of engines, as far as it is known.

    Raises:
        MissingPackageError: The host has no TOML parser.
    """
    look = host_configs.HostConfigs(host, described)
    return [finding for one in LOOKS for finding in host_configs.attempt(functools.partial(_listed, one, look)) or ()]


def _listed(
    one: t.Callable[[host_configs.HostConfigs], t.Iterator[audit_finding.Finding]], look: host_configs.HostConfigs
) -> list[audit_finding.Finding]:
    return list(one(look))
