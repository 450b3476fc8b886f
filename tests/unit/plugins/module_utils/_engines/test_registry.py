# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd.engine import ContainerdOfUnit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.flavors import FLAVORS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import (
    Target,
    resolve_target,
    targets_on,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

UNIT = "[Service]\nExecStart={}\n"
SECOND = "containerd-gpu.service"
ROOTLESS_UNIT = "home/alice/.config/systemd/user/docker.service"


def host(tree: Path, *marks: str) -> HostFS:
    """Return a host with the paths ``marks``: a directory ends with a slash, the others are programs or units."""
    for mark in marks:
        path = tree / mark
        if mark.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if mark == "etc/passwd":
            path.write_text("alice:x:54321:54321::/home/alice:/bin/sh\n")
            continue
        program = "/usr/bin/containerd --config /etc/containerd-gpu/config.toml" if SECOND in mark else "/usr/bin/true"
        path.write_text(UNIT.format(program))
        path.chmod(0o755)
    return HostFS(str(tree), live=False)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], []),
        (["usr/bin/dockerd"], ["docker"]),
        # The package podman-docker also installs this program.
        (["usr/bin/docker"], []),
        (["etc/docker/"], ["docker"]),
        (["lib/systemd/system/docker.service"], ["docker"]),
        (["var/snap/docker/"], ["docker/snap"]),
        (["etc/systemd/system/snap.docker.dockerd.service"], ["docker/snap"]),
        (["usr/bin/containerd"], ["containerd"]),
        (["etc/systemd/system/k3s.service"], ["containerd/k3s"]),
        (["etc/systemd/system/k3s-agent.service"], ["containerd/k3s"]),
        (["usr/local/bin/k3s"], []),
        (["var/lib/rancher/rke2/"], ["containerd/rke2"]),
        (["usr/local/lib/systemd/system/rke2-agent.service"], ["containerd/rke2"]),
        (["etc/k0s/"], ["containerd/k0s"]),
        (["var/snap/microk8s/"], ["containerd/microk8s"]),
        (["etc/systemd/system/snap.microk8s.daemon-containerd.service"], ["containerd/microk8s"]),
        (["usr/bin/crio"], ["crio"]),
        (["usr/bin/podman"], ["podman"]),
        (
            ["usr/bin/podman", "etc/k0s/", "usr/bin/containerd", "usr/bin/dockerd"],
            ["docker", "containerd", "containerd/k0s", "podman"],
        ),
        (
            ["usr/bin/containerd", f"etc/systemd/system/{SECOND}"],
            ["containerd", f"containerd/system/{SECOND}"],
        ),
        ([f"etc/systemd/system/{SECOND}"], [f"containerd/system/{SECOND}"]),
    ],
)
def test_targets_on(tmp_path: Path, marks: list[str], expected: list[str]) -> None:
    assert [str(target) for target in targets_on(host(tmp_path, *marks))] == expected


def test_ignores_units_of_other_programs(tmp_path: Path) -> None:
    made = host(tmp_path, "etc/systemd/system/containerd-exporter.service")
    assert targets_on(made) == []


def test_targets_of_one_engine(tmp_path: Path) -> None:
    made = host(tmp_path, "usr/bin/dockerd", "etc/k0s/")
    assert targets_on(made, "containerd") == [Target("containerd", "k0s")]


def test_records_are_a_trace(tmp_path: Path) -> None:
    for row in (row for row in FLAVORS.values() if row.key):
        tree = tmp_path / row.key
        made = host(tree, f"var/lib/gpufleet-nvidia/state/{row.key}-x-0123456789ab.json")
        assert Target(row.engine, row.flavor) in targets_on(made)


@pytest.mark.parametrize(
    ("marks", "options", "expected"),
    [
        ([], {}, "containerd"),
        (["etc/k0s/"], {}, "containerd/k0s"),
        (["usr/bin/containerd", "etc/k0s/"], {"flavor": "k0s"}, "containerd/k0s"),
        (["usr/bin/containerd", "etc/k0s/"], {"flavor": "system"}, "containerd"),
        (["etc/containerd/", "usr/local/bin/k0s", "etc/k0s/"], {}, "containerd/k0s"),
        ([], {"flavor": "k3s"}, "containerd/k3s"),
        (["usr/bin/containerd", f"etc/systemd/system/{SECOND}"], {"service": SECOND}, f"containerd/system/{SECOND}"),
        (
            ["usr/bin/containerd", f"lib/systemd/system/{SECOND}"],
            {"service": "containerd-gpu"},
            f"containerd/system/{SECOND}",
        ),
        # The engine of another user is not selected.
        (["etc/docker/", ROOTLESS_UNIT, "etc/passwd"], {"engine": "docker"}, "docker"),
        ([ROOTLESS_UNIT, "etc/passwd"], {"engine": "docker"}, "docker"),
        (["usr/bin/containerd"], {"service": "containerd"}, "containerd"),
        (["etc/systemd/system/k3s.service", "usr/bin/containerd"], {"service": "k3s.service"}, "containerd/k3s"),
        (["etc/k0s/"], {"service": "k0s-of-ours.service", "flavor": "k0s"}, "containerd/k0s"),
        (["etc/docker/"], {"engine": "docker", "service": "docker-gpu.service"}, "docker"),
    ],
)
def test_resolve_target(tmp_path: Path, marks: list[str], options: dict[str, str], expected: str) -> None:
    engine = options.pop("engine", "containerd")
    assert str(resolve_target(host(tmp_path, *marks), engine, **options)) == expected


@pytest.mark.parametrize(
    ("marks", "options", "message"),
    [
        (
            ["usr/bin/containerd", "usr/local/bin/k0s", "etc/k0s/"],
            {},
            "several installations of containerd: containerd, containerd/k0s, .*without a flavor: system",
        ),
        (["usr/bin/containerd"], {"service": "gone.service"}, "This host has no unit gone.service"),
        ([], {"flavor": "snap"}, "Unsupported flavor snap for containerd. Supported: auto, system, k3s"),
        ([], {"user": "alice"}, "user is only for rootless Docker"),
        ([], {"engine": "docker", "user": "alice", "flavor": "snap"}, "user is only for rootless Docker"),
        ([], {"engine": "docker", "flavor": "rootless"}, "become_user: NAME"),
        ([ROOTLESS_UNIT, "etc/passwd"], {"engine": "docker", "user": "alice"}, "become_user: alice"),
        ([], {"engine": "podman", "flavor": "rootless"}, "Unsupported flavor rootless for podman"),
    ],
)
def test_resolve_target_errors(tmp_path: Path, marks: list[str], options: dict[str, str], message: str) -> None:
    engine = options.pop("engine", "containerd")
    with pytest.raises(NvidiaError, match=message):
        resolve_target(host(tmp_path, *marks), engine, **options)


def test_second_containerd(tmp_path: Path) -> None:
    made = host(tmp_path, "usr/bin/containerd", f"etc/systemd/system/{SECOND}")
    unit = tmp_path / "etc/systemd/system" / SECOND
    unit.write_text(UNIT.format("/usr/bin/containerd --config /etc/gpu/c.toml --address /run/gpu/c.sock"))
    engine = Target("containerd", "system", SECOND).load()
    assert isinstance(engine, ContainerdOfUnit)
    installation = engine.inspect(made)
    assert (installation.service, installation.config_path, installation.socket) == (
        SECOND, "/etc/gpu/c.toml", "/run/gpu/c.sock",
    )  # fmt: skip
    assert engine.key != Target("containerd").load().key


@pytest.mark.parametrize("command", ["/usr/bin/containerd", "/usr/bin/containerd -c /etc/containerd/config.toml"])
def test_unit_with_file_of_system_containerd(tmp_path: Path, command: str) -> None:
    made = host(tmp_path, "usr/bin/containerd", f"etc/systemd/system/{SECOND}")
    (tmp_path / "etc/systemd/system" / SECOND).write_text(UNIT.format(command))
    assert [str(target) for target in targets_on(made)] == ["containerd"]


def test_alias_of_unit_is_ignored(tmp_path: Path) -> None:
    made = host(tmp_path, f"lib/systemd/system/{SECOND}")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/cri-containerd.service").symlink_to(f"/lib/systemd/system/{SECOND}")
    assert [str(target) for target in targets_on(made)] == [f"containerd/system/{SECOND}"]


def test_removed_unit_with_records(tmp_path: Path) -> None:
    made = host(tmp_path, "usr/bin/containerd", f"etc/systemd/system/{SECOND}")
    engine = Target("containerd", "system", SECOND).load()
    (tmp_path / "etc/containerd-gpu").mkdir()
    (tmp_path / "etc/containerd-gpu/config.toml").write_text("version = 2\n")
    (tmp_path / "etc/containerd").mkdir()
    (tmp_path / "etc/containerd/config.toml").write_text("version = 2 # the system's\n")
    options = Options("containerd", RuntimeRequest(), service=SECOND)
    assert configure(options, made).changed
    (tmp_path / "etc/systemd/system" / SECOND).unlink()
    assert [str(target) for target in targets_on(made)] == ["containerd", f"containerd/system/{SECOND}"]
    assert engine.inspect(made).config_path == "/etc/containerd-gpu/config.toml"
    assert configure(options._replace(request=None), made).changed
    assert (tmp_path / "etc/containerd-gpu/config.toml").read_text() == "version = 2\n"
    assert (tmp_path / "etc/containerd/config.toml").read_text() == "version = 2 # the system's\n"
    assert [str(target) for target in targets_on(made)] == ["containerd"]


def configure(options: Options, made: HostFS) -> ConfigureResult:
    return ConfigureEngine(options, made, lambda _argv: (127, "", "")).execute(check_mode=False)


def test_names_and_keys_of_engines() -> None:
    loaded = {
        place: Target(*place, "x.service" if row.by_unit else "alice" if row.by_user else "").load()
        for place, row in FLAVORS.items()
    }
    assert {place: (engine.name, engine.flavor) for place, engine in loaded.items()} == {
        place: place for place in FLAVORS
    }
    usual = {place: Target(*place).load().key for place, row in FLAVORS.items() if not row.by_user}
    assert usual == {place: FLAVORS[place].key for place in usual}
    keys = [engine.key for engine in loaded.values()]
    assert len(set(keys)) == len(keys)
