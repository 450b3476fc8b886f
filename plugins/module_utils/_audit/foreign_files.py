# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Audit rules about files that other tools write or that conflict. They read files and run no program."""

from __future__ import annotations

import functools
import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import host_parts, report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
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

# Short flags of dockerd. The name of a long flag is that of the setting, without the ending of a plural, or a member of
# "proxies" (daemon/command/config.go, moby 20.10 to 29). dockerd merges only "runtimes", whose flag has another name.
_SHORT_FLAGS = {
    "D": "debug", "G": "group", "H": "hosts", "b": "bridge", "l": "log-level", "p": "pidfile", "s": "storage-driver",
}  # fmt: skip


def docker_flags(configs: HostConfigs) -> report.Findings:
    """Yield a finding for settings both in the file and in the command line, with which dockerd does not start."""
    context, document = configs.docker, configs.daemon_json
    if context is None or document is None or context.unit is None:
        return
    unit = context.unit
    paths = _settings_on_command_line(unit)
    both = [".".join(path) for path in paths if document.has(*path)]
    if both:
        yield report.critical(
            "setting-defined-twice",
            context.path,
            f"{context.path} and the command line of {unit.name} ({core_text.listed([unit.path, *unit.drop_ins])}) both"
            f" set {core_text.listed(both)}. dockerd does not start if a setting is in both places.",
            "Remove these settings from one of the two.",
        )


def _settings_on_command_line(unit: systemd_units.Unit) -> list[tuple[str, ...]]:
    """Return the settings that a command line may have, as the paths that they have in the file."""
    paths: list[tuple[str, ...]] = []
    for argument in unit.arguments[1:]:
        name = argument[2:].partition("=")[0]
        if argument.startswith("--"):
            paths += [(name,), (f"{name}s",), (f"{name[:-1]}ies",), ("proxies", name)]
        elif argument.startswith("-") and argument[1:2] in _SHORT_FLAGS:
            paths.append((_SHORT_FLAGS[argument[1]],))
    return list(dict.fromkeys(paths))


# -- containerd ------------------------------------------------------------------------------------------------------

# Together, these keys identify a file of Kubespray. Its templates (config.toml.j2, config-v1.toml.j2) write them by
# default (first 2.21.0, last without it 2.20.0), and no other tool writes all of them.
_KUBESPRAY_TOP = ("root", "state", "oom_score", "grpc", "plugins")
_KUBESPRAY_SPEC = "cri-base.json"
_KUBESPRAY_SETTING = "max_container_log_line_size"


def kubespray(configs: HostConfigs) -> report.Findings:
    """Yield a finding for a main file that Kubespray wrote."""
    files = configs.containerd
    if files is None or not files.files or not _is_kubespray(files.main.data, files.cri()):
        return
    yield report.warning(
        "kubespray-owns-file",
        files.main.path,
        f"{files.main.path} looks like a file of Kubespray. The next run of Kubespray replaces the file and removes"
        " what other tools added.",
        "Let Kubespray register the runtime (containerd_additional_runtimes, containerd_default_runtime), or run this"
        " collection after Kubespray each time. For containerd 2.0 and newer, you can also write a drop-in and add an"
        " imports line for it to Kubespray's variable containerd_extra_args.",
    )


def _is_kubespray(data: t.Mapping[str, t.Any], cri: t.Mapping[str, t.Any]) -> bool:
    specs = [report.text(report.table(entry).get("base_runtime_spec")) for entry in _runtimes(cri).values()]
    return (
        all(name in data for name in _KUBESPRAY_TOP)
        and any(posixpath.basename(spec) == _KUBESPRAY_SPEC for spec in specs)
        and _KUBESPRAY_SETTING in cri
    )


def _runtimes(cri: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return report.table(toml_plan.lookup(cri, containerd_config.RUNTIMES))


def copied_settings(configs: HostConfigs) -> report.Findings:
    """Yield a finding for a drop-in of nvidia-ctk that contains a copy of the main file's CRI settings.

    The message names the settings that have changed in the main file since.
    """
    files = configs.containerd
    if files is None:
        return
    for file in files.files[1:]:
        found = None if configs.is_recorded(file.path) else nvidia_files.containerd_drop_in(file.document, [files.main])
        if found is None or not found.copied:
            continue
        drifted = [nvidia_files.short_name(path) for path in found.drifted]
        changes = f"Changes of {core_text.listed(drifted)}" if drifted else "Later changes of settings"
        message = (
            f"{file.path} contains NVIDIA's runtimes and a copy of other CRI settings. {changes} in the main file have"
            " no effect."
        )
        # The roles keep a file that a person has edited, or without which a setting gets another value.
        own = "Move the settings and comments that you need to the main file, then remove the file."
        is_removable = found.has_only_tool_entries(file.document) and not drifted
        advice = steps.PURGE_LEGACY if is_removable else own
        yield report.warning("legacy-file", file.path, message, advice)


def containerd_old_drop_in(configs: HostConfigs) -> report.Findings:
    """Yield a finding for the drop-in of the toolkit 1.18.0, whose directory no file imports by default."""
    files, path = configs.containerd, nvidia_files.STRAY_CONTAINERD
    if files is None or not configs.host.lexists(path) or configs.is_recorded(path):
        return
    is_imported = configs.real(path) in {file.path for file in files.files}
    effect = "The main file imports it." if is_imported else "No file imports it."
    message = f"{path} is a drop-in that the toolkit 1.18.0 wrote. {effect}"
    yield report.warning("legacy-file", path, message, steps.PURGE_LEGACY)


def containerd_runtimes(configs: HostConfigs) -> report.Findings:
    """Yield findings for NVIDIA runtimes that several files of containerd define."""
    paths: dict[str, list[str]] = {}
    for file, table in configs.containerd.cri_tables() if configs.containerd is not None else ():
        for name, entry in _runtimes(table).items():
            if engines_base.is_nvidia_program(containerd_options.program_of(entry)):
                paths.setdefault(name, []).append(file.path)
    yield from defined_twice(paths)


def disabled_cri(configs: HostConfigs) -> report.Findings:
    """Yield a finding for a file that disables containerd's CRI plugin, without which a kubelet does not start."""
    disabled_in = configs.containerd.cri_disabled_in() if configs.containerd is not None else None
    if disabled_in is not None:
        message = (
            f"{disabled_in} disables containerd's CRI plugin, as Docker's packages do. Kubernetes cannot use this"
            " containerd."
        )
        advice = "Nothing needs to be done if only Docker uses this containerd."
        yield report.info("cri-disabled", disabled_in, message, advice)


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
    kubespray,
    copied_settings,
    containerd_old_drop_in,
    containerd_runtimes,
    disabled_cri,
    docker_flags,
    crio_old_drop_in,
    crio_runtimes,
    gpu_operator,
    old_hooks,
)
