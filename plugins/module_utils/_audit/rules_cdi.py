# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about CDI specifications: invalid, stale or conflicting files, engines that do not read them, refresh."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import units as refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import ignored
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support, flavors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

# Everything below these directories is lost when the host restarts.
_VOLATILE = ("/var/run/", "/run/")


def faulty(facts: report.HostFacts) -> report.Findings:
    """Yield findings for specifications that engines skip, or that have warnings."""
    for spec in facts.specs:
        path = report.text(spec.get("path"))
        if spec.get("valid") is False:
            reasons = core_text.joined([report.without_path(error, path) for error in report.texts(spec.get("errors"))])
            message = f"{path} is invalid, so engines skip it. {reasons}".rstrip()
            severity = report.CRITICAL if _may_have_gpus(spec) and facts.lacks_gpu_specs else report.WARNING
            yield _needs_writing(severity, "cdi-invalid", path, message, _writing(spec, facts))
        warnings = report.texts(spec.get("warnings"))
        if warnings:
            message = f"{path} has unusual content: {'; '.join(each.rstrip('.') for each in warnings)}."
            yield report.info("cdi-unusual-content", path, message, "No action is needed if this is intended.")


def _needs_writing(severity: str, name: str, subject: str, message: str, step: str) -> report.Finding:
    """Return the finding for a specification. A Docker may need the same step."""
    explains = (report.Consequence("docker-needs-cdi", advice=step),)
    return report.Finding(severity, name, subject, message, step, explains)


def _may_have_gpus(spec: t.Mapping[str, t.Any]) -> bool:
    """Return whether a specification is one of the GPUs. The kind of an invalid file may be unknown."""
    return spec.get("kind") in (None, core_constants.GPU_KIND)


def _writing(spec: t.Mapping[str, t.Any], facts: report.HostFacts) -> str:
    """Return the step that replaces a specification.

    The playbook site writes one file with the GPUs. Beside another file of the GPUs, this file would make all devices
    unresolvable, so that file must go.
    """
    if _may_have_gpus(spec) and spec.get("path") == facts.site_spec:
        return steps.WRITE_SPECIFICATION
    is_of_gpus = spec.get("kind") == core_constants.GPU_KIND
    return steps.REPLACE_SPECIFICATION if is_of_gpus else steps.WRITE_OTHER_SPECIFICATION


def stale(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all specifications that are stale for the same reasons."""
    for subject, specs in stale_specs(facts).items():
        paths = {report.text(spec.get("path")) for spec in specs}
        reasons = report.joined(reason.message for reason in report.problems_in(specs[0].get("reasons")))
        message = f"{subject} do{'es' if len(paths) == 1 else ''} not match the host. {reasons}".rstrip()
        severity = report.CRITICAL if paths & facts.gpu_specs else report.WARNING
        yield _needs_writing(severity, "cdi-stale", subject, message, _writing(specs[0], facts))


def stale_specs(facts: report.HostFacts) -> dict[str, list[dict[str, t.Any]]]:
    """Return the stale specifications with the same reasons and the same step, by the subject of their finding."""
    groups: dict[tuple[str, ...], list[dict[str, t.Any]]] = {}
    for spec in facts.specs:
        if spec.get("stale") is True:
            reasons = [reason.message for reason in report.problems_in(spec.get("reasons"))]
            groups.setdefault((_writing(spec, facts), *reasons), []).append(spec)
    return {core_text.listed([report.text(spec.get("path")) for spec in specs]): specs for specs in groups.values()}


def conflicts(facts: report.HostFacts) -> report.Findings:
    """Yield findings for devices that several files define."""
    conflicting, devices = report.table(facts.cdi.get("conflicts")), report.table(facts.cdi.get("devices"))
    for paths, names in _by_paths(conflicting.get("unresolvable")).items():
        message = (
            f"{' and '.join(paths)} are in the same directory and define the same devices, so engines find none of"
            f" these devices: {core_text.listed(names)}."
        )
        yield report.critical("cdi-conflict", paths[-1], message, _keeping_one(names))
    for paths, names in _by_paths(conflicting.get("shadowed")).items():
        used = list(dict.fromkeys(report.text(devices.get(name)) for name in names))
        message = (
            f"Engines ignore these devices in {' and '.join(paths)}: {core_text.listed(names)}. A file in a directory"
            f" with precedence also defines them: {core_text.listed(used)}."
        )
        if facts.refresh.get("enabled") is True and report.text(facts.refresh.get("output")) in used:
            message = f"{message} {facts.refresh_service} writes it again after each update of the driver."
        yield report.warning("cdi-conflict", paths[-1], message, _keeping_one(names))


def _keeping_one(names: t.Sequence[str]) -> str:
    """Return the step for files with the same devices. The playbook site removes only other files of the GPUs."""
    of_gpus = all(name.startswith(report.GPU_NAMES) for name in names)
    return steps.KEEP_ONE_SPECIFICATION if of_gpus else steps.KEEP_ONE_OTHER_SPECIFICATION


def _by_paths(by_name: t.Any) -> dict[tuple[str, ...], list[str]]:
    """Return the devices, grouped by the files that define them."""
    paths = {name: tuple(report.texts(paths)) for name, paths in report.table(by_name).items()}
    return cdi_registry.grouped({name: found for name, found in paths.items() if found})


_IGNORED_ADVICE = {
    ignored.LINKED: "Replace the link by a directory, or name its target in the settings of the engines.",
    ignored.SUFFIX: "Rename the file, so that it ends in .yaml.",
    ignored.UNREADABLE: "Set the mode of directories to 0755 and of files to 0644.",
}


def ignored_files(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for files that engines ignore. Permissions matter only for rootless engines, such as Podman's."""
    if "cdi" not in facts.collected:
        return
    has_rootless = any(
        report.facts_of(row).rootless or report.text(row.get("flavor")) in flavors.OF_USERS for row in facts.engines
    )
    for found in ignored.ignored_paths(host):
        if found.kind != ignored.UNREADABLE or has_rootless:
            is_cause = found.kind != ignored.UNREADABLE and facts.has_gpu and facts.lacks_gpu_specs
            severity = report.CRITICAL if is_cause else report.WARNING
            yield report.Finding(severity, "cdi-file-ignored", found.path, found.message, _IGNORED_ADVICE[found.kind])


# -- engines ---------------------------------------------------------------------------------------------------------


def engine_limits(facts: report.HostFacts) -> report.Findings:
    """Yield findings for engines whose release cannot read the specifications of the GPUs."""
    for engine, support in _engines(facts):
        if not support.reads and facts.gpu_specs:
            message = f"{support} does not read CDI specifications."
            runtime = ", or the runtime nvidia" if "runtime_name" in report.facts_of(engine).options else ""
            advice = f"Use a newer release{runtime}."
            yield report.info("cdi-unsupported", report.target_of(engine), message, advice)


def too_new(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for each specification that engines may skip, because its version is newer than they support."""
    for spec in facts.specs:
        version = report.text(spec.get("cdi_version"))
        found = [pair for pair in _engines(facts) if spec.get("valid") is True and _is_newer(version, pair[1])]
        if not found:
            continue
        # The table of an engine's releases has gaps, in which a release may support more.
        known = [f"{support}, which is known to support CDI up to {support.newest}" for _engine, support in found]
        path = report.text(spec.get("path"))
        message = f"{path} has CDI version {version}, so it may be skipped by {core_text.listed(known)}."
        targets = core_text.listed([report.target_of(engine) for engine, _support in found])
        severity = report.CRITICAL if _may_have_gpus(spec) else report.WARNING
        advice = _writing(spec, facts)
        advice = steps.LOWER_SPECIFICATION if advice == steps.WRITE_SPECIFICATION else advice
        yield report.Finding(severity, "cdi-unsupported", targets, message, advice)


def _is_newer(version: str, support: cdi_support.CdiEngine) -> bool:
    if not support.reads or support.newest is None:
        return False
    try:
        return cdi_versions.version_number(version) > cdi_versions.version_number(support.newest)
    except ValueError:
        return False


def unread_directories(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for engines that read none of the directories with a specification of the GPUs.

    The directories are those that the engine reports or its configuration names, otherwise the defaults of its release.
    """
    directories = {_real(host, posixpath.dirname(path)) for path in facts.gpu_specs}
    groups: dict[tuple[str, bool, tuple[str, ...]], list[tuple[str, str]]] = {}
    for engine, support in _engines(facts):
        named = engine.get("cdi_directories")
        read = tuple(report.texts(named)) if isinstance(named, list) else support.folders
        if not support.reads or not directories or directories & {_real(host, directory) for directory in read}:
            continue
        is_known = engine.get("readable") is not False
        # Containers of other engines can get GPUs from the runtime.
        needs_cdi = "runtime_name" not in report.facts_of(engine).options
        severity = report.CRITICAL if is_known and needs_cdi else report.WARNING
        groups.setdefault((severity, is_known, read), []).append((report.target_of(engine), str(support)))
    for (severity, is_known, read), engines in groups.items():
        names = core_text.listed([name for _target, name in engines])
        unless = "" if is_known else ", unless the configuration names another directory"
        yield report.Finding(
            severity,
            "cdi-directory-not-read",
            core_text.listed([target for target, _name in engines]),
            f"The specifications of the GPUs are {core_text.listed(sorted(facts.gpu_specs))}, but {names}"
            f" read{'s' if len(engines) == 1 else ''} only {' and '.join(read) or 'no directory'}{unless}.",
            steps.MOVE_SPECIFICATION,
        )


def _real(host: hostfs.HostFS, directory: str) -> str:
    """Return the directory with links resolved. /var/run is /run on every host, even if the link does not exist yet."""
    try:
        real = host.resolve(directory)
    except errors.HostError:
        real = directory
    return real[len("/var") :] if f"{real}/".startswith("/var/run/") else real


def _engines(facts: report.HostFacts) -> t.Iterator[tuple[dict[str, t.Any], cdi_support.CdiEngine]]:
    """Yield the engines whose version is known, with what this version supports of CDI. No command is run."""
    for engine in facts.engines:
        name, version = report.text(engine.get("engine")), core_text.parse_version(report.text(engine.get("version")))
        row = flavors.FLAVORS.get((name, report.text(engine.get("flavor"))))
        if version is not None and row is not None and row.own_version:
            yield engine, cdi_support.known_engine(name, core_text.dotted(version))


def docker_without_cdi(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a Docker that uses CDI devices for --gpus, unless the GPUs' specifications are fresh."""
    if not facts.has_gpu or facts.has_fresh_specs or not (facts.gpu_specs or facts.lacks_gpu_specs):
        return
    problem = "this host has no specification of its GPUs"
    if facts.gpu_specs:
        problem = "not all specifications of the GPUs are valid and fresh"
    for engine, support in _engines(facts):
        version, since = core_text.parse_version(support.version or ""), flavors.FACTS[support.name].gpus_by_cdi
        if version is not None and since is not None and version >= since:
            message = f"{support} uses CDI specifications for --gpus, but {problem}."
            severity = report.CRITICAL if facts.gpu_specs else report.WARNING
            target = report.target_of(engine)
            yield report.Finding(severity, "docker-needs-cdi", target, message, steps.WRITE_SPECIFICATION)


# -- refresh services ------------------------------------------------------------------------------------------------


def refresh(facts: report.HostFacts) -> report.Findings:
    """Yield findings for specifications that nothing writes again after an update of the driver."""
    if not facts.gpu_specs:
        return
    if facts.refresh.get("enabled") is False:
        message = f"{facts.refresh_service} is not enabled, so an update of the driver makes the specification stale."
        yield report.warning("cdi-refresh-missing", facts.refresh_service, message, steps.INSTALL_REFRESH)
    elif not facts.refresh and "refresh" in facts.cdi and not report.problems_in(facts.cdi.get("problems")):
        # Without a problem, the host has no service.
        volatile = sorted(path for path in facts.gpu_specs if path.startswith(_VOLATILE))
        others = sorted(facts.gpu_specs - set(volatile))
        events = [(volatile, "the host restarts"), (others, "the driver is updated")]
        message = " or ".join(f"{core_text.listed(paths)} again when {event}" for paths, event in events if paths)
        # The refresh units run nvidia-ctk, so without it they do not help.
        advice = steps.write_after_updates(bool(volatile)) if _lacks_nvidia_ctk(facts) else steps.INSTALL_REFRESH
        severity = report.WARNING if volatile else report.INFO
        subject = core_text.listed([*volatile, *others])
        yield report.Finding(severity, "cdi-refresh-missing", subject, f"No service writes {message}.", advice)


def _lacks_nvidia_ctk(facts: report.HostFacts) -> bool:
    """Return whether the host is known to lack nvidia-ctk."""
    return "toolkit" in facts.collected and refresh_units.PROGRAM not in report.table(facts.toolkit.get("programs"))


RULES = (faulty, stale, conflicts, engine_limits, too_new, docker_without_cdi, refresh)
HOST_RULES = (unread_directories, ignored_files)
