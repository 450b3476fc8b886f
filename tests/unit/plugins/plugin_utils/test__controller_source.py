# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import fcntl
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import tarfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.source import (
    ControllerSource,
    SourceReader,
)
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _controller_source
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._controller_source import (
    Toolkit,
    toolkit_in_directory,
    toolkit_in_packages,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree

needs_dpkg_deb = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb: apt install dpkg")
# Seconds to wait for a process.
PATIENCE = 60
LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.20.0"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A toolkit of version 1.20.0 for x86-64."""
    root = tmp_path / "source"
    tree(root, "1.20.0")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expensive steps, in the order of their execution."""
    done: list[str] = []

    def count(name: str) -> None:
        original = getattr(_controller_source, name)

        def counting(*args: t.Any, **kwargs: t.Any) -> t.Any:
            done.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(_controller_source, name, counting)

    for name in ("_unpack", "_write_digests", "_pack"):
        count(name)
    return done


def package(folder: Path, root: Path) -> Path:
    """Return a package with all files of ``root``."""
    work = folder / "work"
    shutil.copytree(root, work, symlinks=True)
    (work / "DEBIAN").mkdir()
    (work / "DEBIAN/control").write_text(
        "Package: toolkit\nVersion: 1\nArchitecture: all\nMaintainer: m <m@example.com>\nDescription: d\n"
    )
    path = folder / "toolkit.deb"
    subprocess.run(["dpkg-deb", "--build", str(work), str(path)], check=True, capture_output=True)
    shutil.rmtree(work)
    return path


def left(cache: Path) -> list[str]:
    return sorted({path.name.rpartition("-")[0] for path in cache.iterdir() if path.name != "gpufleet-toolkit.lock"})


class TestContent:
    def test_directory_has_the_same_parts_as_on_the_host(self, source: Path, cache: Path) -> None:
        on_host = SourceReader(HostFS("/", live=False), None, thorough=False).from_tree(str(source), None)
        assert toolkit_in_directory(str(source), None, str(cache)).parts == on_host.parts

    def test_selected_components(self, source: Path, cache: Path) -> None:
        (part,) = toolkit_in_directory(str(source), ["ctk"], str(cache)).parts
        content = (source / "usr/bin/nvidia-ctk").read_bytes()
        assert (part.name, part.size, part.sha256) == ("nvidia-ctk", len(content), hashlib.sha256(content).hexdigest())

    @needs_dpkg_deb
    def test_packages(self, source: Path, cache: Path, tmp_path: Path) -> None:
        packages = [str(package(tmp_path, source))]
        assert (
            toolkit_in_packages(packages, None, str(cache)).parts
            == toolkit_in_directory(str(source), None, str(cache)).parts
        )

    def test_host_gets_the_same_bytes(self, source: Path, cache: Path, tmp_path: Path) -> None:
        toolkit = toolkit_in_directory(str(source), None, str(cache))
        host = tmp_path / "host"
        (host / "tmp").mkdir(parents=True)
        reader = SourceReader(HostFS(str(host), live=False), None, thorough=False)
        received = reader.from_controller(ControllerSource(toolkit.parts, toolkit.archive())).fetch()
        assert {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in received.items()} == {
            part.name: part.sha256 for part in toolkit.parts
        }
        reader.close()

    def test_archive_has_only_regular_files(self, source: Path, cache: Path) -> None:
        # A hard link.
        runtime = source / "usr/bin/nvidia-container-runtime"
        (source / "usr/bin/nvidia-container-runtime.cdi").unlink()
        os.link(str(runtime), str(source / "usr/bin/nvidia-container-runtime.cdi"))
        toolkit = toolkit_in_directory(str(source), None, str(cache))
        with tarfile.open(toolkit.archive()) as archive:
            members = archive.getmembers()
        assert [member.name for member in members] == [part.name for part in toolkit.parts]
        assert all(member.isreg() for member in members)


class TestCache:
    @needs_dpkg_deb
    def test_second_host_uses_the_cache(self, source: Path, cache: Path, tmp_path: Path, counted: list[str]) -> None:
        packages = [str(package(tmp_path, source))]
        archives = {toolkit_in_packages(packages, None, str(cache)).archive() for _host in range(3)}
        assert counted == ["_unpack", "_write_digests", "_pack"]
        assert len(archives) == 1
        assert left(cache) == [f"gpufleet-toolkit-{kind}" for kind in ("archive", "digests", "unpacked")]

    def test_packs_only_on_request(self, source: Path, cache: Path, counted: list[str]) -> None:
        toolkit_in_directory(str(source), None, str(cache))
        assert counted == ["_write_digests"]

    def test_reads_changed_files_again(self, source: Path, cache: Path, counted: list[str]) -> None:
        before = toolkit_in_directory(str(source), None, str(cache))
        first = before.archive()
        library = source / LIBRARY
        library.write_bytes(library.read_bytes() + b"more")
        after = toolkit_in_directory(str(source), None, str(cache))
        changed = [new.name for old, new in zip(before.parts, after.parts) if old != new]
        assert changed == [library.name]
        assert after.archive() != first
        assert counted == ["_write_digests", "_pack"] * 2

    @needs_dpkg_deb
    def test_unpacks_changed_package_again(self, source: Path, cache: Path, tmp_path: Path) -> None:
        packages = [str(package(tmp_path, source))]
        before = toolkit_in_packages(packages, None, str(cache))
        library = source / LIBRARY
        library.write_bytes(library.read_bytes() + b"more")
        package(tmp_path, source)
        assert toolkit_in_packages(packages, None, str(cache)).parts != before.parts

    def test_components_have_separate_archives(self, source: Path, cache: Path) -> None:
        archives = {toolkit_in_directory(str(source), some, str(cache)).archive() for some in (None, ["ctk"], ["hook"])}
        assert len(archives) == 3

    def test_concurrent_processes_share_the_result(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = cache.parent / "made"
        made.touch()
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(4)

        def make(path: str) -> None:
            with made.open("a") as stream:
                stream.write("x")
            Path(path).write_text("complete")

        lock = fcntl.flock

        def lock_when_all_processes_wait(*args: t.Any) -> None:
            barrier.wait(PATIENCE)
            lock(*args)

        monkeypatch.setattr(fcntl, "flock", lock_when_all_processes_wait)

        def fork() -> None:
            path = _controller_source._once(str(cache), "thing", ["key"], make)
            assert Path(path).read_text() == "complete"

        forks = [context.Process(target=fork) for _fork in range(4)]
        for each in forks:
            each.start()
        for each in forks:
            each.join(PATIENCE)
        assert [each.exitcode for each in forks] == [0] * 4
        assert made.read_text() == "x"

    def test_repeats_a_failed_step(self, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        toolkit = toolkit_in_directory(str(source), None, str(cache))

        def fail(_parts: object, path: str) -> t.NoReturn:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", path)

        with monkeypatch.context() as patch:
            patch.setattr(_controller_source, "_pack", fail)
            with pytest.raises(HostError, match=r"No space left on device\. Free space there, or set local_tmp"):
                toolkit.archive()
        assert left(cache) == ["gpufleet-toolkit-digests"]
        assert tarfile.is_tarfile(toolkit.archive())


class TestErrors:
    def error_of(self, read: t.Callable[[], Toolkit]) -> str:
        with pytest.raises(NvidiaError) as caught:
            read()
        return str(caught.value)

    @pytest.mark.parametrize("name", ["missing", "source/usr/bin/nvidia-ctk"])
    def test_source_is_not_a_directory(self, source: Path, cache: Path, name: str) -> None:
        path = source.parent / name
        assert self.error_of(lambda: toolkit_in_directory(str(path), None, str(cache))).startswith(
            f"src {path} on the controller is not a directory. Set a directory that contains"
        )

    def test_incomplete_toolkit(self, source: Path, cache: Path) -> None:
        (source / "usr/bin/nvidia-ctk").unlink()
        found = self.error_of(lambda: toolkit_in_directory(str(source), None, str(cache)))
        assert found.startswith(f"src {source} on the controller does not contain nvidia-ctk.")
        assert left(cache) == []

    @needs_dpkg_deb
    def test_incomplete_packages(self, source: Path, cache: Path, tmp_path: Path) -> None:
        (source / "usr/bin/nvidia-ctk").unlink()
        packages = [str(package(tmp_path, source))]
        found = self.error_of(lambda: toolkit_in_packages(packages, None, str(cache)))
        assert found.startswith("The toolkit in the packages on the controller does not contain nvidia-ctk.")

    def test_file_is_not_a_package(self, cache: Path, tmp_path: Path) -> None:
        path = tmp_path / "toolkit.deb"
        path.write_bytes(b"<html>")
        found = self.error_of(lambda: toolkit_in_packages([str(path)], None, str(cache)))
        assert found.startswith(f"{path} is neither a .deb nor an .rpm package.")
        assert left(cache) == []

    def test_tool_prints_english(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "toolkit.deb"
        path.write_bytes(b"!<arch>\n")
        tool = tmp_path / "dpkg-deb"
        tool.write_text('#!/bin/sh\necho "$LC_ALL $LANGUAGE" >&2\nexit 2\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        # A language without translations, since the C library remembers translated errors for later tests.
        monkeypatch.setenv("LANGUAGE", "xx")
        found = self.error_of(lambda: toolkit_in_packages([str(path)], None, str(cache)))
        assert "dpkg-deb failed: C.UTF-8 C. " in found

    def test_permission_error_on_the_controller(
        self, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        denied = PermissionError(errno.EACCES, "Permission denied", "/srv/toolkit/usr/bin/nvidia-ctk")

        def refuse(*_args: object) -> t.NoReturn:
            raise HostError("Run the task as root (become: true).") from denied

        def deny(*_args: object) -> t.NoReturn:
            raise denied

        places = ((toolkit_source, "find_parts", refuse), (toolkit_manifest, "sha256_of", deny), (os, "stat", deny))
        for owner, name, broken in places:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, broken)
                message = self.error_of(lambda: toolkit_in_directory(str(source), None, str(cache)))
                assert message.startswith("/srv/toolkit/usr/bin/nvidia-ctk on the controller: Permission denied. ")
                assert "become: true" not in message
