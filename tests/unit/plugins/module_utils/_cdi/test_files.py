# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.registry import (
    MOST_FILES,
    canonical,
    read_specifications,
    specification_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_parser import MAX_BYTES

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's tree, beside a specification that lies outside of it."""
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
    def test_what_engines_take_for_specifications(self, root: Path, host: HostFS) -> None:
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

    def test_no_folders(self, tmp_path: Path) -> None:
        assert specification_paths(HostFS.of(str(tmp_path), live=False)) == []

    def test_a_folder_that_is_a_link_is_not_read(self, root: Path, host: HostFS) -> None:
        (root / "run/cdi/a.yaml").write_text("")
        (root / "etc/cdi").rmdir()
        (root / "etc/cdi").symlink_to("/run/cdi")
        assert specification_paths(host) == ["/var/run/cdi/a.yaml"]

    def test_a_link_does_not_lead_out_of_the_tree(self, root: Path, host: HostFS) -> None:
        (root / "var/run").unlink()
        (root / "var/run").symlink_to("../../../run")
        (root / "run/cdi/a.yaml").write_text("")
        assert specification_paths(host) == ["/var/run/cdi/a.yaml"]

    def test_far_too_many(self, root: Path, host: HostFS) -> None:
        for number in range(MOST_FILES):
            (root / f"etc/cdi/{number}.json").write_text("{}")
        assert len(specification_paths(host)) == MOST_FILES
        (root / "etc/cdi/one-more.yaml").write_text("{}")
        with pytest.raises(HostError, match=f"/etc/cdi contains {MOST_FILES + 1} CDI specifications"):
            read_specifications(host)

    def test_far_too_large_together(self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            (root / f"etc/cdi/{number}.yaml").write_bytes(b"#" * (MAX_BYTES // 4))
        # A file that is too large by itself is not parsed, and does not count.
        (root / "etc/cdi/huge.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
        assert len(specification_paths(host)) == 5
        (root / "etc/cdi/one-more.yaml").write_text("#")
        monkeypatch.setattr(cdi_registry, "_parsed", lambda *_args: pytest.fail("a file was parsed"))
        with pytest.raises(HostError, match=r"The CDI specifications in /etc/cdi are larger than 4 MiB in total"):
            read_specifications(host)

    def test_a_folder_that_cannot_be_read(self, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        def listdir(path: str) -> list[str]:
            raise PermissionError(13, "Permission denied", path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", listdir)
            with pytest.raises(HostError, match="/etc/cdi cannot be read"):
                specification_paths(host)


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

    def test_a_link_out_of_the_tree_stays_in_it(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi/a.yaml").symlink_to(root.parent / "outside.yaml")
        assert self.message(host).startswith("/etc/cdi/a.yaml is a broken link.")

    def test_a_loop(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi/a.yaml").symlink_to("a.yaml")
        assert "too many symbolic links" in self.message(host)

    def test_what_is_no_file_is_not_opened(self, root: Path, host: HostFS) -> None:
        os.mkfifo(str(root / "etc/cdi/a.yaml"))
        assert self.message(host).startswith("/etc/cdi/a.yaml is not a regular file.")

    def test_a_link_to_a_folder(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi/a.yaml").symlink_to("/run")
        assert self.message(host).startswith("/etc/cdi/a.yaml is not a regular file.")

    @pytest.mark.parametrize(
        ("error", "advice"),
        [(PermissionError(13, "Permission denied"), "Run the task as root"), (OSError(5, "I/O"), "Check the file")],
    )
    def test_a_file_that_cannot_be_read(
        self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch, error: OSError, advice: str
    ) -> None:
        def refuse(*_args: object) -> t.NoReturn:
            raise error

        (root / "etc/cdi/a.yaml").write_text("a: 1")
        monkeypatch.setattr(os, "open", refuse)
        assert self.message(host).startswith(f"/etc/cdi/a.yaml cannot be read: {error.strerror}. {advice}")

    def test_a_file_that_is_too_large_is_not_read_to_its_end(self, root: Path, host: HostFS) -> None:
        with (root / "etc/cdi/a.yaml").open("wb") as stream:
            stream.truncate(1 << 40)
        assert self.message(host).startswith(f"/etc/cdi/a.yaml is larger than {MAX_BYTES >> 10} KiB")

    def test_known_content_needs_no_parser(self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cdi_registry, "_parsed", lambda path, _content: pytest.fail(f"{path} was parsed"))
        (root / "etc/cdi/a.yaml").write_text("a: 1")
        known = {hashlib.sha256(b"a: 1").hexdigest(): {"a": "known"}}
        assert read_specifications(host, known) == {"/etc/cdi/a.yaml": {"a": "known"}}

    def test_a_missing_package_is_no_fault_of_the_file(
        self, root: Path, host: HostFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
    def test_one_folder_with_two_names(self, root: Path, host: HostFS, path: str, usual: str, there: bool) -> None:
        if not there:
            (root / "run/cdi").rmdir()
        assert canonical(host, path) == usual

    def test_two_folders(self, root: Path, host: HostFS) -> None:
        (root / "var/run").unlink()
        (root / "var/run/cdi").mkdir(parents=True)
        assert canonical(host, "/run/cdi/x.yaml") == "/run/cdi/x.yaml"

    def test_a_folder_that_is_a_link_has_no_other_name(self, root: Path, host: HostFS) -> None:
        (root / "etc/cdi").rmdir()
        (root / "etc/cdi").symlink_to("/srv/cdi")
        assert canonical(host, "/srv/cdi/x.yaml") == "/srv/cdi/x.yaml"
        assert canonical(host, "/etc/cdi/x.yaml") == "/etc/cdi/x.yaml"
