# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about engines: pending restarts, broken runtimes, and GPUs that no engine offers to containers."""

from __future__ import annotations

import contextlib
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import foreign_files, report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Engine = t.Mapping[str, t.Any]


def restarts(facts: report.HostFacts) -> report.Findings:
    for engine in facts.engines:
        target = report.target_of(engine)
        explains = facts.without_engine(target)
        if engine.get("restart_required") is True:
            message = f"{target} does not run with the current configuration in its files."
            yield report.warning("restart-pending", target, message, steps.RESTART_ENGINE, explains)
        elif engine.get("missed_toolkit") is True:
            message = f"{target} was started before the toolkit was installed, so it refuses --gpus."
            yield report.warning("restart-pending", target, message, steps.RESTART_ENGINE, explains)
        if engine.get("unfinished_restart") is True:
            message = f"A restart of {target} was interrupted before the engine was healthy or its files were restored."
            yield report.warning("restart-pending", target, message, steps.RESTART_ENGINE)


def cri_not_responding(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a containerd that runs with runtimes in its files and reports none."""
    for engine in facts.engines:
        live = report.table(engine.get("live"))
        answers = report.text(live.get("version")) or report.table(live.get("runtimes"))
        has_plugin = report.facts_of(engine).cri_plugin and engine.get("running") is True
        if has_plugin and live and not answers and report.table(engine.get("runtimes")):
            target = report.target_of(engine)
            message = f"{target} runs, but its CRI plugin does not answer. No pod can start."
            advice = (
                "Look for the cri plugin in the journal of the unit and in the output of ctr plugins ls. Correct the"
                " file that the error names."
            )
            yield report.critical("engine-not-responding", target, message, advice, facts.without_engine(target))


def not_inspected(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for all engines of users that run and were not inspected."""
    engines = [engine for engine in facts.engines if engine.get("inspected") is False and engine.get("running") is True]
    if engines:
        users = core_text.listed([report.text(engine.get("user")) for engine in engines])
        message = f"The rootless Docker of {users} was not inspected, because a task opens no files of other users."
        targets = core_text.listed([report.target_of(engine) for engine in engines])
        yield report.info("not-inspected", targets, message, steps.INSPECT_AS_USER)


def default_runtime(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for default runtimes with which no container starts."""
    for engine in facts.engines:
        target = report.target_of(engine)
        explains = facts.without_engine(target)
        name = report.text(engine.get("default_runtime"))
        program = report.text(report.table(engine.get("runtimes")).get(name))
        if program and _is_missing(host, engine, program):
            message = f"The default runtime {name} needs {program}, which does not exist. No container starts."
            advice = steps.INSTALL_FOR_DEFAULT
            yield report.critical("runtime-missing", target, message, advice, explains)
        elif facts.has_gpu is False and engines_base.is_nvidia_runtime(name, program):
            message = f"The default runtime is {name}, but the host has no GPU. Containers may not start."
            yield report.critical("default-runtime-without-gpu", target, message, steps.RESTORE_DEFAULT)
        if _is_undefined(engine, name):
            message = f"The default runtime {name} is not defined. The CRI plugin does not start."
            yield report.critical("runtime-missing", target, message, steps.REGISTER_DEFAULT, explains)


def _is_undefined(engine: Engine, name: str) -> bool:
    """Return whether the default runtime is not defined; only for engines whose files alone define runtimes.

    Other engines also define runtimes by flags of their unit.
    """
    files_only = report.facts_of(engine).files_define_runtimes and report.text(engine.get("flavor")) in ("", "system")
    return files_only and engines_base.is_nvidia_runtime(name, None) and name not in report.runtimes_of(engine)


def has_nvidia_runtime(engines: t.Iterable[Engine]) -> bool:
    """Return whether one of the engines has an NVIDIA runtime."""
    runtimes = [pair for engine in engines for pair in report.runtimes_of(engine).items()]
    return any(engines_base.is_nvidia_runtime(name, program) for name, program in runtimes)


def programs(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield findings for runtimes other than the default one whose programs are missing.

    All runtimes of NVIDIA of an engine are one finding, and all others are another.
    """
    for engine in facts.engines:
        target = report.target_of(engine)
        missing: dict[bool, dict[str, list[str]]] = {}
        for name, program in report.table(engine.get("runtimes")).items():
            is_default = name == report.text(engine.get("default_runtime"))
            if not is_default and _is_missing(host, engine, report.text(program)):
                is_nvidia = engines_base.is_nvidia_runtime(name, program)
                missing.setdefault(is_nvidia, {}).setdefault(report.text(program), []).append(name)
        places = _places_of_runtimes(host, facts, report.text(engine.get("config_path"))) if missing else {}
        for is_nvidia, by_program in missing.items():
            each = core_text.listed(
                [f"{program} of {_with_places(names, places)}" for program, names in by_program.items()]
            )
            message = f"Programs of runtimes do not exist: {each}. No container starts with these runtimes."
            if is_nvidia:
                explains = facts.without_engine(target)
                yield report.warning("runtime-missing", target, message, steps.INSTALL_FOR_RUNTIMES, explains)
            else:
                advice = "Install the programs, or remove the runtimes."
                yield report.info("runtime-missing", target, message, advice)


def _places_of_runtimes(host: hostfs.HostFS, facts: report.HostFacts, config_path: str) -> dict[str, str]:
    with contextlib.suppress(errors.MissingPackageError):
        configs = foreign_files.HostConfigs(host, facts)
        return foreign_files.attempt(lambda: foreign_files.places_of_runtimes(configs, config_path)) or {}
    return {}


def _with_places(names: t.Iterable[str], places: t.Mapping[str, str]) -> str:
    return " and ".join(f"{name} ({places[name]})" if name in places else name for name in names)


def _is_missing(host: hostfs.HostFS, engine: Engine, program: str) -> bool:
    """Return whether a program is missing. A bare name is searched in the PATH of system services."""
    if not program or (not program.startswith("/") and report.text(engine.get("flavor")) not in ("", "system")):
        return False
    return host.find_executable([program]) is None


def gpus_not_configured(facts: report.HostFacts) -> report.Findings:
    """Yield a finding for a host with GPUs that no engine offers to containers."""
    installed = [
        engine for engine in facts.engines if engine.get("inspected") is not False and engine.get("installed") is True
    ]
    has_programs = bool(report.table(facts.toolkit.get("programs")))
    # Podman needs only a CDI specification, and the other engines can use one too.
    lacks_runtime = has_programs and bool(installed) and not has_nvidia_runtime(installed)
    if not facts.has_gpu or not lacks_runtime or not facts.lacks_gpu_specs:
        return
    selected = [engine for engine in installed if engine.get("selected") is not False]
    has_tables = any("register" in report.facts_of(engine).options for engine in selected)
    reason = f"{'no engine has the NVIDIA runtime, and ' if has_tables else ''}no CDI specification has GPUs"
    message = f"The host has a GPU and the toolkit, but no container can use the GPU: {reason}."
    step = steps.CONFIGURE_HOST if has_tables else steps.WRITE_SPECIFICATION
    explains = (*report.consequences("kubelet-engine-not-configured"), *report.WITHOUT_RUNTIME)
    yield report.critical("gpus-not-configured", "host", message, step, explains)


def cdi_off(facts: report.HostFacts) -> report.Findings:
    for engine in facts.engines:
        if facts.gpu_specs and report.table(engine.get("live")).get("cdi") is False:
            target = report.target_of(engine)
            message = f"CDI is disabled in {target}, so it does not use the CDI specifications of the host."
            yield report.info("cdi-off", target, message, report.cdi_advice(engine, steps.ENABLE_CDI))


def live_restore(facts: report.HostFacts) -> report.Findings:
    """Yield findings for containers that a restart of Docker would stop."""
    for engine in facts.engines:
        live = report.table(engine.get("live"))
        running = report.number(live.get("running_containers"))
        if live.get("live_restore") is False and running:
            containers = "1 container" if running == 1 else f"{running} containers"
            message = f"live-restore is off, so a restart stops {containers}."
            advice = 'Set "live-restore": true in daemon.json and reload Docker. A swarm does not support it.'
            yield report.info("live-restore-off", report.target_of(engine), message, advice)


def removed_engines(facts: report.HostFacts) -> report.Findings:
    """Yield findings for files that this collection changed for an engine that is no longer installed."""
    for engine in facts.engines:
        files = report.texts(engine.get("recorded_files"))
        if files and engine.get("installed") is False:
            target, names = report.target_of(engine), ", ".join(posixpath.basename(path) for path in files)
            message = f"{target} is not installed, but files that this collection changed for it still exist: {names}."
            yield report.info("engine-not-installed", target, message, steps.RESTORE_FILES)


RULES = (restarts, cri_not_responding, not_inspected, gpus_not_configured, cdi_off, live_restore, removed_engines)
HOST_RULES = (default_runtime, programs)
