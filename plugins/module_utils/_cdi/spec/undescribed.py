# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a host has devices to describe, and build the result for a host without a specification."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


FAIL, WARN, IGNORE = "fail", "warn", "ignore"
POLICIES = (FAIL, WARN, IGNORE)
# The lists in the module's result.
_LISTS = (
    "devices",
    "reasons",
    "engines",
    "limits",
    "conflicts",
    "removed_files",
    "restored_files",
    "backup_files",
    "warnings",
)
_BY_UNIT = "A refresh unit writes the CDI specification when the host starts with its driver."
_BY_TASK = "Run this task again on the running host, with its driver."


def without_specification(options: cdi_options.CdiOptions, reason: str | None) -> dict[str, t.Any]:
    """Return the module's result for a host that has no specification of this kind, as documented."""
    return {
        "changed": False,
        "files": [],
        "kind": options.kind,
        "device_count": 0,
        "not_described": reason,
        **dict.fromkeys(("path", "cdi_version", "format", "mode", "backend", "driver_version", "refreshed_by")),
        **{name: [] for name in _LISTS},
    }


class MissingDriver(t.NamedTuple):
    """A host without devices to describe. ``reason`` is a message, ``warn`` is whether the task prints it."""

    reason: str
    warn: bool

    def result(self, options: cdi_options.CdiOptions, units: t.Mapping[str, t.Any] | None) -> dict[str, t.Any]:
        """Return the result of the module. ``units`` is the result for the refresh units, None without the units."""
        service = None if units is None else units["service"]
        message = f"{self.reason} {_BY_TASK if service is None else _BY_UNIT}"
        result = without_specification(options, message)
        return {**result, "refreshed_by": service, "warnings": [message] if self.warn else []}


def missing_driver(mode: str, host: hostfs.HostFS, policy: str) -> MissingDriver | None:
    """Return why ``host`` has no devices that ``mode`` describes; None if it may have some.

    An offline tree has none, whatever the policy. Raises HostError for a running host without a driver if the policy is
    FAIL.
    """
    if mode not in cdi_options.DRIVER_MODES:
        return None
    if not host.live:
        return MissingDriver(f"{host.root} is an offline tree, in which there are no GPUs to describe.", warn=False)
    gpu = procfs.detect_gpu(host)
    # The drivers of WSL and Tegra have other names.
    if gpu.kind in (procfs.DRIVER, procfs.WSL, procfs.TEGRA):
        return None
    reason = f"No GPU can be described on this host. {gpu.message}"
    if policy == FAIL:
        raise errors.HostError(
            f"{reason} The specification and its units were not changed, because {errors.option:when_no_driver} is"
            f" fail. Load the driver, or set {errors.option:when_no_driver}: warn."
        )
    return MissingDriver(reason, warn=policy == WARN)
