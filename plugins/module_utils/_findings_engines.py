# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the description of the engines says of those that run with something else than their
# files, and of runtimes that no container can be started with.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    NOTE,
    WARNING,
    Described,
    Finding,
    number,
    table,
    target_of,
    text,
    texts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_runtime

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

    Known = t.Mapping[str, t.Any]

_RESTART = "Let it take its files over with nvidia_runtime_restart."


def behind_its_files(described: Described) -> t.Iterator[Finding]:
    for engine in described.engines:
        if engine.get("restart_required") is True:
            said = f"{target_of(engine)} runs with an older configuration than its files hold."
            yield Finding(WARNING, "restart-pending", target_of(engine), said, _RESTART)
        if engine.get("unfinished_restart") is True:
            said = f"A restart of {target_of(engine)} was cut off before its new state was proven or the old one back."
            yield Finding(WARNING, "restart-unfinished", target_of(engine), said, _RESTART)


def dead_cri(described: Described) -> t.Iterator[Finding]:
    for engine in described.engines:
        if _has_dead_cri(engine):
            said = f"{target_of(engine)} runs, but its CRI does not answer: no pod can be started."
            yield Finding(CRITICAL, "cri-dead", target_of(engine), said, _REPAIR)


_REPAIR = "Look for the plugin cri in its journal and in ctr plugins ls, and correct the file that is named there."


def _has_dead_cri(engine: Known) -> bool:
    """A containerd that runs with runtimes in its files and tells of none."""
    live = table(engine.get("live"))
    answers = text(live.get("version")) or table(live.get("runtimes"))
    is_containerd = engine.get("engine") == "containerd" and engine.get("running") is True
    return is_containerd and bool(live) and not answers and bool(table(engine.get("runtimes")))


def not_inspected(described: Described) -> t.Iterator[Finding]:
    for engine in described.engines:
        if engine.get("inspected") is False and engine.get("running") is True:
            user = text(engine.get("user"))
            said = f"The user {user} runs a rootless Docker, which was not inspected: root opens no files of users."
            advice = f"Name {user} in nvidia_runtime_users, or run the module as that user (become_user: {user})."
            yield Finding(NOTE, "not-inspected", target_of(engine), said, advice)


def default_runtime(described: Described, host: HostRoot) -> t.Iterator[Finding]:
    """A default with which no container starts at all."""
    for engine in described.engines:
        name, runtimes = text(engine.get("default_runtime")), table(engine.get("runtimes"))
        program = text(runtimes.get(name))
        if program and _is_gone(host, engine, program):
            yield Finding(
                CRITICAL,
                "default-runtime-gone",
                target_of(engine),
                f"The default runtime {name} runs {program}, which is not there: no container starts.",
                "Install the toolkit, or name another default with nvidia_runtime_config.",
            )
        elif described.has_gpu is False and is_nvidia_runtime(name, program):
            yield Finding(
                CRITICAL,
                "default-runtime-without-gpu",
                target_of(engine),
                f"The default runtime is {name}, and the host has no GPU: containers may not start.",
                "Set another default with nvidia_runtime_config (set_as_default: false).",
            )
        if _is_undefined(engine, name):
            yield Finding(
                CRITICAL,
                "default-runtime-undefined",
                target_of(engine),
                f"The default runtime {name} is defined nowhere: the CRI does not start with it.",
                "Register it with nvidia_runtime_config, or name another default.",
            )


def _is_undefined(engine: Known, name: str) -> bool:
    """Only of what files alone define: flags of a unit define runtimes of other engines."""
    live = table(table(engine.get("live")).get("runtimes"))
    plain = engine.get("engine") == "containerd" and text(engine.get("flavor")) in ("", "system")
    return plain and is_nvidia_runtime(name, None) and name not in table(engine.get("runtimes")) and name not in live


def programs(described: Described, host: HostRoot) -> t.Iterator[Finding]:
    """Runtimes beside the default one whose programs are gone."""
    for engine in described.engines:
        for name, program in table(engine.get("runtimes")).items():
            if name == text(engine.get("default_runtime")) or not _is_gone(host, engine, text(program)):
                continue
            ours = is_nvidia_runtime(name, program)
            yield Finding(
                WARNING if ours else NOTE,
                "runtime-program-gone",
                target_of(engine),
                f"The runtime {name} runs {program}, which is not there: no container starts with it.",
                "Install the toolkit, or take the runtime out (nvidia_runtime_config with purge_legacy: true)."
                if ours
                else "Install its program, or take the runtime out.",
            )


def _is_gone(host: HostRoot, engine: Known, program: str) -> bool:
    """Whether a program is not there; one without a path is looked up where a service of the system would find it."""
    if not program or (not program.startswith("/") and text(engine.get("flavor")) not in ("", "system")):
        return False
    return host.find_executable([program]) is None


def without_gpus(described: Described) -> t.Iterator[Finding]:
    """GPUs that no engine gives to containers."""
    inspected = (engine for engine in described.engines if engine.get("inspected") is not False)
    there = [engine for engine in inspected if engine.get("installed") is True]
    if not described.has_gpu or not there or not table(described.toolkit.get("programs")):
        return
    # Podman needs nothing but a specification, and the others could do with one too.
    blind = [engine for engine in there if not _gives_gpus(engine)]
    if len(blind) == len(there) and "cdi" in described.gathered and not described.devices():
        yield Finding(
            CRITICAL,
            "gpus-not-configured",
            "host",
            "The host has a GPU and the toolkit, but no engine registers its runtime and no CDI specification has GPUs,"
            " so no container can get one.",
            "Register the runtime with nvidia_runtime_config, or write a specification with nvidia_cdi_spec.",
        )


def _gives_gpus(engine: Known) -> bool:
    known = {**table(engine.get("runtimes")), **table(table(engine.get("live")).get("runtimes"))}
    return any(is_nvidia_runtime(name, program) for name, program in known.items())


def cdi_off(described: Described) -> t.Iterator[Finding]:
    for engine in described.engines:
        if described.devices() and table(engine.get("live")).get("cdi") is False:
            yield Finding(
                NOTE,
                "cdi-off",
                target_of(engine),
                f"{target_of(engine)} runs with CDI switched off, so the host's specifications are of no use to it.",
                "Switch it on with nvidia_runtime_config (enable_cdi: true).",
            )


def at_stake(described: Described) -> t.Iterator[Finding]:
    """Containers that a restart of Docker would stop."""
    for engine in described.engines:
        live = table(engine.get("live"))
        running = number(live.get("running_containers"))
        if live.get("live_restore") is False and running:
            yield Finding(
                NOTE,
                "live-restore-off",
                target_of(engine),
                f"live-restore is off, so a restart would stop {running} container{'s' if running > 1 else ''}.",
                'Set "live-restore": true in its file, which a reload takes over.',
            )


def left_behind(described: Described) -> t.Iterator[Finding]:
    """Our changes to the files of an engine that is gone."""
    for engine in described.engines:
        files = texts(engine.get("recorded_files"))
        if files and engine.get("installed") is False:
            names = ", ".join(posixpath.basename(path) for path in files)
            said = f"{target_of(engine)} is not installed, but this collection has changed {names} for it."
            advice = "Give the files back with nvidia_runtime_config, state: absent."
            yield Finding(NOTE, "engine-gone", target_of(engine), said, advice)


RULES = (behind_its_files, dead_cri, not_inspected, without_gpus, cdi_off, at_stake, left_behind)
HOST_RULES = (default_runtime, programs)
