"""The example of a workstation, and ./quickstart --host, on a host that is its own controller."""

from __future__ import annotations

import io
import tarfile

import page
import places
import wheels
from checks import MOST_LINES_OF_A_REMOVAL, Checks

CLONE = "gpufleet.nvidia"
# The first command of the README for containers, with an image that is on the host, and without a GPU.
WITH_GPUS = ("docker", "run", "--rm", "--network=none", "--gpus=all", "docker.io/gpufleet/busybox:1", "true")
HOSTS = {"localhost": "desk"}


def send(folder: str, files: bytes) -> None:
    """Unpack an archive in a directory of the user."""
    inside = ("tar", "--extract", "--no-same-owner", f"--directory={folder}")
    places.inside("desk", "setpriv", "--reuid=ann", "--regid=ann", "--clear-groups", *inside, text=files)


def archive(folder: places.Path) -> bytes:
    """Return an archive of a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.add(folder, arcname=".")
    return buffer.getvalue()


def prepare() -> None:
    """Give the user a clone, and the wheels of a package index that the host cannot reach."""
    version = places.inside("desk", "python3", "-c", "import platform; print(platform.python_version())").strip()
    clone, index = places.Desk(CLONE), places.Desk("index")
    send(clone.work, archive(places.TREE))
    send(index.work, archive(wheels.fetch(places.TREE / "requirements" / "quickstart.txt", version)))
    places.write("desk", "/etc/pip.conf", f"[global]\nno-index = true\nfind-links = {index.work}\n")
    places.inside("desk", "/fx/load-busybox")


def refuses_gpus() -> str:
    """Return the error of a container with --gpus, which Docker refuses if it has found no program for it."""
    done = places.podman("exec", f"{places.PREFIX}desk", *WITH_GPUS)
    return done.stderr.decode() if done.returncode else ""


def quickstart(report: places.Report) -> None:
    """Run ./quickstart --host: check mode, a run, and a second run. Then remove everything."""
    place = places.Desk(CLONE)
    checks = Checks(report, place, HOSTS)
    trust = "-e nvidia_toolkit_key_fingerprint=" + places.inside("desk", "cat", "/run/gpufleet-fingerprint")
    checked = checks.play(f"./quickstart --host {trust} --check --diff")
    checks.changing(checked)
    checks.closed(checked)
    checks.untouched(checked)
    first = checks.play(f"./quickstart --host {trust}", note="first run")
    checks.changing(first)
    checks.closed(first)
    checks.touched()
    second = checks.play(f"./quickstart --host {trust}", note="second run")
    checks.unchanged(second)
    checks.closed(second)
    remove = ".venv/bin/ansible-playbook gpufleet.nvidia.remove --limit=localhost"
    removed = checks.play(f"{remove} -i localhost, -c local -b -K")
    checks.changing(removed)
    checks.restored(removed)


def workstation(report: places.Report) -> None:
    """Run the example of a workstation, then the other playbooks of the README, each twice if it changes the host."""
    section = page.read(page.GETTING_STARTED, page.DESK)
    others = page.read(page.README, page.USE)
    place = places.Desk("example", install(report))
    trust = {"nvidia_toolkit_key_fingerprint": places.inside("desk", "cat", "/run/gpufleet-fingerprint")}
    place.put({**section.files, "group_vars/all.yml": str(trust)})
    checks = Checks(report, place, HOSTS)
    check, run = section.commands[:2]
    line = (r"toolkit 1\.20\.0", r"docker: .*runtime nvidia", r"containerd: ", r"podman: ")
    checked = checks.play(check)
    checks.changing(checked)
    checks.expect(checked, refuses_gpus(), "Docker accepts --gpus before the toolkit is installed")
    checks.expect(checked, "daemon.json" in checked.output, "the diff does not have /etc/docker/daemon.json")
    checks.closed(checked)
    checks.untouched(checked)
    first = checks.play(run, note="first run")
    checks.changing(first)
    checks.closed(first, *line)
    checks.touched()
    # Docker runs since before the toolkit was installed, and searches its program only when it starts.
    checks.expect(first, not refuses_gpus(), f"a container with --gpus fails: {refuses_gpus()}")
    second = checks.play(run, note="second run")
    checks.unchanged(second)
    checks.closed(second, *line, "not restarted")

    tags, rolling, audit, verify, remove = others.commands[-5:]
    checks.unchanged(checks.play(tags))
    again = checks.play(rolling)
    checks.unchanged(again)
    checks.closed(again)
    checks.untouched(checks.play(audit))
    checks.untouched(checks.play(verify, status=2))
    removed = checks.play(remove)
    checks.changing(removed)
    checks.closed(removed, "toolkit removed")
    checks.restored(removed)
    again = checks.play(remove, note="second run")
    checks.unchanged(again, MOST_LINES_OF_A_REMOVAL)
    checks.closed(again)


def install(report: places.Report) -> str:
    """Install Ansible and the collection, from the clone and without Internet access. Return the path of commands."""
    bin_ = f"{places.Desk.home}/ansible/bin"
    clone, offline = places.Desk(CLONE, bin_), places.Desk("offline", bin_)
    build, from_clone = page.read(page.README, page.INSTALL).commands[-2:]
    report.play(offline, f"/usr/bin/python3 -m venv {places.Desk.home}/ansible")
    report.play(offline, "python3 -m pip install --quiet ansible-core")
    report.play(clone, build)
    report.play(offline, f"mkdir collections && cp {clone.work}/gpufleet-nvidia-*.tar.gz collections/")
    report.play(offline, f"ln -s {places.Desk.home}/index wheels")
    for command in page.read(page.GETTING_STARTED, page.OFFLINE).commands[2:4]:
        report.play(offline, command)
    report.play(clone, from_clone)
    return bin_
