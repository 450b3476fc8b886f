# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import FILE_BYTES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import directory as toolkit_directory
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    CONFIG,
    DEST,
    NEW,
    OLD,
    VERSIONS,
    Host,
    refusal,
    tree_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path, live=True)
    host.install(OLD)
    return host


def docker(host: Host, folder: str = DEST) -> None:
    path = host.root / "etc/docker/daemon.json"
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"runtimes": {{"nvidia": {{"path": "{folder}/nvidia-container-runtime"}}}}}}')


def container(host: Host) -> None:
    bundle = host.root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/web"
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text(f'{{"hooks": "{VERSIONS}/x/nvidia-cdi-hook"}}')


def test_removal_without_installation(tmp_path: Path) -> None:
    host = Host(tmp_path)
    before = tree_of(tmp_path)
    assert not host.remove().changed
    assert not host.remove(check=True).changed
    assert tree_of(tmp_path) == before


def test_second_removal_changes_nothing(host: Host) -> None:
    result = host.remove()
    assert result.changed
    assert len(result.before) == 19
    assert len(result.removed) == 1
    before = tree_of(host.root)
    assert not host.remove().changed
    assert tree_of(host.root) == before


def specification(host: Host) -> None:
    (host.root / "etc/cdi").mkdir(parents=True)
    (host.root / "etc/cdi/nvidia.yaml").write_text(f"path: {DEST}/nvidia-cdi-hook")


@pytest.mark.parametrize(
    ("user", "message"),
    [(docker, "docker (nvidia)"), (container, "The containers containerd/k8s.io/web use programs in")],
)
def test_refuses_removal_while_in_use(user: t.Callable[[Host], None], message: str, host: Host) -> None:
    user(host)
    before = tree_of(host.root)
    assert message in refusal(host.remove)
    assert tree_of(host.root) == before
    assert host.remove(running_gpu_containers="warn").changed
    assert any(message in warning for warning in host.warnings)


def test_check_mode_warns_about_engines(host: Host) -> None:
    docker(host)
    before = tree_of(host.root)
    assert host.remove(check=True).changed
    assert any("docker (nvidia)" in warning for warning in host.warnings)
    container(host)
    assert "The containers" in refusal(lambda: host.remove(check=True))
    (host.root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/web/config.json").write_text("{}")
    host.remove(check=True, running_gpu_containers="ignore")
    assert not host.warnings
    assert tree_of(host.root / "opt") == {n[4:]: e for n, e in before.items() if n.startswith("opt/")}


def test_warns_about_cdi_specifications(host: Host) -> None:
    specification(host)
    assert host.remove().changed
    assert any("/etc/cdi/nvidia.yaml. Generate these files again" in warning for warning in host.warnings)


def test_makes_a_backup_of_an_undecodable_config(host: Host) -> None:
    (host.dest / CONFIG).write_bytes(b"\xff\0")
    (backup,) = host.remove().backups
    assert (host.root / str(backup["backup"])[1:]).read_bytes() == b"\xff\0"


@pytest.mark.parametrize("task", [Host.remove, lambda host: host.install(NEW)])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_makes_a_backup_of_an_edited_config_without_the_link(
    task: t.Callable[[Host], t.Any], is_replaced: bool, host: Host
) -> None:
    """The link was removed, or another installer has put its directory there."""
    (host.dest / CONFIG).write_text("by = 'hand'\n")
    host.dest.unlink()
    if is_replaced:
        host.dest.mkdir()
    (backup,) = task(host).backups
    assert (host.root / str(backup["backup"])[1:]).read_text() == "by = 'hand'\n"
    assert any("was edited" in warning for warning in host.warnings)


@pytest.mark.parametrize("task", [Host.remove, lambda host: host.install(NEW)])
def test_refuses_to_replace_an_edited_config_without_backup(task: t.Callable[[Host], object], host: Host) -> None:
    os.truncate(str(host.dest / CONFIG), FILE_BYTES + 1)
    before = tree_of(host.versions)
    message = refusal(lambda: task(host))
    assert f"{CONFIG} is larger than 16384 KiB, the limit for such a file. Move it away." in message
    assert tree_of(host.versions) == before


@pytest.mark.parametrize("create", [os.mkfifo, lambda path: os.symlink("/proc/version", path)])
def test_warns_about_a_config_that_is_no_file(create: t.Callable[[str], None], host: Host) -> None:
    (host.dest / CONFIG).unlink()
    create(str(host.dest / CONFIG))
    assert host.remove().backups == ()
    assert any(f"{CONFIG} was edited. It has no backup:" in warning for warning in host.warnings)


def test_makes_a_backup_of_the_config_of_an_incomplete_version(host: Host) -> None:
    (host.dest / ".manifest.json").unlink()
    (host.dest / CONFIG).write_bytes(b"mine")
    (backup,) = host.remove().backups
    assert (host.root / str(backup["backup"])[1:]).read_bytes() == b"mine"


def test_keeps_a_foreign_link(host: Host) -> None:
    host.dest.unlink()
    host.dest.symlink_to("/usr")
    assert host.remove().changed
    assert host.dest.is_symlink()
    assert not host.versions.exists()
    assert not host.remove().changed


def test_removes_versions_without_a_link(host: Host) -> None:
    host.dest.unlink()
    assert host.remove().changed
    assert not host.versions.exists()


def test_checks_again_under_the_lock(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run removed the toolkit while this one waited for the lock."""
    answers = [True, False]
    monkeypatch.setattr(toolkit_directory.DirectoryRemoval, "_needs_removal", lambda _self: answers.pop(0))
    before = tree_of(host.root)
    assert not host.remove().changed
    assert tree_of(host.root) == before
