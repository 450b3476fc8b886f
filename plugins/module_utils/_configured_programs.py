# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which engines would run programs of one directory, or still do.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_traces import engines_on
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import restart_note, state_dir

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine, Installation
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


class Below:
    """Whether a path is below one of ``folders``, be it by another spelling, or through a link that leads there."""

    def __init__(self, host: HostRoot, folders: t.Iterable[str]) -> None:
        self._host = host
        self._folders = list(folders)
        self._real = [host.resolve(folder) for folder in self._folders]

    def __call__(self, path: str) -> bool:
        if any(path.startswith(f"{folder}/") for folder in self._folders):
            return True
        try:
            real = self._host.resolve(path) if path.startswith("/") else ""
        except GpufleetError:
            return False
        return any(real.startswith(f"{folder}/") for folder in self._real)


def configured_programs(host: HostRoot, folders: t.Iterable[str]) -> dict[str, dict[str, str | None]]:
    """By engine, the runtimes with programs below ``folders`` that its files or its unit's flags name.

    Of a flag the name is the flag.  An engine whose files cannot be understood may name any: then a sentence stands for
    the name, and None for the program.  Raises MissingPackageError where nothing can read such files.
    """
    below = Below(host, folders)
    found = {}
    for engine in engines_on(host):
        installation = engine.inspect(host)
        programs: dict[str, str | None] = {
            runtime: path
            for runtime, path in [*_in_files(engine, host, installation), *_in_flags(installation)]
            if path is None or below(path)
        }
        if programs:
            found[engine.key] = programs
    return found


def _in_files(engine: Engine, host: HostRoot, installation: Installation) -> list[tuple[str, str | None]]:
    try:
        state = engine.configured(HostFiles(host, engine.key).as_configured(installation, None))
    except MissingPackageError:
        # The controller may have it.
        raise
    except GpufleetError as error:
        return [(f"not known: {error}", None)]
    return [(runtime, path) for runtime, path in state.paths().items() if path]


def _in_flags(installation: Installation) -> t.Iterator[tuple[str, str | None]]:
    arguments = installation.unit.arguments if installation.unit is not None else ()
    for argument in arguments[1:]:
        for word in (argument, argument.rpartition("=")[2], argument.rpartition(":")[2]):
            if word.startswith("/"):
                yield argument, word


def unsettled_engines(host: HostRoot, folders: t.Iterable[str]) -> list[str]:
    """Running engines that still use, or may use, programs below ``folders``, whatever their files say by now; a
    sentence for each."""
    below = Below(host, folders)
    return [words for engine in engines_on(host) for words in _unsettled(engine, host, below)]


def _unsettled(engine: Engine, host: HostRoot, below: Below) -> t.Iterator[str]:
    installation = engine.inspect(host)
    if host.live and host.is_there(restart_note(engine.key, state_dir(host, engine.key))):
        yield f"A restart of {installation.service} was cut off."
        return
    live = engine.live(host, installation) if installation.pid is not None else None
    if live is None:
        return
    names = [name for name, path in live.runtimes.items() if path and below(path)]
    if names:
        yield f"{installation.service} runs with {', '.join(names)} still."
    elif live.outdated:
        yield f"{installation.service} is older than its configuration."


def programs_among(found: t.Mapping[str, t.Mapping[str, str | None]], names: t.Collection[str]) -> list[str]:
    """Those of configured_programs() whose programs have one of ``names``, in words."""
    return [
        f"{engine} ({runtime})"
        for engine, programs in found.items()
        for runtime, path in programs.items()
        if path is not None and posixpath.basename(path) in names
    ]
