# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which files each release of Podman reads, in which order, and how it merges them.

The rules are those of containers/common 0.63 (Podman 5) and container-libs (Podman 6), see podman/config.py.
"""

from __future__ import annotations

import posixpath

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman.config import (
    DROP_IN,
    MAIN,
    ContainersConf,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

PACKAGED_MAIN = "/usr/share/containers/containers.conf"
PACKAGED = "/usr/share/containers/containers.conf.d"
FOLDER = "/etc/containers/containers.conf.d"
ROOTFUL = "/etc/containers/containers.rootful.conf.d"
FIVE, SIX = (5, 8), (6, 0)
DEFAULT = ("/etc/cdi",)


class LinkedFiles(FakeFiles):
    """Files in memory, of which some are links."""

    links: dict[str, str]

    def resolve(self, path: str) -> str:
        return self.links.get(path, path)


def read(
    content: dict[str, str], version: tuple[int, ...], own: str = "", links: dict[str, str] | None = None
) -> ContainersConf:
    files = LinkedFiles(content, "podman")
    files.links = links or {}
    return ContainersConf(files, version, DEFAULT, TomlDocument.from_bytes(DROP_IN, own.encode()))


def dirs(*folders: str, append: str = "") -> str:
    entries = [*(f'"{folder}"' for folder in folders), *([f"{{append = {append}}}"] if append else [])]
    return f"[engine]\ncdi_spec_dirs = [{', '.join(entries)}]\n"


EVERYWHERE = {
    PACKAGED_MAIN: "",
    MAIN: "",
    f"{PACKAGED}/20.conf": "",
    f"{PACKAGED}/30.conf": "",
    f"{FOLDER}/10.conf": "",
    f"{FOLDER}/30.conf": "",
    f"{FOLDER}/sub/40.conf": "",
    f"{FOLDER}/50.toml": "",
    f"{ROOTFUL}/zz.conf": "",
}


@pytest.mark.parametrize(
    ("version", "paths"),
    [
        (FIVE, [PACKAGED_MAIN, MAIN, f"{FOLDER}/10.conf", f"{FOLDER}/30.conf", DROP_IN]),
        (
            SIX,
            [MAIN, f"{FOLDER}/10.conf", f"{PACKAGED}/20.conf", f"{FOLDER}/30.conf", DROP_IN, f"{ROOTFUL}/zz.conf"],
        ),
    ],
)
def test_order_of_files(version: tuple[int, ...], paths: list[str]) -> None:
    assert [file.path for file in read(EVERYWHERE, version).files] == paths


@pytest.mark.parametrize("version", [FIVE, SIX])
def test_links_are_ignored_since_6(version: tuple[int, ...]) -> None:
    link = f"{FOLDER}/10.conf"
    found = read({link: dirs("/a")}, version, links={link: "/srv/10.conf"})
    assert found.cdi_dirs().folders == (("/a",) if version < SIX else DEFAULT)


def test_a_packaged_main_file_is_only_read_alone_since_6() -> None:
    content = {PACKAGED_MAIN: dirs("/packaged"), MAIN: ""}
    assert read(content, FIVE).cdi_dirs().folders == ("/packaged",)
    assert read(content, SIX).cdi_dirs().folders == DEFAULT
    del content[MAIN]
    assert read(content, SIX).cdi_dirs().folders == ("/packaged",)


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ([dirs("/a"), dirs("/b")], ("/b",)),
        ([dirs("/a"), dirs("/b", append="true")], ("/a", "/b")),
        ([dirs("/a", append="true"), dirs("/b")], ("/etc/cdi", "/a", "/b")),
        ([dirs("/a", append="true"), dirs("/b", append="false")], ("/b",)),
        ([dirs(), ""], ()),
    ],
)
def test_later_files_replace_or_append(files: list[str], folders: tuple[str, ...]) -> None:
    content = {f"{FOLDER}/{number}.conf": text for number, text in enumerate(files)}
    assert read(content, FIVE).cdi_dirs().folders == folders


def test_setting_before_a_file() -> None:
    found = read({MAIN: dirs("/a"), f"{FOLDER}/zz.conf": dirs("/z")}, FIVE, own=dirs("/own"))
    assert found.cdi_dirs(before=DROP_IN).folders == ("/a",)
    assert found.cdi_dirs(before=f"{FOLDER}/zz.conf").folders == ("/own",)
    assert found.cdi_dirs().folders == ("/z",)


def test_file_that_is_read_instead() -> None:
    other = f"{ROOTFUL}/{posixpath.basename(DROP_IN)}"
    assert read({other: ""}, SIX).overriding_file(DROP_IN) == other
    assert read({other: ""}, FIVE).overriding_file(DROP_IN) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[engine]\ncdi_spec_dirs = "/etc/cdi"\n', "line 2"),
        ("[engine]\n\ncdi_spec_dirs = [1]\n", "line 3"),
        ('[engine]\ncdi_spec_dirs = ["/a", {append = 1}]\n', "line 2"),
        ("[engine\n", "line 1"),
    ],
)
def test_invalid_setting(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        read({MAIN: text}, FIVE)
