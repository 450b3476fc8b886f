# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import types
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.device_nodes import CharacterDevice
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import AARCH64, X86_64
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import program, tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    DEST,
    MACHINE,
    NEW,
    OLD,
    VERSIONS,
    Host,
    Killer,
    Tree,
    plain_tree,
    refusal,
    tree_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.one_python


CTK = "usr/bin/nvidia-ctk"


@pytest.fixture(params=["nothing", "old"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Return a live host, with and without an installed version."""
    host = Host(tmp_path, live=True)
    if request.param == "old":
        host.install(OLD)
    host.source(NEW)
    return host


def rest(host: Host) -> Tree:
    return {name: entry for name, entry in tree_of(host.root).items() if not name.startswith("srv")}


def refused(host: Host, message: str, **options: t.Any) -> None:
    """Check that the installation fails and changes nothing."""
    before = rest(host)
    assert message in refusal(lambda: host.install(NEW, **options))
    assert rest(host) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "1.19.0"}, "contains version 1.20.0 of the toolkit, but version is 1.19.0"),
        ({"minimum_version": "1.21.0", "minimum_version_policy": "fail"}, "minimum_version_policy: warn"),
        ({"low_level_runtimes": ()}, "low_level_runtimes is empty"),
        ({"low_level_runtimes": (f"{DEST}/x",)}, "would start itself"),
        ({"default_runtime": "a/b"}, "default_runtime_executable"),
        ({"settings": {"nonsense": 1}}, "nonsense is not a known setting"),
        ({"src": None}, "either src"),
        ({"src": "/srv", "files": ("/srv/x.deb",)}, "either src"),
        ({"src": "/nowhere"}, "src /nowhere is not a directory"),
        ({"src": f"{DEST}.versions/x"}, "the directory to install into"),
        ({"components": ("nothing",)}, "components contains unknown names: nothing"),
        ({"backup_dir": f"{DEST}/backups"}, "backup_dir"),
        ({"dest": "toolkit"}, "not an absolute path"),
        ({"dest": "/opt/a:b"}, "contains :"),
    ],
)
@pytest.mark.parametrize("host", ["old"], indirect=True)
def test_rejects_invalid_options(options: dict[str, t.Any], message: str, host: Host) -> None:
    refused(host, message, **options)


@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_warns_about_an_old_version(policy: str, host: Host) -> None:
    assert host.install(NEW, minimum_version="1.21.0", minimum_version_policy=policy).changed
    assert any("1.21.0" in warning for warning in host.warnings) is (policy == "warn")


def test_rejects_parts_of_several_versions(host: Host) -> None:
    tree(host.root / "srv/other", OLD, machine=MACHINE)
    (host.root / "srv/other" / CTK).replace(host.root / f"srv/{NEW}" / CTK)
    refused(host, "parts of several versions")


def test_rejects_programs_that_do_not_run(host: Host) -> None:
    (host.root / f"srv/{NEW}" / CTK).write_bytes(program("echo 'no GLIBC_2.99' >&2; exit 1", MACHINE))
    refused(host, "The new nvidia-ctk does not run on this host: no GLIBC_2.99")


def test_rejects_another_machine(host: Host) -> None:
    tree(host.root / f"srv/{NEW}", NEW, machine=AARCH64 if MACHINE == X86_64 else X86_64)
    for path in (host.root / f"srv/{NEW}/usr/lib").rglob(f"{'x86_64' if MACHINE == X86_64 else 'aarch64'}*/*"):
        path.unlink()
    refused(host, "but the host is")


def state_of_file_system(**values: int) -> t.Callable[[str], types.SimpleNamespace]:
    usual = {"f_flag": 0, "f_bavail": 1 << 20, "f_frsize": 4096}
    return lambda _path: types.SimpleNamespace(**{**usual, **values})


def test_rejects_a_full_file_system(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", state_of_file_system(f_bavail=200))
    refused(host, "has 0 MiB of free space")


def test_rejects_noexec(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", state_of_file_system(f_flag=os.ST_NOEXEC))
    refused(host, "mounted noexec")


@pytest.mark.parametrize("name", ["versions/.new", "toolkit.versions.new"])
def test_read_only_file_system(name: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_file_system_that_becomes_full(call: int, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    create = toolkit_manifest.create

    def full(path: str, mode: int, chunks: t.Iterable[bytes]) -> str:
        calls.append(path)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return create(path, mode, chunks)

    monkeypatch.setattr(toolkit_manifest, "create", full)
    refused(host, "Free space")


def test_source_that_changes_while_it_is_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = itertools.count()
    monkeypatch.setattr(toolkit_manifest, "read_chunks", lambda _path: [str(next(texts)).encode()])
    refused(host, "changed while it was read")


def test_fapolicyd(host: Host) -> None:
    assert host.install(NEW, check=True).changed
    assert not host.warnings
    (host.root / "run/fapolicyd").mkdir()
    (host.root / "run/fapolicyd/fapolicyd.fifo").touch()
    host.install(NEW)
    assert any(f"fapolicyd-cli --file add {DEST}.versions/" in warning for warning in host.warnings)
    host.install(NEW)
    assert not host.warnings


def test_refuses_while_the_installer_runs(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.dest.mkdir()
    lock = tmp_path / "run/nvidia/toolkit/toolkit.pid"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        refused(host, "NVIDIA's toolkit container manages")
    assert host.install(NEW).changed


def test_device_nodes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, made = [CharacterDevice("/dev/nvidiactl", 195, 255)], []
    monkeypatch.setattr(device_nodes, "missing_nodes", lambda _host, _root: (nodes, ["a warning"]))
    monkeypatch.setattr(device_nodes, "create_nodes", lambda _host, found, _run: made.extend(found))
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


def test_rejects_device_nodes_in_an_offline_tree(tmp_path: Path) -> None:
    refused(Host(tmp_path), "create_device_nodes: false", create_device_nodes=True)


# -- Killed runs -----------------------------------------------------------------------------------------------------

# Few files of all types: a program, its wrapper, a link, and config.toml.
FEW: dict[str, t.Any] = {"components": ("hook",)}
# More changes than a run makes.
MANY = 500

CutOff = t.Callable[..., t.Iterator[t.Tuple[int, Host]]]


def nothing(_host: Host) -> None:
    pass


def old_version(host: Host) -> None:
    host.install("1.18.0", **FEW)
    host.install(OLD, **FEW)


def damaged_version(host: Host) -> None:
    host.install(OLD, **FEW)
    (host.dest / "nvidia-container-runtime-hook").unlink()


def directory(host: Host) -> None:
    (host.dest / ".config/nvidia-container-runtime").mkdir(parents=True)
    (host.dest / "nvidia-ctk").write_text("of NVIDIA's installer")
    (host.dest / ".config/nvidia-container-runtime/config.toml").write_text("disable-require = true\n")
    host.dest.chmod(0o750)


def empty_directory(host: Host) -> None:
    host.dest.mkdir()


def foreign_link(host: Host) -> None:
    (host.dest.parent / "other").mkdir()
    (host.dest.parent / "other/nvidia-ctk").write_text("foreign")
    host.dest.symlink_to("other")


def dangling_link(host: Host) -> None:
    host.dest.symlink_to("/nowhere")


STARTS = [nothing, old_version, damaged_version, directory, empty_directory, foreign_link, dangling_link]
FIRSTS = [nothing, directory, foreign_link]


def view(host: Host) -> Tree | str | None:
    """Return the content of dest as a container start finds it, or None."""
    if not host.dest.exists():
        return "dangling" if host.dest.is_symlink() else None
    return plain_tree(host.dest.resolve())


def left(host: Host) -> Tree:
    """Return the tree without files that a reboot removes."""
    return {
        name: entry for name, entry in plain_tree(host.root).items() if name.partition("/")[0] not in ("run", "srv")
    }


class PreparedHost:
    """A tree that is prepared once, and copied for each try."""

    def __init__(self, folder: Path, start: t.Callable[[Host], None]) -> None:
        self._folder = folder
        self._prepared = folder.with_name(f"{folder.name}-prepared")
        host = Host(self._prepared)
        host.source(NEW)
        start(host)

    def copy(self) -> Host:
        shutil.rmtree(str(self._folder), ignore_errors=True)
        shutil.copytree(str(self._prepared), str(self._folder), symlinks=True)
        return Host(self._folder)


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch, kill_points: t.Callable[..., list[int]]) -> CutOff:
    """Yields hosts on which a run was killed, each before another change."""
    killer = Killer(monkeypatch)

    def hosts(
        prepared: PreparedHost, work: t.Callable[[Host], object], offset: int = 0
    ) -> t.Iterator[tuple[int, Host]]:
        host = prepared.copy()
        assert not killer.kills(MANY, lambda: work(host))
        assert killer.done > 5
        for number in kill_points(killer.done, offset):
            host = prepared.copy()
            assert killer.kills(number, lambda host=host: work(host))  # type: ignore[misc]
            yield number, host

    return hosts


def install(host: Host) -> object:
    return host.install(NEW, **FEW)


def removed(host: Host) -> object:
    return host.remove()


def removed_tree(prepared: PreparedHost) -> Tree:
    host = prepared.copy()
    host.remove()
    return left(host)


@pytest.mark.parametrize("start", STARTS)
def test_killed_installation(start: t.Callable[[Host], None], tmp_path: Path, cut_off: CutOff) -> None:
    """dest has the previous content or the complete new version, and the next run has the usual result."""
    prepared = PreparedHost(tmp_path / "host", start)
    host = prepared.copy()
    before = view(host)
    install(host)
    after, whole, gone = view(host), left(host), removed_tree(prepared)
    seen = set()
    for number, host in cut_off(prepared, install, STARTS.index(start)):
        found = view(host)
        assert found in (before, after), number
        seen.add(found == after)
        install(host)
        assert left(host) == whole, number
        assert not host.install(NEW, **FEW).changed, number
        host.remove()
        assert left(host) == gone, number
    # In the other cases, nothing is changed after the switch.
    assert seen == {False, start in (old_version, directory, empty_directory)}


@pytest.mark.parametrize("start", [*FIRSTS, old_version])
def test_removal_after_a_killed_installation(start: t.Callable[[Host], None], tmp_path: Path, cut_off: CutOff) -> None:
    prepared = PreparedHost(tmp_path / "host", start)
    gone = removed_tree(prepared)
    for number, host in cut_off(prepared, install, STARTS.index(start)):
        host.remove()
        assert left(host) == gone, number
        assert not host.remove().changed, number


@pytest.mark.parametrize("start", FIRSTS)
@pytest.mark.parametrize("then", [removed, install])
def test_killed_removal(
    start: t.Callable[[Host], None],
    then: t.Callable[[Host], object],
    tmp_path: Path,
    cut_off: CutOff,
) -> None:
    """dest has the complete version or the original content."""

    def installed(host: Host) -> None:
        start(host)
        old_version(host)

    first, prepared = PreparedHost(tmp_path / "first", start), PreparedHost(tmp_path / "host", installed)
    host = first.copy()
    gone, former = left(host), view(host)
    install(host)
    again, whole = view(host), view(prepared.copy())
    for number, host in cut_off(prepared, removed, STARTS.index(start)):
        assert view(host) in (whole, former), number
        then(host)
        if then is install:
            assert view(host) == again, number
            host.remove()
        assert left(host) == gone, number
        assert not host.remove().changed, number


def test_killed_run_leaves_at_most_empty_directories(tmp_path: Path, cut_off: CutOff) -> None:
    """Created directories without a list may remain, but they are empty."""

    def no_folder(host: Host) -> None:
        host.dest.parent.rmdir()

    prepared = PreparedHost(tmp_path / "host", no_folder)
    gone = left(prepared.copy())
    folders = {VERSIONS[1:].rsplit("/", 1)[0]: ("folder", 0o755)}
    for number, host in cut_off(prepared, install):
        install(host)
        host.remove()
        found = left(host)
        assert found in (gone, {**gone, **folders}), number


@pytest.mark.parametrize("name", ["", "/.config"])
def test_removal_reports_a_directory_that_it_cannot_remove(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    host.source(OLD)
    before = left(host)
    host.install(OLD, **FEW)
    kept, really_remove = f"{host.current()}{name}", os.rmdir

    def remove(path: str, **more: t.Any) -> None:
        if path.rstrip("/") == kept:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        really_remove(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", remove)
        assert "cannot be removed: Input/output error" in refusal(host.remove)
    host.remove()
    assert left(host) == before
