# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Versions of the format, and what becomes of ours when somebody moves to another one.

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.containerd_configs import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_containerd import (
    CRI_2,
    Host,
    default,
    runtime,
)

V2, V3 = "version = 2\n", "version = 3\n"
V17, V20, V21 = (1, 7, 24), (2, 0, 0), (2, 1, 9)
RUNC = runtime("runc", SystemdCgroup="true")
FOLDER = "/etc/containerd/conf.d/"
GLOB = f'imports = ["{FOLDER}*.toml"]\n'


@pytest.mark.parametrize(
    ("files", "version", "words"),
    [
        ({MAIN: V3}, V17, r"config.toml, line 1, column 1: containerd 1.7.24 does not support configuration version 3"),
        (
            {MAIN: "version = 4\n"},
            V21,
            r"containerd 2.1.9 does not support configuration version 4. .* containerd 2.3",
        ),
        ({MAIN: "version = 1\n"}, V20, r"config.toml: containerd 2.0.0 ignores the CRI settings .* Add version = 2"),
        (
            {MAIN: "[plugins.cri]\n"},
            V21,
            r"ignores the CRI settings of a file in configuration version 1",
        ),
        (
            {MAIN: V3 + GLOB, DROP_IN: V2},
            V21,
            r"99-nvidia.toml, line 1, column 1: .* version 2, but .* has version 3",
        ),
    ],
)
def test_refuses_versions_that_would_not_be_read(files: t.Any, version: tuple[int, ...], words: str) -> None:
    host = Host(files, version)
    with pytest.raises(NvidiaError, match=words):
        host.present()
    host.absent()
    assert {path: text.decode() for path, text in host.files.content.items()} == files


def test_version_1_in_place() -> None:
    host = Host("# old\n[plugins.cri]\n  # theirs\n", V17)
    host.present(set_as_default=True)
    assert host.effect.main.value("plugins", "cri", "containerd", "default_runtime_name") == "nvidia"
    assert "version" not in host.text()


def test_the_version_of_a_silent_main_file_is_that_of_its_imports() -> None:
    host = Host({MAIN: GLOB, FOLDER + "10.toml": V2 + RUNC}, V21)
    host.present()
    assert host.text() == GLOB + V2
    assert host.drop_in().count(V2) == 1
    host.absent()
    assert host.text() == GLOB


@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
def test_a_downgrade_below_the_version_that_we_chose(mode: str) -> None:
    host = Host("# theirs\n", V21)
    host.present(config_mode=mode)
    assert host.effect.version == 3
    host.version = V17
    removed = Host(dict(host.files.content), V17)
    removed.files.records = dict(host.files.records)
    removed.absent()
    assert removed.files.content == {MAIN: b"# theirs\n"}
    host.present(config_mode=mode)
    assert host.effect.version == 2
    assert not any(b"cri.v1.runtime" in text for text in host.files.content.values())
    host.absent()
    assert host.files.content == {MAIN: b"# theirs\n"}


@pytest.mark.parametrize("mode", ["in_place", "drop_in"])
def test_a_main_file_that_was_migrated_since(mode: str) -> None:
    """As `containerd config migrate` rewrites it."""
    host = Host(V2 + RUNC + default("runc"), V21)
    host.present(config_mode=mode, set_as_default=True)
    migrated = host.text().replace("version = 2", "version = 3")
    host.files.put(MAIN, migrated.replace("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"))
    removed = Host(dict(host.files.content), V21)
    removed.files.records = dict(host.files.records)
    host.present(config_mode=mode)
    assert (list(host.runtimes), host.default) == (["runc", "nvidia"], "nvidia")
    for each in (host, removed):
        each.absent()
        assert (list(each.runtimes), each.default) == (["runc"], "runc")
        assert list(each.files.content) == [MAIN]


def test_our_version_stays_under_what_others_wrote_since() -> None:
    host = Host("", V17)
    host.present()
    host.add(CRI_2 + 'sandbox_image = "theirs"\n')
    host.absent()
    # Without it their table would be one of version 1, which means nothing.
    assert host.effect.main.data["version"] == 2
    assert host.effect.cri() == {"sandbox_image": "theirs"}
