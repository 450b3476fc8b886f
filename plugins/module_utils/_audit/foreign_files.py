# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Audit rules about files of Docker, CRI-O, Podman and the toolkit that other tools write or that conflict.

The rules read files and run no program. The rules about containerd's files are in foreign_files_containerd.py.
"""

from __future__ import annotations

import functools
import os
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts, report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import hook as crio_hook
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import plan as docker_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


_Read = t.TypeVar("_Read")

# The largest file that is read, in bytes. Real configuration files are smaller.
_MAX_BYTES = 4 << 20

# -- the files -------------------------------------------------------------------------------------------------------


class HostConfigs:
    """The configuration files of one host. Each property is computed once, but content() reads the file each time."""

    def __init__(self, host: hostfs.HostFS, facts: report.HostFacts) -> None:
        self.host = host
        self.facts = facts

    @functools.cached_property
    def containerd(self) -> containerd_config.ContainerdFiles | None:
        """The files of the containerd with the flavor ``system``."""
        return attempt(lambda: containerd_config.ContainerdFiles.of(self._context("containerd")))

    @functools.cached_property
    def crio(self) -> crio_config.CrioFiles | None:
        return attempt(lambda: crio_config.CrioFiles.of(self._context("crio")))

    @functools.cached_property
    def crio_hook_dirs(self) -> tuple[str, ...]:
        """The directories in which CRI-O reads hooks; the default if its files cannot be read."""
        found = attempt(lambda: crio_hook.CrioHooks(self._context("crio")).hook_dirs())
        return crio_hook.DEFAULT_DIRS if found is None else tuple(found)

    @functools.cached_property
    def docker(self) -> engines_base.Context | None:
        """The daemon.json and the unit of the Docker with the flavor ``system``."""
        return attempt(lambda: self._context("docker"))

    @functools.cached_property
    def daemon_json(self) -> json_document.JsonDocument | None:
        context = self.docker
        if context is None:
            return None
        return attempt(lambda: json_document.JsonDocument.from_bytes(context.path, context.content or b""))

    @functools.cached_property
    def recorded(self) -> frozenset[str]:
        """The files that this collection has changed, with links resolved."""
        found = attempt(lambda: core_records.load_readable_records(self.host))
        return frozenset(record.path for record in found or ())

    def real(self, path: str) -> str:
        """Return ``path`` with links resolved, or unchanged if they cannot be resolved."""
        return attempt(lambda: self.host.resolve(path)) or path

    def is_recorded(self, path: str) -> bool:
        return self.real(path) in self.recorded

    def content(self, path: str) -> bytes | None:
        """Return the content of a file; None if it cannot be read."""
        return attempt(lambda: self.host.read(path, _MAX_BYTES))

    def _context(self, name: str) -> engines_base.Context:
        engine = engines_registry.Target(name).load()
        version = self._version(name)
        files = engines_base.HostFiles(self.host, engine.key)
        return files.as_configured(engine.inspect(self.host), None if version is None else ".".join(map(str, version)))

    def _version(self, name: str) -> tuple[int, ...] | None:
        """Return the version of the engine with the flavor ``system``, or None if it is unknown."""
        for engine in self.facts.engines:
            if engine.get("engine") == name and engine.get("flavor") in (None, "system"):
                return core_text.parse_version(report.text(engine.get("version")))
        return None


def attempt(read: t.Callable[[], _Read]) -> _Read | None:
    """Return the result of ``read``, or None if it fails. Raises MissingPackageError if a parser is missing."""
    try:
        return read()
    except errors.MissingPackageError:
        raise
    except (errors.NvidiaError, OSError, ValueError, RecursionError):
        # A path in a file may be invalid, for example contain a null byte.
        return None


# -- findings about the files of several engines ---------------------------------------------------------------------


def places_of_runtimes(configs: HostConfigs, config_path: str) -> dict[str, str]:
    """Return where the files of an engine register runtimes, as a path and a line.

    ``config_path`` is its main file. The result is empty for an engine with another flavor than ``system``.
    """
    sources: list[tuple[list[t.Any], list[tuple[str, ...]]]] = []
    if configs.daemon_json is not None:
        sources.append(([configs.daemon_json], [(docker_plan.RUNTIMES,)]))
    if configs.crio is not None:
        sources.append(([file.document for file in configs.crio.files], [crio_config.RUNTIMES]))
    if configs.containerd is not None:
        roots = dict.fromkeys(containerd_config.CRI_TABLE.values())
        documents = [file.document for file in configs.containerd.files]
        sources.append((documents, [root + containerd_config.RUNTIMES for root in roots]))
    return {
        name: f"{document.path}, line {document.line((*table, name))}"
        for documents, tables in sources
        if documents[0].path == configs.real(config_path)
        for document in documents
        for table in tables
        for name in report.table(document.value(*table))
    }


def defined_twice(paths_by_runtime: t.Mapping[str, list[str]]) -> report.Findings:
    """Yield a finding for the runtimes that are defined in several files."""
    by_files: dict[tuple[str, ...], list[str]] = {}
    for name, paths in paths_by_runtime.items():
        if len(paths) > 1:
            by_files.setdefault(tuple(dict.fromkeys(paths)), []).append(name)
    for files, names in by_files.items():
        places = " and ".join(files)
        message = f"Several files define {core_text.listed(names)}: {places}. The last definition has precedence."
        advice = "Keep one definition, and remove the others."
        yield report.warning("setting-defined-twice", files[-1], message, advice)


# -- Docker ----------------------------------------------------------------------------------------------------------

# Flags of dockerd that have another name in daemon.json, and short flags (daemon/command/config.go, moby 20.10 to 29).
_FLAGS = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "host-gateway-ip": "host-gateway-ips",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
    "D": "debug",
    "G": "group",
    "H": "hosts",
    "b": "bridge",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
# Settings in an object of daemon.json. dockerd compares its members with the flags, too.
_OBJECTS = {"http-proxy": "proxies", "https-proxy": "proxies", "no-proxy": "proxies"}
# Flags whose setting also has the name of the flag, in older releases.
_RENAMED = ("host-gateway-ip",)
# dockerd merges these settings from the file and the flags.
_MERGED_SETTINGS = ("runtimes",)
_SHORT_FLAG = re.compile(r"-([A-Za-z])(.*)")


def docker_flags(configs: HostConfigs) -> report.Findings:
    """Yield a finding for settings both in the file and in the command line, with which dockerd does not start."""
    context, document = configs.docker, configs.daemon_json
    if context is None or document is None or context.unit is None:
        return
    unit = context.unit
    paths = _settings_on_command_line(unit)
    both = [".".join(path) for path in paths if path[0] not in _MERGED_SETTINGS and document.has(*path)]
    if both:
        yield report.critical(
            "setting-defined-twice",
            context.path,
            f"{context.path} and the command line of {unit.name} ({core_text.listed([unit.path, *unit.drop_ins])}) both"
            f" set {core_text.listed(both)}. dockerd does not start if a setting is in both places.",
            "Remove these settings from one of the two.",
        )


def _settings_on_command_line(unit: systemd_units.Unit) -> list[tuple[str, ...]]:
    """Return the settings on a command line, as the paths that they have in the file."""
    paths: list[tuple[str, ...]] = []
    for argument in unit.arguments[1:]:
        short = _SHORT_FLAG.fullmatch(argument)
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0]
            names = [_FLAGS.get(name, name), *([name] if name in _RENAMED else [])]
            paths += [(_OBJECTS[each], each) if each in _OBJECTS else (each,) for each in names]
        elif short is not None and short.group(1) in _FLAGS:
            paths.append((_FLAGS[short.group(1)],))
    return list(dict.fromkeys(paths))


# -- CRI-O -----------------------------------------------------------------------------------------------------------


def crio_old_drop_in(configs: HostConfigs) -> report.Findings:
    path = nvidia_files.STRAY_CRIO
    if configs.host.lexists(path) and not configs.is_recorded(path):
        message = f"{path} is a drop-in that the toolkit up to 1.19.0 wrote. CRI-O does not read its directory."
        yield report.warning("legacy-file", path, message, steps.PURGE_LEGACY)


def crio_runtimes(configs: HostConfigs) -> report.Findings:
    """Yield findings for NVIDIA runtimes that several files define."""
    paths: dict[str, list[str]] = {}
    for file in configs.crio.files if configs.crio is not None else ():
        for name, entry in report.table(file.document.value(*crio_config.RUNTIMES)).items():
            if isinstance(entry, dict) and engines_base.is_nvidia_program(entry.get(crio_config.PROGRAM)):
                paths.setdefault(name, []).append(file.name)
    yield from defined_twice(paths)


# -- the GPU operator and hooks --------------------------------------------------------------------------------------

# The pid file of nvidia-ctk-installer, the program of the GPU operator's toolkit container (toolkit 1.17 to 1.20; in
# earlier releases the program is named nvidia-toolkit).
_PID_FILE = "/run/nvidia/toolkit/toolkit.pid"


def gpu_operator(configs: HostConfigs) -> report.Findings:
    host = configs.host
    pid = host.read_text(_PID_FILE).strip()
    if host.lexists(_PID_FILE) and (not pid.isdigit() or not host.live or host.exists(f"/proc/{pid}")):
        yield report.warning(
            "gpu-operator-toolkit",
            _PID_FILE,
            f"{_PID_FILE} exists: the GPU operator's toolkit container installs the toolkit and configures the engine.",
            "Let either the operator or this collection manage the toolkit: set toolkit.enabled=false in the operator's"
            " ClusterPolicy, or do not configure the toolkit and the engine of this host with this collection.",
        )
        return
    # /run/nvidia/validations belongs to the operator's validator. Its other pods wait for the files there.
    left = toolkit_constants.DIRECTORY
    if _is_directory(configs, left):
        message = f"The GPU operator created {left}. Its toolkit container does not run now."
        advice = "Remove the directory, unless an engine uses programs there."
        engines = host_parts.runtime_directories(host, configs.facts.engines).get(left)
        if engines:
            message += f" The directory is in use by {core_text.listed(engines)}, but no tool updates it."
            advice = steps.LEAVE_OPERATOR_TOOLKIT
        yield report.info("gpu-operator-toolkit", left, message, advice)


def _is_directory(configs: HostConfigs, path: str) -> bool:
    """Return whether ``path`` is a directory. If this collection installed the toolkit, ``path`` is a link."""
    process_path = attempt(lambda: configs.host.real_path(path, last=False))
    return process_path is not None and os.path.isdir(process_path) and not os.path.islink(process_path)


def old_hooks(configs: HostConfigs) -> report.Findings:
    """Yield findings for OCI hooks of NVIDIA's that an engine of the host runs and this collection has not written."""
    missing: dict[tuple[str, str], list[str]] = {}
    usable: dict[str, list[str]] = {}
    for path, engines in _hooks_in_use(configs).items():
        content = None if configs.is_recorded(path) else configs.content(path)
        if content is None:
            continue
        hook = report.table(nvidia_files.read_hook(content)).get("hook")
        program = report.text(report.table(hook).get("path")) or report.text(hook)
        if configs.host.find_executable([program]) is None:
            missing.setdefault((program, engines), []).append(path)
        else:
            usable.setdefault(engines, []).append(path)
    for (program, engines), paths in missing.items():
        message = (
            f"With {' and '.join(paths)}, {program} runs for every container of {engines}. The program is missing, so"
            " no such container starts."
        )
        yield report.critical("legacy-file", core_text.listed(paths), message, steps.PURGE_LEGACY)
    for engines, paths in usable.items():
        message = (
            f"With {' and '.join(paths)}, NVIDIA's hook runs for every container of {engines}. A container that also"
            " uses CDI or NVIDIA's runtime gets its GPUs twice."
        )
        yield report.warning("legacy-file", core_text.listed(paths), message, steps.PURGE_LEGACY)


def _hooks_in_use(configs: HostConfigs) -> dict[str, str]:
    """Return NVIDIA's hooks that engines of the host run, with the names of these engines."""
    by_name = {
        "Podman": _hooks_of(configs, "podman", nvidia_files.HOOK_FOLDERS),
        "CRI-O": _hooks_of(configs, "crio", configs.crio_hook_dirs),
    }
    in_use = {path: [name for name, hooks in by_name.items() if path in hooks] for path in nvidia_files.HOOK_PATHS}
    return {path: " and ".join(names) for path, names in in_use.items() if names}


def _hooks_of(configs: HostConfigs, engine: str, folders: t.Iterable[str]) -> list[str]:
    """Return NVIDIA's hooks that an engine runs; none if the host has no trace of this engine."""
    if not engines_registry.targets_on(configs.host, engine):
        return []
    return nvidia_files.nvidia_hooks(engines_base.HostFiles(configs.host, ""), folders)


FOREIGN_FILE_RULES = (
    docker_flags,
    crio_old_drop_in,
    crio_runtimes,
    gpu_operator,
    old_hooks,
)
