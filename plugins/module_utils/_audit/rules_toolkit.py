# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about the toolkit: vulnerabilities, versions, packages, package sources and settings."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

TOOLKIT = "toolkit"
# The setting by which NVIDIA mitigates the vulnerabilities in _MITIGATED. It has no effect on CDI specifications and on
# what a device plugin injects.
_MITIGATION = "features.disable-cuda-compat-lib-hook"
_MITIGATED = ("CVE-2025-23266", "CVE-2025-23267")


def vulnerabilities(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for each known vulnerability of the installed version.

    The severity is critical, or warning if the mitigation is set.
    """
    is_set = report.table(facts.toolkit.get("settings")).get(_MITIGATION) is True
    for entry in report.rows(facts.toolkit.get("known_cves")):
        name, about = report.text(entry.get("name")), report.text(entry.get("about"))
        floor = report.text(entry.get("floor"))
        if not name:
            continue
        is_mitigated = is_set and name in _MITIGATED
        detail = f" ({about})" if about else ""
        message = f"The toolkit has the vulnerability {name}{detail}. It is fixed in {floor or 'a newer version'}."
        if is_mitigated:
            message += f" {_MITIGATION} removes the affected hook from containers, but not from CDI specifications."
        fixed = f"{floor} or newer" if floor else "the newest version"
        advice = f"Install {fixed} with nvidia_toolkit_install, which updates all four packages together."
        severity = report.WARNING if is_mitigated else report.CRITICAL
        yield report.Finding(severity, "known-cve", TOOLKIT, message, advice)


def unknown_version(facts: report.HostFacts) -> report.Findings:
    if "known_cves" in facts.toolkit and facts.toolkit["known_cves"] is None:
        message = "The version of the toolkit is unknown, so its vulnerabilities are unknown too."
        advice = (
            "Inspect the running host instead of its directory tree, or install the toolkit with"
            " nvidia_toolkit_install."
        )
        yield report.info("toolkit-version-unknown", TOOLKIT, message, advice)


def missing(facts: report.HostFacts) -> report.Findings:
    parts = report.table(facts.toolkit.get("programs")) or report.table(facts.toolkit.get("packages"))
    has_engine = any(engine.get("installed") is True for engine in facts.engines)
    if "programs" in facts.toolkit and not parts and facts.has_gpu and has_engine:
        message = "The host has a GPU and container engines, but not the NVIDIA Container Toolkit."
        yield report.critical("toolkit-missing", TOOLKIT, message, "Install it with nvidia_toolkit_install.")


def version_mismatches(facts: report.HostFacts) -> report.Findings:
    for message in report.texts(facts.toolkit.get("version_mismatches")):
        advice = "Install all parts at one version with nvidia_toolkit_install."
        yield report.warning("toolkit-version-mismatch", TOOLKIT, message, advice)


def packages(facts: report.HostFacts) -> report.Findings:
    """Yield findings for predecessors of the toolkit, and for packages that are held."""
    for name, package in report.table(facts.toolkit.get("packages")).items():
        version = report.text(report.table(package).get("version"))
        if name in packages_base.REPLACED_PACKAGES:
            message = f"The package {name} {version} is a predecessor of the toolkit. It no longer gets updates."
            yield report.warning("obsolete-package", TOOLKIT, message, "Replace it with nvidia_toolkit_install.")
        if report.table(package).get("held") is True:
            message = f"The package manager holds {name} at {version}, so it also gets no security updates."
            yield report.info("package-held", TOOLKIT, message, "Nothing is needed if this is intended.")


def sources(facts: report.HostFacts) -> report.Findings:
    for entry in report.rows(facts.toolkit.get("conflicting_sources")):
        path, line, address = (entry.get(name) for name in ("path", "line", "address"))
        if report.text(path):
            place, advice = f"{path}", "Run nvidia_toolkit_install with remove_conflicts: true, which removes the file."
            if report.text(address):
                place, advice = f"{path}, line {line} ({address}),", "Remove the entry."
            yield report.warning(
                "conflicting-source",
                report.text(path),
                f"{place} conflicts with the package source that this collection writes. apt refuses two"
                " sources with one address and different keys. dnf may install packages from either source.",
                advice,
            )


def unsafe_settings(facts: report.HostFacts) -> report.Findings:
    path = report.text(facts.toolkit.get("config_path")) or TOOLKIT
    for message in report.texts(facts.toolkit.get("unsafe_settings")):
        yield report.warning("unsafe-setting", path, message, "Change the setting with nvidia_toolkit_config.")


def reboot(facts: report.HostFacts) -> report.Findings:
    if facts.toolkit.get("reboot_required") is True:
        message = "The host needs a reboot. Until then it may use a previous kernel or driver."
        yield report.info("reboot-required", "host", message, "Restart the host when its containers can be stopped.")


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
    unknown_version,
    missing,
    version_mismatches,
    packages,
    sources,
    unsafe_settings,
    reboot,
    hook_containers,
)
