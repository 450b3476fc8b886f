# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import (
    _bringing_up,
    _restarting,
    _taking_over,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_docker_rootless import RootlessDocker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_info import describe_engines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._planning import Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._proof import Expectation
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restarting import RestartError, RestartOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_configuration import RuntimeConfiguration
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import resolve_target
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_docker import PID
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.rootless_hosts import (
    EXEC_START,
    FILE,
    GID,
    HOME,
    ROOTLESSKIT_PID,
    RUNTIME,
    SOCKET,
    UID,
    UNIT,
    Rootless,
    alices_systemd,
)
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.serving import short_folder

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._outcome import Outcome
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._restarting import Restarted
    from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils.fake_systemd import FakeSystemd

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NVIDIA = "/usr/bin/nvidia-container-runtime"
OLD = '{\n  "debug": true\n}\n'


@pytest.fixture
def docker() -> t.Iterator[Rootless]:
    with short_folder() as root:
        yield Rootless(root)


def configure(docker: Rootless, check_mode: bool = False, remove: bool = False, **asked: t.Any) -> Outcome:
    request = None if remove else RuntimeRequest(**asked)
    options = Options("docker", request, flavor="rootless", user="alice")
    return RuntimeConfiguration(options, docker.host, docker.run).execute(check_mode)


def owner(docker: Rootless, path: str) -> tuple[int, int, int]:
    status = docker.path(path).lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


# -- where it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "lines", "settings", "expected"),
    [
        ("", [], {}, {"socket": SOCKET, "config_path": FILE}),
        ("--config-file /srv/a.json", [], {}, {"config_path": "/srv/a.json"}),
        ("--config-file=a.json", [], {}, {"config_path": f"{HOME}/a.json"}),
        ("", ["Environment=XDG_CONFIG_HOME=%h/cfg"], {}, {"config_path": f"{HOME}/cfg/docker/daemon.json"}),
        ("", ["Environment=XDG_RUNTIME_DIR=%h/run"], {}, {"socket": f"{HOME}/run/docker.sock"}),
        ("", [], {"hosts": ["tcp://0.0.0.0:1", "unix:///tmp/a.sock"]}, {"socket": "/tmp/a.sock"}),
        ("-H unix:///tmp/f.sock", [], {"hosts": ["unix:///tmp/a.sock"]}, {"socket": "/tmp/f.sock"}),
        ("-H unix://", [], {}, {"socket": SOCKET}),
        ("-H fd://", [], {}, {"socket": SOCKET}),
    ],
)
def test_socket_and_file(
    docker: Rootless, flags: str, lines: list[str], settings: t.Any, expected: dict[str, str]
) -> None:
    docker.unit(EXEC_START + flags, *lines)
    docker.write(FILE, json.dumps(settings))
    installation = RootlessDocker("alice").inspect(docker.host)
    assert installation.doubts() == []
    assert {name: getattr(installation, name) for name in expected} == expected


def test_another_wrapper_keeps_its_flags_to_itself(docker: Rootless) -> None:
    docker.unit('/bin/sh -c "exec dockerd-rootless.sh" --config-file=/x')
    installation = RootlessDocker("alice").inspect(docker.host)
    assert installation.config_path == FILE
    assert "/bin/sh" in installation.doubts()[0]


def test_a_user_who_is_not_there(docker: Rootless) -> None:
    with pytest.raises(GpufleetError, match="no user bob"):
        RootlessDocker("bob").inspect(docker.host)


def described(docker: Rootless) -> dict[str, t.Any]:
    found, _needed = describe_engines(docker.host, docker.run)
    return next(engine for engine in found if engine["target"] == "docker/rootless/alice")


@pytest.mark.parametrize(
    "unit",
    [
        ["/usr/bin/dockerd-rootless.sh", "Environment=PATH=%h/bin:/usr/bin"],
        ["/usr/bin/dockerd-rootless.sh", "Environment=DOCKERD=%h/bin/dockerd"],
        ["/usr/bin/dockerd-rootless.sh", "Environment=DOCKERD=/usr/local/sbin/wipe-node.sh"],
        ["/usr/bin/dockerd-rootless.sh", "Environment=DOCKERD=/opt/dockerd"],
        ["/usr/bin/dockerd-rootless.sh", "Environment=PATH=/opt"],
        # As https://get.docker.com/rootless sets it up.
        ["%h/bin/dockerd-rootless.sh", "Environment=PATH=%h/bin:/sbin:/usr/sbin:/usr/bin"],
        ["%h/bin/dockerd-rootless.sh"],
    ],
)
@pytest.mark.parametrize("systems_own", [True, False])
def test_no_program_that_a_user_chooses_is_run(docker: Rootless, unit: list[str], systems_own: bool) -> None:
    """Root would run it, to ask for its version or its opinion; but it is there."""
    assert RootlessDocker("alice").inspect(docker.host).binary == "/usr/bin/dockerd"
    for program in (f"{HOME}/bin/dockerd", f"{HOME}/bin/dockerd-rootless.sh", "/usr/local/sbin/wipe-node.sh"):
        docker.write(program, mode=0o755)
    docker.write("/opt/dockerd", mode=0o755)
    if not systems_own:
        docker.path("/usr/bin/dockerd").unlink()
    docker.unit(*unit)
    installation = RootlessDocker("alice").inspect(docker.host)
    assert (installation.binary, installation.installed) == (None, True)
    told = described(docker)
    assert (told["installed"], told["binary"], told["version"]) == (True, None, None)
    assert configure(docker, check_mode=True).changed
    assert docker.commands == [argv for argv in docker.commands if argv[2:3] == ["/usr/bin/dockerd"]]
    assert not [argv for argv in docker.commands if "--validate" in argv]


def test_what_is_there(docker: Rootless) -> None:
    engine = RootlessDocker("alice")
    assert engine.inspect(docker.host).installed
    docker.path("/usr/bin/dockerd").unlink()
    assert not engine.inspect(docker.host).installed
    docker.runs()
    assert engine.inspect(docker.host).installed


def test_the_systems_program_alone_is_no_docker_of_a_user(docker: Rootless) -> None:
    docker.path(UNIT).unlink()
    installation = RootlessDocker("alice").inspect(docker.host)
    assert (installation.binary, installation.installed) == ("/usr/bin/dockerd", False)


@pytest.mark.parametrize("in_home", [True, False])
def test_one_in_a_home_is_chosen_before_one_that_is_gone(docker: Rootless, in_home: bool) -> None:
    """Bob has only left a socket behind."""
    with docker.path("/etc/passwd").open("a", encoding="utf-8") as stream:
        stream.write("bob:x:54321:54321::/home/bob:/bin/sh\n")
    docker.write("/run/user/54321/docker.sock")
    if in_home:
        docker.path("/usr/bin/dockerd").unlink()
        docker.write(f"{HOME}/bin/dockerd", mode=0o755)
        docker.unit("%h/bin/dockerd-rootless.sh")
    assert str(resolve_target(docker.host, "docker", "rootless")) == "docker/rootless/alice"


def test_a_file_is_given_back_when_the_unit_is_gone(docker: Rootless) -> None:
    docker.write(FILE, OLD)
    configure(docker)
    docker.path(UNIT).unlink()
    told = described(docker)
    assert (told["installed"], told["recorded_files"]) == (False, [FILE])
    assert str(resolve_target(docker.host, "docker", "rootless")) == "docker/rootless/alice"
    configure(docker, remove=True)
    assert docker.path(FILE).read_text() == OLD


def test_the_validator_gets_no_flags_of_the_user(docker: Rootless) -> None:
    docker.unit(EXEC_START + "--validate=false --data-root")
    configure(docker)
    (trial,) = [argv for argv in docker.commands if "--validate" in argv]
    assert trial[2:5] == ["/usr/bin/dockerd", "--validate", "--config-file"]
    assert len(trial) == 6


# -- what it says ----------------------------------------------------------------------------------------------------


def test_what_a_running_daemon_says(docker: Rootless) -> None:
    docker.runs()
    with docker.answers(SOCKET):
        docker.give(SOCKET)
        engine = RootlessDocker("alice")
        installation = engine.inspect(docker.host)
        live = engine.live(docker.host, installation)
        assert installation.pid == PID
        assert live is not None
        assert (live.version, live.default_runtime) == ("26.1.5", "runc")


def test_live_restore_keeps_nothing(docker: Rootless) -> None:
    docker.runs()
    docker.write(FILE, '{"live-restore": true}')
    docker.containers.append({"Names": ["/web"]})
    with docker.answers(SOCKET):
        docker.give(SOCKET)
        engine = RootlessDocker("alice")
        assert engine.casualties(docker.host, engine.inspect(docker.host)) == ["web"]


@needs_root
def test_a_link_to_the_systems_socket_is_not_followed(docker: Rootless) -> None:
    docker.runs()
    with docker.answers("/run/docker.sock"):
        docker.link(SOCKET, "/run/docker.sock")
        engine = RootlessDocker("alice")
        installation = engine.inspect(docker.host)
        assert installation.pid == PID
        assert engine.live(docker.host, installation) is None
        assert engine.casualties(docker.host, installation) is None


# -- its file --------------------------------------------------------------------------------------------------------


def test_what_is_made_is_the_users(docker: Rootless) -> None:
    outcome = configure(docker, set_as_default=True)
    assert (outcome.changed, outcome.target) == (True, "docker/rootless/alice")
    assert json.loads(docker.path(FILE).read_text()) == {
        "runtimes": {"nvidia": {"path": NVIDIA}},
        "default-runtime": "nvidia",
    }
    assert owner(docker, FILE) == (UID, GID, 0o644)
    assert owner(docker, f"{HOME}/.config/docker") == (UID, GID, 0o700)
    assert not configure(docker, set_as_default=True).changed
    assert configure(docker, remove=True).changed
    assert not docker.path(f"{HOME}/.config/docker").exists()
    assert docker.path(f"{HOME}/.config").exists()
    assert not docker.path("/var/lib/gpufleet-nvidia/state").exists()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_what_is_there_stays_as_it_is(docker: Rootless, mode: int) -> None:
    docker.write(FILE, OLD, mode)
    docker.path(f"{HOME}/.config/docker").chmod(0o755)
    assert configure(docker, check_mode=True).changed
    assert docker.path(FILE).read_text() == OLD
    outcome = configure(docker)
    assert owner(docker, FILE) == (UID, GID, mode)
    assert owner(docker, f"{HOME}/.config/docker")[2] == 0o755
    (backup,) = outcome.backup_files
    assert str(backup["backup"]).startswith("/var/lib/gpufleet-nvidia/backups/")
    assert owner(docker, str(backup["backup"])) == (os.geteuid(), os.getegid(), 0o600)
    assert configure(docker, remove=True).changed
    assert docker.path(FILE).read_text() == OLD
    assert owner(docker, FILE) == (UID, GID, mode)


def test_a_link_among_the_users_own_folders(docker: Rootless) -> None:
    docker.write(f"{HOME}/dotfiles/daemon.json", OLD)
    docker.link(FILE, "../../dotfiles/daemon.json")
    configure(docker)
    assert docker.path(FILE).is_symlink()
    assert "nvidia" in docker.path(f"{HOME}/dotfiles/daemon.json").read_text()
    assert owner(docker, f"{HOME}/dotfiles/daemon.json") == (UID, GID, 0o644)


@needs_root
@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize(
    ("made", "target"), [(FILE, "/etc/docker/daemon.json"), (f"{HOME}/.config/docker", "/etc/docker")]
)
def test_a_planted_link_is_refused(docker: Rootless, made: str, target: str, remove: bool) -> None:
    text = f'{{"runtimes": {{"nvidia": {{"path": "{NVIDIA}"}}}}}}' if remove else OLD
    docker.write("/etc/docker/daemon.json", text)
    docker.link(made, target)
    for check_mode in (True, False):
        with pytest.raises(GpufleetError, match="belongs to the user with the number 0, not to alice"):
            configure(docker, check_mode, remove)
    assert docker.path("/etc/docker/daemon.json").read_text() == text
    assert not docker.path("/var/lib/gpufleet-nvidia").exists()


@needs_root
def test_a_unit_that_names_a_file_of_roots(docker: Rootless) -> None:
    docker.write("/etc/docker/daemon.json", OLD)
    docker.unit(EXEC_START + "--config-file /etc/docker/daemon.json")
    with pytest.raises(GpufleetError, match="not to alice"):
        configure(docker)
    assert docker.path("/etc/docker/daemon.json").read_text() == OLD


@needs_root
@pytest.mark.parametrize("moment", ["before the record", "before the file"])
@pytest.mark.parametrize("made", [FILE, f"{HOME}/.config/docker"])
def test_a_link_that_is_planted_in_between(
    docker: Rootless, monkeypatch: pytest.MonkeyPatch, made: str, moment: str
) -> None:
    """A user who watches can be quicker than any check."""
    docker.write("/etc/docker/daemon.json", OLD)
    docker.write(FILE, OLD)

    def plant(*_words: t.Any, **_more: t.Any) -> str:
        docker.path(made).rename(docker.path(f"{HOME}/aside"))
        docker.link(made, "/etc/docker" + made[len(f"{HOME}/.config/docker") :])
        return ""

    module = "ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer"
    if moment == "before the file":
        monkeypatch.setattr(f"{module}._backups.save", plant)
    else:
        monkeypatch.setattr(f"{module}.PlanWriter.obsolete_backups", lambda *_words: plant() or [])
        monkeypatch.setattr(f"{module}.PlanWriter.has_work", lambda *_words: True)
    with pytest.raises(GpufleetError):
        configure(docker)
    assert docker.path("/etc/docker/daemon.json").read_text() == OLD
    assert "nvidia" not in docker.path("/etc/docker/daemon.json").read_text()


@needs_root
def test_what_a_link_led_to_while_it_was_read_is_not_given_to_the_user(
    docker: Rootless, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.write("/root/secret.json", '{"auth": "c2VjcmV0"}', mode=0o600)
    docker.write(FILE, OLD)
    read = type(docker.host).read

    def swapped(host: t.Any, path: str, *most: int) -> bytes | None:
        return read(host, "/root/secret.json" if path == FILE else path, *most)

    monkeypatch.setattr(type(docker.host), "read", swapped)
    with pytest.raises(GpufleetError, match="exchanged while it was read"):
        configure(docker)
    assert docker.path(FILE).read_text() == OLD


# -- CDI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "settings", "flags", "warned"),
    [
        ("20.10.24", {}, "", False),
        ("25.0.3", {}, "", True),
        ("26.1.5", {}, "", True),
        ("27.3.1", {}, "", True),
        ("27.4", {}, "", False),
        ("27.4.0", {}, "", False),
        ("29.2.0", {}, "", False),
        ("26.1.5", {"cdi-spec-dirs": ["/home/alice/cdi"]}, "", False),
        ("26.1.5", {}, "--cdi-spec-dir /home/alice/cdi", False),
    ],
)
def test_specifications_that_it_does_not_see(
    docker: Rootless, version: str, settings: t.Any, flags: str, warned: bool
) -> None:
    docker.unit(EXEC_START + flags)
    docker.write(FILE, json.dumps(settings))
    options = Options(
        "docker", RuntimeRequest(enable_cdi=True), flavor="rootless", user="alice", engine_version=version
    )
    outcome = RuntimeConfiguration(options, docker.host, docker.run).execute(check_mode=False)
    assert json.loads(docker.path(FILE).read_text())["features"] == {"cdi": True}
    assert any("does not see the specifications" in words for words in outcome.warnings) is warned


@pytest.mark.parametrize("enable_cdi", [None, False])
def test_who_wants_no_cdi_is_not_warned(docker: Rootless, enable_cdi: bool | None) -> None:
    assert not any("specifications" in words for words in configure(docker, enable_cdi=enable_cdi).warnings)


# -- taking over -----------------------------------------------------------------------------------------------------


@pytest.fixture
def systemd(docker: Rootless, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[FakeSystemd]:
    """Her Docker runs with OLD."""
    monkeypatch.setattr(_bringing_up, "_PAUSE", 0.01)
    monkeypatch.setattr(_bringing_up, "_STEADY", 0.0)
    monkeypatch.setattr(_taking_over, "_HESITATION", 0.2)
    docker.write(FILE, OLD)
    found = alices_systemd(docker)
    with docker.answers(SOCKET):
        docker.give(SOCKET)
        yield found


def changed(systemd: FakeSystemd, **request: t.Any) -> tuple[Change, ...]:
    options = Options("docker", RuntimeRequest(**request), flavor="rootless", user="alice")
    outcome = RuntimeConfiguration(options, systemd.docker.host, systemd.run).execute(check_mode=False)
    return tuple(Change(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files)


def restart(systemd: FakeSystemd, **options: t.Any) -> Restarted:
    given = {"engine": "docker", "flavor": "rootless", "user": "alice", "timeout": 0.5, **options}
    return _restarting.restart(RestartOptions(**given), systemd.docker.host, systemd.run, False)


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_her_own_systemd_is_told(systemd: FakeSystemd, action: str) -> None:
    changes = changed(systemd, set_as_default=True)
    done = restart(systemd, action=action, rollback=changes, expect=Expectation(("nvidia",), "nvidia"))
    assert (done.state, done.mode, done.pid) == ("new", "systemd", PID)
    assert systemd.done(f"{systemd.prefix} systemctl --user {action} --no-block -- docker.service")
    assert not systemd.done("systemctl")


def test_a_restart_that_fails_is_taken_back(systemd: FakeSystemd) -> None:
    changes = changed(systemd)
    systemd.ends = lambda text: "failed" if "nvidia" in text else "active"
    systemd.journal = ["dockerd: no"]
    with pytest.raises(RestartError) as caught:
        restart(systemd, rollback=changes)
    assert caught.value.outcome.state == "old"
    assert systemd.docker.path(FILE).read_text() == OLD
    assert owner(t.cast("Rootless", systemd.docker), FILE) == (UID, GID, 0o644)
    (journal,) = {command for command in systemd.commands if command.startswith("journalctl")}
    assert journal.endswith(f" _UID={UID} _SYSTEMD_USER_UNIT=docker.service")


@needs_root
def test_the_way_back_follows_no_link_either(systemd: FakeSystemd) -> None:
    docker = t.cast("Rootless", systemd.docker)
    docker.write("/etc/docker/daemon.json", "{}")
    changes = changed(systemd)

    def plant(text: str) -> str:
        if "nvidia" in text:
            docker.path(FILE).unlink()
            docker.link(FILE, "/etc/docker/daemon.json")
        return "failed"

    systemd.ends = plant
    with pytest.raises(RestartError, match="COULD NOT BE PUT BACK"):
        restart(systemd, rollback=changes, validate="false")
    assert docker.path("/etc/docker/daemon.json").read_text() == "{}"


def test_containers_are_asked_for_and_no_units_of_the_host(systemd: FakeSystemd) -> None:
    systemd.kill_mode, systemd.dependants = "mixed", "containerd.service"
    systemd.docker.containers.append({"Names": ["/web"]})
    with pytest.raises(RestartError, match="stop running containers: web"):
        restart(systemd)
    systemd.docker.containers.clear()
    assert restart(systemd).state == "new"
    assert not [command for command in systemd.commands if "KillMode" in command or "RequiredBy" in command]


@pytest.mark.parametrize("running", [True, False])
def test_a_systemd_that_does_not_run(systemd: FakeSystemd, running: bool) -> None:
    systemd.docker.path(f"{RUNTIME}/systemd/private").unlink()
    if not running:
        systemd.docker.write(systemd.control_group, "")
    with pytest.raises(GpufleetError, match="loginctl enable-linger alice"):
        restart(systemd)
    assert not systemd.done("runuser")


@pytest.mark.parametrize("theirs", [True, False])
def test_a_signal_goes_to_dockerd_itself(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, theirs: bool) -> None:
    got: list[int] = []
    monkeypatch.setattr(_taking_over, "is_program", lambda _host, pid, _program: pid == PID)
    monkeypatch.setattr(_taking_over, "sender_of", lambda *_words: pytest.fail("whoever answers may be another's"))
    monkeypatch.setattr(_taking_over, "runs_as", lambda _host, pid, user: theirs and (pid, user.uid) == (PID, UID))

    def hang_up(_host: t.Any, pid: int, _program: str) -> None:
        got.append(pid)
        systemd.run(["chroot", "", *systemd.prefix.split(), "systemctl", "--user", "reload"])

    monkeypatch.setattr(_taking_over, "hang_up", hang_up)
    changed(systemd)
    if theirs:
        assert restart(systemd, action="reload", mode="signal").state == "new"
        assert got == [PID]
    else:
        with pytest.raises(RestartError, match="No process is known to be docker"):
            restart(systemd, action="reload", mode="signal")
        assert got == []
    assert ROOTLESSKIT_PID not in got


# -- two users -------------------------------------------------------------------------------------------------------


def test_each_user_has_records_of_their_own(docker: Rootless) -> None:
    bob = (1300, 1300) if os.geteuid() == 0 else (UID, GID)
    with docker.path("/etc/passwd").open("a", encoding="utf-8") as stream:
        stream.write(f"alice2:x:{bob[0]}:{bob[1]}::/home/alice2:/bin/sh\n")
    docker.path("/home/alice2").mkdir()
    os.chown(docker.path("/home/alice2"), *bob)
    configure(docker)
    options = Options("docker", RuntimeRequest(), flavor="rootless", user="alice2")
    RuntimeConfiguration(options, docker.host, docker.run).execute(check_mode=False)
    theirs = "/home/alice2/.config/docker/daemon.json"
    assert owner(docker, theirs)[:2] == bob
    configure(docker, remove=True)
    assert docker.path(theirs).exists()
    RuntimeConfiguration(options._replace(request=None), docker.host, docker.run).execute(check_mode=False)
    assert not docker.path("/home/alice2/.config").exists()
