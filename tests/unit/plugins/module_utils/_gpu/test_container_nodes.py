# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import container_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.container_nodes import (
    BY_CGROUP,
    BY_MODE,
    BY_NODEV,
    BY_SELINUX,
    Measured,
    Node,
    measure,
)

# A test run has threads, of which none has a lock when a test measures.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

GROUP = "system.slice/docker-3a.scope"
OVERRIDES, NOTHING = "00000000a80425fb", "0000000000000000"
ALL = "0 0 4294967295"
REMAPPED = "0 100000 65536"
# Where a node is denied: to all, to the task itself, to those in the control group, to the user.
TO_ALL, TO_TASK, TO_GROUP, TO_USER = "mount", "task", "group", "user"


class FakeContainer:
    """A container of process 7 with nodes that are files. Its group is a directory, and its user is not taken.

    ``nodes`` are the numbers, mode, owner and group of nodes by name, ``denied`` where they are denied. ``device`` is
    that of their file system. ``written`` has what functions in the child have seen.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch, self.host = root, monkeypatch, HostFS(str(root))
        self.nodes: dict[str, tuple[int, int, int, int, int]] = {}
        self.denied: dict[str, str] = {}
        self.device = 0
        self.mountinfo = f"36 25 0:30 / {root}/sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
        self.group = root / "sys/fs/cgroup" / GROUP
        self.written = root / "written"
        self.taken = False
        self.real = {name: getattr(os, name) for name in ("fstat", "fstatvfs", "access", "scandir")}
        self.read = container_nodes._read
        self.write("proc/7/stat", "7 (a (b) c) S " + " ".join(str(number) for number in range(4, 30)))
        self.write("proc/7/cgroup", f"1:cpu:/\n0::/{GROUP}\n")
        self.process()
        self.write(f"sys/fs/cgroup/{GROUP}/cgroup.procs", "")
        self.dev = root / "proc/7/root/dev"
        self.dev.mkdir(parents=True)
        for name, fake in {
            **dict.fromkeys(("setgroups", "setresgid"), lambda *_ids: None),
            "setresuid": self.take,
            "fstat": self.fstat,
            "fstatvfs": self.fstatvfs,
            "access": self.access,
        }.items():
            monkeypatch.setattr(os, name, fake)
        monkeypatch.setattr(container_nodes, "_read", self.fake_read)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def process(self, uid: int = 0, gid: int = 0, groups: str = "", caps: str = OVERRIDES, ids: str = ALL) -> None:
        users = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\nGroups:\t{groups} \n"
        self.write("proc/7/status", f"Name:\tx: y\n{users}CapEff:\t{caps}\n")
        self.write("proc/7/uid_map", f"         {ids}\n")
        self.write("proc/7/gid_map", f"         {ids.replace(' 100000', ' 200000')}\n")

    def add(self, name: str, mode: int = 0o666, owner: int = 0, group: int = 0, denied: str = "") -> None:
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        self.nodes[path.name] = (195, len(self.nodes), mode, owner, group)
        self.denied[path.name] = denied

    def in_child(self, function: t.Callable[[], object]) -> None:
        """Call a function when the child lists a directory."""

        def fake(folder: int) -> t.Any:
            self.written.write_text(json.dumps(function()))
            return self.real["scandir"](folder)

        self.monkeypatch.setattr(os, "scandir", fake)

    def take(self, *_ids: int) -> None:
        self.taken = True

    def fake_read(self, path: str) -> str:
        return self.mountinfo if path == "/proc/self/mountinfo" else self.read(path)

    def fstat(self, handle: int) -> os.stat_result:
        major, minor, mode, owner, group = self.nodes.get(name_of(handle), (0, 0, 0, 0, 0))
        if not mode:
            status: os.stat_result = self.real["fstat"](handle)
            return status
        fields = (stat.S_IFCHR | mode, 0, self.device, 1, owner, group, 0, 0, 0, 0)
        return os.stat_result(fields, {"st_rdev": os.makedev(major, minor)})

    def fstatvfs(self, handle: int) -> t.Any:
        flags = os.ST_NODEV if self.denied[name_of(handle)] == TO_ALL else 0
        return os.statvfs_result((0, 0, 0, 0, 0, 0, 0, 0, flags, 255))

    def access(self, path: str, bits: int) -> bool:
        denied = self.denied[name_of(int(path.rpartition("/")[2]))]
        assert bits in (os.R_OK, os.R_OK | os.W_OK)
        if denied == TO_GROUP:
            return not self.joined
        return denied != TO_TASK and (denied != TO_USER or not self.taken) and denied != str(bits)

    @property
    def joined(self) -> bool:
        return (self.group / "cgroup.procs").read_text() == "0"

    def measure(self, deadline: float = 20) -> Measured:
        return measure(self.host, 7, deadline)


def name_of(handle: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))


@pytest.fixture(autouse=True)
def _reap_children() -> t.Iterator[None]:
    """Wait for the killed children, for which a measurement does not wait. Other tests check that none is left."""
    yield
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainer:
    return FakeContainer(tmp_path, monkeypatch)


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_nodes_of_a_container(container: FakeContainer) -> None:
    nodes = ("dri/renderD128", "dxg", "nvidia-caps-imex-channels/channel0", "nvidia-caps/nvidia-cap7", "nvidiactl")
    for name in nodes:
        container.add(name, mode=0o660, owner=1, group=44)
    for name in ("null", "dri/by-path", "nvidia-caps/other", "nvidia 0", "nvidia\n", "NVIDIA0"):
        container.add(name)
    (container.dev / "nvidia1").mkdir(0o700)
    (container.dev / "nvidia2").symlink_to("/etc/passwd")
    user = os.getuid(), os.getgid()
    expected = [Node(f"/dev/{name}", "node", 195, index, 0o660, 1, 44, True) for index, name in enumerate(nodes)]
    expected += [Node("/dev/nvidia1", "other", 0, 0, 0o700, *user), Node("/dev/nvidia2", "link", 0, 0, 0o777, *user)]
    assert container.measure() == Measured(tuple(sorted(expected)), "", "", "0:0")


def test_a_link_in_place_of_a_directory_is_not_followed(container: FakeContainer, tmp_path: Path) -> None:
    (tmp_path / "of-host").mkdir()
    (tmp_path / "of-host/card0").write_text("")
    (container.dev / "dri").symlink_to(tmp_path / "of-host")
    assert [node[:2] for node in container.measure().nodes] == [("/dev/dri", "link")]


@pytest.mark.parametrize("entries", [("nvidia0", "nvidia1"), ("tty1", "tty2", "tty3")])
def test_too_many_files(container: FakeContainer, entries: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_nodes, "_MOST_NODES", 1)
    monkeypatch.setattr(container_nodes, "_MOST_NAMES", 2)
    for name in entries:
        container.add(name)
    problem = "its directory /dev cannot be read: /dev contains too many files"
    assert container.measure() == Measured((), problem, "", "0:0")


@pytest.mark.parametrize(("is_link", "reason"), [(True, "Not a directory"), (False, "No such file or directory")])
def test_a_container_without_the_directory(container: FakeContainer, is_link: bool, reason: str) -> None:
    container.dev.rmdir()
    if is_link:
        container.dev.symlink_to(container.root)
    assert container.measure() == Measured((), f"its directory /dev cannot be read: {reason}", "", "0:0")


# -- access ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "node", "usable", "denied_by"),
    [
        ({}, {}, True, ""),
        ({}, {"denied": TO_GROUP}, False, BY_CGROUP),
        ({}, {"denied": TO_ALL}, False, BY_NODEV),
        ({"uid": 1000, "caps": NOTHING}, {}, True, ""),
        ({"uid": 1000, "caps": NOTHING}, {"denied": TO_USER}, False, BY_MODE),
        # The capability applies to owners and groups of the user namespace only.
        ({"uid": 1000}, {"denied": TO_USER}, True, ""),
        ({"uid": 100000, "ids": REMAPPED}, {"denied": TO_USER, "owner": 100000, "group": 265535}, True, ""),
        ({"uid": 100000, "ids": REMAPPED}, {"denied": TO_USER, "owner": 100000}, False, BY_MODE),
        ({"uid": 100000, "ids": REMAPPED}, {"denied": TO_USER, "owner": 165536, "group": 200000}, False, BY_MODE),
        ({"ids": REMAPPED}, {"mode": 0o600, "owner": 1}, True, ""),
        # Without it, root is an owner, a member of a group, or another user.
        ({"caps": NOTHING}, {"mode": 0o600}, True, ""),
        ({"caps": NOTHING}, {"mode": 0o066}, False, BY_MODE),
        ({"caps": NOTHING, "gid": 5}, {"mode": 0o660, "owner": 1, "group": 5}, True, ""),
        ({"caps": NOTHING, "groups": "44 5"}, {"mode": 0o660, "owner": 1, "group": 5}, True, ""),
        ({"caps": NOTHING, "groups": "44 5"}, {"mode": 0o646, "owner": 1, "group": 5}, False, BY_MODE),
        ({"caps": NOTHING}, {"mode": 0o660, "owner": 1, "group": 5}, False, BY_MODE),
        ({"caps": NOTHING}, {"mode": 0o606, "owner": 1, "group": 5}, True, ""),
    ],
)
def test_access(
    container: FakeContainer, process: dict[str, t.Any], node: dict[str, t.Any], usable: bool, denied_by: str
) -> None:
    container.process(**process)
    container.add("nvidia0", **node)
    found = container.measure()
    assert [node[7:] for node in found.nodes] == [(usable, denied_by)]
    assert found[1:] == ("", "", f"{process.get('uid', 0)}:{process.get('gid', 0)}")


def test_the_nodes_of_mig_are_read_only(container: FakeContainer) -> None:
    container.add("nvidia-caps/nvidia-cap1", denied=str(os.R_OK | os.W_OK))
    container.add("nvidia0", denied=str(os.R_OK))
    assert [node.usable for node in container.measure().nodes] == [True, True]


def test_a_node_that_the_task_itself_may_not_open(container: FakeContainer) -> None:
    container.add("nvidia0", denied=TO_TASK)
    container.add("nvidia1")
    found = container.measure()
    assert [node[7:] for node in found.nodes] == [(None, ""), (True, "")]
    assert found.access_problem == "the task itself may not open /dev/nvidia0"


@pytest.mark.parametrize("ids", ["", REMAPPED])
def test_a_node_in_a_file_system_of_its_user_namespace(container: FakeContainer, ids: str) -> None:
    container.process(ids=ids or container_nodes._read("/proc/self/uid_map").strip())
    container.add("nvidia0")
    container.device = container.dev.stat().st_dev
    found = container.measure()
    assert found.nodes[0].usable is (None if ids else True)
    assert found.access_problem == ("/dev/nvidia0 may be in a file system of its user namespace" if ids else "")


def test_a_directory_that_not_all_users_may_search(container: FakeContainer) -> None:
    container.add("nvidia0")
    container.dev.chmod(0o750)
    found = container.measure()
    assert found.nodes[0].usable is None
    assert found.access_problem == "not all users may search its directory /dev"


LABEL = "system_u:object_r:device_t:s0"
QUESTION = f"system_u:system_r:container_t:s0:c1 {LABEL} 9"


@pytest.mark.parametrize(
    ("answer", "label", "expected"),
    [
        *((f"{bits} ffffffff 0 fffdffff 1 0", LABEL, (False, BY_SELINUX)) for bits in ("20006", "20005", "20003", "7")),
        ("20007 ffffffff 0 fffdffff 1 0", LABEL, (True, "")),
        # A permissive domain.
        ("0 ffffffff 0 fffdffff 1 1", LABEL, (True, "")),
        ("", LABEL, (None, "")),
        ("20007 ffffffff 0 fffdffff 1 0", "", (None, "")),
    ],
)
def test_selinux(container: FakeContainer, answer: str, label: str, expected: tuple[bool | None, str]) -> None:
    def getxattr(path: str, name: str) -> bytes:
        if not label:
            raise OSError(errno.ENODATA, name, path)
        return f"{label}\0".encode()

    container.monkeypatch.setattr(os, "getxattr", getxattr, raising=False)
    container.write("proc/7/attr/current", "system_u:system_r:container_t:s0:c1\0")
    # In the file of the kernel the answer replaces the question. In this one it is behind the question.
    container.write("sys/fs/selinux/access", "?" * len(QUESTION) + answer)
    container.write("sys/fs/selinux/class/chr_file/index", "9")
    for name, number in {"ioctl": 1, "read": 2, "write": 3, "open": 18}.items():
        container.write(f"sys/fs/selinux/class/chr_file/perms/{name}", str(number))
    container.add("nvidia0")
    container.write("sys/fs/selinux/enforce", "0")
    assert container.measure().nodes[0].usable is True
    (container.group / "cgroup.procs").write_text("")
    container.write("sys/fs/selinux/enforce", "1")
    found = container.measure()
    assert found.nodes[0][7:] == expected
    assert (found.access_problem == "") is (expected[0] is not None)
    assert (container.root / "sys/fs/selinux/access").read_text().startswith(QUESTION if label else "?")


# -- the control group -------------------------------------------------------------------------------------------------

V2 = "36 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "40 25 0:35 / /sys/fs/cgroup/devices rw,nosuid - cgroup cgroup rw,devices"
CPU = "41 25 0:36 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu"
NO_SOURCE = "42 25 0:37 / /run rw - tmpfs  rw"
GROUPS = "9:cpu,cpuacct:/b\n5:devices:/docker/3a\n1:name=systemd:/c\n0::/system.slice/x.scope"
UNMOUNTED = "its control group is not mounted on this host"


def test_a_file_that_the_kernel_gives_in_parts() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\n")

    def write_last() -> None:
        os.write(writer, b"last\n")
        os.close(writer)

    last = threading.Timer(0.1, write_last)
    last.start()
    assert container_nodes._read(f"/proc/self/fd/{reader}") == "first\nlast\n"
    last.join()
    os.close(reader)


@pytest.mark.parametrize(
    ("mounts", "groups", "expected"),
    [
        ([NO_SOURCE, CPU, V2], GROUPS, "/sys/fs/cgroup/system.slice/x.scope"),
        # The rules of version 1 apply if there are any.
        ([V2, CPU, V1], GROUPS, "/sys/fs/cgroup/devices/docker/3a"),
        ([V2, V1], "0::/system.slice/x.scope", "/sys/fs/cgroup/system.slice/x.scope"),
        ([V2], "0::/", "/sys/fs/cgroup"),
        # A mount of a part of the tree, and the control groups of a container that runs the task.
        ([V2.replace(" / ", " /system.slice ")], GROUPS, "/sys/fs/cgroup/x.scope"),
        ([V2.replace(" / ", " /system.slice/x.scope ")], GROUPS, "/sys/fs/cgroup"),
        ([V2.replace(" / ", " /system ")], GROUPS, ""),
        ([V2], "0::/../x.scope", ""),
        ([V2, V2.replace(" / /", " /../.. /host/")], "0::/../../x.scope", "/host/sys/fs/cgroup/x.scope"),
        ([V2, V2.replace(" / /", " /.. /host/")], "0::/../../x.scope", ""),
        # A mount that is read-only.
        ([V2.replace("rw,nosuid", "ro,nosuid"), V2.replace("fs/", "fs/other/")], "0::/x", "/sys/fs/other/cgroup/x"),
        ([CPU], GROUPS, ""),
        ([V2], "", ""),
    ],
)
def test_control_group(mounts: list[str], groups: str, expected: str) -> None:
    found = container_nodes._control_group("\n".join(mounts), groups)
    assert found == ((expected, "") if expected else ("", UNMOUNTED))


MIB = 1 << 20
LOW = "less than 16 MiB of memory are left for the container"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({f"{GROUP}/cgroup.events": "populated 1\nfrozen 1\n"}, "the container is paused"),
        ({f"{GROUP}/cgroup.events": "populated 1\nfrozen 0\n"}, ""),
        ({f"{GROUP}/memory.max": f"{64 * MIB}\n", f"{GROUP}/memory.current": f"{48 * MIB + 1}\n"}, LOW),
        ({f"{GROUP}/memory.max": f"{64 * MIB}\n", f"{GROUP}/memory.current": f"{48 * MIB}\n"}, ""),
        ({f"{GROUP}/memory.max": "max\n", f"{GROUP}/memory.current": f"{48 * MIB}\n"}, ""),
        ({"system.slice/memory.max": "0\n", "system.slice/memory.current": "0\n"}, LOW),
    ],
)
def test_a_group_that_must_not_be_joined(container: FakeContainer, files: dict[str, str], problem: str) -> None:
    for path, text in files.items():
        container.write(f"sys/fs/cgroup/{path}", text)
    container.add("nvidia0")
    found = container.measure()
    assert (found.nodes[0].usable, found.access_problem) == (None if problem else True, problem)
    assert container.joined is not bool(problem)


def refuse(*_ids: int) -> t.NoReturn:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("name", ["setgroups", "setresgid", "setresuid"])
def test_a_user_that_the_task_cannot_take(container: FakeContainer, name: str) -> None:
    container.monkeypatch.setattr(os, name, refuse)
    container.add("nvidia0")
    problem = "the user of the task may not join its control group"
    assert [container.measure()[index] for index in (1, 2)] == ["", problem]
    assert container.measure().nodes[0].usable is None


def test_the_user_that_is_taken(container: FakeContainer) -> None:
    container.write("proc/7/status", "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0\n")
    for name in ("setgroups", "setresgid", "setresuid"):
        container.monkeypatch.setattr(os, name, lambda *ids, name=name: container.write(f"taken/{name}", str(ids)))
    assert container.measure().user == "2:6"
    taken = {path.name: path.read_text() for path in (container.root / "taken").iterdir()}
    assert taken == {"setgroups": "((9, 10),)", "setresgid": "(8, 8, 8)", "setresuid": "(4, 4, 4)"}


def test_a_group_that_cannot_be_joined(container: FakeContainer) -> None:
    (container.group / "cgroup.procs").unlink()
    problem = "its control group cannot be joined: No such file or directory"
    assert container.measure() == Measured((), "", problem, "0:0")


# -- the processes -----------------------------------------------------------------------------------------------------


def test_a_container_that_does_not_answer(container: FakeContainer) -> None:
    container.in_child(lambda: time.sleep(60))
    start = time.monotonic()
    problem = "the container did not answer within 0.3 seconds"
    assert container.measure(0.3) == Measured((), problem, problem, "0:0")
    assert time.monotonic() - start < 20


def test_a_container_that_does_not_answer_after_its_nodes(container: FakeContainer) -> None:
    access = os.access

    def fake(path: str, bits: int) -> bool:
        if container.joined:
            container.written.write_text(str(os.getpid()))
            time.sleep(60)
        return access(path, bits)

    container.monkeypatch.setattr(os, "access", fake)
    container.monkeypatch.setattr(signal, "alarm", lambda _seconds: None)
    container.add("nvidia0")
    found = container.measure(2)
    assert [node[7:] for node in found.nodes] == [(None, "")]
    assert (found.problem, found.access_problem) == ("", "the container did not answer within 2 seconds")
    child = Path("/proc", container.written.read_text(), "stat")
    deadline = time.monotonic() + 20
    while child.exists() and " Z " not in child.read_text():
        assert time.monotonic() < deadline, "the child was not killed"
        time.sleep(0.01)


@pytest.mark.parametrize("function", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0, lambda: os._exit(0)])
def test_a_child_that_ends_without_an_answer(container: FakeContainer, function: t.Callable[[], object]) -> None:
    container.in_child(function)
    assert container.measure() == Measured((), "the measurement was ended", "the measurement was ended", "0:0")


def test_the_child_shares_nothing_with_its_parent(container: FakeContainer, tmp_path: Path) -> None:
    def describe() -> list[t.Any]:
        blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        alarm = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        files = {int(name): os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
        return [[files.pop(handle) for handle in range(3)], sorted(files.values()), alarm, blocked]

    container.in_child(describe)
    handles = len(os.listdir("/proc/self/fd"))
    with open(tmp_path / "lock", "wb"):
        container.measure(3.5)
    standard, others, (alarm, default), blocked = json.loads(container.written.read_text())
    assert standard == [os.devnull] * 3
    assert str(tmp_path / "lock") not in others
    assert (3 < alarm <= 5, default) == (True, True)
    assert signal.SIGALRM not in blocked
    assert {signal.SIGTERM, signal.SIGINT} <= set(blocked)
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert len(os.listdir("/proc/self/fd")) == handles


@pytest.mark.parametrize("name", ["pipe", "fork"])
def test_a_measurement_that_cannot_start(container: FakeContainer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, name, refuse)
    problem = "the measurement cannot start: Operation not permitted"
    assert container.measure() == Measured((), problem, problem, "0:0")
    assert len(os.listdir("/proc/self/fd")) == handles


def test_a_container_that_has_ended(container: FakeContainer) -> None:
    ended, before = "the container has ended", (container.root / "proc/7/stat").read_text()
    container.in_child(lambda: container.write("proc/7/stat", before.replace(" 22 ", " 99 ")))
    assert container.measure() == Measured((), ended, ended, "0:0")
    container.in_child((container.root / "proc/7/stat").unlink)
    assert container.measure() == Measured((), ended, ended, "0:0")
    (container.root / "proc/7/status").unlink()
    assert container.measure() == Measured((), ended, ended)


def test_a_real_process() -> None:
    assert measure(HostFS(), os.getpid(), 20).problem == ""
