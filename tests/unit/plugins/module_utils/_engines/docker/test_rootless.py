# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import RootlessDocker
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.info import describe_engines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import resolve_target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart import restart as restart_restart
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import Expectation, HealthProbe, Preflight
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import RestartError, RestartOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.rollback import ChangedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import PID
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rootless_hosts import (
    EXEC_START,
    FILE,
    GID,
    HOME,
    RUNTIME,
    SOCKET,
    UID,
    UNIT,
    Rootless,
    alices_host,
    alices_systemd,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.restart import RestartResult
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FakeSystemd

NVIDIA = "/usr/bin/nvidia-container-runtime"
DATA = f"{HOME}/.local/state/gpufleet-nvidia"
OLD = '{\n  "debug": true\n}\n'


@pytest.fixture
def docker() -> t.Iterator[Rootless]:
    with alices_host() as host:
        yield host


def configure(docker: Rootless, check_mode: bool = False, remove: bool = False, **asked: t.Any) -> ConfigureResult:
    request = None if remove else RuntimeRequest(**asked)
    options = Options("docker", request, flavor="rootless")
    return ConfigureEngine(options, docker.host, docker.run).execute(check_mode)


def owner(docker: Rootless, path: str) -> tuple[int, int, int]:
    status = docker.path(path).lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


# -- installation ----------------------------------------------------------------------------------------------------


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
    assert installation.warnings() == []
    assert {name: getattr(installation, name) for name in expected} == expected


def test_other_wrapper(docker: Rootless) -> None:
    docker.unit('/bin/sh -c "exec dockerd-rootless.sh" --config-file=/x')
    installation = RootlessDocker("alice").inspect(docker.host)
    assert installation.config_path == FILE
    assert "/bin/sh" in installation.warnings()[0]


@pytest.mark.parametrize("user", ["bob", "root"])
def test_refuses_other_users(docker: Rootless, user: str) -> None:
    with pytest.raises(NvidiaError, match=f"become: true and become_user: {user} for the task"):
        RootlessDocker(user).inspect(docker.host)
    options = Options("docker", RuntimeRequest(), user=user)
    with pytest.raises(NvidiaError, match=f"become_user: {user}"):
        ConfigureEngine(options, docker.host, docker.run)


@pytest.mark.parametrize(
    "options", [{"user": "alice"}, {"flavor": "rootless"}, {"flavor": "rootless", "user": "alice"}]
)
def test_resolve_target(docker: Rootless, options: dict[str, str]) -> None:
    assert str(resolve_target(docker.host, "docker", **options)) == "docker/rootless/alice"
    # Without these options, the target is the system's Docker if it is installed.
    assert str(resolve_target(docker.host, "docker")) == "docker"


def described(docker: Rootless) -> dict[str, t.Any]:
    found, _needed = describe_engines(docker.host, docker.run)
    return next(engine for engine in found if engine["target"] == "docker/rootless/alice")


@pytest.mark.parametrize(
    ("unit", "program"),
    [
        (["/usr/bin/dockerd-rootless.sh", "Environment=PATH=%h/bin:/usr/bin"], f"{HOME}/bin/dockerd"),
        (["/usr/bin/dockerd-rootless.sh", "Environment=DOCKERD=/opt/dockerd"], "/opt/dockerd"),
        (["/usr/bin/dockerd-rootless.sh", "Environment=PATH=/opt"], "/opt/dockerd"),
        # The unit that the script of https://get.docker.com/rootless writes.
        (["%h/bin/dockerd-rootless.sh", "Environment=PATH=%h/bin:/sbin:/usr/sbin:/usr/bin"], f"{HOME}/bin/dockerd"),
        (["%h/bin/dockerd-rootless.sh"], f"{HOME}/bin/dockerd"),
        (["/usr/bin/dockerd-rootless.sh"], "/usr/bin/dockerd"),
    ],
)
def test_program_of_user(docker: Rootless, unit: list[str], program: str) -> None:
    for path in (f"{HOME}/bin/dockerd", f"{HOME}/bin/dockerd-rootless.sh", "/opt/dockerd"):
        docker.write(path, mode=0o755)
    docker.unit(*unit)
    installation = RootlessDocker("alice").inspect(docker.host)
    assert (installation.binary, installation.installed) == (program, True)
    description = described(docker)
    assert (description["installed"], description["binary"], description["version"], description["inspected"]) == (
        True,
        program,
        "26.1.5",
        True,
    )
    docker.commands.clear()
    assert configure(docker, check_mode=True).changed
    assert {argv[2] for argv in docker.commands} == {program}


def test_unreadable_records_of_root(docker: Rootless) -> None:
    """alice cannot read the records of root, and the Docker of another user, bob, runs."""
    docker.path("/var/lib/gpufleet-nvidia/state").mkdir(parents=True, mode=0)
    with docker.path("/etc/passwd").open("a", encoding="utf-8") as stream:
        stream.write("bob:x:54321:54321::/home/bob:/bin/sh\n")
    docker.write("/proc/99/comm", "dockerd\n")
    docker.write("/proc/99/status", "Uid:\t54321\t54321\t54321\t54321\n")
    found, _needed = describe_engines(docker.host, docker.run)
    inspected = {engine["target"]: engine["inspected"] for engine in found}
    assert inspected == {"docker": True, "docker/rootless/alice": True, "docker/rootless/bob": False}
    docker.path("/var/lib/gpufleet-nvidia/state").chmod(0o700)


def test_installed(docker: Rootless) -> None:
    engine = RootlessDocker("alice")
    assert engine.inspect(docker.host).installed
    docker.path("/usr/bin/dockerd").unlink()
    assert not engine.inspect(docker.host).installed
    docker.runs()
    assert engine.inspect(docker.host).installed


def test_program_without_unit(docker: Rootless) -> None:
    docker.path(UNIT).unlink()
    installation = RootlessDocker("alice").inspect(docker.host)
    assert (installation.binary, installation.installed) == ("/usr/bin/dockerd", False)


def test_restores_file_after_unit_was_removed(docker: Rootless) -> None:
    docker.write(FILE, OLD)
    configure(docker)
    docker.path(UNIT).unlink()
    description = described(docker)
    assert (description["installed"], description["recorded_files"]) == (False, [FILE])
    assert str(resolve_target(docker.host, "docker", "rootless")) == "docker/rootless/alice"
    configure(docker, remove=True)
    assert docker.path(FILE).read_text() == OLD


# -- the running daemon -----------------------------------------------------------------------------------------------


def test_live_state(docker: Rootless) -> None:
    docker.runs()
    with docker.answers(SOCKET):
        engine = RootlessDocker("alice")
        installation = engine.inspect(docker.host)
        live = engine.live(docker.host, installation)
        assert installation.pid == PID
        assert live is not None
        assert (live.version, live.default_runtime) == ("26.1.5", "runc")


def test_live_restore_is_ignored(docker: Rootless) -> None:
    docker.runs()
    docker.write(FILE, '{"live-restore": true}')
    docker.containers.append({"Names": ["/web"]})
    with docker.answers(SOCKET):
        engine = RootlessDocker("alice")
        installation = engine.inspect(docker.host)
        assert engine.containers_stopped_by_restart(docker.host, installation) == ["web"]
        preflight = Preflight(HealthProbe(engine, docker.host), installation, None, lambda _argv: (1, "", ""))
        refusal = preflight.disruption_reason()
    assert "would stop running containers: web. docker was not restarted. Stop these containers, or set" in refusal


def test_an_unknown_state_of_containers_names_the_unit_of_the_user(docker: Rootless) -> None:
    docker.runs()
    engine = RootlessDocker("alice")
    preflight = Preflight(
        HealthProbe(engine, docker.host), engine.inspect(docker.host), None, lambda _argv: (1, "", "")
    )
    assert "Run `systemctl --user status docker.service`" in preflight.disruption_reason()


# -- files -----------------------------------------------------------------------------------------------------------


def test_owner_of_new_files(docker: Rootless) -> None:
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
    assert not docker.path(f"{DATA}/state").exists()
    assert not docker.path("/var/lib/gpufleet-nvidia").exists()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_mode_of_existing_files(docker: Rootless, mode: int) -> None:
    docker.write(FILE, OLD, mode)
    docker.path(f"{HOME}/.config/docker").chmod(0o755)
    assert configure(docker, check_mode=True).changed
    assert docker.path(FILE).read_text() == OLD
    outcome = configure(docker)
    assert owner(docker, FILE) == (UID, GID, mode)
    assert owner(docker, f"{HOME}/.config/docker")[2] == 0o755
    (backup,) = outcome.backup_files
    assert str(backup["backup"]).startswith(f"{DATA}/backups/")
    assert owner(docker, str(backup["backup"])) == (UID, GID, 0o600)
    (record,) = docker.path(f"{DATA}/state").glob("rootless-alice-*")
    assert owner(docker, f"{DATA}/state/{record.name}") == (UID, GID, 0o600)
    assert owner(docker, f"{DATA}/state")[2] == owner(docker, f"{DATA}/backups")[2] == 0o700
    assert configure(docker, remove=True).changed
    assert docker.path(FILE).read_text() == OLD
    assert owner(docker, FILE) == (UID, GID, mode)


def test_linked_file(docker: Rootless) -> None:
    docker.write(f"{HOME}/dotfiles/daemon.json", OLD)
    docker.link(FILE, "../../dotfiles/daemon.json")
    configure(docker)
    assert docker.path(FILE).is_symlink()
    assert "nvidia" in docker.path(f"{HOME}/dotfiles/daemon.json").read_text()
    assert owner(docker, f"{HOME}/dotfiles/daemon.json") == (UID, GID, 0o644)


# -- CDI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "settings", "flags", "warned"),
    [
        ("20.10.24", {}, "", False),
        ("25.0.7", {}, "", True),
        ("25.0.8", {}, "", False),
        ("25.0.17", {}, "", False),
        ("26.0.0", {}, "", True),
        ("26.1.5", {}, "", True),
        ("27.3.1", {}, "", True),
        ("27.4", {}, "", False),
        ("27.4.0", {}, "", False),
        ("29.2.0", {}, "", False),
        ("26.1.5", {"cdi-spec-dirs": ["/home/alice/cdi"]}, "", False),
        ("26.1.5", {}, "--cdi-spec-dir /home/alice/cdi", False),
    ],
)
def test_warns_about_hidden_specifications(
    docker: Rootless, version: str, settings: t.Any, flags: str, warned: bool
) -> None:
    docker.unit(EXEC_START + flags)
    docker.write(FILE, json.dumps(settings))
    options = Options("docker", RuntimeRequest(enable_cdi=True), flavor="rootless", engine_version=version)
    outcome = ConfigureEngine(options, docker.host, docker.run).execute(check_mode=False)
    assert json.loads(docker.path(FILE).read_text())["features"] == {"cdi": True}
    assert any("cannot read the CDI specifications" in warning for warning in outcome.warnings) is warned


@pytest.mark.parametrize("enable_cdi", [None, False])
def test_no_warning_without_cdi(docker: Rootless, enable_cdi: bool | None) -> None:
    assert not any("specifications" in warning for warning in configure(docker, enable_cdi=enable_cdi).warnings)


# -- restart ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def systemd(docker: Rootless, skips_pauses: None) -> t.Iterator[FakeSystemd]:  # noqa: ARG001
    """alice's Docker runs with the daemon.json OLD."""
    docker.write(FILE, OLD)
    found = alices_systemd(docker)
    with docker.answers(SOCKET):
        yield found


def changed(systemd: FakeSystemd, **request: t.Any) -> tuple[ChangedFile, ...]:
    options = Options("docker", RuntimeRequest(**request), flavor="rootless")
    outcome = ConfigureEngine(options, systemd.docker.host, systemd.run).execute(check_mode=False)
    return tuple(ChangedFile(str(file["path"]), file["backup"], file["checksum"]) for file in outcome.backup_files)


def restart(systemd: FakeSystemd, **options: t.Any) -> RestartResult:
    given = {"engine": "docker", "flavor": "rootless", "timeout": 6.0, **options}
    return restart_restart.restart(RestartOptions(**given), systemd.docker.host, systemd.run, False)


@pytest.mark.parametrize("action", ["restart", "reload"])
def test_restart_with_systemd_of_user(systemd: FakeSystemd, action: str) -> None:
    changes = changed(systemd, set_as_default=True)
    done = restart(systemd, action=action, rollback=changes, expect=Expectation(("nvidia",), "nvidia"))
    assert (done.state, done.mode, done.pid) == ("applied", "systemd", PID)
    assert systemd.done(f"{systemd.prefix} systemctl --user {action} --no-block -- docker.service")
    assert not systemd.done("systemctl")


def test_rollback(systemd: FakeSystemd) -> None:
    changes = changed(systemd)
    systemd.ends = lambda text: "failed" if "nvidia" in text else "active"
    systemd.journal = ["dockerd: no"]
    with pytest.raises(RestartError) as caught:
        restart(systemd, rollback=changes)
    assert caught.value.result.state == "rolled_back"
    assert systemd.docker.path(FILE).read_text() == OLD
    assert owner(t.cast("Rootless", systemd.docker), FILE) == (UID, GID, 0o644)
    (journal,) = {command for command in systemd.commands if command.startswith("journalctl")}
    assert journal.endswith(" --user-unit=docker.service")


def test_refuses_to_stop_containers(systemd: FakeSystemd) -> None:
    systemd.kill_mode, systemd.dependent_units = "mixed", "containerd.service"
    systemd.docker.containers.append({"Names": ["/web"]})
    with pytest.raises(RestartError, match="stop running containers: web"):
        restart(systemd)
    systemd.docker.containers.clear()
    assert restart(systemd).state == "applied"
    assert not [command for command in systemd.commands if "KillMode" in command or "RequiredBy" in command]


@pytest.mark.parametrize("running", [True, False])
def test_systemd_of_user_does_not_run(systemd: FakeSystemd, running: bool) -> None:
    systemd.docker.path(f"{RUNTIME}/systemd/private").unlink()
    if not running:
        systemd.docker.write(systemd.control_group, "")
    with pytest.raises(NvidiaError, match="loginctl enable-linger alice"):
        restart(systemd)
    assert not systemd.done("env")


def test_signal(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    monkeypatch.setattr(processes, "runs_program", lambda _host, pid, _program: pid == PID)
    monkeypatch.setattr(processes, "peer_pid", lambda *_arguments: pytest.fail("its process is known by its unit"))

    def send_sighup(_host: t.Any, pid: int, _program: str) -> None:
        got.append(pid)
        systemd.run(["chroot", "", *systemd.prefix.split(), "systemctl", "--user", "reload"])

    monkeypatch.setattr(processes, "send_sighup", send_sighup)
    changed(systemd)
    assert restart(systemd, action="reload", mode="signal").state == "applied"
    # Not RootlessKit, the main process of the unit.
    assert got == [PID]
