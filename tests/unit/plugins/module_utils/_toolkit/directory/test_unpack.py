# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import unpack as toolkit_unpack
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.source import (
    PROGRAM_FOLDERS,
    find_parts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.unpack import (
    ArchiveEntry,
    run_limited,
    unpack,
    write_entries,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import LIBRARIES, tree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.package_archives import (
    DIRECTORY,
    LINK,
    PIPE,
    REGULAR,
    content_of,
    member,
    tar,
)

# -- entries ---------------------------------------------------------------------------------------------------------


def entry(name: str, content: bytes = b"", mode: int = REGULAR | 0o644) -> ArchiveEntry:
    return ArchiveEntry(name, mode, content)


def write(folder: Path, *entries: ArchiveEntry) -> None:
    write_entries(entries, str(folder), "a.rpm")


def write_error(folder: Path, *entries: ArchiveEntry) -> str:
    with pytest.raises(NvidiaError) as caught:
        write(folder, *entries)
    return str(caught.value)


# -- entries: written files ------------------------------------------------------------------------------------------

# Each program in each directory of programs that find_parts() searches, and a library in each directory of libraries.
TAKEN = [
    *(f"{folder[1:]}/{name}" for folder in PROGRAM_FOLDERS for name in toolkit_constants.INSTALLED_PROGRAMS),
    *(
        "usr/lib64/libnvidia-container.so.1.20.0",
        "usr/lib64/libnvidia-container-go.so.1",
        "usr/lib/libnvidia-container.so.1",
    ),
    *(f"usr/lib/{machine}-linux-gnu/libnvidia-container.so.1" for machine in ("x86_64", "aarch64")),
]
CTK, LIBRARY = "usr/bin/nvidia-ctk", "usr/lib64/libnvidia-container.so.1"


def test_files_and_links(tmp_path: Path) -> None:
    write(
        tmp_path,
        entry("./usr/lib64", mode=DIRECTORY | 0o555),
        entry(f"./{LIBRARY}.2", b"a library", REGULAR | 0o755),
        entry(f"./{LIBRARY}", b"libnvidia-container.so.1.2", LINK | 0o777),
        entry(f"/{CTK}"),
        entry(CTK, b"the last one"),
    )
    assert content_of(tmp_path) == {
        "usr": None,
        "usr/lib64": None,
        f"{LIBRARY}.2": b"a library",
        LIBRARY: "libnvidia-container.so.1.2",
        "usr/bin": None,
        CTK: b"the last one",
    }
    assert (tmp_path / "usr/lib64").stat().st_mode & 0o700 == 0o700


@pytest.mark.parametrize("name", TAKEN)
def test_takes_all_files_of_the_toolkit(tmp_path: Path, name: str) -> None:
    write(tmp_path, entry(name, b"x"))
    assert (tmp_path / name).read_bytes() == b"x"


@pytest.mark.parametrize(("mode", "kept"), [(0o755, 0o755), (0o4777, 0o755), (0o664, 0o644), (0o600, 0o600)])
def test_modes(tmp_path: Path, mode: int, kept: int) -> None:
    write(tmp_path, entry(CTK, b"x", REGULAR | mode))
    assert stat.S_IMODE((tmp_path / CTK).stat().st_mode) == kept


@pytest.mark.parametrize("name", [".", "./", "././", "", "..", "/"])
def test_keeps_the_target_directory(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    before = folder.stat()
    write(folder, *(entry(name, b"/etc", mode) for mode in (DIRECTORY | 0o777, REGULAR | 0o777, LINK | 0o777)))
    assert content_of(tmp_path) == {"folder": None}
    after = folder.stat()
    # The time of the last access may change.
    for field in ("st_ino", "st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_ctime_ns"):
        assert getattr(after, field) == getattr(before, field), field


@pytest.mark.parametrize("kind", [DIRECTORY, PIPE, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_ignores_directories_and_special_files(tmp_path: Path, kind: int) -> None:
    write(tmp_path, entry(CTK, b"x", kind | 0o644))
    assert content_of(tmp_path) == {}


def test_later_packages_replace_files(tmp_path: Path) -> None:
    write(tmp_path, entry(CTK, b"old", REGULAR | 0o444), entry(LIBRARY, b"old", LINK))
    write(tmp_path, entry(CTK, b"new"), entry(LIBRARY, b"new", LINK))
    assert (tmp_path / CTK).read_bytes() == b"new"
    assert os.readlink(str(tmp_path / LIBRARY)) == "new"


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../outside", "usr/../../outside", "usr/bin/..", "usr/bin/nvidia-a\0b", "nvidia-ctk"),
        *("../usr/bin/nvidia-ctk", "usr/bin/../bin/nvidia-ctk", "usr/bin/nvidia-ctk/..", "usr/bin/nvidia-ctk/x"),
        *("usr/bin/bash", "usr/bin", "usr/share/nvidia-ctk", "usr/lib64/x/libnvidia-container.so.1", "d/" * 1800 + "x"),
    ],
)
@pytest.mark.parametrize("kind", [REGULAR, LINK])
def test_ignores_other_files(tmp_path: Path, name: str, kind: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, entry(name, b"x", kind | 0o644))
    assert content_of(tmp_path) == {"folder": None}


@pytest.mark.parametrize("target", ["/", "..", "outside", "../outside"])
@pytest.mark.parametrize("link", ["usr", "usr/lib64", "usr/lib/x86_64-linux-gnu"])
def test_does_not_write_through_links(tmp_path: Path, link: str, target: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, entry(link, target.encode(), LINK | 0o777))
    write(folder, entry(link, target.encode(), LINK | 0o777), entry(LIBRARY, b"x"))
    assert list(tmp_path.rglob("libnvidia*")) == [folder / LIBRARY]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_replaces_links(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("foreign")
    folder.mkdir()
    write(folder, entry(CTK, bytes(outside), LINK))
    write(folder, entry(CTK, b"ours"))
    assert outside.read_text() == "foreign"
    assert (folder / CTK).read_bytes() == b"ours"


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, blacklist_characters="/."), min_size=1, max_size=9)


@given(files=st.dictionaries(NAMES, st.binary(max_size=50), min_size=1))
def test_writes_any_files(files: t.Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), *(entry(f"sbin/nvidia-{name}", content) for name, content in files.items()))
        assert content_of(Path(folder, "sbin")) == {f"nvidia-{name}": content for name, content in files.items()}


# -- entries: errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_rejects_invalid_link_targets(tmp_path: Path, target: bytes) -> None:
    assert f"a.rpm cannot be unpacked: its link {CTK!r} " in write_error(tmp_path, entry(CTK, target, LINK))
    assert content_of(tmp_path) == {}


def test_rejects_too_much_content(tmp_path: Path) -> None:
    # Many names of an archive may share one content.
    entries = [entry(f"{CTK}{number}", b"x" * (1 << 20)) for number in range(3)]
    entries += [entry(f"{CTK}-{number}", entries[0].content) for number in range(300)]
    assert write_error(tmp_path, *entries).startswith("a.rpm cannot be unpacked: it contains more than ")
    assert content_of(tmp_path) == {}


def test_write_failure(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"/nvidia-aaaa[^ ]* cannot be written: File name too long\. Check the file "):
        write(tmp_path, entry(f"usr/bin/nvidia-{'a' * 300}", b"x"))


# -- packages --------------------------------------------------------------------------------------------------------

needs_dpkg_deb = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb: apt install dpkg")
needs_rpm = pytest.mark.skipif(
    not (shutil.which("rpmbuild") and shutil.which("rpm2archive")),
    reason="needs rpmbuild and rpm2archive: apt install rpm",
)
RPM_START = b"\xed\xab\xee\xdb\x03\x00" + bytes(90)
FOREIGN_UID = 12345


class Runs:
    """Returns the prepared result of a package. Runs the command for packages without one."""

    def __init__(self, archives: t.Mapping[str, tuple[int, bytes, str]] | None = None) -> None:
        self.archives = archives or {}
        self.ran: list[list[str]] = []

    def __call__(self, argv: list[str], package: str, limit: int) -> tuple[int, bytes, str]:
        self.ran.append([*argv, package])
        return self.archives[package] if package in self.archives else run_limited(argv, package, limit)

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


def archive_of(*members: bytes) -> bytes:
    """Return an archive as rpm2archive writes it."""
    return gzip.compress(tar(*members), mtime=0)


def built_rpm(folder: Path, root: Path) -> Path:
    """Return a package with the files of ``root``."""
    lines = ["Name: a", "Version: 1", "Release: 1", "Summary: a", "License: a", "AutoReqProv: no", "%description"]
    lines += ["%install", "mkdir -p %{buildroot}", f"cp -a {root}/. %{{buildroot}}/", "%files", "/usr"]
    (folder / "a.spec").write_text("\n".join([*lines, ""]))
    settings = {
        "_topdir": str(folder / "top"),
        "_rpmdir": str(folder),
        "_rpmfilename": "a.rpm",
        "__os_install_post": "%{nil}",
        "debug_package": "%{nil}",
        "_build_id_links": "none",
    }
    defines = [f"--define={name} {value}" for name, value in settings.items()]
    argv = ["rpmbuild", "--quiet", "-bb", *defines, str(folder / "a.spec")]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return folder / "a.rpm"


# -- packages: unpacked files ----------------------------------------------------------------------------------------


@needs_dpkg_deb
def test_debian_packages(tmp_path: Path) -> None:
    one, other, folder = tmp_path / "one", tmp_path / "other", tmp_path / "folder"
    tree(one, "1.20.0")
    (other / "usr/bin").mkdir(parents=True)
    (one / "usr/bin/nvidia-ctk").replace(other / "usr/bin/nvidia-ctk")
    packages = [deb(tmp_path, "nvidia-container-toolkit-base", one), deb(tmp_path, "nvidia-container-toolkit", other)]
    run = Runs()
    run.unpack(packages, folder)
    assert run.ran == [["dpkg-deb", "--fsys-tarfile", "-", str(package)] for package in packages]
    parts = find_parts(HostFS(str(folder), live=False), None, "files")
    assert len(parts) == len(toolkit_constants.INSTALLED_PROGRAMS) + len(LIBRARIES)


def test_rpm_packages(tmp_path: Path) -> None:
    base, tools = rpm(tmp_path, "base"), rpm(tmp_path, "tools")
    run = Runs(
        {
            str(base): (0, archive_of(member("./usr/bin/nvidia-ctk", b"x", mode=0o755)), "warning: no key"),
            str(tools): (0, archive_of(member(f"./{LIBRARY}", kind=tarfile.SYMTYPE, linkname="b")), ""),
        }
    )
    run.unpack([base, tools], tmp_path / "folder")
    assert run.ran == [["rpm2archive", "-", str(base)], ["rpm2archive", "-", str(tools)]]
    assert content_of(tmp_path / "folder") == {
        "usr": None,
        "usr/bin": None,
        "usr/bin/nvidia-ctk": b"x",
        "usr/lib64": None,
        LIBRARY: "b",
    }
    assert (tmp_path / "folder/usr/bin/nvidia-ctk").stat().st_mode & 0o7777 == 0o755


@needs_rpm
def test_real_rpm_package(tmp_path: Path) -> None:
    root, long_name = tmp_path / "root", "nvidia-" + "é" * 100
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/lib64").mkdir()
    (root / CTK).write_bytes(b"x" * 100_000)
    os.link(str(root / CTK), str(root / "usr/bin/nvidia-again"))
    (root / "usr/bin" / long_name).write_bytes(b"y")
    (root / LIBRARY).symlink_to("libnvidia-container.so.1.2")
    package, folder = built_rpm(tmp_path, root), tmp_path / "folder"
    Runs().unpack([package], folder)
    assert content_of(folder) == content_of(root)
    os.truncate(str(package), package.stat().st_size - 60)
    error = unpack_error(Runs(), package, tmp_path / "other")
    assert "rpm2archive failed: Error reading file from rpm payload. Fetch the package again" in error
    assert sorted(tmp_path.glob("*.t*")) == []


@needs_dpkg_deb
def test_keeps_mode_and_owner_of_the_directory_only(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "folder"
    (root / "usr/bin").mkdir(parents=True)
    tool = root / CTK
    tool.write_text("x")
    os.link(str(tool), str(root / "usr/bin/nvidia-again"))
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
    for name in ("nvidia-ctk", "nvidia-again"):
        found = (folder / "usr/bin" / name).stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o755, os.geteuid(), before.st_gid)


# -- packages: errors ------------------------------------------------------------------------------------------------


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
    found = unpack_error(Runs(), missing, tmp_path / "folder")
    assert found.startswith(f"{missing} cannot be read: No such file or directory. ")
    os.mkfifo(str(missing))
    for path in (tmp_path, missing):
        assert unpack_error(Runs(), path, tmp_path / "folder").startswith(f"{path} is not a regular file. ")


@pytest.mark.parametrize(
    ("on_controller", "place", "message"),
    [
        (
            False,
            "this host",
            "set nvidia_toolkit_files_on to controller (remote_src: false) to unpack on the controller",
        ),
        (True, "the controller", "set nvidia_toolkit_files_on to node (remote_src: true) to unpack on the host"),
    ],
)
def test_missing_tool(tmp_path: Path, on_controller: bool, place: str, message: str) -> None:
    package = rpm(tmp_path, "base")
    run = Runs({str(package): (127, b"", "rpm2archive cannot be run: No such file or directory")})
    end = f"{message}, or unpack {package} yourself and set src instead of files."
    assert unpack_error(run, package, tmp_path / "folder", on_controller) == (
        f"rpm2archive is not installed on {place}."
        f" Install its package (rpm2cpio on Debian and Ubuntu, else rpm), or {end}"
    )
    run.archives = {str(package): (127, b"", "timeout: failed to run command 'dpkg-deb': No such file or directory")}
    package.write_bytes(b"!<arch>\ndebian-binary")
    assert unpack_error(run, package, tmp_path / "folder", on_controller) == (
        f"dpkg-deb is not installed on {place}. Install its package (dpkg), or {end}"
    )


def test_failing_tool(tmp_path: Path) -> None:
    package = rpm(tmp_path, "base")
    run = Runs(
        {str(package): (1, archive_of(member("tool", b"x")), "error: base: not an rpm package\n(or manifest)\n")}
    )
    with pytest.raises(HostError) as caught:
        run.unpack([package], tmp_path / "folder")
    assert str(caught.value).startswith(f"{package} ")
    assert " rpm2archive failed: error: base: not an rpm package (or manifest). " in str(caught.value)
    assert content_of(tmp_path / "folder") == {}
    run.archives = {str(package): (3, b"", "")}
    assert "rpm2archive failed: exit status 3. " in unpack_error(run, package, tmp_path / "folder")


@needs_dpkg_deb
@pytest.mark.parametrize("target", ["{outside}", "../../outside"])
def test_does_not_write_through_links_of_another_package(tmp_path: Path, target: str) -> None:
    one, other, outside, folder = (tmp_path / name for name in ("one", "other", "outside", "folder"))
    for path in (one / "usr", other / "usr/bin", outside):
        path.mkdir(parents=True)
    (one / "usr/bin").symlink_to(target.format(outside=outside))
    (other / "usr/bin/nvidia-ctk").write_text("x")
    Runs().unpack([deb(tmp_path, "first", one), deb(tmp_path, "second", other)], folder)
    assert content_of(outside) == {}
    assert content_of(folder) == {"usr": None, "usr/bin": None, CTK: b"x"}


@pytest.mark.parametrize("archive", [b"", archive_of(member("tool", b"x"))], ids=["empty", "gzip"])
def test_rejects_debian_package_without_tar(tmp_path: Path, archive: bytes) -> None:
    package = tmp_path / "base.deb"
    package.write_bytes(b"!<arch>\n")
    error = unpack_error(Runs({str(package): (0, archive, "")}), package, tmp_path / "folder")
    assert error.startswith(f"{package} cannot be unpacked: its content is not a complete tar archive (")


@pytest.mark.parametrize(
    ("archive", "problem"),
    [
        (b"", "its content is not a complete tar archive ("),
        (tar(member("tool", b"x")), "its content is not a complete gzip file ("),
        (archive_of(member("tool", b"x" * 5000))[:-30], "its content is not a complete tar archive ("),
        (gzip.compress(bytes(17 << 20), mtime=0), f"it expands to more than {16 << 20} bytes"),
    ],
    ids=["empty", "tar", "truncated", "bomb"],
)
def test_rejects_output_of_rpm2archive(tmp_path: Path, archive: bytes, problem: str) -> None:
    package = rpm(tmp_path, "base")
    error = unpack_error(Runs({str(package): (0, archive, "")}), package, tmp_path / "folder")
    assert error.startswith(f"{package} cannot be unpacked: {problem}")


# -- packages: limits ------------------------------------------------------------------------------------------------


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
    package = str(rpm(tmp_path, "base"))
    with pytest.raises(NvidiaError, match="package cannot be unpacked: it expands to more than 1000 bytes"):
        run_limited(["sh", "-c", ENDLESS], package, 1000)
    # Reported errors are limited too.
    script = "echo out; head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 3"
    status, output, errors = run_limited(["sh", "-c", script], package, 4)
    assert (status, output, set(errors)) == (3, b"out\n", {"x"})
    assert len(errors) < 10000
    assert run_limited([str(tmp_path / "missing")], package, 4)[0] == 127
    (tmp_path / "plain").touch()
    with pytest.raises(HostError, match="plain cannot be run: Permission denied"):
        run_limited([str(tmp_path / "plain")], package, 4)


@pytest.mark.parametrize("script", ["sleep 60", "exec >&-; sleep 60", "sleep 60 & echo x"])
def test_kills_tools_after_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(toolkit_unpack, "_SECONDS", 1)
    start = time.monotonic()
    with pytest.raises(NvidiaError, match="sh did not end within 1 seconds"):
        run_limited(["sh", "-c", script], str(rpm(tmp_path, "base")), 1000)
    assert time.monotonic() - start < 10


def test_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(NvidiaError):
        run_limited(["sh", "-c", f"echo $$ >{tmp_path}/pid; {ENDLESS}"], str(rpm(tmp_path, "base")), 1000)
    assert not os.path.exists("/proc/" + (tmp_path / "pid").read_text().strip())
