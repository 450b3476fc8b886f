# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of engines and flavors, with the programs, paths and units by which they are found on a host.

This file imports the facts of each engine, and nothing else of it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import facts as containerd_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import facts as crio_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker import facts as docker_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman import facts as podman_facts


class Flavor(t.NamedTuple):
    """One way in which an engine is installed on a host.

    - ``key``: the name under which its records are stored.
    - ``programs``, ``paths``, ``services``: an engine is installed in this way if one of them exists on the host. The
      services are its units, of K3s and RKE2 that of a server first.
    - ``by_unit``: the host may have several instances, each with its own unit.
    - ``by_user``: each user may have an own instance. A task manages that of the user who runs it.
    - ``daemon``: whether a process of the engine runs between containers.
    - ``tables``: whether its files contain tables of runtimes, which this collection writes.
    - ``own_version``: whether its version is that of the engine, not of the distribution that contains it.
    - ``cri``: the socket of an engine that a Kubernetes distribution contains.
    - ``cdi_advice``: what switches CDI on, as sentences, if this collection cannot. Empty: its option enable_cdi does.
    """

    engine: str
    flavor: str
    key: str
    programs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    by_user: bool = False
    by_unit: bool = False
    daemon: bool = True
    tables: bool = True
    own_version: bool = True
    cri: str = ""
    cdi_advice: str = ""


def _decides_about_cdi(title: str) -> str:
    """Return the advice for a distribution that generates the file of its containerd.

    Its template has no setting of CDI, so the default of containerd applies (pkg/agent/templates/templates.go of K3s
    1.30 and 1.33, and with pull request 13680 of 2026, read).
    """
    return (
        f"CDI is on in the releases of {title} with containerd 2, unless a template or a file that it imports contains"
        f" enable_cdi = false. Upgrade {title}, or remove this line."
    )


_ROWS = (
    # The package podman-docker also installs a program named docker.
    Flavor("docker", core_constants.SYSTEM, "docker", ("dockerd",), ("/etc/docker",), ("docker.service",)),
    Flavor("docker", "snap", "docker_snap", paths=("/var/snap/docker",), services=("snap.docker.dockerd.service",)),
    Flavor("docker", "rootless", "", by_user=True),
    Flavor(
        "containerd", core_constants.SYSTEM, "containerd", ("containerd",), ("/etc/containerd",),
        ("containerd.service",), by_unit=True,
    ),
    Flavor(
        "containerd", "k3s", "k3s", paths=("/var/lib/rancher/k3s", "/etc/rancher/k3s"),
        services=("k3s.service", "k3s-agent.service"), tables=False, own_version=False,
        cri="/run/k3s/containerd/containerd.sock", cdi_advice=_decides_about_cdi("K3s"),
    ),
    Flavor(
        "containerd", "rke2", "rke2", paths=("/var/lib/rancher/rke2", "/etc/rancher/rke2"),
        services=("rke2-server.service", "rke2-agent.service"), tables=False, own_version=False,
        cri="/run/k3s/containerd/containerd.sock", cdi_advice=_decides_about_cdi("RKE2"),
    ),
    Flavor(
        "containerd", "k0s", "k0s", paths=("/var/lib/k0s", "/etc/k0s"),
        services=("k0sworker.service", "k0scontroller.service"), own_version=False, cri="/run/k0s/containerd.sock",
    ),
    Flavor(
        "containerd", "microk8s", "microk8s", paths=("/var/snap/microk8s",),
        services=("snap.microk8s.daemon-containerd.service",), cri="/var/snap/microk8s/common/run/containerd.sock",
    ),
    Flavor("crio", core_constants.SYSTEM, "crio", ("crio",), ("/etc/crio",), ("crio.service",)),
    Flavor("podman", core_constants.SYSTEM, "podman", ("podman",), daemon=False),
)  # fmt: skip
# The facts of each engine by its name.
FACTS = {row.name: row for row in (docker_facts.FACTS, containerd_facts.FACTS, crio_facts.FACTS, podman_facts.FACTS)}
FLAVORS: dict[tuple[str, str], Flavor] = {(row.engine, row.flavor): row for row in _ROWS}
ENGINES = tuple(dict.fromkeys(row.engine for row in _ROWS))
# The flavors of which each user has an own engine.
OF_USERS = tuple(row.flavor for row in _ROWS if row.by_user)
DAEMONS = tuple(dict.fromkeys(row.engine for row in _ROWS if row.daemon))
# The options of the doc fragment target, which select a flavor.
TARGET_OPTIONS: dict[str, dict[str, t.Any]] = {
    "flavor": {
        "type": "str",
        "choices": [core_constants.AUTO, *dict.fromkeys(row.flavor for row in _ROWS)],
        "default": core_constants.AUTO,
    },
    "user": {"type": "str"},
}


def cdi_advice(row: Flavor, folders: t.Sequence[str] | None, usual: str) -> str:
    """Return what switches CDI on; ``usual`` if this collection does.

    ``folders`` are the directories of CDI specifications that the configuration names, None if it names none.
    """
    if folders is not None and not folders:
        return f"Remove the empty list {FACTS[row.engine].cdi_setting} from its files and from the flags of its unit."
    return row.cdi_advice or usual
