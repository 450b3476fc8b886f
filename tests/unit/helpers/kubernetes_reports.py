# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports of Kubernetes nodes for the tests of the audit."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.leftovers import OWN_HOOK

NVIDIA = "/usr/bin/nvidia-container-runtime"
GPU, MIG, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
M1, M2 = "MIG-11111111-0000-0000-0000-000000000000", "MIG-22222222-0000-0000-0000-000000000000"
SOCKET = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"


def containerd(
    default: str = "nvidia", nvidia: bool = True, cdi: bool | None = None, **other: t.Any
) -> dict[str, t.Any]:
    runtimes = {"nvidia": NVIDIA} if nvidia else {}
    return {
        "engine": "containerd",
        "flavor": "system",
        "target": "containerd",
        "installed": True,
        "version": "1.7.24",
        "running": True,
        "runtimes": runtimes,
        "default_runtime": default,
        "live": {"version": "1.7.24", "runtimes": {**runtimes, "runc": ""}, "default_runtime": default, "cdi": cdi},
        **other,
    }


def crio(**other: t.Any) -> dict[str, t.Any]:
    # CRI-O does not report its runtimes, and always uses CDI. The kubelet of these reports uses the target containerd.
    return {**containerd("crun", nvidia=False), "engine": "crio", **other}


def gpu(uuid: str, *migs: str, mig: bool = False) -> dict[str, t.Any]:
    parts = [{"index": number, "uuid": name, "healthy": True, "reasons": []} for number, name in enumerate(migs)]
    return {"uuid": uuid, "mig_enabled": mig or bool(migs), "mig_devices": parts, "healthy": True, "reasons": []}


def gpus(*devices: dict[str, t.Any]) -> dict[str, t.Any]:
    found = devices or (gpu(A), gpu(B))
    usable = [
        part["uuid"] for device in found for part in (device["mig_devices"] if device["mig_enabled"] else [device])
    ]
    return {
        "driver_version": "580.95.05",
        "source": "nvml",
        "modules": {"nvidia": {}, "nvidia_uvm": {}},
        "devices": list(found),
        "advertised": usable,
        "missing_nodes": [],
        "problems": [],
    }


def resource(
    name: str = GPU, devices: t.Sequence[str] = (A, B), recorded: t.Any = ..., held: t.Sequence[str] = ()
) -> dict[str, t.Any]:
    pods = [{"pod": "train", "namespace": "ml", "container": "cuda", "devices": list(held)}] if held else []
    return {
        "name": name,
        "allocatable": list(devices),
        "recorded": list(devices) if recorded is ... else recorded,
        "held": pods,
    }


def socket(name: str | None = GPU, listens: bool | None = True, answers: bool | None = True) -> dict[str, t.Any]:
    return {"path": SOCKET, "resource": name, "listens": listens, "answers": answers}


def driver(*listens: bool | None, name: str = "gpu.nvidia.com") -> dict[str, t.Any]:
    return {"name": name, "sockets": [{"path": f"/s{number}", "listens": each} for number, each in enumerate(listens)]}


def kubernetes(**other: t.Any) -> dict[str, t.Any]:
    """A node that offers all of its GPUs."""
    return {
        "distribution": "kubeadm",
        "service": "kubelet.service",
        "running": True,
        "root_dir": "/var/lib/kubelet",
        "config_files": ["/var/lib/kubelet/config.yaml"],
        "cri_endpoint": "unix:///run/containerd/containerd.sock",
        "engine": "containerd",
        "source": "pod-resources",
        "resources": [resource()],
        "claims": [],
        "device_plugins": [socket()],
        "plugin_pods": ["nvidia/plugin-x7k2p"],
        "plugin_processes": [41],
        "dra_drivers": [],
        "problems": [],
        **other,
    }


def parts(**given: t.Any) -> dict[str, t.Any]:
    """The report of a node. Other keys than the parts are those of the part kubernetes."""
    names = ("engines", "gpus")
    own = {name: value for name, value in given.items() if name not in names}
    if "resources" in own and isinstance(own["resources"], list):
        # The plugin listens on the socket of each of its resources.
        plugins = [socket(f"nvidia.com/{row['name'].rpartition('/')[2]}") for row in own["resources"]]
        own.setdefault("device_plugins", plugins)
    return {
        "engines": given.get("engines", [containerd()]),
        "toolkit": None,
        "gpus": given.get("gpus", gpus()),
        "cdi": None,
        "kubernetes": kubernetes(**own),
    }


NOTHING: dict[str, t.Any] = {"resources": [], "device_plugins": [], "plugin_processes": [], "plugin_pods": []}
# The pod of the plugin ends again and again, so its process is rarely found.
FAILING = {**NOTHING, "plugin_pods": ["nvidia/plugin-x7k2p"]}


def log(restarts: int = 0, program: str | None = None) -> dict[str, t.Any]:
    path = f"/var/log/pods/nvidia_plugin-x7k2p_u1/nvidia-device-plugin-ctr/{restarts}.log"
    return {"pod": "nvidia/plugin-x7k2p", "log": path, "restarts": restarts, "program": program}


# The strategies of the device plugin, the engine, and the id of the finding.
STRATEGIES: list[tuple[list[str], dict[str, t.Any], str | None]] = [
    (["envvar"], containerd("runc", nvidia=False, cdi=True), "kubelet-engine-not-configured"),
    (["volume-mounts"], containerd("runc", nvidia=False, cdi=True), "kubelet-engine-not-configured"),
    (["envvar"], containerd("runc", cdi=True), None),
    (["envvar"], containerd(cdi=True), None),
    (["envvar", "cdi-cri"], containerd("runc", nvidia=False, cdi=True), None),
    (["cdi-cri"], containerd("runc", cdi=False), "cdi-off"),
    (["cdi-cri"], containerd(cdi=False), "cdi-off"),
    (["cdi-annotations"], containerd("runc", cdi=False), "cdi-off"),
    (["cdi-annotations"], containerd(cdi=False), None),
    (["cdi-cri"], containerd("runc", nvidia=False, cdi=True), None),
    (["cdi-cri"], containerd("runc"), None),
    ([], containerd("runc", nvidia=False, cdi=True), None),
    (["envvar"], crio(), "kubelet-engine-not-configured"),
    (["envvar"], crio(recorded_files=[OWN_HOOK]), None),
]
