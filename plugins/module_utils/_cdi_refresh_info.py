# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what keeps the CDI specification of a host fresh, in one answer.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    SERVICE,
    is_enabled,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._json_data import load
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemctl import Systemctl
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import is_masked, unit_file

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

TOOLKIT, OURS = "toolkit", "gpufleet"
# The same as in _cdi_refresh_texts, _cdi_refresh_options and _cdi_placement, which every task would have to take along.
OWN_SERVICE, OWN_PATH = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
OPTIONS_FILE = "/etc/gpufleet-nvidia/cdi.json"
USUAL_OUTPUT = "/etc/cdi/{}.{}"


def describe_refresh(host: HostRoot, run: Runner) -> tuple[dict[str, t.Any] | None, list[str]]:
    """The service that makes the specification anew, None where there is none; and what is wrong with it.

    An enabled one goes before others, and the toolkit's before ours.
    """
    problems: list[str] = []
    found = [one for one in (_toolkit(host), _ours(host, problems)) if one is not None]
    for one in found:
        one["failed"] = _failed(host, run, one["service"], problems)
        if one["failed"]:
            problems.append(
                f"{one['service']} has failed, so that the specification may be stale. Look at journalctl --unit"
                f" {one['service']}."
            )
    enabled = [one for one in found if one["enabled"]]
    if len({one["owner"] for one in enabled}) > 1:
        problems.append(
            f"{' and '.join(one['service'] for one in enabled)} both make specifications. Leave this to one of them."
        )
    return next(iter([*enabled, *found]), None), problems


def _toolkit(host: HostRoot) -> dict[str, t.Any] | None:
    units = toolkit_refresh(host)
    if units is None:
        return None
    return {"owner": TOOLKIT, "service": SERVICE, "enabled": units.enabled, "output": units.output or None}


def _ours(host: HostRoot, problems: list[str]) -> dict[str, t.Any] | None:
    path = unit_file(host, OWN_SERVICE)
    if path is None:
        return None
    enabled = not is_masked(host, path) and (is_enabled(host, OWN_SERVICE) or is_enabled(host, OWN_PATH))
    toolkit = toolkit_refresh(host)
    if toolkit is not None and not host.exists(OPTIONS_FILE):
        # It does the toolkit's work, earlier than the toolkit's own unit would.
        return {"owner": TOOLKIT, "service": OWN_SERVICE, "enabled": enabled, "output": toolkit.output or None}
    return {"owner": OURS, "service": OWN_SERVICE, "enabled": enabled, "output": _our_output(host, problems)}


def _our_output(host: HostRoot, problems: list[str]) -> str | None:
    try:
        options = load(host.read(OPTIONS_FILE) or b"")["options"]
        request = options.get("request", {})
        kind = f"{request.get('vendor', 'nvidia.com')}-{request.get('class_', 'gpu')}"
        name = "nvidia" if kind == "nvidia.com-gpu" else kind
        return str(options.get("path") or USUAL_OUTPUT.format(name, options.get("format") or "yaml"))
    except GpufleetError as error:
        problems.append(str(error))
    except (ValueError, LookupError, TypeError, AttributeError):
        problems.append(f"{OPTIONS_FILE} cannot be read. Run nvidia_cdi_refresh again, which writes this file.")
    return None


def _failed(host: HostRoot, run: Runner, service: str, problems: list[str]) -> bool | None:
    if not Systemctl.booted(host):
        return None
    try:
        return Systemctl(host, run, service).status().active == "failed"
    except GpufleetError as error:
        problems.append(str(error))
        return None
