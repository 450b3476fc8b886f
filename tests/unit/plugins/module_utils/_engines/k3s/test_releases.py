# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.k3s.releases import (
    default_since,
    folders_of,
    found_on,
    own_path_since,
    programs_of,
    release_of,
    sets_default,
)

if t.TYPE_CHECKING:
    from pathlib import Path

OPERATOR = "/usr/local/nvidia/toolkit"


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        ((1, 25, 16), False),
        ((1, 26, 11), False),
        ((1, 26, 12), True),
        ((1, 27, 8), False),
        ((1, 27, 9), True),
        ((1, 28, 4), False),
        ((1, 28, 5), True),
        ((1, 29, 0), True),
        ((1, 33), True),
        ((1, 28), False),
        (None, True),
        # A containerd's.
        ((1, 7, 20), True),
        ((2, 0, 5), True),
        ((1,), True),
        ((), True),
    ],
)
def test_since_when_there_is_a_default(version: tuple[int, ...] | None, answer: bool) -> None:
    assert sets_default(version) is answer


def test_the_first_releases_in_words() -> None:
    assert default_since() == "v1.26.12, v1.27.9, v1.28.5 and v1.29.0"
    assert own_path_since() == "v1.28.15, v1.29.10, v1.30.6, v1.31.2 and v1.32.0"


@pytest.mark.parametrize(
    ("version", "release"), [((1, 30, 4), (1, 30, 4)), ((1, 7, 20), None), ((2, 1), None), ((), None), (None, None)]
)
def test_the_version_of_a_containerd_is_no_release(version: t.Any, release: t.Any) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize(
    ("version", "has_cdi"),
    [((1, 30, 5), False), ((1, 30, 6), True), ((1, 31, 1), False), ((1, 31, 2), True), ((1, 34, 0), True)],
)
def test_which_runtimes_are_known(version: tuple[int, ...], has_cdi: bool) -> None:
    names = set(programs_of(version))
    assert names == {"nvidia", "nvidia-experimental"} | ({"nvidia-cdi"} if has_cdi else set())


SERVICE = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
FIXED = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]


@pytest.mark.parametrize(
    ("version", "environment", "folders"),
    [
        ((1, 29, 1), {"PATH": "/opt/bin"}, [OPERATOR, "/usr/bin"]),
        ((1, 28, 6), {}, [OPERATOR, "/usr/bin"]),
        ((1, 29, 2), {"PATH": "/opt/bin"}, [OPERATOR, "/opt/kwasm/bin", *FIXED]),
        ((1, 30, 4), {}, [OPERATOR, "/opt/kwasm/bin", *FIXED]),
        ((1, 30, 6), {}, [OPERATOR, "/opt/kwasm/bin", *SERVICE]),
        (None, {"PATH": "/opt/bin:$PATH::bin:/opt/bin"}, [OPERATOR, "/opt/kwasm/bin", "/opt/bin"]),
        (None, {"PATH": ""}, [OPERATOR, "/opt/kwasm/bin"]),
    ],
)
def test_where_programs_are_looked_for(
    tmp_path: Path, version: tuple[int, ...] | None, environment: dict[str, str], folders: list[str]
) -> None:
    assert folders_of(HostFS(str(tmp_path), live=False), version, environment) == folders


@pytest.mark.parametrize(
    ("links", "environment", "folders"),
    [
        # Debian and Fedora 41; Fedora 42; Arch.
        ({"bin": "usr/bin", "sbin": "usr/sbin"}, {}, SERVICE[:4]),
        (
            {"bin": "usr/bin", "sbin": "usr/sbin", "usr/sbin": "bin", "usr/local/sbin": "bin"},
            {},
            ["/usr/local/bin", "/usr/bin"],
        ),
        (
            {"bin": "usr/bin", "sbin": "usr/bin", "usr/sbin": "bin"},
            {},
            ["/usr/local/sbin", "/usr/local/bin", "/usr/bin"],
        ),
        ({"usr/sbin": "/opt/sbin"}, {}, SERVICE),
        # What somebody set is searched as it stands.
        ({"usr/sbin": "bin"}, {"PATH": "/usr/sbin:/usr/bin"}, ["/usr/sbin", "/usr/bin"]),
    ],
)
def test_links_among_the_folders_of_services(
    tmp_path: Path, links: dict[str, str], environment: dict[str, str], folders: list[str]
) -> None:
    for folder in ("usr/bin", "usr/local/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    assert folders_of(HostFS(str(tmp_path), live=False), None, environment)[2:] == folders


def test_what_is_found(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)

    def put(path: str, mode: int = 0o755) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        file.chmod(mode)

    assert found_on(host, None, {}) == {}
    put("usr/bin/nvidia-container-runtime", 0o644)
    assert found_on(host, None, {}) == {}
    put("usr/bin/nvidia-container-runtime")
    put("usr/bin/nvidia-container-runtime.cdi")
    found = {"nvidia": "/usr/bin/nvidia-container-runtime", "nvidia-cdi": "/usr/bin/nvidia-container-runtime.cdi"}
    assert found_on(host, None, {}) == found
    assert set(found_on(host, (1, 30, 4), {})) == {"nvidia"}
    put("usr/local/nvidia/toolkit/nvidia-container-runtime")
    put("usr/local/nvidia/toolkit/nvidia-container-runtime-experimental")
    assert found_on(host, None, {}) == {
        "nvidia": f"{OPERATOR}/nvidia-container-runtime",
        "nvidia-experimental": f"{OPERATOR}/nvidia-container-runtime-experimental",
        "nvidia-cdi": "/usr/bin/nvidia-container-runtime.cdi",
    }
    put("opt/nv/nvidia-container-runtime.cdi")
    assert found_on(host, None, {"PATH": "/opt/nv/:/usr/bin"})["nvidia-cdi"] == "/opt/nv/nvidia-container-runtime.cdi"
