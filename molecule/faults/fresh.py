"""Inside a host: prepares it for the release SUITE (fresh.py SUITE), and restores this state between rows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from engines import ENGINES, STATE, TEMPORARY, Engine, files, live, remember, remembered, run, status
from faults import FAULTS, remove_faults
from observe_containerd import tasks

SCENARIOS = Path("/molecule")
# Copies of the engines' files from before the first row.
KEPT = Path("/root/gpufleet-kept")


def prepare(suite: str) -> None:
    """Copy the files of the engines' own scenarios for this release, and start a pod that must run in all rows."""
    docker, containerd = ENGINES["docker"], ENGINES["containerd"]
    os.makedirs(docker.folder, exist_ok=True)
    if suite != "bookworm":
        shutil.copy(SCENARIOS / "docker" / "files" / f"{suite}.json", docker.file)
    if suite == "trixie":
        shutil.copy(SCENARIOS / "containerd" / "files" / "kubeadm.toml", containerd.file)
    if suite == "sid":
        shutil.copytree(SCENARIOS / "containerd" / "files" / "imports-3", containerd.folder, dirs_exist_ok=True)
    for engine in ENGINES.values():
        shutil.copytree(engine.folder, KEPT / engine.name, symlinks=True)
        subprocess.check_call(["systemctl", "restart", engine.unit])
    subprocess.check_call(["/fx/install-toolkit"])
    subprocess.check_call(["/fx/load-busybox"])
    # It makes the image of the pods.
    subprocess.check_call(["python3", str(SCENARIOS / "containerd" / "start.py")])
    subprocess.check_call(["python3", "/fx/cri.py", "start", "runc"])
    remember("pods", tasks())
    remember("live", {engine.name: live(engine) for engine in ENGINES.values()})


def fresh(engine: Engine, faults: list[str]) -> None:
    """Restore the state from before the first row, then apply the faults that exist before the configuration."""
    remove_faults()
    for each in ENGINES.values():
        shutil.rmtree(each.folder)
        shutil.copytree(KEPT / each.name, each.folder, symlinks=True)
    shutil.rmtree(STATE, ignore_errors=True)
    for leftover in Path("/etc").glob(f"{TEMPORARY}*"):
        leftover.unlink()
    # containerd is first, because some answers of Docker take a minute while containerd does not run.
    for each in reversed(list(ENGINES.values())):
        # systemd limits the starts of a service to three in a minute, and the rows are faster.
        subprocess.check_call(["systemctl", "reset-failed", each.unit])
        if live(each) != remembered("live")[each.name]:
            subprocess.check_call(["systemctl", "restart", each.unit])
    containers = run("docker", "ps", "--all", "--quiet").stdout.split()
    if containers:
        subprocess.check_call(["docker", "rm", "--force", *containers], stdout=subprocess.DEVNULL)
    for fault in faults:
        FAULTS[fault](engine)
    remember("files", {name: files(each) for name, each in ENGINES.items()})
    remember("pids", {name: status(each.unit)["MainPID"] for name, each in ENGINES.items()})


if __name__ == "__main__":
    prepare(sys.argv[1])
