# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import grp
import os
import pwd
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import BACKUP_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.trusted_paths import (
    check_backup_dir,
    require_trusted_folder,
    require_trusted_root,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import host_from_params

if t.TYPE_CHECKING:
    from pathlib import Path

USER, OTHER = 12345, 12346
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(autouse=True)
def no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    return HostFS(str(tmp_path), live=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create the root directory of a tree, with its parent directory "home"."""
    (tmp_path / "home/tree").mkdir(parents=True)
    return tmp_path / "home/tree"


def refusal(tree: Path, live: bool) -> str:
    with pytest.raises(HostError) as caught:
        require_trusted_root(HostFS(str(tree), live))
    return str(caught.value)


@pytest.mark.parametrize("live", [True, False])
def test_a_tree_of_the_acting_user(tree: Path, live: bool) -> None:
    require_trusted_root(HostFS(str(tree), live))
    # With the sticky bit, as in /tmp, other users can add names, but not move existing ones.
    tree.parent.chmod(0o1777)
    require_trusted_root(HostFS(str(tree), live))
    require_trusted_root(HostFS("/", live=True))


@needs_root
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("owned", ["home", "home/tree"])
def test_root_writes_into_no_tree_of_a_user(tmp_path: Path, tree: Path, owned: str, live: bool) -> None:
    folder = tmp_path / owned
    os.chown(str(folder), USER, USER)
    message = refusal(tree, live)
    assert message.startswith(
        f"host_root {str(tree)!r} is not safe: {folder} belongs to user {USER}, so another user could replace it"
    )
    assert f"`chown 0 {folder}`" in message
    assert ("sudo" in message) is not live


@needs_root
@pytest.mark.parametrize(("sudo", "live", "accepted"), [
    (USER, False, True), (USER, True, False), (OTHER, False, False), ("", False, False),
])  # fmt: skip
def test_a_tree_of_the_user_of_sudo(
    monkeypatch: pytest.MonkeyPatch, tree: Path, sudo: object, live: bool, accepted: bool
) -> None:
    monkeypatch.setenv("SUDO_UID", str(sudo))
    for folder in (tree.parent, tree):
        os.chown(str(folder), USER, USER)
    if accepted:
        require_trusted_root(HostFS(str(tree), live))
    else:
        refusal(tree, live)


@needs_root
def test_a_user_writes_into_an_own_tree_but_not_into_another_s(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    for folder in (tree.parent, tree):
        os.chown(str(folder), USER, USER)
    require_trusted_root(HostFS(str(tree), live=False))
    os.chown(str(tree), OTHER, OTHER)
    # SUDO_UID is used only if the task runs as root.
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert f"belongs to user {OTHER}" in refusal(tree, live=False)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("name", "mode"), [("home", 0o777), ("home", 0o757), ("home/tree", 0o777), ("home/tree", 0o1777)]
)
def test_a_tree_that_others_can_replace(tmp_path: Path, tree: Path, name: str, mode: int, live: bool) -> None:
    folder = tmp_path / name
    folder.chmod(mode)
    message = refusal(tree, live)
    assert f"{folder} is writable by other users" in message
    assert f"`chmod go-w {folder}`" in message


def test_groups(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    tree.chmod(0o775)
    host = HostFS(str(tree), live=True)
    own = os.stat(str(tree))
    if own.st_gid == own.st_uid:
        # In a private group, the owner is the only member.
        require_trusted_root(host)
        monkeypatch.setattr(trusted_paths, "_attributes", lambda _path: ["system.posix_acl_access"])
    refusal(tree, live=True)


@needs_root
@pytest.mark.parametrize(("group", "gid", "private"), [
    (("alice", []), OTHER, True), (("alice", ["alice"]), OTHER, True), (("alice", ["alice", "bob"]), OTHER, False),
    (("staff", []), OTHER, False), (("alice", []), USER, False), (("users", ["bob"]), None, False),
    (("users", ["alice"]), None, True),
])  # fmt: skip
def test_a_private_group_with_a_number_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tree: Path, group: tuple[str, list[str]], gid: int | None, private: bool
) -> None:
    """The user ID and the ID of the user's private group may differ. A group may also have only the same ID (None)."""
    monkeypatch.setenv("SUDO_UID", str(USER))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("alice", "x", uid, gid or 0, "", "/home", "")))
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((group[0], "x", number, group[1])))
    os.chown(str(tree), USER, USER if gid is None else OTHER)
    tree.chmod(0o775)
    if private:
        require_trusted_root(HostFS(str(tree), live=False))
    else:
        assert "chmod go-w" in refusal(tree, live=False)


@needs_root
def test_a_shared_group(tree: Path) -> None:
    tree.chmod(0o775)
    os.chown(str(tree), 0, USER)
    assert "chmod go-w" in refusal(tree, live=True)


@needs_root
def test_a_folder_that_is_a_link(tree: Path) -> None:
    """The target of the link is checked, with all directories above it."""
    (tree / "srv").mkdir()
    (tree / "srv/backups").mkdir()
    (tree / "link").symlink_to("/srv/backups")
    host = HostFS(str(tree), live=True)
    require_trusted_folder(host, "backup_dir", "/link")
    os.chown(str(tree / "srv"), USER, USER)
    with pytest.raises(HostError, match=f"^backup_dir '/link' is not safe: {tree}/srv belongs to user"):
        require_trusted_folder(host, "backup_dir", "/link")


@needs_root
@pytest.mark.parametrize(("mode", "owner", "advice"), [
    (0o777, 0, "chmod go-w {0}/shared"), (0o1777, USER, "chown -h 0 {0}/shared/link"), (0o1777, 0, None),
])  # fmt: skip
def test_a_link_that_others_can_replace(tree: Path, mode: int, owner: int, advice: str | None) -> None:
    (tree / "backups").mkdir()
    (tree / "shared").mkdir()
    (tree / "shared").chmod(mode)
    (tree / "shared/link").symlink_to("/backups")
    os.chown(str(tree / "shared/link"), owner, owner, follow_symlinks=False)
    host = HostFS(str(tree), live=True)
    if advice is None:
        require_trusted_folder(host, "backup_dir", "/shared/link/new")
        return
    with pytest.raises(HostError) as caught:
        require_trusted_folder(host, "backup_dir", "/shared/link/new")
    assert f"`{advice.format(tree)}`" in str(caught.value)


@pytest.mark.parametrize(("folder", "command"), [
    ("/tmp/backups", "mkdir -m 700 {0}/tmp/backups"), ("/tmp/a/b", "mkdir -m 700 {0}/tmp/a"),
])  # fmt: skip
def test_a_missing_folder_in_a_folder_that_all_users_can_write(tree: Path, folder: str, command: str) -> None:
    """Another user could create the directory first. The advice must not be to change the mode of /tmp."""
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    host = HostFS(str(tree), live=True)
    with pytest.raises(HostError) as caught:
        require_trusted_folder(host, "backup_dir", folder)
    assert f"or run `{command.format(tree)}`" in str(caught.value)
    (tree / "tmp/a").mkdir(mode=0o700)
    require_trusted_folder(host, "backup_dir", "/tmp/a/b")


@pytest.mark.parametrize("option", ["files", "rollback.backup"])
def test_a_missing_file_in_a_folder_that_all_users_can_write(tree: Path, option: str) -> None:
    """The advice must not be to create a directory with the name of the file."""
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    host = HostFS(str(tree), live=True)
    with pytest.raises(HostError, match=rf"{tree}/tmp/x.deb does not exist, and .* Choose another path\.$"):
        require_trusted_folder(host, option, "/tmp/x.deb")
    with pytest.raises(HostError, match=rf", or run `mkdir -m 700 {tree}/tmp/a`\.$"):
        require_trusted_folder(host, option, "/tmp/a/x.deb")


class Module(t.NamedTuple):
    params: dict[str, t.Any]


@pytest.mark.parametrize(("writes", "live"), [(True, True), (True, False), (False, True), (False, False)])
def test_only_modules_that_write_or_run_programs_refuse_the_tree(tree: Path, writes: bool, live: bool) -> None:
    tree.chmod(0o777)
    params = {"host_root": str(tree), "host_root_live": live, **({"backup_dir": "/b"} if writes else {})}
    if writes or live:
        with pytest.raises(HostError, match="chmod go-w"):
            host_from_params(t.cast("t.Any", Module(params)))
    else:
        assert host_from_params(t.cast("t.Any", Module(params))).root == str(tree)


# -- check_backup_dir ----------------------------------------------------------------------------------------------

_PARSED = ("/etc/cdi", "/etc/containerd/conf.d", "/var/run/cdi")


@pytest.mark.parametrize(
    ("directory", "inside"),
    [
        ("/etc/cdi/backups", "/etc/cdi"),
        ("/etc/containerd/conf.d/a/b", "/etc/containerd/conf.d"),
        # A link to the directory, a link in the path, and a path below a link whose target does not exist yet.
        ("/srv/link", "/etc/cdi"),
        ("/var/run/cdi/x", "/var/run/cdi"),
    ],
)
def test_refuses_directories_that_daemons_read(tmp_path: Path, host: HostFS, directory: str, inside: str) -> None:
    for link, target in (("srv/link", "/etc/cdi"), ("var/run", "/run")):
        (tmp_path / link).parent.mkdir()
        (tmp_path / link).symlink_to(target)
    with pytest.raises(NvidiaError, match=f"^backup_dir '{directory}' is below {inside}, where a program"):
        check_backup_dir(host, directory, _PARSED)


@pytest.mark.parametrize(
    "directory", [BACKUP_DIR, "/", "/etc", "/etc/cdi-backups", "/etc/containerd/conf.d.old", "/backups/etc/cdi"]
)
def test_accepts_other_directories(host: HostFS, directory: str) -> None:
    check_backup_dir(host, directory, _PARSED)


@pytest.mark.parametrize(
    ("folder", "mode"), [("srv/b", 0o777), ("srv/b", 0o1777), ("srv", 0o777), ("srv", 0o1777), (".", 0o757)]
)
def test_refuses_folders_in_which_others_can_write(tmp_path: Path, host: HostFS, folder: str, mode: int) -> None:
    (tmp_path / "srv").mkdir()
    if folder == "srv/b":
        (tmp_path / "srv/b").mkdir()
    (tmp_path / folder).chmod(mode)
    with pytest.raises(
        HostError, match=r"^backup_dir '/srv/b' is not safe: .* other users, .*`(chmod go-w|mkdir -m 700) "
    ):
        check_backup_dir(host, "/srv/b", ())
    (tmp_path / folder).chmod(0o755)
    check_backup_dir(host, "/srv/b", ())
