# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the engines, containers and processes that use a toolkit directory, and the low-level runtimes of a host."""

from __future__ import annotations

import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import nvidia_files
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers, processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


class PathPrefix:
    """A test whether a path is below one of ``folders``, also with another spelling or through a link."""

    def __init__(self, host: hostfs.HostFS, folders: t.Iterable[str]) -> None:
        self._host = host
        self._folders = list(folders)
        self._real = [host.resolve(folder) for folder in self._folders]

    def __call__(self, path: str) -> bool:
        if any(path.startswith(f"{folder}/") for folder in self._folders):
            return True
        try:
            real = self._host.resolve(path) if path.startswith("/") else ""
        except errors.NvidiaError:
            return False
        return any(real.startswith(f"{folder}/") for folder in self._real)


def configured_programs(host: hostfs.HostFS, folders: t.Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return, by engine, the runtimes with programs below ``folders`` that its files or the flags of its unit name.

    For a flag, the flag itself is the name. An engine whose files cannot be read may name any program: its entry then
    has a message as the name and None as the program. Raises MissingPackageError if the package that reads such files
    is missing.
    """
    is_below = PathPrefix(host, folders)
    found = {}
    for engine in engines_registry.engines_on(host):
        installation = engine.inspect(host)
        programs: dict[str, str | None] = {
            runtime: path
            for runtime, path in [*_in_files(engine, host, installation), *_in_flags(installation)]
            if path is None or is_below(path)
        }
        if programs:
            found[engine.key] = programs
    return found


def _in_files(
    engine: engines_base.Planner, host: hostfs.HostFS, installation: engines_base.Installation
) -> list[tuple[str, str | None]]:
    try:
        state = engine.configured(engines_base.HostFiles(host, engine.key).as_configured(installation, None))
    except errors.MissingPackageError:
        # The controller may have the missing package and send it.
        raise
    except errors.NvidiaError as error:
        return [(f"unknown: {error}", None)]
    return [(runtime, path) for runtime, path in state.paths().items() if path]


def _in_flags(installation: engines_base.Installation) -> t.Iterator[tuple[str, str | None]]:
    arguments = installation.unit.arguments if installation.unit is not None else ()
    for argument in arguments[1:]:
        # For example --runtimes=NAME:PROGRAM:ROOT,... of CRI-O.
        for value in (argument, *re.split("[=:,]", argument)):
            yield argument, value


def engines_still_using(host: hostfs.HostFS, folders: t.Iterable[str]) -> list[str]:
    """Return a message for each running engine that uses, or may use, programs below ``folders``.

    Such an engine may have another configuration in its files by now.
    """
    is_below = PathPrefix(host, folders)
    return [message for engine in engines_registry.engines_on(host) for message in _still_using(engine, host, is_below)]


def _still_using(engine: engines_base.Daemon, host: hostfs.HostFS, is_below: PathPrefix) -> t.Iterator[str]:
    installation = engine.inspect(host)
    if host.live and host.lexists(
        core_records.restart_journal_path(engine.key, core_records.state_dir(host, engine.key))
    ):
        yield f"A restart of {installation.service} was interrupted."
        return
    live = engine.live(host, installation) if installation.pid is not None else None
    if live is None:
        return
    names = [name for name, path in live.runtimes.items() if path and is_below(path)]
    if names:
        yield f"{installation.service} still uses these runtimes: {', '.join(names)}."
    elif live.outdated:
        yield f"{installation.service} has not read its current configuration yet."


def programs_among(found: t.Mapping[str, t.Mapping[str, str | None]], names: t.Collection[str]) -> list[str]:
    """Return the entries of configured_programs() whose programs have one of ``names``, for a message."""
    return [
        f"{engine} ({runtime})"
        for engine, programs in found.items()
        for runtime, path in programs.items()
        if path is not None and posixpath.basename(path) in names
    ]


# NVIDIA's runtimes search these names in PATH if no configured program exists (NVIDIA Container Toolkit 1.20).
NAMES = ("runc", "crun")
# The order for hosts where crun is the default of all engines, such as CRI-O, whose packages contain crun.
_CRUN_FIRST = ("crun", "runc")

# No program is run here to get its version. The newest version includes the most settings: before containerd 2.0 the
# settings in a later file hide those in an earlier one.
_NEWEST = (999,)

# Programs that behave like runc. The names of their runtimes do not matter.
_LIKE_RUNC = re.compile(r"(?:(?:runc|crun)(?:[-_.].*)?|youki)\Z")
# Programs that start something other than an ordinary container. Some of them are crun with another name.
_UNLIKE_RUNC = re.compile(r"runsc|gvisor|kata|containerd-shim|krun|crun-vm|.*wasm")
# The runtime types of containerd and of CRI-O ("oci" and "pod") that run a program like runc.
_RUNC_TYPES = ("io.containerd.runc.", "io.containerd.runtime.v1.", "oci", "pod")
# Only a toolkit that is installed into a directory has this file beside its runtimes.
_DIRECTORY_MARKER = f"{core_constants.MAIN_PROGRAM}.real"


class _EngineRuntimes(t.NamedTuple):
    """The result for one engine. ``paths`` are programs that exist, in order of preference."""

    installed: bool
    paths: tuple[str, ...]
    warnings: tuple[str, ...]


def low_level_runtimes(host: hostfs.HostFS) -> tuple[list[str], list[str]]:
    """Return the low-level runtimes in the order in which NVIDIA's runtimes try them, and warnings.

    The absolute paths of programs that the host's engines are configured with come first, each program once. NAMES
    follow always, since they are searched when a container starts, and the host may have them by then. The result
    does not depend on whether this collection has registered NVIDIA's runtimes in an engine. A configured program
    that does not exist on the host is left out with a warning, and so are the runtimes of an engine whose files
    cannot be read. Raises MissingPackageError if the package that reads them is missing.
    """
    engines = engines_registry.engines_on(host)
    found = [_runtimes_of(engine, host) for engine in engines]
    paths: list[str] = []
    for path in (path for runtimes in found for path in runtimes.paths):
        if not any(host.same_program(path, known) for known in paths):
            paths.append(path)
    # Podman is left out, since it does not use NVIDIA's runtimes.
    defaults = {engine.default_runtime for engine, runtimes in zip(engines, found) if runtimes.installed} - {""}
    names = _CRUN_FIRST if defaults == {_CRUN_FIRST[0]} else NAMES
    return [*paths, *names], [warning for runtimes in found for warning in runtimes.warnings]


def _runtimes_of(engine: engines_base.Planner, host: hostfs.HostFS) -> _EngineRuntimes:
    installation = engine.inspect(host)
    installed = installation.binary is not None or installation.unit is not None
    try:
        state, engine_warnings = _state_without_nvidia(engine, host, installation)
    except errors.MissingPackageError:
        # The controller may have the missing package and send it.
        raise
    except errors.NvidiaError as error:
        return _EngineRuntimes(installed, (), (f"The runtimes of {engine.name} are unknown: {error}",))
    candidates = _Candidates(host, state)
    paths: list[str] = []
    warnings = list(engine_warnings)
    for name in candidates.names(engine.default_runtime):
        path = _program(host, candidates.paths[name])
        if path is None:
            warnings.append(
                f"{engine.name}: the runtime {name} is ignored, because its program {candidates.paths[name]} is not an"
                " executable file. Install it, or correct the path."
            )
        else:
            paths.append(path)
    return _EngineRuntimes(installed, tuple(paths), tuple(warnings))


def _state_without_nvidia(
    engine: engines_base.Planner, host: hostfs.HostFS, installation: engines_base.Installation
) -> tuple[engines_base.ConfiguredState, tuple[str, ...]]:
    """Return the engine's configuration without the entries of this collection, and warnings.

    This is the plan of a removal, so the same rules determine the original default runtime. If such a plan is not
    possible, the present configuration is used. Raises NvidiaError if that cannot be read either.
    """
    files = engines_base.HostFiles(host, engine.key)
    warnings: tuple[str, ...] = ()
    try:
        path = host.resolve(installation.config_path)
        records = (record for record in core_records.load_records(host, engine.key) if record.main == path)
        recorded = tuple(record.path for record in records if record.path != path)
        context = files.context(path, installation.unit, _NEWEST, recorded)
        return engine.absent(context).state, ()
    except (errors.ConfigurationError, errors.HostError) as error:
        warnings = (f"The list of runtimes of {engine.name} may be incomplete: {error}",)
    except errors.NvidiaError:
        # A unit or another file needs the runtimes of this collection. The other runtimes are not affected.
        warnings = ()
    context = files.as_configured(installation, None)._replace(version=_NEWEST)
    return engine.configured(context), warnings


class _Candidates:
    """The runtimes of one engine that NVIDIA's runtimes can run."""

    def __init__(self, host: hostfs.HostFS, state: engines_base.ConfiguredState) -> None:
        self._host = host
        self._default = state.default_runtime
        self._all = {name: path for name, path in state.paths().items() if path}
        self.paths = {
            name: path
            for name, path in self._all.items()
            if not self._is_nvidia(name) and not self._is_unlike_runc(name, state.runtimes[name])
        }

    def names(self, builtin_default: str) -> list[str]:
        """Return the runtimes in the order to try them: the default, the usual ones, others that behave like runc."""
        default = self._default
        if not isinstance(default, str) or self._is_nvidia(default):
            # The original default is unknown if another tool has set one of NVIDIA's runtimes as the default.
            default = builtin_default
        others = [name for name, path in self.paths.items() if _LIKE_RUNC.match(posixpath.basename(path))]
        return [name for name in dict.fromkeys([default, *NAMES, *others]) if name in self.paths]

    def _is_nvidia(self, name: str) -> bool:
        """Return whether a runtime is one of NVIDIA's or belongs to a toolkit.

        Such a runtime would run itself, or would be removed with its toolkit.
        """
        return name.startswith(engines_request.MAIN_NAME) or any(
            posixpath.basename(path).startswith(core_constants.MAIN_PROGRAM)
            or self._host.lexists(posixpath.join(posixpath.dirname(path), _DIRECTORY_MARKER))
            for path in self._paths_of(name)
        )

    def _is_unlike_runc(self, name: str, entry: t.Mapping[str, t.Any]) -> bool:
        kind = entry.get("runtime_type")
        if kind and not (isinstance(kind, str) and kind.startswith(_RUNC_TYPES)):
            return True
        return any(_UNLIKE_RUNC.match(posixpath.basename(path)) for path in self._paths_of(name))

    def _paths_of(self, name: str) -> list[str]:
        """Return the configured path of a runtime, and its path with all links resolved."""
        path = self._all.get(name)
        program = None if path is None else _program(self._host, path)
        return [found for found in (path, program and self._host.resolve(program)) if found]


def _program(host: hostfs.HostFS, path: str) -> str | None:
    """Return the absolute path of a program, or None. A bare name is searched like an engine does."""
    return None if "/" in path and not path.startswith("/") else host.find_executable([path])


# Engines read specifications and hooks here. Those that nvidia-ctk wrote name the programs in its own directory.
SPECIFICATIONS_AND_HOOKS = (*core_constants.CDI_SPEC_DIRS, *nvidia_files.HOOK_FOLDERS)


def users(host: hostfs.HostFS, folder: str) -> list[str]:
    """Return a description of each user of a path below ``folder``.

    Users are processes, containers, engines, and CDI and hook files. A process needs the program that it runs, the
    libraries that it has loaded, the script that its shell reads, and the paths that are mounted for it from
    ``folder``. In an offline tree there are no processes.
    """
    # The kernel shows paths without links.
    folders = tuple(dict.fromkeys((folder, host.resolve(folder))))
    return [
        *_processes(host, folders),
        *(f"container {name}" for each in folders for name in gpu_containers.bundles_referencing(host, f"{each}/")),
        *(f"engine {name}" for name in configured_programs(host, folders)),
        *(f"file {path}" for path in files_mentioning(host, SPECIFICATIONS_AND_HOOKS, folders)),
    ]


def files_mentioning(host: hostfs.HostFS, places: t.Iterable[str], folders: t.Iterable[str]) -> list[str]:
    """Return the files in ``places`` that name a path below ``folders``."""
    return [
        f"{place}/{name}"
        for place in places
        for name in host.readable_entries(place)
        if name.endswith((".yaml", ".json"))
        and any(f"{folder}/" in host.read_text(f"{place}/{name}") for folder in folders)
    ]


def _processes(host: hostfs.HostFS, folders: t.Sequence[str]) -> t.Iterator[str]:
    for pid in host.readable_entries("/proc") if host.live else ():
        if pid.isdigit() and int(pid) != os.getpid() and any(_uses(host, pid, folder) for folder in folders):
            yield f"process {pid} ({host.read_text(f'/proc/{pid}/comm').strip()})"


def _uses(host: hostfs.HostFS, pid: str, folder: str) -> bool:
    process = host.real_path(f"/proc/{pid}")
    links = [f"{process}/exe", *(f"{process}/fd/{name}" for name in host.readable_entries(f"/proc/{pid}/fd"))]
    if any(f"{folder}/" in _target(link) for link in links):
        return True
    # A user can block a reader of the memory maps of that user's processes, so only the maps of root and of this
    # process's user are read. The libraries that other processes have loaded stay loaded.
    if processes.uid_of(host, pid) in (0, os.geteuid()) and f"{folder}/" in host.read_text(f"/proc/{pid}/maps"):
        return True
    # The root of a mount is relative to its file system, so only the last two names are compared.
    root = "/".join(["", *folder.split("/")[-2:]])
    lines = host.read_text(f"/proc/{pid}/mountinfo").splitlines()
    return any((line.split(" ")[3] + "/").find(f"{root}/") >= 0 for line in lines if line.count(" ") > 3)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        # The process has ended meanwhile, or belongs to the kernel.
        return ""
