# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of Kubernetes nodes as each distribution lays them out, and stand-ins for the kubelet and for device plugins.

The layouts: kubeadm and kubelet 1.34 (deb packages of pkgs.k8s.io), K3s 1.33, RKE2 1.33, k0s 1.34, MicroK8s 1.33.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._kubernetes import info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc.grpc import field
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import (
    DATA,
    HEADERS,
    SETTINGS,
    frame,
    literal,
    read_request,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import RancherHost
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import serving

if t.TYPE_CHECKING:
    from pathlib import Path

PLUGINS = "/var/lib/kubelet/device-plugins"
CHECKPOINT = f"{PLUGINS}/kubelet_internal_checkpoint"
GPU_SOCKET = f"{PLUGINS}/nvidia-gpu.sock"
GPU = "nvidia.com/gpu"
# The processes in the control groups of units.
PID = 700

_CONTAINERD_UNIT = "[Service]\nExecStart=/usr/bin/containerd\n"
_KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
[Install]
WantedBy=multi-user.target
"""
_KUBEADM_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
KUBELET_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
"""
_K0S_UNIT = "[Service]\nExecStart=/usr/local/bin/k0s worker --token-file=/etc/k0s/token\n"
_MICROK8S_ARGUMENTS = """\
--kubeconfig=${SNAP_DATA}/credentials/kubelet.config
--root-dir=${SNAP_COMMON}/var/lib/kubelet
--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock
--eviction-hard="memory.available<100Mi,nodefs.available<1Gi,imagefs.available<1Gi"
"""


class Node(EngineTree):
    """A node of one distribution. Its kubelet runs unless ``running`` is False."""

    def __init__(self, root: Path, distribution: str = "kubeadm", running: bool = True) -> None:
        super().__init__(root)
        self.distribution = distribution
        self.running = running
        getattr(self, f"_{distribution}")()

    def runs(self, unit: str, pid: int, *arguments: str, name: str = "") -> None:
        """Add a process to the control group of a unit."""
        self.process(pid, name or arguments[0].rpartition("/")[2], *arguments)
        self.write(f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs", f"{pid}\n")

    def process(
        self, pid: int, name: str, *arguments: str, started: int = 1000, uid: int = 0, in_container: bool = False
    ) -> None:
        """Write the files of a process that started ``started`` clock ticks after the boot."""
        numbers = f"{pid}\t7" if in_container else str(pid)
        self.write(f"/proc/{pid}/comm", f"{name}\n")
        self.write(f"/proc/{pid}/cmdline", "".join(f"{argument}\0" for argument in arguments))
        self.write(f"/proc/{pid}/status", f"Name:\t{name}\nNSpid:\t{numbers}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        self.write(f"/proc/{pid}/stat", f"{pid} ({name}) S {' '.join(['0'] * 18)} {started} 0\n")

    def _containerd(self) -> None:
        self.write("/usr/bin/containerd")
        self.write("/lib/systemd/system/containerd.service", _CONTAINERD_UNIT)

    def _kubelet(self) -> None:
        """Lay out a kubelet that another tool than kubeadm set up, as on Amazon's image for EKS."""
        self._containerd()
        config = "/etc/kubernetes/kubelet/config.json"
        self.write("/usr/bin/kubelet")
        unit = f"[Service]\nExecStart=/usr/bin/kubelet --config={config} --config-dir={config}.d --v=2\n"
        self.write("/etc/systemd/system/kubelet.service", unit)
        settings = {
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        }
        self.write(config, json.dumps(settings))
        if self.running:
            self.runs("kubelet.service", PID, "/usr/bin/kubelet", f"--config={config}", f"--config-dir={config}.d")

    def _kubeadm(self) -> None:
        self._containerd()
        self.write("/usr/bin/kubelet")
        self.write("/usr/lib/systemd/system/kubelet.service", _KUBELET_UNIT)
        self.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", _KUBEADM_DROP_IN)
        self.write("/var/lib/kubelet/config.yaml", KUBELET_CONFIG)
        endpoint = "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock"
        self.write("/var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{endpoint} --pod-infra=pause:3.10"\n')
        if self.running:
            config = "--config=/var/lib/kubelet/config.yaml"
            self.runs("kubelet.service", PID, "/usr/bin/kubelet", config, endpoint)

    def _rancher(self, program: str) -> None:
        tree = RancherHost(self.root, program, toolkit=False)
        unit = tree.unit("agent")
        folder = f"/var/lib/rancher/{program}/agent/etc/kubelet.conf.d"
        text = "containerRuntimeEndpoint: unix:///run/k3s/containerd/containerd.sock\nkind: KubeletConfiguration\n"
        self.write(f"{folder}/00-{program}-defaults.conf", text)
        if self.running and program == "k3s":
            self.runs(unit, PID, "/usr/local/bin/k3s agent", name="k3s-agent")
        elif self.running:
            self.runs(unit, PID, "/var/lib/rancher/rke2/bin/kubelet", f"--config-dir={folder}", "--node-ip=10.0.0.7")

    def _k3s(self) -> None:
        self._rancher("k3s")

    def _rke2(self) -> None:
        self._rancher("rke2")

    def _k0s(self) -> None:
        self.write("/usr/local/bin/k0s")
        self.write("/etc/systemd/system/k0sworker.service", _K0S_UNIT)
        config = "/run/k0s/kubelet/config.yaml"
        self.write(config, "containerRuntimeEndpoint: unix:///run/k0s/containerd.sock\n")
        self.path("/var/lib/k0s").mkdir(parents=True)
        if self.running:
            program = "/var/lib/k0s/bin/kubelet"
            self.runs("k0sworker.service", PID, program, "--root-dir=/var/lib/k0s/kubelet", f"--config={config}")

    def _microk8s(self) -> None:
        unit = "snap.microk8s.daemon-kubelite.service"
        self.write(f"/etc/systemd/system/{unit}", "[Service]\nExecStart=/usr/bin/snap run microk8s.daemon-kubelite\n")
        self.write("/var/snap/microk8s/current/args/kubelet", _MICROK8S_ARGUMENTS)
        common = self.path("/var/snap/microk8s/common/var/lib/kubelet")
        common.mkdir(parents=True)
        self.path("/var/lib").mkdir(parents=True)
        self.path("/var/lib/kubelet").symlink_to("/var/snap/microk8s/common/var/lib/kubelet")
        if self.running:
            self.runs(unit, PID, "/snap/microk8s/8000/kubelite", "--start-control-plane=true")

    def described(self) -> dict[str, t.Any]:
        return info.describe_kubernetes(self.host)[0]

    def socket_file(self, path: str) -> None:
        """Create a socket on which no program listens."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(self.path(path)))

    @contextlib.contextmanager
    def serves(self, path: str, **answers: bytes | str | None) -> t.Iterator[Service]:
        """Let a service answer on a socket."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        server = Service(str(self.path(path)), answers)
        with serving(server, self.path(path)):
            try:
                yield server
            finally:
                server.over.set()

    @contextlib.contextmanager
    def kubelet(
        self, allocatable: t.Mapping[str, t.Sequence[str]], pods: bytes = b"", root_dir: str = "/var/lib/kubelet"
    ) -> t.Iterator[Service]:
        """Let a kubelet answer the PodResources API."""
        devices = b"".join(field(1, devices_of(name, [device])) for name in allocatable for device in allocatable[name])
        path = f"{root_dir}/pod-resources/kubelet.sock"
        with self.serves(path, GetAllocatableResources=devices, List=pods) as server:
            yield server

    def device_plugin(self, path: str = GPU_SOCKET) -> t.ContextManager[Service]:
        """Let a device plugin answer. It fails the test if ListAndWatch is called."""
        return self.serves(path, GetDevicePluginOptions=b"\x10\x01")

    def checkpoint(
        self, registered: t.Mapping[str, t.Sequence[str] | None], held: t.Mapping[str, t.Sequence[str]] | None = None
    ) -> None:
        """Write a checkpoint as Kubernetes 1.20 and newer does. ``held`` are the devices of pods by resource."""
        entries = [
            {
                "PodUID": "8b3f",
                "ContainerName": "cuda",
                "ResourceName": name,
                "DeviceIDs": {"0": list(devices)},
                "AllocResp": "CgA=",
            }
            for name, devices in (held or {}).items()
        ]
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
        self.write(CHECKPOINT, json.dumps({"Data": data, "Checksum": 2214317226}))


def devices_of(resource: str, devices: t.Sequence[str], node: int = 1) -> bytes:
    """Return a ContainerDevices message, with a NUMA node."""
    topology = field(1, field(1, node))
    return field(1, resource) + b"".join(field(2, device) for device in devices) + field(3, topology)


def pod_with(
    name: str, devices: t.Mapping[str, t.Sequence[str]], claims: t.Sequence[tuple[str, str, str]] = ()
) -> bytes:
    """Return the field of a pod in the namespace ml, for a ListPodResourcesResponse."""
    held = b"".join(field(2, devices_of(resource, ids)) for resource, ids in devices.items())
    claimed = b"".join(
        field(
            4, field(1, field(1, "k8s.gpu.nvidia.com/device=x")) + field(2, driver) + field(3, pool) + field(4, device)
        )
        for driver, pool, device in claims
    )
    dynamic = field(5, field(2, "claim") + field(3, "ml") + claimed) if claims else b""
    # cpu_ids is a packed list of numbers, and memory has a size.
    container = (
        field(1, "cuda") + held + field(3, b"\x02\x03") + field(4, field(1, "memory") + field(2, 4096)) + dynamic
    )
    return field(1, field(1, name) + field(2, "ml") + field(3, container))


class Service(socketserver.ThreadingUnixStreamServer):
    """A gRPC service: the answer to each method, or the message of an error. It never answers a method with None."""

    daemon_threads = False

    def __init__(self, path: str, answers: t.Mapping[str, bytes | str | None]) -> None:
        super().__init__(path, _Handler)
        self.answers = answers
        self.calls: list[str] = []
        self.over = threading.Event()


class _Handler(socketserver.StreamRequestHandler):
    server: Service

    def handle(self) -> None:
        # A client that only connects sends nothing.
        with contextlib.suppress(OSError, IndexError):
            method, _message = read_request(self.rfile)
            self.server.calls.append(method)
            self._answer(self.server.answers.get(method, "unimplemented"))

    def _answer(self, content: bytes | str | None) -> None:
        if content is None:
            self.server.over.wait()
            return
        if isinstance(content, str):
            trailers = b"\x88" + literal(b"grpc-status", b"12") + literal(b"grpc-message", content.encode())
            frames = frame(HEADERS, 5, 1, trailers)
        else:
            message = b"\0" + len(content).to_bytes(4, "big") + content
            pieces = [message[start : start + 16000] for start in range(0, len(message), 16000)]
            frames = frame(HEADERS, 4, 1, b"\x88") + b"".join(frame(DATA, 0, 1, piece) for piece in pieces)
        self.wfile.write(frame(SETTINGS, 0, 0) + frames)
        self.rfile.read()
