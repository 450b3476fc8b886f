# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import fnmatch
import os
import signal
import stat
import struct
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.atomic_write import (
    make_directories,
    missing_directories,
    prepare_file,
    remove_empty_directories,
    remove_file,
    replace_file,
    set_access,
    use_prepared_file,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import STRICT_CONFIG_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

if t.TYPE_CHECKING:
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

_NOBODY = 65534
_LEFTOVER = ".gpufleet-k1ll3d.tmp"


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    (tmp_path / "etc").mkdir()
    return HostFS(str(tmp_path), live=False)


@pytest.fixture
def file(tmp_path: Path, host: HostFS) -> Path:
    """/etc/file on ``host``."""
    assert host.exists("/etc")
    path = tmp_path / "etc/file"
    path.write_bytes(b"old")
    return path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _fork(work: t.Callable[[], t.Any]) -> int:
    """Run ``work`` in a child process. Return 0, 1 after an exception, or the negative number of a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _pid, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# -- replace_file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o644, 0o600, 0o666])
def test_new_file_has_the_mode_asked_for(tmp_path: Path, host: HostFS, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        replace_file(host, "/etc/file", b"new\n", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "etc/file").read_bytes() == b"new\n"
    assert _mode(tmp_path / "etc/file") == mode
    assert os.listdir(tmp_path / "etc") == ["file"]


@pytest.mark.parametrize("mode", [0o400, 0o604, 0o2755, 0o4711])
def test_old_mode_stays(file: Path, host: HostFS, mode: int) -> None:
    file.chmod(mode)
    replace_file(host, "/etc/file", b"new", 0o644)
    assert _mode(file) == mode


@needs_root
def test_owner(file: Path, host: HostFS) -> None:
    os.chown(file, 1234, 2345)
    file.chmod(0o6640)
    replace_file(host, "/etc/file", b"new", 0o644, (1, 1))
    assert (file.stat().st_uid, file.stat().st_gid, _mode(file)) == (1234, 2345, 0o6640)
    replace_file(host, "/etc/fresh", b"new", 0o640, (1234, 2345))
    fresh = file.with_name("fresh")
    assert (fresh.stat().st_uid, fresh.stat().st_gid, _mode(fresh)) == (1234, 2345, 0o640)


def _acl(*entries: tuple[int, int, int]) -> bytes:
    """Return a POSIX ACL in the format of the kernel. An entry is (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


_ANY = 0xFFFFFFFF
# user::rw-, user:1234:r--, group::r--, mask::r--, other::---
_LIST = _acl((0x01, 6, _ANY), (0x02, 4, 1234), (0x04, 4, _ANY), (0x10, 4, _ANY), (0x20, 0, _ANY))


def _set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"needs root, and a file system with attributes such as {name}: {error.strerror}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user.note", b"kept"),
        ("trusted.note", b"kept"),
        ("security.selinux", b"system_u:object_r:container_config_t:s0\0"),
        ("system.posix_acl_access", _LIST),
    ],
)
def test_extended_attributes_stay(file: Path, host: HostFS, name: str, value: bytes) -> None:
    file.chmod(0o640)
    _set_attribute(file, name, value)
    replace_file(host, "/etc/file", b"new", 0o644)
    assert os.getxattr(file, name) == value
    assert _mode(file) == 0o640


@pytest.mark.parametrize("parsed", [[], ["/etc"]])
def test_what_is_new_has_its_label_from_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parsed: list[str]
) -> None:
    """A new file has its SELinux label before it has its name, so a killed run leaves no file with a wrong label."""
    host = HostFS(str(tmp_path), label_of=lambda path: f"label of {os.path.relpath(path, tmp_path)}")
    (tmp_path / "old").write_bytes(b"")
    _set_attribute(tmp_path / "old", "security.selinux", b"label of an administrator\0")

    def work() -> None:
        make_directories(host, "/etc/conf.d", 0o755)
        replace_file(host, "/old", b"new", 0o644)
        patch.setattr(atomic_write, "sync_folder", lambda _folder: os.kill(os.getpid(), signal.SIGKILL))
        replace_file(host, "/etc/conf.d/file", b"new", 0o644, config_dirs=parsed)

    with monkeypatch.context() as patch:
        assert _fork(work) == -signal.SIGKILL
    labels = [os.getxattr(tmp_path / name, "security.selinux") for name in ("etc/conf.d", "etc/conf.d/file", "old")]
    assert labels == [b"label of etc/conf.d\0", b"label of etc/conf.d/file\0", b"label of an administrator\0"]


def test_attributes_follow_no_link_that_is_put_in_the_way(
    file: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_attribute(file, "user.note", b"kept")
    secret = file.with_name("secret")
    secret.write_bytes(b"")
    really = os.getxattr

    def swap(*args: t.Any, **kwargs: t.Any) -> bytes:
        for temporary in file.parent.glob(".gpufleet-*"):
            temporary.unlink()
            temporary.symlink_to(secret)
        return really(*args, **kwargs)

    monkeypatch.setattr(os, "getxattr", swap)
    replace_file(host, "/etc/file", b"new", 0o644)
    assert "user.note" not in os.listxattr(secret)


def test_old_file_without_access_list_gets_none(file: Path, host: HostFS) -> None:
    """The default ACL of the directory applies to new files only. It must not give more users access to an old file."""
    file.chmod(0o640)
    _set_attribute(file.parent, "system.posix_acl_default", _LIST)
    replace_file(host, "/etc/file", b"new", 0o644)
    assert "system.posix_acl_access" not in os.listxattr(file)


@pytest.mark.parametrize("target", ["/srv/real", "../srv/real", "/etc/hop"])
def test_link_stays_a_link(tmp_path: Path, host: HostFS, target: str) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/real").write_bytes(b"old")
    (tmp_path / "etc/hop").symlink_to("/srv/real")
    (tmp_path / "etc/link").symlink_to(target)
    replace_file(host, "/etc/link", b"new", 0o644)
    assert os.readlink(tmp_path / "etc/link") == target
    assert (tmp_path / "srv/real").read_bytes() == b"new"
    remove_file(host, "/etc/link")
    assert os.readlink(tmp_path / "etc/link") == target
    assert os.listdir(tmp_path / "srv") == []
    # A dangling link is followed as well.
    replace_file(host, "/etc/link", b"newer", 0o600)
    assert (tmp_path / "srv/real").read_bytes() == b"newer"


def test_removes_stale_temporary_files_only(file: Path, host: HostFS) -> None:
    kept = [".gpufleet-", ".gpufleet-notes", "file.tmp", "gpufleet-x.tmp", "x.gpufleet-y.tmp"]
    for name in (*kept, _LEFTOVER):
        (file.parent / name).write_bytes(b"partial")
    replace_file(host, "/etc/file", b"new", 0o644)
    assert sorted(os.listdir(file.parent)) == sorted([*kept, "file"])


# -- directories in which a daemon reads every file ------------------------------------------------------------------


class Watch:
    """Records the directories of temporary files. With ``error``, moves between directories fail with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int | None = None) -> None:
        self.folders: list[str] = []
        replace = os.replace

        def watching(source: str, target: str) -> None:
            self.folders.append(os.path.dirname(source))
            if error is not None and os.path.dirname(source) != os.path.dirname(target):
                raise OSError(error, os.strerror(error))
            replace(source, target)

        monkeypatch.setattr(os, "replace", watching)


PARSED = ["/none", "/etc/crio/crio.conf.d"]


@pytest.fixture
def parsed(tmp_path: Path, host: HostFS) -> Path:
    """Create /etc/crio/crio.conf.d/sub on ``host``. CRI-O reads every file in it."""
    assert host.exists("/etc")
    folder = tmp_path / "etc/crio/crio.conf.d/sub"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("name", ["crio.conf.d/file", "crio.conf.d/sub/file"])
def test_no_incomplete_file_in_a_parsed_directory(
    monkeypatch: pytest.MonkeyPatch, parsed: Path, host: HostFS, name: str, before: bytes | None
) -> None:
    crio = parsed.parents[1]
    if before is not None:
        (crio / name).write_bytes(before)
    watch = Watch(monkeypatch)
    replace_file(host, f"/etc/crio/{name}", b"new", 0o640, config_dirs=PARSED)
    assert watch.folders == [str(crio)]
    assert (crio / name).read_bytes() == b"new"
    assert _mode(crio / name) == (0o640 if before is None else 0o644)
    assert sorted(os.listdir(crio)) == ["crio.conf.d"]


def test_a_folder_with_a_similar_name_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch, parsed: Path, host: HostFS
) -> None:
    other = parsed.parents[1] / "crio.conf.d-old"
    other.mkdir()
    watch = Watch(monkeypatch)
    replace_file(host, "/etc/crio/crio.conf.d-old/file", b"new", 0o644, config_dirs=PARSED)
    assert watch.folders == [str(other)]


def test_a_link_into_a_parsed_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parsed: Path, host: HostFS
) -> None:
    (tmp_path / "link").symlink_to("/etc/crio/crio.conf.d/file")
    watch = Watch(monkeypatch)
    replace_file(host, "/link", b"new", 0o644, config_dirs=PARSED)
    assert watch.folders == [str(parsed.parents[1])]
    assert (parsed.parent / "file").read_bytes() == b"new"


def test_leftovers_go_from_the_parsed_folder_and_from_the_other(parsed: Path, host: HostFS) -> None:
    crio = parsed.parents[1]
    for folder in (crio, parsed.parent):
        (folder / _LEFTOVER).write_bytes(b"partial")
    replace_file(host, "/etc/crio/crio.conf.d/file", b"new", 0o644, config_dirs=PARSED)
    assert os.listdir(crio) == ["crio.conf.d"]
    assert sorted(os.listdir(parsed.parent)) == ["file", "sub"]


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("error", [errno.EXDEV, errno.EACCES])
def test_file_is_created_in_a_directory_that_accepts_no_move(
    monkeypatch: pytest.MonkeyPatch, parsed: Path, host: HostFS, error: int, before: bytes | None
) -> None:
    """A bind mount has the same device number as its parent, so only the failed move shows that it is a mount."""
    folder = parsed.parent
    if before is not None:
        (folder / "file").write_bytes(before)
    watch = Watch(monkeypatch, error)
    replace_file(host, "/etc/crio/crio.conf.d/file", b"new", 0o640, config_dirs=PARSED)
    assert watch.folders == [str(parsed.parents[1]), *([] if before is None else [str(folder)])]
    assert (folder / "file").read_bytes() == b"new"
    assert _mode(folder / "file") == (0o640 if before is None else 0o644)
    assert os.listdir(parsed.parents[1]) == ["crio.conf.d"]
    assert sorted(os.listdir(folder)) == ["file", "sub"]


def test_another_error_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, parsed: Path, host: HostFS) -> None:
    watch = Watch(monkeypatch, errno.ENOSPC)
    with pytest.raises(HostError, match="No space left on device"):
        replace_file(host, "/etc/crio/crio.conf.d/file", b"new", 0o644, config_dirs=PARSED)
    assert watch.folders == [str(parsed.parents[1])]
    assert os.listdir(parsed.parents[1]) == ["crio.conf.d"]


@pytest.mark.parametrize("content", [None, b"old"])
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_parsed_folder_that_is_a_mount_of_its_own(
    monkeypatch: pytest.MonkeyPatch, small: Path, tmp_path: Path, content: bytes | None, unnamed: bool
) -> None:
    """CRI-O reads every name in the directory, so a run that is killed while it writes must not leave one."""
    host = HostFS(str(tmp_path), live=False)
    if content is not None:
        (small / "file").write_bytes(content)
    before = os.listdir(small)
    if not unnamed:
        monkeypatch.setattr(atomic_write, "_create_unnamed", lambda _folder: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: os.kill(os.getpid(), signal.SIGKILL))
        assert _fork(lambda: replace_file(host, "/etc/file", b"new", 0o644, config_dirs=["/etc"])) == -signal.SIGKILL
    assert len(os.listdir(small)) == len(before) + (not unnamed)
    replace_file(host, "/etc/file", b"new", 0o644, config_dirs=["/etc"])
    assert (small / "file").read_bytes() == b"new"
    assert os.listdir(small) == ["file"]


@pytest.mark.parametrize(
    ("folder", "patterns"),
    [
        ("/etc/cdi", ["*.json", "*.yaml"]),
        ("/etc/docker", ["daemon.json"]),
        ("/etc/k0s/containerd.d", ["*.toml"]),
        ("/etc/rancher/k3s/config.yaml.d", ["*.yaml", "*.yml"]),
        ("/etc/systemd/system/nvidia-cdi-refresh.service.d", ["*.conf"]),
        ("/etc/apt/sources.list.d", ["*.list", "*.sources"]),
        ("/etc/yum.repos.d", ["*.repo"]),
        # For these directories, a file with a name is created outside of them.
        ("/etc/crio/crio.conf.d", ["*"]),
        ("/etc/containerd/conf.d", ["*"]),
        ("/etc/containers/containers.conf.d", ["*.conf"]),
        ("/etc/containers/oci/hooks.d", ["*.json"]),
    ],
)
def test_no_daemon_reads_the_name_of_a_temporary_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: HostFS, folder: str, patterns: list[str]
) -> None:
    """The patterns are those that _core/constants.py lists with their sources."""
    place = tmp_path / folder[1:]
    place.mkdir(parents=True)
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _handle: names.extend(os.listdir(place)))
    replace_file(host, f"{folder}/50-new", b"new", 0o644, config_dirs=STRICT_CONFIG_DIRS)
    read = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert set(read) <= {"50-new"}
    assert "50-new" in names


@pytest.mark.parametrize("content", [None, b"old"])
def test_a_prepared_file_has_no_name(small: Path, tmp_path: Path, content: bytes | None) -> None:
    """A daemon that starts before the rollback would read a named file. The file already occupies its disk space."""
    host = HostFS(str(tmp_path), live=False)
    if content is not None:
        (small / "file").write_bytes(content)
        (small / "file").chmod(0o640)
    before = os.listdir(small)
    handle = prepare_file(host, "/etc/file", b"x" * 40_000, 0o600, None)
    assert os.listdir(small) == before
    with pytest.raises(HostError, match="No space left"):
        replace_file(host, "/etc/other", b"x" * 40_000, 0o600)
    assert use_prepared_file(host, handle, "/etc/file", config_dirs=["/etc"])
    assert ((small / "file").stat().st_size, os.listdir(small)) == (40_000, ["file"])
    assert _mode(small / "file") == (0o600 if content is None else 0o640)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def test_prepared_file_removes_the_name_that_a_killed_run_left(file: Path, host: HostFS) -> None:
    """A run may be killed after its file has a second name and before that name replaces the file."""
    (file.parent / _LEFTOVER).write_bytes(b"new")
    handle = prepare_file(host, "/etc/file", b"restored", 0o600, None)
    assert use_prepared_file(host, handle, "/etc/file", config_dirs=[])
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"restored", ["file"])


def test_a_file_system_that_needs_names(monkeypatch: pytest.MonkeyPatch, file: Path, host: HostFS) -> None:
    """On a file system like NFS, no file can be prepared, and no temporary file remains."""
    real = os.open

    def refusing(path: t.Any, flags: int, *more: t.Any, **options: t.Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(HostError, match=r"^/etc/file cannot be prepared: its file system does not support"):
        prepare_file(host, "/etc/file", b"new", 0o644, None)
    replace_file(host, "/etc/file", b"new", 0o644, config_dirs=["/"])
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"new", ["file"])


@needs_root
@pytest.mark.parametrize("content", [None, b"old"])
def test_a_chroot_without_proc(tmp_path: Path, host: HostFS, content: bytes | None) -> None:
    """A file without a name gets its name through /proc."""
    assert host.exists("/etc")
    if content is not None:
        (tmp_path / "etc/file").write_bytes(content)

    def write() -> None:
        os.chroot(tmp_path)
        os.chdir("/")
        with pytest.raises(HostError, match=r"^/etc/file cannot be prepared: .* /proc"):
            prepare_file(HostFS(), "/etc/file", b"new", 0o644, None)
        replace_file(HostFS(), "/etc/file", b"new", 0o644, config_dirs=["/"])

    assert _fork(write) == 0
    assert (tmp_path / "etc/file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "etc") == ["file"]
    assert os.listdir(tmp_path) == ["etc"]


def test_a_new_file_gets_the_default_acl_of_its_directory(parsed: Path, host: HostFS) -> None:
    """The file gets the default ACL of the target directory, and not that of the directory in which it is created."""
    crio = parsed.parents[1]
    _set_attribute(parsed.parent, "system.posix_acl_default", _LIST)
    replace_file(host, "/etc/crio/crio.conf.d/file", b"new", 0o640, config_dirs=PARSED)
    replace_file(host, "/etc/crio/crio.conf.d/like", b"new", 0o640)
    lists = [os.getxattr(parsed.parent / name, "system.posix_acl_access") for name in ("file", "like")]
    assert lists[0] == lists[1]
    os.removexattr(parsed.parent, "system.posix_acl_default")
    _set_attribute(crio, "system.posix_acl_default", _LIST)
    replace_file(host, "/etc/crio/crio.conf.d/plain", b"new", 0o640, config_dirs=PARSED)
    assert "system.posix_acl_access" not in os.listxattr(parsed.parent / "plain")


@needs_root
@pytest.mark.parametrize("sharing", ["crio.conf.d", "."])
def test_a_new_file_gets_the_group_that_its_folder_gives(parsed: Path, host: HostFS, sharing: str) -> None:
    shared = parsed.parents[1] / sharing
    os.chown(shared, 0, 1234)
    shared.chmod(0o2755)
    replace_file(host, "/etc/crio/crio.conf.d/file", b"new", 0o640, config_dirs=PARSED)
    assert (parsed.parent / "file").stat().st_gid == (1234 if sharing != "." else os.getegid())


@needs_root
@pytest.mark.parametrize("config_dirs", [(), PARSED])
def test_an_old_file_keeps_its_group_where_the_folder_gives_another(
    parsed: Path, host: HostFS, config_dirs: tuple[str, ...]
) -> None:
    os.chown(parsed.parent, 0, 1234)
    parsed.parent.chmod(0o2755)
    old, path = parsed.parent / "old", "/etc/crio/crio.conf.d/old"
    old.touch()
    os.chown(old, 0, 0)
    replace_file(host, path, b"new", 0o640, config_dirs=config_dirs)
    replace_file(host, "/etc/crio/crio.conf.d/own", b"new", 0o640, (0, 0), config_dirs=config_dirs)
    assert [(parsed.parent / name).stat().st_gid for name in ("old", "own")] == [0, 0]
    assert use_prepared_file(host, prepare_file(host, path, b"newer", 0o640, None), path, config_dirs=config_dirs)
    assert old.stat().st_gid == 0


# -- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "survivor"),
    [
        (("fchmod", 1), b"old"),
        (("fsync", 1), b"old"),
        (("replace", 1), b"old"),
        # These calls sync the directory.
        (("open", 2), b"new"),
        (("fsync", 2), b"new"),
        (("close", 1), b"new"),
    ],
)
def test_killed_between_steps(
    monkeypatch: pytest.MonkeyPatch, file: Path, host: HostFS, step: tuple[str, int], survivor: bytes
) -> None:
    """A run that is killed when it begins a call leaves the old or the new file. The table has the calls in order."""
    name, call = step
    real = getattr(os, name)
    calls: list[str] = []

    def killing(*args: t.Any, **options: t.Any) -> t.Any:
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, killing)
        assert _fork(lambda: replace_file(host, "/etc/file", b"new", 0o644)) == -signal.SIGKILL
    assert file.read_bytes() == survivor
    assert len(os.listdir(file.parent)) == (2 if survivor == b"old" else 1)
    replace_file(host, "/etc/file", b"newer", 0o644)
    assert file.read_bytes() == b"newer"
    assert os.listdir(file.parent) == ["file"]


def test_reader_never_sees_a_part(file: Path, host: HostFS) -> None:
    texts = (b"a" * 300_000, b"b" * 500_000)
    file.write_bytes(texts[0])
    child = os.fork()
    if child == 0:
        try:
            for number in range(100):
                replace_file(host, "/etc/file", texts[number % 2], 0o644)
        finally:
            os._exit(0)
    reads = 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert file.read_bytes() in texts
        reads += 1
    assert reads > 10


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> t.Iterator[Path]:
    """A file system of 64 KiB, mounted at /etc of ``host``."""
    folder = tmp_path / "etc"
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("needs root, and the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_file_system(small: Path, tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    (small / "file").write_bytes(b"old")
    (small / _LEFTOVER).write_bytes(b"x" * 40_000)
    with pytest.raises(HostError, match=r"^/etc/file cannot be written: No space left on device\. Free space "):
        replace_file(host, "/etc/file", b"x" * 100_000, 0o644)
    assert os.listdir(small) == ["file"]
    assert (small / "file").read_bytes() == b"old"
    # The temporary file of a killed run is removed first, so its space can be used.
    (small / _LEFTOVER).write_bytes(b"x" * 40_000)
    replace_file(host, "/etc/file", b"x" * 40_000, 0o644)


def test_file_that_is_a_mount_point(small: Path, tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    for name in ("file", "outside"):
        (small / name).write_bytes(b"old")
    subprocess.run(["mount", "--bind", str(small / "outside"), str(small / "file")], check=True)
    advice = r"Device or resource busy\. If it is a mount point \(findmnt\), change the file that is mounted"
    with pytest.raises(HostError, match=r"^/etc/file cannot be written: " + advice):
        replace_file(host, "/etc/file", b"new", 0o644)
    with pytest.raises(HostError, match=r"^/etc/file cannot be removed: " + advice):
        remove_file(host, "/etc/file")
    assert sorted(os.listdir(small)) == ["file", "outside"]
    assert (small / "outside").read_bytes() == b"old"


def test_read_only_file_system(small: Path, tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    (small / "file").write_bytes(b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    advice = r"Read-only file system\. Mount the file system read-write"
    with pytest.raises(HostError, match=r"^/etc/file cannot be written: " + advice):
        replace_file(host, "/etc/file", b"new", 0o644)
    with pytest.raises(HostError, match=r"^/etc/file cannot be removed: " + advice):
        remove_file(host, "/etc/file")
    with pytest.raises(HostError, match=r"^/etc/a cannot be created: " + advice):
        make_directories(host, "/etc/a/b", 0o700)


@needs_root
@pytest.mark.parametrize("folder_mode", [0o755, 0o777], ids=["only root can write", "all users can write"])
def test_file_of_another_user(tmp_path: Path, file: Path, folder_mode: int) -> None:
    """An unprivileged user cannot keep the owner of the file, so the file is not written."""
    tmp_path.chmod(0o755)
    file.parent.chmod(folder_mode)

    def write() -> None:
        os.chroot(tmp_path)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        with pytest.raises(HostError, match=r"^/etc/file cannot be written: .* Run the task as root"):
            replace_file(HostFS(), "/etc/file", b"new", 0o644)

    assert _fork(write) == 0
    assert os.listdir(file.parent) == ["file"]
    assert file.read_bytes() == b"old"
    assert file.stat().st_uid == 0


@pytest.mark.parametrize("path", ["/etc/none/file", "/etc/file/below", "/etc/folder", "/etc/" + "x" * 300])
def test_where_no_file_can_be(file: Path, host: HostFS, path: str) -> None:
    (file.parent / "folder").mkdir()
    with pytest.raises(HostError, match=f"^{path} cannot be written: "):
        replace_file(host, path, b"new", 0o644)
    assert sorted(os.listdir(file.parent)) == ["file", "folder"]


# -- remove_file, directories --------------------------------------------------------------------------------------


def test_remove_file(file: Path, host: HostFS) -> None:
    remove_file(host, "/etc/file")
    assert not file.exists()
    remove_file(host, "/etc/file")
    remove_file(host, "/none/file")
    with pytest.raises(HostError, match=r"^/etc cannot be removed: "):
        remove_file(host, "/etc")


@pytest.mark.parametrize("link", [False, True])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, host: HostFS, link: bool) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/null")
    (tmp_path / "etc/masked").symlink_to("/dev/null")
    path = "/etc/masked" if link else "/dev/null"
    for work in (
        lambda: replace_file(host, path, b"new", 0o644),
        lambda: prepare_file(host, path, b"new", 0o644, None),
        lambda: remove_file(host, path),
    ):
        with pytest.raises(HostError, match=f"^{path} cannot be .* special file.* Remove the link"):
            work()
    assert stat.S_ISFIFO((tmp_path / "dev/null").stat().st_mode)
    assert os.listdir(tmp_path / "dev") == ["null"]


def test_directories_are_made_with_their_modes_and_go_when_empty(tmp_path: Path, host: HostFS) -> None:
    before = os.umask(0o077)
    try:
        assert missing_directories(host, "/etc/a/b/c") == ["/etc/a", "/etc/a/b", "/etc/a/b/c"]
        made = make_directories(host, "/etc/a/b/c", 0o700)
    finally:
        os.umask(before)
    assert made == ["/etc/a", "/etc/a/b", "/etc/a/b/c"]
    assert [_mode(tmp_path / path[1:]) for path in made] == [0o755, 0o755, 0o700]
    assert make_directories(host, "/etc/a/b/c", 0o777) == missing_directories(host, "/etc/a/b/c") == []
    assert _mode(tmp_path / "etc/a/b/c") == 0o700
    (tmp_path / "etc/a/file").write_text("")
    remove_empty_directories(host, [*made, "/etc/none"])
    assert os.listdir(tmp_path / "etc/a") == ["file"]


@pytest.mark.parametrize("error", [errno.EROFS, errno.EPERM, errno.EIO])
def test_each_directory_that_stays_is_named(
    host: HostFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    made = make_directories(host, "/etc/a/b", 0o700)
    (tmp_path / "etc/used/c").mkdir(parents=True)
    real = os.rmdir

    def rmdir(path: str) -> None:
        # A read-only file system refuses each call with this error, whatever the directory contains.
        if error == errno.EROFS or path.endswith("/b"):
            raise OSError(error, os.strerror(error))
        real(path)

    monkeypatch.setattr(os, "rmdir", rmdir)
    remove_empty_directories(host, [*made, "/etc/used", "/etc/none"])
    reasons = {
        "/etc/a/b": os.strerror(error),
        "/etc/a": os.strerror(error if error == errno.EROFS else errno.ENOTEMPTY),
    }
    warnings = errors.take_warnings()
    assert len(warnings) == len(reasons)
    for warning, (path, reason) in zip(warnings, reasons.items()):
        assert warning.startswith(f"{path} ")
        assert f" cannot be removed: {reason}. " in warning


def test_a_directory_without_its_mode_is_removed_again(
    host: HostFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chmod(path: str, _mode: int) -> None:
        if path.endswith("/b"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "chmod", chmod)
    before = os.umask(0o077)
    try:
        with pytest.raises(HostError, match="/etc/a/b cannot be created: Input/output error"):
            make_directories(host, "/etc/a/b", 0o755)
    finally:
        os.umask(before)
    assert not (tmp_path / "etc/a").exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EINVAL])
@pytest.mark.parametrize("operation", ["replace", "create", "remove"])
def test_a_directory_that_cannot_be_synchronized_is_a_warning(
    file: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch, operation: str, error: int
) -> None:
    def fail(_folder: str) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(atomic_write, "sync_folder", fail)
    if operation == "remove":
        remove_file(host, "/etc/file")
        assert not file.exists()
    else:
        name = "file" if operation == "replace" else "new"
        replace_file(host, f"/etc/{name}", b"new", 0o644)
        assert (file.parent / name).read_bytes() == b"new"
    (warning,) = errors.take_warnings()
    assert warning.startswith("The changes in /etc are complete")
    assert os.strerror(error) in warning


def test_directories_behind_links(tmp_path: Path, host: HostFS) -> None:
    (tmp_path / "var").symlink_to("/data/var")
    assert make_directories(host, "/var/lib", 0o700) == ["/data", "/data/var", "/data/var/lib"]
    assert (tmp_path / "data/var/lib").is_dir()


@pytest.mark.parametrize(("root", "path"), [("/", "/proc/none/a"), ("/none/at/all", "/etc")])
def test_directories_that_can_never_be_made(root: str, path: str) -> None:
    def make() -> None:
        # End the test if make_directories() never returns.
        signal.alarm(5)
        with pytest.raises(HostError, match=r"^/\S+ cannot be created: "):
            make_directories(HostFS(root), path, 0o700)

    assert _fork(make) == 0


def test_directory_where_a_file_is(file: Path, host: HostFS) -> None:
    with pytest.raises(HostError, match=r"^/etc/file/a cannot be created: Not a directory"):
        make_directories(host, "/etc/file/a", 0o700)
    assert file.read_bytes() == b"old"


# -- folders of other users --------------------------------------------------------------------------------------------

_ALICE = (1234, 2345)


@pytest.fixture
def home(tmp_path: Path, host: HostFS) -> Path:
    """/home/alice on ``host``, where /etc/file is root's."""
    assert host.exists("/etc")
    (tmp_path / "etc/file").write_bytes(b"root's")
    made = tmp_path / "home/alice"
    made.mkdir(parents=True)
    os.chown(made, *_ALICE)
    return made


def _link_of_user(link: Path, target: str) -> None:
    link.symlink_to(target)
    os.chown(link, *_ALICE, follow_symlinks=False)


_WRITERS: dict[str, t.Callable[[HostFS, str], t.Any]] = {
    "replace": lambda host, path: replace_file(host, path, b"new", 0o644),
    "remove": remove_file,
    "prepare": lambda host, path: prepare_file(host, path, b"new", 0o644, None),
    "folders": lambda host, path: make_directories(host, path + ".d", 0o700),
    "access": lambda host, path: set_access(host, path, 0o600, (0, 0)),
}


@needs_root
@pytest.mark.parametrize("writer", _WRITERS)
@pytest.mark.parametrize("path", ["file", "new", "docker/file", "up/file"])
def test_root_writes_in_no_directory_of_a_user(host: HostFS, home: Path, writer: str, path: str) -> None:
    """The user could replace the directory at any time."""
    tmp_path = home.parent.parent
    (home / "file").write_bytes(b"alice's")
    _link_of_user(home / "docker", "/etc")
    _link_of_user(home / "up", "../../etc")
    owner = (home / "file").stat().st_uid
    before = sorted(os.listdir(tmp_path / "etc")), sorted(os.listdir(home))
    with pytest.raises(HostError, match=r"is not written: /home/alice belongs to user 1234.*become_user"):
        _WRITERS[writer](host, f"/home/alice/{path}")
    assert (sorted(os.listdir(tmp_path / "etc")), sorted(os.listdir(home))) == before
    assert (tmp_path / "etc/file").read_bytes() == b"root's"
    assert ((home / "file").read_bytes(), (home / "file").stat().st_uid) == (b"alice's", owner)


@needs_root
def test_a_users_link_in_a_folder_of_roots_is_not_followed(tmp_path: Path, host: HostFS, home: Path) -> None:
    _link_of_user(tmp_path / "etc/link", "/etc/file")
    (tmp_path / "etc/first").symlink_to("link")
    for path in ("/etc/link", "/etc/first"):
        with pytest.raises(HostError, match="/etc/link belongs to user 1234") as caught:
            replace_file(host, path, b"new", 0o644)
        # The user runs the command outside the tree, so it contains the path with host_root.
        assert f"(chown -h root {tmp_path}/etc/link)" in str(caught.value)
    os.chown(tmp_path / "etc/link", 0, 0, follow_symlinks=False)
    replace_file(host, "/etc/first", b"new", 0o644)
    assert (tmp_path / "etc/file").read_bytes() == b"new"
    assert home.exists()


@needs_root
def test_a_users_file_in_a_folder_of_roots_is_replaced(tmp_path: Path, host: HostFS, home: Path) -> None:
    os.chown(tmp_path / "etc/file", *_ALICE)
    replace_file(host, "/etc/file", b"new", 0o644)
    assert (tmp_path / "etc/file").read_bytes() == b"new"
    assert (tmp_path / "etc/file").stat().st_uid == _ALICE[0]
    assert home.exists()


@needs_root
def test_who_has_the_whole_tree_may_have_links_in_it(tmp_path: Path, host: HostFS, home: Path) -> None:
    os.chown(tmp_path, *_ALICE)
    _link_of_user(home / "docker", "/etc")
    replace_file(host, "/home/alice/docker/file", b"new", 0o644)
    assert (tmp_path / "etc/file").read_bytes() == b"new"


@needs_root
def test_an_empty_folder_of_roots_is_not_removed(tmp_path: Path, host: HostFS, home: Path) -> None:
    (tmp_path / "etc/empty").mkdir()
    _link_of_user(home / "docker", "/etc")
    remove_empty_directories(host, ["/home/alice/docker/empty"])
    assert (tmp_path / "etc/empty").is_dir()
