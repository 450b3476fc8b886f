"""Inside a host: gives it its starting point (fresh.py SUITE), and brings it back there from whatever became of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from engines import ENGINES, STATE, TEMPORARY, Engine, files, live, remember, remembered, run, status
from faults import FAULTS, mend
from observe_containerd import tasks

SCENARIOS = Path("/molecule")
# The host's own files, from before all.
KEPT = Path("/root/gpufleet-kept")


def begin(suite: str) -> None:
    """Give each suite other files, those of the engines' own scenarios; start a pod that is to survive everything."""
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
    """Undo whatever an earlier row did, then let go wrong what is wrong from the beginning."""
    mend()
    for each in ENGINES.values():
        shutil.rmtree(each.folder)
        shutil.copytree(KEPT / each.name, each.folder, symlinks=True)
    shutil.rmtree(STATE, ignore_errors=True)
    for leftover in Path("/etc").glob(f"{TEMPORARY}*"):
        leftover.unlink()
    # Containerd first: a Docker that lacks it takes a minute for some answers.
    for each in reversed(list(ENGINES.values())):
        # Rows come faster than systemd lets a service start (three times a minute).
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
    begin(sys.argv[1])
