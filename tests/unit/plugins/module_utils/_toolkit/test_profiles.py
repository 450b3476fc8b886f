# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.configure import SettingsRequest

LEVEL = ("nvidia-container-runtime", "log-level")
DEBUG = ("nvidia-container-runtime", "debug")
CLI_DEBUG = ("nvidia-container-cli", "debug")
CGROUPS = ("nvidia-container-cli", "no-cgroups")


@pytest.mark.parametrize(
    "settings",
    [
        {"nvidia-container-runtime.log-level": "debug", "nvidia-container-runtime.modes.cdi.spec-dirs": ["/etc/cdi"]},
        {"nvidia-container-runtime": {"log-level": "debug", "modes": {"cdi": {"spec-dirs": ["/etc/cdi"]}}}},
        {"nvidia-container-runtime": {"log-level": "debug", "modes.cdi.spec-dirs": ["/etc/cdi"]}},
        {
            "nvidia-container-runtime.modes": {"cdi.spec-dirs": ["/etc/cdi"]},
            "nvidia-container-runtime.log-level": "debug",
        },
        {
            "nvidia-container-runtime": {"log-level": "debug", "modes": {}},
            "nvidia-container-runtime.log-level": "debug",
            "nvidia-container-runtime.modes.cdi": {"spec-dirs": ["/etc/cdi"]},
        },
    ],
    ids=["dotted", "nested", "mixed", "mixed the other way", "twice the same"],
)
def test_all_forms_mean_the_same(settings: dict[str, t.Any]) -> None:
    asked = SettingsRequest(settings).values()
    assert asked == {LEVEL: "debug", ("nvidia-container-runtime", "modes", "cdi", "spec-dirs"): ["/etc/cdi"]}


def test_words_are_made_what_they_mean() -> None:
    assert SettingsRequest(
        {"features": {"disable-cuda-compat-lib-hook": "yes"}, "disable-require": "False"}
    ).values() == {
        ("features", "disable-cuda-compat-lib-hook"): True,
        ("disable-require",): False,
    }


def test_nothing_is_asked_by_default() -> None:
    assert SettingsRequest({}).values() == {}
    assert SettingsRequest({"features": {}}).values() == {}


def test_profiles() -> None:
    assert SettingsRequest({}, profile="rootless").values() == {CGROUPS: True}
    assert SettingsRequest({}, profile="kubernetes_hardened").values() == {
        ("accept-nvidia-visible-devices-as-volume-mounts",): True,
        ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    }


def test_debug() -> None:
    assert SettingsRequest({}, debug=True).values() == {
        CLI_DEBUG: "/var/log/nvidia-container-toolkit.log",
        DEBUG: "/var/log/nvidia-container-runtime.log",
        LEVEL: "debug",
    }
    assert SettingsRequest({}, debug=True).debug_settings_to_reset() == {}
    assert SettingsRequest({}).debug_settings_to_reset() == {}


def test_no_debug_is_for_what_debug_would_set() -> None:
    request = SettingsRequest({"nvidia-container-runtime.debug": "/data/runtime.log"}, debug=False)
    assert request.values() == {DEBUG: "/data/runtime.log"}
    assert request.debug_settings_to_reset() == {
        CLI_DEBUG: ("/var/log/nvidia-container-toolkit.log",),
        LEVEL: ("debug", "trace"),
    }


def test_settings_win() -> None:
    request = SettingsRequest(
        {
            "nvidia-container-cli": {"no-cgroups": None, "debug": "/data/cli.log"},
            "nvidia-container-runtime.debug": None,
        },
        profile="rootless",
        debug=True,
    )
    assert request.values() == {CGROUPS: None, CLI_DEBUG: "/data/cli.log", DEBUG: None, LEVEL: "debug"}


# What is asked, and what is said of it.
REFUSED: dict[str, tuple[dict[t.Any, t.Any], str]] = {
    "misspelled": (
        {"nvidia-container-runtime.log-levl": "debug"},
        "is not a setting of the NVIDIA Container Toolkit. The nearest that there is: nvidia-container-runtime.log-",
    ),
    "underscores": ({"disable_require": True}, "The nearest that there is: disable-require."),
    "without its table": ({"log-level": "debug"}, "The nearest that there is: nvidia-container-runtime.log-level."),
    "in another table": ({"nvidia-ctk": {"no-cgroups": True}}, "there is: nvidia-container-cli.no-cgroups."),
    "several of that name": (
        {"nvidia-container-runtime-hook.debug": "/x"},
        "The nearest that there is: nvidia-container-runtime.debug.",
    ),
    "a feature": ({"features": {"disable-cuda-compat": True}}, "is: features.disable-cuda-compat-lib-hook."),
    "far from all": ({"zzz": {"yyy": 1}}, "zzz.yyy is not a setting of the NVIDIA Container Toolkit. Correct it"),
    "null": ({"zzz": None}, "zzz is not a setting"),
    "an empty table": ({"zzz": {}}, "zzz is not a setting"),
    "twice": (
        {"nvidia-container-cli.no-cgroups": True, "nvidia-container-cli": {"no-cgroups": False}},
        "nvidia-container-cli.no-cgroups is there twice, with different values",
    ),
    "twice, once null": (
        {"nvidia-container-cli.no-cgroups": None, "nvidia-container-cli": {"no-cgroups": False}},
        "nvidia-container-cli.no-cgroups is there twice",
    ),
    "a table that is a value": ({"nvidia-container-runtime": "debug"}, "nvidia-container-runtime is a table"),
    "a table that is null": ({"features": None}, "features is a table, but its value is null."),
    "a value that is a table": ({"swarm-resource": {"x": 1}}, "swarm-resource is a dictionary, but should be a string"),
    "inside a value": ({"swarm-resource.x": 1}, "swarm-resource.x cannot be: what it would be in is no table"),
    "no name": ({"": 1}, "settings: '' is not the name of a setting"),
    "half a name": ({"nvidia-container-cli": {".debug": 1}}, "'nvidia-container-cli..debug' is not the name"),
    "no text": ({5: 1}, "settings: '5' is not the name of a setting"),
    "a wrong value": ({"nvidia-container-runtime": {"mode": "x"}}, "nvidia-container-runtime.mode is 'x', but should"),
}


@pytest.mark.parametrize(("settings", "words"), list(REFUSED.values()), ids=list(REFUSED))
def test_what_is_refused(settings: dict[str, t.Any], words: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        SettingsRequest(settings).values()
    assert words in str(raised.value)
    assert str(raised.value).startswith("settings: ")


def test_a_new_feature_is_a_switch() -> None:
    settings = {"features": {"new": "yes", "old": "False", "other": None}}
    assert SettingsRequest(settings, allow_unknown=True).values() == {
        ("features", "new"): True,
        ("features", "old"): False,
        ("features", "other"): None,
    }
    with pytest.raises(NvidiaError, match=r"features\.new is not a setting"):
        SettingsRequest(settings).values()


def test_unknown_settings_may_be_allowed() -> None:
    settings = {"zzz": {"yyy": [1], "x": {}, "n": None}, "nvidia-container-cli.new": 2}
    assert SettingsRequest(settings, allow_unknown=True).values() == {
        ("zzz", "yyy"): [1],
        ("zzz", "x"): {},
        ("zzz", "n"): None,
        ("nvidia-container-cli", "new"): 2,
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"a": 1, "a.b": 2}, "a is given both as a value and as a table, with a.b in it"),
        ({"swarm-resource.x": 1}, "what it would be in is no table"),
        ({"nvidia-container-cli": 1}, "nvidia-container-cli is a table"),
        ({"nvidia-container-cli.debug": 1}, "nvidia-container-cli.debug is 1, but should be a string"),
        ({"a": [None]}, "a holds what TOML cannot"),
        ({"features.new": 1}, "features.new is 1, but should be true or false"),
        ({"features": {"new": {"x": True}}}, "features.new is a dictionary, but should be true or false"),
        ({"features.new.x": True}, "what it would be in is no table"),
    ],
)
def test_but_not_everything(settings: dict[str, t.Any], words: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        SettingsRequest(settings, allow_unknown=True).values()
    assert words in str(raised.value)
