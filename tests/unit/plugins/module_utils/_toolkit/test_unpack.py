# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import unpack as toolkit_unpack
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.source import find_parts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.unpack import (
    Entry,
    run_limited,
    unpack,
    write_entries,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.package_archives import (
    DIRECTORY,
    LINK,
    PIPE,
    REGULAR,
    Item,
    content_of,
    newc,
)

# -- Entries ---------------------------------------------------------------------------------------------------------


def entry(name: str, content: bytes = b"", mode: int = REGULAR | 0o644) -> Entry:
    return Entry(name, mode, content)


def write(folder: Path, *entries: Entry) -> None:
    write_entries(entries, str(folder), "a.rpm")


def write_error(folder: Path, *entries: Entry) -> str:
    with pytest.raises(NvidiaError) as caught:
        write(folder, *entries)
    return str(caught.value)


# -- written files -----------------------------------------------------------------------------------------------------


def test_files_directories_and_links(tmp_path: Path) -> None:
    write(
        tmp_path,
        entry("./usr/lib64", mode=DIRECTORY | 0o700),
        entry("./usr/lib64/lib.so.1.2", b"a library", REGULAR | 0o755),
        entry("./usr/lib64/lib.so.1", b"lib.so.1.2", LINK | 0o777),
        entry("./usr/bin/empty"),
    )
    assert content_of(tmp_path) == {
        "usr": None,
        "usr/lib64": None,
        "usr/lib64/lib.so.1.2": b"a library",
        "usr/lib64/lib.so.1": "lib.so.1.2",
        "usr/bin": None,
        "usr/bin/empty": b"",
    }


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o4777, 0o755), (0o664, 0o644), (0o600, 0o600)])
def test_modes(tmp_path: Path, mode: int, kept: int) -> None:
    write(tmp_path, entry("tool", b"x", REGULAR | mode))
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == kept


def test_directories_are_writable(tmp_path: Path) -> None:
    write(tmp_path, entry("usr", mode=DIRECTORY | 0o555), entry("usr/tool", b"x"))
    assert (tmp_path / "usr").stat().st_mode & 0o700 == 0o700


@pytest.mark.parametrize("mode", [DIRECTORY | 0o777, REGULAR | 0o777, LINK | 0o777])
@pytest.mark.parametrize("name", [".", "./", "././", ""])
def test_keeps_the_target_directory(tmp_path: Path, name: str, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    before = folder.stat()
    write(folder, entry(name, b"/etc", mode), entry("tool", b"x"))
    assert content_of(tmp_path) == {"folder": None, "folder/tool": b"x"}
    assert folder.stat().st_mode == before.st_mode


def test_skips_special_files(tmp_path: Path) -> None:
    devices = [entry(f"dev/{kind:o}", mode=kind | 0o644) for kind in (PIPE, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)]
    write(tmp_path, *devices, entry("tool", b"x"))
    assert content_of(tmp_path) == {"dev": None, "tool": b"x"}


def test_later_packages_replace_files(tmp_path: Path) -> None:
    write(tmp_path, entry("usr/tool", b"old", REGULAR | 0o444), entry("usr/link", b"old", LINK))
    write(tmp_path, entry("usr", mode=DIRECTORY), entry("usr/tool", b"new"), entry("usr/link", b"new", LINK))
    assert content_of(tmp_path) == {"usr": None, "usr/tool": b"new", "usr/link": "new"}


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_characters="/."), min_size=1, max_size=9)


@given(files=st.dictionaries(NAMES, st.binary(max_size=50)))
def test_writes_any_files(files: t.Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), *(entry(name, content) for name, content in files.items()))
        assert content_of(Path(folder)) == files


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "usr/../../outside", "usr/bin/..", "a\0b"])
def test_rejects_paths_outside(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    error = write_error(folder, entry("usr/bin/tool", b"x"), entry(name, b"x"))
    assert error.startswith(f"a.rpm contains {name!r}, a path outside the directory to unpack into. Nothing ")
    assert content_of(tmp_path) == {"folder": None}


@pytest.mark.parametrize("name", ["d/" * 31 + "file", "./" * 1800 + "d/" * 32])
def test_accepts_32_components(tmp_path: Path, name: str) -> None:
    write(tmp_path, entry(name, mode=DIRECTORY | 0o755 if name.endswith("/") else REGULAR | 0o644))
    assert (tmp_path / "/".join("d" * 31)).is_dir()


@pytest.mark.parametrize("name", ["d/" * 32 + "file", "d/" * 33, "d/" * 1800 + "file"])
def test_limits_the_depth_before_writing(tmp_path: Path, name: str) -> None:
    """A tree of 1,800 levels would exceed the calls that Python allows when it is removed."""
    assert write_error(tmp_path, entry("first"), entry(name)) == (
        "a.rpm cannot be unpacked: it contains a path with more than 32 components. Fetch the package again."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["/", "..", "outside", "../outside"])
def test_does_not_write_through_links(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "folder"
    for name in ("outside", "folder/outside"):
        (tmp_path / name).mkdir(parents=True)
    link = entry("usr/lib", target.encode(), LINK | 0o777)
    # The link and the file below it, in one archive or in two.
    error = write_error(folder, link, entry("usr/lib/written", b"x"))
    assert error.startswith("a.rpm contains files below 'lib', which is a link or a file of an earlier ")
    assert write_error(folder, entry("usr/lib/written", b"x")) == error
    assert "below 'lib'" in write_error(folder, link, entry("usr/lib", mode=DIRECTORY | 0o700))
    assert not list(tmp_path.rglob("written"))
    # A file with the name of the link replaces it.
    outside = tmp_path / "outside/file"
    outside.write_text("theirs")
    write(folder, entry("link", bytes(outside), LINK), entry("link", b"ours"))
    assert outside.read_text() == "theirs"
    assert (folder / "link").read_bytes() == b"ours"


def test_rejects_file_and_directory_conflicts(tmp_path: Path) -> None:
    assert "below 'usr', which is a link or a file" in write_error(
        tmp_path, entry("usr", b"x"), entry("usr/tool", b"x")
    )
    (tmp_path / "bin").mkdir()
    assert write_error(tmp_path, entry("bin", b"x")).startswith("a.rpm contains a file 'bin', which is a directory ")


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_rejects_invalid_link_targets(tmp_path: Path, target: bytes) -> None:
    assert write_error(tmp_path, entry("tool", b"x"), entry("link", target, LINK)) == (
        "a.rpm cannot be unpacked: its link 'link' has an invalid target. Fetch the package again."
    )
    assert content_of(tmp_path) == {}


def test_rejects_too_much_content(tmp_path: Path) -> None:
    # Many names of an archive may share one content.
    entries = [entry(str(number), b"x" * (1 << 20)) for number in (1, 2)] * 150
    assert write_error(tmp_path, *entries).startswith("a.rpm cannot be unpacked: it contains more than ")
    assert content_of(tmp_path) == {}


def test_write_failure(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"/aaaa[^ ]* cannot be written: File name too long\. Check the file system\."):
        write(tmp_path, entry("a" * 300, b"x"))


# -- Packages --------------------------------------------------------------------------------------------------------

needs_dpkg_deb = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb: apt install dpkg")
RPM_START = b"\xed\xab\xee\xdb\x03\x00" + bytes(90)
FOREIGN_UID = 12345
TOOLKIT = [
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
]


class Runs:
    """Runs dpkg-deb, and returns prepared results of rpm2cpio by package."""

    def __init__(self, archives: t.Mapping[str, tuple[int, bytes, str]] | None = None) -> None:
        self.archives = archives or {}
        self.ran: list[list[str]] = []

    def __call__(self, argv: list[str], limit: int) -> tuple[int, bytes, str]:
        self.ran.append(argv)
        if argv[-1] in self.archives:
            return self.archives[argv[-1]]
        assert argv[0] == "dpkg-deb"
        return run_limited(argv, limit)

    def unpack(self, packages: t.Sequence[Path], folder: Path, on_controller: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        unpack([str(package) for package in packages], str(folder), on_controller, self)


def unpack_error(run: Runs, package: Path, folder: Path, on_controller: bool = False) -> str:
    with pytest.raises(NvidiaError) as caught:
        run.unpack([package], folder, on_controller)
    return str(caught.value)


def deb(folder: Path, name: str, root: Path, keep_owners: bool = False) -> Path:
    """Return a package with the files of ``root``, owned by root unless ``keep_owners``."""
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a test\n"
    )
    # The name does not determine the type.
    file = folder / f"{name}.package"
    argv = ["dpkg-deb", *([] if keep_owners else ["--root-owner-group"]), "-Zgzip", "-z1", "--build"]
    subprocess.run([*argv, str(root), str(file)], check=True, stdout=subprocess.DEVNULL, timeout=60)
    return file


def rpm(folder: Path, name: str) -> Path:
    file = folder / f"{name}.package"
    file.write_bytes(RPM_START)
    return file


# -- unpacked files ----------------------------------------------------------------------------------------------------


@needs_dpkg_deb
def test_debian_packages(tmp_path: Path) -> None:
    one, other, folder = tmp_path / "one", tmp_path / "other", tmp_path / "folder"
    tree(one, "1.20.0")
    (other / "usr/bin").mkdir(parents=True)
    (one / "usr/bin/nvidia-ctk").replace(other / "usr/bin/nvidia-ctk")
    packages = [deb(tmp_path, "nvidia-container-toolkit-base", one), deb(tmp_path, "nvidia-container-toolkit", other)]
    run = Runs()
    run.unpack(packages, folder)
    assert run.ran == [["dpkg-deb", "--fsys-tarfile", str(package)] for package in packages]
    assert len(find_parts(HostFS(str(folder), live=False), None, "files")) == 9


def test_rpm_packages(tmp_path: Path) -> None:
    base, tools = rpm(tmp_path, "base"), rpm(tmp_path, "tools")
    run = Runs(
        {
            str(base): (0, newc(Item("./usr/bin/nvidia-ctk", b"x", REGULAR | 0o755)), "warning: no key"),
            str(tools): (0, newc(Item("./usr", mode=DIRECTORY | 0o755), Item("./usr/lib64/a", b"b", LINK)), ""),
        }
    )
    run.unpack([base, tools], tmp_path / "folder")
    assert run.ran == [["rpm2cpio", str(base)], ["rpm2cpio", str(tools)]]
    assert content_of(tmp_path / "folder") == {
        "usr": None,
        "usr/bin": None,
        "usr/bin/nvidia-ctk": b"x",
        "usr/lib64": None,
        "usr/lib64/a": "b",
    }
    assert (tmp_path / "folder/usr/bin/nvidia-ctk").stat().st_mode & 0o7777 == 0o755


@needs_dpkg_deb
def test_keeps_mode_and_owner(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "folder"
    (root / "usr/bin").mkdir(parents=True)
    tool = root / "usr/bin/tool"
    tool.write_text("x")
    os.link(str(tool), str(root / "usr/bin/again"))
    if os.geteuid() == 0:
        for path in (root, tool):
            os.chown(str(path), FOREIGN_UID, FOREIGN_UID)
    root.chmod(0o777)
    tool.chmod(0o4777)
    package = deb(tmp_path, "open", root, keep_owners=True)
    folder.mkdir(mode=0o700)
    before = folder.stat()
    Runs().unpack([package], folder)
    after = folder.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    for name in ("tool", "again"):
        found = (folder / "usr/bin" / name).stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o755, os.geteuid(), before.st_gid)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 a wheel", "is neither a .deb nor an .rpm package. Fetch it again, or unpack it yourself"),
        (b"!<arch>", "is neither a .deb nor an .rpm package. Fetch"),
        (b"", "is neither a .deb nor an .rpm package: it is empty. Fetch"),
    ],
)
def test_rejects_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "nvidia-container-toolkit.deb"
    file.write_bytes(content)
    run = Runs()
    assert unpack_error(run, file, tmp_path / "folder").startswith(f"{file} {message}")
    # Packages before it are not unpacked either.
    with pytest.raises(NvidiaError):
        run.unpack([rpm(tmp_path, "base"), file], tmp_path / "folder")
    assert run.ran == []


def test_rejects_missing_files(tmp_path: Path) -> None:
    missing = tmp_path / "missing.deb"
    assert unpack_error(Runs(), missing, tmp_path / "folder") == (
        f"{missing} does not exist. Correct files, or copy the package to this path."
    )
    os.mkfifo(str(missing))
    for path in (tmp_path, missing):
        assert unpack_error(Runs(), path, tmp_path / "folder").startswith(f"{path} is not a regular file. ")
    assert "cannot be read: Not a directory. Correct files." in unpack_error(
        Runs(), rpm(tmp_path, "base") / "x", tmp_path / "folder"
    )


@pytest.mark.parametrize(
    ("on_controller", "message"),
    [
        (False, "is not installed on this host. Set remote_src: false to unpack on the controller, or unpack "),
        (True, "is not installed on the controller. Set remote_src: true to unpack on the host, or unpack "),
    ],
)
def test_missing_tool(tmp_path: Path, on_controller: bool, message: str) -> None:
    package = rpm(tmp_path, "base")
    run = Runs({str(package): (127, b"", "rpm2cpio cannot be run: No such file or directory")})
    error = unpack_error(run, package, tmp_path / "folder", on_controller)
    assert error == f"rpm2cpio {message}{package} yourself and set src."
    run.archives = {str(package): (127, b"", "timeout: failed to run command 'dpkg-deb': No such file or directory")}
    package.write_bytes(b"!<arch>\ndebian-binary")
    error = unpack_error(run, package, tmp_path / "folder", on_controller)
    assert error == f"dpkg-deb {message}{package} yourself and set src."


def test_failing_tool(tmp_path: Path) -> None:
    package = rpm(tmp_path, "base")
    run = Runs({str(package): (1, newc(Item("tool", b"x")), "error: base: not an rpm package\n(or manifest)\n")})
    with pytest.raises(HostError) as caught:
        run.unpack([package], tmp_path / "folder")
    assert str(caught.value) == (
        f"{package} cannot be unpacked, rpm2cpio failed: error: base: not an rpm package (or manifest). Fetch the"
        " package again, and check the free space."
    )
    assert content_of(tmp_path / "folder") == {}
    run.archives = {str(package): (3, b"", "")}
    assert "rpm2cpio failed: exit status 3. " in unpack_error(run, package, tmp_path / "folder")


@needs_dpkg_deb
@pytest.mark.parametrize("target", ["{outside}", "../../outside"])
def test_does_not_write_through_links_of_another_package(tmp_path: Path, target: str) -> None:
    one, other, outside, folder = (tmp_path / name for name in ("one", "other", "outside", "folder"))
    for path in (one / "usr", other / "usr/bin", outside):
        path.mkdir(parents=True)
    (one / "usr/bin").symlink_to(target.format(outside=outside))
    (other / "usr/bin/nvidia-ctk").write_text("x")
    packages = [deb(tmp_path, "first", one), deb(tmp_path, "second", other)]
    with pytest.raises(NvidiaError) as caught:
        Runs().unpack(packages, folder)
    assert content_of(outside) == {}
    assert str(caught.value).startswith(
        f"{packages[1]} contains files below 'bin', which is a link or a file of an earlier "
    )


@pytest.mark.parametrize("archive", [b"", newc(Item("tool", b"x"))])
def test_rejects_debian_package_without_tar(tmp_path: Path, archive: bytes) -> None:
    package = tmp_path / "base.deb"
    package.write_bytes(b"!<arch>\n")
    error = unpack_error(Runs({str(package): (0, archive, "")}), package, tmp_path / "folder")
    assert error.startswith(f"{package} cannot be unpacked: its content is not a complete tar archive (")


# -- limits ----------------------------------------------------------------------------------------------------------


@needs_dpkg_deb
def test_rejects_archive_bombs_before_writing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "zeros").touch()
    os.truncate(str(root / "zeros"), 200 << 20)
    package = deb(tmp_path, "bomb", root)
    assert package.stat().st_size < 1 << 20
    error = unpack_error(Runs(), package, tmp_path / "folder")
    assert error.startswith(f"{package} cannot be unpacked: it expands to more than ")
    assert error.endswith("Fetch the package again.")
    assert content_of(tmp_path / "folder") == {}


ENDLESS = "while :; do echo 0123456789; done"


def test_limits_output(tmp_path: Path) -> None:
    with pytest.raises(NvidiaError, match="rpm cannot be unpacked: it expands to more than 1000 bytes"):
        run_limited(["sh", "-c", ENDLESS, "rpm"], 1000)
    # Reported errors are limited too.
    script = "echo out; head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 3"
    status, output, errors = run_limited(["sh", "-c", script], 4)
    assert (status, output, set(errors)) == (3, b"out\n", {"x"})
    assert len(errors) < 10000
    assert run_limited([str(tmp_path / "missing")], 4)[0] == 127


@pytest.mark.parametrize("script", ["sleep 60", "exec >&-; sleep 60", "sleep 60 & echo x"])
def test_kills_tools_after_the_time_limit(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(toolkit_unpack, "_SECONDS", 1)
    start = time.monotonic()
    with pytest.raises(NvidiaError, match="sh did not end within 1 seconds"):
        run_limited(["sh", "-c", script], 1000)
    assert time.monotonic() - start < 10


def test_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(NvidiaError):
        run_limited(["sh", "-c", f"echo $$ >{tmp_path}/pid; {ENDLESS}"], 1000)
    assert not os.path.exists("/proc/" + (tmp_path / "pid").read_text().strip())
