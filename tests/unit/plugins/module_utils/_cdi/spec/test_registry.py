# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import posixpath
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.registry import (
    ADDS,
    COLLIDES,
    MAX_FILES,
    SHADOWED,
    SHADOWS,
    SKIPPED,
    canonical,
    conflicting_specs,
    is_loaded_path,
    read_specifications,
    resolve,
    specification_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import CDI_SPEC_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import CDI_SPEC_BYTES, HostFS

if t.TYPE_CHECKING:
    from pathlib import Path


LOW, HIGH = CDI_SPEC_DIRS
OURS = f"{LOW}/nvidia.yaml"
Data = t.Dict[str, t.Any]


def specification(*names: str, kind: str = "nvidia.com/gpu", version: str = "0.5.0") -> Data:
    devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
    return {"cdiVersion": version, "kind": kind, "devices": devices}


def gpu(*names: str) -> list[str]:
    return [f"nvidia.com/gpu={name}" for name in names]


UNREADABLE = ConfigurationError(f"{LOW}/broken.yaml", "this is no YAML", "Correct the file.", 3, 1)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/etc/cdi/nvidia.yaml", True),
        ("/var/run/cdi/x.json", True),
        ("/etc/cdi/.json", True),
        ("/etc/cdi/nvidia.yml", False),
        ("/etc/cdi/nvidia.yaml.tmp", False),
        ("/etc/cdi/below/nvidia.yaml", False),
        ("/elsewhere/nvidia.yaml", False),
    ],
)
def test_is_loaded_path(path: str, answer: bool) -> None:
    assert is_loaded_path(path) is answer


def test_later_folder_has_precedence() -> None:
    found = resolve({f"{HIGH}/new.yaml": specification("0", "all"), OURS: specification("0", "1", "all")})
    high = f"{HIGH}/new.yaml"
    assert found.devices == dict(zip(gpu("0", "1", "all"), [high, OURS, high]))
    assert found.shadowed == dict.fromkeys(gpu("0", "all"), (OURS,))
    assert found.unresolvable == {}
    assert found.warnings() == [f"{high} has precedence over {OURS} for nvidia.com/gpu=0, nvidia.com/gpu=all."]


def test_order_of_folders() -> None:
    files = {f"{HIGH}/a.yaml": specification("0"), f"{LOW}/a.yaml": specification("0")}
    assert resolve(files, (HIGH, LOW)).devices == {"nvidia.com/gpu=0": f"{LOW}/a.yaml"}


@pytest.mark.parametrize("also", [{}, {f"{HIGH}/c.yaml": specification("0")}])
def test_collision_in_one_folder(also: Data) -> None:
    low = {f"{LOW}/b.json": specification("0", "2"), f"{LOW}/a.yaml": specification("0", "1")}
    found = resolve({**low, **also})
    # The device is also unresolvable if a later directory defines it.
    assert found.unresolvable == {"nvidia.com/gpu=0": (f"{LOW}/a.yaml", f"{LOW}/b.json")}
    assert found.devices == {"nvidia.com/gpu=1": f"{LOW}/a.yaml", "nvidia.com/gpu=2": f"{LOW}/b.json"}
    assert found.shadowed == {}
    (message,) = found.warnings()
    assert message.startswith(f"{LOW}/a.yaml and {LOW}/b.json ")
    assert ": nvidia.com/gpu=0. " in message


def test_other_kinds_do_not_collide() -> None:
    found = resolve({OURS: specification("all"), f"{LOW}/gds.yaml": specification("all", kind="nvidia.com/gds")})
    assert sorted(found.devices) == ["nvidia.com/gds=all", "nvidia.com/gpu=all"]


def test_invalid_file_is_skipped() -> None:
    files = {
        OURS: specification("0"),
        f"{HIGH}/bad.yaml": specification("0", "a+b"),
        f"{LOW}/broken.yaml": UNREADABLE,
        f"{LOW}/README.json": {"readme": True},
    }
    found = resolve(files)
    assert found.devices == {"nvidia.com/gpu=0": OURS}
    assert [file.path for file in found.files if file.errors] == [
        f"{LOW}/README.json",
        f"{LOW}/broken.yaml",
        f"{HIGH}/bad.yaml",
    ]
    message = found.warnings()
    assert len(message) == 3
    assert message[0].startswith(f"Engines skip {LOW}/README.json. readme is an unknown field.")
    assert f" {LOW}/broken.yaml, line 3, column 1: " in message[1]
    assert 'devices[1].name is "a+b"' in message[2]


def test_other_suffixes_are_ignored() -> None:
    found = resolve({f"{LOW}/nvidia.yaml.1": UNREADABLE, f"{LOW}/x/y.yaml": UNREADABLE})
    assert found.files == ()
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("path", "names", "effect", "shared", "message"),
    [
        (f"{LOW}/a.yaml", ("0", "5"), COLLIDES, ("0",), "so engines find none of nvidia.com/gpu=0."),
        (
            f"{HIGH}/a.yaml",
            ("0", "5"),
            SHADOWS,
            ("0",),
            "It has precedence over /etc/cdi/nvidia.yaml for nvidia.com/gpu=0.",
        ),
        (f"{LOW}/a.yaml", ("5",), ADDS, (), "Its devices nvidia.com/gpu=5 stay usable"),
        (f"{HIGH}/a.yaml", ("5",), ADDS, (), "Its devices nvidia.com/gpu=5 stay usable"),
        (f"{HIGH}/a.yaml", ("a+b", "1"), SKIPPED, ("1",), "Engines skip it, because it has errors."),
    ],
)
def test_conflicting_specs(
    path: str, names: tuple[str, ...], effect: str, shared: tuple[str, ...], message: str
) -> None:
    (conflict,) = conflicting_specs({path: specification(*names)}, OURS, specification("0", "1"))
    assert conflict[:3] == (path, effect, tuple(gpu(*shared)))
    assert conflict.message.startswith(f"{path} also describes nvidia.com/gpu")
    assert message in conflict.message


@pytest.mark.parametrize(("names", "effect"), [(("0",), SHADOWED), (("0", "5"), ADDS)])
def test_conflict_in_earlier_folder(names: tuple[str, ...], effect: str) -> None:
    (conflict,) = conflicting_specs({OURS: specification(*names)}, f"{HIGH}/nvidia.yaml", specification("0", "1"))
    assert conflict.effect == effect
    assert conflict.devices == ("nvidia.com/gpu=0",)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {OURS: specification("0")},
        {f"{LOW}/gds.yaml": specification("all", kind="nvidia.com/gds")},
        {f"{LOW}/m.yaml": specification("0", kind="management.nvidia.com/gpu")},
        {f"{LOW}/nvidia.yaml.bak": specification("0")},
        {f"{LOW}/broken.yaml": UNREADABLE},
    ],
)
def test_no_conflicts(files: Data) -> None:
    assert conflicting_specs(files, OURS, specification("0")) == []


def test_no_conflicts_outside_loaded_folders() -> None:
    assert conflicting_specs({OURS: specification("0")}, "/root/nvidia.yaml", specification("0")) == []


PATHS = st.sampled_from([f"{folder}/{name}" for folder in CDI_SPEC_DIRS for name in ("a.yaml", "b.json", "c.yml")])
SOME = st.lists(st.sampled_from(["0", "1", "all"]), max_size=3, unique=True).map(lambda names: specification(*names))


@given(st.dictionaries(PATHS, SOME | st.just(UNREADABLE) | st.none() | st.integers() | st.lists(st.integers())))
def test_resolution_is_complete(files: dict[str, t.Any]) -> None:
    found = resolve(files)
    good = {name: file for file in found.files if not file.errors for name in file.devices}
    assert set(found.devices) | set(found.unresolvable) == set(good)
    assert not set(found.devices) & set(found.unresolvable)
    assert {file.path for file in found.files} <= set(files)
    for paths in found.unresolvable.values():
        assert len({posixpath.dirname(path) for path in paths}) < len(paths)
    assert all(isinstance(line, str) for line in found.warnings())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory tree of a host, and a specification outside of the tree."""
    (tmp_path / "outside.yaml").write_text("outside: 1")
    tree = tmp_path / "tree"
    (tree / "etc/cdi").mkdir(parents=True)
    (tree / "run/cdi").mkdir(parents=True)
    (tree / "var").mkdir()
    (tree / "var/run").symlink_to("/run")
    return tree


@pytest.fixture
def host(root: Path) -> HostFS:
    return HostFS.of(str(root), live=False)


class TestPaths:
    def test_loaded_files(self, root: Path, host: HostFS) -> None:
        for name in ("b.yaml", "a.json", ".hidden.yaml", ".yaml", "c.yml", "d.YAML", "e.yaml.bak", "README", "f.yaml~"):
            (root / "etc/cdi" / name).write_text("")
        (root / "run/cdi/a.yaml").write_text("")
        (root / "etc/cdi/sub").mkdir()
        (root / "etc/cdi/sub/x.yaml").write_text("")
        (root / "etc/cdi/folder.yaml").mkdir()
        (root / "etc/cdi/link.json").symlink_to("a.json")
        (root / "etc/cdi/dangling.json").symlink_to("/nowhere")
        assert specification_paths(host) == [
            "/etc/cdi/.hidden.yaml",
            "/etc/cdi/.yaml",
            "/etc/cdi/a.json",
            "/etc/cdi/b.yaml",
            "/etc/cdi/dangling.json",
            "/etc/cdi/link.json",
            "/var/run/cdi/a.yaml",
        ]

    def test_missing_folders(self, tmp_path: Path) -> None:
        assert specification_paths(HostFS.of(str(tmp_path), live=False)) == []

    def test_linked_folder_is_not_read(self, root: Path, host: HostFS) -> None:
        (root / "run/cdi/a.yaml").write_text("")
        (root / "etc/cdi").rmdir()
        (root / "etc/cdi").symlink_to("/run/cdi")
        assert specification_paths(host) == ["/var/run/cdi/a.yaml"]

    def test_too_many_files(self, root: Path, host: HostFS) -> None:
        for number in range(MAX_FILES):
            (root / f"etc/cdi/{number}.json").write_text("{}")
        assert len(specification_paths(host)) == MAX_FILES
        (root / "etc/cdi/one-more.yaml").write_text("{}")
        with pytest.raises(HostError, match=f"/etc/cdi contains {MAX_FILES + 1} CDI specifications"):
            read_specifications(host)

    def test_too_large_in_total(self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            (root / f"etc/cdi/{number}.yaml").write_bytes(b"#" * (CDI_SPEC_BYTES // 4))
        # A file that is too large by itself is not parsed, and does not count.
        (root / "etc/cdi/huge.yaml").write_bytes(b"#" * (CDI_SPEC_BYTES + 1))
        assert len(specification_paths(host)) == 5
        (root / "etc/cdi/one-more.yaml").write_text("#")
        monkeypatch.setattr(cdi_registry, "_parsed", lambda *_args: pytest.fail("a file was parsed"))
        with pytest.raises(HostError, match=r"The CDI specifications in /etc/cdi are larger than 4 MiB in total"):
            read_specifications(host)


class TestReading:
    def test_data_and_errors(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi/a.json").write_text('{"kind": "a/b"}')
        (root / "etc/cdi/b.yaml").write_text("kind: a/c\n")
        (root / "etc/cdi/c.yaml").write_text("kind: 'a\n")
        (root / "etc/cdi/d.yaml").write_text("")
        (root / "run/cdi/e.json").symlink_to("/etc/cdi/a.json")
        found = read_specifications(host)
        assert list(found) == [*(f"/etc/cdi/{name}" for name in ("a.json", "b.yaml", "c.yaml", "d.yaml")),
                               "/var/run/cdi/e.json"]  # fmt: skip
        error = found.pop("/etc/cdi/c.yaml")
        assert isinstance(error, ConfigurationError)
        assert str(error).startswith("/etc/cdi/c.yaml, line 2, column 1: ")
        assert list(found.values()) == [{"kind": "a/b"}, {"kind": "a/c"}, None, {"kind": "a/b"}]

    def message(self, host: HostFS) -> str:
        (found,) = read_specifications(host).values()
        assert isinstance(found, HostError)
        return str(found)

    def test_link_out_of_the_tree(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi/a.yaml").symlink_to(root.parent / "outside.yaml")
        assert self.message(host).startswith("/etc/cdi/a.yaml is a broken link.")

    def test_known_content_is_not_parsed(self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cdi_registry, "_parsed", lambda path, _content: pytest.fail(f"{path} was parsed"))
        (root / "etc/cdi/a.yaml").write_text("a: 1")
        known = {hashlib.sha256(b"a: 1").hexdigest(): {"a": "known"}}
        assert read_specifications(host, known) == {"/etc/cdi/a.yaml": {"a": "known"}}

    def test_missing_pyyaml(self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_args: object) -> t.NoReturn:
            raise MissingPackageError("none")

        monkeypatch.setattr(cdi_registry, "_parsed", refuse)
        (root / "etc/cdi/a.yaml").write_text("a: 1")
        with pytest.raises(MissingPackageError):
            read_specifications(host)


class TestCanonical:
    @pytest.mark.parametrize(
        ("path", "usual"),
        [
            ("/etc/cdi/x.yaml", "/etc/cdi/x.yaml"),
            ("/run/cdi/x.yaml", "/var/run/cdi/x.yaml"),
            ("/var/run/cdi/x.yaml", "/var/run/cdi/x.yaml"),
            ("/var/run/../run/cdi/x.yaml", "/var/run/cdi/x.yaml"),
            ("/var/other/x.yaml", "/var/other/x.yaml"),
            ("/run/cdi/sub/x.yaml", "/run/cdi/sub/x.yaml"),
            ("/x.yaml", "/x.yaml"),
        ],
    )
    @pytest.mark.parametrize("there", [False, True])
    def test_canonical_path(self, root: Path, host: HostFS, path: str, usual: str, there: bool) -> None:
        if not there:
            (root / "run/cdi").rmdir()
        assert canonical(host, path) == usual

    def test_different_folders(self, root: Path, host: HostFS) -> None:
        (root / "var/run").unlink()
        (root / "var/run/cdi").mkdir(parents=True)
        assert canonical(host, "/run/cdi/x.yaml") == "/run/cdi/x.yaml"

    def test_linked_folder(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi").rmdir()
        (root / "etc/cdi").symlink_to("/srv/cdi")
        assert canonical(host, "/srv/cdi/x.yaml") == "/srv/cdi/x.yaml"
        assert canonical(host, "/etc/cdi/x.yaml") == "/etc/cdi/x.yaml"
