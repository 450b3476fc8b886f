# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which engines a host has, in which flavours, and which of them is meant.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._accounts import require_own
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import FLAVORS, Flavor
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import AUTO, SYSTEM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import UNIT_FOLDERS, unit_file, unit_name

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot


class Target(t.NamedTuple):
    """One engine of one host.

    ``instance`` tells apart those of one flavour: the user of a rootless engine, the unit of a second containerd; it is
    empty for the one that there is usually.
    """

    engine: str
    flavor: str = SYSTEM
    instance: str = ""

    def __str__(self) -> str:
        parts = (self.engine, self.flavor, self.instance) if self.instance else (self.engine, self.flavor)
        return self.engine if parts == (self.engine, SYSTEM) else "/".join(parts)

    @property
    def user(self) -> str | None:
        """The user whose engine it is, None where it is the system's."""
        return self.instance if FLAVORS[self.engine, self.flavor].by_user else None

    def load(self) -> Engine:
        """The engine itself."""
        return FLAVORS[self.engine, self.flavor].load(self.instance)


def targets_on(host: HostRoot, engine: str | None = None) -> list[Target]:
    """All of which there is anything on the host (of that ``engine``), in the order of the table; none is loaded.

    Of the engines of users, that of the user who runs this is among them; root handles none.
    """
    return [
        Target(row.engine, row.flavor, instance)
        for row in FLAVORS.values()
        if engine in (None, row.engine)
        for instance in _instances(row, host)
    ]


def resolve_target(
    host: HostRoot, engine: str, flavor: str = AUTO, user: str | None = None, service: str | None = None
) -> Target:
    """The one that is meant; of an engine that there is nothing of, the system's own.

    Raises GpufleetError where several may be meant, or where the words contradict each other.
    """
    if flavor != AUTO and (engine, flavor) not in FLAVORS:
        known = [row.flavor for row in FLAVORS.values() if row.engine == engine]
        raise GpufleetError(f"{engine} has no flavor {flavor}. Use auto or one of {', '.join(known)}.")
    by_user = any(row.by_user for row in FLAVORS.values() if row.engine == engine)
    if user is not None and (not by_user or flavor not in (AUTO, *_of_users(engine))):
        raise GpufleetError(f"user is for rootless Docker only, not for {engine} with flavor: {flavor}. Leave it out.")
    if user is not None or flavor in _of_users(engine):
        return Target(engine, _of_users(engine)[0], _own_user(host, user))
    # A user's engine is meant only if the task says so: any user may have one.
    wanted = targets_on(host, engine)
    found = [target for target in wanted if target.flavor == flavor or (flavor == AUTO and target.user is None)]
    found = found or [target for target in wanted if flavor == AUTO]
    if service is not None:
        return _served(engine, flavor, unit_name(service), found, host)
    usual = [target for target in found if flavor != AUTO and not target.instance]
    if usual:
        return usual[0]
    if len(found) > 1:
        # What only left its files behind is not meant if another one is there.
        found = [target for target in found if target.load().inspect(host).installed] or found
    if len(found) > 1:
        raise GpufleetError(
            f"This host has more than one {engine}: {', '.join(map(str, found))}. Say which of them is meant: behind"
            " the first slash stands the flavor, and behind the second one the user or the service."
        )
    if len(found) == 1:
        return found[0]
    return Target(engine, SYSTEM if flavor == AUTO else flavor)


def _own_user(host: HostRoot, user: str | None) -> str:
    """The user who runs this.  Raises GpufleetError for everybody else, with what to do about records of root's."""
    try:
        return require_own(host, user).name
    except GpufleetError as error:
        # Only a task that is refused pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rootless import (  # noqa: PLC0415
            migration,
            recorded_users,
        )

        users = recorded_users(host) if user is None else [user]
        raise GpufleetError(" ".join(filter(None, [str(error), *(migration(host, name) for name in users)]))) from None


def _served(engine: str, flavor: str, service: str, found: t.Sequence[Target], host: HostRoot) -> Target:
    """The one that a unit starts, be it a unit of which nothing tells what it starts.

    Raises GpufleetError for one that is not there: the files of another one would be taken for its own.
    """
    known = [target for target in found if service in (target.instance, *FLAVORS[target[:2]].services)]
    if known:
        return known[0]
    row = FLAVORS[engine, SYSTEM if flavor == AUTO else flavor]
    if row.by_unit and unit_file(host, service) is None:
        raise GpufleetError(f"There is no unit {service} on this host. Correct service, or leave it out.")
    return Target(engine, row.flavor, service if row.by_unit else "")


def _of_users(engine: str) -> tuple[str, ...]:
    return tuple(row.flavor for row in FLAVORS.values() if row.engine == engine and row.by_user)


def _instances(row: Flavor, host: HostRoot) -> list[str]:
    found = [""] if _leaves_trace(row, host) else []
    return found + (row.instances(host) if row.instances is not None else [])


def _leaves_trace(row: Flavor, host: HostRoot) -> bool:
    """Whether there is anything of it: its program, its unit, its configuration, or our record of that."""
    units = (f"{folder}/{service}" for folder in UNIT_FOLDERS for service in row.services)
    return (
        (bool(row.programs) and host.find_executable(row.programs) is not None)
        or any(host.is_there(path) for path in row.paths)
        or any(host.is_there(unit) for unit in units)
        or (bool(row.key) and any(entry.startswith(f"{row.key}-") for entry in host.readable_entries(STATE_DIR)))
    )
