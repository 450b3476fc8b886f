# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare a specification with a newer one, and with the host that it was made for.

Two documents with the same effect on containers are equal here, whatever their layout.
"""

from __future__ import annotations

import json
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    # A document or a part of it, as schema.read() returns it.
    Data = t.Mapping[str, t.Any]


# The problem code for paths of a specification that do not exist.
PATH_MISSING = "path-missing"
_VENDOR = "nvidia.com"
# The libraries whose names contain the driver's version. The second is used if the first is not mounted.
_VERSIONED_LIBRARIES = tuple(re.compile(rf"{name}\.so\.([0-9]+(?:\.[0-9]+)+)") for name in ("libcuda", "libnvidia-ml"))


def same_meaning(one: Data, other: Data) -> bool:
    """Return whether two documents have the same effect on containers."""
    return bool(_meaning(one) == _meaning(other))


def replacement_reasons(old: Data, new: Data, host: hostfs.HostFS | None = None) -> list[str]:
    """Return the reasons to replace the document ``old`` by ``new`` as messages; none if both have the same effect.

    With ``host``, the reasons include the paths of the old document that no longer exist.
    """
    if same_meaning(old, new):
        return []
    reasons = _changed_header(old, new)
    driver = driver_of(old), driver_of(new)
    if all(driver) and driver[0] != driver[1]:
        reasons.append(_other_driver(*driver))
    reasons += _changed_devices(old, new)
    reasons += _changed_numbers(old, new)
    fields = _changed_fields(_common(old), _common(new))
    reasons += [f"The edits for all devices differ in {', '.join(fields)}."] if fields else []
    if host is not None:
        missing = host_check.missing_paths(old, host)
        if missing:
            reasons.append(_missing(missing))
    return reasons or ["Its annotations differ."]


def _other_driver(old: str, new: str) -> str:
    return f"It is for driver {old}, but the driver is {new}."


def _missing(paths: t.Iterable[str]) -> str:
    return f"These paths no longer exist: {core_text.listed([host_check.shown(path) for path in paths])}."


def _changed_header(old: Data, new: Data) -> list[str]:
    reasons = []
    if old.get("kind") != new.get("kind"):
        reasons.append(f"It has the kind {old.get('kind')} instead of {new.get('kind')}.")
    if _version(old) != _version(new):
        reasons.append(f"It has the CDI version {_version(old)} instead of {_version(new)}.")
    return reasons


def _changed_devices(old: Data, new: Data) -> list[str]:
    before, after = _by_name(old), _by_name(new)
    added, removed = [name for name in after if name not in before], [name for name in before if name not in after]
    reasons = []
    if added:
        reasons.append(f"It lacks the devices {core_text.listed(added)}.")
    if removed:
        reasons.append(f"It has the devices {core_text.listed(removed)}, which no longer exist.")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, edits in after.items():
        fields = _changed_fields(before[name], edits) if name in before else ()
        if fields:
            groups.setdefault(fields, []).append(name)
    for fields, names in groups.items():
        reasons.append(f"Its devices {core_text.listed(names)} differ in {', '.join(fields)}.")
    return reasons


def _changed_numbers(old: Data, new: Data) -> list[str]:
    before, after = _numbers(old), _numbers(new)
    reasons = []
    for path, numbers in before.items():
        if path in after and after[path] != numbers:
            old_number, new_number = host_check.device_number(numbers), host_check.device_number(after[path])
            reasons.append(f"It has device number {old_number} for {host_check.shown(path)} instead of {new_number}.")
    return reasons


def _changed_fields(old: Data, new: Data) -> tuple[str, ...]:
    """Return the names of the fields that differ. Device numbers are ignored: _changed_numbers() reports them."""
    before, after = _normalized(old, with_numbers=False), _normalized(new, with_numbers=False)
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


def _numbers(document: Data) -> dict[str, tuple[int, int]]:
    nodes = (node for _field, edits in host_check.all_edits(document) for node in edits.get("deviceNodes", ()))
    return {node["path"]: (node.get("major", 0), node.get("minor", 0)) for node in nodes}


def _common(document: Data) -> Data:
    common: Data = document.get(cdi_schema.EDITS, {})
    return common


def _by_name(document: Data) -> dict[str, Data]:
    return {device.get("name", ""): device.get(cdi_schema.EDITS, {}) for device in document.get("devices", ())}


def _version(document: Data) -> str:
    version = str(document.get("cdiVersion", ""))
    return version[1:] if version.startswith("v") else version


def driver_of(document: Data) -> str:
    """Return the version of the driver whose libraries are mounted, or an empty string."""
    names = [posixpath.basename(mount["hostPath"]) for mount in _common(document).get("mounts", ())]
    found = (pattern.fullmatch(name) for pattern in _VERSIONED_LIBRARIES for name in names)
    return next((match.group(1) for match in found if match), "")


def _meaning(document: Data) -> t.Any:
    """Return the data to compare, without what has no effect on containers.

    These are empty fields and the order of devices, device nodes, groups, and mounts of different depth.
    """
    devices = {
        device.get("name", ""): (_normalized(device.get(cdi_schema.EDITS, {})), device.get("annotations") or {})
        for device in document.get("devices", ())
    }
    annotations = document.get("annotations") or {}
    return document.get("kind"), _version(document), devices, _normalized(_common(document)), annotations


def _normalized(edits: Data, with_numbers: bool = True) -> dict[str, t.Any]:
    # Even an empty intelRdt has an effect on the container.
    normalized = {name: value for name, value in edits.items() if value or name == "intelRdt"}
    if "deviceNodes" in normalized:
        nodes = [_normalized_node(node, with_numbers) for node in normalized["deviceNodes"]]
        normalized["deviceNodes"] = sorted(nodes, key=lambda node: json.dumps(node, sort_keys=True))
    for field in ("mounts", "hooks"):
        if field in normalized:
            normalized[field] = [{name: value for name, value in item.items() if value} for item in normalized[field]]
    if "mounts" in normalized:
        # Engines sort mounts by depth, and keep the order of mounts of the same depth.
        normalized["mounts"].sort(key=lambda mount: posixpath.normpath(mount["containerPath"]).count("/"))
    if "additionalGids" in normalized:
        normalized["additionalGids"] = sorted(set(normalized["additionalGids"]))
    return normalized


def _normalized_node(node: Data, with_numbers: bool) -> dict[str, t.Any]:
    # uid, gid and fileMode stay even if they are 0, because engines choose another value for a missing field.
    normalized = {name: value for name, value in node.items() if value or name in ("uid", "gid", "fileMode")}
    if normalized.get("hostPath") == normalized.get("path"):
        normalized.pop("hostPath", None)
    if not with_numbers:
        normalized.pop("major", None)
        normalized.pop("minor", None)
    normalized.setdefault("permissions", "rwm")
    return normalized


def stale_reasons(
    document: Data, host: hostfs.HostFS, driver: str | None = None
) -> tuple[list[core_errors.Problem], list[str]]:
    """Return the reasons why ``document`` does not fit ``host``, and its paths that do not exist.

    ``driver`` is the version of the loaded driver, or None if it is unknown.
    """
    missing = host_check.missing_paths(document, host)
    reasons = [core_errors.Problem(PATH_MISSING, _missing(missing))] if missing else []
    errors = host_check.check_host(document, host, missing=missing).errors
    reasons += [core_errors.Problem("path-differs", error) for error in errors]
    vendor = cdi_schema.split_kind(document.get("kind", ""))[0]
    if vendor == _VENDOR or vendor.endswith(f".{_VENDOR}"):
        specified = driver_of(document)
        if specified and driver and specified != driver:
            reasons.append(core_errors.Problem("driver-differs", _other_driver(specified, driver)))
    return reasons, missing
