"""Inside a host: what is measured in running containers is what open(2) says in them: measured.py ENGINE...

Other character devices stand for GPUs, because the host may open few devices. It has no controller of memory, so only a
unit test tries a container that is low on memory. Prints JSON, as Report does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engines import COLLECTIONS, IMAGE, PATIENCE, run
from toolkits import Report

sys.path.insert(0, COLLECTIONS)

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIBC = ctypes.CDLL(None, use_errno=True)
# Constants of inotify(7) and setns(2).
OPENED, NEW_MOUNTS = 0x20, 0x20000
# The numbers of /dev/zero and /dev/full.
ZERO, FULL = (1, 5), (1, 7)
USER = 61234
SECRET = Path("/etc/gpufleet-secret")
FUSE = Path("/dev/fuse")
DEVICES = ("--device=/dev/full:/dev/nvidia0", "--device=/dev/zero:/dev/nvidiactl")


class Running(NamedTuple):
    """A running container, and its first process."""

    engine: str
    name: str
    pid: int

    @property
    def dev(self) -> Path:
        return Path(f"/proc/{self.pid}/root/dev")

    def measure(self, deadline: float = PATIENCE) -> container_nodes.Measured:
        return container_nodes.measure(HostFS(), self.pid, deadline)

    def opens(self, path: str) -> bool:
        """Return whether its user can open a node."""
        script = f"exec 3<{path}" if "caps" in path else f"exec 3<>{path}"
        return run(self.engine, "exec", self.name, "sh", "-c", script).returncode == 0

    def add(self, name: str, number: tuple[int, int], mode: int, user: int = 0, group: int = 0) -> None:
        """Make a node in it. An existing one is replaced."""
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(str(path), 0o020000, os.makedev(*number))
        path.chmod(mode)
        os.chown(str(path), user, group)


@contextlib.contextmanager
def running(engine: str, *options: str) -> Iterator[Running]:
    """Start a container, and remove it afterwards."""
    name = f"measured-{time.monotonic_ns()}"
    started = run(
        engine, "run", "--detach", "--network=none", "--name", name, *DEVICES, *options, IMAGE, "sleep", "600"
    )
    try:
        pid = run(engine, "inspect", "--format={{.State.Pid}}", name).stdout.strip()
        if started.returncode or not pid.isdigit():
            raise SystemExit(f"{engine}: {started.stderr}")
        yield Running(engine, name, int(pid))
        # Podman would wait ten seconds for its end.
        kill(int(pid))
    finally:
        run(engine, "rm", "--force", name)


def compare(report: Report, what: str, container: Running, expected: dict[str, str | bool]) -> None:
    """Check what is measured: for each node, True or what denies it, and that open(2) says the same."""
    found = container.measure()
    seen = {node.path[len("/dev/") :]: node.denied_by or node.usable for node in found.nodes if node.kind == "node"}
    wanted = {"nvidia0": True, "nvidiactl": True, **expected}
    report.check(f"{container.engine}, {what}", seen == wanted and not found.problem, found)
    for name, value in seen.items():
        opens = container.opens(f"/dev/{name}")
        report.check(f"{container.engine}, {what}, {name} opens", opens is (value is True), (value, opens))


def try_access(report: Report, engine: str) -> None:
    """Compare containers of several users with open(2)."""
    with running(engine) as container:
        compare(report, "root", container, {})
        container.add("nvidia0", ZERO, 0o600, USER)
        numbers = {node.path: (node.major, node.minor, node.mode, node.uid) for node in container.measure().nodes}
        report.check(f"{engine}, replaced", numbers["/dev/nvidia0"] == (*ZERO, 0o600, USER), numbers)
        compare(report, "replaced", container, {})
    with running(engine, "--cap-drop=DAC_OVERRIDE") as container:
        container.add("nvidia1", ZERO, 0o600)
        container.add("nvidia2", ZERO, 0o600, USER)
        compare(report, "capability", container, {"nvidia1": True, "nvidia2": "mode"})
    with running(engine, f"--user={USER}:{USER}", "--group-add=44") as container:
        container.add("nvidia1", ZERO, 0o600)
        container.add("nvidia2", ZERO, 0o660, 0, 44)
        container.add("nvidia3", ZERO, 0o606, 0, 44)
        container.add("nvidia-caps/nvidia-cap1", ZERO, 0o444)
        expected = {"nvidia1": "mode", "nvidia2": True, "nvidia3": "mode", "nvidia-caps/nvidia-cap1": True}
        compare(report, "user", container, expected)


def try_rules(report: Report) -> None:
    """Take the rule of a device away, as a daemon-reload does with devices that systemd does not know."""
    with running("docker") as container:
        unit = Path(f"/proc/{container.pid}/cgroup").read_text().strip().rpartition("/")[2]
        rules = ("DeviceAllow=", "DeviceAllow=/dev/null rw", "DeviceAllow=/dev/zero rw")
        changed = run("systemctl", "set-property", "--runtime", unit, *rules)
        report.check("rules changed", changed.returncode == 0, changed)
        compare(report, "rules", container, {"nvidia0": "cgroup"})


def try_other_files(report: Report, engine: str) -> None:
    """Check that no link is followed, and what hides a node."""
    SECRET.write_text("of the host")
    with running(engine) as container:
        for index in range(1, 200):
            (container.dev / f"nvidia{index}").symlink_to(SECRET)
        (container.dev / "dri").symlink_to("/etc")
        (container.dev / "nvidia-caps").symlink_to("/proc/1/root/etc")
        with opened(SECRET) as events:
            found = container.measure()
            report.check(f"{engine}, links, followed", events() == 0)
            report.check(f"{engine}, links, the watch", bool(SECRET.read_text()) and events() > 0)
        kinds = sorted(node.kind for node in found.nodes)
        report.check(f"{engine}, links", kinds == [*["link"] * 201, "node", "node"] and not found.problem, found)
    SECRET.unlink()
    with running(engine) as container:
        (container.dev / "nvidia2").write_text("")
        for source, name in (("null", "nvidia0"), ("nvidia2", "nvidiactl")):
            command = ("nsenter", f"--target={container.pid}", "--mount", "/bin/busybox", "mount", "-o", "bind")
            run(*command, f"/dev/{source}", f"/dev/{name}")
        hidden = {node.path[len("/dev/") :]: (node.kind, node.minor) for node in container.measure().nodes}
        wanted = {"nvidia0": ("node", 3), "nvidia2": ("other", 0), "nvidiactl": ("other", 0)}
        report.check(f"{engine}, hidden", hidden == wanted, hidden)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Callable[[], int]]:
    """Watch a file: yield a function that returns how often it was opened, not counting O_PATH."""
    handle = LIBC.inotify_init1(os.O_NONBLOCK)
    if handle < 0 or LIBC.inotify_add_watch(handle, os.fsencode(path), OPENED) < 0:
        raise OSError(ctypes.get_errno(), "inotify", str(path))

    def count() -> int:
        try:
            return len(os.read(handle, 1 << 16)) // 16
        except BlockingIOError:
            return 0

    yield count
    os.close(handle)


def try_open(report: Report, engine: str) -> None:
    """Check that a measurement opens no node."""
    with running(engine) as container, opened(container.dev / "nvidia0") as events:
        container.measure()
        report.check(f"{engine}, opened", events() == 0)
        container.opens("/dev/nvidia0")
        report.check(f"{engine}, opens are seen", events() > 0)


def try_states(report: Report, engine: str) -> None:
    """Check a container that another user measures, one that is paused, and one that ends meanwhile."""
    with running(engine) as container:
        program = [sys.executable, "-B", __file__, "measure", str(container.pid)]
        other = subprocess.run(program, check=False, capture_output=True, text=True, user=USER, group=USER)
        unknown = "problem='its directory /dev cannot be read: Permission denied'"
        report.check(f"{engine}, another user", unknown in other.stdout and not other.stderr, other)
        run(engine, "pause", container.name)
        found = container.measure()
        report.check(f"{engine}, paused, nodes", [node.usable for node in found.nodes] == [None, None], found)
        report.check(f"{engine}, paused", found.access_problem == "the container is paused", found)
        run(engine, "unpause", container.name)
    access = os.access
    for calls in (1, 3, 5):
        with running(engine) as container:
            # The child asks for each of two nodes before it joins the control group, after that, and as the user.
            left = iter(range(calls))

            def kill_first(path: str, bits: int, left: Iterator[int] = left, pid: int = container.pid) -> bool:
                if next(left, None) is None:
                    kill(pid)
                return access(path, bits)

            os.access = kill_first  # type: ignore[assignment]
            found = container.measure()
            os.access = access
            ended = container_nodes.Measured((), "the container has ended", "the container has ended", "0:0")
            report.check(f"{engine}, killed after {calls} questions", found == ended, found)


def kill(pid: int) -> None:
    """Kill a process, and wait until its parent has noticed that."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)


def try_hanging(report: Report, engine: str) -> None:
    """Check a file system that does not answer. Its requests cannot be interrupted."""
    with running(engine) as container:
        (container.dev / "nvidia1").write_text("")
        program = [sys.executable, "-B", __file__, "hang", str(container.pid)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
            mounted = server.stdout is not None and server.stdout.readline() == "mounted\n"
            start = time.monotonic()
            found = container.measure(2)
            seconds = time.monotonic() - start
            server.kill()
        report.check(f"{engine}, hanging, mounted", mounted)
        problem = "the container did not answer within 2 seconds"
        report.check(f"{engine}, hanging", found.problem == problem and seconds < PATIENCE, (found, seconds))


def hang(pid: int) -> None:
    """Mount a file system on /dev/nvidia1 of a container, and answer its first request only (FUSE_INIT in fuse(4))."""
    handle = os.open(FUSE, os.O_RDWR)
    LIBC.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), NEW_MOUNTS)
    options = f"fd={handle},rootmode=100000,user_id=0,group_id=0"
    if LIBC.mount(b"fuse", b"/dev/nvidia1", b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    (unique,) = struct.unpack_from("<8xQ", os.read(handle, 1 << 20))
    # The version of the protocol, and the largest write.
    answer = struct.pack("<II12xI40x", 7, 31, 4096)
    os.write(handle, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
    print("mounted", flush=True)
    while True:
        os.read(handle, 1 << 20)


def check(engines: list[str]) -> None:
    """Run all checks."""
    report = Report()
    for engine in engines:
        try_access(report, engine)
        try_other_files(report, engine)
        try_open(report, engine)
        try_states(report, engine)
        if FUSE.exists():
            try_hanging(report, engine)
    if "docker" in engines:
        try_rules(report)
    report.print()


def main() -> None:
    """Run the checks, or what one of them needs in another process."""
    if sys.argv[1] == "hang":
        hang(int(sys.argv[2]))
    elif sys.argv[1] == "measure":
        print(container_nodes.measure(HostFS(), int(sys.argv[2])))
    else:
        check(sys.argv[1:])


if __name__ == "__main__":
    main()
