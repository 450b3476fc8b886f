# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import ConfiguredState, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import CONTAINERD
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._restart.health import (
    Expectation,
    HealthProbe,
    Preflight,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.bundles import bundle
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import CONTROL_GROUP, PID, UNIT
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.restarts import (
    NVIDIA,
    OLD,
    configure,
    failure,
    restart,
)

if t.TYPE_CHECKING:
    from pathlib import Path

SILENT = LiveState("", {}, "", runtimes_unknown=True)

# -- the checks before a restart -------------------------------------------------------------------------------------


def remove_program(systemd: FakeSystemd) -> None:
    systemd.docker.path("/usr/bin/nvidia-container-runtime").unlink()


def reject(systemd: FakeSystemd) -> None:
    systemd.validates = lambda text: "unknown key" if "nvidia" in text else ""


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(remove_program, "is not an executable file"), (reject, f"the validator of docker rejects {FILE}: unknown key")],
)
@pytest.mark.parametrize("action", ["restart", "reload"])
def test_restores_files_with_which_the_engine_would_not_start(
    systemd: FakeSystemd, fault: t.Callable[[FakeSystemd], None], reason: str, action: str
) -> None:
    changes = configure(systemd)
    fault(systemd)
    message, result = failure(systemd, action=action, rollback=changes)
    assert message.startswith(f"docker was not {action}ed: ")
    assert reason in message
    assert systemd.text == OLD
    assert (result.state, result.attempts, result.rolled_back) == ("rolled_back", 0, True)
    assert not systemd.done("systemctl re")


@pytest.mark.parametrize(
    ("fault", "options"), [(remove_program, {"require_runtime": False}), (reject, {"validate": "false"})]
)
def test_checks_can_be_disabled(
    systemd: FakeSystemd, fault: t.Callable[[FakeSystemd], None], options: dict[str, t.Any]
) -> None:
    configure(systemd)
    fault(systemd)
    assert restart(systemd, **options).state == "applied"


def test_a_missing_program_of_the_unit_is_not_a_fault_of_the_files(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.docker.path("/usr/bin/dockerd").unlink()
    with pytest.raises(NvidiaError, match=r"starts /usr/bin/dockerd, which is not an executable file"):
        restart(systemd, rollback=changes)
    assert "nvidia" in systemd.text
    assert not systemd.done("systemctl re")


def test_a_required_validator_must_exist(systemd: FakeSystemd) -> None:
    changes = configure(systemd)
    systemd.validates = lambda _text: "unknown flag: --validate"
    with pytest.raises(NvidiaError, match="has no validator"):
        restart(systemd, rollback=changes, validate="true")
    assert "nvidia" in systemd.text
    assert restart(systemd, rollback=changes).state == "applied"


# -- containers that a restart would stop ----------------------------------------------------------------------------


@pytest.mark.parametrize("check_mode", [False, True])
def test_refuses_to_stop_running_containers(busy: FakeSystemd, check_mode: bool) -> None:
    changes = configure(busy)
    text = busy.text
    message, result = failure(busy, check_mode, rollback=changes)
    assert "would stop running containers: 0123456789ab, db, web." in message
    # The daemon still runs with the previous file.
    assert (result.state, result.changed, busy.text) == ("rolled_back", False, text)
    assert not busy.done("systemctl restart")
    assert restart(busy, check_mode, rollback=changes, allow_disruption=True).changed


def test_lists_only_some_of_many_containers(busy: FakeSystemd) -> None:
    busy.docker.containers[:] = [{"Names": [f"/c{number}"]} for number in range(10, 25)]
    assert "c18, c19 and 5 more." in failure(busy)[0]


def test_a_reload_stops_no_containers(busy: FakeSystemd) -> None:
    changes = configure(busy)
    assert restart(busy, action="reload", rollback=changes, expect=NVIDIA).state == "applied"


@pytest.mark.parametrize(
    ("live", "text", "kept"),
    [
        (True, '{"live-restore": true}', True),
        # The daemon that starts would stop them.
        (True, "{}", False),
        (False, '{"live-restore": true}', False),
    ],
)
def test_live_restore_must_be_on_before_and_after(busy: FakeSystemd, live: bool, text: str, kept: bool) -> None:
    busy.docker.info["LiveRestoreEnabled"] = live
    busy.docker.write(FILE, text)
    if kept:
        assert restart(busy).state == "applied"
    else:
        assert "would stop" in failure(busy)[0]


@pytest.mark.parametrize(
    ("flags", "kept"),
    [("--live-restore", True), ("--live-restore=true -D", True), ("--live-restore --live-restore=false", False)],
)
def test_live_restore_may_be_a_flag(busy: FakeSystemd, flags: str, kept: bool) -> None:
    busy.docker.info["LiveRestoreEnabled"] = True
    busy.docker.write(UNIT, f"[Service]\nExecStart=/usr/bin/dockerd -H fd:// {flags}\n")
    assert (DOCKER.containers_stopped_by_restart(busy.docker.host, DOCKER.inspect(busy.docker.host)) == []) is kept


def test_refuses_to_restart_an_engine_that_does_not_report_its_containers(systemd: FakeSystemd) -> None:
    systemd.docker.write("/usr/lib/systemd/system/docker.socket", "[Socket]\nListenStream=/run/other.sock\n")
    message, result = failure(systemd)
    assert "unknown which containers" in message
    assert result.state == "unknown"


@pytest.mark.parametrize("check_mode", [False, True])
def test_refuses_to_take_gpus_of_the_legacy_hook(systemd: FakeSystemd, check_mode: bool) -> None:
    changes = configure(systemd)
    systemd.docker.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/one/config.json", bundle())
    systemd.needs_reload = True
    message, result = failure(systemd, check_mode, rollback=changes)
    assert "the containers containerd/k8s.io/one lose the GPUs" in message
    assert (result.state, result.changed) == ("rolled_back", False)
    assert not systemd.done("systemctl daemon-reload")
    assert not systemd.done("systemctl restart")
    if not check_mode:
        result = restart(systemd, rollback=changes, allow_disruption=True)
        assert (result.state, result.daemon_reloaded) == ("applied", True)
        assert any("containerd/k8s.io/one have lost the GPUs" in warning for warning in result.warnings)
        # A unit that has not changed needs no reload of the units.
        result = restart(systemd)
        assert (result.state, result.daemon_reloaded, result.warnings) == ("applied", False, ())


def test_dependent_units_have_containers_too(busy: FakeSystemd) -> None:
    host = busy.docker.host
    preflight = Preflight(HealthProbe(CONTAINERD, host), CONTAINERD.inspect(host), None, busy.run)
    assert preflight.disruption_reason() == ""
    assert preflight.disruption_reason(["nginx.service"]) == ""
    assert "A restart of docker would stop running containers" in preflight.disruption_reason(["docker.service"])


def test_refuses_to_kill_container_processes(systemd: FakeSystemd) -> None:
    processes = f"{PID}\n5\n6\n"
    systemd.docker.write("/proc/5/comm", "containerd-shim-runc-v2\n")
    systemd.docker.write("/proc/6/comm", "docker-proxy\n")
    systemd.docker.write(CONTROL_GROUP, processes)
    assert restart(systemd).state == "applied"
    systemd.docker.write(CONTROL_GROUP, processes)
    systemd.kill_mode = "control-group"
    assert "would kill 1 container process, because" in failure(systemd)[0]
    assert restart(systemd, allow_disruption=True).state == "applied"


# -- the running engine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expectation", "state", "unmet"),
    [
        (Expectation(), ConfiguredState(), []),
        # For a daemon that does not report its runtimes, the files are used.
        (Expectation(("nvidia",), "nvidia"), ConfiguredState({"nvidia": {}}, "nvidia"), []),
        (Expectation(("nope",)), ConfiguredState({"nvidia": {}}), ["the runtime nope is missing"]),
        (Expectation((), "nvidia"), ConfiguredState({"nvidia": {}}), ["its default runtime is runc, not nvidia"]),
        (Expectation(cdi=True), ConfiguredState(cdi=False), ["CDI is off"]),
        (Expectation(cdi=True), ConfiguredState(), []),
        (
            Expectation(("nvidia",)),
            ConfiguredState(lists_runtimes=False),
            ["its CRI is disabled, so it has no runtimes"],
        ),
        (Expectation((), "runc"), ConfiguredState(lists_runtimes=False), []),
    ],
)
def test_expectations_of_an_engine_that_reports_nothing(
    expectation: Expectation, state: ConfiguredState, unmet: list[str]
) -> None:
    assert expectation.unmet(CONTAINERD, SILENT, state) == unmet


def test_accepts_the_old_name_of_the_default_runtime() -> None:
    live = LiveState("1.7.24", {"runc": "runc"}, "default")
    assert Expectation((), "runc").unmet(CONTAINERD, live, ConfiguredState()) == []
    assert Expectation((), "runc").unmet(DOCKER, live, ConfiguredState()) != []


@pytest.fixture
def containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HealthProbe:
    """A containerd that runs and whose CRI does not answer."""
    for path, text in {
        "/usr/lib/systemd/system/containerd.service": "[Service]\nExecStart=/usr/bin/containerd\n",
        "/sys/fs/cgroup/system.slice/containerd.service/cgroup.procs": "77\n",
        "/proc/77/comm": "containerd\n",
    }.items():
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setattr(cri, "runtime_config", lambda _socket: None)
    return HealthProbe(CONTAINERD, HostFS(str(tmp_path), live=True))


@pytest.mark.parametrize(
    ("plugin", "problem", "check"),
    [
        (cri.Plugin("io.containerd.grpc.v1", "cri", "bad"), "its CRI failed to load", "cri-loaded"),
        (cri.Plugin("io.containerd.grpc.v1", "cri", ""), "its CRI does not answer", "cri-answers"),
        (cri.Plugin("io.containerd.snapshotter.v1", "zfs", ""), "its CRI is disabled", "cri-enabled"),
    ],
)
def test_reports_a_health_problem_of_the_engine(
    containerd: HealthProbe, monkeypatch: pytest.MonkeyPatch, plugin: cri.Plugin, problem: str, check: str
) -> None:
    monkeypatch.setattr(cri, "list_plugins", lambda _socket: [plugin])
    result = containerd.check_applied(Expectation(), "1.7.24")
    assert result.reasons.startswith(problem)
    assert (result.pid, result.check, result.final) == (77, check, check != "cri-answers")
    # Without the files, it is unknown whether the CRI should be there.
    result = containerd.check_health()
    assert (result.pid, result.check) == (77, "" if check == "cri-enabled" else check)
    assert bool(result.problems) is bool(result.check)
