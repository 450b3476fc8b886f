# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that is cut off just before any one of its changes, and the runs after it."""

from __future__ import annotations

import shutil
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    NEW,
    OLD,
    VERSIONS,
    Host,
    Killer,
    Tree,
    plain_tree,
)

if t.TYPE_CHECKING:
    from pathlib import Path

# Few files, but of every kind: a program, its wrapper, a link, and config.toml.
FEW: dict[str, t.Any] = {"components": ("hook",)}
# No run has so many changes.
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
    (host.dest.parent / "other/nvidia-ctk").write_text("of somebody")
    host.dest.symlink_to("other")


def dangling_link(host: Host) -> None:
    host.dest.symlink_to("/nowhere")


STARTS = [nothing, old_version, damaged_version, directory, empty_directory, foreign_link, dangling_link]
FIRSTS = [nothing, directory, foreign_link]


def view(host: Host) -> Tree | str | None:
    """What a container start sees behind dest; None for nothing."""
    if not host.dest.exists():
        return "dangling" if host.dest.is_symlink() else None
    return plain_tree(host.dest.resolve())


def left(host: Host) -> Tree:
    """The tree without what is gone with the next start of the host."""
    return {
        name: entry for name, entry in plain_tree(host.root).items() if name.partition("/")[0] not in ("run", "srv")
    }


class Scene:
    """One tree, made anew for each try; ``original`` is what it is before anything of ours."""

    def __init__(self, folder: Path, start: t.Callable[[Host], None]) -> None:
        self._folder = folder
        self._start = start

    def host(self) -> Host:
        # The sources are the same each time.
        sources, kept = self._folder / "srv", self._folder.with_name("sources")
        if sources.exists():
            sources.rename(kept)
        shutil.rmtree(str(self._folder), ignore_errors=True)
        self._folder.mkdir()
        host = Host(self._folder)
        if kept.exists():
            sources.rmdir()
            kept.rename(sources)
        host.source(NEW)
        self._start(host)
        return host


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch, kill_points: t.Callable[..., list[int]]) -> CutOff:
    """Gives hosts on which a run was killed, each just before another one of its changes."""
    killer = Killer(monkeypatch)

    def hosts(scene: Scene, work: t.Callable[[Host], object], offset: int = 0) -> t.Iterator[tuple[int, Host]]:
        host = scene.host()
        assert not killer.kills(MANY, lambda: work(host))
        assert killer.done > 5
        for number in kill_points(killer.done, offset):
            host = scene.host()
            assert killer.kills(number, lambda host=host: work(host))  # type: ignore[misc]
            yield number, host

    return hosts


def install(host: Host) -> object:
    return host.install(NEW, **FEW)


def removed(host: Host) -> object:
    return host.remove()


def removed_tree(scene: Scene) -> Tree:
    host = scene.host()
    host.remove()
    return left(host)


@pytest.mark.parametrize("start", STARTS)
def test_an_installation(start: t.Callable[[Host], None], tmp_path: Path, cut_off: CutOff) -> None:
    """Behind dest is what was there or the whole new version; the next run ends as if there had been no other."""
    scene = Scene(tmp_path / "host", start)
    host = scene.host()
    before = view(host)
    install(host)
    after, whole, gone = view(host), left(host), removed_tree(scene)
    seen = set()
    for number, host in cut_off(scene, install, STARTS.index(start)):
        found = view(host)
        assert found in (before, after), number
        seen.add(found == after)
        install(host)
        assert left(host) == whole, number
        assert not host.install(NEW, **FEW).changed, number
        host.remove()
        assert left(host) == gone, number
    assert seen == {False, True}


@pytest.mark.parametrize("start", [*FIRSTS, old_version])
def test_an_installation_and_then_a_removal(start: t.Callable[[Host], None], tmp_path: Path, cut_off: CutOff) -> None:
    scene = Scene(tmp_path / "host", start)
    gone = removed_tree(scene)
    for number, host in cut_off(scene, install, STARTS.index(start)):
        host.remove()
        assert left(host) == gone, number
        assert not host.remove().changed, number


@pytest.mark.parametrize("start", FIRSTS)
@pytest.mark.parametrize("then", [removed, install])
def test_a_removal(
    start: t.Callable[[Host], None],
    then: t.Callable[[Host], object],
    tmp_path: Path,
    cut_off: CutOff,
) -> None:
    """Behind dest is the whole version or what was there before it."""

    def installed(host: Host) -> None:
        start(host)
        old_version(host)

    first, scene = Scene(tmp_path / "first", start), Scene(tmp_path / "host", installed)
    host = first.host()
    gone, former = left(host), view(host)
    install(host)
    again, whole = view(host), view(scene.host())
    for number, host in cut_off(scene, removed, STARTS.index(start)):
        assert view(host) in (whole, former), number
        then(host)
        if then is install:
            assert view(host) == again, number
            host.remove()
        assert left(host) == gone, number
        assert not host.remove().changed, number


def test_folders_that_were_made_for_it_are_empty_at_worst(tmp_path: Path, cut_off: CutOff) -> None:
    """Who made them is only known once that is written down."""

    def no_folder(host: Host) -> None:
        host.dest.parent.rmdir()

    scene = Scene(tmp_path / "host", no_folder)
    gone = left(scene.host())
    folders = {VERSIONS[1:].rsplit("/", 1)[0]: ("folder", 0o755)}
    for number, host in cut_off(scene, install):
        install(host)
        host.remove()
        found = left(host)
        assert found in (gone, {**gone, **folders}), number
