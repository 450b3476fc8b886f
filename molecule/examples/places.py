"""Where the examples run, and the report of all runs.

A place is the controller of molecule, or a booted host that is its own controller.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

from play_output import PlayOutput

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
PASSWORD = "not-a-real-password"  # noqa: S105
PREFIX = "gpufleet-examples-"
_MOST = 600
# How much is printed of the output of a run with failed checks.
_LINES = 100


def podman(*words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command of podman."""
    return subprocess.run(["podman", *words], input=text, check=False, capture_output=True, timeout=_MOST)


def inside(host: str, *command: str, text: bytes = b"") -> str:
    """Run a command as root inside a host, and return its output. Raise an error if it fails."""
    done = podman("exec", "--interactive", PREFIX + host, *command, text=text)
    if done.returncode != 0:
        raise RuntimeError(f"{host}: {shlex.join(command)} ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode()


def write(host: str, path: str, text: str) -> None:
    """Write a file inside a host."""
    inside(host, "tee", path, text=text.encode())


def manifest(host: str) -> dict[str, str]:
    """Return the files and packages of a host, as manifest.py describes them."""
    found: dict[str, str] = json.loads(inside(host, "python3", "-B", "/molecule/examples/manifest.py"))
    return found


class Place(t.Protocol):
    """A directory in which commands of the documentation run."""

    def put(self, files: t.Mapping[str, str]) -> None:
        """Write files."""

    def call(self, command: str) -> tuple[int, str]:
        """Run a command as a user types it, and return its status and output."""


class Controller:
    """A directory of the controller. Its hosts are the booted ones, reached as the user admin."""

    def __init__(self, work: Path, hosts: t.Mapping[str, str], settings: t.Mapping[str, t.Any]) -> None:
        self.work = work
        self.calls = work / "kubectl-calls"
        connection = {
            "ansible_connection": "containers.podman.podman",
            "ansible_podman_mount_detection": False,
            "ansible_pipelining": True,
            "ansible_user": "admin",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        self.put({"inventory/group_vars/all.yml": json.dumps({**connection, **settings})})
        for name, host in hosts.items():
            self.reach(name, host)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        self.environ |= {
            "ANSIBLE_COLLECTIONS_PATH": os.environ["ANSIBLE_COLLECTIONS_PATH"],
            "ANSIBLE_HOME": str(work / ".ansible"),
            "KUBECTL_CALLS": str(self.calls),
            "PATH": f"{HERE / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "dumb",
        }

    def reach(self, name: str, host: str) -> None:
        """Say which booted host an inventory name stands for."""
        self.put({f"inventory/host_vars/{name}.yml": json.dumps({"ansible_host": PREFIX + host})})

    def put(self, files: t.Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text(text)

    def call(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=_MOST,
        )  # fmt: skip
        return done.returncode, done.stdout


class Desk:
    """A directory of the user ann on the desk. She types her password when she is asked for it."""

    home = "/home/ann"

    def __init__(self, work: str, path: str = "") -> None:
        self.work = f"{self.home}/{work}"
        self.path = path
        inside("desk", "setpriv", "--reuid=ann", "--regid=ann", "--clear-groups", "mkdir", "-p", self.work)

    def put(self, files: t.Mapping[str, str]) -> None:
        for name, text in files.items():
            self.call(f"mkdir -p {Path(name).parent}")
            write("desk", f"{self.work}/{name}", text)

    def call(self, command: str) -> tuple[int, str]:
        path = f"{self.path}:/usr/local/bin:/usr/bin:/bin".lstrip(":")
        done = podman(
            "exec", "--interactive", "--user=ann", f"--workdir={self.work}", PREFIX + "desk",
            "env", "-i", f"HOME={self.home}", f"PATH={path}", "USER=ann", "LANG=C.UTF-8", "TERM=dumb",
            "/usr/bin/python3", "-B", "/molecule/examples/terminal.py", PASSWORD, "sh", "-c", command,
        )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr).decode()


class Report:
    """What has been run, and the failed checks."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.runs: list[PlayOutput] = []
        self.started = time.monotonic()
        self.lock = threading.Lock()

    def say(self, words: str) -> None:
        """Print a line with the time."""
        with self.lock:
            print(f"{time.monotonic() - self.started:6.1f} s  {words}", flush=True)

    def play(self, place: Place, command: str, status: int = 0, note: str = "") -> PlayOutput:
        """Run a command, and check its status."""
        began = time.monotonic()
        code, output = place.call(command)
        title = f"{command}{f' ({note})' if note else ''}"
        self.say(f"{title}: {time.monotonic() - began:.1f} s, status {code}")
        played = PlayOutput(title, output)
        self.runs.append(played)
        self.expect(played, code == status, f"the status is {code}, not {status}")
        return played

    def expect(self, played: PlayOutput, good: t.Any, words: str) -> None:
        """Record a failed check of a run."""
        if not good:
            self.failed.append(f"{played.title}: {words}")
            played.wrong = True

    def show(self) -> None:
        """Print the output of each run with failed checks, and these checks."""
        for played in self.runs:
            if played.wrong:
                print(f"==== {played.title}", *played.output.splitlines()[-_LINES:], sep="\n")
        print(*(f"FAILED: {words}" for words in self.failed), f"{len(self.failed)} checks failed", sep="\n")
