# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reduce a specification to the CDI version that the engines of a host read.

An engine skips a whole file of a later version, and finds none of its devices.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import edits as cdi_edits
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support


_GROUPS_MEANING = (
    "In containers that do not run as root, processes may then lack the groups of device nodes: give these groups to"
    " such containers, or use a newer version"
)
# Fields that containers can do without: field, the first version that has it, and the effect of its absence.
_DISPENSABLE = (
    ("additionalGids", "0.7.0", _GROUPS_MEANING),
    ("annotations", "0.6.0", "They are remarks, which change nothing in containers"),
)
# Advice for fields that cannot be left out.
_WAYS_OUT = {
    "name": "Use device_name_strategies: [type-index] for names that begin with a letter.",
    "kind": "Use a class without a dot.",
    "hostPath": "Use a dev_root whose devices have the same paths in containers, that is /.",
}


class Limited(t.NamedTuple):
    """A document that all engines read, and messages about the fields that were left out."""

    document: cdi_edits.Data
    sentences: tuple[str, ...]


def downgrade_spec(document: cdi_edits.Data, engines: t.Sequence[cdi_support.CdiEngine]) -> Limited:
    """Return ``document`` without the fields that are too new for one of ``engines``. The argument is not changed.

    Engines that do not read CDI, and engines whose newest CDI version is unknown, are ignored. A document without
    additional groups equals the output with the flag no-additional-gids-for-device-nodes.

    Raises:
        NvidiaError: The remaining document is still too new.
    """
    limits = {engine: engine.newest for engine in engines if engine.reads and engine.newest is not None}
    lowest = min(limits.values(), key=cdi_validate.version_number, default=None)
    if lowest is None or cdi_validate.version_number(_stated(document)) <= cdi_validate.version_number(lowest):
        return Limited(document, ())
    sentences = []
    for field, version, meaning in _DISPENSABLE:
        if cdi_validate.version_number(lowest) < cdi_validate.version_number(version) and _holds(document, field):
            document = _without(document, field)
            weak = [
                engine
                for engine, newest in limits.items()
                if cdi_validate.version_number(newest) < cdi_validate.version_number(version)
            ]
            sentences.append(f"The specification has no {field}, for {_what_they_read(weak)}. {meaning}.")
    document = {**document, "cdiVersion": cdi_validate.minimum_version(document)}
    if cdi_validate.version_number(document["cdiVersion"]) > cdi_validate.version_number(lowest):
        raise _too_new(document, [engine for engine, newest in limits.items() if newest == lowest], lowest)
    return Limited(document, tuple(sentences))


def unreached(engines: t.Iterable[cdi_support.CdiEngine], folder: str) -> list[str]:
    """Return a message for each engine that reads CDI specifications, but does not read ``folder`` by default."""
    return [
        f"{engine} reads no specifications in {folder}, only in {' and '.join(engine.folders)}, unless its own"
        " configuration names the folder. Write the specification to one of these."
        for engine in engines
        if engine.reads and folder not in engine.folders
    ]


def _stated(document: cdi_edits.Data) -> str:
    """Return the higher of the version that the document states and the version that it needs."""
    stated, needed = str(document.get("cdiVersion", "")), cdi_validate.minimum_version(document)
    try:
        return max(stated, needed, key=cdi_validate.version_number)
    except ValueError:
        return needed


def _holders(document: cdi_edits.Data) -> list[cdi_edits.Data]:
    """Return all mappings that may have annotations. The additional groups are in the edits of each."""
    return [document, *document.get("devices", ())]


def _holds(document: cdi_edits.Data, field: str) -> bool:
    return any(holder.get(field) or holder.get(cdi_schema.EDITS, {}).get(field) for holder in _holders(document))


def _without(document: cdi_edits.Data, field: str) -> cdi_edits.Data:
    devices = [_bare(device, field) for device in document.get("devices", ())]
    return {**_bare(document, field), "devices": devices}


def _bare(holder: cdi_edits.Data, field: str) -> cdi_edits.Data:
    rest = {key: value for key, value in holder.items() if key != field}
    if cdi_schema.EDITS in rest:
        rest[cdi_schema.EDITS] = {key: value for key, value in rest[cdi_schema.EDITS].items() if key != field}
    return rest


def _what_they_read(engines: t.Sequence[cdi_support.CdiEngine]) -> str:
    return " and ".join(f"{engine} reads CDI up to {engine.newest} only" for engine in engines)


def _too_new(document: cdi_edits.Data, engines: t.Sequence[cdi_support.CdiEngine], lowest: str) -> errors.NvidiaError:
    needs = [
        need
        for need in cdi_validate.version_needs(document)
        if cdi_validate.version_number(need.version) > cdi_validate.version_number(lowest)
    ]
    wanted = core_text.listed(sorted({need.what for need in needs}))
    return errors.NvidiaError(
        f"{_what_they_read(engines)}, but the specification needs {document['cdiVersion']}: it has {wanted}"
        f" ({needs[0].place}). {_advice(needs)} Or use a newer version of"
        f" {' and '.join(engine.name for engine in engines)}, or leave that out of for_engines."
    )


def _advice(needs: t.Sequence[cdi_validate.Need]) -> str:
    fields = (need.place.rpartition(".")[2] for need in needs)
    return " ".join(_WAYS_OUT.get(field, "Leave that out.") for field in dict.fromkeys(fields))
