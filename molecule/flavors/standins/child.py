"""What the stand-ins for distributions of Kubernetes have in common: a real containerd as their child, and its end."""

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

# Behind that path.
import grpc
from cri import Cri

# Who wrote a generated file last, by inode and time: anything else there was written by somebody else.
GENERATED = Path("/run/gpufleet-generated.json")
_PR_SET_PDEATHSIG = 1


def written(path: Path) -> str:
    """What tells a file that was written again from the one before."""
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def generate(path: Path, text: str) -> None:
    """Write a file anew, and note that it was us."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    known: dict[str, Any] = json.loads(GENERATED.read_text()) if GENERATED.exists() else {}
    GENERATED.write_text(json.dumps({**known, str(path): written(path)}))


def call_myself(name: str) -> None:
    """The name of this process, as the kernel and systemd show it."""
    Path("/proc/self/comm").write_text(name)


def start(command: list[str], path: list[str]) -> subprocess.Popen[bytes]:
    """Start containerd; it gets the signal to end when this process is gone, as k3s arranges it."""
    environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    environ["PATH"] = ":".join([*path, environ["PATH"]])
    libc = ctypes.CDLL(None)
    # Nothing else runs in this process, so the child may call Python code before it becomes containerd.
    return subprocess.Popen(
        command,
        env=environ,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
    )


def answers(address: str) -> bool:
    """Tell whether the CRI does."""
    try:
        Cri(address).status()
    except grpc.RpcError:
        return False
    return True


def wait_for(child: subprocess.Popen[bytes], address: str) -> None:
    """Wait for the CRI, however long it takes; end with the child."""
    while not answers(address):
        if child.poll() is not None:
            sys.exit(f"containerd: exit status {child.returncode}")
        time.sleep(0.2)


def ready() -> None:
    """Tell systemd, where it asked for that (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def end_on_signal(child: subprocess.Popen[bytes]) -> None:
    """Take containerd along when systemd ends this process."""

    def end(_number: int, _frame: object) -> None:
        # Popen's own wait may be under way, and takes no second one; and the child may have ended before.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child.pid, signal.SIGTERM)
            os.waitpid(child.pid, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
