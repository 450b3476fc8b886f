# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.gpu_containers import (
    Bundle,
    bundle_folders,
    find_bundles,
    legacy_gpu_containers,
    toolkit_runtime_containers,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.bundles import HOOK, bundle

if t.TYPE_CHECKING:
    from pathlib import Path

ID = "926edfbc4433bd79dcfbc76c16f1ff7ab04d28ebc597bacb2bc8bde1fe467533"
OTHER = "b9b1e13ddc57f6315ba1ec348410cfb2cccf6ec21c1445e2f072970c319542e3"
TASKS = "io.containerd.runtime.v2.task"
MOBY = f"run/containerd/{TASKS}/moby/{ID}"


class Host:
    """The directory tree of a host with the processes 1 and 379."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for pid in (1, 379):
            (root / f"proc/{pid}").mkdir(parents=True)

    def put(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def running(self, live: bool = True) -> list[str]:
        return legacy_gpu_containers(HostFS(str(self.root), live))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# -- where bundles are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "pid_file", "name"),
    [
        (MOBY, f"{MOBY}/init.pid", "docker/926edfbc4433"),
        (f"run/docker/containerd/daemon/{TASKS}/moby/{ID}", "", "docker/926edfbc4433"),
        (f"run/snap.docker/containerd/daemon/{TASKS}/moby/{ID}", "", "docker/926edfbc4433"),
        (f"run/containerd/{TASKS}/k8s.io/{ID}", "", "containerd/k8s.io/926edfbc4433"),
        (f"run/containerd/{TASKS}/default/train-1", "", "containerd/default/train-1"),
        (f"run/k3s/containerd/{TASKS}/k8s.io/{ID}", "", "k3s/k8s.io/926edfbc4433"),
        (f"run/k0s/containerd/{TASKS}/k8s.io/{ID}", "", "k0s/k8s.io/926edfbc4433"),
        (
            f"var/snap/microk8s/common/run/containerd/{TASKS}/k8s.io/{ID}",
            "",
            "microk8s/k8s.io/926edfbc4433",
        ),
        (
            f"run/containers/storage/overlay-containers/{ID}/userdata",
            f"run/containers/storage/overlay-containers/{ID}/userdata/pidfile",
            "crio/926edfbc4433",
        ),
        (
            f"var/lib/containers/storage/vfs-containers/{ID}/userdata",
            f"run/containers/storage/vfs-containers/{ID}/userdata/pidfile",
            "podman/926edfbc4433",
        ),
    ],
)
def test_every_engine(host: Host, folder: str, pid_file: str, name: str) -> None:
    host.put(f"{folder}/config.json", bundle())
    host.put(pid_file or f"{folder}/init.pid", "379")
    assert host.running() == [name]
    assert host.running(live=False) == []
    # Its process ends.
    host.put(pid_file or f"{folder}/init.pid", "380\n")
    assert host.running() == []


DAEMON = f"containerd/daemon/{TASKS}/moby/{ID}"
OVERLAY = f"overlay-containers/{ID}/userdata"
UNITS = "usr/lib/systemd/system"


@pytest.mark.parametrize(
    ("path", "text", "folder", "pid_folder", "engine"),
    [
        (
            "etc/containers/storage.conf",
            '[storage]\n# graphroot = "/no"\ndriver = "overlay"\ngraphroot = "/srv/storage/"\n',
            f"srv/storage/{OVERLAY}",
            f"run/containers/storage/{OVERLAY}",
            "podman",
        ),
        (
            "usr/share/containers/storage.conf",
            "[storage]\n  runroot='/srv/run'\n",
            f"var/lib/containers/storage/{OVERLAY}",
            f"srv/run/{OVERLAY}",
            "podman",
        ),
        (
            "etc/crio/crio.conf.d/50-run",
            '[crio]\nrunroot = "/srv/run"\n',
            f"srv/run/{OVERLAY}",
            "",
            "crio",
        ),
        ("etc/docker/daemon.json", '{"exec-root":"/srv/run"}', f"srv/run/{DAEMON}", "", "docker"),
        (
            f"{UNITS}/docker.service",
            "[Service]\nExecStart=/usr/bin/dockerd --exec-root /srv/run\n",
            f"srv/run/{DAEMON}",
            "",
            "docker",
        ),
        (
            "etc/containerd/config.toml",
            'version = 2\nroot = "/srv/lib"\nstate = "/srv/run"\n',
            f"srv/run/{TASKS}/k8s.io/{ID}",
            "",
            "containerd",
        ),
        (
            "etc/containerd/conf.d/50.toml",
            'version = 2\nstate = "/srv/run"\n',
            f"srv/run/{TASKS}/k8s.io/{ID}",
            "",
            "containerd",
        ),
        (
            "var/snap/docker/current/config/daemon.json",
            '{"exec-root":"/srv/run"}',
            f"srv/run/{DAEMON}",
            "",
            "docker",
        ),
        (
            f"{UNITS}/crio.service",
            "[Service]\nExecStart=/usr/bin/crio --runroot=/srv/run\n",
            f"srv/run/{OVERLAY}",
            "",
            "crio",
        ),
    ],
)
def test_a_configured_directory(*, host: Host, path: str, text: str, folder: str, pid_folder: str, engine: str) -> None:
    host.put(f"{folder}/config.json", bundle())
    host.put(f"{pid_folder or folder}/{'pidfile' if 'userdata' in folder else 'init.pid'}", "379")
    assert host.running() == []
    host.put(path, text)
    assert [name.partition("/")[0] for name in host.running()] == [engine]
    on_host = HostFS(str(host.root), live=True)
    (found,) = find_bundles(on_host, ID)
    assert (found.engine, found.folder, found.pid) == (engine, f"/{folder}", 379)
    assert any(found.folder.startswith(f"{known}/") for known in bundle_folders(on_host))


@pytest.mark.parametrize(
    ("command", "text", "folder"),
    [
        ("containerd --config /srv/own", 'state = "/srv/run"\n', f"{TASKS}/k8s.io/{ID}"),
        ("containerd -c /srv/own", 'state = "/srv/run"\n', f"{TASKS}/k8s.io/{ID}"),
        ("dockerd --config-file=/srv/own", '{"exec-root": "/srv/run"}', DAEMON),
        ("crio -c /srv/own", '[crio]\nrunroot = "/srv/run"\n', OVERLAY),
    ],
)
def test_a_configured_directory_in_another_file(host: Host, command: str, text: str, folder: str) -> None:
    host.put(f"srv/run/{folder}/config.json", bundle())
    host.put(f"srv/run/{folder}/{'pidfile' if folder == OVERLAY else 'init.pid'}", "379")
    host.put("srv/own", text)
    assert host.running() == []
    program = command.partition(" ")[0]
    host.put(f"{UNITS}/{program.replace('dockerd', 'docker')}.service", f"[Service]\nExecStart=/usr/bin/{command}\n")
    assert len(host.running()) == 1


@pytest.mark.parametrize("text", ['{"exec-root": 5}', '{"exec-root": "run"}', '{"exec-root": "/*"}', "exec-root", "{"])
def test_a_directory_that_no_engine_uses_is_ignored(host: Host, text: str) -> None:
    host.put(f"srv/{DAEMON}/config.json", bundle())
    host.put("etc/docker/daemon.json", text)
    assert host.running() == []


def test_another_name_of_a_directory(host: Host) -> None:
    host.put(f"run/docker/{DAEMON}/config.json", bundle())
    (host.root / "var").mkdir()
    (host.root / "var/run").symlink_to("/run")
    host.put("etc/docker/daemon.json", '{\n  "exec-root": "/var/run/docker"\n}')
    assert host.running() == ["docker/926edfbc4433"]


def test_a_container_with_two_bundles_is_one(host: Host) -> None:
    for folder in ("run", "var/lib"):
        host.put(f"{folder}/containers/storage/overlay-containers/{ID}/userdata/config.json", bundle())
    host.put(f"run/containers/storage/overlay-containers/{ID}/userdata/pidfile", "379")
    host.put(f"{MOBY}/config.json", bundle())
    host.put(f"run/containerd/{TASKS}/moby/{OTHER}/config.json", bundle())
    assert host.running() == ["docker/926edfbc4433", "docker/b9b1e13ddc57", "crio/926edfbc4433"]


def test_bundles_in_other_directories_are_ignored(host: Host) -> None:
    host.put(f"run/containerd/{TASKS}/{ID}/config.json", bundle())
    host.put("run/containers/storage/overlay/userdata/config.json", bundle())
    assert host.running() == []


def test_bundles_of_an_id(host: Host) -> None:
    k8s, storage = f"run/containerd/{TASKS}/k8s.io/{OTHER}", "containers/storage/overlay-containers"
    for folder in (MOBY, k8s):
        host.put(f"{folder}/config.json", "{}")
        host.put(f"{folder}/init.pid", "379\n")
    for folder in ("run", "var/lib"):
        host.put(f"{folder}/{storage}/{OTHER[::-1]}/userdata/config.json", "{}")
    host.put(f"run/{storage}/{OTHER[::-1]}/userdata/pidfile", "379")
    on_host = HostFS(str(host.root), live=True)
    assert find_bundles(on_host, ID[:5]) == [Bundle("docker", ID, f"/{MOBY}", 379)]
    assert find_bundles(on_host, OTHER) == [Bundle("containerd", OTHER, f"/{k8s}", 379, "k8s.io")]
    assert find_bundles(on_host, f"k8s.io/{OTHER}") == find_bundles(on_host, OTHER)
    assert find_bundles(on_host, f"k8s.io/{OTHER[:5]}") == []
    # A container with two bundles is reported once.
    assert [bundle.engine for bundle in find_bundles(on_host, OTHER[::-1])] == ["crio"]
    assert len(find_bundles(on_host, "")) == 3
    assert find_bundles(on_host, "nope") == find_bundles(HostFS(str(host.root), live=False), ID) == []
    # Its process has ended.
    host.put(f"{MOBY}/init.pid", "380")
    assert find_bundles(on_host, ID) == []
    host.put(f"{MOBY}/init.pid", "x")
    assert find_bundles(on_host, ID) == []


# -- whether it runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [None, "", "x", "-1"])
def test_a_container_without_a_valid_pid_file_counts_as_running(host: Host, pid: str | None) -> None:
    host.put(f"{MOBY}/config.json", bundle())
    if pid is not None:
        host.put(f"{MOBY}/init.pid", pid)
    assert host.running() == ["docker/926edfbc4433"]


def test_a_bundle_in_storage_without_a_pid_file_is_not_running(host: Host) -> None:
    host.put(f"var/lib/containers/storage/overlay-containers/{ID}/userdata/config.json", bundle())
    assert host.running() == []


def test_without_a_list_of_processes_every_container_counts_as_running(host: Host) -> None:
    host.put(f"{MOBY}/config.json", bundle())
    host.put(f"{MOBY}/init.pid", "380")
    assert host.running() == []
    (host.root / "proc/1").rmdir()
    assert host.running() == ["docker/926edfbc4433"]


# -- whether it has a GPU from the hook ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "specification",
    [
        bundle(),
        bundle(hook="/usr/bin/nvidia-container-toolkit"),
        bundle(hook="/usr/local/nvidia/toolkit/nvidia-container-runtime-hook"),
        bundle(stage="createRuntime"),
        bundle(environment=["NVIDIA_VISIBLE_DEVICES=none"]),
        bundle(environment=["NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2"]),
        # Old CUDA images set CUDA_VERSION instead of NVIDIA_VISIBLE_DEVICES.
        bundle(environment=["CUDA_VERSION=8.0.61"]),
        bundle(environment=["DOCKER_RESOURCE_GPU=GPU-1"]),
        bundle(environment=["NVIDIA_VISIBLE_DEVICES=void"], mounts=["/var/run/nvidia-container-devices/all"]),
    ],
)
def test_a_gpu_from_the_hook(host: Host, specification: str) -> None:
    host.put(f"{MOBY}/config.json", specification)
    assert host.running() == ["docker/926edfbc4433"]


@pytest.mark.parametrize(
    "specification",
    [
        # All containers have the hook if the default runtime is NVIDIA's.
        bundle(environment=[]),
        bundle(environment=["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VERSION=12.4.0"]),
        bundle(environment=["NVIDIA_VISIBLE_DEVICES="]),
        bundle(hook="/usr/bin/nvidia-cdi-hook"),
        bundle(hook="/usr/bin/nvidia-ctk"),
        bundle(hook="/usr/bin/true", environment=["NVIDIA_VISIBLE_DEVICES=all", f"X={HOOK}"]),
        "",
        HOOK,
        f'{{"hooks": "{HOOK}"',
        f'["{HOOK}"]',
        f'{{"hooks": ["{HOOK}"]}}',
        f'{{"hooks": {{"prestart": ["{HOOK}"]}}}}',
        f'{{"hooks": {{"prestart": [{{"args": ["{HOOK}"]}}]}}}}',
        f'{{"hooks": {{"prestart": [{{"path": "{HOOK}"}}]}}}}',
        "[" * 100000 + HOOK,
    ],
)
def test_no_gpu_from_the_hook(host: Host, specification: str) -> None:
    host.put(f"{MOBY}/config.json", specification)
    assert host.running() == []


def test_a_bundle_without_a_file(host: Host) -> None:
    (host.root / f"{MOBY}/config.json").mkdir(parents=True)
    assert host.running() == []


# -- containers with a runtime of the toolkit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "concerned"),
    [
        ("/usr/bin/nvidia-container-runtime", True),
        ("/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi", True),
        ("nvidia-container-runtime.legacy\n", True),
        ("runc", False),
        ("/usr/bin/crun", False),
        ("/usr/bin/nvidia-container-runtime-hook", False),
    ],
)
def test_containers_whose_runtime_is_the_toolkit_s(host: Host, runtime: str, concerned: bool) -> None:
    host.put(f"{MOBY}/config.json", bundle(environment=()))
    host.put(f"{MOBY}/runtime", runtime)
    host.put(f"{MOBY}/init.pid", "379")
    assert toolkit_runtime_containers(HostFS(str(host.root), True)) == (["docker/926edfbc4433"] if concerned else [])
    # A container whose process has ended is not reported.
    host.put(f"{MOBY}/init.pid", "380")
    assert toolkit_runtime_containers(HostFS(str(host.root), True)) == []
