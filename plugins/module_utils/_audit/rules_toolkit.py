# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the toolkit: vulnerabilities, versions, packages, package sources and settings."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report, rules_cdi, rules_engines, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

TOOLKIT = report.TOOLKIT
# The setting by which NVIDIA mitigates the vulnerabilities in _MITIGATED, and the first version that has it (the last
# without it is 1.17.4). It has no effect on CDI specifications and on what a device plugin injects.
_MITIGATION, _MITIGATION_SINCE = "features.disable-cuda-compat-lib-hook", "1.17.5-rc.1"
_MITIGATED = ("CVE-2025-23266", "CVE-2025-23267")


def vulnerabilities(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all known vulnerabilities of each toolkit, with the version that fixes all.

    The severity is critical, or warning if the mitigation is set and applies to all of them.
    """
    for toolkit in facts.toolkits:
        entries = [entry for entry in report.rows(toolkit.get("known_cves")) if report.text(entry.get("name"))]
        abouts = {report.text(entry["name"]): report.text(entry.get("about")) for entry in entries}
        if not abouts:
            continue
        known = "1 known vulnerability" if len(abouts) == 1 else f"{len(abouts)} known vulnerabilities"
        each = ", ".join(f"{name} ({about})" if about else name for name, about in abouts.items())
        version = report.text(toolkit.get("version"))
        name = f"The toolkit{f' {version}' if version else ''}{report.toolkit_place(toolkit)}"
        message = f"{name} has {known}: {each}."
        mitigated = _mitigated(toolkit, abouts)
        if mitigated:
            hook = f"the hook with {' and '.join(mitigated)}"
            message += f" {_MITIGATION} removes {hook} from containers, but not from CDI specifications."
        severity = report.WARNING if len(mitigated) == len(abouts) else report.CRITICAL
        floor, fixed = _fixing_all(entries), ", ".join(abouts)
        advice = steps.update_other_toolkit(floor, fixed)
        if toolkit is facts.toolkit:
            advice = steps.update_toolkit(floor, fixed, bool(_held(facts)))
        yield report.Finding(severity, "known-cve", report.toolkit_subject(toolkit), message, advice)


def _mitigated(toolkit: t.Mapping[str, t.Any], names: t.Iterable[str]) -> list[str]:
    """Return the vulnerabilities to which the mitigation applies."""
    version = report.text(toolkit.get("version"))
    is_set = report.table(toolkit.get("settings")).get(_MITIGATION) is True
    # Older toolkits ignore the setting. Without a version, some parts may be older.
    applies = is_set and bool(version) and toolkit_installed.is_at_least(version, _MITIGATION_SINCE)
    return [name for name in names if applies and name in _MITIGATED]


def _fixing_all(vulnerabilities_: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """Return the lowest version in which all are fixed; empty if that of one of them is unknown."""
    floors = {report.text(entry.get("floor")) for entry in vulnerabilities_}
    versions = {floor: core_text.parse_version(floor) for floor in floors}
    if not floors or None in versions.values():
        return ""
    return max(floors, key=lambda floor: versions[floor] or ())


def unknown_version(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    for toolkit in facts.toolkits:
        if "known_cves" in toolkit and toolkit["known_cves"] is None:
            place = report.toolkit_place(toolkit)
            message = f"The version of the toolkit{place} is unknown, so its vulnerabilities are unknown too."
            advice = steps.CHECK_PROGRAMS if host.live else steps.INSPECT_RUNNING_HOST
            yield report.info("toolkit-version-unknown", report.toolkit_subject(toolkit), message, advice)


def missing(facts: report.HostFacts) -> report.Findings:
    parts = report.table(facts.toolkit.get("packages")) or any(
        report.table(one.get("programs")) for one in facts.toolkits
    )
    has_engine = any(engine.get("installed") is True for engine in facts.engines)
    if "programs" not in facts.toolkit or parts or not facts.has_gpu or not has_engine:
        return
    if facts.has_fresh_specs and not rules_engines.has_nvidia_runtime(facts.engines):
        # A specification without hooks needs none of NVIDIA's programs; one with a missing hook is stale.
        message = "The NVIDIA Container Toolkit is not installed. Containers get GPUs only as CDI devices."
        yield report.info("toolkit-missing", TOOLKIT, message, steps.INSTALL_TOOLKIT)
    else:
        message = "The host has a GPU and container engines, but not the NVIDIA Container Toolkit."
        yield report.critical(
            "toolkit-missing", TOOLKIT, message, steps.INSTALL_TOOLKIT, tuple(_without_toolkit(facts))
        )


def _without_toolkit(facts: report.HostFacts) -> t.Iterator[report.Consequence]:
    """Yield what lacks only the toolkit: the program of a runtime, or programs that a specification names."""
    yield report.Consequence("runtime-missing", advice=steps.INSTALL_FOR_RUNTIMES)
    for engine in facts.engines:
        name = report.text(engine.get("default_runtime"))
        if engines_base.is_nvidia_runtime(name, report.table(engine.get("runtimes")).get(name)):
            yield report.Consequence("runtime-missing", report.target_of(engine), steps.INSTALL_FOR_DEFAULT)
    for subject, specs in rules_cdi.stale_specs(facts).items():
        codes = {reason.code for spec in specs for reason in report.problems_in(spec.get("reasons"))}
        missing = [posixpath.basename(path) for spec in specs for path in report.texts(spec.get("missing_paths"))]
        if codes == {cdi_compare.PATH_MISSING} and {*missing} <= {*toolkit_constants.ALL_PROGRAMS}:
            yield report.Consequence("cdi-stale", subject)


def version_mismatches(facts: report.HostFacts) -> report.Findings:
    for message in report.texts(facts.toolkit.get("version_mismatches")):
        yield report.warning("toolkit-inconsistent", TOOLKIT, message, steps.ALIGN_TOOLKIT)


def hook_missing(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for each engine with a runtime in mode legacy, on a host that has only the base package."""
    packages_ = report.table(facts.toolkit.get("packages"))
    has_hook = runtime_settings.HOOK in report.table(facts.toolkit.get("programs"))
    if has_hook or not packages_ or toolkit_installed.package_set(packages_) == packages_base.PACKAGES:
        return
    settings = report.table(facts.toolkit.get("settings"))
    mode = report.text(settings.get(runtime_settings.KEYS["mode"])) or runtime_settings.AUTO
    version = report.text(facts.toolkit.get("version")) or None
    for engine in facts.engines:
        # The daemon may report another program than the files have.
        tables = (report.table(part.get("runtimes")) for part in (engine, report.table(engine.get("live"))))
        legacy = [
            name
            for name, program in (pair for found in tables for pair in found.items())
            if _is_packaged_runtime(program) and runtime_settings.needs_hook(program, mode, version)
        ]
        if legacy:
            names = list(dict.fromkeys(legacy))
            runtimes = f"runtime{'' if len(names) == 1 else 's'} {core_text.listed(names)}"
            message = (
                f"The {runtimes} must run {runtime_settings.HOOK} (mode legacy), but only"
                f" {' and '.join(toolkit_installed.package_set(packages_))} is installed. No container gets a GPU."
            )
            yield report.critical("hook-missing", report.target_of(engine), message, steps.INSTALL_HOOK)


def _is_packaged_runtime(program: t.Any) -> bool:
    """Return whether a program is a runtime of the packages. A toolkit in a directory has a hook of its own."""
    is_nvidia = engines_base.is_nvidia_program(program)
    return is_nvidia and posixpath.dirname(program) in ("", toolkit_installed.PROGRAM_DIR)


def unused_packages(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield a finding for the packages of the hook on a host whose engines get GPUs by CDI devices only.

    An engine whose files cannot be read, or that was not inspected, may use the hook.
    """
    base = packages_base.PACKAGE_SETS[packages_base.BASE]
    others = [name for name in report.table(facts.toolkit.get("packages")) if name in packages_base.PACKAGES]
    others = [name for name in others if name not in base]
    is_known = all(
        engine.get("inspected") is not False and not report.problems_in(engine.get("problems"))
        for engine in facts.engines
    )
    if not others or not facts.engines or not is_known or not facts.gpu_specs:
        return
    has_hook = any(map(host.lexists, nvidia_files.HOOK_PATHS)) or any(map(_runs_hook, facts.engines))
    if not has_hook and not rules_engines.has_nvidia_runtime(facts.engines):
        message = f"No engine uses {_with_versions(facts, others)}: none has a runtime of NVIDIA or its hook."
        yield report.info("package-unused", TOOLKIT, message, steps.REMOVE_UNUSED)


def _runs_hook(engine: t.Mapping[str, t.Any]) -> bool:
    """Return whether an engine without a runtime of NVIDIA runs the hook: for --gpus of Docker, or as an OCI hook."""
    version, since = core_text.parse_version(report.text(engine.get("version"))), report.facts_of(engine).gpus_by_cdi
    for_gpus = since is not None and (version is None or version < since)
    names = map(posixpath.basename, report.texts(engine.get("recorded_files")))
    return for_gpus or nvidia_files.HOOK_NAME in names


def packages(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all predecessors of the toolkit, and one for all packages that are held."""
    obsolete = [name for name in report.table(facts.toolkit.get("packages")) if name in packages_base.REPLACED_PACKAGES]
    if obsolete:
        message = f"Packages of predecessors of the toolkit are installed: {_with_versions(facts, obsolete)}."
        message += " They no longer get updates."
        yield report.warning("obsolete-package", TOOLKIT, message, steps.REPLACE_PACKAGES)
    held = _held(facts)
    if held:
        message = f"The package manager holds {_with_versions(facts, held)}, so security updates are not installed."
        yield report.info("package-held", TOOLKIT, message, steps.RELEASE_HOLD)


def _held(facts: report.HostFacts) -> list[str]:
    packages_ = report.table(facts.toolkit.get("packages"))
    return [name for name, package in packages_.items() if report.table(package).get("held") is True]


def _with_versions(facts: report.HostFacts, names: t.Iterable[str]) -> str:
    """Return the packages, grouped by version."""
    by_version: dict[str, list[str]] = {}
    for name in names:
        package = report.table(report.table(facts.toolkit.get("packages")).get(name))
        by_version.setdefault(report.text(package.get("version")), []).append(name)
    return "; ".join(f"{', '.join(found)} {version}".rstrip() for version, found in by_version.items())


def sources(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all files that can be removed, and one for entries of files that have others too."""
    groups: dict[bool, dict[str, list[str]]] = {}
    for entry in report.rows(facts.toolkit.get("conflicting_sources")):
        path, line, address = (entry.get(name) for name in ("path", "line", "address"))
        if report.text(path):
            place = f"line {line}: {address}" if report.text(address) else ""
            groups.setdefault(bool(place), {}).setdefault(str(path), []).append(place)
    for is_entry, by_path in groups.items():
        places = [f"{path} ({', '.join(found)})" if is_entry else path for path, found in by_path.items()]
        message = (
            f"Other package sources conflict with the one that this collection writes: {core_text.listed(places)}. apt"
            " refuses two sources with one address and different keys. dnf and zypper may install packages from either."
        )
        advice = "Remove the entries from these files." if is_entry else steps.REMOVE_SOURCES
        yield report.warning("conflicting-source", core_text.listed(list(by_path)), message, advice)


def unsafe_settings(facts: report.HostFacts) -> report.Findings:
    for toolkit in facts.toolkits:
        path = report.text(toolkit.get("config_path")) or TOOLKIT
        advice = steps.SET_TOOLKIT_SETTING if toolkit is facts.toolkit else steps.SET_OTHER_TOOLKIT
        for message in report.texts(toolkit.get("unsafe_settings")):
            yield report.warning("unsafe-setting", path, message, advice)


def reboot(facts: report.HostFacts) -> report.Findings:
    if facts.toolkit.get("reboot_required") is True:
        message = "The host needs a reboot. Until then it may use a previous kernel or driver."
        yield report.info("reboot-required", "host", message, steps.RESTART_HOST)


def hook_containers(facts: report.HostFacts) -> report.Findings:
    names = report.texts(facts.toolkit.get("gpu_containers"))
    if names:
        yield report.warning(
            "containers-lose-gpus",
            TOOLKIT,
            f"These containers got their GPUs from the toolkit's hook: {core_text.listed(names)}. They lose the GPUs"
            " when systemd reloads its units, for example during an update of packages.",
            "Start them again with CDI devices before you update packages on the host.",
        )


RULES = (
    vulnerabilities,
    missing,
    version_mismatches,
    hook_missing,
    packages,
    sources,
    unsafe_settings,
    reboot,
    hook_containers,
)
HOST_RULES = (unknown_version, unused_packages)
