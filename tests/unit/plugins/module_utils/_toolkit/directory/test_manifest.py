# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import stat
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.manifest import (
    FileDigest,
    Identity,
    Installed,
    Manifest,
    ManifestEntry,
    PartDigest,
    create,
    digest_file,
    folders_above,
    has_folder_mode,
    installed_entry,
    is_folder,
    is_mount_point,
    make_folder,
    sha256_of,
    unlink,
    verify_entry,
    walk,
)

if t.TYPE_CHECKING:
    from pathlib import Path


KNOWN = FileDigest("ab" * 32, Identity(7, 10**18 + 1, 10**18 + 2, 42))
OTHER = Identity(7, 10**18 + 3, 10**18 + 4, 43)
WHOLE = Manifest(
    "1.20.0-0123456789ab",
    "1.20.0",
    "1.19.1-0123456789ab",
    ("ctk", "cli"),
    (
        PartDigest("nvidia-ctk", "cd" * 32, 0o755, 7, 62),
        PartDigest("libx.so.1.20.0", "ef" * 32, 0o644, 9, 62, "libx.so.1"),
    ),
    {"/srv/größe": KNOWN},
    {"nvidia-ctk.real": Installed(0o755, 0, 0, KNOWN), "libx.so.1": Installed(0o777, 0, 0, None, "libx.so.1.20.0")},
)
LEAST = Manifest("unknown-0123456789ab", None, None, None, (), {}, {})


def read(content: bytes) -> Manifest | None:
    return Manifest.from_bytes(content)


@pytest.mark.parametrize("manifest", [WHOLE, LEAST])
def test_round_trip(manifest: Manifest) -> None:
    found = read(manifest.to_bytes())
    assert found == manifest
    assert found is not None
    assert found.to_bytes() == manifest.to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'"name"',
        b"\xff\xfe",
        b'{"name": "x"}',
        WHOLE.to_bytes()[:-10],
        WHOLE.to_bytes().replace(b'"identity"', b'"identify"'),
        WHOLE.to_bytes().replace(b'"soname"', b'"sonnet"'),
        b"[" * 100000,
    ],
)
def test_invalid_manifests(content: bytes) -> None:
    assert read(content) is None


@pytest.mark.parametrize("field", ["parts", "sources", "files", "name", "version", "replaces", "components"])
@pytest.mark.parametrize("value", [7, "x", [7], {"a": 7}])
def test_invalid_fields(field: str, value: t.Any) -> None:
    """Invalid values do not break a run."""
    fields = json.loads(WHOLE.to_bytes().decode())
    fields[field] = value
    found = read(json.dumps(fields).encode())
    assert found is None or isinstance(found, Manifest)
    if field in {"parts", "sources", "files"}:
        assert found is None


def test_refreshed_identities() -> None:
    found = WHOLE.refreshed({"nvidia-ctk.real": OTHER, "nobody": OTHER, "libx.so.1": OTHER}, {"/srv/x": KNOWN})
    assert found.files == {**WHOLE.files, "nvidia-ctk.real": Installed(0o755, 0, 0, FileDigest(KNOWN.sha256, OTHER))}
    assert found.sources == {"/srv/x": KNOWN}
    assert found._replace(files=WHOLE.files, sources=WHOLE.sources) == WHOLE


# -- Files and directories ---------------

SHA = hashlib.sha256(b"content").hexdigest()


def test_walk(tmp_path: Path) -> None:
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / "b/c/d").write_text("")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / ".x").symlink_to("nowhere")
    assert walk(str(tmp_path)) == [".x", "a", "b", "b/c", "b/c/d"]
    assert walk(str(tmp_path / "nothing")) == walk(str(tmp_path / "b/c/d")) == []
    assert [is_folder(str(tmp_path / name)) for name in ("a", "b", "b/c/d", "nothing")] == [False, True, False, False]
    assert folders_above("b/c/d") == ["b", "b/c"]
    assert folders_above("d") == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        make_folder(str(tmp_path / "folder"))
        assert create(str(tmp_path / "file"), 0o755, [b"con", b"", b"tent"]) == SHA
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o755
    assert (tmp_path / "file").read_bytes() == b"content"
    assert sha256_of(str(tmp_path / "file")) == SHA


def test_create_refuses_existing_files(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to("target")
    for name in ("link", "target"):
        target.touch()
        with pytest.raises(FileExistsError):
            create(str(tmp_path / name), 0o644, [b"x"])
    assert target.read_bytes() == b""


def test_make_folder_changes_the_mode(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(0o700)
    make_folder(str(tmp_path / "folder"))
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o755


def test_unlink(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    unlink(str(tmp_path / "link"))
    unlink(str(tmp_path / "link"))
    assert not list(tmp_path.iterdir())


def test_digest_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    first = digest_file(str(path), None, thorough=False)
    assert first.sha256 == SHA
    lie = first._replace(sha256="believed")
    assert digest_file(str(path), lie, thorough=False) == lie
    assert digest_file(str(path), lie, thorough=True) == first
    os.utime(str(path), ns=(1, 1))
    assert digest_file(str(path), lie, thorough=False).sha256 == SHA


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Installed]:
    create(str(tmp_path / "file"), 0o644, [b"content"])
    (tmp_path / "link").symlink_to("file")
    return {
        "file": installed_entry(str(tmp_path / "file"), ManifestEntry(0o644, SHA, text=b"content")),
        "link": installed_entry(str(tmp_path / "link"), ManifestEntry(0o777, target="file")),
    }


def relinked(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def given_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    os.chown(str(path), 1, 1)


def a_link_to_the_same(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("file", lambda path: path.unlink()),
        ("file", lambda path: path.chmod(0o600)),
        ("file", lambda path: path.write_bytes(b"another content")),
        ("file", a_folder),
        ("file", given_away),
        ("file", a_link_to_the_same),
        ("link", lambda path: path.unlink()),
        ("link", relinked),
        ("link", a_folder),
        ("link", lambda path: (path.unlink(), path.write_bytes(b"content"))),
    ],
)
def test_verify_entry_finds_damage(
    name: str, harm: t.Callable[[Path], object], thorough: bool, entries: dict[str, Installed], tmp_path: Path
) -> None:
    path = tmp_path / name
    assert verify_entry(str(path), entries[name], thorough) is not None
    harm(path)
    assert verify_entry(str(path), entries[name], thorough) is None


def test_verify_entry_accepts_unchanged_files(entries: dict[str, Installed], tmp_path: Path) -> None:
    """The inode and the time differ, the content is the same."""
    path, entry = tmp_path / "file", entries["file"]
    (tmp_path / "copy").write_bytes(b"content")
    (tmp_path / "copy").chmod(0o644)
    (tmp_path / "copy").replace(path)
    found = verify_entry(str(path), entry, thorough=False)
    assert found is not None
    assert entry.known is not None
    assert found != entry.known.identity


def test_mount_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A bind mount of the same file system, which only mountinfo shows.
    folder, table = tmp_path / "a folder", tmp_path / "mountinfo"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    escaped = str(folder).replace(" ", "\\040")
    table.write_text(f"29 1 8:1 / / rw - ext4 /dev/sda1 rw\n50 29 8:1 /x {escaped} rw,relatime - ext4 /dev/sda1 rw\n")
    real = open

    def fake(path: str, mode: str) -> t.Any:
        return real(table if path == "/proc/self/mountinfo" else path, mode)

    monkeypatch.setattr("builtins.open", fake)
    assert is_mount_point(str(folder))
    assert is_mount_point(str(tmp_path / "link"))
    assert is_mount_point("/")
    assert not is_mount_point(str(tmp_path))
    table.unlink()
    assert is_mount_point("/")
    assert not is_mount_point(str(folder))


def test_has_folder_mode(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "folder"))
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("folder")
    assert [has_folder_mode(str(tmp_path / name)) for name in ("folder", "file", "link", "none", "file/x")] == [
        True, False, False, False, False,
    ]  # fmt: skip
    mine = (os.geteuid(), os.getegid())
    assert has_folder_mode(str(tmp_path / "folder"), mine)
    assert not has_folder_mode(str(tmp_path / "folder"), (mine[0] + 1, mine[1]))
    assert not has_folder_mode(str(tmp_path / "folder"), (mine[0], mine[1] + 1))
    (tmp_path / "folder").chmod(0o700)
    assert not has_folder_mode(str(tmp_path / "folder"))
