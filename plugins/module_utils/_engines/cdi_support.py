# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which CDI version and which specification directories the engines of a host read, from the facts of each engine."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors, program_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

    Version = t.Tuple[int, ...]


AUTO = "auto"
_NUMBER = "[0-9]{1,9}"
_RELEASE = re.compile(rf"v?({_NUMBER}(?:\.{_NUMBER})*)(?=\Z|[-+~])")


class CdiEngine(t.NamedTuple):
    """One engine and its support of CDI specifications.

    - ``newest``: the highest CDI version that it accepts. None if that is unknown, or if it reads no specifications.
    - ``reads``: whether it reads CDI specifications.
    - ``folders``: the directories in the engine's order. The last one has precedence over the others.
    - ``warning``: why the version is unknown and what to do. Empty if it is known.
    """

    name: str
    version: str | None
    binary: str | None
    newest: str | None
    reads: bool
    folders: tuple[str, ...]
    warning: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


ENGINES = tuple(flavors.FACTS)


def engines_for(entries: t.Sequence[str], host: hostfs.HostFS, run: core_plan.Runner) -> list[CdiEngine]:
    """Return the engines that ``entries`` name.

    Each entry is one of:

    - ``auto``: all engines whose programs are on the host, in the search path or named by their units, and those of
      Kubernetes distributions, except those that another entry names.
    - NAME: that engine, with the version that its program prints.
    - NAME:VERSION: that engine in that version, for a program that cannot be run or an upgrade that is planned.

    No program of an offline tree is run. Raises NvidiaError for any other entry.
    """
    named = list(dict.fromkeys(_parse_entry(entry) for entry in entries if entry != AUTO))
    found = [_engine(name, version, host, run) for name, version in named]
    if AUTO in entries:
        names = {name for name, _version in named}
        others = [name for name in flavors.FACTS if name not in names and _program(name, host)]
        found += [*(_engine(name, None, host, run) for name in others), *_embedded(host, names)]
    return found


def running_engine(name: str, version: str, host: hostfs.HostFS, run: core_plan.Runner) -> CdiEngine:
    """Return the engine ``name`` in the ``version`` that it reports.

    Without a version, that of the program in PATH counts, which may belong to another engine, as on a node of K3s.
    """
    number = core_text.parse_version(version)
    (engine,) = engines_for([name if number is None else f"{name}:{core_text.dotted(number)}"], host, run)
    return engine


def first_release(name: str) -> str:
    """Return the first release of an engine that reads CDI specifications, such as 25.0."""
    return core_text.dotted(flavors.FACTS[name].cdi_newest[0][0])


def _parse_entry(entry: str) -> tuple[str, str | None]:
    name, colon, version = entry.partition(":")
    if name not in flavors.FACTS:
        raise errors.NvidiaError(
            f"{errors.option:for_engines}: unknown engine {name!r}. Use auto, or one of {', '.join(ENGINES)}, each"
            " optionally followed by :VERSION."
        )
    match = _RELEASE.match(version)
    if colon and match is None:
        raise errors.NvidiaError(
            f"{errors.option:for_engines}: {entry!r} has no valid version after the colon. Write it like"
            f" {name}:{_example(name)}."
        )
    return name, match.group(1) if match is not None else None


def _example(name: str) -> str:
    return ".".join(str(part) for part in (*flavors.FACTS[name].cdi_newest[-1][0], 0, 0)[:3])


def _printed_version(binary: str, host: hostfs.HostFS, run: core_plan.Runner) -> str | None:
    """Return the release that the program prints, such as 20.10.24, None if it prints none or must not be run."""
    return _release(program_version.printed_version([binary, "--version"], host, run) or "")


def _release(version: str) -> str | None:
    number = core_text.parse_version(version)
    return None if number is None else core_text.dotted(number)


def _program(name: str, host: hostfs.HostFS) -> str | None:
    """Return the program of the system's engine, which may be outside of the search path if its unit names it."""
    row = flavors.FLAVORS[name, core_constants.SYSTEM]
    (program,) = row.programs
    unit = systemd_units.load_unit(host, row.services[0], program) if row.services else None
    return systemd_units.find_program(host, unit, program)


def _engine(name: str, version: str | None, host: hostfs.HostFS, run: core_plan.Runner) -> CdiEngine:
    binary = _program(name, host)
    if version is None and binary is not None:
        version = _printed_version(binary, host, run)
    if version is None:
        if binary is None:
            cause = f"{name} is not installed on this host"
        else:
            cause = f"{binary} printed no version" if host.live else f"{binary} must not be run in an offline tree"
        return _unknown_engine(name, binary, cause)
    return known_engine(name, version, binary)


def _embedded(host: hostfs.HostFS, without: t.Collection[str]) -> t.Iterator[CdiEngine]:
    """Yield the engine of each Kubernetes distribution with a unit on the host, except those named in ``without``."""
    units = {name for folder in systemd_units.UNIT_DIRS for name in host.readable_entries(folder)}
    for row in flavors.FLAVORS.values():
        if not row.cri or row.engine in without or units.isdisjoint(row.services):
            continue
        # Imported here, because most hosts have no such engine.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415

        # The programs of a distribution may be anywhere, and print its own version.
        version = _release(cri.version(host.real_path(row.cri))) if host.live else None
        if version is None:
            cause = f"did not report it on {row.cri}" if host.live else "does not run in an offline tree"
            yield _unknown_engine(row.engine, None, f"that of {row.flavor} {cause}")
        else:
            yield known_engine(row.engine, version)


def known_engine(name: str, version: str, binary: str | None = None) -> CdiEngine:
    """Return the engine ``name`` in a ``version`` such as 28.5.2."""
    facts = flavors.FACTS[name]
    number = tuple(int(part) for part in version.split("."))
    newest = _at(facts.cdi_newest, number)
    folders = _at(facts.cdi_folders, number) or core_constants.CDI_SPEC_DIRS
    return CdiEngine(name, version, binary, newest, newest is not None, folders if newest is not None else ())


_Fact = t.TypeVar("_Fact")


def _at(facts: t.Iterable[tuple[Version, _Fact]], number: Version) -> _Fact | None:
    """Return the last of ``facts`` whose version is not above ``number``. 4.9 is treated as 4.9.0."""
    padded = (*number, 0, 0)
    return next((fact for since, fact in reversed(tuple(facts)) if since <= padded), None)


def _unknown_engine(name: str, binary: str | None, cause: str) -> CdiEngine:
    warning = (
        f"The version of {name} is unknown, because {cause}. The specification may use CDI features that this version"
        f" does not support. Set the version in {errors.option:for_engines}, like {name}:{_example(name)}."
    )
    return CdiEngine(name, None, binary, newest=None, reads=True, folders=core_constants.CDI_SPEC_DIRS, warning=warning)
