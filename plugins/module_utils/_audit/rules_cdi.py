# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about CDI specifications: invalid, stale or conflicting files, engines that do not read them, refresh."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import config as podman_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import plan as podman_plan

_WRITE = "Write it again with nvidia_cdi_spec."
# The flavors whose version is that of the engine. The others, such as k3s, report the version of the Kubernetes
# distribution.
_WITH_ENGINE_VERSION = ("", "system", "rootless", "snap")
# Everything below these directories is lost when the host restarts.
_VOLATILE = ("/var/run/", "/run/")
# Since this release, Docker's option --gpus selects CDI devices if there are any (moby #50228).
_DOCKER_PREFERS_CDI = (29,)


def faulty(facts: report.HostFacts) -> report.Findings:
    """Yield findings for specifications that engines skip, that could not be read, or that have warnings."""
    for spec in facts.specs:
        path = report.text(spec.get("path"))
        if spec.get("valid") is False:
            reasons = core_text.joined(report.texts(spec.get("errors")))
            message = f"{path} is invalid, so engines skip it. {reasons}".rstrip()
            severity = report.WARNING if facts.gpu_specs else report.CRITICAL
            yield report.Finding(severity, "cdi-invalid", path, message, _WRITE)
        elif "valid" in spec and spec["valid"] is None:
            message = f"{path} could not be read, because no YAML parser is available."
            yield report.info("cdi-not-parsed", path, message, "Install PyYAML for Ansible on the controller.")
        for message in report.texts(spec.get("warnings")):
            yield report.info("cdi-unusual-content", path, message, "No action is needed if this is intended.")


def stale(facts: report.HostFacts) -> report.Findings:
    for spec in facts.specs:
        if spec.get("stale") is True:
            path = report.text(spec.get("path"))
            reasons = [reason.message for reason in report.problems_in(spec.get("reasons"))]
            message = f"{path} does not match the host. {' '.join(reasons)}".rstrip()
            severity = report.CRITICAL if path in facts.gpu_specs else report.WARNING
            yield report.Finding(severity, "cdi-stale", path, message, _WRITE)


def conflicts(facts: report.HostFacts) -> report.Findings:
    """Yield findings for devices that several files define."""
    conflicting = report.table(facts.cdi.get("conflicts"))
    for paths, names in _by_paths(conflicting.get("unresolvable")).items():
        message = (
            f"{' and '.join(paths)} are in the same directory and define the same devices, so engines find none of"
            f" these devices: {core_text.listed(names)}."
        )
        advice = "Remove all but one of these files, for example with nvidia_cdi_spec and exclusive: true."
        yield report.critical("cdi-unresolvable", paths[-1], message, advice)
    for paths, names in _by_paths(conflicting.get("shadowed")).items():
        message = (
            f"Engines ignore these devices in {' and '.join(paths)}: {core_text.listed(names)}. A file in a directory"
            " with precedence also defines them."
        )
        advice = (
            "Keep one of the files, for example with nvidia_cdi_spec and exclusive: true, which removes the others."
        )
        yield report.warning("cdi-shadowed", paths[-1], message, advice)


def _by_paths(by_name: t.Any) -> dict[tuple[str, ...], list[str]]:
    """Return the devices, grouped by the files that define them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, paths in report.table(by_name).items():
        if report.texts(paths):
            groups.setdefault(tuple(report.texts(paths)), []).append(name)
    return groups


# -- engines ---------------------------------------------------------------------------------------------------------


def engine_limits(facts: report.HostFacts) -> report.Findings:
    """Yield findings for engines whose release cannot read the specifications of the GPUs."""
    for engine, support in _engines(facts):
        if support.reads:
            yield from _too_new(facts, report.target_of(engine), support)
        elif facts.gpu_specs:
            message = f"{support} does not read CDI specifications."
            advice = "Use a newer release, or the runtime nvidia."
            yield report.info("cdi-unsupported", report.target_of(engine), message, advice)


def _too_new(facts: report.HostFacts, target: str, support: cdi_support.CdiEngine) -> report.Findings:
    for spec in facts.specs:
        version = report.text(spec.get("cdi_version"))
        if spec.get("valid") is not True or support.newest is None:
            continue
        try:
            is_newer = cdi_versions.version_number(version) > cdi_versions.version_number(support.newest)
        except ValueError:
            continue
        if is_newer:
            path = report.text(spec.get("path"))
            message = f"{support} supports CDI up to {support.newest}, so it skips {path} with CDI version {version}."
            advice = "Write it with nvidia_cdi_spec, which uses a version that all engines of the host support."
            severity = report.CRITICAL if spec.get("kind") == core_constants.GPU_KIND else report.WARNING
            yield report.Finding(severity, "cdi-too-new", target, message, advice)


def unread_directories(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for engines that read none of the directories with a specification of the GPUs.

    The directories are the defaults of the engine's release, and for Podman those of its configuration.
    """
    directories = {_real(host, posixpath.dirname(path)) for path in facts.gpu_specs}
    for engine, support in _engines(facts):
        configured = _podman_directories(host, support) if support.name == "podman" else None
        read = support.folders if configured is None else configured
        if not support.reads or not directories or directories & {_real(host, directory) for directory in read}:
            continue
        unless = ", unless its configuration names another directory" if configured is None else ""
        yield report.Finding(
            report.WARNING if configured is None else report.CRITICAL,
            "cdi-directory-not-read",
            report.target_of(engine),
            f"{support} reads specifications only in {' and '.join(read) or 'no directory'}{unless}. The"
            f" specifications of the GPUs are {core_text.listed(sorted(facts.gpu_specs))}.",
            "Write the specification to a directory that this engine reads, with nvidia_cdi_spec.",
        )


def _podman_directories(host: hostfs.HostFS, support: cdi_support.CdiEngine) -> tuple[str, ...] | None:
    """Return the directories that Podman reads for root; None if its files cannot be read."""
    version = core_text.parse_version(support.version or "")
    if version is None or version < podman_plan.CDI_DIRS_SINCE:
        return support.folders
    files = engines_base.HostFiles(host, support.name)
    path = podman_config.DROP_IN
    try:
        drop_in = toml_document.TomlDocument.from_bytes(path, files.read(path) or b"")
        return podman_config.ContainersConf(files, version, support.folders, drop_in).cdi_dirs().folders
    except errors.NvidiaError:
        return None


def _real(host: hostfs.HostFS, directory: str) -> str:
    """Return the directory with links resolved. /var/run is /run on every host, even if the link does not exist yet."""
    try:
        real = host.resolve(directory)
    except errors.HostError:
        real = directory
    return real[len("/var") :] if f"{real}/".startswith("/var/run/") else real


# For calls in which every engine has a version, so that no file of the host is read and no program is run.
_NO_HOST = hostfs.HostFS("/nonexistent", live=False)


def _engines(facts: report.HostFacts) -> t.Iterator[tuple[dict[str, t.Any], cdi_support.CdiEngine]]:
    """Yield the engines whose version is known, with what this version supports of CDI. No command is run."""
    for engine in facts.engines:
        name, version = report.text(engine.get("engine")), report.text(engine.get("version"))
        if name in cdi_support.ENGINES and version and report.text(engine.get("flavor")) in _WITH_ENGINE_VERSION:
            try:
                found = cdi_support.engines_for([f"{name}:{version}"], _NO_HOST, lambda _argv: (1, "", ""))
            except errors.NvidiaError:
                continue
            yield from ((engine, support) for support in found)


def docker_without_cdi(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a Docker that uses CDI devices for --gpus, if no valid and fresh specification exists."""
    fresh = {report.text(spec.get("path")) for spec in facts.specs if spec.get("stale") is False}
    if not facts.cdi or not facts.has_gpu or (facts.gpu_specs and facts.gpu_specs <= fresh):
        return
    for engine, support in _engines(facts):
        version = tuple(int(part) for part in (support.version or "").split(".") if part)
        if support.name == "docker" and version >= _DOCKER_PREFERS_CDI:
            problem = (
                "none of the GPUs' specifications is valid and fresh"
                if facts.gpu_specs
                else "this host has no specification of its GPUs"
            )
            message = f"{support} uses CDI specifications for --gpus, but {problem}."
            severity = report.CRITICAL if facts.gpu_specs else report.WARNING
            advice = "Write a specification with nvidia_cdi_spec."
            yield report.Finding(severity, "docker-needs-cdi", report.target_of(engine), message, advice)


# -- refresh services ------------------------------------------------------------------------------------------------


def refresh(facts: report.HostFacts) -> report.Findings:
    """Yield findings for specifications that nothing writes again after an update of the driver."""
    if facts.refresh.get("enabled") is False:
        message = f"{facts.refresh_service} is not enabled, so an update of the driver makes the specification stale."
        advice = "Enable it with nvidia_cdi_refresh."
        yield report.warning("cdi-refresh-off", facts.refresh_service, message, advice)
    elif not facts.refresh and "refresh" in facts.cdi:
        for path in sorted(facts.gpu_specs):
            is_volatile = path.startswith(_VOLATILE)
            event = "the host restarts" if is_volatile else "the driver is updated"
            message = f"No service writes {path} again when {event}."
            advice = "Install refresh units with nvidia_cdi_refresh."
            if _lacks_nvidia_ctk(facts):
                # The refresh units run nvidia-ctk, so without it they do not help.
                target = " to /etc/cdi" if is_volatile else ""
                advice = f"Write it{target} with nvidia_cdi_spec after each driver update, or install the toolkit."
            severity = report.WARNING if is_volatile else report.INFO
            yield report.Finding(severity, "cdi-refresh-missing", path, message, advice)


def _lacks_nvidia_ctk(facts: report.HostFacts) -> bool:
    """Return whether the host is known to lack nvidia-ctk."""
    return "toolkit" in facts.collected and refresh_units.PROGRAM not in report.table(facts.toolkit.get("programs"))


def refresh_precedence(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a refresh service whose file has precedence over other specifications."""
    output = report.text(facts.refresh.get("output"))
    shadowed = report.table(report.table(facts.cdi.get("conflicts")).get("shadowed"))
    others = {path for paths in shadowed.values() for path in report.texts(paths)} - {output}
    if facts.refresh.get("enabled") is True and output in facts.gpu_specs and others:
        yield report.warning(
            "cdi-refresh-overrides",
            facts.refresh_service,
            f"{facts.refresh_service} writes {output}, which has precedence over {core_text.listed(sorted(others))}."
            f" For devices that several of these files define, engines use those of {output}.",
            "Run nvidia_cdi_refresh with the options with which the other files were written, or with their path.",
        )


RULES = (faulty, stale, conflicts, engine_limits, docker_without_cdi, refresh, refresh_precedence)
HOST_RULES = (unread_directories,)
