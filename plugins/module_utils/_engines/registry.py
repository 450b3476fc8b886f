# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the engines of a host and load them.

docs/architecture.md lists what a new engine needs. This file imports all engines, so Ansible sends them with each
module that imports it.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import accounts, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import rootless
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base


_SYSTEM_CONTAINERD_FILE = "/etc/containerd/config.toml"


# Each engine is imported on demand: a task for one engine need not import the others.
def _load_docker(flavor: str, user: str) -> engines_base.Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import engine  # noqa: PLC0415

    if flavor == "rootless":
        return engine.RootlessDocker(user)
    return engine.DOCKER_SNAP if flavor == "snap" else engine.DOCKER


def _load_containerd(flavor: str, service: str) -> engines_base.Engine:
    if flavor in ("k3s", "rke2"):
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s import (  # noqa: PLC0415
            engine as k3s_engine,
        )

        return k3s_engine.K3S if flavor == "k3s" else k3s_engine.RKE2
    if flavor == "k0s":
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k0s import (  # noqa: PLC0415
            engine as k0s_engine,
        )

        return k0s_engine.K0S
    if flavor == "microk8s":
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.microk8s import (  # noqa: PLC0415
            engine as microk8s_engine,
        )

        return microk8s_engine.MICROK8S
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import engine  # noqa: PLC0415

    return engine.ContainerdOfUnit(service) if service else engine.CONTAINERD


def _load_crio(_flavor: str, _instance: str) -> engines_base.Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import engine  # noqa: PLC0415

    return engine.CRIO


def _load_podman(_flavor: str, _instance: str) -> engines_base.Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import engine  # noqa: PLC0415

    return engine.PODMAN


def _own_users(host: hostfs.HostFS, _units: t.Collection[str]) -> list[str]:
    return rootless.own_users(host)


def _containerd_units(host: hostfs.HostFS, units: t.Collection[str]) -> list[str]:
    """Return other units of a containerd, found by their names: reading every file of every unit would take too long.

    Units that no longer exist are included while this collection has records of them.
    """
    services = {service for row in flavors.FLAVORS.values() if row.engine == "containerd" for service in row.services}
    names = {
        name
        for name in units
        if "containerd" in name and name.endswith(".service") and name not in services and "@" not in name
    }
    recorded = _recorded_units(host)
    if not names:
        return recorded
    found = [name for name in sorted(names) if _is_instance(host, name)]
    return [*found, *(name for name in recorded if name not in found)]


def _is_instance(host: hostfs.HostFS, name: str) -> bool:
    try:
        unit = systemd_units.load_unit(host, name, "containerd")
    except errors.HostError:
        # The inspection of this engine reports why its files are refused.
        return True
    return unit is not None and _has_own_file(host, unit)


def _has_own_file(host: hostfs.HostFS, unit: systemd_units.Unit) -> bool:
    """Return whether the unit starts a containerd with its own configuration file and is no alias of another unit.

    Otherwise it is that other containerd.
    """
    named = unit.flag_values("--config", "-c")
    alias = posixpath.basename(host.resolve(unit.path)) != unit.name
    return bool(unit.arguments) and bool(named) and not alias and named[-1] != _SYSTEM_CONTAINERD_FILE


def _recorded_units(host: hostfs.HostFS) -> list[str]:
    """Return the units of which this collection has records."""
    entries = [
        name for name in host.readable_entries(core_records.STATE_DIR) if name.startswith(core_constants.UNIT_PREFIX)
    ]
    if not entries:
        return []
    owners = {record.engine for record in core_records.load_readable_records(host)}
    return sorted(
        owner[len(core_constants.UNIT_PREFIX) :] for owner in owners if owner.startswith(core_constants.UNIT_PREFIX)
    )


# The function that creates an engine. Its arguments are the flavor and the name of the instance ("" for the usual one).
_LOADERS: dict[str, t.Callable[[str, str], engines_base.Engine]] = {
    "docker": _load_docker,
    "containerd": _load_containerd,
    "crio": _load_crio,
    "podman": _load_podman,
}
# The function that lists the names of further instances: users for rootless Docker, systemd units for containerd. Its
# arguments are the host and the names of its units.
_INSTANCES: dict[tuple[str, str], t.Callable[[hostfs.HostFS, t.Collection[str]], list[str]]] = {
    ("docker", "rootless"): _own_users,
    ("containerd", core_constants.SYSTEM): _containerd_units,
}


class Target(t.NamedTuple):
    """One engine of one host.

    ``instance`` distinguishes engines of one flavor: it is the user of a rootless engine or the unit of a second
    containerd, and empty for the usual one.
    """

    engine: str
    flavor: str = core_constants.SYSTEM
    instance: str = ""

    def __str__(self) -> str:
        parts = (self.engine, self.flavor, self.instance) if self.instance else (self.engine, self.flavor)
        return self.engine if parts == (self.engine, core_constants.SYSTEM) else "/".join(parts)

    @property
    def user(self) -> str | None:
        """The user who runs a rootless engine, None for an engine that root runs."""
        return self.instance if flavors.FLAVORS[self.engine, self.flavor].by_user else None

    def load(self) -> engines_base.Engine:
        """Return the engine. This imports its package."""
        return _LOADERS[self.engine](self.flavor, self.instance)


def targets_on(host: hostfs.HostFS, engine: str | None = None) -> list[Target]:
    """Return all engines (or those named ``engine``) of which the host has a trace, in the order of the table.

    No engine is loaded. Of the engines of users, only that of the user who runs the task is included. Root manages none
    of them.
    """
    units = {name for folder in systemd_units.UNIT_DIRS for name in host.readable_entries(folder)}
    return [
        Target(row.engine, row.flavor, instance)
        for row in flavors.FLAVORS.values()
        if engine in (None, row.engine)
        for instance in _instances(row, host, units)
    ]


def resolve_target(
    host: hostfs.HostFS,
    engine: str,
    flavor: str = core_constants.AUTO,
    user: str | None = None,
    service: str | None = None,
) -> Target:
    """Return the target that the parameters select.

    If the host has no trace of the engine, it is that of ``flavor``, and the system's own without a named flavor.

    Raises NvidiaError if several engines match, or if the parameters contradict each other.
    """
    if flavor != core_constants.AUTO and (engine, flavor) not in flavors.FLAVORS:
        supported = [row.flavor for row in flavors.FLAVORS.values() if row.engine == engine]
        raise errors.NvidiaError(
            f"Unsupported flavor {flavor} for {engine}. Supported: {', '.join([core_constants.AUTO, *supported])}."
        )
    of_users = _user_flavors(engine)
    if user is not None and (not of_users or flavor not in (core_constants.AUTO, *of_users)):
        raise errors.NvidiaError(
            f"The option {errors.option:user} is only for rootless Docker, not for {engine} with"
            f" {errors.option:flavor}: {flavor}. Remove the option."
        )
    if user is not None or flavor in of_users:
        return Target(engine, of_users[0], accounts.require_own(host, user).name)
    # Any user may have an engine, so it is selected only if the task names it or if the host has no other.
    targets = targets_on(host, engine)
    found = [
        target
        for target in targets
        if target.flavor == flavor or (flavor == core_constants.AUTO and target.user is None)
    ]
    found = found or [target for target in targets if flavor == core_constants.AUTO]
    if service is not None:
        return _target_of_unit(engine, flavor, systemd_units.unit_name(service), found, host)
    usual = [target for target in found if flavor != core_constants.AUTO and not target.instance]
    if usual:
        return usual[0]
    if len(found) > 1:
        # An engine that only left files is ignored if another one is installed.
        found = [target for target in found if target.load().inspect(host).installed] or found
    if len(found) > 1:
        raise errors.NvidiaError(
            f"This host has several installations of {engine}: {', '.join(map(str, found))}, each written as"
            f" ENGINE/FLAVOR/INSTANCE (without a flavor: system). Select one with {errors.option:flavor}, and with"
            f" {errors.option:user} or {errors.option:service} for the instance."
        )
    if len(found) == 1:
        return found[0]
    return Target(engine, core_constants.SYSTEM if flavor == core_constants.AUTO else flavor)


def _target_of_unit(engine: str, flavor: str, service: str, found: t.Sequence[Target], host: hostfs.HostFS) -> Target:
    """Return the target that the unit ``service`` starts, also for a unit that does not show what it starts.

    Raises NvidiaError for a unit that does not exist: the files of another engine would be used instead.
    """
    matching = [target for target in found if service in (target.instance, *flavors.FLAVORS[target[:2]].services)]
    if matching:
        return matching[0]
    row = flavors.FLAVORS[engine, core_constants.SYSTEM if flavor == core_constants.AUTO else flavor]
    if row.by_unit and systemd_units.unit_file(host, service) is None:
        raise errors.NvidiaError(
            f"This host has no unit {service}. Correct {errors.option:targets} or {errors.option:service}."
        )
    return Target(engine, row.flavor, service if row.by_unit else "")


def _user_flavors(engine: str) -> tuple[str, ...]:
    return tuple(row.flavor for row in flavors.FLAVORS.values() if row.engine == engine and row.by_user)


def _instances(row: flavors.Flavor, host: hostfs.HostFS, units: t.Collection[str]) -> list[str]:
    found = [""] if _is_on_host(row, host, units) else []
    instances = _INSTANCES.get((row.engine, row.flavor))
    return found + (instances(host, units) if instances is not None else [])


def _is_on_host(row: flavors.Flavor, host: hostfs.HostFS, units: t.Collection[str]) -> bool:
    """Return whether the host has a program, a unit, a configuration or a record of this flavor."""
    return (
        any(service in units for service in row.services)
        or (bool(row.programs) and host.find_executable(row.programs) is not None)
        or any(host.lexists(path) for path in row.paths)
        or (
            bool(row.key)
            and any(entry.startswith(f"{row.key}-") for entry in host.readable_entries(core_records.STATE_DIR))
        )
    )


def engines_on(host: hostfs.HostFS) -> list[engines_base.Engine]:
    """Return the engines of which the host has a trace. Only these are loaded."""
    return [target.load() for target in targets_on(host)]
