# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import source as toolkit_source
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.manifest import Manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.source import (
    ControllerSource,
    NotSentError,
    Source,
    SourceReader,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    NEW,
    OLD,
    Host,
    refusal,
    tree_of,
)

DEB = "/srv/toolkit.deb"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """With a source, and a package, for which a folder beside it stands."""
    host = Host(tmp_path)
    host.source(NEW)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    shutil.copytree(str(tmp_path / f"srv/{NEW}/usr"), str(tmp_path / f"{DEB[1:]}.content"), symlinks=True)
    (tmp_path / DEB[1:]).write_text("a package")
    return host


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content was read, by their names."""
    found: list[str] = []
    really = toolkit_manifest.sha256_of

    def counted(path: str) -> str:
        found.append(os.path.basename(path))
        return really(path)

    monkeypatch.setattr(toolkit_manifest, "sha256_of", counted)
    return found


def manifest(source: Source, components: tuple[str, ...] | None = None) -> Manifest:
    return Manifest("x", NEW, None, components, source.parts, source.sources, {})


def reader(host: Host, before: Manifest | None = None, thorough: bool = False) -> SourceReader:
    return SourceReader(host.host, before, thorough=thorough)


def test_what_is_unchanged_is_not_read_again(host: Host, digested: list[str]) -> None:
    first = reader(host).from_tree(f"/srv/{NEW}", None)
    assert len(digested) == len(first.parts) == 9
    digested.clear()
    second = reader(host, manifest(first)).from_tree(f"/srv/{NEW}", None)
    assert digested == []
    assert second[:2] == first[:2]
    assert reader(host, manifest(first), thorough=True).from_tree(f"/srv/{NEW}", None)[:2] == first[:2]
    assert len(digested) == 9


def test_only_what_has_changed_is_read(host: Host, digested: list[str]) -> None:
    first = reader(host).from_tree(f"/srv/{NEW}", None)
    ctk, cli = (host.root / f"srv/{NEW}/usr/bin/{name}" for name in ("nvidia-ctk", "nvidia-container-cli"))
    ctk.write_bytes(ctk.read_bytes() + b"\0")
    os.utime(str(cli), ns=(5, 5))
    digested.clear()
    second = reader(host, manifest(first)).from_tree(f"/srv/{NEW}", None)
    assert sorted(digested) == ["nvidia-container-cli", "nvidia-ctk"]
    changed = [one.name for one, other in zip(first.parts, second.parts) if one != other]
    assert changed == ["nvidia-ctk"]


def test_a_source_that_is_not_there(host: Host) -> None:
    assert "is not a directory" in refusal(lambda: reader(host).from_tree("/srv/nothing", None))


class Packages:
    """Unpacks, and counts how often."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.calls = 0

    def __call__(self, files: list[str], folder: str) -> None:
        self.calls += 1
        self.host.tools().unpack(files, folder)

    def read(self, before: Manifest | None, components: tuple[str, ...] | None = None) -> tuple[Source, SourceReader]:
        found = reader(self.host, before)
        return found.from_packages([DEB], components, self), found


def test_packages_are_unpacked_when_they_have_to_be(host: Host) -> None:
    packages = Packages(host)
    scratch = host.root / "tmp"
    first, opened = packages.read(None)
    assert packages.calls == 1
    assert list(first.sources) == [DEB]
    assert all(Path(path).is_file() for path in first.fetch().values())
    assert list(scratch.iterdir())
    opened.close()
    assert not list(scratch.iterdir())

    second, opened = packages.read(manifest(first))
    assert packages.calls == 1
    assert second[:2] == first[:2]
    with contextlib.closing(opened):
        assert set(second.fetch()) == {part.name for part in first.parts}
        assert packages.calls == 2
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("what", ["components", "content"])
def test_other_packages_are_unpacked_again(what: str, host: Host) -> None:
    packages = Packages(host)
    first, opened = packages.read(None)
    opened.close()
    if what == "content":
        (host.root / DEB[1:]).write_text("another package")
    second, opened = packages.read(manifest(first), ("ctk",) if what == "components" else None)
    opened.close()
    assert packages.calls == 2
    assert len(second.parts) == (1 if what == "components" else 9)


def test_a_package_that_is_not_there(host: Host) -> None:
    (host.root / DEB[1:]).unlink()
    assert f"{DEB} cannot be read" in refusal(lambda: Packages(host).read(None))


def test_packages_are_installed(host: Host) -> None:
    before = tree_of(host.root / "tmp")
    assert host.install(files=(DEB,)).changed
    assert not host.install(files=(DEB,)).changed
    (host.dest / "nvidia-ctk").unlink()
    assert host.install(files=(DEB,)).changed
    assert tree_of(host.root / "tmp") == before


def archive_of(source: Source, path: Path, left_out: t.Collection[str] = ()) -> str:
    with tarfile.open(str(path), "w") as tar:
        for name, file in source.fetch().items():
            if name not in left_out:
                tar.add(file, name)
    return str(path)


def test_what_the_controller_sends(host: Host) -> None:
    offered = reader(host).from_tree(f"/srv/{NEW}", None)
    before = tree_of(host.root)
    with pytest.raises(NotSentError):
        host.install(sent=ControllerSource(offered.parts))
    assert tree_of(host.root) == before
    sent = ControllerSource(offered.parts, archive_of(offered, host.root / "tmp.tar"))
    assert host.install(sent=sent, check=True).changed
    assert host.install(sent=sent).changed
    assert not list((host.root / "tmp").iterdir())
    # What is there need not be sent.
    assert not host.install(sent=ControllerSource(offered.parts)).changed


@pytest.mark.parametrize("kind", ["missing", "garbage", "folder", "other content", "nothing"])
def test_what_is_sent_is_not_believed(kind: str, host: Host) -> None:
    host.install(OLD)
    offered = reader(host).from_tree(f"/srv/{NEW}", None)
    path = host.root / "sent.tar"
    if kind == "garbage":
        path.write_bytes(b"x" * 2000)
    elif kind != "nothing":
        archive_of(offered, path, ["nvidia-ctk"])
    if kind in {"folder", "other content"}:
        with tarfile.open(str(path), "a") as tar:
            member = tarfile.TarInfo("nvidia-ctk")
            member.type = tarfile.DIRTYPE if kind == "folder" else tarfile.REGTYPE
            member.size = 0 if kind == "folder" else 1
            tar.addfile(member, io.BytesIO(b"x"))
    before = {name: entry for name, entry in tree_of(host.root).items() if name != "sent.tar"}
    assert refusal(lambda: host.install(sent=ControllerSource(offered.parts, str(path))))
    assert {name: entry for name, entry in tree_of(host.root).items() if name != "sent.tar"} == before
    assert toolkit_source.ControllerSource(offered.parts).archive is None


@pytest.mark.parametrize("check_mode", [True, False])
def test_what_a_killed_run_has_unpacked_goes(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    # No process has a number that long.
    (place / "gpufleet-toolkit-99999999-x").mkdir()
    (place / "gpufleet-toolkit-99999999-x/file").write_text("")
    host.install(check=check_mode)
    assert len(os.listdir(place)) == check_mode
