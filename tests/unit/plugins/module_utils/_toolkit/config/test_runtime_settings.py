# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.runtime_settings import (
    RuntimeSettings,
    mode_of_program,
    read,
    settings_of,
)

if t.TYPE_CHECKING:
    from pathlib import Path


def test_settings() -> None:
    data: dict[str, t.Any] = {
        "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
        "nvidia-container-runtime": {"mode": "cdi", "modes": {"cdi": {"spec-dirs": ["/run/x"]}}},
        "foreign": 1,
    }
    found = settings_of(data)
    assert found == RuntimeSettings("cdi", accept_variable=False, spec_dirs=("/run/x",))
    assert settings_of({"nvidia-container-runtime": {"mode": 1}}) == settings_of({}) == RuntimeSettings()


@pytest.mark.parametrize(
    ("paths", "folders"),
    [
        (("/srv/cdi/", "/srv/cdi", "/b"), ("/srv/cdi", "/b")),
        (("srv/cdi", "/b"), ("/b",)),
        (("srv/cdi",), ("/etc/cdi", "/var/run/cdi")),
        ((), ("/etc/cdi", "/var/run/cdi")),
    ],
)
def test_cdi_folders(paths: tuple[str, ...], folders: tuple[str, ...]) -> None:
    assert RuntimeSettings(spec_dirs=paths).cdi_folders == folders


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        ("/usr/bin/nvidia-container-runtime.cdi", "cdi"),
        ("nvidia-container-runtime.legacy", "legacy"),
        ("/usr/bin/nvidia-container-runtime", None),
        ("", None),
    ],
)
def test_mode_of_program(program: str, mode: str | None) -> None:
    assert mode_of_program(program) == mode


def test_read(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    assert read(host, "/config.toml") == RuntimeSettings()
    (tmp_path / "config.toml").write_text("nvidia-container-cli.root = '/a'")
    assert read(host, "/config.toml") == RuntimeSettings(driver_root="/a")
    (tmp_path / "config.toml").write_text("nvidia-container-cli.root = a")
    with pytest.raises(ConfigurationError, match=r"^/config\.toml, line 1"):
        read(host, "/config.toml")
