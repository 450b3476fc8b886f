"""Shared by the stand-ins for distributions of Kubernetes: they start and stop a real containerd as their child."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append("/fx")

# These imports need this path.
import grpc
from cri import Cri

# The inode and time of each generated file. If they differ from those of the file, another program has written it.
GENERATED = Path("/run/gpufleet-generated.json")
_PR_SET_PDEATHSIG = 1


def written(path: Path) -> str:
    """Return the inode and time of a file, which change if it is written again."""
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def generate(path: Path, text: str) -> None:
    """Write a generated file, and record its inode and time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    known: dict[str, Any] = json.loads(GENERATED.read_text()) if GENERATED.exists() else {}
    GENERATED.write_text(json.dumps({**known, str(path): written(path)}))


def set_process_name(name: str) -> None:
    """Set the name of this process that the kernel and systemd show."""
    Path("/proc/self/comm").write_text(name)


def start(command: list[str], path: list[str]) -> subprocess.Popen[bytes]:
    """Start containerd. The kernel sends it SIGTERM when this process ends, as with k3s."""
    environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    environ["PATH"] = ":".join([*path, environ["PATH"]])
    libc = ctypes.CDLL(None)
    # This process has only one thread, so the child may run Python code before it executes containerd.
    return subprocess.Popen(
        command,
        env=environ,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
    )


def answers(address: str) -> bool:
    """Return whether the CRI answers."""
    try:
        Cri(address).status()
    except grpc.RpcError:
        return False
    return True


def wait_for(child: subprocess.Popen[bytes], address: str) -> None:
    """Wait without limit until the CRI answers. Exit if the child ends."""
    while not answers(address):
        if child.poll() is not None:
            sys.exit(f"containerd: exit status {child.returncode}")
        time.sleep(0.2)


def ready() -> None:
    """Notify systemd that the service has started, if the unit expects it (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def end_on_signal(child: subprocess.Popen[bytes]) -> None:
    """Stop containerd when systemd stops this process."""

    def end(_number: int, _frame: object) -> None:
        # A wait of Popen may be running, which allows no second one, and the child may have ended.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child.pid, signal.SIGTERM)
            os.waitpid(child.pid, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
