# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings about engines: pending restarts, broken runtimes, and GPUs that no engine offers to containers."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Known = t.Mapping[str, t.Any]


_RESTART = "Let it take its files over with nvidia_runtime_restart."


def behind_its_files(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for engine in described.engines:
        if engine.get("restart_required") is True:
            said = f"{audit_finding.target_of(engine)} runs with an older configuration than its files hold."
            yield audit_finding.Finding(
                audit_finding.WARNING, "restart-pending", audit_finding.target_of(engine), said, _RESTART
            )
        if engine.get("unfinished_restart") is True:
            said = (
                f"A restart of {audit_finding.target_of(engine)} was cut off before its new state was proven or the"
                f" old one back."
            )
            yield audit_finding.Finding(
                audit_finding.WARNING, "restart-unfinished", audit_finding.target_of(engine), said, _RESTART
            )


def dead_cri(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for engine in described.engines:
        if _has_dead_cri(engine):
            said = f"{audit_finding.target_of(engine)} runs, but its CRI does not answer: no pod can be started."
            yield audit_finding.Finding(
                audit_finding.CRITICAL, "cri-dead", audit_finding.target_of(engine), said, _REPAIR
            )


_REPAIR = "Look for the plugin cri in its journal and in ctr plugins ls, and correct the file that is named there."


def _has_dead_cri(engine: Known) -> bool:
    """Return whether containerd runs with runtimes in its files and reports none."""
    live = audit_finding.table(engine.get("live"))
    answers = audit_finding.text(live.get("version")) or audit_finding.table(live.get("runtimes"))
    is_containerd = engine.get("engine") == "containerd" and engine.get("running") is True
    return is_containerd and bool(live) and not answers and bool(audit_finding.table(engine.get("runtimes")))


def not_inspected(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for engine in described.engines:
        if engine.get("inspected") is False and engine.get("running") is True:
            user = audit_finding.text(engine.get("user"))
            said = f"The user {user} runs a rootless Docker, which was not inspected: root opens no files of users."
            advice = f"Name {user} in nvidia_runtime_users, or run the module as that user (become_user: {user})."
            yield audit_finding.Finding(
                audit_finding.INFO, "not-inspected", audit_finding.target_of(engine), said, advice
            )


def default_runtime(described: audit_finding.Described, host: hostfs.HostFS) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for a default runtime with which no container starts."""
    for engine in described.engines:
        name, runtimes = audit_finding.text(engine.get("default_runtime")), audit_finding.table(engine.get("runtimes"))
        program = audit_finding.text(runtimes.get(name))
        if program and _is_gone(host, engine, program):
            yield audit_finding.Finding(
                audit_finding.CRITICAL,
                "default-runtime-gone",
                audit_finding.target_of(engine),
                f"The default runtime {name} runs {program}, which is not there: no container starts.",
                "Install the toolkit, or name another default with nvidia_runtime_config.",
            )
        elif described.has_gpu is False and engines_base.is_nvidia_runtime(name, program):
            yield audit_finding.Finding(
                audit_finding.CRITICAL,
                "default-runtime-without-gpu",
                audit_finding.target_of(engine),
                f"The default runtime is {name}, and the host has no GPU: containers may not start.",
                "Set another default with nvidia_runtime_config (set_as_default: false).",
            )
        if _is_undefined(engine, name):
            yield audit_finding.Finding(
                audit_finding.CRITICAL,
                "default-runtime-undefined",
                audit_finding.target_of(engine),
                f"The default runtime {name} is defined nowhere: the CRI does not start with it.",
                "Register it with nvidia_runtime_config, or name another default.",
            )


def _is_undefined(engine: Known, name: str) -> bool:
    """Return whether the default runtime is not defined; only for engines whose files alone define runtimes.

    Other engines also define runtimes by flags of their unit.
    """
    live = audit_finding.table(audit_finding.table(engine.get("live")).get("runtimes"))
    plain = engine.get("engine") == "containerd" and audit_finding.text(engine.get("flavor")) in ("", "system")
    return (
        plain
        and engines_base.is_nvidia_runtime(name, None)
        and name not in audit_finding.table(engine.get("runtimes"))
        and name not in live
    )


def programs(described: audit_finding.Described, host: hostfs.HostFS) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for runtimes other than the default one whose programs are missing."""
    for engine in described.engines:
        for name, program in audit_finding.table(engine.get("runtimes")).items():
            if name == audit_finding.text(engine.get("default_runtime")) or not _is_gone(
                host, engine, audit_finding.text(program)
            ):
                continue
            ours = engines_base.is_nvidia_runtime(name, program)
            yield audit_finding.Finding(
                audit_finding.WARNING if ours else audit_finding.INFO,
                "runtime-program-gone",
                audit_finding.target_of(engine),
                f"The runtime {name} runs {program}, which is not there: no container starts with it.",
                "Install the toolkit, or take the runtime out (nvidia_runtime_config with purge_legacy: true)."
                if ours
                else "Install its program, or take the runtime out.",
            )


def _is_gone(host: hostfs.HostFS, engine: Known, program: str) -> bool:
    """Return whether a program is missing. A bare name is searched in the PATH of system services."""
    if not program or (not program.startswith("/") and audit_finding.text(engine.get("flavor")) not in ("", "system")):
        return False
    return host.find_executable([program]) is None


def without_gpus(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield a finding for a host with GPUs that no engine offers to containers."""
    inspected = (engine for engine in described.engines if engine.get("inspected") is not False)
    there = [engine for engine in inspected if engine.get("installed") is True]
    if not described.has_gpu or not there or not audit_finding.table(described.toolkit.get("programs")):
        return
    # Podman needs only a CDI specification, and the other engines can use one too.
    blind = [engine for engine in there if not _gives_gpus(engine)]
    if len(blind) == len(there) and "cdi" in described.gathered and not described.devices():
        yield audit_finding.Finding(
            audit_finding.CRITICAL,
            "gpus-not-configured",
            "host",
            "The host has a GPU and the toolkit, but no engine registers its runtime and no CDI specification has GPUs,"
            " so no container can get one.",
            "Register the runtime with nvidia_runtime_config, or write a specification with nvidia_cdi_spec.",
        )


def _gives_gpus(engine: Known) -> bool:
    known = {
        **audit_finding.table(engine.get("runtimes")),
        **audit_finding.table(audit_finding.table(engine.get("live")).get("runtimes")),
    }
    return any(engines_base.is_nvidia_runtime(name, program) for name, program in known.items())


def cdi_off(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    for engine in described.engines:
        if described.devices() and audit_finding.table(engine.get("live")).get("cdi") is False:
            yield audit_finding.Finding(
                audit_finding.INFO,
                "cdi-off",
                audit_finding.target_of(engine),
                f"{audit_finding.target_of(engine)} runs with CDI switched off, so the host's specifications are of no"
                f" use to it.",
                "Switch it on with nvidia_runtime_config (enable_cdi: true).",
            )


def at_stake(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for containers that a restart of Docker would stop."""
    for engine in described.engines:
        live = audit_finding.table(engine.get("live"))
        running = audit_finding.number(live.get("running_containers"))
        if live.get("live_restore") is False and running:
            yield audit_finding.Finding(
                audit_finding.INFO,
                "live-restore-off",
                audit_finding.target_of(engine),
                f"live-restore is off, so a restart would stop {running} container{'s' if running > 1 else ''}.",
                'Set "live-restore": true in its file, which a reload applies.',
            )


def left_behind(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield findings for files that this collection changed for an engine that is no longer installed."""
    for engine in described.engines:
        files = audit_finding.texts(engine.get("recorded_files"))
        if files and engine.get("installed") is False:
            names = ", ".join(posixpath.basename(path) for path in files)
            said = (
                f"{audit_finding.target_of(engine)} is not installed, but this collection has changed {names} for it."
            )
            advice = "Give the files back with nvidia_runtime_config, state: absent."
            yield audit_finding.Finding(
                audit_finding.INFO, "engine-gone", audit_finding.target_of(engine), said, advice
            )


RULES = (behind_its_files, dead_cri, not_inspected, without_gpus, cdi_off, at_stake, left_behind)
HOST_RULES = (default_runtime, programs)
