# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import (
    STATE_DIR,
    OriginalFile,
    digest,
    load_record,
    load_records,
    record_path,
)

if t.TYPE_CHECKING:
    from pathlib import Path

DAEMON = "/etc/docker/daemon.json"
KEYS: dict[tuple[str, ...], t.Any] = {
    ("runtimes", "nvidia"): {"path": "/usr/bin/nvidia-container-runtime", "args": []},
    ("features", "cdi"): True,
}
RECORD = OriginalFile(
    engine="docker",
    path=DAEMON,
    original=b'{"debug": true}\n\xff',
    uid=0,
    gid=42,
    mode=0o640,
    created_directories=("/etc/docker",),
    written=(digest(b"a"), digest(None)),
    exact=False,
    created=True,
    keys=KEYS,
)
EMPTY = OriginalFile("docker", DAEMON, None, 0, 0, 0o644)


# -- on disk -------------------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_PATHS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=5), max_size=3
).map(lambda names: "/" + "/".join(name for name in names if name not in (".", "..")))
_RECORDS = st.builds(
    OriginalFile,
    engine=st.text(max_size=5),
    path=_PATHS,
    original=st.none() | st.binary(max_size=100),
    uid=st.integers(0, 2**32 - 2),
    gid=st.integers(0, 2**32 - 2),
    mode=st.integers(0, 0o7777),
    created_directories=st.lists(_PATHS, max_size=3).map(tuple),
    written=st.lists(st.binary().map(digest) | st.just("absent"), max_size=2).map(tuple),
    exact=st.booleans(),
    created=st.booleans(),
    keys=st.dictionaries(st.lists(st.text(max_size=3), min_size=1, max_size=3).map(tuple), _JSON, max_size=3),
    main=_PATHS | st.just(""),
)


@given(_RECORDS)
def test_reads_what_it_writes(record: OriginalFile) -> None:
    assert OriginalFile.from_bytes("x", record.to_bytes()) == record


def test_no_keys_are_read_as_an_empty_table() -> None:
    assert OriginalFile.from_bytes("x", EMPTY.to_bytes()).keys == {}


def test_file_is_readable_for_people() -> None:
    text = RECORD.to_bytes().decode("ascii")
    assert text.endswith("}\n")
    fields = json.loads(text)
    assert fields["mode"] == "0640"
    assert fields["keys"][1] == {"path": ["features", "cdi"], "value": True}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"\0" * 100, b"null", b"[]", b"1", b'"path"', b"{}", b"[" * 200_000]
)
def test_damaged_file(content: bytes) -> None:
    with pytest.raises(HostError, match=r"^/x is damaged\. Restore it from a backup"):
        OriginalFile.from_bytes("/x", content)


def _signed(fields: dict[str, t.Any]) -> bytes:
    """Return a record with these fields and their checksum."""
    text = json.dumps({name: value for name, value in fields.items() if name != "checksum"}, sort_keys=True)
    return json.dumps({**json.loads(text), "checksum": digest(text.encode("ascii"))}).encode()


def test_a_record_without_a_checksum_is_damaged() -> None:
    fields = json.loads(RECORD.to_bytes())
    assert OriginalFile.from_bytes("/x", _signed(fields)) == RECORD
    del fields["checksum"]
    with pytest.raises(HostError, match=r"^/x is damaged"):
        OriginalFile.from_bytes("/x", json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [("original", "YQ=="), ("original", None), ("uid", 1), ("mode", "0644"), ("path", "/etc/passwd"), ("exact", True),
     ("written", []), ("created_directories", []), ("keys", []), ("other", 1), ("checksum", ""), ("checksum", 5)],
)  # fmt: skip
def test_a_changed_record_is_damaged(name: str, value: t.Any) -> None:
    """With most of these changes, a removal would restore other content or metadata."""
    fields = {**json.loads(RECORD.to_bytes()), name: value}
    with pytest.raises(HostError, match=r"^/x is damaged"):
        OriginalFile.from_bytes("/x", json.dumps(fields).encode())


@pytest.mark.parametrize("name", [name for name in json.loads(EMPTY.to_bytes()) if name != "checksum"])
def test_missing_field(name: str) -> None:
    fields = json.loads(RECORD.to_bytes())
    del fields[name]
    with pytest.raises(HostError, match=r"^/x is damaged"):
        OriginalFile.from_bytes("/x", _signed(fields))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("original", 7),
        ("original", "bm90!YmFzZTY0"),
        ("uid", "root"),
        ("uid", True),
        ("mode", 420),
        ("created_directories", None),
        ("written", 1),
        ("exact", "false"),
        ("keys", {"a": 1}),
        ("keys", [{"path": ["a"]}]),
        ("keys", [{"path": [["a"]], "value": 1}]),
        ("keys", [{"path": [], "value": 1}]),
        ("keys", [{"path": ["\ud800"], "value": 1}]),
        ("keys", [{"path": ["a"], "value": json.loads("[" * 300 + "]" * 300)}]),
        ("path", "/etc/\ud800"),
        ("engine", "\ud800"),
        ("path", "etc/passwd"),
        ("path", "/etc/../passwd"),
        ("path", "/etc/pass\0wd"),
        ("main", "daemon.json"),
        ("uid", 10**30),
        ("uid", -1),
        ("gid", 2**32 - 1),
        ("mode", "17777"),
        ("created_directories", [5]),
        ("created_directories", ["etc"]),
        ("written", ["a"]),
    ],
)
def test_invalid_field(name: str, value: t.Any) -> None:
    """Wrong types and values are refused, above all those that select directories to remove or allow a restore."""
    fields = {**json.loads(RECORD.to_bytes()), name: value}
    with pytest.raises(HostError, match=r"^/x is damaged"):
        OriginalFile.from_bytes("/x", _signed(fields))


# -- where ---------------------------------------------------------------------------------------------------------


def _store(root: Path, path: str, content: bytes) -> None:
    (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (root / path[1:]).write_bytes(content)


def test_record_path_tells_files_apart() -> None:
    paths = [DAEMON, "/etc/other/daemon.json", "/etc/docker/daemon.json~", "/etc/docker/d\u00e6mon.json"]
    places = {record_path(engine, path) for engine in ("docker", "containerd") for path in paths}
    assert len(places) == 8
    assert {place.rpartition("/")[0] for place in places} == {STATE_DIR}
    assert record_path("docker", DAEMON).startswith(f"{STATE_DIR}/docker-daemon.json-")
    assert record_path("docker", DAEMON).endswith(".json")


@pytest.mark.parametrize("letter", ["x", "\u00e6"])
def test_a_long_name_is_shortened(letter: str) -> None:
    longest = 255 // len(letter.encode())
    names = [record_path("docker", f"/etc/{letter * length}").rpartition("/")[2] for length in (longest, longest - 1)]
    assert len(names[0].encode()) < 200
    assert names[0] != names[1]


def test_load_record(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    assert load_record(host, "docker", DAEMON) is None
    _store(tmp_path, record_path("docker", DAEMON), RECORD.to_bytes())
    assert load_record(host, "docker", DAEMON) == RECORD
    assert load_record(host, "docker", DAEMON + "x") is None
    assert load_record(host, "containerd", DAEMON) is None


def test_a_record_of_a_snap_without_a_main_file(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    record = EMPTY._replace(path="/var/snap/docker/current/config/daemon.json", keys={})
    _store(tmp_path, record_path("docker", record.path), record.to_bytes())
    assert load_record(host, "docker", record.path) == record


def test_the_record_of_another_file(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    _store(tmp_path, record_path("docker", DAEMON), RECORD._replace(path="/etc/passwd").to_bytes())
    with pytest.raises(HostError, match=r"contains the record of /etc/passwd, but .*\. Move this file away\."):
        load_record(host, "docker", DAEMON)


def test_load_records(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    assert load_records(host, "docker") == []
    mine = [OriginalFile("docker", f"/etc/{name}/daemon.json", None, 0, 0, 0o644, keys={}) for name in "abc"]
    for record in [*mine, OriginalFile("docker-x", "/a", None, 0, 0, 0), OriginalFile("crio", "/a", None, 0, 0, 0)]:
        _store(tmp_path, record_path(record.engine, record.path), record.to_bytes())
    _store(tmp_path, f"{STATE_DIR}/.gpufleet-k1ll3d.tmp", b"part")
    _store(tmp_path, f"{STATE_DIR}/docker-notes.txt", b"notes")
    assert sorted(load_records(host, "docker"), key=lambda record: record.path) == mine
    _store(tmp_path, f"{STATE_DIR}/docker-damaged.json", b"")
    with pytest.raises(HostError, match=f"^{STATE_DIR}/docker-damaged.json is damaged"):
        load_records(host, "docker")


# -- what it says --------------------------------------------------------------------------------------------------


def test_digest() -> None:
    assert digest(None) == "absent"
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest(b"absent") != digest(None)


@pytest.mark.parametrize(
    ("path", "value", "owned"),
    [
        (("features", "cdi"), True, True),
        (("features", "cdi"), 1, False),
        (("features", "cdi"), False, False),
        (("features",), {"cdi": True}, False),
        (("runtimes", "nvidia"), {"path": "/usr/bin/nvidia-container-runtime", "args": []}, True),
        (("runtimes", "nvidia"), {"path": "/usr/bin/nvidia-container-runtime"}, False),
        (("runtimes", "other"), None, False),
    ],
)
def test_owns(path: tuple[str, ...], value: t.Any, owned: bool) -> None:
    assert RECORD.owns(path, value) is owned
    assert not EMPTY.owns(path, value)


def test_after_write_keeps_what_was_before_the_first() -> None:
    first = EMPTY.after_write(None, b"1", KEYS)
    assert (first.original, first.created, first.exact, first.keys) == (None, True, True, KEYS)
    assert first.written == (digest(b"1"),)
    second = first.after_write(b"1", b"2", {})
    assert (second.original, second.created, second.exact, second.keys) == (None, True, True, {})
    assert second.written == (digest(b"1"), digest(b"2"))
    assert second.after_write(b"2", b"2", {}).written == (digest(b"2"),)


def test_created_once_is_created_for_good() -> None:
    record = OriginalFile("docker", DAEMON, b"old", 0, 0, 0o644)
    assert not record.after_write(b"old", b"1", {}).created
    # Another program removed the file, and the second write created it again.
    assert record.after_write(b"old", b"1", {}).after_write(None, b"2", {}).after_write(b"2", b"3", {}).created


_OURS = st.sampled_from([b"1", b"2", b"3"])
_STEPS = st.one_of(
    st.tuples(st.just("write"), _OURS),
    st.tuples(st.just("killed between record and file"), _OURS),
    st.tuples(st.just("another program"), st.sampled_from([b"x", b"y", None])),
)


@given(st.sampled_from([b"original", b""]), st.lists(_STEPS, max_size=8))
def test_restorable_unless_another_program_changed_the_file(original: bytes, steps: list[tuple[str, bytes]]) -> None:
    record = OriginalFile("docker", DAEMON, original, 0, 0, 0o644)
    content: bytes | None = original
    own = edited = False
    for actor, after in steps:
        if actor == "another program":
            content, own = after, False
            continue
        edited = edited or not (own or content == original)
        record = record.after_write(content, after, {})
        if actor == "write":
            content, own = after, True
    assert record.restorable(content) is (own and not edited)
    assert record.exact is not edited
    assert record.original == original
