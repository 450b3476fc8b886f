# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what keeps the CDI specification of a host fresh, in one answer.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    OWN_PATH,
    OWN_SERVICE,
    SERVICE,
    is_enabled,
    own_refresh,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, Problem
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import Systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import is_masked, unit_file

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

TOOLKIT, OURS = "toolkit", "gpufleet"


def describe_refresh(host: HostRoot, run: Runner) -> tuple[dict[str, t.Any] | None, list[Problem]]:
    """The service that makes the specification anew, None where there is none; and what is wrong with it.

    An enabled one goes before others, and the toolkit's before ours.
    """
    problems: list[Problem] = []
    found = [one for one in (_toolkit(host), _ours(host)) if one is not None]
    for one in found:
        one["failed"] = _failed(host, run, one["service"], problems)
        if one["failed"]:
            message = (
                f"{one['service']} has failed, so that the specification may be stale. Look at journalctl --unit"
                f" {one['service']}."
            )
            problems.append(Problem("cdi-refresh-failed", message))
    enabled = [one for one in found if one["enabled"]]
    if len({one["owner"] for one in enabled}) > 1:
        services = " and ".join(one["service"] for one in enabled)
        message = f"{services} both make specifications. Leave this to one of them."
        problems.append(Problem("cdi-refresh-twice", message))
    return next(iter([*enabled, *found]), None), problems


def _toolkit(host: HostRoot) -> dict[str, t.Any] | None:
    units = toolkit_refresh(host)
    if units is None:
        return None
    return {"owner": TOOLKIT, "service": SERVICE, "enabled": units.enabled, "output": units.output or None}


def _ours(host: HostRoot) -> dict[str, t.Any] | None:
    path = unit_file(host, OWN_SERVICE)
    if path is None:
        return None
    own, toolkit = own_refresh(host), toolkit_refresh(host)
    enabled = not is_masked(host, path) and (is_enabled(host, OWN_SERVICE) or is_enabled(host, OWN_PATH))
    # Without an output of its own the unit runs the command of the toolkit's unit, earlier than that one would.
    owner = TOOLKIT if own is None and toolkit is not None else OURS
    output = own.output if own is not None else toolkit.output if toolkit is not None else ""
    return {"owner": owner, "service": OWN_SERVICE, "enabled": enabled, "output": output or None}


def _failed(host: HostRoot, run: Runner, service: str, problems: list[Problem]) -> bool | None:
    if not Systemctl.booted(host):
        return None
    try:
        return Systemctl(host, run, service).status().active == "failed"
    except GpufleetError as error:
        problems.append(Problem.of(error))
        return None
