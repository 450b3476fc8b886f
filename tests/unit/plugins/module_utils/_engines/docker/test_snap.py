# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker as a snap is reported and refused; what earlier versions changed in its file is still restored."""

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile, digest, record_path
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER_SNAP
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.info import describe_engines
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import PID, FakeDocker

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

SERVICE = "snap.docker.dockerd.service"
GROUP = f"/sys/fs/cgroup/system.slice/{SERVICE}/cgroup.procs"
FILE = "/var/snap/docker/2932/config/daemon.json"
OLD = '{\n    "log-level":        "error"\n}\n'
OURS = {"path": "/snap/docker/current/usr/bin/nvidia-container-runtime"}
NEW = json.dumps({"log-level": "error", "runtimes": {"gpu": OURS}, "default-runtime": "gpu"})


@pytest.fixture
def snap(tmp_path: Path) -> FakeDocker:
    """Revision 2932, without another Docker."""
    snap = FakeDocker(tmp_path)
    for path in ("/usr/bin/dockerd", "/usr/lib/systemd/system/docker.service"):
        snap.path(path).unlink()
    snap.write(f"/etc/systemd/system/{SERVICE}", "[Service]\nExecStart=/usr/bin/snap run docker.dockerd\n")
    snap.write("/snap/docker/2932/bin/dockerd", mode=0o755)
    snap.path("/snap/docker/current").symlink_to("2932")
    snap.write(FILE, OLD)
    snap.path("/var/snap/docker/current").symlink_to("2932")
    return snap


def run(snap: FakeDocker, request: RuntimeRequest | None, check_mode: bool = False) -> ConfigureResult:
    return ConfigureEngine(Options("docker", request), snap.host, snap.run).execute(check_mode)


def changed_by_an_earlier_version(snap: FakeDocker, revision: str = "2932") -> None:
    record = OriginalFile("docker_snap", FILE, OLD.encode(), os.geteuid(), os.getegid(), 0o644, main=FILE)
    keys = {("runtimes", "gpu", "path"): OURS["path"], ("default-runtime",): "gpu"}
    record = record.after_write(OLD.encode(), NEW.encode(), keys)
    snap.write(record_path("docker_snap", FILE), record.to_bytes().decode())
    assert digest(NEW.encode()) in record.written
    path = f"/var/snap/docker/{revision}/config/daemon.json"
    snap.write(path, NEW)
    snap.path("/var/snap/docker/current").unlink()
    snap.path("/var/snap/docker/current").symlink_to(revision)


@pytest.mark.parametrize("check_mode", [True, False])
def test_it_is_refused(snap: FakeDocker, check_mode: bool) -> None:
    with pytest.raises(NvidiaError, match=r"^Docker is installed as a snap, which this collection"):
        run(snap, RuntimeRequest(), check_mode)
    assert snap.path(FILE).read_text(encoding="utf-8") == OLD
    assert snap.commands == []


def test_it_is_reported(snap: FakeDocker) -> None:
    snap.runs(GROUP)
    ((entry,), _needed) = describe_engines(snap.host, snap.run)
    assert (entry["target"], entry["flavor"], entry["installed"], entry["pid"]) == ("docker/snap", "snap", True, PID)
    assert (entry["binary"], entry["version"], entry["service"]) == (None, None, SERVICE)
    assert entry["problems"][0]["message"].startswith("Docker is installed as a snap, which")
    assert snap.commands == []


@pytest.mark.parametrize("revision", ["2932", "3064", "x1"])
def test_what_an_earlier_version_changed_is_restored(snap: FakeDocker, revision: str) -> None:
    """snapd copies the file for each revision."""
    changed_by_an_earlier_version(snap, revision)
    assert run(snap, None).changed
    assert snap.path("/var/snap/docker/current/config/daemon.json").read_text(encoding="utf-8") == OLD
    assert not snap.path("/var/lib/gpufleet-nvidia/state").exists()
    assert not run(snap, None).changed
    # Its program only runs inside the snap.
    assert snap.commands == []


def test_what_others_changed_since_stays(snap: FakeDocker) -> None:
    changed_by_an_earlier_version(snap)
    own = {"path": "/snap/docker/2932/usr/bin/nvidia-container-runtime"}
    snap.write(FILE, json.dumps({"mtu": 1400, "runtimes": {"gpu": OURS, "nvidia": own}, "default-runtime": "gpu"}))
    assert run(snap, None).changed
    assert json.loads(snap.path(FILE).read_text(encoding="utf-8")) == {"mtu": 1400, "runtimes": {"nvidia": own}}


def test_a_removal_leaves_the_snaps_own_runtime(snap: FakeDocker) -> None:
    text = json.dumps({"runtimes": {"nvidia": {"path": "/snap/docker/2932/usr/bin/nvidia-container-runtime"}}})
    snap.write(FILE, text)
    assert not run(snap, None).changed
    assert snap.path(FILE).read_text(encoding="utf-8") == text


def test_its_file_and_socket(snap: FakeDocker) -> None:
    installation = DOCKER_SNAP.inspect(snap.host)
    assert installation.config_path == "/var/snap/docker/current/config/daemon.json"
    assert (installation.service, installation.socket) == (SERVICE, "/var/run/docker.sock")
