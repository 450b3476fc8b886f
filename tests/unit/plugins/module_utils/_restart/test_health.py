# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
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
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree
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


def unit_of(command: str, *settings: str) -> str:
    return "\n".join(["[Service]", *settings, f"ExecStart={command}", ""])


CONTAINERD_CONFIG, CONTAINERD_DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/50.toml"
K3S_SETTINGS, K3S_DROP_IN = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d/50.yaml"
K3S_GENERATED = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
K0S_DROP_IN = "/etc/k0s/containerd.d/50.toml"
MICROK8S = "/var/snap/microk8s/current/args/containerd-template.toml"
CRIO_CONFIG, CRIO_DROP_IN = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/50"
CRIO_UNIT, RKE2_UNIT = (f"/etc/systemd/system/{name}.service" for name in ("crio", "rke2-agent"))
DOCKER_DROP_IN = "/etc/systemd/system/docker.service.d/runtime.conf"
CRI_2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'
CRI_3 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd]\n'
IMPORTS = 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
# A default runtime whose program is missing.
X = 'default_runtime_name = "x"\nruntimes.x.options.BinaryName = "/usr/bin/x"\n'
# Engine, flavor, version, files, and the file or unit that sets the default runtime x.
SOURCES: dict[str, tuple[str, str, str, dict[str, str], str]] = {
    "docker": ("docker", "system", "28.5.2", {FILE: '{"default-runtime": "x"}'}, FILE),
    "docker, a flag": (
        "docker", "system", "28.5.2",
        {"/usr/lib/systemd/system/docker.service": unit_of("/usr/bin/dockerd"),
         DOCKER_DROP_IN: unit_of("/usr/bin/dockerd --default-runtime=x", "ExecStart=")},
        "the unit docker.service",
    ),
    "containerd 1": ("containerd", "system", "1.7.24", {CONTAINERD_CONFIG: CRI_2 + X}, CONTAINERD_CONFIG),
    "containerd 2": (
        "containerd", "system", "2.1.4", {CONTAINERD_CONFIG: IMPORTS, CONTAINERD_DROP_IN: CRI_3 + X},
        CONTAINERD_DROP_IN,
    ),
    "k3s": (
        "containerd", "k3s", "1.31.9", {K3S_GENERATED: CRI_2 + X, K3S_DROP_IN: "default-runtime: x\n"}, K3S_DROP_IN,
    ),
    "k3s, a template": (
        "containerd", "k3s", "1.31.9",
        {K3S_GENERATED: CRI_2 + X, f"{K3S_GENERATED}.tmpl": CRI_2 + X, K3S_SETTINGS: "default-runtime: nvidia\n"},
        f"{K3S_GENERATED}.tmpl",
    ),
    "rke2, a flag": (
        "containerd", "rke2", "1.31.9", {RKE2_UNIT: unit_of("/usr/local/bin/rke2 agent --default-runtime=x")},
        "the unit rke2-agent.service",
    ),
    "k0s": ("containerd", "k0s", "1.33.1", {K0S_DROP_IN: CRI_2 + X}, K0S_DROP_IN),
    "microk8s": ("containerd", "microk8s", "1.7.24", {MICROK8S: CRI_2 + X}, MICROK8S),
    "crio": (
        "crio", "system", "1.33.0", {CRIO_CONFIG: "", CRIO_DROP_IN: '[crio.runtime]\ndefault_runtime = "x"\n'},
        CRIO_DROP_IN,
    ),
    "crio, a variable": (
        "crio", "system", "1.33.0",
        {CRIO_UNIT: unit_of("/usr/bin/crio", "Environment=CONTAINER_DEFAULT_RUNTIME=x")}, "the unit crio.service",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCES)
def test_names_the_file_that_sets_the_default_runtime(tmp_path: Path, case: str) -> None:
    name, flavor, version, files, source = SOURCES[case]
    programs = dict.fromkeys(["/usr/bin/dockerd", "/usr/bin/crio", "/usr/local/bin/rke2"], "")
    tree = EngineTree(tmp_path, name, flavor, {**programs, **files}, live=False)
    probe = HealthProbe(engines_registry.resolve_target(tree.host, name, flavor).load(), tree.host)
    preflight = Preflight(probe, probe.inspect(), version, tree.run)

    problem = preflight.config_problem("false", require_runtime=True)

    is_defined = any(X in text for text in files.values())
    expected = "/usr/bin/x, the program of the default runtime x, is" if is_defined else "the default runtime x is"
    assert problem.startswith(f"{source}: {expected} not ")


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


def test_a_rollback_restarts_an_engine_that_does_not_report_its_containers(systemd: FakeSystemd) -> None:
    changes, unit = configure(systemd), "/usr/lib/systemd/system/docker.socket"

    def started() -> None:
        socket = "/run/other.sock" if "nvidia" in systemd.text else "/run/docker.sock"
        systemd.docker.write(unit, f"[Socket]\nListenStream={socket}\n")

    systemd.started = started
    message, result = failure(systemd, rollback=changes, retries=0)
    assert "it does not answer on /run/other.sock. The previous files are restored. docker works with them." in message
    assert (result.state, result.attempts, systemd.text) == ("rolled_back", 2, OLD)


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
