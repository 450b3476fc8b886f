# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from typing import NamedTuple

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.nvidia_files import hook_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.hook_users import hook_users
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import write_file

if t.TYPE_CHECKING:
    from pathlib import Path

MAIN, LEGACY = "/usr/bin/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime.legacy"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
CONFIG = "/etc/nvidia-container-runtime/config.toml"
DAEMON_JSON = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
UNIT = "/etc/systemd/system/docker.service"
NEW, OLD = "1.18.0", "1.17.8"


def docker(program: str) -> str:
    return json.dumps({"runtimes": {"nvidia": {"path": program}}})


def containerd(program: str) -> str:
    return (
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\n"
        f"runtime_type = 'io.containerd.runc.v2'\noptions = {{BinaryName = '{program}'}}\n"
    )


def crio(program: str) -> str:
    return f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{program}"\nruntime_type = "oci"\n'


def mode(name: str, **more: str) -> str:
    lines = [f'{key.replace("_", "-")}.path = "{value}"' for key, value in more.items()]
    return "\n".join([*lines, f'[nvidia-container-runtime]\nmode = "{name}"\n'])


def find(root: Path, files: t.Mapping[str, str], version: str | None = NEW, planned: str | None = None) -> list[str]:
    for program in (MAIN, LEGACY, HOOK):
        write_file(root, program, "").chmod(0o755)
    for path, text in files.items():
        file = write_file(root, path, text)
        if not text:
            file.chmod(0o755)
    return hook_users(HostFS.of(str(root), live=False), version, planned)


@pytest.mark.parametrize(
    ("files", "version", "found"),
    [
        ({}, NEW, []),
        ({DAEMON_JSON: docker("/usr/bin/runc")}, OLD, []),
        ({DAEMON_JSON: docker(MAIN)}, NEW, []),
        ({DAEMON_JSON: docker(MAIN)}, None, []),
        ({DAEMON_JSON: docker(MAIN)}, OLD, ["docker (nvidia)"]),
        ({DAEMON_JSON: docker(LEGACY)}, NEW, ["docker (nvidia)"]),
        ({DAEMON_JSON: docker("nvidia-container-runtime.legacy")}, NEW, ["docker (nvidia)"]),
        ({DAEMON_JSON: docker(f"{MAIN}.cdi"), CONFIG: mode("legacy")}, OLD, []),
        ({DAEMON_JSON: docker(MAIN), CONFIG: mode("legacy")}, NEW, ["docker (nvidia)"]),
        ({DAEMON_JSON: docker(MAIN), CONFIG: mode("cdi")}, OLD, []),
        ({DAEMON_JSON: docker(MAIN), CONFIG: mode("auto")}, OLD, ["docker (nvidia)"]),
        ({CONTAINERD: containerd(LEGACY)}, NEW, ["containerd (nvidia)"]),
        ({CONTAINERD: containerd(MAIN)}, NEW, []),
        ({"/etc/crio/crio.conf": crio(LEGACY)}, NEW, ["crio (nvidia)"]),
        # A flag of the unit.
        (
            {UNIT: f"[Service]\nExecStart=/usr/bin/dockerd --add-runtime=x={LEGACY}\n"},
            NEW,
            [f"docker (--add-runtime=x={LEGACY})"],
        ),
        (
            {UNIT: "[Service]\nExecStart=/usr/bin/dockerd --add-runtime x=nvidia-container-runtime.legacy\n"},
            NEW,
            ["docker (x=nvidia-container-runtime.legacy)"],
        ),
        # A toolkit in a directory has a hook and a config.toml of its own, and so has a snap.
        (
            {
                DAEMON_JSON: docker("/opt/toolkit/nvidia-container-runtime"),
                "/opt/toolkit/nvidia-container-runtime": "",
                "/opt/toolkit/nvidia-container-runtime-hook": "",
                "/opt/toolkit/.config/nvidia-container-runtime/config.toml": mode(
                    "legacy", nvidia_container_runtime_hook="/opt/toolkit/nvidia-container-runtime-hook"
                ),
            },
            NEW,
            [],
        ),
        (
            {
                DAEMON_JSON: docker("/opt/toolkit/nvidia-container-runtime"),
                "/opt/toolkit/nvidia-container-runtime": "",
                CONFIG: mode("legacy"),
            },
            NEW,
            ["docker (nvidia)"],
        ),
        ({DAEMON_JSON: docker("/snap/docker/1/usr/bin/nvidia-container-runtime.legacy")}, NEW, []),
        # A file that cannot be read may have any mode, or any runtime.
        ({DAEMON_JSON: docker(MAIN), CONFIG: "mode = ["}, NEW, ["docker (nvidia)"]),
        ({DAEMON_JSON: docker("/usr/bin/runc"), CONFIG: "mode = ["}, NEW, []),
    ],
)
def test_engines(tmp_path: Path, files: dict[str, str], version: str | None, found: list[str]) -> None:
    assert find(tmp_path, files, version) == found


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    (found,) = find(tmp_path, {DAEMON_JSON: "{"})
    assert found.startswith(f"docker (unknown: {DAEMON_JSON}, line 1")


def test_link_with_another_name(tmp_path: Path) -> None:
    write_file(tmp_path, "/usr/local/bin/x", "").unlink()
    (tmp_path / "usr/local/bin/gpu").symlink_to(LEGACY)
    assert find(tmp_path, {DAEMON_JSON: docker("/usr/local/bin/gpu")}) == ["docker (nvidia)"]


@pytest.mark.parametrize(
    ("config", "planned", "used"),
    [
        (mode("cdi"), None, False),
        (mode("cdi"), "legacy", True),
        (mode("legacy"), "cdi", True),
        (mode("auto"), "cdi", False),
    ],
)
def test_planned_mode(tmp_path: Path, config: str, planned: str | None, used: bool) -> None:
    assert bool(find(tmp_path, {DAEMON_JSON: docker(MAIN), CONFIG: config}, NEW, planned)) is used


class Running(NamedTuple):
    """What a running daemon reports."""

    runtimes: dict[str, str]
    outdated: bool = False


@pytest.mark.parametrize(
    ("live", "found"),
    [
        (Running({"nvidia": LEGACY}), ["docker (docker.service still uses these runtimes: nvidia)"]),
        (Running({"nvidia": MAIN}), []),
        (Running({}, outdated=True), ["docker (docker.service has not read its current configuration yet)"]),
        (None, []),
    ],
)
def test_running_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: Running | None, found: list[str]
) -> None:
    assert find(tmp_path, {DAEMON_JSON: "{}"}) == []
    installation = DOCKER.inspect(HostFS.of(str(tmp_path), live=False))._replace(pid=7)
    monkeypatch.setattr(type(DOCKER), "inspect", lambda *_args: installation)
    monkeypatch.setattr(type(DOCKER), "live", lambda *_args: live)
    host = HostFS.of(str(tmp_path), live=True)
    assert hook_users(host, NEW) == found
    # An engine is named once.
    write_file(tmp_path, DAEMON_JSON, docker(LEGACY))
    assert hook_users(host, NEW) == ["docker (nvidia)"]


@pytest.mark.parametrize("folder", ["/etc/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"])
@pytest.mark.parametrize("program", ["nvidia-container-runtime-hook", "nvidia-container-toolkit"])
def test_oci_hook(tmp_path: Path, folder: str, program: str) -> None:
    text = hook_text("/usr/bin").decode().replace("nvidia-container-runtime-hook", program)
    assert find(tmp_path, {f"{folder}/nvidia.json": text, f"{folder}/other.json": '{"hook": {"path": "/x"}}'}) == [
        f"{folder}/nvidia.json"
    ]
    assert find(tmp_path, {f"{folder}/nvidia.json": text.replace(program, "other")}) == []


def test_hook_of_crio_in_another_directory(tmp_path: Path) -> None:
    """The hook of config_mode hook is found by its record."""
    path = "/srv/hooks.d/oci-nvidia-hook.json"
    files = {"/etc/crio/crio.conf": "[crio]\n", path: hook_text("/usr/bin").decode()}
    assert find(tmp_path, files) == []
    host = HostFS.of(str(tmp_path), live=False)
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import record_store  # noqa: PLC0415

    record_store.save(host, record_store.new_record(host, "crio", path, None)._replace(main="/etc/crio/crio.conf"))
    assert [record.path for record in records.load_records(host, "crio")] == [path]
    assert hook_users(host, NEW) == [path]


def test_missing_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_arguments: t.Any) -> t.NoReturn:
        raise errors.MissingPackageError("tomlkit")

    monkeypatch.setattr(runtime_settings, "read", read)
    with pytest.raises(errors.MissingPackageError):
        find(tmp_path, {DAEMON_JSON: docker(MAIN)})
