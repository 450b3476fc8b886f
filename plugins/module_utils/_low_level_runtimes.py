# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the low-level runtimes of a host, one of which NVIDIA's runtimes call in the end.

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_traces import engines_on
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    GpufleetError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MAIN_NAME, MAIN_PROGRAM

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Engine,
        Installation,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# What NVIDIA's runtimes look up in their PATH when no configured program is there (NVIDIA Container Toolkit 1.20).
NAMES = ("runc", "crun")
# Where there is CRI-O alone, whose packages bring crun.
_CRIO, _CRIO_NAMES = "crio", ("crun", "runc")

# No program is run for its version here.  To the newest engines everything counts: before containerd 2.0 the settings
# in a later file hide those in an earlier one.
_NEWEST = (999,)

# Programs that do what runc does, whatever their runtimes are called.
_LIKE_RUNC = re.compile(r"(?:(?:runc|crun)(?:[-_.].*)?|youki)\Z")
# Programs that start something else than an ordinary container, be it that one of them is crun under another name.
_UNLIKE_RUNC = re.compile(r"runsc|gvisor|kata|containerd-shim|krun|crun-vm|.*wasm")
# The kinds of containerd's runtimes and of CRI-O's ("oci" and "pod") that call a program like runc.
_KINDS = ("io.containerd.runc.", "io.containerd.runtime.v1.", "oci", "pod")
# What a toolkit that was installed into a directory has beside its runtimes, and no other directory has.
_MARK = f"{MAIN_PROGRAM}.real"


class _Found(t.NamedTuple):
    """What one engine contributes; ``paths`` are programs that exist, in order of preference."""

    installed: bool
    paths: tuple[str, ...]
    warnings: tuple[str, ...]


def low_level_runtimes(host: HostRoot) -> tuple[list[str], list[str]]:
    """The low-level runtimes in the order in which NVIDIA's are to try them, and warnings.

    First the absolute paths of programs that the host's engines are configured with, each program once, then NAMES:
    these always, for they are looked up when a container starts, with what the host has by then.  The answer is the
    same whether this collection has registered NVIDIA's runtimes in an engine or not.  A configured program that is
    not on the host is left out with a warning, and so are the runtimes of an engine whose files cannot be read.
    Raises MissingPackageError where nothing can read them.
    """
    engines = engines_on(host)
    found = [_of_engine(engine, host) for engine in engines]
    paths: list[str] = []
    for path in (path for one in found for path in one.paths):
        if not any(host.same_program(path, known) for known in paths):
            paths.append(path)
    # Podman calls none of NVIDIA's runtimes.
    installed = [engine.name for engine, one in zip(engines, found) if one.installed and engine.default_runtime]
    names = _CRIO_NAMES if installed == [_CRIO] else NAMES
    return [*paths, *names], [warning for one in found for warning in one.warnings]


def _of_engine(engine: Engine, host: HostRoot) -> _Found:
    installation = engine.inspect(host)
    installed = installation.binary is not None or installation.unit is not None
    try:
        state, doubt = _without_nvidia(engine, host, installation)
    except MissingPackageError:
        # The controller may have it.
        raise
    except GpufleetError as error:
        return _Found(installed, (), (f"The runtimes of {engine.name} are not known: {error}",))
    candidates = _Candidates(host, state)
    paths: list[str] = []
    warnings = list(doubt)
    for name in candidates.names(engine.default_runtime):
        path = _program(host, candidates.paths[name])
        if path is None:
            warnings.append(
                f"{engine.name}: the program {candidates.paths[name]} of the runtime {name} is no executable file on"
                " this host, so NVIDIA's runtimes will not try it. Install it, or correct the path."
            )
        else:
            paths.append(path)
    return _Found(installed, tuple(paths), tuple(warnings))


def _without_nvidia(
    engine: Engine, host: HostRoot, installation: Installation
) -> tuple[ConfiguredState, tuple[str, ...]]:
    """What the engine would be configured with if our entries were taken out, and why that may be wrong.

    That is the very plan of a removal, so that what the default was before us is told by the same rules.  Where there
    can be none, what stands there now has to do.  Raises GpufleetError if that cannot be read either.
    """
    files = HostFiles(host, engine.key)
    doubt: tuple[str, ...] = ()
    try:
        path = host.resolve(installation.config_path)
        records = (record for record in load_records(host, engine.key) if record.main == path)
        recorded = tuple(record.path for record in records if record.path != path)
        context = files.context(path, installation.unit, _NEWEST, recorded)
        return engine.absent(context).state, ()
    except (ConfigurationError, HostError) as error:
        doubt = (f"The runtimes of {engine.name} may not all be known: {error}",)
    except GpufleetError:
        # A unit or another file needs our runtimes; those that are not ours are all the same.
        doubt = ()
    context = files.as_configured(installation, None)._replace(version=_NEWEST)
    return engine.configured(context), doubt


class _Candidates:
    """The runtimes of one engine that NVIDIA's can call."""

    def __init__(self, host: HostRoot, state: ConfiguredState) -> None:
        self._host = host
        self._default = state.default_runtime
        self._all = {name: path for name, path in state.paths().items() if path}
        self.paths = {
            name: path
            for name, path in self._all.items()
            if not self._is_nvidia(name) and not self._is_unlike_runc(name, state.runtimes[name])
        }

    def names(self, builtin_default: str) -> list[str]:
        """In the order in which they are to be tried: the default, the usual ones, others that do the same."""
        default = self._default
        if not isinstance(default, str) or self._is_nvidia(default):
            # Nobody knows what somebody else's tool has put one of NVIDIA's over.
            default = builtin_default
        others = [name for name, path in self.paths.items() if _LIKE_RUNC.match(posixpath.basename(path))]
        return [name for name in dict.fromkeys([default, *NAMES, *others]) if name in self.paths]

    def _is_nvidia(self, name: str) -> bool:
        """Whether a runtime is one of NVIDIA's, or otherwise of a toolkit: it would call itself, or go with that."""
        return name.startswith(MAIN_NAME) or any(
            posixpath.basename(path).startswith(MAIN_PROGRAM)
            or self._host.is_there(posixpath.join(posixpath.dirname(path), _MARK))
            for path in self._spellings(name)
        )

    def _is_unlike_runc(self, name: str, entry: t.Mapping[str, t.Any]) -> bool:
        kind = entry.get("runtime_type")
        if kind and not (isinstance(kind, str) and kind.startswith(_KINDS)):
            return True
        return any(_UNLIKE_RUNC.match(posixpath.basename(path)) for path in self._spellings(name))

    def _spellings(self, name: str) -> list[str]:
        """The path of a runtime as it is configured, and with all links resolved."""
        path = self._all.get(name)
        program = None if path is None else _program(self._host, path)
        return [found for found in (path, program and self._host.resolve(program)) if found]


def _program(host: HostRoot, path: str) -> str | None:
    """The absolute path of a program, None where there is none; a bare name is looked up as an engine does."""
    return None if "/" in path and not path.startswith("/") else host.find_executable([path])
