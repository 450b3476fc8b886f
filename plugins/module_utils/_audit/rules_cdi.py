# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings about CDI specifications: invalid, stale or conflicting files, engines that do not read them, refresh."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import config as podman_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import plan as podman_plan

_WRITE = "Write it again with nvidia_cdi_spec."
_BY_PLAY = "Write it{} with nvidia_cdi_spec after each update of the driver, or install the toolkit."
# The version of any other flavor is that of the distribution and not that of its engine.
_OWN_VERSION = ("", "system", "rootless", "snap")
# Everything below these directories is lost when the host restarts.
_VOLATILE = ("/var/run/", "/run/")
# Since this release --gpus selects CDI devices if there are any (moby #50228).
_DOCKER_PREFERS_CDI = (29,)


def faulty(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for specifications that engines skip."""
    alone = not described.devices()
    for file in audit_finding.rows(described.cdi.get("files")):
        path = audit_finding.text(file.get("path"))
        if file.get("valid") is False:
            said = f"Engines skip {path}. {core_text.listed(audit_finding.texts(file.get('errors')))}".rstrip()
            yield audit_finding.Finding(
                audit_finding.CRITICAL if alone else audit_finding.WARNING, "cdi-invalid", path, said, _WRITE
            )
        elif "valid" in file and file["valid"] is None:
            said = f"{path} is in YAML, which nothing here could read."
            yield audit_finding.Finding(
                audit_finding.INFO, "cdi-unread", path, said, "Install PyYAML for the controller's Ansible."
            )
        for sentence in audit_finding.texts(file.get("warnings")):
            yield audit_finding.Finding(audit_finding.INFO, "cdi-odd", path, sentence, "Nothing, if that is meant so.")


def stale(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    used = set(described.devices().values())
    for file in audit_finding.rows(described.cdi.get("files")):
        path = audit_finding.text(file.get("path"))
        if file.get("stale") is True:
            reasons = [reason.message for reason in audit_finding.problems_in(file.get("reasons"))]
            said = f"{path} no longer fits the host. {' '.join(reasons)}".rstrip()
            yield audit_finding.Finding(
                audit_finding.CRITICAL if path in used else audit_finding.WARNING, "cdi-stale", path, said, _WRITE
            )


def in_each_others_way(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    conflicts = audit_finding.table(described.cdi.get("conflicts"))
    for paths, names in _grouped(conflicts.get("unresolvable")).items():
        yield audit_finding.Finding(
            audit_finding.CRITICAL,
            "cdi-unresolvable",
            paths[-1],
            f"Engines do not find {core_text.listed(names)}, which {' and '.join(paths)} define in one folder.",
            "Remove all but one of these files; nvidia_cdi_spec with exclusive: true does so.",
        )
    for paths, names in _grouped(conflicts.get("shadowed")).items():
        yield audit_finding.Finding(
            audit_finding.WARNING,
            "cdi-shadowed",
            paths[-1],
            f"{' and '.join(paths)} define {core_text.listed(names)} in vain, because a later folder has them too.",
            "Leave the specification to one owner; nvidia_cdi_spec with exclusive: true removes the others.",
        )


def _grouped(by_name: t.Any) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, paths in audit_finding.table(by_name).items():
        if audit_finding.texts(paths):
            groups.setdefault(tuple(audit_finding.texts(paths)), []).append(name)
    return groups


# -- engines ---------------------------------------------------------------------------------------------------------


def unread_by_engines(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for engines whose release cannot read the specifications of the GPUs."""
    sources = set(described.devices().values())
    for engine, reader in _readers(described):
        if not reader.reads:
            if sources:
                said = f"{reader} reads no CDI specifications, so it gives no GPUs to containers that way."
                yield audit_finding.Finding(
                    audit_finding.INFO,
                    "cdi-not-read",
                    audit_finding.target_of(engine),
                    said,
                    "Use a newer one, or its runtime nvidia.",
                )
            continue
        yield from _too_new(described, engine, reader)


def in_unread_folders(described: audit_finding.Described, host: hostfs.HostFS) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for GPUs in directories that an engine does not read. Podman's own configuration is used too."""
    sources = set(described.devices().values())
    folders = {_real(host, posixpath.dirname(path)) for path in sources}
    for engine, reader in _readers(described):
        configured = _configured_folders(host, reader) if reader.name == "podman" else None
        read = reader.folders if configured is None else configured
        if not reader.reads or not sources or folders & {_real(host, folder) for folder in read}:
            continue
        unless = ", unless its own configuration names the folder" if configured is None else ""
        yield audit_finding.Finding(
            audit_finding.WARNING if configured is None else audit_finding.CRITICAL,
            "cdi-folder-not-read",
            audit_finding.target_of(engine),
            f"{reader} reads specifications in {' and '.join(read) or 'no folder'} only{unless}, and the GPUs are in"
            f" {core_text.listed(sorted(sources))}.",
            "Write the specification where this engine reads it, with nvidia_cdi_spec.",
        )


def _configured_folders(host: hostfs.HostFS, reader: cdi_support.CdiEngine) -> tuple[str, ...] | None:
    """Return the directories that Podman reads for root; None if its files cannot be read."""
    version = core_text.parse_version(reader.version or "")
    if version is None or version < podman_plan.HONOURED_SINCE:
        return reader.folders
    files = engines_base.HostFiles(host, reader.name)
    try:
        ours = toml_document.TomlDocument.from_bytes(podman_config.DROP_IN, files.read(podman_config.DROP_IN) or b"")
        return podman_config.ContainersConf(files, version, reader.folders, ours).reading().folders
    except errors.NvidiaError:
        return None


def _real(host: hostfs.HostFS, folder: str) -> str:
    """Return the directory with links resolved. /var/run is /run on every host, even if the link does not exist yet."""
    try:
        real = host.resolve(folder)
    except errors.HostError:
        real = folder
    return real[len("/var") :] if f"{real}/".startswith("/var/run/") else real


def _too_new(
    described: audit_finding.Described, engine: t.Mapping[str, t.Any], reader: cdi_support.CdiEngine
) -> t.Iterator[audit_finding.Finding]:
    for file in audit_finding.rows(described.cdi.get("files")):
        version = audit_finding.text(file.get("cdi_version"))
        if file.get("valid") is not True or reader.newest is None:
            continue
        try:
            newer = cdi_validate.version_number(version) > cdi_validate.version_number(reader.newest)
        except ValueError:
            continue
        if newer:
            yield audit_finding.Finding(
                audit_finding.CRITICAL if file.get("kind") == core_constants.GPU_KIND else audit_finding.WARNING,
                "cdi-too-new",
                audit_finding.target_of(engine),
                f"{reader} skips {audit_finding.text(file.get('path'))}: it is of version {version} of CDI, and"
                f" {reader.newest} is"
                " the newest that it accepts.",
                "Write it with nvidia_cdi_spec, which keeps to what the host's engines accept.",
            )


def _readers(described: audit_finding.Described) -> t.Iterator[tuple[dict[str, t.Any], cdi_support.CdiEngine]]:
    """Yield the engines whose own version is known, with what their release reads of CDI. No command is run."""
    for engine in described.engines:
        name, version = audit_finding.text(engine.get("engine")), audit_finding.text(engine.get("version"))
        if name in cdi_support.ENGINES and version and audit_finding.text(engine.get("flavor")) in _OWN_VERSION:
            try:
                found = cdi_support.engines_for([f"{name}:{version}"], _NOWHERE, _no_command)
            except errors.NvidiaError:
                continue
            yield from ((engine, reader) for reader in found)


# The version is always given, so no host is asked for it.
_NOWHERE = hostfs.HostFS("/nonexistent", live=False)


def _no_command(_argv: list[str]) -> tuple[int, str, str]:
    return 1, "", ""


def docker_without_cdi(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for a Docker that maps --gpus to CDI devices while no valid and fresh specification exists."""
    if not described.cdi or not described.has_gpu:
        return
    fresh = {
        audit_finding.text(file.get("path"))
        for file in audit_finding.rows(described.cdi.get("files"))
        if file.get("stale") is False
    }
    sources = set(described.devices().values())
    if sources and sources <= fresh:
        return
    for engine, reader in _readers(described):
        version = tuple(int(part) for part in (reader.version or "").split(".") if part)
        if reader.name == "docker" and version >= _DOCKER_PREFERS_CDI:
            state = "no valid and fresh one" if sources else "none"
            yield audit_finding.Finding(
                audit_finding.CRITICAL if sources else audit_finding.WARNING,
                "docker-needs-cdi",
                audit_finding.target_of(engine),
                f"{reader} looks for --gpus in CDI specifications first, and there is {state} for GPUs.",
                "Write one with nvidia_cdi_spec.",
            )


# -- the services that write them again ------------------------------------------------------------------------------


def refresh_service(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    refresh = audit_finding.table(described.cdi.get("refresh"))
    sources = sorted(set(described.devices().values()))
    if refresh.get("enabled") is False:
        said = f"{_service(described)} is not enabled, so after an update of the driver the specification is stale."
        yield audit_finding.Finding(
            audit_finding.WARNING, "cdi-refresh-off", _service(described), said, "Enable it with nvidia_cdi_refresh."
        )
    elif not refresh and "refresh" in described.cdi:
        for path in sources:
            volatile = path.startswith(_VOLATILE)
            why = "is gone after the next start of the host" if volatile else "is stale after an update of the driver"
            said = f"Nothing writes {path} again, which {why}."
            advice = "Have it written again with nvidia_cdi_refresh."
            if _lacks_nvidia_ctk(described):
                # The refresh units run nvidia-ctk, so without it they do not help.
                advice = _BY_PLAY.format(" in /etc/cdi" if volatile else "")
            yield audit_finding.Finding(
                audit_finding.WARNING if volatile else audit_finding.INFO, "cdi-refresh-missing", path, said, advice
            )


def _lacks_nvidia_ctk(described: audit_finding.Described) -> bool:
    """Return whether the host is known to lack nvidia-ctk."""
    return "toolkit" in described.gathered and refresh_units.PROGRAM not in audit_finding.table(
        described.toolkit.get("programs")
    )


def refresh_elsewhere(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for a refresh service whose file has precedence over the files of other tools."""
    refresh = audit_finding.table(described.cdi.get("refresh"))
    output = audit_finding.text(refresh.get("output"))
    shadowed = {
        path
        for paths in audit_finding.table(_conflicts(described).get("shadowed")).values()
        for path in audit_finding.texts(paths)
    }
    winners = set(described.devices().values())
    if refresh.get("enabled") is True and output in winners and shadowed - {output}:
        yield audit_finding.Finding(
            audit_finding.WARNING,
            "cdi-refresh-undoes",
            _service(described),
            f"{_service(described)} writes {output}, which goes before {core_text.listed(sorted(shadowed - {output}))}:"
            f" what is"
            " set there comes to nothing.",
            "Give the service the same options with nvidia_cdi_refresh, or have it write the other file.",
        )


def _conflicts(described: audit_finding.Described) -> dict[str, t.Any]:
    return audit_finding.table(described.cdi.get("conflicts"))


def _service(described: audit_finding.Described) -> str:
    return audit_finding.text(audit_finding.table(described.cdi.get("refresh")).get("service")) or "cdi"


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
