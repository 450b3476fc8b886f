# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings about the toolkit: vulnerabilities, versions, packages, package sources and settings."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

TOOLKIT = "toolkit"
# NVIDIA's mitigation. It affects neither CDI specifications nor what a device plugin injects.
_MITIGATION = "features.disable-cuda-compat-lib-hook"
_MITIGATED = ("CVE-2025-23266", "CVE-2025-23267")
_UPGRADE = "Install {floor} or newer with nvidia_toolkit_install; all four packages move together."


def vulnerabilities(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield the known vulnerabilities of the installed version; a warning only if the mitigation is set."""
    closed = audit_finding.table(described.toolkit.get("settings")).get(_MITIGATION) is True
    for entry in audit_finding.rows(described.toolkit.get("known_cves")):
        name, floor = audit_finding.text(entry.get("name")), audit_finding.text(entry.get("floor"))
        if not name:
            continue
        mitigated = closed and name in _MITIGATED
        about = f" ({audit_finding.text(entry.get('about'))})" if audit_finding.text(entry.get("about")) else ""
        said = f"The toolkit is open to {name}{about}, which {floor or 'a newer version'} closes."
        if mitigated:
            said += f" {_MITIGATION} keeps its hook out of containers, but not out of CDI specifications."
        severity = audit_finding.WARNING if mitigated else audit_finding.CRITICAL
        yield audit_finding.Finding(
            severity, "open-cve", TOOLKIT, said, _UPGRADE.format(floor=floor or "the newest version")
        )


def unknown_version(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    if described.toolkit and "known_cves" in described.toolkit and described.toolkit["known_cves"] is None:
        yield audit_finding.Finding(
            audit_finding.INFO,
            "toolkit-version-unknown",
            TOOLKIT,
            "Nothing of the toolkit tells its version, so it is not known whether it has vulnerabilities.",
            "Look at a running host, or install the toolkit with nvidia_toolkit_install.",
        )


def missing(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    toolkit = described.toolkit
    there = [engine for engine in described.engines if engine.get("installed") is True]
    if (
        "programs" not in toolkit
        or audit_finding.table(toolkit["programs"])
        or audit_finding.table(toolkit.get("packages"))
    ):
        return
    if described.has_gpu and there:
        yield audit_finding.Finding(
            audit_finding.CRITICAL,
            "toolkit-missing",
            TOOLKIT,
            "The host has a GPU and container engines, but nothing of the NVIDIA Container Toolkit.",
            "Install it with nvidia_toolkit_install.",
        )


def version_mismatches(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for sentence in audit_finding.texts(described.toolkit.get("version_mismatches")):
        advice = "Bring all parts to one version with nvidia_toolkit_install."
        yield audit_finding.Finding(audit_finding.WARNING, "toolkit-parts-differ", TOOLKIT, sentence, advice)


def packages(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for predecessors of the toolkit, and for packages that are held."""
    for name, package in audit_finding.table(described.toolkit.get("packages")).items():
        version = audit_finding.text(audit_finding.table(package).get("version"))
        if name in packages_base.REPLACED_PACKAGES:
            yield audit_finding.Finding(
                audit_finding.WARNING,
                "former-package",
                TOOLKIT,
                f"The package {name} {version} is a forerunner of the toolkit, which no longer gets updates.",
                "Have nvidia_toolkit_install replace it.",
            )
        if audit_finding.table(package).get("held") is True:
            yield audit_finding.Finding(
                audit_finding.INFO,
                "package-held",
                TOOLKIT,
                f"The package manager was told to keep {name} {version}.",
                "Nothing, if that is meant so; updates that close vulnerabilities do not come either.",
            )


def sources(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for entry in audit_finding.rows(described.toolkit.get("conflicting_sources")):
        path, line, address = (entry.get(name) for name in ("path", "line", "address"))
        if audit_finding.text(path):
            place = f", line {line}, names {address}, and so" if audit_finding.text(address) else ""
            yield audit_finding.Finding(
                audit_finding.WARNING,
                "conflicting-source",
                audit_finding.text(path),
                f"{path}{place} contends with the source that this collection writes: apt refuses two that name their"
                " keys differently, and dnf may take either.",
                "Take the entry out."
                if audit_finding.text(address)
                else "Have nvidia_toolkit_install remove the file.",
            )


def unsafe_settings(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    path = audit_finding.text(described.toolkit.get("config_path")) or TOOLKIT
    for sentence in audit_finding.texts(described.toolkit.get("unsafe_settings")):
        advice = "Change the setting with nvidia_toolkit_config."
        yield audit_finding.Finding(audit_finding.WARNING, "unsafe-setting", path, sentence, advice)


def reboot(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    if described.toolkit.get("reboot_required") is True:
        yield audit_finding.Finding(
            audit_finding.INFO,
            "reboot-required",
            "host",
            "The host waits for a reboot; a driver that was updated is not in use before.",
            "Restart the host when its containers can be stopped.",
        )


def hooked_containers(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    names = audit_finding.texts(described.toolkit.get("gpu_containers"))
    if names:
        yield audit_finding.Finding(
            audit_finding.WARNING,
            "containers-lose-gpus",
            TOOLKIT,
            f"These containers got their GPUs from the toolkit's hook: {core_text.listed(names)}. They lose them when"
            f" systemd"
            " reloads its units, as updates of packages make it do.",
            "Start them anew with CDI devices, and update nothing on the host before.",
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
    hooked_containers,
)
