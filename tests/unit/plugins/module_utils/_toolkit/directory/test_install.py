# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import usage as toolkit_usage
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import store as directory_store
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.directory import (
    DirectoryOptions,
    DirectoryRemoval,
    Tools,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.install import DirectoryInstallation
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import (
    CONFIG,
    DEST,
    MACHINE,
    NEW,
    OLD,
    VERSIONS,
    Host,
    refusal,
    stamps_of,
    tree_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def same_but(host: Host, before: dict[str, t.Any]) -> None:
    """Check that the tree is unchanged, except for the sources."""
    found = {name: entry for name, entry in tree_of(host.root).items() if not name.startswith("srv")}
    assert found == {name: entry for name, entry in before.items() if not name.startswith("srv")}


# -- versions ----------------------------------------------------------------------------------------------------------


def test_first_installation(host: Host) -> None:
    host.source(OLD)
    before = tree_of(host.root)
    result = host.install(OLD)
    assert result.changed
    assert (result.version, result.previous, result.removed) == (OLD, None, ())
    assert result.path == f"{VERSIONS}/{host.current().name}"
    assert host.names() == [host.current().name]
    assert host.current().name.startswith(f"{OLD}-")
    found = tree_of(host.current())
    for name in ("nvidia-ctk", "nvidia-container-runtime.cdi", "nvidia-container-cli", "nvidia-container-runtime-hook"):
        assert found[f"{name}.real"] == before[f"srv/{OLD}/usr/bin/{name}"]
        assert found[name][:2] == ("file", 0o755)
        assert str(host.current().name).encode() in found[name][2]
    assert found["nvidia-cdi-hook"] == before[f"srv/{OLD}/usr/bin/nvidia-cdi-hook"]
    assert found["nvidia-container-toolkit"] == ("link", "nvidia-container-runtime-hook")
    assert found["libnvidia-container.so.1"] == ("link", f"libnvidia-container.so.{OLD}")
    assert found[CONFIG][:2] == ("file", 0o644)
    host.remove()
    same_but(host, before)


def test_next_installation(host: Host) -> None:
    host.install("1.18.0")
    oldest = host.current().name
    host.install(OLD)
    old = host.current().name
    kept = stamps_of(host.current())
    result = host.install(NEW)
    new = host.current().name
    assert sorted([old, new]) == host.names()
    assert result.previous == f"{VERSIONS}/{old}"
    assert result.removed == (f"{VERSIONS}/{oldest}",)
    assert stamps_of(host.versions / old) == kept
    assert host.install(NEW).previous == f"{VERSIONS}/{old}"
    host.install(OLD)
    assert host.names() == sorted([f"{old}-2", new])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("thorough", [False, True])
def test_second_run_changes_nothing(live: bool, thorough: bool, tmp_path: Path) -> None:
    host = Host(tmp_path, live)
    host.install(OLD)
    host.install(NEW)
    before, ran = stamps_of(host.root), list(host.ran)
    result = host.install(NEW, thorough=thorough)
    assert not result.changed
    assert result.version == NEW
    assert result.before == result.after
    assert stamps_of(host.root) == before
    assert host.ran == ran


def other_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nvidia-ctk")


def folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_for_folder(path: Path) -> None:
    (path / "nvidia-container-runtime/config.toml").unlink()
    (path / "nvidia-container-runtime").rmdir()
    path.rmdir()
    path.write_text("")


DAMAGES: dict[str, tuple[str, t.Callable[[Path], object]]] = {
    "content": ("nvidia-ctk.real", lambda path: path.write_bytes(b"x")),
    "mode": ("nvidia-ctk.real", lambda path: path.chmod(0o700)),
    "missing": ("nvidia-cdi-hook", lambda path: path.unlink()),
    "missing link": ("nvidia-container-toolkit", lambda path: path.unlink()),
    "link": ("nvidia-container-toolkit", other_link),
    "folder": ("nvidia-ctk", folder_for_file),
    "config": (CONFIG, lambda path: path.write_text("disable-require = true\n")),
    "extra": ("nvidia-more", lambda path: path.write_text("x")),
    "extra folder": ("more", lambda path: path.mkdir()),
    "closed folder": (".config", lambda path: path.chmod(0o700)),
    "file for a folder": (".config", file_for_folder),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_repairs_damage(kind: str, host: Host) -> None:
    name, damage = DAMAGES[kind]
    host.install(OLD)
    first = host.current().name
    whole = set(tree_of(host.current()))
    damage(host.current() / name)
    result = host.install(OLD)
    assert result.changed
    assert any(each == name or each.startswith(f"{name}/") for each in result.repaired)
    assert host.current().name == f"{first}-2"
    assert set(tree_of(host.current())) == whole
    assert not host.install(OLD).changed
    assert host.names() == [first, f"{first}-2"]


def test_touched_files_are_not_damage(host: Host) -> None:
    host.install(OLD)
    path = host.current() / "nvidia-ctk.real"
    os.utime(str(path), ns=(1, 1))
    before, manifest = host.current(), (host.current() / ".manifest.json").read_bytes()
    assert not host.install(OLD).changed
    assert host.current() == before
    assert (host.current() / ".manifest.json").read_bytes() != manifest
    after = stamps_of(host.root)
    assert not host.install(OLD).changed
    assert stamps_of(host.root) == after


@pytest.mark.parametrize("thorough", [False, True])
def test_only_thorough_runs_read_all_files(thorough: bool, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install(OLD)
    seen: list[str] = []
    really = toolkit_manifest.sha256_of

    def counted(path: str) -> str:
        seen.append(path)
        return really(path)

    monkeypatch.setattr(toolkit_manifest, "sha256_of", counted)
    host.install(OLD, thorough=thorough)
    own = [path for path in seen if path.startswith(str(host.versions))]
    assert len(own) == (16 if thorough else 0)


def test_makes_a_backup_of_an_edited_config(host: Host) -> None:
    host.install(OLD)
    (host.dest / CONFIG).write_text("by = 'hand'\n")
    result = host.install(OLD)
    assert len(result.backups) == 1
    backup = result.backups[0]["backup"]
    assert backup is not None
    assert (host.root / backup[1:]).read_text() == "by = 'hand'\n"
    assert any("was edited" in warning for warning in host.warnings)


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}"])
def test_damaged_manifest(content: bytes, host: Host) -> None:
    before = tree_of(host.root)
    host.install(OLD)
    (host.current() / ".manifest.json").write_bytes(content)
    # Without a manifest it is unknown whether config.toml was edited.
    (kept,) = host.install(OLD).backups
    assert str(kept["backup"]).startswith("/var/lib/gpufleet-nvidia/backups/")
    assert not host.install(OLD).changed
    (host.current() / ".manifest.json").write_bytes(content)
    host.remove()
    shutil.rmtree(str(host.root / "var/lib/gpufleet-nvidia"))
    same_but(host, before)


def test_keeps_versions_in_use(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install("1.18.0")
    oldest = f"{VERSIONS}/{host.current().name}"
    host.install(OLD)
    using = [oldest]
    monkeypatch.setattr(toolkit_usage, "users", lambda _host, path: ["process 7 (x)"] if path in using else [])
    result = host.install(NEW)
    assert result.kept == {oldest: ["process 7 (x)"]}
    assert len(host.names()) == 3
    again = host.install(NEW)
    assert not again.changed
    assert again.kept == result.kept
    using.clear()
    assert host.install(NEW).removed == (oldest,)
    assert len(host.names()) == 2


@pytest.mark.parametrize("name", ["notes.txt", "nvidia-notes", ".config/notes", CONFIG + ".bak", "folder/x"])
def test_keeps_foreign_files(name: str, host: Host) -> None:
    host.install("1.18.0")
    oldest = host.current()
    path = oldest / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    host.install(OLD)
    host.install(NEW)
    # A directory with this name is never treated as a version again.
    left = oldest.with_name(oldest.name + ".left")
    path = left / name
    assert not oldest.exists()
    assert [each for each in left.rglob("*") if not each.is_dir()] == [path]
    assert any(f"{left.name}/{name}" in warning and "are kept" in warning for warning in host.warnings)
    before = stamps_of(host.versions)
    assert not host.install(NEW).changed
    assert stamps_of(host.versions) == before
    host.remove()
    assert path.read_text() == "mine"
    assert not host.remove().changed


def test_foreign_files_survive_a_removal_that_was_killed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its manifest, a version is recognised by the names of its files."""
    host.install(NEW)
    version = host.current()
    (version / "nvidia-notes").write_text("mine")

    def refuse(*_names: str) -> t.NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(KeyboardInterrupt):
        host.remove()
    monkeypatch.undo()
    host.remove()
    assert (version.with_name(f"{version.name}.left") / "nvidia-notes").read_text() == "mine"


# -- the original entry at dest ----------------------------------------------------------------------------------------


def installers(host: Host) -> None:
    (host.dest / ".config/nvidia-container-runtime").mkdir(parents=True)
    (host.dest / "nvidia-ctk").write_text("x")
    (host.dest / "libnvidia-container.so.1").symlink_to("libnvidia-container.so.1.0.0")
    host.dest.chmod(0o710)


def link(host: Host) -> None:
    (host.root / "usr/other").mkdir(parents=True)
    host.dest.symlink_to("/usr/other")


@pytest.mark.parametrize(
    "foreign_entry", [installers, link, lambda host: host.dest.mkdir(), lambda host: host.dest.parent.rmdir()]
)
def test_removal_restores_the_original_entry(foreign_entry: t.Callable[[Host], None], host: Host) -> None:
    foreign_entry(host)
    before = tree_of(host.root)
    for version in (OLD, NEW, OLD):
        host.install(version)
        assert host.current().name.startswith(version)
        assert not host.install(version).changed
    host.remove()
    same_but(host, before)
    assert not host.remove().changed


def foreign(host: Host) -> None:
    host.dest.mkdir()
    (host.dest / "etc").mkdir()


@pytest.mark.parametrize(
    ("foreign_entry", "message"),
    [
        (foreign, "contains files that do not belong to a toolkit: etc"),
        (lambda host: host.dest.write_text("x"), "is a file"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_refuses_to_replace_foreign_entries(
    foreign_entry: t.Callable[[Host], None], message: str, check: bool, host: Host
) -> None:
    foreign_entry(host)
    before = tree_of(host.root)
    assert message in refusal(lambda: host.install(OLD, check))
    same_but(host, before)


def test_refuses_a_mount_point(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    installers(host)
    monkeypatch.setattr(toolkit_manifest, "is_mount_point", lambda path: path == str(host.dest))
    assert "is a mount point" in refusal(lambda: host.install(OLD))


def test_file_system_without_exchange(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_one: str, _other: str) -> None:
        raise OSError(22, "Invalid argument")

    installers(host)
    before = tree_of(host.dest)
    monkeypatch.setattr(directory_store, "rename_exchange", refused)
    assert "cannot exchange it in one step (Invalid argument)" in refusal(lambda: host.install(OLD))
    assert tree_of(host.dest) == before
    assert not host.versions.exists()


def test_refuses_a_second_foreign_entry(host: Host) -> None:
    installers(host)
    host.install(OLD)
    host.dest.unlink()
    host.dest.mkdir()
    assert "Remove one of the two" in refusal(lambda: host.install(NEW))
    host.remove()
    assert not list(host.dest.iterdir())


# -- check mode ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("start", ["nothing", "old", "damaged", "directory"])
def test_check_mode_predicts_the_result(start: str, live: bool, tmp_path: Path) -> None:
    host = Host(tmp_path, live)
    host.source(NEW)
    if start == "directory":
        installers(host)
    elif start != "nothing":
        host.install("1.18.0")
        host.install(OLD)
    if start == "damaged":
        (host.dest / "nvidia-ctk").chmod(0o700)
    before = stamps_of(host.root)
    predicted = host.install(NEW, check=True)
    assert stamps_of(host.root) == before
    assert predicted == host.install(NEW)
    before = stamps_of(host.root)
    predicted = host.remove(check=True)
    assert stamps_of(host.root) == before
    assert predicted == host.remove()


# -- a live host ---------------------------------------------------------------------------------------------------


def test_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the root of this machine, so that wrappers find their programs."""
    # The lock of this machine belongs to root, or needs the systemd of the user.
    monkeypatch.setattr(lock, "_path", lambda _host: str(tmp_path / "lock"))
    tree(tmp_path / "source", NEW, machine=MACHINE)
    dest = tmp_path / "it's a dest/toolkit"

    def run(argv: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    options = DirectoryOptions(
        dest=str(dest), src=str(tmp_path / "source"), backup_dir=str(tmp_path / "backups"), low_level_runtimes=("true",)
    )
    tools = Tools(run, lambda _files, _folder: None, lambda _path, _final: None)
    assert DirectoryInstallation(options, HostFS(), tools).execute(check_mode=False).version == NEW
    assert run([str(dest / "nvidia-ctk"), "--version"])[1].splitlines()[0].endswith(f"version {NEW}")
    assert run([str(dest / "nvidia-container-cli"), "--version"])[1].splitlines()[0] == f"cli-version: {NEW}"
    assert not DirectoryInstallation(options, HostFS(), tools).execute(check_mode=False).changed
    assert DirectoryRemoval(options, HostFS(), tools).execute(check_mode=False).changed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "source"]


def test_sets_labels_of_final_paths_before_the_switch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    switched: list[int] = []
    switch = directory_store.VersionStore.switch

    def counted(store: t.Any, name: str) -> None:
        switched.append(len(host.labelled))
        switch(store, name)

    monkeypatch.setattr(directory_store.VersionStore, "switch", counted)
    host.install(OLD)
    assert switched == [len(host.labelled)]
    final, new = str(host.current()), str(host.versions / ".new")
    pairs = dict(host.labelled)
    assert pairs[f"{new}/nvidia-ctk.real"] == f"{final}/nvidia-ctk.real"
    assert pairs[new] == final
    assert set(tree_of(host.current())) - {".manifest.json"} <= {path[len(new) + 1 :] for path in pairs}


def test_sources_determine_the_version(host: Host) -> None:
    """A version with other content is another version."""
    host.install(OLD)
    name = host.current().name
    ctk = host.root / f"srv/{OLD}/usr/bin/nvidia-ctk"
    ctk.write_bytes(ctk.read_bytes() + b"\0")
    assert host.install(OLD).changed
    assert host.current().name[: len(OLD) + 13] != name
    assert (
        hashlib.sha256((host.dest / "nvidia-ctk.real").read_bytes()).digest()
        == hashlib.sha256(ctk.read_bytes()).digest()
    )
    assert host.dest.is_symlink()
    assert f"{DEST}.versions" == VERSIONS


# -- engines and other users -------------------------------------------------------------------------------------------


def engine(host: Host, program: str) -> None:
    (host.root / "etc/docker").mkdir(parents=True, exist_ok=True)
    (host.root / "etc/docker/daemon.json").write_text(f'{{"runtimes": {{"gpu": {{"path": "{program}"}}}}}}')


def test_refuses_to_remove_programs_of_engines(host: Host) -> None:
    host.install(OLD)
    engine(host, f"{DEST}/nvidia-container-runtime.legacy")
    before = tree_of(host.root)
    assert "docker (gpu). They could not start containers" in refusal(lambda: host.install(OLD, components=("ctk",)))
    assert tree_of(host.root) == before
    assert host.install(NEW).changed
    engine(host, f"{DEST}/nvidia-container-runtime")
    assert "docker (gpu)" in refusal(lambda: host.install(NEW, components=("ctk",)))
    assert host.install(NEW, components=("ctk",), running_gpu_containers="warn").changed
    assert any("docker (gpu)" in warning for warning in host.warnings)


def test_keeps_a_version_that_an_engine_names(host: Host) -> None:
    host.install("1.18.0")
    oldest = f"{VERSIONS}/{host.current().name}"
    engine(host, f"{oldest}/nvidia-container-runtime")
    host.install(OLD)
    assert host.install(NEW).kept == {oldest: ["engine docker"]}
    engine(host, "/usr/bin/runc")
    assert host.install(NEW).removed == (oldest,)


@pytest.mark.parametrize("where", ["", "..", ".config"])
def test_repairs_directory_modes(where: str, host: Host) -> None:
    host.install(OLD)
    folder = host.current() / where
    folder.chmod(0o777)
    assert host.install(OLD).changed
    assert not host.install(OLD).changed
    assert (host.current() / where).stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("where", ["", "..", ".config"])
def test_repairs_directory_owners(where: str, host: Host) -> None:
    host.install(OLD)
    os.chown(str(host.current() / where), 1, 1)
    assert host.install(OLD).changed
    assert (host.current() / where).stat().st_uid == os.geteuid()


@pytest.mark.parametrize("options", [{"version": NEW}, {"minimum_version": NEW, "minimum_version_policy": "fail"}])
def test_rejects_an_unknown_version_if_one_is_required(options: dict[str, t.Any], host: Host) -> None:
    components = ("runtime", "ctk", "cdi_hook")
    before = tree_of(host.root)
    assert "is unknown" in refusal(lambda: host.install(OLD, components=components, **options))
    same_but(host, before)
    host.install(OLD, check=True, components=components, **options)
    assert any("their version is unknown" in warning for warning in host.warnings)


@pytest.mark.parametrize("folder", [DEST, VERSIONS])
def test_rejects_logs_in_the_directory(folder: str, host: Host) -> None:
    log = {"nvidia-container-runtime.debug": f"{folder}/runtime.log"}
    assert "in the directory of the toolkit" in refusal(lambda: host.install(OLD, settings=log))


def test_rejects_a_low_level_runtime_that_is_a_link_to_the_toolkit(host: Host) -> None:
    host.install(OLD)
    (host.root / "bin").mkdir(exist_ok=True)
    (host.root / "bin/myrunc").symlink_to(f"{DEST}/nvidia-container-runtime")
    assert "start itself in an endless loop" in refusal(lambda: host.install(NEW, low_level_runtimes=("/bin/myrunc",)))
