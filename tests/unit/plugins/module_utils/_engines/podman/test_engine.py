# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Podman as an engine: what is found on a host. It has no daemon."""

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import CONFIG_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman.config import DROP_IN, MAIN
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.podman.engine import PODMAN
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.hook_hosts import HookHost

if t.TYPE_CHECKING:
    from pathlib import Path


def test_registry() -> None:
    assert Target("podman").load() is PODMAN
    assert os.path.dirname(DROP_IN) in CONFIG_DIRS


def test_inspect(tmp_path: Path) -> None:
    host = HookHost(tmp_path).host
    found = PODMAN.inspect(host, "any.service")
    assert found[:6] == ("/usr/bin/podman", None, "", "", MAIN, None)
    assert found.warnings() == []
    assert PODMAN.live(host, found) is None
    assert PODMAN.containers_stopped_by_restart(host, found) == []
    assert PODMAN.inspect(host._replace(root=str(tmp_path / "tmp"))).binary is None


@pytest.mark.parametrize(("version", "cdi"), [(None, None), ((3, 4), False), ((4, 0, 9), False), ((4, 1), True)])
def test_configured(version: tuple[int, ...] | None, cdi: bool | None) -> None:
    state = PODMAN.configured(FakeFiles().context(MAIN, version))
    assert (state.paths(), state.default_runtime, state.cdi) == ({}, None, cdi)
    assert not PODMAN.defines_runtime("nvidia", state, version)


@pytest.mark.parametrize(
    ("version", "text", "folders"),
    [
        ((5, 8), "[engine]\ncdi_spec_dirs = ['/opt/cdi']\n", ("/opt/cdi",)),
        ((5, 8), "[engine]\ncdi_spec_dirs = ['/opt/cdi', {append = true}]\n", ("/etc/cdi", "/var/run/cdi", "/opt/cdi")),
        ((5, 5), "", ("/etc/cdi",)),
        # These releases ignore the setting, or may ignore it.
        ((5, 4), "[engine]\ncdi_spec_dirs = ['/opt/cdi']\n", None),
        (None, "[engine]\ncdi_spec_dirs = ['/opt/cdi']\n", None),
    ],
)
def test_directories_of_specifications(
    version: tuple[int, ...] | None, text: str, folders: tuple[str, ...] | None
) -> None:
    assert PODMAN.configured(FakeFiles({MAIN: text}).context(MAIN, version)).cdi_folders == folders


@pytest.mark.parametrize("version", [None, (4, 3), (5, 8), (6,)])
def test_the_inspection_finds_a_file_that_podman_cannot_parse(version: tuple[int, ...] | None) -> None:
    with pytest.raises(ConfigurationError, match=r"containers\.conf, line 1"):
        PODMAN.configured(FakeFiles({MAIN: "[engine\n"}).context(MAIN, version))
