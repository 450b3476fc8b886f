# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import types
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import Node
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import AARCH64, X86_64
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import program, tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    DEST,
    MACHINE,
    NEW,
    OLD,
    Host,
    Tree,
    refusal,
    tree_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path

CTK = "usr/bin/nvidia-ctk"


@pytest.fixture(params=["nothing", "old"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """A live one, without and with a version that has to go on working."""
    host = Host(tmp_path, live=True)
    if request.param == "old":
        host.install(OLD)
    host.source(NEW)
    return host


def rest(host: Host) -> Tree:
    return {name: entry for name, entry in tree_of(host.root).items() if not name.startswith("srv")}


def refused(host: Host, words: str, **options: t.Any) -> None:
    """The installation of another version is refused, and nothing is left of it."""
    before = rest(host)
    assert words in refusal(lambda: host.install(NEW, **options))
    assert rest(host) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"version": "1.19.0"}, "holds version 1.20.0 of the toolkit, but version is 1.19.0"),
        ({"minimum_version": "1.21.0", "minimum_version_policy": "fail"}, "minimum_version_policy: warn"),
        ({"low_level_runtimes": ()}, "low_level_runtimes is empty"),
        ({"low_level_runtimes": (f"{DEST}/x",)}, "would call itself"),
        ({"default_runtime": "a/b"}, "default_runtime_executable"),
        ({"settings": {"nonsense": 1}}, "nonsense is not a setting"),
        ({"src": None}, "either src"),
        ({"src": "/srv", "files": ("/srv/x.deb",)}, "either src"),
        ({"src": "/nowhere"}, "src /nowhere is not a directory"),
        ({"src": f"{DEST}.versions/x"}, "which is to be installed from it"),
        ({"components": ("nothing",)}, "components has no nothing"),
        ({"backup_dir": f"{DEST}/backups"}, "backup_dir"),
        ({"dest": "toolkit"}, "not an absolute path"),
        ({"dest": "/opt/a:b"}, "holds :"),
    ],
)
@pytest.mark.parametrize("host", ["old"], indirect=True)
def test_what_is_asked_cannot_be(options: dict[str, t.Any], words: str, host: Host) -> None:
    refused(host, words, **options)


@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_an_old_version_is_installed_nevertheless(policy: str, host: Host) -> None:
    assert host.install(NEW, minimum_version="1.21.0", minimum_version_policy=policy).changed
    assert any("1.21.0" in warning for warning in host.warnings) is (policy == "warn")


def test_parts_of_several_versions(host: Host) -> None:
    tree(host.root / "srv/other", OLD, machine=MACHINE)
    (host.root / "srv/other" / CTK).replace(host.root / f"srv/{NEW}" / CTK)
    refused(host, "parts of several versions")


def test_a_program_that_does_not_run(host: Host) -> None:
    (host.root / f"srv/{NEW}" / CTK).write_bytes(program("echo 'no GLIBC_2.99' >&2; exit 1", MACHINE))
    refused(host, "The new nvidia-ctk does not run on this host: no GLIBC_2.99")


def test_another_machine(host: Host) -> None:
    tree(host.root / f"srv/{NEW}", NEW, machine=AARCH64 if MACHINE == X86_64 else X86_64)
    for path in (host.root / f"srv/{NEW}/usr/lib").rglob(f"{'x86_64' if MACHINE == X86_64 else 'aarch64'}*/*"):
        path.unlink()
    refused(host, "but the host is")


def state_of_file_system(**values: int) -> t.Callable[[str], types.SimpleNamespace]:
    usual = {"f_flag": 0, "f_bavail": 1 << 20, "f_frsize": 4096}
    return lambda _path: types.SimpleNamespace(**{**usual, **values})


def test_no_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", state_of_file_system(f_bavail=200))
    refused(host, "has 0 MiB left")


def test_noexec(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", state_of_file_system(f_flag=os.ST_NOEXEC))
    refused(host, "mounted noexec")


@pytest.mark.parametrize("name", ["versions/.new", "toolkit.versions.new"])
def test_read_only(name: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def refuse(path: str, mode: int = 0o777, **named: t.Any) -> None:
        if str(path).endswith(name):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        mkdir(path, mode, **named)

    if name == "toolkit.versions.new" and host.versions.exists():
        return
    monkeypatch.setattr(os, "mkdir", refuse)
    refused(host, "Read-only file system")


@pytest.mark.parametrize("call", range(1, 12))
def test_a_disk_that_fills_up(call: int, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def full(path: str, mode: int, chunks: t.Iterable[bytes]) -> str:
        calls.append(path)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return toolkit_manifest.create(path, mode, chunks)

    monkeypatch.setattr(toolkit_manifest, "create", full)
    refused(host, "Make room")


def test_a_source_that_changes_while_it_is_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = itertools.count()
    monkeypatch.setattr(toolkit_manifest, "read_chunks", lambda _path: [str(next(texts)).encode()])
    refused(host, "has changed while it was read")


def test_a_host_without_a_shell(host: Host) -> None:
    (host.root / "bin/sh").unlink()
    refused(host, "has no /bin/sh")


def test_fapolicyd(host: Host) -> None:
    assert host.install(NEW, check=True).changed
    assert not host.warnings
    (host.root / "run/fapolicyd").mkdir()
    (host.root / "run/fapolicyd/fapolicyd.fifo").touch()
    host.install(NEW)
    assert any(f"fapolicyd-cli --file add {DEST}.versions/" in warning for warning in host.warnings)
    host.install(NEW)
    assert not host.warnings


def test_the_installer_runs(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.dest.mkdir()
    lock = tmp_path / "run/nvidia/toolkit/toolkit.pid"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused(host, "belongs to NVIDIA's toolkit container, which runs on this host")
    assert host.install(NEW).changed


def test_device_nodes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, made = [Node("/dev/nvidiactl", 195, 255)], []
    monkeypatch.setattr(device_nodes, "missing_nodes", lambda _host, _root: (nodes, ["a warning"]))
    monkeypatch.setattr(device_nodes, "make_nodes", lambda _host, found, _run: made.extend(found))
    host.install(NEW)
    assert not made
    assert host.install(NEW, check=True, create_device_nodes=True).device_nodes == ("/dev/nvidiactl",)
    assert not made
    result = host.install(NEW, create_device_nodes=True)
    assert result.changed
    assert result.device_nodes == ("/dev/nvidiactl",)
    assert made == nodes
    assert host.warnings == ["a warning"]
    nodes.clear()
    assert not host.install(NEW, create_device_nodes=True).changed


def test_a_tree_has_no_devices(tmp_path: Path) -> None:
    refused(Host(tmp_path), "create_device_nodes: false", create_device_nodes=True)
