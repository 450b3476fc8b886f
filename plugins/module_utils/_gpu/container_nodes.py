# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the device nodes in a running container, and whether its first process may open them.

Every access to files of a container can hang or lie, so a child process makes it, and has a deadline. No link of the
container is followed, and no device node is opened, because that would initialise a GPU. The child joins the control
group of the container, takes the user of its first process, and asks the kernel with access(2).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import math
import os
import posixpath
import re
import resource
import select
import signal
import stat
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

# What a path in /dev of a container is.
NODE, LINK, OTHER = "node", "link", "other"
# What denies a process to open a node.
BY_CGROUP, BY_MODE, BY_NODEV, BY_SELINUX = "cgroup", "mode", "nodev", "selinux"


class Node(t.NamedTuple):
    """A path in /dev of a container.

    - ``path``: its path in the container, such as /dev/nvidia0.
    - ``kind``: NODE (a character device), LINK or OTHER. The numbers are 0 for LINK and OTHER.
    - ``mode``, ``uid``, ``gid``: permission bits, owner and group, as the host sees them.
    - ``usable``: whether the first process of the container may open it for reading and writing. None: unknown.
    - ``denied_by``: what denies it: BY_CGROUP, BY_MODE, BY_NODEV or BY_SELINUX; empty if nothing is known to.
    """

    path: str
    kind: str = NODE
    major: int = 0
    minor: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    usable: bool | None = None
    denied_by: str = ""


class Measured(t.NamedTuple):
    """The result of a measurement.

    - ``nodes``: the paths of GPUs and of the driver in /dev, sorted by path.
    - ``problem``: why ``nodes`` may be incomplete, as a sentence without full stop. Empty: they are complete.
    - ``access_problem``: why ``usable`` of nodes is None, in the same form. Empty: it is known.
    - ``user``: the effective user and group of the first process for messages, such as "1000:1000".
    """

    nodes: tuple[Node, ...] = ()
    problem: str = ""
    access_problem: str = ""
    user: str = ""


# The directories that are searched, and the names in them.
_FOLDERS = {
    "/dev": r"nvidia[\w.-]*|dxg|dri",
    "/dev/dri": "(card|renderD)[0-9]+",
    "/dev/nvidia-caps": "nvidia-cap[0-9]+",
    "/dev/nvidia-caps-imex-channels": "channel[0-9]+",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# The limits for names in one directory, and for nodes. By default, the driver has 2048 IMEX channels.
_MOST_NAMES, _MOST_NODES = 20000, 4000
# The limits in bytes for a file of the kernel, for the answer of the child, and for the memory that it may need.
_FILE_BYTES, _ANSWER_BYTES, _CHILD_BYTES = 1 << 20, 4 << 20, 16 << 20
# CAP_DAC_OVERRIDE in a set of capabilities (include/uapi/linux/capability.h of Linux).
_DAC_OVERRIDE = 1 << 1
_ENDED = "the container has ended"


class _Process(t.NamedTuple):
    """The first process of a container.

    - ``folder``: its directory in /proc. ``started``: when it started, in clock ticks.
    - ``uid``, ``gid``, ``groups``: those with which it opens files. ``user``: as in Measured.
    - ``uids``, ``gids``: the owners and groups of files to which its CAP_DAC_OVERRIDE applies; empty without it.
    """

    folder: str
    started: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    user: str
    uids: tuple[range, ...]
    gids: tuple[range, ...]


def measure(host: hostfs.HostFS, pid: int, deadline: float = 5.0) -> Measured:
    """Return the device nodes in the container of the process ``pid``, and whether that process may open them.

    It never raises for what a container does. ``deadline`` is in seconds.
    """
    folder, selinux = host.process_path(f"/proc/{pid}"), host.process_path("/sys/fs/selinux")
    process = _read_process(folder)
    if process is None:
        return Measured(problem=_ENDED, access_problem=_ENDED)
    group, problem = _control_group(_read("/proc/self/mountinfo"), _read(f"{folder}/cgroup"))
    child = _Child(process, group, problem, selinux if _read(f"{selinux}/enforce").strip() == "1" else "")
    try:
        lines, problem = _answer(child, deadline)
    except OSError as error:
        lines, problem = [], f"the measurement cannot start: {error.strerror}"
    if _started(folder) != process.started:
        return Measured(problem=_ENDED, access_problem=_ENDED, user=process.user)
    if not lines:
        return Measured(problem=problem, access_problem=problem, user=process.user)
    nodes, *problems = json_data.load(lines[-1])
    found = Measured(tuple(sorted(Node(*node) for node in nodes)), *problems)
    # The child writes a second line after it has asked.
    return found if len(lines) > 1 else found._replace(access_problem=found.access_problem or problem)


# -- the process and its control group ---------------------------------------------------------------------------------


def _read(path: str) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        # One call of read(2) returns only the first lines of a long file, such as mountinfo.
        with open(path, "rb") as stream:
            return stream.read(_FILE_BYTES).decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return ""


def _started(folder: str) -> str:
    """Return field 22 of /proc/PID/stat (proc(5)); empty if the process has ended."""
    # Field 2 is the name of the program, which may contain spaces and parentheses.
    return "".join(_read(f"{folder}/stat").rpartition(")")[2].split()[19:20])


def _read_process(folder: str) -> _Process | None:
    """Return the process; None if it has ended."""
    started, lines = _started(folder), _read(f"{folder}/status").splitlines()
    status = {name: words.split() for name, _colon, words in (line.partition(":") for line in lines)}
    try:
        # The second ID is the effective one, the fourth one is for files.
        uids, gids = status["Uid"], status["Gid"]
        overrides = int(status["CapEff"][0], 16) & _DAC_OVERRIDE
        return _Process(
            folder=folder,
            started=started,
            uid=int(uids[3]),
            gid=int(gids[3]),
            groups=tuple(int(group) for group in status["Groups"]),
            user=f"{uids[1]}:{gids[1]}",
            uids=_outer_ids(f"{folder}/uid_map") if overrides else (),
            gids=_outer_ids(f"{folder}/gid_map") if overrides else (),
        )
    except (KeyError, IndexError, ValueError):
        return None


def _outer_ids(path: str) -> tuple[range, ...]:
    """Return the IDs outside of a user namespace that it maps (user_namespaces(7))."""
    lines = [[int(word) for word in line.split()] for line in _read(path).splitlines()]
    return tuple(range(outer, outer + number) for _inner, outer, number in lines)


def _control_group(mountinfo: str, groups: str) -> tuple[str, str]:
    """Return the directory of the control group with the device rules of a process, and why it must not be joined.

    ``groups`` is /proc/PID/cgroup. If the hierarchy of version 1 with the controller of devices is mounted, its rules
    apply, otherwise those of version 2 (cgroups(7)).
    """
    lines = [line.split(":", 2) for line in groups.splitlines()]
    paths = {name: path for _number, names, path in lines for name in names.split(",")}
    found: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        mount, _dash, source = line.partition(" - ")
        root, place, options = mount.split(" ")[3:6]
        kind, _device, features = source.split(" ")[:3]
        name = {"cgroup": "devices", "cgroup2": ""}.get(kind)
        if name not in paths or "rw" not in options.split(",") or (name and name not in features.split(",")):
            continue
        # Both are relative to the cgroup namespace of this process. What is outside of that begins with "/..".
        root, path = root.rstrip("/"), paths[name].rstrip("/")
        if f"{path}/".startswith(f"{root}/") and "/.." not in path[len(root) :]:
            found.setdefault(name, (place, place + path[len(root) :]))
    if "devices" in found:
        return found["devices"][1], ""
    if "" in found:
        return found[""][1], _problem_of_joining(*found[""])
    return "", "its control group is not mounted on this host"


def _problem_of_joining(place: str, folder: str) -> str:
    """Return why the child must not join a control group of version 2, in which all controllers apply to it."""
    if "frozen 1" in _read(f"{folder}/cgroup.events").splitlines():
        return "the container is paused"
    while True:
        limit, used = (_read(f"{folder}/memory.{name}").strip() for name in ("max", "current"))
        # The limit may be "max". Without the controller of memory, there is no file.
        if limit.isdigit() and used.isdigit() and int(limit) - int(used) < _CHILD_BYTES:
            return f"less than {_CHILD_BYTES >> 20} MiB of memory are left for the container"
        if folder == place:
            return ""
        folder = posixpath.dirname(folder)


# -- the parent --------------------------------------------------------------------------------------------------------


def _answer(child: _Child, deadline: float) -> tuple[list[bytes], str]:
    """Return the lines that the child writes before the deadline, and why there are not more. Raises OSError."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0):
        try:
            pid = _fork(child, writer, math.ceil(deadline) + 1)
        finally:
            os.close(writer)
        try:
            content, ended = _read_answer(reader, deadline)
        finally:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                # A child that waits for a file system does not end.
                os.waitpid(pid, os.WNOHANG)
    # A child that was killed may have written half of a line.
    lines = content.split(b"\n")[:-1]
    return lines, "the measurement was ended" if ended else f"the container did not answer within {deadline:g} seconds"


def _fork(child: _Child, writer: int, seconds: int) -> int:
    # A handler of a signal must not run code of the parent in the child, where all but the alarm stay blocked.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _leave_parent(writer, seconds)
                child.answer(writer)
            finally:
                os._exit(0)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _read_answer(reader: int, deadline: float) -> tuple[bytes, bool]:
    """Return what the child has written, and whether it has ended."""
    end, content = time.monotonic() + deadline, b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while poll.poll(max(0, end - time.monotonic()) * 1000):
        chunk = os.read(reader, 1 << 16)
        if not chunk or len(content) > _ANSWER_BYTES:
            return content, True
        content += chunk
    return content, False


# -- the child ---------------------------------------------------------------------------------------------------------


def _leave_parent(writer: int, seconds: int) -> None:
    """Give up what is shared with the parent, and set the alarm that ends the child if the parent is killed."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    # A collection would write to all objects, and so use memory of the container.
    gc.disable()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    # A child that does not end must not hold a lock of the parent.
    for handle in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, writer}:
        with contextlib.suppress(OSError):
            os.close(handle)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Child:
    """Finds the nodes, and asks the kernel. ``unknown`` is why usable nodes are not known.

    ``group`` is the directory of the control group that it joins, unless ``unknown`` says why not. ``selinux`` is the
    directory of SELinux, empty if that is not enforced.
    """

    def __init__(self, process: _Process, group: str, unknown: str, selinux: str) -> None:
        self.process, self.group, self.unknown, self.selinux = process, group, unknown, selinux
        self.nodes: list[Node] = []
        self.handles: list[int] = []
        self.problem = ""
        # The device of its /dev, if its user namespace is another one than that of this process.
        self.own_device: int | None = None

    def answer(self, writer: int) -> None:
        """Write the fields of Measured without access, then with it, unless the control group must not be joined."""
        steps = (self._search,) if self.unknown else (self._search, self._ask)
        with os.fdopen(writer, "wb", buffering=0) as stream:
            for step in steps:
                step()
                found = Measured(tuple(self.nodes), self.problem, self.unknown, self.process.user)
                stream.write(json.dumps(found).encode() + b"\n")

    def _search(self) -> None:
        """Find the nodes. Each step is one name, and no link is followed."""
        try:
            root = os.open(f"{self.process.folder}/root", os.O_PATH | os.O_DIRECTORY)
            dev = os.open("dev", _FOLDER, dir_fd=root)
            if _read(f"{self.process.folder}/uid_map").split() != _read("/proc/self/uid_map").split():
                self.own_device = os.fstat(dev).st_dev
            self._add_folder("/dev", dev)
        except OSError as error:
            self.problem = f"its directory /dev cannot be read: {error.strerror}"

    def _add_folder(self, path: str, folder: int) -> None:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES + 1)]
        # A file system may list a name twice.
        wanted = sorted({name for name in names if re.fullmatch(_FOLDERS[path], name, re.ASCII)})
        if len(names) > _MOST_NAMES or len(self.nodes) + len(wanted) > _MOST_NODES:
            raise OSError(errno.E2BIG, f"{path} contains too many files")
        if not os.fstat(folder).st_mode & stat.S_IXOTH:
            self.unknown = self.unknown or f"not all users may search its directory {path}"
        for name in wanted:
            with contextlib.suppress(FileNotFoundError):
                self._add(f"{path}/{name}", os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder))

    def _add(self, path: str, handle: int) -> None:
        status = os.fstat(handle)
        if path in _FOLDERS and stat.S_ISDIR(status.st_mode):
            self._add_folder(path, os.open(".", _FOLDER, dir_fd=handle))
            return
        kind, number, denied_by = LINK if stat.S_ISLNK(status.st_mode) else OTHER, 0, ""
        if stat.S_ISCHR(status.st_mode):
            kind, number = NODE, status.st_rdev
            if status.st_dev == self.own_device:
                # No node of a file system that was mounted in a user namespace can be opened (SB_I_NODEV of Linux),
                # but access(2) does not check that.
                self.unknown = self.unknown or f"{path} may be in a file system of its user namespace"
            denied_by = BY_NODEV if os.fstatvfs(handle).f_flag & os.ST_NODEV else self._selinux_denial(handle)
        bits, usable = stat.S_IMODE(status.st_mode), False if denied_by else None
        numbers = os.major(number), os.minor(number), bits, status.st_uid, status.st_gid
        self.nodes.append(Node(path, kind, *numbers, usable=usable, denied_by=denied_by))
        self.handles.append(handle)

    def _selinux_denial(self, handle: int) -> str:
        """Return BY_SELINUX if its policy denies the process to open a node (security/selinux/selinuxfs.c of Linux)."""
        if not self.selinux:
            return ""
        folder = f"{self.selinux}/class/chr_file"
        try:
            wanted = sum(1 << int(_read(f"{folder}/perms/{name}")) - 1 for name in ("open", "read", "write", "ioctl"))
            label = os.getxattr(f"/proc/self/fd/{handle}", "security.selinux").decode().rstrip("\0")
            words = _read(f"{self.process.folder}/attr/current").strip(), label, _read(f"{folder}/index").strip()
            request = os.open(f"{self.selinux}/access", os.O_RDWR)
            os.write(request, " ".join(words).encode())
            # The first number is what is permitted. Bit 0 of the last one stands for a permissive domain.
            allowed, *_others, flags = (int(word, 16) for word in os.read(request, 4096).split())
        except (OSError, ValueError):
            self.unknown = self.unknown or "SELinux does not tell what its processes may open"
            return ""
        return "" if flags & 1 or allowed & wanted == wanted else BY_SELINUX

    def _ask(self) -> None:
        """Join the control group, take the user, and set which nodes may be opened."""
        permitted = None if self.unknown else True
        before = self._accesses()
        try:
            os.write(os.open(f"{self.group}/cgroup.procs", os.O_WRONLY), b"0")
            joined = self._accesses()
            os.setgroups(self.process.groups)
            os.setresgid(*[self.process.gid] * 3)
            os.setresuid(*[self.process.uid] * 3)
        except OSError as error:
            refused = isinstance(error, PermissionError)
            reason = "the user of the task may not join its control group"
            self.unknown = reason if refused else f"its control group cannot be joined: {error.strerror}"
            return
        for index, as_user in enumerate(self._accesses()):
            node = self.nodes[index]
            if node.kind != NODE or node.denied_by:
                continue
            if not joined[index] and before[index]:
                node = node._replace(usable=False, denied_by=BY_CGROUP)
            elif not joined[index]:
                self.unknown = self.unknown or f"the task itself may not open {node.path}"
            elif self._mode_permits(node, as_user):
                node = node._replace(usable=permitted)
            else:
                node = node._replace(usable=False, denied_by=BY_MODE)
            self.nodes[index] = node

    def _accesses(self) -> list[bool]:
        """Return for which nodes access(2) succeeds. It checks the permission bits, then the device cgroup."""
        pairs = zip(self.nodes, self.handles)
        return [node.kind == NODE and os.access(f"/proc/self/fd/{handle}", _bits(node)) for node, handle in pairs]

    def _mode_permits(self, node: Node, as_user: bool) -> bool:
        """Return whether the permission bits permit it to open a node. ``as_user`` is the answer for its user."""
        process = self.process
        if any(node.uid in uids for uids in process.uids) and any(node.gid in gids for gids in process.gids):
            return True
        if process.uid or process.uids:
            return as_user
        # Without the capability, root is a user like all others. The child has it.
        shift = 6 if node.uid == 0 else 3 if node.gid in (process.gid, *process.groups) else 0
        return node.mode >> shift & _bits(node) == _bits(node)


def _bits(node: Node) -> int:
    # The nodes of MIG capabilities have the mode 0444 (nv-caps.c of open-gpu-kernel-modules).
    return os.R_OK if node.path.startswith("/dev/nvidia-caps/") else os.R_OK | os.W_OK
