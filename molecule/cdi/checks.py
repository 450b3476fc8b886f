"""Shared by the programs in this folder: containers that print what they have, calls of the module, and a hook."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import simulated_gpus
from cri import NODE, SOCKET, Cri, field
from engines import IMAGE, call, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KIND = "nvidia.com/gpu"
SPECIFICATION = Path("/etc/cdi/nvidia.yaml")
JSON_SPECIFICATION = SPECIFICATION.with_suffix(".json")
HOOK = Path("/usr/bin/nvidia-cdi-hook")
CALLS = Path("/var/log/gpufleet-cdi-hook.calls")
HOOKS = (
    "update-ldcache",
    "create-symlinks",
    "enable-cuda-compat",
    "disable-device-node-modification",
    "update-application-profile",
)
HOOK_TEXT = f"""\
#!/bin/sh
# Stands for nvidia-cdi-hook, whose help lists its hooks. A hook reads the container's state.
if [ "$1" = --help ]; then
    echo COMMANDS:
    for hook in {" ".join(HOOKS)}; do echo "   $hook  a hook"; done
    exit
fi
cat >/dev/null
echo "$*" >>{CALLS}
"""
# Each line is a kind (node, mount, variable), a tab, and the value.
PROBE = r"""
for node in /dev/* /dev/*/*; do
    [ -c "$node" ] && stat -c 'node	%n=%t:%T' "$node"
done
while read -r number above device root place rest; do echo "mount	$place"; done </proc/self/mountinfo
env | while read -r line; do echo "variable	$line"; done
"""
# The beginnings of lines that differ between containers.
PASSING = ("variable\tHOSTNAME=", "variable\tcontainer_uuid=")
VARIABLES = [f"NVIDIA_CTK_LIBCUDA_DIR={simulated_gpus.FOLDER}", "NVIDIA_VISIBLE_DEVICES=void"]


class Seen(NamedTuple):
    """What a container has and one without GPUs lacks. ``complaint`` is as in Container."""

    nodes: dict[str, str]
    mounts: list[str]
    variables: list[str]
    complaint: str = ""


class Container(NamedTuple):
    """The output of a container. ``complaint`` is the engine's error if it failed, or what a pod's probe complained."""

    words: str
    complaint: str = ""


def docker(devices: Sequence[str]) -> Container:
    """Run a container with Docker's command line."""
    return by_command("docker", devices)


def podman(devices: Sequence[str]) -> Container:
    """Run a container with Podman's command line, which has the same arguments."""
    return by_command("podman", devices)


def by_command(program: str, devices: Sequence[str]) -> Container:
    """Run a container and wait until it exits."""
    chosen = [word for device in devices for word in ("--device", f"{KIND}={device}")]
    command = [program, "run", "--rm", "--network=none", "--user=0", *chosen, IMAGE, "sh", "-c", PROBE]
    ended = run(*command)
    return Container(ended.stdout, ended.stderr.strip() or "no word" if ended.returncode else "")


class Pods(Cri):
    """Creates pods with one container, as a kubelet with a device plugin does."""

    def run_pod(self, devices: Sequence[str], annotation: bool = False) -> Container:
        """Return the output of a container in a pod. Its devices are in the field CDI_devices, or in an annotation."""
        pod = self.start("")
        try:
            container = self.create(pod, devices, annotation)
            self.call("StartContainer", field(1, container))
            command = b"".join(field(2, word) for word in ("sh", "-c", PROBE))
            answer = dict(self.call("ExecSync", field(1, container) + command + field(3, 20)))
            return Container(answer.get(1, b"").decode(), answer.get(2, b"").decode())
        except grpc.RpcError as error:
            return Container("", f"{error.code().name}: {error.details()}")
        finally:
            self.remove(pod)

    def create(self, pod: str, devices: Sequence[str], annotation: bool) -> str:
        """Create the container. Return its identifier."""
        names = [f"{KIND}={device}" for device in devices]
        config = field(1, field(1, f"probe-{uuid.uuid4()}")) + field(2, field(1, IMAGE))
        config += field(15, field(2, field(3, field(1, NODE))))
        if annotation and names:
            config += field(10, field(1, "cdi.k8s.io/gpufleet_gpus") + field(2, ",".join(names)))
        else:
            config += b"".join(field(17, field(1, name)) for name in names)
        metadata = field(1, "pod-") + field(2, str(uuid.uuid4())) + field(3, "default")
        sandbox = field(1, metadata) + field(8, field(1, self.cgroup_parent("")))
        answer = dict(self.call("CreateContainer", field(1, pod) + field(2, config) + field(3, sandbox)))
        return answer[1].decode()


def containerd(devices: Sequence[str]) -> Container:
    """Run a pod whose devices are in the field CDI_devices."""
    return Pods(SOCKET).run_pod(devices)


def annotated(devices: Sequence[str]) -> Container:
    """Run a pod whose devices are in an annotation."""
    return Pods(SOCKET).run_pod(devices, annotation=True)


ENGINES: dict[str, Callable[[Sequence[str]], Container]] = {
    "docker": docker,
    "podman": podman,
    "containerd": containerd,
    "containerd, annotation": annotated,
}
_BARE: dict[str, set[str]] = {}


def lines(container: Container) -> set[str]:
    """Return the lines of the container's output without those that differ between containers."""
    return {line for line in container.words.splitlines() if not line.startswith(PASSING)}


def seen(engine: str, *devices: str) -> Seen:
    """Start a container with these devices. Return how it differs from a container without devices."""
    if engine not in _BARE:
        bare = ENGINES[engine]([])
        if bare.complaint:
            raise SystemExit(f"{engine}: {bare.complaint}")
        _BARE[engine] = lines(bare)
    container = ENGINES[engine](devices)
    found: dict[str, list[str]] = {"node": [], "mount": [], "variable": []}
    for line in sorted(lines(container) - _BARE[engine]):
        kind, _tab, thing = line.partition("\t")
        found[kind].append(thing)
    nodes = dict(node.split("=") for node in found["node"])
    # Where runc and Podman must not make a device node, they mount the node of the host. Such a mount is expected.
    mounts = [mount for mount in found["mount"] if mount not in nodes]
    return Seen(nodes, mounts, found["variable"], container.complaint)


def whole(host: simulated_gpus.SimulatedHost, *gpus: int) -> Seen:
    """Return what a container with these GPUs must have."""
    return Seen(dict(sorted(host.nodes(*gpus).items())), host.libraries(), VARIABLES)


def fails_with(engine: str, found: Seen, word: str) -> bool:
    """Return whether a container failed to start with an error that contains ``word``. Podman's may lack it."""
    return word in found.complaint or (engine == "podman" and "OCI runtime" in found.complaint)


def usual_options() -> dict[str, Any]:
    """Return the options of all calls. The hosts' ``nvidia-ctk`` is a stand-in (generator.py), so it is not used."""
    return {"backend": "native", "hooks": "none", "use_nvml": simulated_gpus.has_nvml()}


def specification(**options: Any) -> dict[str, Any]:
    """Call the module that writes the specification."""
    return call("nvidia_cdi_spec", **{**usual_options(), **options})


def install_hook() -> None:
    """Install the stand-in for the toolkit's hook."""
    HOOK.write_text(HOOK_TEXT)
    HOOK.chmod(0o755)


def hook_calls() -> list[str]:
    """Return the arguments of all hook calls since the last call of this function."""
    words = CALLS.read_text().splitlines() if CALLS.exists() else []
    if words:
        CALLS.unlink()
    return words


def mode(path: Path) -> str:
    """Return the mode, user ID and group ID of a file."""
    state = os.stat(path)
    return f"{state.st_mode & 0o7777:04o} {state.st_uid}:{state.st_gid}"


def document() -> dict[str, Any]:
    """Return the content of the specification in JSON."""
    return dict(json.loads(JSON_SPECIFICATION.read_text()))
