"""Inside a host: prepares it for the release SUITE: prepare_host.py SUITE

GPUs, their driver, nvidia-ctk, and an image for the containers of all engines that are to read CDI specifications here.
Docker and containerd read them only after site.yml has enabled CDI.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import checks
import load_busybox
import simulated_gpus
import start as pods

# The wrapper of runc, which omits settings that a host inside a container cannot apply. By default, Podman would start
# /usr/sbin/runc.
PODMAN = """\
[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "trimmed"
[engine.runtimes]
trimmed = ["/usr/local/sbin/runc"]
"""

PROGRAMS = {
    "/usr/bin/nvidia-ctk": f"""\
#!/bin/sh
export PYTHONPATH=/molecule/cdi:/molecule/faults:/molecule/shared:/fx
exec {sys.executable} -B /molecule/cdi/generator.py "$@"
""",
    # Lists the GPUs whose device nodes are there, on the host or in a container.
    simulated_gpus.SMI: """\
#!/bin/sh
for node in /dev/nvidia[0-9]*; do
    number=${node#/dev/nvidia}
    [ ! -c "$node" ] || printf 'GPU %d: NVIDIA A100 (UUID: GPU-%08d-0000-0000-0000-000000000000)\\n' "$number" "$number"
done
""",
    # The requirements of GPU containers that get their GPUs from the runtime.
    "/usr/bin/nvidia-container-runtime-hook": "#!/bin/sh\n",
    "/usr/bin/nvidia-container-cli": "#!/bin/sh\n",
}


def install_programs() -> None:
    """Install the stand-ins for the programs of the toolkit and of the driver."""
    for name, text in PROGRAMS.items():
        path = Path(name)
        path.write_text(text)
        path.chmod(0o755)


def main() -> None:
    """Prepare the host."""
    suite = sys.argv[1]
    install_programs()
    simulated_gpus.enable()
    simulated_gpus.create(simulated_gpus.SimulatedHost())
    folder = Path("/etc/containers")
    folder.mkdir(exist_ok=True)
    (folder / "containers.conf").write_text(PODMAN)
    image = load_busybox.image(checks.IMAGE)
    subprocess.run(["podman", "load", "--quiet"], input=image, check=True, stdout=subprocess.DEVNULL)
    if suite != "bookworm":
        # Some hosts do not have this directory at first. If it appears later, it must not count as a difference from
        # the fresh host.
        Path("/etc/docker").mkdir(exist_ok=True)
        subprocess.run(["docker", "load", "--quiet"], input=image, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ctr", "--namespace=k8s.io", "images", "import", "-"], input=image, check=True)
        pods.load_image()
    # Save the state of the fresh host. This is the last step, so that no file of this script is a difference from it.
    subprocess.run([sys.executable, "-B", "/molecule/cdi/observe.py", "--fresh"], check=True)


if __name__ == "__main__":
    main()
