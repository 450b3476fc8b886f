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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import source as toolkit_source
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.source import ControllerSource, SourceReader
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _toolkit_offer
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._toolkit_offer import Offer, offer_packages, offer_tree
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree

needs_dpkg_deb = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not here")
# As long as a process of this takes at most, in seconds.
PATIENCE = 60
LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.20.0"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A toolkit of 1.20.0 for x86-64."""
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
    """The steps that took time, as they are done."""
    done: list[str] = []

    def count(name: str) -> None:
        original = getattr(_toolkit_offer, name)

        def counting(*args: t.Any, **kwargs: t.Any) -> t.Any:
            done.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(_toolkit_offer, name, counting)

    for name in ("_unpack", "_write_digests", "_pack"):
        count(name)
    return done


def package(folder: Path, root: Path) -> Path:
    """All of ``root`` as one package; what it is called does not matter."""
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


class TestWhatIsOffered:
    def test_a_directory_as_the_host_itself_would_see_it(self, source: Path, cache: Path) -> None:
        on_host = SourceReader(HostFS("/", live=False), None, thorough=False).root(str(source), None)
        assert offer_tree(str(source), None, str(cache)).parts == on_host.parts

    def test_some_components(self, source: Path, cache: Path) -> None:
        (part,) = offer_tree(str(source), ["ctk"], str(cache)).parts
        content = (source / "usr/bin/nvidia-ctk").read_bytes()
        assert (part.name, part.size, part.sha256) == ("nvidia-ctk", len(content), hashlib.sha256(content).hexdigest())

    @needs_dpkg_deb
    def test_packages(self, source: Path, cache: Path, tmp_path: Path) -> None:
        packages = [str(package(tmp_path, source))]
        assert offer_packages(packages, None, str(cache)).parts == offer_tree(str(source), None, str(cache)).parts

    def test_the_host_gets_every_byte(self, source: Path, cache: Path, tmp_path: Path) -> None:
        offer = offer_tree(str(source), None, str(cache))
        host = tmp_path / "host"
        (host / "tmp").mkdir(parents=True)
        reader = SourceReader(HostFS(str(host), live=False), None, thorough=False)
        received = reader.sent(ControllerSource(offer.parts, offer.archive())).fetch()
        assert {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in received.items()} == {
            part.name: part.sha256 for part in offer.parts
        }
        reader.close()

    def test_the_archive_has_nothing_but_plain_files(self, source: Path, cache: Path) -> None:
        # Two names of one file.
        runtime = source / "usr/bin/nvidia-container-runtime"
        (source / "usr/bin/nvidia-container-runtime.cdi").unlink()
        os.link(str(runtime), str(source / "usr/bin/nvidia-container-runtime.cdi"))
        offer = offer_tree(str(source), None, str(cache))
        with tarfile.open(offer.archive()) as archive:
            members = archive.getmembers()
        assert [member.name for member in members] == [part.name for part in offer.parts]
        assert all(member.isreg() for member in members)


class TestOnce:
    @needs_dpkg_deb
    def test_the_second_host_costs_nothing(self, source: Path, cache: Path, tmp_path: Path, counted: list[str]) -> None:
        packages = [str(package(tmp_path, source))]
        archives = {offer_packages(packages, None, str(cache)).archive() for _host in range(3)}
        assert counted == ["_unpack", "_write_digests", "_pack"]
        assert len(archives) == 1
        assert left(cache) == [f"gpufleet-toolkit-{kind}" for kind in ("archive", "digests", "unpacked")]

    def test_nothing_is_packed_before_a_host_asks(self, source: Path, cache: Path, counted: list[str]) -> None:
        offer_tree(str(source), None, str(cache))
        assert counted == ["_write_digests"]

    def test_what_changed_is_read_again(self, source: Path, cache: Path, counted: list[str]) -> None:
        before = offer_tree(str(source), None, str(cache))
        first = before.archive()
        library = source / LIBRARY
        library.write_bytes(library.read_bytes() + b"more")
        after = offer_tree(str(source), None, str(cache))
        changed = [new.name for old, new in zip(before.parts, after.parts) if old != new]
        assert changed == [library.name]
        assert after.archive() != first
        assert counted == ["_write_digests", "_pack"] * 2

    @needs_dpkg_deb
    def test_another_package_of_the_same_name_is_unpacked(self, source: Path, cache: Path, tmp_path: Path) -> None:
        packages = [str(package(tmp_path, source))]
        before = offer_packages(packages, None, str(cache))
        library = source / LIBRARY
        library.write_bytes(library.read_bytes() + b"more")
        package(tmp_path, source)
        assert offer_packages(packages, None, str(cache)).parts != before.parts

    def test_components_have_archives_of_their_own(self, source: Path, cache: Path) -> None:
        archives = {offer_tree(str(source), some, str(cache)).archive() for some in (None, ["ctk"], ["hook"])}
        assert len(archives) == 3

    def test_forks_that_come_at_the_same_moment_share_the_work(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = cache.parent / "made"
        made.touch()
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(4)

        def make(path: str) -> None:
            with made.open("a") as stream:
                stream.write("x")
            Path(path).write_text("complete")

        lock = fcntl.flock

        def lock_when_all_have_looked(*args: t.Any) -> None:
            barrier.wait(PATIENCE)
            lock(*args)

        monkeypatch.setattr(fcntl, "flock", lock_when_all_have_looked)

        def fork() -> None:
            path = _toolkit_offer._once(str(cache), "thing", ["key"], make)
            assert Path(path).read_text() == "complete"

        forks = [context.Process(target=fork) for _fork in range(4)]
        for each in forks:
            each.start()
        for each in forks:
            each.join(PATIENCE)
        assert [each.exitcode for each in forks] == [0] * 4
        assert made.read_text() == "x"

    def test_what_failed_is_done_again(self, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        offer = offer_tree(str(source), None, str(cache))

        def fail(_parts: object, path: str) -> t.NoReturn:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", path)

        with monkeypatch.context() as patch:
            patch.setattr(_toolkit_offer, "_pack", fail)
            with pytest.raises(HostError, match=r"No space left on device\. Make room there, or let local_tmp"):
                offer.archive()
        assert left(cache) == ["gpufleet-toolkit-digests"]
        assert tarfile.is_tarfile(offer.archive())


class TestRefusals:
    def refusal(self, offering: t.Callable[[], Offer]) -> str:
        with pytest.raises(NvidiaError) as caught:
            offering()
        return str(caught.value)

    @pytest.mark.parametrize("name", ["missing", "source/usr/bin/nvidia-ctk"])
    def test_no_directory(self, source: Path, cache: Path, name: str) -> None:
        path = source.parent / name
        assert self.refusal(lambda: offer_tree(str(path), None, str(cache))).startswith(
            f"nvidia_toolkit_src (src) {path} on the controller is not a directory. Give the one that holds usr/bin"
        )

    def test_not_a_whole_toolkit(self, source: Path, cache: Path) -> None:
        (source / "usr/bin/nvidia-ctk").unlink()
        found = self.refusal(lambda: offer_tree(str(source), None, str(cache)))
        assert found.startswith(f"nvidia_toolkit_src (src) {source} on the controller lacks nvidia-ctk.")
        assert left(cache) == []

    @needs_dpkg_deb
    def test_packages_that_are_not_all(self, source: Path, cache: Path, tmp_path: Path) -> None:
        (source / "usr/bin/nvidia-ctk").unlink()
        packages = [str(package(tmp_path, source))]
        found = self.refusal(lambda: offer_packages(packages, None, str(cache)))
        assert found.startswith("What the packages on the controller hold lacks nvidia-ctk.")

    def test_no_package(self, cache: Path, tmp_path: Path) -> None:
        path = tmp_path / "toolkit.deb"
        path.write_bytes(b"<html>")
        found = self.refusal(lambda: offer_packages([str(path)], None, str(cache)))
        assert found.startswith(f"{path} is neither a .deb nor an .rpm package.")
        assert left(cache) == []

    @pytest.mark.parametrize(("magic", "tool"), [(b"!<arch>\n", "dpkg-deb"), (b"\xed\xab\xee\xdb", "rpm2cpio")])
    def test_a_controller_without_the_tool(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: bytes, tool: str
    ) -> None:
        path = tmp_path / "toolkit.package"
        path.write_bytes(magic)
        monkeypatch.setenv("PATH", str(tmp_path))
        found = self.refusal(lambda: offer_packages([str(path)], None, str(cache)))
        assert found.startswith(f"{tool} is not on the controller; set remote_src: true")

    @needs_dpkg_deb
    def test_a_package_that_is_cut_off(self, source: Path, cache: Path, tmp_path: Path) -> None:
        path = package(tmp_path, source)
        os.truncate(str(path), path.stat().st_size // 2)
        found = self.refusal(lambda: offer_packages([str(path)], None, str(cache)))
        assert found.startswith(f"{path} cannot be unpacked. dpkg-deb says: ")
        assert left(cache) == []

    def test_the_tool_speaks_english(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "toolkit.deb"
        path.write_bytes(b"!<arch>\n")
        tool = tmp_path / "dpkg-deb"
        tool.write_text('#!/bin/sh\necho "$LC_ALL $LANGUAGE" >&2\nexit 2\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        monkeypatch.setenv("LANGUAGE", "de")
        found = self.refusal(lambda: offer_packages([str(path)], None, str(cache)))
        assert "dpkg-deb says: C.UTF-8 C. " in found

    def test_become_helps_nobody_here(self, source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        denied = PermissionError(errno.EACCES, "Permission denied", "/srv/toolkit/usr/bin/nvidia-ctk")

        def refuse(*_args: object) -> t.NoReturn:
            raise HostError("Run the task as root (become: true).") from denied

        def deny(*_args: object) -> t.NoReturn:
            raise denied

        source_module, manifest = toolkit_source, toolkit_manifest
        for owner, name, broken in ((source_module, "find_parts", refuse), (manifest, "digest_of", deny)):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, broken)
                assert self.refusal(lambda: offer_tree(str(source), None, str(cache))) == (
                    "/srv/toolkit/usr/bin/nvidia-ctk on the controller: Permission denied. Give the user that runs"
                    " Ansible the right to it; become works on hosts only."
                )
