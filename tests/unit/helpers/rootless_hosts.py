# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with the rootless Docker of alice, as dockerd-rootless-setuptool.sh of Docker 20.10 to 29 installs it."""

from __future__ import annotations

import contextlib
import importlib
import os
import typing as t

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import PID, FakeDocker
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.serving import short_folder

if t.TYPE_CHECKING:
    from pathlib import Path

# The code imports these modules late. A test that runs as alice may not read their directory.
for _name in ("_engines.docker.engine", "_engines.journal", "_engines.validator", "_systemd.rootless"):
    importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.module_utils.{_name}")

# Tests that run as root become alice. All others run as their own user.
UID = 1234 if os.geteuid() == 0 else os.geteuid()
GID = 2345 if os.geteuid() == 0 else os.getegid()
HOME = "/home/alice"
RUNTIME = f"/run/user/{UID}"
SOCKET = f"{RUNTIME}/docker.sock"
UNIT = f"{HOME}/.config/systemd/user/docker.service"
FILE = f"{HOME}/.config/docker/daemon.json"
GROUP = f"/sys/fs/cgroup/user.slice/user-{UID}.slice/user@{UID}.service/app.slice/docker.service/cgroup.procs"
EXEC_START = "/usr/bin/dockerd-rootless.sh "
# The main process of the unit is that of RootlessKit.
ROOTLESSKIT_PID = 4242


@contextlib.contextmanager
def alices_host() -> t.Iterator[Rootless]:
    """The directory tree for a task that runs as alice. She owns all of it."""
    root_runs = os.geteuid() == 0
    with short_folder() as folder:
        if root_runs:
            os.chown(folder, UID, GID)
            os.setresgid(GID, GID, 0)
            os.setresuid(UID, UID, 0)
        try:
            yield Rootless(folder)
        finally:
            if root_runs:
                os.setresuid(0, 0, 0)
                os.setresgid(0, 0, 0)


class Rootless(FakeDocker):
    """The directory tree with alice's unit."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.write("/etc/passwd", f"root:x:0:0:root:/root:/bin/bash\nalice:x:{UID}:{GID}:Alice:{HOME}:/bin/sh\n")
        self.write("/usr/bin/dockerd-rootless.sh", mode=0o755)
        self.unit()

    def unit(self, command: str = EXEC_START, *lines: str) -> None:
        self.write(UNIT, "\n".join(["[Service]", f"ExecStart={command}", *lines]) + "\n")

    def link(self, inner: str, target: str) -> None:
        self.path(inner).parent.mkdir(parents=True, exist_ok=True)
        self.path(inner).symlink_to(target)

    def runs(self, pid_file: str | None = None, name: str = "dockerd", uid: int = UID) -> None:
        super().runs(pid_file or GROUP, name)
        self.write(f"/proc/{PID}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


def alices_systemd(docker: Rootless) -> FakeSystemd:
    """The systemd of alice, which runs her Docker."""
    systemd = FakeSystemd(docker)
    systemd.file, systemd.control_group, systemd.main_pid = FILE, GROUP, ROOTLESSKIT_PID
    environment = f"XDG_RUNTIME_DIR={RUNTIME} DBUS_SESSION_BUS_ADDRESS=unix:path={RUNTIME}/bus"
    systemd.prefix, systemd.option = f"env {environment}", "--user"
    docker.write(f"{RUNTIME}/systemd/private")
    return systemd
