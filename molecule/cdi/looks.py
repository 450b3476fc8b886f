"""What the programs in this folder share: containers of each engine that look at what they got."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import machine
from cri import NODE, SOCKET, Cri, field
from engines import IMAGE, call, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KIND = "nvidia.com/gpu"
SPECIFICATION = Path("/etc/cdi/nvidia.yaml")
HOOK = Path("/usr/bin/nvidia-cdi-hook")
CALLS = Path("/var/log/gpufleet-cdi-hook.calls")
HOOK_TEXT = f"""\
#!/bin/sh
# Stands for nvidia-cdi-hook. A hook reads the container's state.
cat >/dev/null
echo "$*" >>{CALLS}
"""
# Each line a kind of thing, a tab, and the thing.
PROBE = r"""
for node in /dev/* /dev/*/*; do
    [ -c "$node" ] && stat -c 'node	%n=%t:%T' "$node"
done
while read -r number above device root place rest; do echo "mount	$place"; done </proc/self/mountinfo
env | while read -r line; do echo "variable	$line"; done
echo "groups	$(id -G)"
"""
# What each container has of its own.
PASSING = ("variable\tHOSTNAME=", "variable\tcontainer_uuid=")
VARIABLES = [f"NVIDIA_CTK_LIBCUDA_DIR={machine.FOLDER}", "NVIDIA_VISIBLE_DEVICES=void"]


class Seen(NamedTuple):
    """What a container has that one without GPUs has not; ``complaint`` where it did not start."""

    nodes: dict[str, str]
    mounts: list[str]
    variables: list[str]
    complaint: str = ""


class Container(NamedTuple):
    """What a container said, and what the engine said of one that did not come to its end."""

    words: str
    complaint: str = ""


def docker(devices: Sequence[str], user: str = "0") -> Container:
    """By its command line."""
    return by_command("docker", devices, user)


def podman(devices: Sequence[str], user: str = "0") -> Container:
    """The same words."""
    return by_command("podman", devices, user)


def by_command(program: str, devices: Sequence[str], user: str) -> Container:
    """Run a container to its end."""
    chosen = [word for device in devices for word in ("--device", f"{KIND}={device}")]
    command = [program, "run", "--rm", "--network=none", f"--user={user}", *chosen, IMAGE, "sh", "-c", PROBE]
    ended = run(*command)
    return Container(ended.stdout, ended.stderr.strip() or "no word" if ended.returncode else "")


class Pods(Cri):
    """Pods with a container in them, as a kubelet with a device plugin makes them."""

    def look(self, devices: Sequence[str], annotation: bool = False) -> Container:
        """What a container in a pod says; its devices stand in the field for them, or in an annotation."""
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
        """Create the container; returns its name."""
        names = [f"{KIND}={device}" for device in devices]
        config = field(1, field(1, f"look-{uuid.uuid4()}")) + field(2, field(1, IMAGE))
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
    """A pod whose devices stand in the field for them."""
    return Pods(SOCKET).look(devices)


def annotated(devices: Sequence[str]) -> Container:
    """A pod whose devices stand in an annotation."""
    return Pods(SOCKET).look(devices, annotation=True)


ENGINES: dict[str, Callable[[Sequence[str]], Container]] = {
    "docker": docker,
    "podman": podman,
    "containerd": containerd,
    "containerd, annotation": annotated,
}
_BARE: dict[str, set[str]] = {}


def lines(container: Container) -> set[str]:
    """What it said."""
    return {line for line in container.words.splitlines() if not line.startswith(PASSING)}


def seen(engine: str, *devices: str) -> Seen:
    """Start a container with these devices, and compare it with one that has none."""
    if engine not in _BARE:
        bare = ENGINES[engine]([])
        if bare.complaint:
            raise SystemExit(f"{engine}: {bare.complaint}")
        _BARE[engine] = lines(bare)
    container = ENGINES[engine](devices)
    found: dict[str, list[str]] = {"node": [], "mount": [], "variable": [], "groups": []}
    for line in sorted(lines(container) - _BARE[engine]):
        kind, _tab, thing = line.partition("\t")
        found[kind].append(thing)
    nodes = dict(node.split("=") for node in found["node"])
    # Podman and runc bind a node where they cannot make it, or what it was bound from is one.
    mounts = [mount for mount in found["mount"] if mount not in nodes]
    return Seen(nodes, mounts, found["variable"], container.complaint)


def whole(host: machine.Machine, *gpus: int) -> Seen:
    """What a container with these GPUs has to have."""
    return Seen(dict(sorted(host.nodes(*gpus).items())), host.libraries(), VARIABLES)


def blames(engine: str, found: Seen, word: str) -> bool:
    """Whether a container did not start, for the reason that has this word; Podman may have a poorer one."""
    return word in found.complaint or (engine == "podman" and "OCI runtime" in found.complaint)


def specification(**options: Any) -> dict[str, Any]:
    """Call the module that writes it."""
    # Old loaders do not survive a library without code.
    # The unit's generator is a stand-in for another one.
    usual = {"backend": "native", "hooks": "none", "use_nvml": machine.now().parts > 0}
    return call("nvidia_cdi_spec", **{**usual, **options})


def install_hook() -> None:
    """Put the stand-in for the toolkit's hook in place."""
    HOOK.write_text(HOOK_TEXT)
    HOOK.chmod(0o755)


def hook_calls() -> list[str]:
    """What hooks were told since the last time."""
    words = CALLS.read_text().splitlines() if CALLS.exists() else []
    if words:
        CALLS.unlink()
    return words


def mode(path: Path) -> str:
    """As ls(1) would write it in numbers, with the owner."""
    state = os.stat(path)
    return f"{state.st_mode & 0o7777:04o} {state.st_uid}:{state.st_gid}"


def document() -> dict[str, Any]:
    """The specification, where it was written as JSON."""
    return dict(json.loads(SPECIFICATION.with_suffix(".json").read_text()))
