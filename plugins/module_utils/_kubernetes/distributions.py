# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The distributions of Kubernetes: their units, and where they keep the files and sockets of the kubelet.

It finds the kubelet of a host. `kubelet.py` reads its settings.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


class Distribution(t.NamedTuple):
    """One way in which a kubelet is installed.

    - ``services``: its units. The first one that runs, is enabled or exists is used.
    - ``processes``: what the names of the process begin with that contains the kubelet.
    - ``program``: the program of the unit, empty if it is not checked.
    - ``root_dir``, ``endpoint``, ``config``: the defaults of the distribution; ``config`` is a file.
    - ``config_dir``: the directory of drop-ins for the kubelet configuration, relative to ``data_dir``.
    - ``arguments``: a file with the arguments of the kubelet.
    - ``in_process``: the kubelet is a part of another program, whose flags are not those of the kubelet.
    """

    name: str
    services: tuple[str, ...]
    processes: tuple[str, ...]
    program: str
    root_dir: str
    endpoint: str
    config: str = ""
    data_dir: str = ""
    config_dir: str = ""
    arguments: str = ""
    in_process: bool = False


# The root directory and the CRI endpoint are the kubelet's defaults (cmd/kubelet/app/options/options.go and
# pkg/kubelet/apis/config/v1beta1/defaults.go of Kubernetes 1.27 and newer). The differences of the distributions:
# - K3s 1.34: pkg/agent/config/config_linux.go (socket), pkg/daemons/agent/agent_linux.go (config-dir).
# - RKE2 1.34 runs the kubelet as a child process with the same settings (pkg/executor/pebinary/pebinary.go).
# - k0s 1.36: pkg/component/worker/kubelet.go (arguments, configuration in the run directory).
# - MicroK8s 1.33: microk8s-resources/default-args/kubelet.
_USUAL_ROOT, _USUAL_ENDPOINT = "/var/lib/kubelet", "unix:///run/containerd/containerd.sock"
_K3S, _RKE2, _K0S, _MICROK8S = (flavors.FLAVORS["containerd", name] for name in ("k3s", "rke2", "k0s", "microk8s"))
_RANCHER_CONFIG_DIR = "agent/etc/kubelet.conf.d"
_SNAP_COMMON, _SNAP_DATA = "/var/snap/microk8s/common", "/var/snap/microk8s/current"
# The variables in the file of arguments of MicroK8s.
SNAP_VARIABLES = {"SNAP_COMMON": _SNAP_COMMON, "SNAP_DATA": _SNAP_DATA}
_ROWS = (
    Distribution(
        "k3s", _K3S.services, ("k3s",), "k3s", _USUAL_ROOT, f"unix://{_K3S.cri}",
        data_dir="/var/lib/rancher/k3s", config_dir=_RANCHER_CONFIG_DIR, in_process=True,
    ),
    Distribution(
        "rke2", _RKE2.services, ("kubelet",), "rke2", _USUAL_ROOT, f"unix://{_RKE2.cri}",
        data_dir="/var/lib/rancher/rke2", config_dir=_RANCHER_CONFIG_DIR,
    ),
    Distribution(
        "k0s", _K0S.services, ("kubelet",), "k0s", "/var/lib/k0s/kubelet", f"unix://{_K0S.cri}",
        config="/run/k0s/kubelet/config.yaml",
    ),
    Distribution(
        "microk8s", ("snap.microk8s.daemon-kubelite.service",), ("kubelite",), "", f"{_SNAP_COMMON}/var/lib/kubelet",
        _MICROK8S.cri, arguments=f"{_SNAP_DATA}/args/kubelet", in_process=True,
    ),
    Distribution("kubelet", ("kubelet.service",), ("kubelet",), "kubelet", _USUAL_ROOT, _USUAL_ENDPOINT),
)  # fmt: skip
K3S, RKE2, K0S, KUBELET, KUBEADM = "k3s", "rke2", "k0s", "kubelet", "kubeadm"

# kubeadm writes this file when a node joins (cmd/kubeadm/app/constants/constants.go of Kubernetes 1.34).
KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"


class FoundKubelet(t.NamedTuple):
    """The kubelet of a host: its distribution, its unit and its process, which is None if it does not run."""

    distribution: Distribution
    unit: systemd_units.Unit
    pid: int | None


def find_kubelet(host: hostfs.HostFS) -> FoundKubelet | None:
    """Return the kubelet that runs, else the one whose unit is enabled or exists; None if the host has none.

    Raises HostError if the files of a unit cannot be read.
    """
    found = [kubelet for row in _ROWS for kubelet in _kubelets(row, host)]
    running = [kubelet for kubelet in found if kubelet.pid is not None]
    if not running:
        # As processes.active_unit(): a node may have the units of a server and an agent, or of a former distribution.
        found.sort(key=lambda kubelet: not systemd_units.is_enabled(host, kubelet.unit.name))
    if found and not running and host.live:
        running = _moved_kubelets(host, found)
    return next(iter([*running, *found]), None)


def _moved_kubelets(host: hostfs.HostFS, found: t.Sequence[FoundKubelet]) -> list[FoundKubelet]:
    """Return the kubelets that run outside the control group of their unit.

    A kubelet moves itself with the setting kubeletCgroups, as that of k0s 1.24 does (pkg/component/worker/kubelet.go).
    A kubelet in a container, such as that of a kind cluster, is no kubelet of the host.
    """
    pids = [
        pid
        for pid, name in processes.all_names(host).items()
        if name == KUBELET and processes.uid_of(host, pid) == 0 and processes.in_container(host, pid) is False
    ]
    return [kubelet._replace(pid=pids[0]) for kubelet in found if pids and kubelet.distribution.processes == (KUBELET,)]


def _kubelets(row: Distribution, host: hostfs.HostFS) -> t.Iterator[FoundKubelet]:
    for name in row.services:
        unit = systemd_units.load_unit(host, name, row.program)
        if unit is not None and _starts_kubelet(row, unit):
            pids = processes.find_processes(host, unit, row.processes)
            yield FoundKubelet(row, unit, pids[0] if pids else None)


def _starts_kubelet(row: Distribution, unit: systemd_units.Unit) -> bool:
    """Return whether the unit starts a kubelet, and not only the control plane."""
    if row.name == "k0s" and "controller" in unit.arguments:
        # cmd/controller/controller.go of k0s 1.36.
        return unit.is_on("enable-worker") or unit.is_on("single")
    # --disable-agent of K3s (pkg/cli/cmds/server.go of K3s 1.34).
    return not unit.is_on("disable-agent")


def kind_of(found: FoundKubelet, host: hostfs.HostFS) -> str:
    """Return the name of the distribution for the report: a kubelet that kubeadm set up is ``kubeadm``."""
    name = found.distribution.name
    return KUBEADM if name == KUBELET and host.exists(KUBEADM_FLAGS) else name
