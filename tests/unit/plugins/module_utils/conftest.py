# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures with hosts for the tests of module_utils."""

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import file_lookup
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree, TreeLookup
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import (
    docker_host,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import OLD, Signalled

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The directory tree of a host without a driver."""
    return Tree(tmp_path)


@pytest.fixture
def files_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the generation of specifications treat the regular files in directories named dev as devices."""
    monkeypatch.setattr(file_lookup, "CachedFS", TreeLookup)


@pytest.fixture
def driver_tree(tmp_path: Path) -> Tree:
    """A directory tree with the libraries of a driver, in the directory of Debian and Ubuntu."""
    made = Tree(tmp_path)
    made.driver()
    return made


@pytest.fixture
def skips_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """``time.sleep`` returns at once, and ``time.monotonic`` is later by the seconds of the pause."""
    skipped = 0.0
    really = time.monotonic

    def sleep(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: really() + skipped)


@pytest.fixture
def systemd(skips_pauses: None) -> t.Iterator[FakeSystemd]:  # noqa: ARG001  # it only has to come first
    """A host whose Docker runs with the daemon.json OLD."""
    with docker_host() as docker:
        docker.write(FILE, OLD)
        found = FakeSystemd(docker)
        with docker.answers():
            yield found


@pytest.fixture
def busy(systemd: FakeSystemd) -> FakeSystemd:
    """A host with running containers that a restart of Docker would stop, because live-restore is off."""
    systemd.docker.info["LiveRestoreEnabled"] = False
    systemd.docker.containers += [{"Names": ["/web"]}, {"Names": ["/db", "/web/alias"]}, {"Id": "0123456789abcdef"}]
    systemd.docker.write(FILE, "{}")
    return systemd


@pytest.fixture
def signalled(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> Signalled:
    """Signals to the fake Docker, whose dockerd is the process 4711. It reads daemon.json at each recorded SIGHUP."""
    found = Signalled([4711], [4711], [])

    def hang_up(_host: t.Any, pid: int, program: str) -> None:
        assert program == "dockerd"
        found.got.append(pid)
        # The fake daemon reads its file at this command. The command is recorded too, although the code did not run it.
        systemd.run(["chroot", "", "systemctl", "reload"])

    monkeypatch.setattr(processes, "runs_program", lambda _host, pid, _program: pid in found.daemons)
    monkeypatch.setattr(processes, "peer_pid", lambda _path, _greeting: next(iter(found.answering), None))
    monkeypatch.setattr(processes, "send_sighup", hang_up)
    return found
