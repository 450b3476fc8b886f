# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the table of engines and their flavours, and by what each is known on a host.  A new one
# is a file of its own and a row here.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import SYSTEM, UNIT_KEY
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR, load_readable_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import UNIT_FOLDERS, load_unit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

_SYSTEM_CONTAINERD_FILE = "/etc/containerd/config.toml"


class Flavor(t.NamedTuple):
    """One way in which an engine comes to a host.

    ``load`` makes it, given the name of an instance (``""`` is the usual one).  ``programs``, ``paths`` and
    ``services`` are what it is known by.  ``key`` is in whose name records are kept.  ``instances`` finds others
    beside the usual one; they are units (``by_unit``), or the user who runs the task (``by_user``).
    ``daemon``: whether anything of it runs between containers.
    """

    engine: str
    flavor: str
    load: t.Callable[[str], Engine]
    key: str
    programs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    instances: t.Callable[[HostRoot], list[str]] | None = None
    by_user: bool = False
    by_unit: bool = False
    daemon: bool = True


# Each is imported when it is asked for: a task for one engine does not pay for the others.
def _docker(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import DOCKER  # noqa: PLC0415

    return DOCKER


def _docker_snap(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker import DOCKER_SNAP  # noqa: PLC0415

    return DOCKER_SNAP


def _docker_rootless(user: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker_rootless import (  # noqa: PLC0415
        RootlessDocker,
    )

    return RootlessDocker(user)


def _own_users(host: HostRoot) -> list[str]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._rootless import own_users  # noqa: PLC0415

    return own_users(host)


def _containerd(service: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_containerd import (  # noqa: PLC0415
        CONTAINERD,
        ContainerdOfUnit,
    )

    return ContainerdOfUnit(service) if service else CONTAINERD


def _k3s(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_rancher import K3S  # noqa: PLC0415

    return K3S


def _rke2(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_rancher import RKE2  # noqa: PLC0415

    return RKE2


def _k0s(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_k0s import K0S  # noqa: PLC0415

    return K0S


def _microk8s(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_microk8s import MICROK8S  # noqa: PLC0415

    return MICROK8S


def _crio(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_crio import CRIO  # noqa: PLC0415

    return CRIO


def _podman(_instance: str) -> Engine:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_podman import PODMAN  # noqa: PLC0415

    return PODMAN


def _containerd_units(host: HostRoot) -> list[str]:
    """Other units of a containerd, by their names: every file of every unit is too much to read.

    Units that are gone count while there are records of theirs.
    """
    names = {
        name
        for folder in UNIT_FOLDERS
        for name in host.readable_entries(folder)
        if "containerd" in name and name.endswith(".service") and name not in _KNOWN_UNITS and "@" not in name
    }
    recorded = _recorded_units(host)
    if not names:
        return recorded
    found = [name for name in sorted(names) if _is_instance(host, name)]
    return [*found, *(name for name in recorded if name not in found)]


def _is_instance(host: HostRoot, name: str) -> bool:
    try:
        unit = load_unit(host, name, "containerd")
    except HostError:
        # Whoever inspects it reports why its files are refused.
        return True
    return unit is not None and _has_own_file(host, unit)


def _has_own_file(host: HostRoot, unit: Unit) -> bool:
    """Whether it starts a containerd with a file of its own, under no other unit's name: else it is that one."""
    named = unit.flag_values("--config", "-c")
    alias = posixpath.basename(host.resolve(unit.path)) != unit.name
    return bool(unit.arguments) and bool(named) and not alias and named[-1] != _SYSTEM_CONTAINERD_FILE


def _recorded_units(host: HostRoot) -> list[str]:
    entries = [name for name in host.readable_entries(STATE_DIR) if name.startswith(UNIT_KEY)]
    if not entries:
        return []
    owners = {record.engine for record in load_readable_records(host)}
    return sorted(owner[len(UNIT_KEY) :] for owner in owners if owner.startswith(UNIT_KEY))


_SNAP_DOCKER_UNIT, _MICROK8S_UNIT = "snap.docker.dockerd.service", "snap.microk8s.daemon-containerd.service"
_KNOWN_UNITS = ("containerd.service", _MICROK8S_UNIT)

_ROWS = (
    # The package podman-docker brings a program docker, too.
    Flavor("docker", SYSTEM, _docker, "docker", ("dockerd",), ("/etc/docker",), ("docker.service",)),
    Flavor("docker", "snap", _docker_snap, "docker_snap", paths=("/var/snap/docker",), services=(_SNAP_DOCKER_UNIT,)),
    Flavor("docker", "rootless", _docker_rootless, "", instances=_own_users, by_user=True),
    Flavor(
        "containerd", SYSTEM, _containerd, "containerd", ("containerd",), ("/etc/containerd",), ("containerd.service",),
        instances=_containerd_units, by_unit=True,
    ),
    Flavor(
        "containerd", "k3s", _k3s, "k3s", paths=("/var/lib/rancher/k3s", "/etc/rancher/k3s"),
        services=("k3s.service", "k3s-agent.service"),
    ),
    Flavor(
        "containerd", "rke2", _rke2, "rke2", paths=("/var/lib/rancher/rke2", "/etc/rancher/rke2"),
        services=("rke2-server.service", "rke2-agent.service"),
    ),
    Flavor(
        "containerd", "k0s", _k0s, "k0s", paths=("/var/lib/k0s", "/etc/k0s"),
        services=("k0sworker.service", "k0scontroller.service"),
    ),
    Flavor(
        "containerd", "microk8s", _microk8s, "microk8s", paths=("/var/snap/microk8s",), services=(_MICROK8S_UNIT,),
    ),
    Flavor("crio", SYSTEM, _crio, "crio", ("crio",), ("/etc/crio",), ("crio.service",)),
    Flavor("podman", SYSTEM, _podman, "podman", ("podman",), daemon=False),
)  # fmt: skip
FLAVORS: dict[tuple[str, str], Flavor] = {(row.engine, row.flavor): row for row in _ROWS}
ENGINES = tuple(dict.fromkeys(row.engine for row in _ROWS))
DAEMONS = tuple(dict.fromkeys(row.engine for row in _ROWS if row.daemon))
