# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import posixpath
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import apt_sources, rpm_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.apt_sources import parse_deb822, parse_list
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.base import Entry, Repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.rpm_sources import parse_repo
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages.sources import (
    STAGED_KEYS,
    Conflicts,
    MixedSourceFile,
    conflicts,
    is_nvidia_address,
    key_patterns,
    own_files,
    repository_files,
)

if t.TYPE_CHECKING:
    from pathlib import Path

APT_SOURCE = apt_sources.REPOSITORY.source
KEY_PATTERNS = key_patterns()
REPOSITORY_FILES = repository_files()
ADDRESS = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
SHORT = "[0-9A-Fa-f]" * 16
DEBIAN = "http://debian.example.com/debian"
# The file of NVIDIA's instructions.
LIST = f"""deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] {ADDRESS} /
#deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg] {ADDRESS.replace("stable", "experimental")} /
"""
REPO = """[libnvidia-container]
name=libnvidia-container
baseurl=https://nvidia.github.io/libnvidia-container/centos8/$basearch
repo_gpgcheck=1
gpgcheck=0
enabled=1
gpgkey=https://nvidia.github.io/libnvidia-container/gpgkey

[libnvidia-container-experimental]
baseurl=https://nvidia.github.io/libnvidia-container/experimental/centos8/$basearch
enabled=0
"""


def host(root: Path, files: dict[str, str]) -> HostFS:
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    return HostFS(str(root), live=False)


# -- addresses -------------------------------------------------------------------------------------------------------


NVIDIA_ADDRESSES = [
    ADDRESS,
    "http://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/$(ARCH)",
    "https://nvidia.github.io/nvidia-docker",
    "https://nvidia.github.io/nvidia-docker/",
    "https://nvidia.github.io/nvidia-container-runtime/debian10/$(ARCH)",
    "mirror+https://nvidia.github.io/libnvidia-container/stable",
    "tor+http://nvidia.github.io/libnvidia-container",
    "HTTPS://NVIDIA.GitHub.io/libnvidia-container",
    "https://nvidia.github.io:443//libnvidia-container//stable",
    "http://nvidia.github.io:8080/libnvidia-container",
    "https://user:secret@nvidia.github.io/libnvidia-container",
    "nvidia.github.io/libnvidia-container",
]
OTHER_ADDRESSES = [
    DEBIAN,
    "https://nvidia.github.io/libnvidia-containers",
    "https://nvidia.github.io/",
    "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/",
    "https://mirror.example.com/nvidia.github.io/libnvidia-container",
    "https://nvidia.github.io.example.com/libnvidia-container",
    "https://nvidia.github.io@example.com/libnvidia-container",
    "file:/srv/nvidia-docker",
    "cdrom:[Debian",
    "",
]


def test_addresses_of_nvidia() -> None:
    assert [address for address in NVIDIA_ADDRESSES if not is_nvidia_address(address)] == []
    assert [address for address in OTHER_ADDRESSES if is_nvidia_address(address)] == []


# -- parsers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LIST, [(1, ADDRESS)]),
        (f"deb {DEBIAN} bookworm main\ndeb-src {DEBIAN} bookworm main # why", [(1, DEBIAN, False), (2, DEBIAN, False)]),
        (f"  deb\t[ arch=amd64,arm64  signed-by=/k#1.gpg ]   {ADDRESS} /", [(1, ADDRESS)]),
        (f"deb [trusted=yes]{ADDRESS} /", [(1, ADDRESS)]),
        (f"# deb {ADDRESS} /\n\n \nrpm {ADDRESS} /\ndebian {ADDRESS}\ndeb\ndeb []\n", []),
        (f"deb # {ADDRESS} /", []),
        ("deb cdrom:[Debian 12 # 1]/ bookworm main", [(1, "cdrom:[Debian", False)]),
        (f"deb {DEBIAN} x y\r\ndeb {ADDRESS} /\r\n", [(1, DEBIAN, False), (2, ADDRESS)]),
        ("", []),
    ],
)
def test_parse_list(text: str, found: list[tuple[t.Any, ...]]) -> None:
    assert list(parse_list(text)) == [Entry(*entry) for entry in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Types: deb\nURIs: {ADDRESS}\nSuites: /\n", [(2, ADDRESS)]),
        (f"URIs: {DEBIAN}\nSuites: bookworm\n", [(1, DEBIAN, False)]),
        (
            f"Types: deb\nURIs: {DEBIAN}\n {ADDRESS}\n\t{DEBIAN}/x {DEBIAN}/y",
            [(2, DEBIAN), (3, ADDRESS), (4, f"{DEBIAN}/x"), (4, f"{DEBIAN}/y")],
        ),
        (f"uris:\n# between\n {ADDRESS}\nEnabled: yes", [(3, ADDRESS)]),
        (f"Enabled: no\nURIs: {ADDRESS}\n\nURIs: {DEBIAN}\n", [(4, DEBIAN)]),
        (f"URIs: {ADDRESS}\nEnabled: False\n", []),
        (f"URIs: {ADDRESS}\nenabled:off\n", []),
        (f"URIs: {ADDRESS}\nEnabled:\n no\n", []),
        (f"#Enabled: no\nURIs: {ADDRESS}\n", [(2, ADDRESS)]),
        (f"#URIs: {ADDRESS}\nURIs: {DEBIAN}\n", [(2, DEBIAN)]),
        (
            f"Signed-By:\n -----BEGIN PGP-----\n .\n {ADDRESS}\n -----END-----\nURIs: {DEBIAN}",
            [(6, DEBIAN)],
        ),
        (" stray\nTypes deb\n\n\n", []),
        (f"URIs: {ADDRESS}\r\nEnabled: no\r\n\r\nURIs: {DEBIAN}\r\n", [(4, DEBIAN)]),
        ("", []),
    ],
)
def test_parse_deb822(text: str, found: list[tuple[t.Any, ...]]) -> None:
    assert list(parse_deb822(text)) == [Entry(*entry) for entry in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REPO, [(3, "https://nvidia.github.io/libnvidia-container/centos8/$basearch")]),
        (
            "[a]\nbaseurl = http://a/ http://b/,http://c\n\thttp://d\n",
            [(2, "http://a/"), (2, "http://b/"), (2, "http://c"), (3, "http://d")],
        ),
        ("[a]\n# baseurl=http://a\n;baseurl=http://b\nmirrorlist=http://c\n", [(4, "http://c")]),
        ("[a]\nenabled = False\nbaseurl=http://a\n[b]\nbaseurl=http://b\n", [(5, "http://b")]),
        ("[a]\nbaseurl=http://a\nenabled=0\nenabled=1\n", [(2, "http://a")]),
        ("[a]\nBaseURL=http://a\ngpgkey=http://k\n http://l\n", [(2, "http://a")]),
        ("[a]\nbaseurl=http://a\n ;http://b\n #http://c\n", [(2, "http://a")]),
        ("baseurl", []),
        ("", []),
    ],
)
def test_parse_repo(text: str, found: list[tuple[int, str]]) -> None:
    assert list(parse_repo(text)) == [Entry(*entry) for entry in found]


# -- conflicts ---------------------------------------------------------------------------------------------

D = "/etc/apt/sources.list.d"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{D}/nvidia-container-toolkit.list", LIST),
        (f"{D}/nvidia-docker.list", f"deb {ADDRESS} /\ndeb {ADDRESS} /x\n"),
        (f"{D}/anything.sources", f"URIs: {ADDRESS}\n\nEnabled: no\nURIs: {DEBIAN}\n"),
        # A mirror, by its name.
        (f"{D}/libnvidia-container.list", "deb https://mirror.example.com/a/libnvidia-container/stable /\n"),
        (f"{D}/nvidia-container-toolkit.sources", "URIs: https://mirror.example.com/nvidia-container-toolkit\n"),
        (f"{D}/nvidia-container-runtime.sources", "URIs: http://m/nvidia-docker http://m/x/nvidia-container-runtime\n"),
        ("/etc/apt/sources.list", f"deb {ADDRESS} /"),
    ],
)
def test_conflicting_sources_of_apt(tmp_path: Path, path: str, text: str) -> None:
    other = {"/etc/apt/sources.list.d/debian.sources": f"URIs: {DEBIAN}\n"}
    assert conflicts(host(tmp_path, {path: text, **other}), apt_sources.REPOSITORY) == Conflicts([path], [])


@pytest.mark.parametrize(
    ("path", "text", "line", "address"),
    [
        ("/etc/apt/sources.list", f"deb {DEBIAN} x main\n\ndeb {ADDRESS} /\n", 3, ADDRESS[8:]),
        (f"{D}/nvidia-docker.list", f"deb https://u:secret@{ADDRESS[8:]} /\ndeb {DEBIAN} x y", 1, ADDRESS[8:]),
        (f"{D}/all.sources", f"URIs: {DEBIAN}\n {ADDRESS}\nSuites: /\n", 2, ADDRESS[8:]),
    ],
)
def test_mixed_sources_of_apt(tmp_path: Path, path: str, text: str, line: int, address: str) -> None:
    assert conflicts(host(tmp_path, {path: text}), apt_sources.REPOSITORY) == Conflicts(
        [], [MixedSourceFile(path, line, address)]
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (APT_SOURCE, f"URIs: {ADDRESS}\n"),
        # The address may have other packages.
        (f"{D}/nvidia-docker.list", "deb https://nvidia-docker.example.com/debian bookworm main\n"),
        (f"{D}/nvidia-docker.list", "deb http://m/nvidia-docker /\ndeb http://m/debian bookworm main\n"),
        (f"{D}/nvidia-docker.list", f"# deb {ADDRESS} /\n"),
        (f"{D}/nvidia-docker.sources", f"Enabled: no\nURIs: {ADDRESS}\n"),
        (f"{D}/nvidia-docker.list.save", LIST),
        (f"{D}/nvidia docker.list", LIST),
        (f"{D}/cuda.list", "deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"),
        ("/etc/apt/nvidia-docker.list", LIST),
        ("/etc/yum.repos.d/nvidia-docker.repo", REPO),
        ("/etc/apt/sources.list", f"deb {DEBIAN} x main"),
        (f"{D}/nvidia-docker.list/x", LIST),
    ],
)
def test_unrelated_sources_of_apt(tmp_path: Path, path: str, text: str) -> None:
    assert conflicts(host(tmp_path, {path: text}), apt_sources.REPOSITORY) == Conflicts([], [])


@pytest.mark.parametrize("repository", [rpm_sources.DNF, rpm_sources.ZYPPER])
def test_sources_of_dnf_and_zypper(tmp_path: Path, repository: Repository) -> None:
    folder, address = posixpath.dirname(repository.source), "nvidia.github.io/libnvidia-container/centos8/$basearch"
    mixed = REPO.replace("enabled=0", "enabled=1").replace("https://nvidia.github.io/libnvidia-container/e", "http://e")
    found = conflicts(
        host(
            tmp_path,
            {
                f"{folder}/company.repo": "[a]\nbaseurl=http://a\n\n" + REPO,
                f"{folder}/libnvidia-container.repo": REPO,
                f"{folder}/nvidia-container-runtime.repo": "[a]\nbaseurl=http://m/nvidia-docker\n",
                repository.source: REPO,
                f"{folder}/nvidia-docker.repo": mixed,
                f"{folder}/off.repo": REPO.replace("enabled=1", "enabled=0"),
                f"{folder}/other.txt": REPO,
                f"{D}/nvidia-docker.list": LIST,
            },
        ),
        repository,
    )
    assert found == Conflicts(
        [f"{folder}/libnvidia-container.repo", f"{folder}/nvidia-container-runtime.repo"],
        [
            MixedSourceFile(f"{folder}/company.repo", 6, address),
            MixedSourceFile(f"{folder}/nvidia-docker.repo", 3, address),
        ],
    )


MIRROR = "https://mirror.example.com/nvidia/stable/deb/$(ARCH)"


@pytest.mark.parametrize("address", [MIRROR, "http://Mirror.example.com:80//nvidia/stable/deb/amd64/"])
def test_same_address(tmp_path: Path, address: str) -> None:
    # apt accepts only one Signed-By for an address.
    files = {f"{D}/a.list": f"deb {address} /\n", f"{D}/b.list": f"deb {DEBIAN} x y\ndeb {address} /\n"}
    tree = host(tmp_path, {**files, APT_SOURCE: f"URIs: {MIRROR}\n"})
    mixed = MixedSourceFile(f"{D}/b.list", 2, address.lower().split("//", 1)[1].replace(":80//", "/").rstrip("/"))
    if address == MIRROR:
        mixed = mixed._replace(address=MIRROR[8:])
    assert conflicts(tree, apt_sources.REPOSITORY, MIRROR) == Conflicts([f"{D}/a.list"], [mixed])
    for other in (None, "", DEBIAN + "/x", MIRROR.replace("stable", "experimental")):
        assert conflicts(tree, apt_sources.REPOSITORY, other) == Conflicts([], [])


@pytest.mark.parametrize(
    ("requested", "other", "same"),
    [
        ("http://m:8081/deb", "http://m:8082/deb", False),
        ("http://m:8081/deb", "http://m/deb", False),
        ("http://m:8081/deb", "http://M:8081//deb/", True),
        ("http://m:8081/deb", "https://u:secret@m:8081/deb", True),
        ("http://m/deb", "http://m:80/deb", True),
        ("https://m:443/deb", "HTTPS://m/deb", True),
        ("https://m:443/deb", "mirror+http://m:80/deb", True),
        ("http://m/deb", "http://m:443/deb", False),
        ("https://m/deb", "https://m:80/deb", False),
        ("http://[::1]:8081/deb", "http://[::1]:8082/deb", False),
        ("http://[::1]:80/deb", "http://u:secret@[::1]/deb", True),
    ],
)
def test_ports(tmp_path: Path, requested: str, other: str, same: bool) -> None:
    """Servers of different owners may run on one host."""
    found = conflicts(host(tmp_path, {f"{D}/a.list": f"deb {other} /\n"}), apt_sources.REPOSITORY, requested)
    assert found == Conflicts([f"{D}/a.list"] if same else [], [])


def test_port_of_a_mixed_source(tmp_path: Path) -> None:
    tree = host(tmp_path, {f"{D}/a.list": f"deb {DEBIAN} x y\ndeb http://u:secret@m:8081/deb /\n"})
    mixed = MixedSourceFile(f"{D}/a.list", 2, "m:8081/deb")
    assert conflicts(tree, apt_sources.REPOSITORY, "http://m:8081/deb") == Conflicts([], [mixed])


def test_own_files(tmp_path: Path) -> None:
    digits = "DDCAE044F796ECB0"
    paths = [
        *REPOSITORY_FILES[:2],
        *(pattern.replace(SHORT, digits) for pattern in sorted((*KEY_PATTERNS, STAGED_KEYS))),
    ]
    others = [path.replace(digits, digits[:-1]) for path in paths if digits in path]
    others += [path.replace("gpufleet-", "") for path in paths]
    found = host(tmp_path, dict.fromkeys((*paths, *others), ""))
    assert sorted(own_files(found)) == sorted(paths)
    assert own_files(host(tmp_path / "bare", {"/etc/x": ""})) == []
