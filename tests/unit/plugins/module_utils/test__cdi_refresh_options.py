# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_options import (
    OPTIONS_FILE,
    options_from_json,
    options_to_json,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError

FULL = CdiOptions(
    path="/etc/cdi/ä.json",
    format="json",
    backend="native",
    mode="nvml",
    request=Request(
        vendor="example.com",
        device_name_strategies=("type-index",),
        device_ids=("0", "1:0"),
        all_device=False,
        driver_root="/run/nvidia/driver",
        feature_flags=("disable-ipc-discoverer",),
        hooks="none",
    ),
    use_nvml=False,
    for_engines=("podman:4.9.3",),
    require_devices=False,
    exclusive=True,
    backup_dir="/var/backups",
)


@pytest.mark.parametrize("options", [CdiOptions(), FULL], ids=["defaults", "all"])
def test_there_and_back(options: CdiOptions) -> None:
    content = options_to_json(options)
    assert options_from_json(OPTIONS_FILE, content) == options
    assert options_to_json(options_from_json(OPTIONS_FILE, content)) == content


def test_what_concerns_only_a_task_is_left_out() -> None:
    options = CdiOptions(state="absent", purge_backups=True)
    assert options_from_json(OPTIONS_FILE, options_to_json(options)) == CdiOptions()


def test_what_is_not_said_is_at_its_default() -> None:
    assert options_from_json(OPTIONS_FILE, b'{"schema": 1, "options": {"mode": "imex"}}') == CdiOptions(mode="imex")


def changed(*path: str, value: t.Any) -> bytes:
    data: t.Any = json.loads(options_to_json(CdiOptions()))
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "line 1"),
        (b"\xff", "not JSON"),
        (b"[]", "not what nvidia_cdi_refresh writes"),
        (b"{}", "not what nvidia_cdi_refresh writes"),
        (changed("more", value=1), "not what nvidia_cdi_refresh writes"),
        (changed("schema", value=2), "another version"),
        (changed("options", "colour", value="red"), "the option colour is not known"),
        (changed("options", "state", value="absent"), "the option state is not known"),
        (changed("options", "request", value=[]), "request is not a dictionary"),
        (changed("options", "request", "vendors", value="x"), "the option vendors is not known"),
        (changed("options", "request", "vendor", value=None), "the option vendor is not of its type"),
        (changed("options", "request", "device_ids", value="0"), "the option device_ids is not of its type"),
        (changed("options", "request", "device_ids", value=[0]), "the option device_ids is not of its type"),
        (changed("options", "exclusive", value="yes"), "the option exclusive is not of its type"),
        (changed("options", "use_nvml", value="yes"), "the option use_nvml is not of its type"),
        (changed("options", "path", value=7), "the option path is not of its type"),
        (changed("options", "mode", value=True), "the option mode is not of its type"),
    ],
)
def test_refusals(content: bytes, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        options_from_json(OPTIONS_FILE, content)
    assert OPTIONS_FILE in str(refused.value)
    assert "nvidia_cdi_refresh again" in str(refused.value)
