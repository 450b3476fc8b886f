# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CDI versions: which one a specification needs, and how to lower it to the one that the engines of a host support.

An engine skips a whole file of a later version, and finds none of its devices.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support

    Spec = t.Dict[str, t.Any]

# The releases of the CDI library, whose specs-go/version.go has the needs below.
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
# The lowest minimum that the library computes. Specifications that state an earlier version never load.
EARLIEST = "0.3.0"
# The first version with additional groups. An engine that supports only older ones skips a specification with groups.
GIDS_SINCE = "0.7.0"

_WITHOUT_GROUPS = (
    "Processes that do not run as root may then lack the groups of device nodes. Add these groups to such containers,"
    " or use a newer version of the engine"
)
# Fields that containers can do without: field, the first version that has it, and the effect of its absence.
_OPTIONAL_FIELDS = (
    ("additionalGids", GIDS_SINCE, _WITHOUT_GROUPS),
    ("annotations", "0.6.0", "Annotations have no effect on containers"),
)


class Need(t.NamedTuple):
    """A part of a specification that needs a CDI version."""

    version: str
    field: str
    what: str


class DowngradedSpec(t.NamedTuple):
    """A specification that all engines read, and messages about the fields that were left out."""

    document: Spec
    messages: tuple[str, ...]


def version_number(version: str) -> tuple[int, ...]:
    """Return a released version as a comparable tuple. Raises ValueError for any other version."""
    plain = version[1:] if version.startswith("v") else version
    if plain not in VERSIONS:
        raise ValueError(version)
    return tuple(int(part) for part in plain.split("."))


def minimum_version(document: t.Mapping[str, t.Any]) -> str:
    """Return the lowest version that has everything the document uses."""
    return highest_need(version_needs(cdi_schema.read(document)))


def highest_need(needs: t.Iterable[Need]) -> str:
    return max((need.version for need in needs), key=version_number, default=EARLIEST)


def version_needs(document: t.Mapping[str, t.Any]) -> list[Need]:
    """Return the parts that need more than the earliest version, in the order of the document.

    ``document`` has the types that schema.read() returns.
    """
    needs = []
    vendor, name = cdi_schema.split_kind(document.get("kind", ""))
    if vendor and "." in name:
        needs.append(Need("0.6.0", "kind", "a dot in the class"))
    for field, part in [("", document), *cdi_schema.devices(document)]:
        prefix = f"{field}." if field else ""
        if part.get("annotations"):
            needs.append(Need("0.6.0", f"{prefix}annotations", "annotations"))
        if field and "0" <= part.get("name", "")[:1] <= "9":
            needs.append(Need("0.5.0", f"{prefix}name", "a device name that begins with a digit"))
        needs += _needs_of_edits(f"{prefix}{cdi_schema.EDITS}", part.get(cdi_schema.EDITS, {}))
    return needs


def _needs_of_edits(field: str, edits: t.Mapping[str, t.Any]) -> t.Iterator[Need]:
    for index, mount in enumerate(edits.get("mounts", ())):
        if mount and mount.get("type"):
            yield Need("0.4.0", f"{field}.mounts[{index}].type", "the type of a mount")
    for index, node in enumerate(edits.get("deviceNodes", ())):
        if node and node.get("hostPath"):
            yield Need("0.5.0", f"{field}.deviceNodes[{index}].hostPath", "a different path of a device on the host")
    if edits.get("additionalGids"):
        yield Need(GIDS_SINCE, f"{field}.additionalGids", "additional groups")
    rdt = edits.get("intelRdt")
    if rdt is not None:
        yield Need("0.7.0", f"{field}.intelRdt", "a class of Intel RDT")
        if "schemata" in rdt or rdt.get("enableMonitoring"):
            yield Need("1.1.0", f"{field}.intelRdt", "schemata or monitoring of Intel RDT")
    if edits.get("netDevices"):
        yield Need("1.1.0", f"{field}.netDevices", "network interfaces")


# -- the versions of engines -------------------------------------------------------------------------------------------


def downgrade_spec(document: Spec, engines: t.Sequence[cdi_support.CdiEngine]) -> DowngradedSpec:
    """Return ``document`` without the fields that are too new for one of ``engines``. The argument is not changed.

    Engines that do not read CDI, and engines whose newest CDI version is unknown, are ignored. A document without
    additional groups equals the output with the flag no-additional-gids-for-device-nodes.

    Raises:
        NvidiaError: The remaining document is still too new.
    """
    limits = {engine: version_number(engine.newest) for engine in engines if engine.reads and engine.newest is not None}
    if not limits or _stated_version(document) <= min(limits.values()):
        return DowngradedSpec(document, ())
    messages = []
    for field, version, effect in _OPTIONAL_FIELDS:
        too_old = [engine for engine, newest in limits.items() if newest < version_number(version)]
        if too_old and _has_field(document, field):
            document = _without_field(document, field)
            messages.append(f"The specification has no {field}, because {_support(too_old)}. {effect}.")
    document = {**document, "cdiVersion": minimum_version(document)}
    lowest = min(limits.values())
    if version_number(document["cdiVersion"]) > lowest:
        raise _too_new(document, [engine for engine, newest in limits.items() if newest == lowest])
    return DowngradedSpec(document, tuple(messages))


def engines_not_reading(engines: t.Iterable[cdi_support.CdiEngine], folder: str) -> list[str]:
    """Return a message for each engine that reads CDI specifications, but does not read ``folder`` by default."""
    return [
        f"{engine} reads specifications in {' and '.join(engine.folders)} only, unless its configuration names other"
        f" directories. It does not read {folder}. Set {errors.option:path} to a file in a directory that it reads."
        for engine in engines
        if engine.reads and folder not in engine.folders
    ]


def _stated_version(document: Spec) -> tuple[int, ...]:
    needed = version_number(minimum_version(document))
    try:
        return max(needed, version_number(str(document.get("cdiVersion", ""))))
    except ValueError:
        return needed


def _has_field(document: Spec, field: str) -> bool:
    parts = [document, *document.get("devices", ())]
    return any(part.get(field) or part.get(cdi_schema.EDITS, {}).get(field) for part in parts)


def _without_field(document: Spec, field: str) -> Spec:
    """Return the document without a field of the whole document, of its devices, and of the edits of both."""

    def reduced(part: Spec) -> Spec:
        rest = {key: value for key, value in part.items() if key != field}
        if cdi_schema.EDITS in rest:
            rest[cdi_schema.EDITS] = {key: value for key, value in rest[cdi_schema.EDITS].items() if key != field}
        return rest

    return {**reduced(document), "devices": [reduced(device) for device in document.get("devices", ())]}


def _support(engines: t.Sequence[cdi_support.CdiEngine]) -> str:
    return " and ".join(f"{engine} supports CDI up to {engine.newest} only" for engine in engines)


def _advice_for(field: str) -> str:
    """Return the advice for a field that cannot be left out."""
    if field == "name":
        return f"Set {errors.option:device_name_strategies}: [type-index] to get names that begin with a letter."
    if field == "kind":
        return f"Set {errors.option:class} to a name without a dot."
    if field == "hostPath":
        return f"Set {errors.option:dev_root} to /, so that devices have the same paths on the host and in containers."
    return f"Leave out {field}."


def _too_new(document: Spec, engines: t.Sequence[cdi_support.CdiEngine]) -> errors.NvidiaError:
    lowest = version_number(str(engines[0].newest))
    needs = [need for need in version_needs(document) if version_number(need.version) > lowest]
    fields = dict.fromkeys(need.field.rpartition(".")[2] for need in needs)
    return errors.NvidiaError(
        f"{_support(engines)}, but the specification needs {document['cdiVersion']}, because it has"
        f" {core_text.listed(sorted({need.what for need in needs}))} ({needs[0].field})."
        f" {' '.join(map(_advice_for, fields))} Or use a newer version of"
        f" {' and '.join(engine.name for engine in engines)}, or remove it from {errors.option:for_engines}."
    )
