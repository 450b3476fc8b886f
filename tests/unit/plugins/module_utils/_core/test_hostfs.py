# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import SERVICE_PATH, HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import chrooted, within
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.racing_links import (
    CHANGES,
    MESSAGE,
    change_links_before_reading,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small tree, beside a file outside of it."""
    (tmp_path / "secret").write_text("outside")
    tree = tmp_path / "tree"
    (tree / "etc/docker").mkdir(parents=True)
    (tree / "etc/docker/daemon.json").write_text("{}")
    return tree


@pytest.fixture
def host(root: Path) -> HostFS:
    return HostFS.of(str(root), live=False)


# -- of, check_path ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", ".", "etc", "/no/such/directory", "/dev/null"])
def test_of_rejects_a_path_that_is_no_absolute_directory(root: str) -> None:
    with pytest.raises(HostError, match=f"host_root '{root}' is not a"):
        HostFS.of(root, live=True)


@pytest.mark.parametrize("spelling", ["/", "//", "/usr/.."])
def test_root_directory_is_always_live(spelling: str) -> None:
    assert HostFS.of(spelling, live=False) == HostFS("/", live=True)


def test_another_directory_is_live_only_on_request(tmp_path: Path) -> None:
    assert not HostFS.of(str(tmp_path), live=False).live
    assert HostFS.of(str(tmp_path), live=True).live


def test_of_resolves_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert HostFS.of(str(tmp_path / "link"), live=False).root == str(root)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/etc/docker/daemon.json", "/etc/docker/daemon.json"),
        ("//etc///docker/./daemon.json/", "/etc/docker/daemon.json"),
        ("/etc/../../etc/x", "/etc/x"),
        ("/", "/"),
        ("//", "/"),
    ],
)
def test_check_path_normalises(host: HostFS, path: str, normal: str) -> None:
    assert host.check_path("config_path", path) == normal
    assert HostFS().check_path("config_path", path) == normal


@pytest.mark.parametrize("path", ["", "daemon.json", "./etc", "~/daemon.json"])
def test_check_path_rejects_relative_paths(host: HostFS, path: str) -> None:
    with pytest.raises(NvidiaError, match=r"config_path .* is not an absolute path"):
        host.check_path("config_path", path)


@pytest.mark.parametrize("below", ["", "/", "/etc/docker/daemon.json", "/../tree/etc"])
def test_check_path_rejects_paths_that_begin_with_the_root(host: HostFS, below: str) -> None:
    with pytest.raises(NvidiaError, match=r"backup_dir .* begins with host_root"):
        host.check_path("backup_dir", host.root + below)


def test_check_path_accepts_a_name_that_begins_like_the_root(host: HostFS) -> None:
    assert host.check_path("backup_dir", host.root + "-backups") == host.root + "-backups"


# -- resolve -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "path", "resolved"),
    [
        ({}, "/", "/"),
        ({}, "/etc/docker/daemon.json", "/etc/docker/daemon.json"),
        ({}, "//etc/./docker//", "/etc/docker"),
        ({}, "/../../secret", "/secret"),
        ({}, "/etc/../../../secret", "/secret"),
        ({}, "/missing/file", "/missing/file"),
        ({"run": "/etc"}, "/run/docker", "/etc/docker"),
        ({"etc/a": "/secret"}, "/etc/a", "/secret"),
        ({"etc/a": "../../secret"}, "/etc/a", "/secret"),
        ({"etc/a": "../../../../../secret"}, "/etc/a", "/secret"),
        ({"etc/a": "/.."}, "/etc/a/secret", "/secret"),
        ({"etc/a": "docker/"}, "/etc/a/daemon.json", "/etc/docker/daemon.json"),
        # ".." of a link is the parent of its target, as for the kernel.
        ({"a": "/etc/docker"}, "/a/../x", "/etc/x"),
        # A missing name hides no link after "..".
        ({"a": "/etc"}, "/missing/../a/x", "/etc/x"),
        ({"a": "/etc"}, "/missing/below/../../a/x", "/etc/x"),
        ({"a": "/b", "b": "c", "c": "etc"}, "/a/docker", "/etc/docker"),
        ({"etc/dangling": "/nowhere/else"}, "/etc/dangling", "/nowhere/else"),
        ({"etc/dangling": "nowhere"}, "/etc/dangling/below", "/etc/nowhere/below"),
    ],
)
def test_resolve_stays_inside_the_root(
    root: Path, host: HostFS, links: dict[str, str], path: str, resolved: str
) -> None:
    for link, target in links.items():
        (root / link).symlink_to(target)
    assert host.resolve(path) == resolved
    assert host.real_path(path).rstrip("/") == (host.root + resolved).rstrip("/")


def test_resolve_asks_for_nothing_below_a_missing_name(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    assert host.resolve("/etc/missing/a/b/c") == "/etc/missing/a/b/c"
    assert [path[len(host.root) :] for path in asked] == ["/etc", "/etc/missing"]


def test_resolve_can_keep_the_last_link(root: Path, host: HostFS) -> None:
    (root / "a").symlink_to("/etc")
    (root / "etc/b").symlink_to("docker")
    assert host.resolve("/a/b", last=False) == "/etc/b"
    assert host.real_path("/a/b", last=False) == host.root + "/etc/b"


@pytest.mark.parametrize("links", [{"a": "a"}, {"a": "/a"}, {"a": "b", "b": "/a"}, {"a": "a/b"}])
def test_rejects_a_loop_of_links(root: Path, host: HostFS, links: dict[str, str]) -> None:
    for link, target in links.items():
        (root / link).symlink_to(target)
    for read in (host.resolve, host.read, host.entries):
        with pytest.raises(HostError, match="/a/x: too many symbolic links"):
            read("/a/x")
    assert host.read_text("/a/x") == ""
    assert not host.exists("/a/x")
    assert host.readable_entries("/a/x") == []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", ["resolve", "real_path", "read", "entries"])
def test_rejects_a_link_that_changes_while_it_is_resolved(
    root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch, change: str, call: str
) -> None:
    (root / "a").symlink_to("etc")
    change_links_before_reading(monkeypatch, change)
    with pytest.raises(HostError, match=MESSAGE.format("/a")):
        getattr(host, call)("/a/x")
    assert host.read_text("/a/x") == ""


@pytest.mark.parametrize(("length", "fine"), [(40, True), (41, False)])
def test_follows_as_many_links_as_the_kernel(tmp_path: Path, length: int, fine: bool) -> None:
    (tmp_path / "0").write_text("end")
    for number in range(length):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    last = str(tmp_path / str(length))
    if fine:
        assert Path(last).read_text() == "end"
        assert HostFS().resolve(last) == str(tmp_path / "0")
    else:
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            Path(last).read_text()
        with pytest.raises(HostError):
            HostFS().resolve(last)


_NAMES = st.sampled_from(["a", "b", "c", "..", "."])
_PATHS = st.builds(lambda head, parts: head + "/".join(parts), st.sampled_from(["", "/"]), st.lists(_NAMES, min_size=1))
_LINKS = st.dictionaries(st.sampled_from(["c", "a/a", "a/b", "b/a", "b/b", "b/c"]), _PATHS)


@given(_LINKS, _PATHS)
def test_resolve_agrees_with_the_kernel(links: dict[str, str], path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "tree")
        for made in (root, root / "a", root / "b"):
            made.mkdir()
        (root / "a/c").write_text("file")
        for link, target in links.items():
            (root / link).symlink_to(target)
        host = HostFS(str(root), live=False)
        kernel = _kernel_in(root, path) if os.geteuid() == 0 else ""
        try:
            process_path = host.real_path(path)
        except HostError:
            assert not kernel.isdigit()
            return
        assert (process_path + "/").startswith(host.root + "/")
        assert os.path.realpath(process_path) == process_path.rstrip("/")
        assert kernel != "ELOOP"
        assert not kernel.isdigit() or str(os.stat(process_path).st_ino) == kernel


def _kernel_in(root: Path, path: str) -> str:
    """Return the inode of ``path`` under ``root``, or the name of the error."""

    def ask() -> str:
        try:
            return str(os.stat("/" + path).st_ino)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    return chrooted(root, ask)


# -- the running system --------------------------------------------------------------------------------------------


def test_argv() -> None:
    assert HostFS().argv(("dockerd", "--version")) == ["dockerd", "--version"]
    assert HostFS("/mnt").argv(("dockerd", "--version")) == ["chroot", "/mnt", "dockerd", "--version"]


# -- reading -------------------------------------------------------------------------------------------------------


def test_read_never_leaves_the_tree(root: Path, host: HostFS) -> None:
    (root / "etc/out").symlink_to("../../secret")
    (root / "etc/absolute").symlink_to(root.parent / "secret")
    for path in ("/etc/out", "/etc/absolute", "/../secret"):
        assert host.read(path) is None
        assert not host.exists(path)
    assert host.entries("/../..") == ["etc"]


def test_read(root: Path, host: HostFS) -> None:
    (root / "etc/docker/latin").write_bytes(b"caf\xe9")
    assert host.read("/etc/docker/latin") == b"caf\xe9"
    assert host.read_text("/etc/docker/latin") == "caf\ufffd"
    assert host.read("/etc/docker/none") is None
    assert host.read("/etc/none/none") is None
    assert host.read_text("/etc/docker/none") == ""
    assert host.entries("/etc/docker") == ["daemon.json", "latin"]
    assert host.entries("/etc/none") == host.entries("/etc/docker/latin") == []


def test_exists_and_lexists(root: Path, host: HostFS) -> None:
    (root / "a").symlink_to("/none")
    (root / "b").symlink_to("b")
    assert [host.lexists(path) for path in ("/etc", "/a", "/b", "/a/x", "/b/x", "/c")] == [True] * 3 + [False] * 3
    assert [host.exists(path) for path in ("/etc", "/a", "/b")] == [True, False, False]


def test_read_rejects_special_files(root: Path, host: HostFS) -> None:
    # A pipe without a writer would block for ever.
    os.mkfifo(root / "etc/pipe")
    for path in ("/etc", "/etc/pipe"):
        with pytest.raises(HostError, match=f"{path} is not a regular file"):
            host.read(path)
        assert host.read_text(path) == ""


@needs_root
def test_read_without_permission(root: Path) -> None:
    (root / "etc/docker/daemon.json").chmod(0o600)
    path = "/etc/docker/daemon.json"
    error = chrooted(root, lambda: str(HostFS().read(path)), uid=65534)
    assert error.startswith(f"{path} cannot be read: Permission denied. ")
    assert "become: true" in error
    assert chrooted(root, lambda: HostFS().read_text(path) + "-", uid=65534) == "-"
    assert chrooted(root, lambda: str(HostFS().read(path))) == "b'{}'"


# -- programs ------------------------------------------------------------------------------------------------------


def _program(root: Path, path: str, mode: int = 0o755) -> None:
    (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (root / path[1:]).write_text("")
    (root / path[1:]).chmod(mode)


@pytest.mark.parametrize(("mode", "executable"), [(0o644, False), (0o100, True), (0o010, True), (0o001, True)])
def test_is_executable(root: Path, host: HostFS, mode: int, executable: bool) -> None:
    _program(root, "/usr/bin/tool", mode)
    assert host.is_executable("/usr/bin/tool") is executable


def test_directories_and_broken_links_are_not_executable(root: Path, host: HostFS) -> None:
    _program(root, "/usr/bin/real")
    (root / "usr/bin/dangling").symlink_to("/usr/bin/none")
    (root / "usr/bin/absolute").symlink_to("/usr/bin/real")
    assert not host.is_executable("/usr/bin")
    assert not host.is_executable("/usr/bin/dangling")
    assert host.is_executable("/usr/bin/absolute")


def test_find_executable_searches_by_name_then_by_directory(root: Path, host: HostFS) -> None:
    for folder in reversed(SERVICE_PATH):
        _program(root, f"{folder}/dockerd")
        assert host.find_executable(["none", "dockerd"]) == f"{folder}/dockerd"
    _program(root, "/opt/dockerd")
    _program(root, "/opt/plain", 0o644)
    assert host.find_executable(["/opt/plain", "/opt/dockerd", "dockerd"]) == "/opt/dockerd"
    assert host.find_executable(["dockerd", "/opt/dockerd"]) == f"{SERVICE_PATH[0]}/dockerd"
    assert host.find_executable(["/opt/none", "none"]) is None
    assert host.find_executable([]) is None


def test_same_program(root: Path, host: HostFS) -> None:
    _program(root, "/usr/bin/runc")
    _program(root, "/usr/local/nvidia/runc")
    (root / "usr/sbin").symlink_to("bin")
    (root / "alternative").symlink_to("/usr/bin/runc")
    for spelling in ("runc", "/usr/bin/runc", "/usr/sbin/runc", "/alternative", "/usr/local/../bin/runc"):
        assert host.same_program(spelling, "/usr/bin/runc")
        assert host.same_program("/usr/bin/runc", spelling)
    for other in ("/usr/local/nvidia/runc", "none", "/usr/bin/none", ""):
        assert not host.same_program(other, "/usr/bin/runc")


def test_same_program_of_absent_files(root: Path, host: HostFS) -> None:
    (root / "bin").symlink_to("usr/bin")
    assert host.same_program("none", "none")
    assert host.same_program("/bin/none", "/usr/bin/none")
    assert not host.same_program("none", "/usr/bin/none")


def test_same_program_with_a_loop_of_links(root: Path, host: HostFS) -> None:
    (root / "a").symlink_to("a")
    assert not host.same_program("/a", "/usr/bin/runc")


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_entries_of_an_unreadable_directory(monkeypatch: pytest.MonkeyPatch, host: HostFS, error: OSError) -> None:
    def listdir(_path: str) -> list[str]:
        raise error

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(HostError, match=f"/etc/docker cannot be read: {error.strerror}"):
        host.entries("/etc/docker")
    assert host.readable_entries("/etc/docker") == host.glob("/etc/docker/*") == []


@pytest.mark.parametrize("path", ["/a" * 100_000, "/" + "a" * 4095])
def test_rejects_a_path_that_is_too_long(tmp_path: Path, path: str) -> None:
    host = HostFS(str(tmp_path), live=False)
    with pytest.raises(HostError, match="is not a valid path") as caught:
        host.read(path)
    assert len(str(caught.value)) < 300
    assert host.glob(path + "/*") == []


@pytest.mark.parametrize("path", ["/etc/a\0b", "/a\ud800b", "\0"])
def test_rejects_an_invalid_path(tmp_path: Path, path: str) -> None:
    host = HostFS(str(tmp_path), live=False)
    with pytest.raises(HostError, match="is not a valid path"):
        host.read(path)
    assert host.read_text(path) == ""
    assert not host.exists(path)
    assert not host.lexists(path)
    assert not host.is_executable(path)
    assert host.readable_entries(path) == []
    assert host.mtime(path) == 0


@pytest.mark.parametrize("most", [hostfs.UNIT_BYTES, hostfs.FILE_BYTES])
def test_read_rejects_a_file_above_its_limit(tmp_path: Path, most: int) -> None:
    host = HostFS(str(tmp_path), live=False)
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(most)
    assert len(host.read("/sparse", most) or b"") == len(host.read_text("/sparse", most)) == most
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(most + 1)
    with pytest.raises(HostError, match=rf"^/sparse is larger than {most >> 10} KiB"):
        host.read("/sparse", most)
    assert host.read_text("/sparse", most) == ""
    if most == hostfs.FILE_BYTES:
        with pytest.raises(HostError, match=r"^/sparse is larger than 16384 KiB"):
            host.read("/sparse")


@pytest.mark.parametrize("target", ["/proc/kmsg", "/sys/kernel/tracing/trace_pipe", "/../proc/kmsg"])
def test_read_rejects_a_link_to_a_kernel_file(root: Path, host: HostFS, target: str) -> None:
    """Such a file is regular, but reading it may block."""
    kernel = root / target.replace("..", "").lstrip("/")
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_text("<6>message")
    (root / "etc/docker/link.json").symlink_to(target)
    with pytest.raises(HostError, match=r"^/etc/docker/link\.json leads to the kernel file /(proc|sys)/\S+, "):
        host.read("/etc/docker/link.json")
    assert host.read_text("/etc/docker/link.json") == ""
    with pytest.raises(HostError, match=r"leads to the kernel file"):
        host.read("/proc/../" + target)
    # A path that the code itself names is read.
    assert host.read_text(target.replace("/..", "")) == "<6>message"


@pytest.mark.parametrize("read", [HostFS.read, HostFS.read_text])
def test_read_does_not_block_on_a_pipe_that_replaces_the_file(
    root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch, read: t.Callable[[HostFS, str], t.Any]
) -> None:
    """The file is replaced between stat(2) and open(2)."""
    path = root / "etc/docker/daemon.json"
    stat = os.stat

    def replaced(name: t.Any, **options: t.Any) -> os.stat_result:
        found = stat(name, **options)
        if str(name) == str(path):
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", replaced)
    before = len(os.listdir("/proc/self/fd"))
    with within(5):
        if read is HostFS.read_text:
            assert host.read_text("/etc/docker/daemon.json") == ""
        else:
            with pytest.raises(HostError, match=r"daemon\.json is not a regular file"):
                host.read("/etc/docker/daemon.json")
    assert len(os.listdir("/proc/self/fd")) == before


def test_walk_rejects_too_many_files(root: Path, host: HostFS) -> None:
    for number in range(hostfs.DROP_INS - 2):
        (root / f"etc/docker/{number}").write_text("")
    # With daemon.json and their directory.
    assert len(host.walk("/etc")) == hostfs.DROP_INS - 1
    (root / "etc/one").write_text("")
    with pytest.raises(HostError, match=r"^/etc contains more than 100 files"):
        host.walk("/etc")


def test_walk_rejects_deep_nesting(root: Path, host: HostFS) -> None:
    (root / ("etc/" + "d/" * 110)).mkdir(parents=True)
    with pytest.raises(HostError, match=r"^/etc contains more than 100 files"):
        host.walk("/etc")


# -- glob, walk, mtime ------------------------------------------------------------------------------------------------


def _fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/c/*.toml", ["/c/.hidden.toml", "/c/10.toml", "/c/9.toml"]),
        ("/c/1*", ["/c/10.toml"]),
        ("/c/?.toml", ["/c/9.toml"]),
        ("/c/[0-9]*.toml", ["/c/10.toml", "/c/9.toml"]),
        ("/c/[^.1]*.toml", ["/c/9.toml"]),
        ("/c/*", ["/c/.hidden.toml", "/c/10.toml", "/c/9.toml", "/c/d.toml~", "/c/sub"]),
        ("/*/sub/a.toml", ["/c/sub/a.toml"]),
        ("/c/*/*.toml", ["/c/sub/a.toml"]),
        ("//c/./9.*", ["/c/9.toml"]),
        ("/c/9.toml", ["/c/9.toml"]),
        ("/c/TOML*", []),
        ("/c/none", []),
        ("/none/*", []),
        ("/c/9.toml/*", []),
    ],
)
def test_glob(root: Path, host: HostFS, pattern: str, found: list[str]) -> None:
    _fill(root, "c/10.toml", "c/9.toml", "c/.hidden.toml", "c/d.toml~", "c/sub/a.toml")
    assert host.glob(pattern) == found


def test_glob_and_links(root: Path, host: HostFS) -> None:
    _fill(root, "real/a.toml", "real/b.toml")
    (root / "c").symlink_to("/real")
    (root / "real/dangling.toml").symlink_to("/none")
    (root / "real/out.toml").symlink_to("../../secret")
    (root / "real/in.toml").symlink_to("/real/a.toml")
    assert host.glob("/c/*.toml") == ["/c/a.toml", "/c/b.toml", "/c/in.toml"]


def test_walk(root: Path, host: HostFS) -> None:
    _fill(root, "w/a/x", "w/a.conf", "w/b/c/y", "w/.z")
    (root / "w/empty").mkdir()
    (root / "w/link").symlink_to("/w/b")
    (root / "w/dangling").symlink_to("/none")
    # The order is by component. Links are not followed.
    assert host.walk("/w") == ["/w/.z", "/w/a/x", "/w/a.conf", "/w/b/c/y", "/w/dangling", "/w/link"]
    assert host.walk("/w/") == host.walk("/w")
    assert host.walk("/w/a.conf") == host.walk("/none") == []


def test_mtime(root: Path, host: HostFS) -> None:
    _fill(root, "m/file")
    os.utime(root / "m/file", (5, 1000.25))
    (root / "m/link").symlink_to("/m/file")
    (root / "m/loop").symlink_to("loop")
    assert host.mtime("/m/file") == host.mtime("/m/link") == 1000.25
    assert host.mtime("/m/none") == host.mtime("/m/loop") == 0.0


def test_reads_kernel_settings() -> None:
    """The kernel refuses large buffers for them."""
    assert HostFS().read_text("/proc/sys/kernel/osrelease").strip() == os.uname().release
