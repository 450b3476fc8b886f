"""Inside a host: stand-ins for the kubelet and NVIDIA's device plugin, which speak gRPC by Debian's python3-grpcio.

The device plugin registers with the kubelet, and the kubelet then reads its devices with ListAndWatch. The methods and
field numbers are those of pkg/apis/deviceplugin/v1beta1 and pkg/apis/podresources/v1 of k8s.io/kubelet 0.34.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from cri import field, fields, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESOURCE = "nvidia.com/gpu"
PLUGINS = Path("/var/lib/kubelet/device-plugins")
KUBELET, PLUGIN = PLUGINS / "kubelet.sock", PLUGINS / "nvidia-gpu.sock"
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CHECKPOINT = PLUGINS / "kubelet_internal_checkpoint"
# Both are recognized by the names of their processes.
PROGRAMS = {"/usr/bin/kubelet": "kubelet", "/usr/bin/nvidia-device-plugin": "device_plugin"}
UNITS = Path("/etc/systemd/system")
SERVICES = ("kubelet.service", "gpufleet-plugin.service")
# The devices of the plugin: a name and its health in each line.
DEVICES = Path("/run/gpufleet-plugin.devices")


def install() -> None:
    """Install the stand-ins and their units, which run until they are stopped."""
    for (path, function), service in zip(PROGRAMS.items(), SERVICES):
        script = f"import sys\nsys.path[:0] = {sys.path!r}\nimport node_standins\nnode_standins.{function}()\n"
        Path(path).write_text(f"#!{sys.executable} -B\n{script}")
        Path(path).chmod(0o755)
        (UNITS / service).write_text(f"[Service]\nType=notify\nExecStart={path}\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def remove() -> None:
    """Stop the stand-ins, and remove all that they and ``install`` have written."""
    subprocess.run(["systemctl", "stop", *SERVICES], check=True)
    files = [str(DEVICES), *PROGRAMS, *(str(UNITS / name) for name in SERVICES)]
    subprocess.run(["rm", "-rf", "/var/lib/kubelet", *files], check=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True)


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A service with some methods, whose messages are bytes."""

    def __init__(self, methods: dict[str, grpc.RpcMethodHandler]) -> None:
        self.methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self.methods.get(details.method)


def _serve(path: Path, **methods: grpc.RpcMethodHandler) -> grpc.Server:
    """Serve on a socket. In the names of the methods, ``__`` stands for a slash, and ``_`` for a dot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    names = {f"/{name.replace('__', '/').replace('_', '.')}": handler for name, handler in methods.items()}
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(_Service(names),))
    server.add_insecure_port(f"unix://{path}")
    server.start()
    return server


def _report_ready() -> None:
    """Tell systemd that the service answers requests. Until then, systemctl waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])


def _unary(answer: Callable[[bytes], bytes]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(lambda request, _context: answer(request))


def kubelet() -> None:
    """Run the kubelet. As the real one, it removes the sockets of plugins when it starts, and keeps its checkpoint."""
    healthy: dict[str, list[str]] = {}
    # The thread of the newest registration of each resource.
    newest: dict[str, threading.Thread] = {}
    for path in PLUGINS.glob("*.sock"):
        path.unlink()

    def register(request: bytes) -> bytes:
        message = list(fields(request))
        endpoint, resource = texts(message, 2)[0], texts(message, 3)[0]
        newest[resource] = threading.Thread(target=watch, args=(endpoint, resource), daemon=True)
        newest[resource].start()
        return b""

    def watch(endpoint: str, resource: str) -> None:
        channel = grpc.insecure_channel(f"unix://{PLUGINS / endpoint}")
        try:
            for answer in channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b""):
                devices = [list(fields(content)) for number, content in fields(answer) if number == 1]
                keep(resource, [texts(device, 1)[0] for device in devices if texts(device, 2) == ["Healthy"]])
        except grpc.RpcError:
            if newest[resource] is threading.current_thread():
                keep(resource, [])

    def keep(resource: str, names: list[str]) -> None:
        healthy[resource] = names
        data = {"PodDeviceEntries": None, "RegisteredDevices": healthy}
        CHECKPOINT.write_text(json.dumps({"Data": data, "Checksum": 1}))

    def allocatable(_request: bytes) -> bytes:
        entries = [(resource, name) for resource, names in healthy.items() for name in names]
        return b"".join(field(1, field(1, resource) + field(2, name)) for resource, name in entries)

    servers = [
        _serve(KUBELET, v1beta1_Registration__Register=_unary(register)),
        _serve(
            POD_RESOURCES,
            v1_PodResourcesLister__GetAllocatableResources=_unary(allocatable),
            v1_PodResourcesLister__List=_unary(lambda _request: b""),
        ),
    ]
    _report_ready()
    servers[0].wait_for_termination()


def device_plugin() -> None:
    """Run the device plugin with the devices in the file."""
    lines = DEVICES.read_text().splitlines()
    devices = b"".join(field(1, field(1, name) + field(2, health)) for name, health in map(str.split, lines))

    def list_and_watch(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield devices
        threading.Event().wait()

    server = _serve(
        PLUGIN,
        v1beta1_DevicePlugin__GetDevicePluginOptions=_unary(lambda _request: b""),
        v1beta1_DevicePlugin__ListAndWatch=grpc.unary_stream_rpc_method_handler(list_and_watch),
    )
    register = grpc.insecure_channel(f"unix://{KUBELET}").unary_unary("/v1beta1.Registration/Register")
    register(field(1, "v1beta1") + field(2, PLUGIN.name) + field(3, RESOURCE), timeout=30)
    _report_ready()
    server.wait_for_termination()
