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

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.elf import AARCH64, X86_64
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import LATER_PROGRAMS, PROGRAMS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.manifest import Manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.source import (
    COMPONENTS,
    ControllerSource,
    NotSentError,
    Part,
    Source,
    SourceReader,
    check_machine,
    find_parts,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import library, program, tree
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
    """A host with a source, and with a directory in place of a package."""
    host = Host(tmp_path)
    host.source(NEW)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    shutil.copytree(str(tmp_path / f"srv/{NEW}/usr"), str(tmp_path / f"{DEB[1:]}.content"), symlinks=True)
    (tmp_path / DEB[1:]).write_text("a package")
    return host


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files whose content was read."""
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


def test_does_not_read_unchanged_files(host: Host, digested: list[str]) -> None:
    first = reader(host).from_tree(f"/srv/{NEW}", None)
    assert len(digested) == len(first.parts) == 9
    digested.clear()
    second = reader(host, manifest(first)).from_tree(f"/srv/{NEW}", None)
    assert digested == []
    assert second[:2] == first[:2]
    assert reader(host, manifest(first), thorough=True).from_tree(f"/srv/{NEW}", None)[:2] == first[:2]
    assert len(digested) == 9


def test_reads_only_changed_files(host: Host, digested: list[str]) -> None:
    first = reader(host).from_tree(f"/srv/{NEW}", None)
    ctk, cli = (host.root / f"srv/{NEW}/usr/bin/{name}" for name in ("nvidia-ctk", "nvidia-container-cli"))
    ctk.write_bytes(ctk.read_bytes() + b"\0")
    os.utime(str(cli), ns=(5, 5))
    digested.clear()
    second = reader(host, manifest(first)).from_tree(f"/srv/{NEW}", None)
    assert sorted(digested) == ["nvidia-container-cli", "nvidia-ctk"]
    changed = [one.name for one, other in zip(first.parts, second.parts) if one != other]
    assert changed == ["nvidia-ctk"]


def test_missing_source(host: Host) -> None:
    assert "is not a directory" in refusal(lambda: reader(host).from_tree("/srv/nothing", None))


class Packages:
    """Unpacks packages and counts the calls."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.calls = 0

    def __call__(self, files: list[str], folder: str) -> None:
        self.calls += 1
        self.host.tools().unpack(files, folder)

    def read(self, before: Manifest | None, components: tuple[str, ...] | None = None) -> tuple[Source, SourceReader]:
        found = reader(self.host, before)
        return found.from_packages([DEB], components, self), found


def test_unpacks_packages_only_if_necessary(host: Host) -> None:
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
def test_unpacks_changed_packages(what: str, host: Host) -> None:
    packages = Packages(host)
    first, opened = packages.read(None)
    opened.close()
    if what == "content":
        (host.root / DEB[1:]).write_text("another package")
    second, opened = packages.read(manifest(first), ("ctk",) if what == "components" else None)
    opened.close()
    assert packages.calls == 2
    assert len(second.parts) == (1 if what == "components" else 9)


def test_missing_package(host: Host) -> None:
    (host.root / DEB[1:]).unlink()
    assert f"{DEB} cannot be read" in refusal(lambda: Packages(host).read(None))


def test_installs_packages(host: Host) -> None:
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


def test_source_on_the_controller(host: Host) -> None:
    offered = reader(host).from_tree(f"/srv/{NEW}", None)
    before = tree_of(host.root)
    with pytest.raises(NotSentError):
        host.install(controller_source=ControllerSource(offered.parts))
    assert tree_of(host.root) == before
    sent = ControllerSource(offered.parts, archive_of(offered, host.root / "tmp.tar"))
    assert host.install(controller_source=sent, check=True).changed
    assert host.install(controller_source=sent).changed
    assert not list((host.root / "tmp").iterdir())
    # The controller need not send files that the host has.
    assert not host.install(controller_source=ControllerSource(offered.parts)).changed


@pytest.mark.parametrize("kind", ["missing", "garbage", "folder", "other content", "nothing"])
def test_verifies_the_archive_of_the_controller(kind: str, host: Host) -> None:
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
    assert refusal(lambda: host.install(controller_source=ControllerSource(offered.parts, str(path))))
    assert {name: entry for name, entry in tree_of(host.root).items() if name != "sent.tar"} == before
    assert toolkit_source.ControllerSource(offered.parts).archive is None


@pytest.mark.parametrize("check_mode", [True, False])
def test_removes_files_of_a_killed_run(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_mode: bool
) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    # No process has such a high number.
    (place / "gpufleet-toolkit-99999999-x").mkdir()
    (place / "gpufleet-toolkit-99999999-x/file").write_text("")
    host.install(check=check_mode)
    assert len(os.listdir(place)) == check_mode


# -- Parts -----------------------------------------------------------------------------------------------------------

RUNTIME, HOOK, CLI, CTK = PROGRAMS
(CDI_HOOK,) = LATER_PROGRAMS
EVERY_PROGRAM = [RUNTIME, RUNTIME + ".cdi", RUNTIME + ".legacy", HOOK, CLI, CTK, CDI_HOOK]
BOTH_LIBRARIES = ["libnvidia-container.so.1.20.0", "libnvidia-container-go.so.1.20.0"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a toolkit 1.20.0 for x86-64."""
    root = tmp_path / "source"
    tree(root, "1.20.0")
    return root


def find(root: Path, components: t.Sequence[str] | None = None) -> dict[str, Part]:
    return {part.name: part for part in find_parts(HostFS(str(root), live=False), components, "src /opt/toolkit")}


def parts_error(root: Path, components: t.Sequence[str] | None = None) -> str:
    with pytest.raises(NvidiaError) as caught:
        find(root, components)
    return str(caught.value)


def remove(root: Path, *names: str) -> None:
    for name in names:
        for path in root.rglob(name):
            path.unlink()


def move(root: Path, name: str, folder: str) -> Path:
    """Move the file with this name into another directory."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    return next(root.rglob(name)).replace(root / folder / name)


# -- found files -------------------------------------------------------------------------------------------------------


def test_complete_toolkit(source: Path) -> None:
    parts = find(source)
    assert list(parts) == EVERY_PROGRAM + BOTH_LIBRARIES
    ctk = source / "usr/bin/nvidia-ctk"
    assert parts[CTK] == Part(CTK, str(ctk), 0o755, ctk.stat().st_size, X86_64, "")
    real = source / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.20.0"
    assert parts[real.name] == Part(
        real.name, str(real), 0o644, real.stat().st_size, X86_64, "libnvidia-container.so.1"
    )


@pytest.mark.parametrize(
    ("components", "names"),
    [
        (["ctk"], [CTK]),
        (["cdi_hook", "runtime"], [RUNTIME, RUNTIME + ".cdi", RUNTIME + ".legacy", CDI_HOOK]),
        (["cli"], [CLI, *BOTH_LIBRARIES]),
        (["hook", "hook"], [HOOK]),
        (list(COMPONENTS), EVERY_PROGRAM + BOTH_LIBRARIES),
    ],
)
def test_some_components(source: Path, components: list[str], names: list[str]) -> None:
    assert list(find(source, components)) == names


def test_older_toolkits(source: Path) -> None:
    remove(source, CDI_HOOK, RUNTIME + ".cdi", RUNTIME + ".legacy")
    assert list(find(source)) == [RUNTIME, HOOK, CLI, CTK, *BOTH_LIBRARIES]
    assert list(find(source, ["runtime"])) == [RUNTIME]


@pytest.mark.parametrize("folder", ["usr/sbin", "bin", "sbin", "usr/local/bin"])
def test_program_directories(source: Path, folder: str) -> None:
    path = move(source, CTK, folder)
    assert find(source)[CTK].path == str(path)


def test_directory_precedence(source: Path) -> None:
    (source / "usr/local/bin").mkdir(parents=True)
    (source / "usr/local/bin/nvidia-ctk").write_bytes(program("other"))
    assert find(source)[CTK].path == str(source / "usr/bin/nvidia-ctk")


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/aarch64-linux-gnu", "usr/lib"])
def test_library_directories(source: Path, folder: str) -> None:
    # In this order, because Python 3.8 does not list dangling links.
    move(source, "libnvidia-container.so.1", folder)
    move(source, BOTH_LIBRARIES[0], folder)
    assert find(source)[BOTH_LIBRARIES[0]].path == str(source / folder / BOTH_LIBRARIES[0])


def test_library_without_link(source: Path) -> None:
    folder = source / "usr/lib/x86_64-linux-gnu"
    (folder / BOTH_LIBRARIES[0]).replace(folder / "libnvidia-container.so.1")
    part = find(source)["libnvidia-container.so.1"]
    assert (part.soname, part.path) == ("", str(folder / "libnvidia-container.so.1"))


def test_follows_links_in_the_tree(source: Path) -> None:
    # Absolute links, as with update-alternatives or a merged /usr/lib64.
    move(source, CTK, "opt/nvidia")
    (source / "usr/bin/nvidia-ctk").symlink_to("/opt/nvidia/nvidia-ctk")
    (source / "usr/lib/x86_64-linux-gnu").replace(source / "libraries")
    (source / "usr/lib64").symlink_to("/../libraries")
    parts = find(source)
    assert parts[CTK].path == str(source / "opt/nvidia/nvidia-ctk")
    assert parts[BOTH_LIBRARIES[1]].path == str(source / "libraries" / BOTH_LIBRARIES[1])


@pytest.mark.parametrize(("mode", "kept"), [(0o4755, 0o755), (0o777, 0o755), (0o644, 0o644), (0o2711, 0o711)])
def test_removes_dangerous_mode_bits(source: Path, mode: int, kept: int) -> None:
    (source / "usr/bin/nvidia-ctk").chmod(mode)
    assert find(source)[CTK].mode == kept


def test_components_match_constants() -> None:
    assert [name for component in COMPONENTS.values() for name in component.programs] == EVERY_PROGRAM
    assert {name for component in COMPONENTS.values() for name in component.optional} == set(EVERY_PROGRAM[1:3])


# -- errors ------------------------------------------------------------------------------------------------------------


def test_lists_all_missing_files(source: Path) -> None:
    remove(source, RUNTIME, HOOK, CDI_HOOK, "libnvidia-container-go.so.1")
    message = parts_error(source)
    assert message.startswith("src /opt/toolkit ")
    assert " nvidia-container-runtime, nvidia-container-runtime-hook, libnvidia-container-go.so.1. " in message
    assert " usr/bin, usr/sbin, bin, sbin, usr/local/bin, " in message
    assert " usr/lib64, usr/lib/x86_64-linux-gnu, usr/lib/aarch64-linux-gnu, usr/lib. " in message
    assert " components " in message


def test_named_components_are_required(source: Path) -> None:
    remove(source, CDI_HOOK)
    assert parts_error(source, ["ctk", "cdi_hook"]).startswith("src /opt/toolkit does not contain nvidia-cdi-hook. ")


@pytest.mark.parametrize(
    ("components", "problem"),
    [(["ctk", "cdi"], ": cdi. "), ([], " empty. ")],
)
def test_rejects_invalid_components(source: Path, components: list[str], problem: str) -> None:
    message = parts_error(source, components)
    assert message.startswith("components ")
    assert problem in message
    assert " runtime, hook, cli, ctk, cdi_hook, " in message


def test_rejects_missing_directory(source: Path) -> None:
    for path in (source / "nothing", source / "usr/bin/nvidia-ctk"):
        with pytest.raises(HostError, match=r"^src /opt/toolkit is not a directory\. Set a directory that contains "):
            find(path)


INCOMPLETE = " is not a complete 64-bit ELF file. Fetch"
WHAT_IS_NO_PROGRAM: list[tuple[bytes, str]] = [
    (b"", INCOMPLETE),
    (b"#!/bin/sh\nexec /opt/nvidia-ctk.real\n", " is a script, for example the wrapper of another installation."),
    (b"<html>502 Bad Gateway</html>", INCOMPLETE),
    (b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x02\x00\x03\x00", INCOMPLETE),
    (program("x" * 5000)[:5000], INCOMPLETE),
]


@pytest.mark.parametrize(
    ("content", "problem"), WHAT_IS_NO_PROGRAM, ids=["empty", "script", "page", "32 bits", "truncated"]
)
@pytest.mark.parametrize("path", ["usr/bin/nvidia-ctk", "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1"])
def test_rejects_invalid_binaries(source: Path, path: str, content: bytes, problem: str) -> None:
    (source / path).write_bytes(content)
    assert parts_error(source).startswith(f"src /opt/toolkit: {path}{problem}")


@pytest.mark.parametrize("name", [RUNTIME, CTK])
def test_rejects_special_files(source: Path, name: str) -> None:
    file = source / "usr/bin" / name
    file.unlink()
    # Opening a pipe would wait for a writer.
    os.mkfifo(str(file))
    assert parts_error(source).startswith(f"src /opt/toolkit: usr/bin/{name} is not a regular file. ")
    file.unlink()
    file.mkdir()
    assert parts_error(source).startswith(f"src /opt/toolkit: usr/bin/{name} is not a regular file. ")


def test_rejects_links_out_of_the_tree(source: Path, tmp_path: Path) -> None:
    (tmp_path / CTK).write_bytes(program("true"))
    ctk = source / "usr/bin/nvidia-ctk"
    for target in (str(tmp_path / CTK), f"../../../{CTK}"):
        ctk.unlink()
        ctk.symlink_to(target)
        assert ctk.exists()
        assert parts_error(source).startswith(
            "src /opt/toolkit: usr/bin/nvidia-ctk is a link to a file that does not exist. "
        )


def test_rejects_link_loops(source: Path) -> None:
    ctk = source / "usr/bin/nvidia-ctk"
    ctk.unlink()
    ctk.symlink_to(CTK)
    assert parts_error(source).startswith("src /opt/toolkit: /usr/bin/nvidia-ctk: too many symbolic links. ")


def test_rejects_several_machines(source: Path) -> None:
    (source / "usr/bin/nvidia-cdi-hook").write_bytes(program("true", AARCH64))
    (source / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1").write_bytes(library("1.20.0", 243))
    assert (
        ": nvidia-container-cli, nvidia-ctk, libnvidia-container-go.so.1.20.0 for x86-64; nvidia-cdi-hook for AArch64;"
        " libnvidia-container.so.1.20.0 for machine 243. "
    ) in parts_error(source, ["ctk", "cli", "cdi_hook"])


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError(13, "Permission denied"), "Run the task as root (become: true)."),
        (OSError(5, "Input/output error"), "Check the file system."),
    ],
)
@pytest.mark.parametrize("place", ["/usr/bin/nvidia-ctk", "/."])
def test_unreadable_files(
    source: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: OSError, advice: str
) -> None:
    def failing(function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def called(path: str, *args: t.Any, **options: t.Any) -> t.Any:
            if path == f"{source}{place}":
                raise error
            return function(path, *args, **options)

        return called

    monkeypatch.setattr(toolkit_source, "_head", failing(toolkit_source._head))
    with monkeypatch.context() as patch:
        if place.endswith("/."):
            patch.setattr(os, "stat", failing(os.stat))
        message = parts_error(source, ["ctk"])
    named = "" if place == "/." else f": {place[1:]}"
    assert message == f"src /opt/toolkit{named} cannot be read: {error.strerror}. {advice}"


# -- machine of the host -----------------------------------------------------------------------------------------------


def host_with(root: Path, shell: bytes | None, live: bool) -> HostFS:
    """Return a host whose /bin/sh is a link."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin/sh").symlink_to("/bin/busybox")
    if shell is not None:
        (root / "usr/bin/busybox").write_bytes(shell)
    return HostFS(str(root), live)


def parts_for(machine: int) -> list[Part]:
    return [Part(CTK, "/source/nvidia-ctk", 0o755, 1, machine)]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("machine", [X86_64, AARCH64, 243])
def test_accepts_machine_of_the_host(tmp_path: Path, machine: int, live: bool) -> None:
    check_machine(parts_for(machine), host_with(tmp_path, program("true", machine), live))


@pytest.mark.parametrize("live", [True, False])
def test_rejects_another_machine(tmp_path: Path, live: bool) -> None:
    with pytest.raises(NvidiaError, match="nvidia-ctk is for AArch64, but the host is x86-64"):
        check_machine(parts_for(AARCH64), host_with(tmp_path, program("true"), live))


@pytest.mark.parametrize("shell", [None, b"#!/opt/shell\n"])
def test_host_without_an_elf_file_as_shell(tmp_path: Path, shell: bytes | None) -> None:
    check_machine(parts_for(243), host_with(tmp_path, shell, live=True))


def test_this_machine() -> None:
    kernel = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine)
    if kernel is None:
        pytest.skip("needs x86_64 or aarch64")
    check_machine(parts_for(kernel), HostFS())
    with pytest.raises(NvidiaError):
        check_machine(parts_for(243), HostFS())


def test_library_with_another_file_name(tmp_path: Path) -> None:
    tree(tmp_path, "1.20.0")
    (link,) = tmp_path.glob("usr/lib/*/libnvidia-container.so.1")
    (link.parent / "libnvidia-container.so.1.20.0").rename(link.parent / "blob-77")
    link.unlink()
    link.symlink_to("blob-77")
    found = {part.name: part.soname for part in find_parts(HostFS.of(str(tmp_path), live=False), None, "it")}
    assert found["libnvidia-container.so.1"] == ""
    assert "blob-77" not in found
    assert found["libnvidia-container-go.so.1.20.0"] == "libnvidia-container-go.so.1"
