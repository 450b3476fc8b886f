"""Inside a host: installs the engines in the host's name, and starts a pod in each CRI, which must keep running.

The programs of the distributions are in the directory standins. They start the containerd of the host. Engines of
Debian that such a node would not have are removed. The toolkit is installed after the engine has started, so that
the changes apply to a running node. Only RKE2 has it before: it searches for the runtimes when it starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import elf_programs
import grpc
import load_busybox
import places
import simulated_gpus
from checks import IMAGE
from cri import Cri

FILES, STANDINS = Path("/molecule/flavors/files"), "/molecule/flavors/standins"
VERSION = "1.20.0"
# As in the unit and in the inventory.
MICROK8S_REVISION = "7394"
# The programs, units and directories of each engine.
PROGRAMS = {
    "docker": ("usr/bin/docker", "usr/sbin/dockerd", "usr/bin/dockerd"),
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"),
    "podman": ("usr/bin/podman",),
}
UNITS = {"docker": ("docker.service", "docker.socket"), "containerd": ("containerd.service",), "podman": ()}
FOLDERS = {"docker": "/etc/docker", "containerd": "/etc/containerd", "podman": "/etc/containers"}
WRAPPER = """\
#!{python} -B
import sys

sys.path.insert(0, "{standins}")
import {module}

{module}.main({arguments})
"""


def do(*command: str, content: bytes | None = None) -> None:
    """Run a command. Raise an error if it fails."""
    subprocess.run(command, check=True, input=content, stdout=sys.stderr)


def put(file: str, place: str, mode: int = 0o644) -> Path:
    """Copy a file of the directory files to ``place``."""
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILES / file, path)
    path.chmod(mode)
    return path


def stand_in(program: str, module: str, arguments: str = "") -> None:
    """Write a program that runs the stand-in ``module``."""
    text = WRAPPER.format(python=sys.executable, standins=STANDINS, module=module, arguments=arguments)
    path = Path(program)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def bring(folder: str) -> None:
    """Copy the host's containerd to the directory of a distribution."""
    Path(folder).mkdir(parents=True)
    for program in PROGRAMS["containerd"]:
        shutil.copy(f"/{program}", folder)


def remove(*engines: str) -> None:
    """Remove the units, programs and files of engines by which this collection would detect them."""
    for engine in engines:
        if UNITS[engine]:
            subprocess.run(["systemctl", "disable", "--quiet", "--now", *UNITS[engine]], check=False)
        for unit in UNITS[engine]:
            Path("/usr/lib/systemd/system", unit).unlink()
        for program in PROGRAMS[engine]:
            Path("/", program).unlink(missing_ok=True)
        shutil.rmtree(FOLDERS[engine], ignore_errors=True)


def unit(name: str, folder: str = "/etc/systemd/system", enabled: bool = True) -> None:
    """Install a unit, and start it if ``enabled``."""
    put(name, f"{folder}/{name}")
    if enabled:
        do("systemctl", "daemon-reload")
        do("systemctl", "enable", "--quiet", "--now", name)


def rancher(program: str) -> None:
    """Install the files that K3s and RKE2 have in common."""
    data = f"/var/lib/rancher/{program}"
    put(f"{program}.yaml", f"/etc/rancher/{program}/config.yaml", 0o600)
    stand_in(f"/usr/local/bin/{program}", "rancher", f'"{program}"')
    bring(f"{data}/data/24fc436e/bin")
    Path(data, "data/current").symlink_to("24fc436e")


def k3s() -> None:
    """Install K3s beside Docker, whose packages disable the CRI of their containerd."""
    remove("podman")
    rancher("k3s")
    put("docker.toml", "/etc/containerd/config.toml")
    do("systemctl", "restart", "containerd.service")
    unit("k3s.service")
    do("docker", "load", "--quiet", content=load_busybox.image(IMAGE))


def rke2() -> None:
    """Install an agent of RKE2 as the tarball does, with both units, and a template of another tool."""
    rancher("rke2")
    remove("docker", "containerd", "podman")
    put("config.toml.tmpl", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl", 0o600)
    install_toolkit()
    unit("rke2-server.service", "/usr/local/lib/systemd/system", enabled=False)
    unit("rke2-agent.service", "/usr/local/lib/systemd/system")


def k0s() -> None:
    """Install a worker of k0s, with a drop-in of another tool."""
    stand_in("/usr/local/bin/k0s", "k0s")
    bring("/var/lib/k0s/bin")
    remove("docker", "containerd", "podman")
    put("10-site.toml", "/etc/k0s/containerd.d/10-site.toml")
    unit("k0sworker.service")


def microk8s() -> None:
    """Install MicroK8s as the snap does, whose directories are links to those of a revision."""
    stand_in("/usr/bin/snap", "snap")
    bring(f"/snap/microk8s/{MICROK8S_REVISION}/bin")
    put("containerd-template.toml", f"/var/snap/microk8s/{MICROK8S_REVISION}/args/containerd-template.toml", 0o660)
    for folder in ("/snap/microk8s", "/var/snap/microk8s"):
        Path(folder, "current").symlink_to(MICROK8S_REVISION)
    remove("docker", "containerd", "podman")
    unit("snap.microk8s.daemon-containerd.service")


def units() -> None:
    """Install a second containerd, with a runtime whose program is missing."""
    remove("docker", "podman")
    put("containerd-gpu.toml", "/etc/containerd-gpu/config.toml")
    unit("containerd-gpu.service")


def users() -> None:
    """Install a rootless Docker, and a Podman with NVIDIA's old hook and with cdi_spec_dirs of the host's owner."""
    for engine in ("docker", "containerd"):
        do("systemctl", "disable", "--quiet", "--now", *UNITS[engine])
    put("containers.conf", "/etc/containers/containers.conf")
    put("oci-nvidia-hook.json", "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json")
    do("podman", "load", "--quiet", content=load_busybox.image(IMAGE))
    name, uid = places.USER, places.UID
    account(name, uid)
    attacker()
    # The stand-ins for the GPU hide parts of /proc and /sys. The kernel mounts new ones for a user's container only if
    # the host has another one that is complete.
    for kind in ("proc", "sysfs"):
        do("install", "-d", f"/srv/{kind}")
        do("mount", "-t", kind, kind, f"/srv/{kind}")
    # dockerd-rootless.sh hides directories of specifications that are created after its start.
    do("install", "-d", "/etc/cdi")
    # slirp4netns needs /dev/net/tun.
    do("install", "-d", "/dev/net")
    do("mknod", "-m", "666", "/dev/net/tun", "c", "10", "200")
    home = Path("/home", name)
    put("rootless.service", f"{home}/.config/systemd/user/docker.service")
    put("daemon.json", f"{home}/.config/docker/daemon.json", 0o600)
    do("chown", "-R", f"{uid}:{uid}", str(home))
    do("chmod", "700", str(home), f"{home}/.config", f"{home}/.config/docker")
    do("loginctl", "enable-linger", name)
    wait_for(Path(places.RUNTIME_DIR, "systemd/private"))
    do(*places.AS_USER, "systemctl", "--user", "enable", "--quiet", "--now", "docker.service")
    address = f"unix://{places.RUNTIME_DIR}/docker.sock"
    do("docker", "--host", address, "load", "--quiet", content=load_busybox.image(IMAGE))


def account(name: str, uid: int) -> None:
    """Create a user. These hosts have no useradd."""
    for file, line in {
        "passwd": f"{name}:x:{uid}:{uid}::/home/{name}:/bin/sh",
        "shadow": f"{name}:*:20000:0:99999:7:::",
        "group": f"{name}:x:{uid}:",
        "subuid": f"{name}:{uid}00000:65536",
        "subgid": f"{name}:{uid}00000:65536",
    }.items():
        with Path("/etc", file).open("a") as stream:
            stream.write(f"{line}\n")


def attacker() -> None:
    """Create a user whose files block readers, and who runs a "dockerd"."""
    name, home = "mallory", Path("/home/mallory")
    account(name, places.UID + 1)
    unit = home / ".config/systemd/user/docker.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"[Service]\nEnvironmentFile={home}/pipe\nExecStart=/usr/bin/dockerd-rootless.sh\n")
    (home / ".config/docker").mkdir()
    for pipe in (home / "pipe", home / ".config/docker/daemon.json"):
        os.mkfifo(pipe)
    shutil.copy("/usr/bin/sleep", home / "dockerd")
    do("chown", "-Rh", f"{name}:{name}", str(home))
    do("systemd-run", "--quiet", f"--uid={name}", str(home / "dockerd"), "infinity")


def wait_for(path: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within 30 seconds")
        time.sleep(0.1)


def install_toolkit() -> None:
    """Install a toolkit without this collection. Its programs record their calls, also if a user runs them."""
    elf_programs.tree(Path("/"), VERSION)
    calls = Path(elf_programs.CALLS)
    calls.touch()
    calls.chmod(0o666)


def load_pause(address: str) -> None:
    """Import the pause image under the name in the configuration."""
    deadline = time.monotonic() + 30
    while places.answer_of_cri(address) is None:
        if time.monotonic() > deadline:
            sys.exit(f"{address}: no CRI answers")
        time.sleep(0.2)
    config = Cri(address).status()["config"]
    names = {**config, **config.get("pinnedImages", {})} if isinstance(config, dict) else {}
    name = names.get("sandboxImage") or names.get("sandbox") or PAUSE[places.KIND]
    # The CRI unpacks the image for its own snapshotter.
    image = load_busybox.image(str(name))
    do("ctr", f"--address={address}", "--namespace=k8s.io", "images", "import", "--no-unpack", "-", content=image)


def start_survivor(address: str) -> None:
    """Start a pod that must keep running. The CRI may not know a new image yet, so the start is repeated."""
    deadline = time.monotonic() + 30
    while True:
        try:
            Cri(address).start("runc")
        except grpc.RpcError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{address}: {error.details()}")
            time.sleep(0.3)
        else:
            return


# containerd 2 does not report the name of the pause image.
PAUSE = {"k3s": "rancher/mirrored-pause:3.6"}
KINDS = {"k3s": k3s, "rke2": rke2, "k0s": k0s, "microk8s": microk8s, "units": units, "users": users}


def main() -> None:
    """Prepare the host."""
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    KINDS[places.KIND]()
    for address in places.HERE.cri.values():
        load_pause(address)
        start_survivor(address)
    if places.KIND != "rke2":
        install_toolkit()
    do(sys.executable, "-B", "/molecule/flavors/observe.py", "--fresh")


if __name__ == "__main__":
    main()
