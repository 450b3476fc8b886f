# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.configure import PROFILES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.settings import (
    BY_PATH,
    SETTINGS,
    TABLES,
    check_value,
    default_of,
    effective,
    format_value,
    masked,
    unsafe_settings,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import (
    DEFAULT,
    OLD,
    PATH,
    SAMPLES,
)


def settings_of(text: str) -> dict[str, t.Any]:
    return effective(TomlDocument.from_bytes(PATH, text.encode()).data)


def test_every_setting_stands_once_and_has_a_default_that_it_may_have() -> None:
    assert len(BY_PATH) == len(SETTINGS) == len({setting.key for setting in SETTINGS})
    assert set(SAMPLES) == {setting.key for setting in SETTINGS}
    assert not TABLES & set(BY_PATH)
    for setting in SETTINGS:
        if setting.default is not None:
            assert check_value(setting, setting.default) == setting.default
    for settings in PROFILES.values():
        assert all(check_value(BY_PATH[tuple(key.split("."))], value) == value for key, value in settings.items())


def test_no_setting_has_a_name_that_hides_its_value() -> None:
    settings = {key: values[0] for key, values in SAMPLES.items()}
    assert masked(settings) == settings


# A value, and how a result holds it.
SHOWN: list[tuple[t.Any, t.Any]] = [
    (["API_TOKEN=a b;c", "B=1"], ["API_TOKEN=********", "B=1"]),
    ("https_proxy=http://bob:x@proxy:1", "https_proxy=http://********@proxy:1"),
    ("http://bob:x@proxy", "http://********@proxy"),
    (
        {"own": {"password": "x", "n": 1}, "a.secret-key": ["x"]},
        {"own": {"password": "********", "n": 1}, "a.secret-key": "********"},
    ),
    ({"use-token": True, "token": None, "secrets.x": 1.5}, {"use-token": True, "token": None, "secrets.x": 1.5}),
    (5, 5),
]


@pytest.mark.parametrize(("value", "expected"), SHOWN)
def test_secrets_are_hidden(value: t.Any, expected: t.Any) -> None:
    assert masked(value) == expected


def test_no_password_is_spelled() -> None:
    assert format_value(["http://bob:x@proxy", True]) == "[http://********@proxy, true]"


@pytest.mark.parametrize("text", ["", DEFAULT, "[nvidia-container-cli]\n", "\ufeff#debug = 1\n".lstrip("\ufeff")])
def test_a_file_of_defaults_amounts_to_them(text: str) -> None:
    found = settings_of(text)
    assert list(found) == [setting.key for setting in SETTINGS]
    assert found["accept-nvidia-visible-devices-envvar-when-unprivileged"] is True
    assert found["accept-nvidia-visible-devices-as-volume-mounts"] is False
    assert found["features.allow-ldconfig-from-container"] is False
    assert found["nvidia-container-runtime.runtimes"] == ["runc", "crun"]
    # A log that is commented out is not written.
    assert found["nvidia-container-cli.debug"] is None
    assert found["swarm-resource"] is None
    assert found["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig"
    assert unsafe_settings(found) == []


def test_values_of_the_file_win_whether_or_not_they_are_known() -> None:
    found = settings_of(OLD + "[nvidia-container-runtime.new]\nx = 1.5\nwhen = [2026-08-21]\n[more]\n")
    assert found["nvidia-container-runtime.runtimes"] == ["docker-runc", "runc"]
    assert found["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"
    assert found["nvidia-container-runtime.new.x"] == 1.5
    assert found["nvidia-container-runtime.new.when"] == ["2026-08-21"]
    assert "more" not in found
    assert json.loads(json.dumps(found)) == found


def test_what_is_of_another_kind_is_told_as_it_is() -> None:
    found = settings_of("nvidia-container-cli = 5\nswarm-resource = 1\n[nvidia-ctk.path]\nx = 07:30:00\n")
    assert found["nvidia-container-cli"] == 5
    assert found["swarm-resource"] == 1
    assert found["nvidia-ctk.path.x"] == datetime.time(7, 30).isoformat()
    assert found["nvidia-ctk.path"] == "nvidia-ctk"


def test_the_default_of_ldconfig_is_the_one_of_the_host() -> None:
    setting = BY_PATH["nvidia-container-cli", "ldconfig"]
    assert default_of(setting, real_ldconfig=False) == "@/sbin/ldconfig"
    assert effective({}, real_ldconfig=True)[setting.key] == default_of(setting, real_ldconfig=True)
    assert effective({}, real_ldconfig=True)[setting.key] == "@/sbin/ldconfig.real"


def test_effective_settings_are_nobody_else_s() -> None:
    effective({})["nvidia-container-cli.environment"].append("A=1")
    assert effective({})["nvidia-container-cli.environment"] == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("features.allow-ldconfig-from-container", True, "allow-ldconfig-from-container is true: an ldconfig"),
        ("features.allow-cuda-compat-libs-from-container", True, "is true: libraries that come from an image"),
        ("features.ignore-imex-channel-requests", True, "ignore-imex-channel-requests is true: "),
        ("nvidia-container-cli.ldconfig", "/sbin/ldconfig", "ldconfig is /sbin/ldconfig: .*CVE-2024-0136"),
        ("nvidia-container-cli.no-cgroups", True, "no-cgroups is true: in legacy mode"),
    ],
)
def test_what_is_unsafe_is_told(key: str, value: t.Any, words: str) -> None:
    import re  # noqa: PLC0415

    safe = effective({})
    (said,) = unsafe_settings({**safe, key: value})
    assert said.startswith(key)
    assert re.search(words, said)
    assert unsafe_settings({**safe, key: 1 if value is True else "@/x"}) == []
    assert unsafe_settings({}) == []
