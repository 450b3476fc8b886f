# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rollback import Change, Rollback

if t.TYPE_CHECKING:
    from pathlib import Path

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"


@pytest.fixture
def host(tmp_path: Path) -> HostRoot:
    """containerd's files as they are after a drop-in was added, and a copy from before."""
    for name, text in ((MAIN, "new"), (DROP_IN, "ours"), ("/b/main", "old")):
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostRoot(str(tmp_path))


def test_what_was_written_last_goes_back_first(host: HostRoot) -> None:
    """containerd does not start while an import names a file that is not there."""
    rollback = Rollback(host, "containerd", [Change(DROP_IN, None), Change(MAIN, "/b/main")], "/b")
    assert [file.path for file in rollback.files] == [MAIN, DROP_IN]
    rejected = rollback.carry_out()
    assert [entry["path"] for entry in rejected] == [MAIN, DROP_IN]
    assert host.read(MAIN) == b"old"
    assert not host.exists(DROP_IN)
    assert not rollback.possible


def test_a_link_stays_a_link(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / "etc/link.toml").symlink_to(MAIN)
    Rollback(host, "containerd", [Change("/etc/link.toml", "/b/main")], "/b").carry_out()
    assert (tmp_path / "etc/link.toml").is_symlink()
    assert host.read(MAIN) == b"old"


def test_the_mode_of_a_file_stays(host: HostRoot, tmp_path: Path) -> None:
    (tmp_path / MAIN[1:]).chmod(0o640)
    Rollback(host, "containerd", [Change(MAIN, "/b/main")], "/b").carry_out()
    assert (tmp_path / MAIN[1:]).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("etc/x", None), "is not an absolute path"),
        (Change(MAIN, "b/main"), "is not an absolute path"),
        (Change(MAIN, "/b/gone"), "no way back"),
        (Change(MAIN, "/b"), "is not a regular file"),
    ],
)
def test_refuses_a_way_that_leads_nowhere(host: HostRoot, change: Change, reason: str) -> None:
    with pytest.raises(GpufleetError, match=reason):
        Rollback(host, "containerd", [change], "/b")
    assert host.read(MAIN) == b"new"
