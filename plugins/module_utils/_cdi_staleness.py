# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: why a CDI specification that stands on a host no longer fits it, judged without generating
# a new one: by its paths and device numbers, and by the driver's version.
#
# Documents are those of a judgement (_cdi_rules) that found no errors.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_host_check import (
    check_host,
    driver_of,
    missing_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_names import split_kind
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import Problem, few

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

_VENDOR = "nvidia.com"
PATH_MISSING = "path-missing"


def why_stale(
    document: t.Mapping[str, t.Any], host: HostRoot, driver: str | None = None
) -> tuple[list[Problem], list[str]]:
    """Why ``document`` does not fit ``host``, nothing if it does; and its paths that are not there.

    ``driver`` is the version of the loaded driver, None where that is not known.
    """
    missing = missing_paths(document, host)
    message = f"Not there any more: {few([repr(path)[1:-1] for path in missing])}."
    reasons = [Problem(PATH_MISSING, message)] if missing else []
    reasons += [Problem("path-differs", error) for error in check_host(document, host, missing=missing).errors]
    vendor = split_kind(document.get("kind", ""))[0]
    if vendor == _VENDOR or vendor.endswith(f".{_VENDOR}"):
        there = driver_of(document)
        if there and driver and there != driver:
            reasons.append(Problem("driver-differs", f"It is for the driver {there}; now it is {driver}."))
    return reasons, missing
