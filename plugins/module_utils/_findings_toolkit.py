# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the description of the toolkit says of vulnerabilities, parts that do not fit
# together, and what would stand in the way of another version.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    NOTE,
    WARNING,
    Described,
    Finding,
    rows,
    table,
    text,
    texts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import FORMER_PACKAGES

TOOLKIT = "toolkit"
# NVIDIA's mitigation; it reaches neither CDI specifications nor what a device plugin injects.
_MITIGATION = "features.disable-cuda-compat-lib-hook"
_MITIGATED = ("CVE-2025-23266", "CVE-2025-23267")
_UPGRADE = "Install {floor} or newer with nvidia_toolkit_install; all four packages move together."


def vulnerabilities(described: Described) -> t.Iterator[Finding]:
    """Those that the installed version is open to; milder where a setting closes a part of the way."""
    closed = table(described.toolkit.get("settings")).get(_MITIGATION) is True
    for entry in rows(described.toolkit.get("open_cves")):
        name, floor = text(entry.get("name")), text(entry.get("floor"))
        if not name:
            continue
        mitigated = closed and name in _MITIGATED
        about = f" ({text(entry.get('about'))})" if text(entry.get("about")) else ""
        said = f"The toolkit is open to {name}{about}, which {floor or 'a newer version'} closes."
        if mitigated:
            said += f" {_MITIGATION} keeps its hook out of containers, but not out of CDI specifications."
        severity = WARNING if mitigated else CRITICAL
        yield Finding(severity, "open-cve", TOOLKIT, said, _UPGRADE.format(floor=floor or "the newest version"))


def unknown_version(described: Described) -> t.Iterator[Finding]:
    if described.toolkit and "open_cves" in described.toolkit and described.toolkit["open_cves"] is None:
        yield Finding(
            NOTE,
            "toolkit-version-unknown",
            TOOLKIT,
            "Nothing of the toolkit tells its version, so it is not known whether it has vulnerabilities.",
            "Look at a running host, or install the toolkit with nvidia_toolkit_install.",
        )


def missing(described: Described) -> t.Iterator[Finding]:
    toolkit = described.toolkit
    there = [engine for engine in described.engines if engine.get("installed") is True]
    if "programs" not in toolkit or table(toolkit["programs"]) or table(toolkit.get("packages")):
        return
    if described.has_gpu and there:
        yield Finding(
            CRITICAL,
            "toolkit-missing",
            TOOLKIT,
            "The host has a GPU and container engines, but nothing of the NVIDIA Container Toolkit.",
            "Install it with nvidia_toolkit_install.",
        )


def differences(described: Described) -> t.Iterator[Finding]:
    for sentence in texts(described.toolkit.get("differences")):
        advice = "Bring all parts to one version with nvidia_toolkit_install."
        yield Finding(WARNING, "toolkit-parts-differ", TOOLKIT, sentence, advice)


def packages(described: Described) -> t.Iterator[Finding]:
    """Forerunners of the toolkit, and packages that are held."""
    for name, package in table(described.toolkit.get("packages")).items():
        version = text(table(package).get("version"))
        if name in FORMER_PACKAGES:
            yield Finding(
                WARNING,
                "former-package",
                TOOLKIT,
                f"The package {name} {version} is a forerunner of the toolkit, which no longer gets updates.",
                "Have nvidia_toolkit_install replace it.",
            )
        if table(package).get("held") is True:
            yield Finding(
                NOTE,
                "package-held",
                TOOLKIT,
                f"The package manager was told to keep {name} {version}.",
                "Nothing, if that is meant so; updates that close vulnerabilities do not come either.",
            )


def sources(described: Described) -> t.Iterator[Finding]:
    for entry in rows(described.toolkit.get("conflicting_sources")):
        path, line, address = (entry.get(name) for name in ("path", "line", "address"))
        if text(path):
            place = f", line {line}, names {address}, and so" if text(address) else ""
            yield Finding(
                WARNING,
                "conflicting-source",
                text(path),
                f"{path}{place} contends with the source that this collection writes: apt refuses two that name their"
                " keys differently, and dnf may take either.",
                "Take the entry out." if text(address) else "Have nvidia_toolkit_install remove the file.",
            )


def unsafe_settings(described: Described) -> t.Iterator[Finding]:
    path = text(described.toolkit.get("config_path")) or TOOLKIT
    for sentence in texts(described.toolkit.get("unsafe_settings")):
        advice = "Change the setting with nvidia_toolkit_config."
        yield Finding(WARNING, "unsafe-setting", path, sentence, advice)


def reboot(described: Described) -> t.Iterator[Finding]:
    if described.toolkit.get("reboot_required") is True:
        yield Finding(
            NOTE,
            "reboot-required",
            "host",
            "The host waits for a reboot; a driver that was updated is not in use before.",
            "Restart the host when its containers can be stopped.",
        )


def hooked_containers(described: Described) -> t.Iterator[Finding]:
    names = texts(described.toolkit.get("gpu_containers"))
    if names:
        yield Finding(
            WARNING,
            "containers-lose-gpus",
            TOOLKIT,
            f"These containers got their GPUs from the toolkit's hook: {few(names)}. They lose them when systemd"
            " reloads its units, as updates of packages make it do.",
            "Start them anew with CDI devices, and update nothing on the host before.",
        )


RULES = (
    vulnerabilities,
    unknown_version,
    missing,
    differences,
    packages,
    sources,
    unsafe_settings,
    reboot,
    hooked_containers,
)
