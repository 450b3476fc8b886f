# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _bringing_up, _restarting, _signals, _taking_over
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker_snap import DOCKER_SNAP
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restarting import RestartOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_configuration import RuntimeConfiguration
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_docker import PID, FakeDocker
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_systemd import FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.serving import short_folder

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._outcome import Outcome

SERVICE = "snap.docker.dockerd.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
GROUP = f"/sys/fs/cgroup/system.slice/{SERVICE}/cgroup.procs"
FILE = "/var/snap/docker/2932/config/daemon.json"
BINARY = "/snap/docker/current/bin/dockerd"
# As the snap installs it; jq and nvidia-ctk write it otherwise.
OLD = '{\n    "log-level":        "error"\n}\n'
SNAPS_OWN = "/snap/docker/2932/usr/bin/nvidia-container-runtime"
HOSTS = "/usr/bin/nvidia-container-runtime"
STATE = "/var/lib/gpufleet-nvidia/state"


class Snap(FakeDocker):
    """Revision 2932 on a classic system; ``says`` is what its validator answers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.says = (0, "configuration OK")
        self.write(UNIT, "[Service]\nExecStart=/usr/bin/snap run docker.dockerd\nType=simple\n")
        self.write("/usr/bin/snap", mode=0o755)
        self.write("/snap/docker/2932/bin/dockerd", mode=0o755)
        self.write(SNAPS_OWN, mode=0o755)
        self.revision("2932")
        self.write(FILE, OLD)

    def revision(self, name: str) -> None:
        for folder in ("/snap/docker", "/var/snap/docker"):
            self.path(f"{folder}/{name}").mkdir(parents=True, exist_ok=True)
            current = self.path(f"{folder}/current")
            if current.is_symlink():
                current.unlink()
            current.symlink_to(name)

    def refresh(self, name: str) -> None:
        """As snapd does: the files of the revision in use are copied for the new one."""
        now = self.path("/var/snap/docker/current/config/daemon.json").read_text(encoding="utf-8")
        self.revision(name)
        self.write(f"/var/snap/docker/{name}/config/daemon.json", now)

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        if "--validate" in argv:
            return self.says[0], "", self.says[1]
        return 0, "Docker version 27.2.0, build 3ab5c7d\n", ""

    @property
    def settings(self) -> t.Any:
        return json.loads(self.path("/var/snap/docker/current/config/daemon.json").read_text(encoding="utf-8"))


@pytest.fixture
def snap() -> t.Iterator[Snap]:
    with short_folder() as root:
        yield Snap(root)


def configure(snap: Snap, check_mode: bool = False, validate: str = "auto", **asked: t.Any) -> Outcome:
    options = Options("docker", RuntimeRequest(**{"allow_snap": True, **asked}), flavor="snap", validate=validate)
    return RuntimeConfiguration(options, snap.host, snap.run).execute(check_mode)


def remove(snap: Snap) -> Outcome:
    options = Options("docker", None, flavor="snap")
    return RuntimeConfiguration(options, snap.host, snap.run).execute(check_mode=False)


# -- where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "socket", "config_path"),
    [
        ("/usr/bin/snap run docker.dockerd", "/var/run/docker.sock", "/var/snap/docker/current/config/daemon.json"),
        ("/usr/bin/snap run docker.dockerd -H unix:///x --config-file=/y", "/x", "/y"),
    ],
)
def test_the_unit_of_the_snap(snap: Snap, command: str, socket: str, config_path: str) -> None:
    snap.write(UNIT, f"[Service]\nExecStart={command}\n")
    installation = DOCKER_SNAP.inspect(snap.host)
    assert (installation.service, installation.binary) == (SERVICE, BINARY)
    assert (installation.socket, installation.config_path) == (socket, config_path)
    assert installation.doubts() == []


def test_another_wrapper(snap: Snap) -> None:
    snap.write(UNIT, "[Service]\nExecStart=/bin/bash -c /srv/start.sh\n")
    assert "/bin/bash" in DOCKER_SNAP.inspect(snap.host).doubts()[0]


@pytest.mark.parametrize("place", [GROUP, "/run/snap.docker/docker.pid"])
def test_a_running_daemon(snap: Snap, place: str) -> None:
    assert DOCKER_SNAP.inspect(snap.host).pid is None
    snap.runs(place)
    assert DOCKER_SNAP.inspect(snap.host).pid == PID


@pytest.mark.parametrize(("sender", "known"), [(PID, True), (None, True), (815, False)])
def test_both_dockers_make_the_same_socket(
    snap: Snap, monkeypatch: pytest.MonkeyPatch, sender: int | None, known: bool
) -> None:
    monkeypatch.setattr(_signals, "sender_of", lambda _path, _greeting: sender)
    snap.runs(GROUP)
    with snap.answers("/var/run/docker.sock"):
        installation = DOCKER_SNAP.inspect(snap.host)
        assert (DOCKER_SNAP.live(snap.host, installation) is not None) is known
        assert (DOCKER_SNAP.casualties(snap.host, installation) is not None) is known


# -- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [True, False])
def test_it_is_refused_unless_it_is_wanted(snap: Snap, check_mode: bool) -> None:
    with pytest.raises(GpufleetError, match=r"this Docker is a snap.*allow_snap: true"):
        configure(snap, check_mode, allow_snap=False)
    assert snap.path(FILE).read_text(encoding="utf-8") == OLD


def test_there_and_back(snap: Snap) -> None:
    outcome = configure(snap, set_as_default=True, runtime_dir="/snap/docker/current/usr/bin")
    assert outcome.target == "docker/snap"
    assert snap.settings["default-runtime"] == "nvidia"
    assert not configure(snap, set_as_default=True, runtime_dir="/snap/docker/current/usr/bin").changed
    assert remove(snap).changed
    assert snap.path(FILE).read_text(encoding="utf-8") == OLD
    assert not remove(snap).changed


def test_the_runtime_of_the_snap_stays_its_own(snap: Snap) -> None:
    text = json.dumps({"runtimes": {"nvidia": {"args": [], "path": SNAPS_OWN}}})
    snap.write(FILE, text)
    outcome = configure(snap, set_as_default=True)
    assert snap.settings["runtimes"]["nvidia"]["path"] == SNAPS_OWN
    assert any("writes the runtime nvidia itself" in words for words in outcome.warnings)
    assert not any("does not see the host's programs" in words for words in outcome.warnings)
    remove(snap)
    assert snap.path(FILE).read_text(encoding="utf-8") == text


def test_a_program_of_the_host_is_doubted(snap: Snap) -> None:
    outcome = configure(snap, runtime_name="gpu")
    assert snap.settings["runtimes"]["gpu"]["path"] == HOSTS
    (warning,) = [words for words in outcome.warnings if "does not see the host's programs" in words]
    assert "cannot run gpu." in warning
    assert not any("writes the runtime" in words for words in outcome.warnings)


def test_a_removal_takes_nothing_of_the_snaps(snap: Snap) -> None:
    runtimes = {"nvidia": {"path": SNAPS_OWN}, "other": {"path": HOSTS}}
    snap.write(FILE, json.dumps({"runtimes": runtimes}))
    assert remove(snap).changed
    assert snap.settings == {"runtimes": {"nvidia": {"path": SNAPS_OWN}}}
    assert not remove(snap).changed


# -- revisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("changes", [False, True])
def test_a_refresh_takes_the_record_along(snap: Snap, changes: bool, gone: bool) -> None:
    configure(snap, runtime_name="gpu")
    for revision in ("2940", "3064", "x1"):
        snap.refresh(revision)
        assert not configure(snap, runtime_name="gpu").changed
    if gone:
        snap.path(FILE).unlink()
    if changes:
        assert configure(snap, runtime_name="gpu", set_as_default=True).changed
        assert not configure(snap, runtime_name="gpu", set_as_default=True).changed
        assert configure(snap, runtime_name="gpu", set_as_default=False).changed
        assert "default-runtime" not in snap.settings
        assert configure(snap, runtime_name="gpu", set_as_default=True).changed
    remove(snap)
    assert snap.path("/var/snap/docker/x1/config/daemon.json").read_text(encoding="utf-8") == OLD
    assert not snap.path(STATE).exists()


def test_what_the_snap_makes_of_a_refresh_stays(snap: Snap) -> None:
    configure(snap, runtime_name="gpu")
    snap.refresh("10000")
    snap.write("/var/snap/docker/10000/config/daemon.json", '{"mtu": 1400}')
    configure(snap, runtime_name="gpu")
    snap.refresh("10001")
    assert remove(snap).changed
    assert snap.settings == {"mtu": 1400}


def test_the_systems_docker_has_other_records(snap: Snap) -> None:
    snap.write("/etc/docker/daemon.json", OLD)
    configure(snap)
    options = Options("docker", None, flavor="system")
    assert not RuntimeConfiguration(options, snap.host, snap.run).execute(check_mode=False).changed
    assert "nvidia" in snap.settings["runtimes"]


# -- the validator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "dockerd: error while loading shared libraries: libdevmapper.so.1.02.1: cannot open shared object file",
        "unknown flag: --validate",
        "merged configuration validation from file and command line flags failed: userland-proxy-path is not set",
        "",
    ],
)
def test_a_program_that_does_not_run_outside_its_snap(snap: Snap, words: str) -> None:
    snap.says = (1, words)
    assert configure(snap).changed
    with pytest.raises(GpufleetError, match="cannot judge its configuration"):
        configure(snap, runtime_name="other", validate="true")


def test_a_verdict_counts(snap: Snap) -> None:
    snap.says = (1, "unable to configure the Docker daemon with file /x: invalid character")
    with pytest.raises(GpufleetError, match="refuses what would be written"):
        configure(snap)
    trial = next(argv for argv in snap.commands if "--validate" in argv)
    assert trial[2:6] == ["env", "PATH=/snap/docker/current/bin:/usr/sbin:/usr/bin:/sbin:/bin", BINARY, "--validate"]
    assert snap.path(FILE).read_text(encoding="utf-8") == OLD


# -- taking over -----------------------------------------------------------------------------------------------------


@pytest.fixture
def systemd(snap: Snap, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[FakeSystemd]:
    monkeypatch.setattr(_bringing_up, "_PAUSE", 0.01)
    monkeypatch.setattr(_bringing_up, "_STEADY", 0.0)
    monkeypatch.setattr(_signals, "sender_of", lambda _path, _greeting: PID)
    found = FakeSystemd(snap)
    found.file, found.control_group, found.name = FILE, GROUP, SERVICE
    # snapd makes units without ExecReload.
    found.reloadable = False
    snap.runs(GROUP)
    with snap.answers("/var/run/docker.sock"):
        yield found


def restart(systemd: FakeSystemd, **options: t.Any) -> t.Any:
    given = RestartOptions(engine="docker", flavor="snap", timeout=0.5, **options)
    return _restarting.restart(given, systemd.docker.host, systemd.run, False)


def test_its_unit_is_restarted(systemd: FakeSystemd) -> None:
    configure(t.cast("Snap", systemd.docker))
    assert restart(systemd).state == "new"
    assert systemd.done(f"systemctl restart --no-block -- {SERVICE}")


def test_a_unit_without_a_reload_gets_the_signal(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []

    def hang_up(_host: t.Any, pid: int, _program: str) -> None:
        got.append(pid)
        systemd.docker.info["Runtimes"]["nvidia"] = {"path": HOSTS}

    monkeypatch.setattr(_taking_over, "is_program", lambda _host, pid, _program: pid == PID)
    monkeypatch.setattr(_taking_over, "hang_up", hang_up)
    configure(t.cast("Snap", systemd.docker))
    done = restart(systemd, action="reload")
    assert (done.state, done.mode, got) == ("new", "signal", [PID])
    assert not systemd.done("systemctl reload")


def test_systemd_is_asked_for_a_reload_where_that_is_wanted(systemd: FakeSystemd) -> None:
    configure(t.cast("Snap", systemd.docker))
    assert restart(systemd, action="reload", mode="systemd").mode == "systemd"
    assert systemd.done("systemctl reload")
