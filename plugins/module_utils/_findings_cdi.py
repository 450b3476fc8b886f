# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the description of the CDI specifications says of those that no container can use, or
# not for long, and of engines that do not read them.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_engines import ENGINES, CdiEngine, engines_for
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import PROGRAM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import version_number
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    NOTE,
    WARNING,
    Described,
    Finding,
    problems_in,
    rows,
    table,
    target_of,
    text,
    texts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._podman_files import DROP_IN, ContainersConf
from ansible_collections.gpufleet.nvidia.plugins.module_utils._podman_plan import HONOURED_SINCE
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND

_WRITE = "Write it again with nvidia_cdi_spec."
_BY_PLAY = "Write it{} with nvidia_cdi_spec after each update of the driver, or install the toolkit."
# Of the others the version is that of the distribution, and not of the engine in it.
_OWN_VERSION = ("", "system", "rootless", "snap")
# What lies below is gone after a start of the host.
_VOLATILE = ("/var/run/", "/run/")
# moby #50228: from this one on --gpus means CDI devices, where there are any.
_DOCKER_PREFERS_CDI = (29,)


def faulty(described: Described) -> t.Iterator[Finding]:
    """Specifications that engines skip."""
    alone = not described.devices()
    for file in rows(described.cdi.get("files")):
        path = text(file.get("path"))
        if file.get("valid") is False:
            said = f"Engines skip {path}. {few(texts(file.get('errors')))}".rstrip()
            yield Finding(CRITICAL if alone else WARNING, "cdi-invalid", path, said, _WRITE)
        elif "valid" in file and file["valid"] is None:
            said = f"{path} is in YAML, which nothing here could read."
            yield Finding(NOTE, "cdi-unread", path, said, "Install PyYAML for the controller's Ansible.")
        for sentence in texts(file.get("warnings")):
            yield Finding(NOTE, "cdi-odd", path, sentence, "Nothing, if that is meant so.")


def stale(described: Described) -> t.Iterator[Finding]:
    used = set(described.devices().values())
    for file in rows(described.cdi.get("files")):
        path = text(file.get("path"))
        if file.get("stale") is True:
            reasons = [reason.message for reason in problems_in(file.get("reasons"))]
            said = f"{path} no longer fits the host. {' '.join(reasons)}".rstrip()
            yield Finding(CRITICAL if path in used else WARNING, "cdi-stale", path, said, _WRITE)


def in_each_others_way(described: Described) -> t.Iterator[Finding]:
    conflicts = table(described.cdi.get("conflicts"))
    for paths, names in _grouped(conflicts.get("unresolvable")).items():
        yield Finding(
            CRITICAL,
            "cdi-unresolvable",
            paths[-1],
            f"Engines do not find {few(names)}, which {' and '.join(paths)} define in one folder.",
            "Remove all but one of these files; nvidia_cdi_spec with exclusive: true does so.",
        )
    for paths, names in _grouped(conflicts.get("shadowed")).items():
        yield Finding(
            WARNING,
            "cdi-shadowed",
            paths[-1],
            f"{' and '.join(paths)} define {few(names)} in vain, because a later folder has them too.",
            "Leave the specification to one owner; nvidia_cdi_spec with exclusive: true removes the others.",
        )


def _grouped(by_name: t.Any) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, paths in table(by_name).items():
        if texts(paths):
            groups.setdefault(tuple(texts(paths)), []).append(name)
    return groups


# -- engines ---------------------------------------------------------------------------------------------------------


def unread_by_engines(described: Described) -> t.Iterator[Finding]:
    """GPUs that an engine does not find, as its release reads CDI."""
    sources = set(described.devices().values())
    for engine, reader in _readers(described):
        if not reader.reads:
            if sources:
                said = f"{reader} reads no CDI specifications, so it gives no GPUs to containers that way."
                yield Finding(NOTE, "cdi-not-read", target_of(engine), said, "Use a newer one, or its runtime nvidia.")
            continue
        yield from _too_new(described, engine, reader)


def in_unread_folders(described: Described, host: HostRoot) -> t.Iterator[Finding]:
    """GPUs in folders that an engine does not look in.  Of Podman its own configuration is read too."""
    sources = set(described.devices().values())
    folders = {_real(host, posixpath.dirname(path)) for path in sources}
    for engine, reader in _readers(described):
        configured = _configured_folders(host, reader) if reader.name == "podman" else None
        read = reader.folders if configured is None else configured
        if not reader.reads or not sources or folders & {_real(host, folder) for folder in read}:
            continue
        unless = ", unless its own configuration names the folder" if configured is None else ""
        yield Finding(
            WARNING if configured is None else CRITICAL,
            "cdi-folder-not-read",
            target_of(engine),
            f"{reader} reads specifications in {' and '.join(read) or 'no folder'} only{unless}, and the GPUs are in"
            f" {few(sorted(sources))}.",
            "Write the specification where this engine reads it, with nvidia_cdi_spec.",
        )


def _configured_folders(host: HostRoot, reader: CdiEngine) -> tuple[str, ...] | None:
    """The folders in which this Podman looks for specifications for root, None where its files cannot tell."""
    version = parse_version(reader.version or "")
    if version is None or version < HONOURED_SINCE:
        return reader.folders
    files = HostFiles(host, reader.name)
    try:
        ours = TomlDocument.from_bytes(DROP_IN, files.read(DROP_IN) or b"")
        return ContainersConf(files, version, reader.folders, ours).reading().folders
    except GpufleetError:
        return None


def _real(host: HostRoot, folder: str) -> str:
    """The folder without links; /var/run is /run on every host, even where nothing has made the link yet."""
    try:
        real = host.resolve(folder)
    except HostError:
        real = folder
    return real[len("/var") :] if f"{real}/".startswith("/var/run/") else real


def _too_new(described: Described, engine: t.Mapping[str, t.Any], reader: CdiEngine) -> t.Iterator[Finding]:
    for file in rows(described.cdi.get("files")):
        version = text(file.get("cdi_version"))
        if file.get("valid") is not True or reader.newest is None:
            continue
        try:
            newer = version_number(version) > version_number(reader.newest)
        except ValueError:
            continue
        if newer:
            yield Finding(
                CRITICAL if file.get("kind") == GPU_KIND else WARNING,
                "cdi-too-new",
                target_of(engine),
                f"{reader} skips {text(file.get('path'))}: it is of version {version} of CDI, and {reader.newest} is"
                " the newest that it accepts.",
                "Write it with nvidia_cdi_spec, which keeps to what the host's engines accept.",
            )


def _readers(described: Described) -> t.Iterator[tuple[dict[str, t.Any], CdiEngine]]:
    """The engines whose own version is known, as readers of CDI; nothing is run."""
    for engine in described.engines:
        name, version = text(engine.get("engine")), text(engine.get("version"))
        if name in ENGINES and version and text(engine.get("flavor")) in _OWN_VERSION:
            try:
                found = engines_for([f"{name}:{version}"], _NOWHERE, _no_command)
            except GpufleetError:
                continue
            yield from ((engine, reader) for reader in found)


# A version that is given is not asked for.
_NOWHERE = HostRoot("/nonexistent", live=False)


def _no_command(_argv: list[str]) -> tuple[int, str, str]:
    return 1, "", ""


def docker_without_cdi(described: Described) -> t.Iterator[Finding]:
    """Docker that takes --gpus for CDI devices, beside specifications that are not fresh."""
    if not described.cdi or not described.has_gpu:
        return
    fresh = {text(file.get("path")) for file in rows(described.cdi.get("files")) if file.get("stale") is False}
    sources = set(described.devices().values())
    if sources and sources <= fresh:
        return
    for engine, reader in _readers(described):
        version = tuple(int(part) for part in (reader.version or "").split(".") if part)
        if reader.name == "docker" and version >= _DOCKER_PREFERS_CDI:
            state = "no valid and fresh one" if sources else "none"
            yield Finding(
                CRITICAL if sources else WARNING,
                "docker-needs-cdi",
                target_of(engine),
                f"{reader} looks for --gpus in CDI specifications first, and there is {state} for GPUs.",
                "Write one with nvidia_cdi_spec.",
            )


# -- what keeps them fresh -------------------------------------------------------------------------------------------


def refresh_service(described: Described) -> t.Iterator[Finding]:
    refresh = table(described.cdi.get("refresh"))
    sources = sorted(set(described.devices().values()))
    if refresh.get("enabled") is False:
        said = f"{_service(described)} is not enabled, so after an update of the driver the specification is stale."
        yield Finding(WARNING, "cdi-refresh-off", _service(described), said, "Enable it with nvidia_cdi_refresh.")
    elif not refresh and "refresh" in described.cdi:
        for path in sources:
            volatile = path.startswith(_VOLATILE)
            why = "is gone after the next start of the host" if volatile else "is stale after an update of the driver"
            said = f"Nothing writes {path} again, which {why}."
            advice = "Have it written again with nvidia_cdi_refresh."
            if _lacks_nvidia_ctk(described):
                # The refresh units run it.
                advice = _BY_PLAY.format(" in /etc/cdi" if volatile else "")
            yield Finding(WARNING if volatile else NOTE, "cdi-refresh-missing", path, said, advice)


def _lacks_nvidia_ctk(described: Described) -> bool:
    """Whether the host is known to have no nvidia-ctk."""
    return "toolkit" in described.gathered and PROGRAM not in table(described.toolkit.get("programs"))


def refresh_elsewhere(described: Described) -> t.Iterator[Finding]:
    """A service that takes back what others wrote: it writes a file that goes before theirs."""
    refresh = table(described.cdi.get("refresh"))
    output = text(refresh.get("output"))
    shadowed = {path for paths in table(_conflicts(described).get("shadowed")).values() for path in texts(paths)}
    winners = set(described.devices().values())
    if refresh.get("enabled") is True and output in winners and shadowed - {output}:
        yield Finding(
            WARNING,
            "cdi-refresh-undoes",
            _service(described),
            f"{_service(described)} writes {output}, which goes before {few(sorted(shadowed - {output}))}: what is"
            " set there comes to nothing.",
            "Give the service the same options with nvidia_cdi_refresh, or have it write the other file.",
        )


def _conflicts(described: Described) -> dict[str, t.Any]:
    return table(described.cdi.get("conflicts"))


def _service(described: Described) -> str:
    return text(table(described.cdi.get("refresh")).get("service")) or "cdi"


RULES = (
    faulty,
    stale,
    in_each_others_way,
    unread_by_engines,
    docker_without_cdi,
    refresh_service,
    refresh_elsewhere,
)
HOST_RULES = (in_unread_folders,)
