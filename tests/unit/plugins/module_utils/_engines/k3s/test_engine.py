# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import MissingPackageError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    ConfiguredState,
    LiveState,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.info import describe_engines
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s.engine import K3S, RKE2
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.program_version import ask_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri as rpc_cri
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_cri import SOCKET, cri_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rancher_hosts import (
    ENGINES,
    OPERATOR,
    RancherHost,
    generated,
)

if t.TYPE_CHECKING:
    from pathlib import Path

BOTH = pytest.mark.parametrize("program", ["k3s", "rke2"])


def test_registry() -> None:
    assert Target("containerd", "k3s").load() is K3S
    assert Target("containerd", "rke2").load() is RKE2
    assert (K3S.name, K3S.flavor, K3S.key) == ("containerd", "k3s", "k3s")
    assert K3S.drop_in_path == "/etc/rancher/k3s/config.yaml.d/99-gpufleet-nvidia.yaml"
    assert RKE2.config_path == "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"


# -- installation ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("role", ["server", "agent"])
def test_inspect(tmp_path: Path, program: str, role: str) -> None:
    node = RancherHost(tmp_path, program)
    name = node.unit(role)
    node.runs(name, f"{program}-{role}", "containerd", "containerd-shim-runc-v2")
    found = node.inspect()
    assert found.service == name
    assert found.unit is not None
    assert found.unit.name == name
    assert found.binary == ENGINES[program][1]
    assert found.pid == 101
    assert found.socket == "/run/k3s/containerd/containerd.sock"
    assert found.config_path == f"/var/lib/rancher/{program}/agent/etc/containerd/config.toml"
    assert found.warnings() == []


def test_selects_unit(tmp_path: Path) -> None:
    node = RancherHost(tmp_path, "rke2")
    assert node.inspect().service == "rke2-server.service"
    node.unit("agent")
    assert node.inspect().service == "rke2-agent.service"
    node.unit("server")
    assert node.inspect().service == "rke2-server.service"
    agent = node.unit("agent", enabled=True)
    assert node.inspect().service == agent
    # Shims of containers stay in the control group of a stopped engine.
    node.runs("rke2-server.service", "containerd-shim-runc-v2")
    assert node.inspect().service == agent
    node.runs("rke2-server.service", "rke2")
    assert node.inspect().service == "rke2-server.service"
    node.runs("rke2-server.service", "containerd-shim", "containerd")
    assert node.inspect().service == "rke2-server.service"
    assert node.inspect("rke2-agent").service == agent


def test_inspect_without_distribution(tmp_path: Path) -> None:
    found = RKE2.inspect(RancherHost(tmp_path, "k3s").host)
    assert (found.binary, found.unit, found.pid) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "files", "folder"),
    [
        (["--data-dir", "/data/k3s"], {}, "/data/k3s"),
        (["--data-dir=/data/k3s"], {}, "/data/k3s"),
        ([], {"/etc/rancher/k3s/config.yaml": "token: x\ndata-dir: /data/k3s\n"}, "/data/k3s"),
        ([], {"/etc/default/k3s": "K3S_DATA_DIR='/data/k3s'\n"}, "/data/k3s"),
        ([], {"/etc/systemd/system/k3s.service.env": "K3S_DATA_DIR=/data/k3s\n"}, "/data/k3s"),
        # The file of the installer is read last.
        (
            [],
            {"/etc/default/k3s": "K3S_DATA_DIR=/a\n", "/etc/systemd/system/k3s.service.env": "K3S_DATA_DIR=/b\n"},
            "/b",
        ),
        ([], {"/etc/default/k3s": "# K3S_DATA_DIR=/a\nK3S_DATA_DIR=/data'\n"}, "/data'"),
    ],
)
def test_inspect_another_data_dir(tmp_path: Path, flags: list[str], files: dict[str, str], folder: str) -> None:
    node = RancherHost(tmp_path)
    node.unit("server", *flags)
    for path, text in files.items():
        node.write(path, text)
    node.runs("k3s.service", "containerd")
    assert node.inspect().config_path == f"{folder}/agent/etc/containerd/config.toml"
    node.generate("nvidia", folder=folder)
    assert set(node.state().runtimes) == {"runc", "nvidia"}


@pytest.mark.parametrize(
    ("program", "output", "version"),
    [
        ("k3s", "k3s version v1.30.4+k3s1 (98262b5d)\ngo version go1.22.5\n", "1.30.4+k3s1"),
        ("rke2", "rke2 version v1.32.5+rke2r1 (3a4ad1d2a4)\ngo version go1.23.8 X:boringcrypto\n", "1.32.5+rke2r1"),
    ],
)
def test_version(tmp_path: Path, program: str, output: str, version: str) -> None:
    node = RancherHost(tmp_path, program)
    node.unit()
    assert ask_version(node.engine, node.inspect(), node.host, lambda _argv: (0, output, "")) == version


@pytest.mark.parametrize(
    ("build", "fails"),
    [
        ("1.28.3+k3s1", True),
        ("1.27.7+k3s1", True),
        ("1.26.10+k3s1", True),
        ("1.25.15+k3s1", True),
        ("1.28.3+k3s2", False),
        ("1.28.4+k3s1", False),
        ("1.28.3+rke2r1", False),
    ],
)
def test_release_that_ends_with_nvidias_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, fails: bool
) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    node.generate()
    monkeypatch.setattr(node, "run", lambda _argv: (0, f"k3s version v{build} (98262b5d)", ""))
    before = node.files()
    (found,) = describe_engines(node.host, node.run)[0]
    assert [problem["code"] for problem in found["problems"]] == ["engine-release-fails"] * fails
    if fails:
        assert found["problems"][0]["advice"].startswith("Upgrade K3s")
        match = (
            r"\.toml.* was not changed\. K3s .* Upgrade K3s to 1\.[0-9.]+\+k3s2 or newer before you install the toolkit"
        )
        with pytest.raises(NvidiaError, match=match):
            node.present()
    else:
        node.present()
    assert node.files() == before
    node.absent()


def test_release_in_engine_version(tmp_path: Path) -> None:
    node = RancherHost(tmp_path)
    node.live = False
    with pytest.raises(NvidiaError, match=r"K3s 1\.28\.3\+k3s1 does not start"):
        node.present(options={"engine_version": "v1.28.3+k3s1"})


@pytest.mark.parametrize(
    ("runtime", "default", "known"),
    [
        ("runc", None, True),
        ("runc", "nvidia", True),
        # The setting accepts only runtimes that were found.
        ("runc", "runc", False),
        ("nvidia", "nvidia", True),
        ("nvidia-cdi", "nvidia-cdi", False),
        ("crun", None, False),
    ],
)
def test_defines_runtime(runtime: str, default: str | None, known: bool) -> None:
    state = ConfiguredState({"nvidia": {"path": NVIDIA}}, default)
    assert K3S.defines_runtime(runtime, state, (1, 30, 4)) is known


# -- live state --------------------------------------------------------------------------------------------------------


def running(root: Path, **given: t.Any) -> RancherHost:
    node = RancherHost(root, **given)
    node.runs(node.unit(), "k3s-server", "containerd")
    return node


def set_report(monkeypatch: pytest.MonkeyPatch, config: t.Any) -> None:
    monkeypatch.setattr(rpc_cri, "runtime_config", lambda _path: config)
    monkeypatch.setattr(rpc_cri, "version", lambda _path: "v1.7.21-k3s2")


def report(default: str = "runc", **programs: str) -> dict[str, t.Any]:
    runtimes = {name.replace("_", "-"): {"options": {"BinaryName": path}} for name, path in programs.items()}
    return {"containerd": {"defaultRuntimeName": default, "runtimes": {"runc": {"options": {}}, **runtimes}}}


def test_live() -> None:
    with cri_host() as cri:
        node = running(cri.root)
        cri.config = report("nvidia", nvidia=NVIDIA)
        installation = node.inspect()._replace(socket=SOCKET)
        with cri.answers():
            live = K3S.live(node.host, installation)
    assert live is not None
    assert live.runtimes == {"runc": "", "nvidia": NVIDIA}
    assert (live.default_runtime, live.runtimes_unknown) == ("nvidia", False)
    # A version of containerd must not be used as one of K3s.
    assert live.version == ""


def test_live_without_a_process(tmp_path: Path) -> None:
    node = RancherHost(tmp_path)
    node.runs(node.unit(), "k3s-server")
    assert node.engine.live(node.host, node.inspect()) is None


def test_live_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = running(tmp_path)
    set_report(monkeypatch, None)
    node.generate("nvidia", version=3, default="nvidia")
    live = node.engine.live(node.host, node.inspect())
    assert live == LiveState("", {"nvidia": NVIDIA}, "nvidia", cdi=True, runtimes_unknown=True)
    node.generate()
    live = node.engine.live(node.host, node.inspect())
    assert live is not None
    assert (live.runtimes, live.default_runtime) == ({}, "runc")
    node.write(f"{node.data}/agent/etc/containerd/config.toml", "broken = [")
    live = node.engine.live(node.host, node.inspect())
    assert live is not None
    assert (live.runtimes_unknown, live.outdated, live.runtimes) == (True, False, {})


@pytest.mark.parametrize(
    ("config", "settings", "action"),
    [
        (report(nvidia=NVIDIA), "", Action.NONE),
        (report("default", nvidia=NVIDIA), "", Action.NONE),
        (report("", nvidia=NVIDIA), "", Action.NONE),
        # Added, removed, or moved since the start.
        (report(), "", Action.RESTART),
        (report(nvidia=NVIDIA, nvidia_cdi=NVIDIA + ".cdi"), "", Action.RESTART),
        (report(nvidia=NVIDIA, mine="/gone/nvidia-container-runtime"), "", Action.RESTART),
        (report(nvidia=OPERATOR), "", Action.RESTART),
        (report(nvidia=NVIDIA), "default-runtime: nvidia\n", Action.RESTART),
        (report("nvidia", nvidia=NVIDIA), "default-runtime: nvidia\n", Action.NONE),
        (report("nvidia", nvidia=NVIDIA), "", Action.RESTART),
        # Runtimes of other tools have no influence.
        (report(nvidia=NVIDIA, crun="/usr/bin/crun"), "", Action.NONE),
    ],
)
def test_required_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: t.Any, settings: str, action: Action
) -> None:
    node = running(tmp_path)
    set_report(monkeypatch, config)
    node.settings(settings)
    live = node.engine.live(node.host, node.inspect())
    assert live is not None
    assert node.engine.required_action(live, node.state()) is action
    assert node.engine.health_problem(node.host, node.inspect(), live, node.state()) is None


@pytest.mark.parametrize("release", ["1.30.4", "1.30.6"])
@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/sbin", "/bin"])
def test_another_path_to_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, folder: str
) -> None:
    node = running(tmp_path, release=release)
    node.path("/usr/sbin").symlink_to("bin")
    node.path("/bin").symlink_to("usr/bin")
    program = f"{folder}/nvidia-container-runtime"
    set_report(monkeypatch, report(nvidia=program))
    node.write(f"{node.data}/agent/etc/containerd/config.toml", generated({"nvidia": program}))
    again = node.present()
    assert (again.changed, again.pending_action, again.runtimes) == (False, Action.NONE, {"nvidia": program})


def test_path_before_first_start(tmp_path: Path) -> None:
    node = running(tmp_path)
    node.path("/usr/sbin").symlink_to("bin")
    assert node.state().paths() == {"nvidia": NVIDIA}


def test_required_action_for_missing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = running(tmp_path)
    set_report(monkeypatch, report(nvidia=OPERATOR))
    node.write(f"{node.data}/agent/etc/containerd/config.toml", generated({"nvidia": OPERATOR}))
    assert node.present().pending_action is Action.RESTART


def test_required_action_with_disabled_cri() -> None:
    assert (
        K3S.required_action(LiveState("", {}, "runc"), ConfiguredState({"nvidia": {}}, lists_runtimes=False))
        is Action.NONE
    )


def test_required_action_for_runtime_without_program() -> None:
    state = ConfiguredState({"nvidia-odd": {"path": None}})
    assert K3S.required_action(LiveState("", {"nvidia-odd": ""}, "runc"), state) is Action.NONE


@pytest.mark.parametrize(("runtimes", "action"), [(("nvidia",), Action.NONE), ((), Action.RESTART)])
def test_required_action_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtimes: tuple[str, ...], action: Action
) -> None:
    node = running(tmp_path)
    set_report(monkeypatch, None)
    node.generate(*runtimes)
    live = node.engine.live(node.host, node.inspect())
    assert live is not None
    assert node.engine.required_action(live, node.state()) is action


# -- others ------------------------------------------------------------------------------------------------------------


def test_config_files(tmp_path: Path) -> None:
    node = RancherHost(tmp_path)
    node.unit()
    folder = f"{node.data}/agent/etc/containerd"
    assert node.engine.config_files(node.host, node.inspect()) == [f"{folder}/config.toml"]
    node.generate(version=3, imports=f"{folder}/config-v3.toml.d/*.toml")
    node.write(f"{folder}/config-v3.toml.d/a.toml", "version = 3\n")
    node.write(f"{folder}/config-v3.toml.tmpl", "x")
    node.settings("token: x\n")
    node.settings("", "b.yaml")
    assert node.engine.config_files(node.host, node.inspect()) == [
        f"{folder}/config.toml",
        f"{folder}/config-v3.toml.d/a.toml",
        f"{folder}/config-v3.toml.tmpl",
        "/etc/rancher/k3s/config.yaml",
        "/etc/rancher/k3s/config.yaml.d/b.yaml",
    ]


def test_containers_survive_a_restart(tmp_path: Path) -> None:
    node = RancherHost(tmp_path)
    assert node.engine.containers_stopped_by_restart(node.host, node.inspect()) == []
    assert node.engine.companions == ()
    assert "K3s" in K3S.no_reload
    assert "RKE2" in RKE2.no_reload


def test_missing_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(bundled, "_registered", {})
    node = RancherHost(tmp_path)
    node.unit()
    node.settings("default-runtime: crun\n")
    node.inspect()
    with pytest.raises(MissingPackageError):
        node.state()
    with pytest.raises(MissingPackageError):
        node.plan()
