# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A specification contains no path that another user than root can replace, whichever program generates it."""

from __future__ import annotations

import json
import os
import socket
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import info as cdi_info
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.replaceable import without_replaceable_mounts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.cdi_hosts import SPEC_PATH, CdiHost
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Files, Tree, needs_root

if t.TYPE_CHECKING:
    from pathlib import Path

USER = 12345
MPS, PERSISTENCED, FABRIC = "/tmp/nvidia-mps", "/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"
Data = t.Dict[str, t.Any]


def specification(*sources: str, node: str = "", hook: str = "", ldconfig: str = "") -> Data:
    edits: Data = {"mounts": [{"hostPath": path, "containerPath": path, "options": ["rbind"]} for path in sources]}
    if hook:
        arguments = ["nvidia-cdi-hook", "update-ldcache", *(["--ldconfig-path", ldconfig] if ldconfig else [])]
        edits["hooks"] = [{"hookName": "createContainer", "path": hook, "args": arguments}]
    device = {"name": "0", "containerEdits": {"env": ["A=1"], **({"deviceNodes": [{"path": node}]} if node else {})}}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device], "containerEdits": edits}


def kept(tree: Files, document: Data) -> list[str]:
    """Return the sources of the mounts that stay, and check that each of the others has one warning."""
    host = Tree.at(tree.path)
    result, warnings = without_replaceable_mounts(document, host)
    sources = [mount["hostPath"] for mount in result["containerEdits"].get("mounts", ())]
    removed = {mount["hostPath"] for mount in document["containerEdits"]["mounts"]} - {*sources}
    assert sorted(warning.partition(" ")[0] for warning in warnings) == sorted(removed)
    return sources


def shared(tree: Files, path: str, mode: int = 0o1777) -> None:
    """Create a directory that all users can write."""
    tree.folder(path)
    (tree.path / path.lstrip("/")).chmod(mode)


def give(tree: Files, path: str, user: int = USER) -> None:
    os.chown(tree.path / path.lstrip("/"), user, user, follow_symlinks=False)


@pytest.fixture
def tree(tmp_path: Path) -> Files:
    return Files(tmp_path)


# -- rules -----------------------------------------------------------------------------------------------------------


def test_files_of_root(tree: Files) -> None:
    tree.file("/run/x/socket")
    tree.link("/var/run", "/run")
    tree.link("/usr/lib/libx.so.1", "libx.so.1.0")
    tree.file("/usr/lib/libx.so.1.0")
    paths = ["/run/x/socket", "/var/run/x/socket", "/usr/lib/libx.so.1", "/missing/file"]
    document = specification(*paths)
    assert kept(tree, document) == paths
    assert without_replaceable_mounts(document, Tree.at(tree.path))[0] == document


def test_a_path_in_the_directory_of_all_users(tree: Files) -> None:
    """In /tmp, what belongs to root cannot be replaced, unless it is a link or a second name."""
    shared(tree, "/tmp")
    tree.file("/etc/secret", mode=0o600)
    tree.file("/tmp/own")
    tree.file("/tmp/folder/socket")
    tree.link("/tmp/link", "/etc/secret")
    os.link(tree.path / "etc/secret", tree.path / "tmp/second")
    sources = ["/tmp/own", "/tmp/folder/socket", "/tmp/link", "/tmp/second", "/tmp/missing"]
    assert kept(tree, specification(*sources)) == sources[:2]


def test_a_directory_without_the_sticky_bit(tree: Files) -> None:
    shared(tree, "/tmp", 0o777)
    tree.file("/tmp/own")
    shared(tree, "/srv/group", 0o2775)
    tree.file("/srv/group/own")
    os.chown(tree.path / "srv/group", -1, os.stat(tree.path).st_gid)
    assert kept(tree, specification("/tmp/own")) == []


def test_a_file_that_all_users_can_write(tree: Files) -> None:
    tree.file("/usr/lib/libx.so", mode=0o666)
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.getcwd()
        os.chdir(tree.path)
        try:
            # A socket's path has at most 108 bytes.
            listener.bind("socket")
        finally:
            os.chdir(folder)
    (tree.path / "socket").chmod(0o666)
    # All users may connect to a socket of root. That does not replace it.
    assert kept(tree, specification("/usr/lib/libx.so", "/socket")) == ["/socket"]


@needs_root
@pytest.mark.parametrize("owned", ["/tmp/nvidia-mps", "/run/nvidia-persistenced", PERSISTENCED, "/run"])
def test_a_path_of_another_user(tree: Files, owned: str) -> None:
    shared(tree, "/tmp")
    for path in (MPS, PERSISTENCED):
        tree.file(path)
    give(tree, owned)
    expected = {MPS: [PERSISTENCED]}.get(owned, [MPS])
    assert kept(tree, specification(MPS, PERSISTENCED)) == expected


@needs_root
def test_links_of_another_user(tree: Files) -> None:
    """A link is followed component by component, and everything on the way has to belong to root."""
    tree.file("/home/user/real")
    give(tree, "/home/user")
    tree.link("/usr/lib/a", "/home/user/real")
    tree.link("/usr/lib/b", "../../usr/lib/c")
    tree.link("/usr/lib/c", "d")
    give(tree, "/usr/lib/c")
    tree.file("/usr/lib/d")
    assert kept(tree, specification("/usr/lib/a", "/usr/lib/b", "/usr/lib/d")) == ["/usr/lib/d"]


def test_a_loop_of_links(tree: Files) -> None:
    tree.link("/usr/lib/a", "b")
    tree.link("/usr/lib/b", "a")
    shared(tree, "/tmp")
    tree.link("/tmp/a", "/tmp/a")
    assert kept(tree, specification("/usr/lib/a", "/usr/lib/\0", "/tmp/a")) == ["/usr/lib/a", "/usr/lib/\0"]


@needs_root
def test_a_tree_of_the_user_of_sudo(tree: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.file("/usr/lib/libx.so")
    give(tree, "/usr/lib/libx.so")
    monkeypatch.setenv("SUDO_UID", str(USER))
    assert kept(tree, specification("/usr/lib/libx.so")) == ["/usr/lib/libx.so"]
    monkeypatch.setenv("SUDO_UID", str(USER + 1))
    assert kept(tree, specification("/usr/lib/libx.so")) == []


@needs_root
def test_device_nodes(tree: Files) -> None:
    """The driver can give its nodes to a user (NVreg_DeviceFileUID), who still cannot replace them in /dev."""
    tree.folder("/dev")
    os.mknod(tree.path / "dev/nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
    give(tree, "/dev/nvidia0")
    assert kept(tree, specification(node="/dev/nvidia0")) == []
    give(tree, "/dev")
    with pytest.raises(HostError, match="/dev/nvidia0, which another user could replace: /dev belongs to user 12345"):
        without_replaceable_mounts(specification(node="/dev/nvidia0"), Tree.at(tree.path))


def test_programs_of_hooks(tree: Files) -> None:
    for folder in ("/opt/hook", "/opt/ldconfig"):
        tree.program(f"{folder}/program")
    document = specification(hook="/opt/hook/program", ldconfig="/opt/ldconfig/program")
    assert kept(tree, document) == []
    for folder in ("/opt/hook", "/opt/ldconfig"):
        shared(tree, folder, 0o777)
        with pytest.raises(HostError, match=f"{folder}/program, which another user could replace"):
            without_replaceable_mounts(document, Tree.at(tree.path))
        (tree.path / folder.lstrip("/")).chmod(0o755)


def test_other_file_systems_have_no_source(tree: Files) -> None:
    shared(tree, "/tmp", 0o777)
    document = specification("/tmp/x")
    document["containerEdits"]["mounts"][0]["type"] = "tmpfs"
    assert without_replaceable_mounts(document, Tree.at(tree.path)) == (document, [])


# -- all generators --------------------------------------------------------------------------------------------------


def mounts_of(host: CdiHost) -> list[str]:
    return [mount["hostPath"] for mount in host.document()["containerEdits"]["mounts"]]


@needs_root
@pytest.mark.parametrize("backend", ["native", "nvidia-ctk"])
def test_a_user_creates_the_path_of_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    host = CdiHost(tmp_path)
    host.nvidia_ctk(monkeypatch, "")
    shared(host, "/tmp")
    for path in (MPS, PERSISTENCED, FABRIC):
        host.file(path)
    host.cdi(use_nvml=False, backend="native")
    assert {MPS, PERSISTENCED, FABRIC} <= {*mounts_of(host)}
    host.nvidia_ctk(monkeypatch, json.dumps(host.document()))
    give(host, MPS)
    give(host, "/run/nvidia-persistenced")
    result = host.cdi(use_nvml=False, backend=backend)
    assert {MPS, PERSISTENCED, FABRIC} & {*mounts_of(host)} == {FABRIC}
    assert result["changed"]
    assert f"{MPS} belongs to user {USER}" in " ".join(result["warnings"])
    assert "disable-ipc-discoverer" in " ".join(result["warnings"])
    again = host.cdi(use_nvml=False, backend=backend)
    assert not again["changed"]
    # What root has created stays, and the flag leaves out all sockets without a warning.
    flag = Request(feature_flags=("disable-ipc-discoverer",))
    if backend == "native":
        assert not any("nvidia-mps" in each for each in host.cdi(use_nvml=False, request=flag)["warnings"])
        assert FABRIC not in mounts_of(host)


@needs_root
def test_the_audit_reports_a_specification_with_such_a_path(tmp_path: Path) -> None:
    host = CdiHost(tmp_path)
    shared(host, "/tmp")
    host.file(MPS)
    host.cdi(use_nvml=False)

    def reasons() -> list[str]:
        report, _missing = cdi_info.describe_cdi(host.host(), host.run)
        (entry,) = [entry for entry in report["files"] if entry["path"] == SPEC_PATH]
        return [reason["code"] for reason in entry["reasons"]]

    assert "path-replaceable" not in reasons()
    give(host, MPS)
    assert "path-replaceable" in reasons()
    host.cdi(use_nvml=False)
    assert "path-replaceable" not in reasons()


@needs_root
def test_a_unit_that_mounts_sockets_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = CdiHost(tmp_path)
    host.enable_refresh(monkeypatch)
    (warning,) = [each for each in host.cdi(use_nvml=False)["warnings"] if "nvidia-mps" in each]
    assert warning.startswith("nvidia-cdi-refresh.service also writes /var/run/cdi/nvidia.yaml")
    unit = "/usr/lib/systemd/system/nvidia-cdi-refresh.service"
    host.file(unit, host.read(unit).replace(b"generate", b"generate --feature-flag=disable-ipc-discoverer"))
    assert host.cdi(use_nvml=False)["warnings"] == []
