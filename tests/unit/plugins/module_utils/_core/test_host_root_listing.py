# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Patterns, folders and ages of files on a host.

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree beside a file that lies outside of it."""
    (tmp_path / "secret").write_text("outside")
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


@pytest.fixture
def host(root: Path) -> HostFS:
    return HostFS.of(str(root), live=False)


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
    # By names, not by whole paths; links are not followed.
    assert host.walk("/w") == ["/w/.z", "/w/a/x", "/w/a.conf", "/w/b/c/y", "/w/dangling", "/w/link"]
    assert host.walk("/w/") == host.walk("/w")
    assert host.walk("/w/a.conf") == host.walk("/none") == []


def test_modified(root: Path, host: HostFS) -> None:
    _fill(root, "m/file")
    os.utime(root / "m/file", (5, 1000.25))
    (root / "m/link").symlink_to("/m/file")
    (root / "m/loop").symlink_to("loop")
    assert host.mtime("/m/file") == host.mtime("/m/link") == 1000.25
    assert host.mtime("/m/none") == host.mtime("/m/loop") == 0.0
