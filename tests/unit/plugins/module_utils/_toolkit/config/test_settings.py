# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime
import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import PROFILES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.settings import (
    BY_PATH,
    SETTINGS,
    TABLES,
    check_unknown_value,
    check_value,
    default_of,
    effective,
    format_value,
    invalid_values,
    masked,
    refused_values,
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


def test_settings_are_unique_and_have_valid_defaults() -> None:
    assert len(BY_PATH) == len(SETTINGS) == len({setting.key for setting in SETTINGS})
    assert set(SAMPLES) == {setting.key for setting in SETTINGS}
    assert not TABLES & set(BY_PATH)
    for setting in SETTINGS:
        if setting.default is not None:
            assert check_value(setting, setting.default) == setting.default
    for settings in PROFILES.values():
        assert all(check_value(BY_PATH[tuple(key.split("."))], value) == value for key, value in settings.items())


def test_no_setting_name_is_masked() -> None:
    settings = {key: values[0] for key, values in SAMPLES.items()}
    assert masked(settings) == settings


# A value and the masked value.
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


def test_format_value_masks_passwords() -> None:
    assert format_value(["http://bob:x@proxy", True]) == "[http://********@proxy, true]"


@pytest.mark.parametrize("text", ["", DEFAULT, "[nvidia-container-cli]\n", "\ufeff#debug = 1\n".lstrip("\ufeff")])
def test_defaults_are_effective(text: str) -> None:
    found = settings_of(text)
    assert list(found) == [setting.key for setting in SETTINGS]
    assert found["accept-nvidia-visible-devices-envvar-when-unprivileged"] is True
    assert found["accept-nvidia-visible-devices-as-volume-mounts"] is False
    assert found["features.allow-ldconfig-from-container"] is False
    assert found["nvidia-container-runtime.runtimes"] == ["runc", "crun"]
    # A commented log file is not used.
    assert found["nvidia-container-cli.debug"] is None
    assert found["swarm-resource"] is None
    assert found["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig"
    assert unsafe_settings(found) == []


def test_values_of_the_file_have_precedence() -> None:
    found = settings_of(OLD + "[nvidia-container-runtime.new]\nx = 1.5\nwhen = [2026-08-21]\n[more]\n")
    assert found["nvidia-container-runtime.runtimes"] == ["docker-runc", "runc"]
    assert found["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"
    assert found["nvidia-container-runtime.new.x"] == 1.5
    assert found["nvidia-container-runtime.new.when"] == ["2026-08-21"]
    assert "more" not in found
    assert json.loads(json.dumps(found)) == found


def test_reports_values_of_other_types() -> None:
    found = settings_of("nvidia-container-cli = 5\nswarm-resource = 1\n[nvidia-ctk.path]\nx = 07:30:00\n")
    assert found["nvidia-container-cli"] == 5
    assert found["swarm-resource"] == 1
    assert found["nvidia-ctk.path.x"] == datetime.time(7, 30).isoformat()
    assert found["nvidia-ctk.path"] == "nvidia-ctk"


def test_default_ldconfig() -> None:
    setting = BY_PATH["nvidia-container-cli", "ldconfig"]
    assert default_of(setting) == "@/sbin/ldconfig"
    defaults = {setting.key: "@/sbin/ldconfig.real"}
    assert effective({}, defaults)[setting.key] == default_of(setting, defaults) == "@/sbin/ldconfig.real"


def test_effective_settings_are_copies() -> None:
    effective({})["nvidia-container-cli.environment"].append("A=1")
    assert effective({})["nvidia-container-cli.environment"] == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "features.allow-ldconfig-from-container",
            True,
            "allow-ldconfig-from-container is true: ldconfig from an image",
        ),
        ("features.allow-cuda-compat-libs-from-container", True, "is true: libraries from an image"),
        ("features.ignore-imex-channel-requests", True, "ignore-imex-channel-requests is true: "),
        ("nvidia-container-cli.ldconfig", "/sbin/ldconfig", "ldconfig is /sbin/ldconfig: .*CVE-2024-0136"),
        ("nvidia-container-cli.no-cgroups", True, "no-cgroups is true: in legacy mode"),
    ],
)
def test_unsafe_settings(key: str, value: t.Any, message: str) -> None:
    import re  # noqa: PLC0415

    safe = effective({})
    (error,) = unsafe_settings({**safe, key: value})
    assert error.startswith(key)
    assert re.search(message, error)
    assert unsafe_settings({**safe, key: 1 if value is True else "@/x"}) == []
    assert unsafe_settings({}) == []


# -- Values ----------------------------------------------------------------------------------------------------------

CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"


def check(key: str, value: t.Any) -> t.Any:
    return check_value(BY_PATH[tuple(key.split("."))], value)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in SAMPLES.items() for value in values])
def test_valid_values(key: str, value: t.Any) -> None:
    assert check(key, value) == value
    assert isinstance(check(key, value), type(value))


@pytest.mark.parametrize(
    ("word", "value"), [("True", True), ("yes", True), ("true", True), ("False", False), ("NO", False)]
)
def test_converts_strings_to_booleans(word: str, value: bool) -> None:
    assert check("disable-require", word) is value


RIGHT: list[tuple[str, t.Any]] = [
    ("supported-driver-capabilities", "video"),
    (f"{CLI}.ldconfig", "/sbin/ldconfig"),
    (f"{CLI}.debug", "/dev/stderr"),
    (f"{CLI}.user", "root"),
    (f"{CLI}.user", "0"),
    (f"{CLI}.user", "svc_gpu-1.x$:44"),
    (f"{CLI}.path", "/run/nvidia toolkit/cli"),
    (f"{CLI}.environment", ["HTTP_PROXY=http://x:1/?a=b", "B="]),
    (f"{RUNTIME}.log-level", "trace"),
    (f"{RUNTIME}.mode", "jit-cdi"),
    (f"{RUNTIME}.modes.cdi.default-kind", "a/b"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com/gpu.coherent"),
    (f"{RUNTIME}.modes.cdi.annotation-prefixes", []),
    (f"{RUNTIME}.modes.legacy.cuda-compat-mode", "mount"),
]


@pytest.mark.parametrize(("key", "value"), RIGHT)
def test_more_valid_values(key: str, value: t.Any) -> None:
    assert check(key, value) == value


# Key, value, and error.
WRONG: list[tuple[str, t.Any, str]] = [
    ("disable-require", "maybe", "'maybe', but must be true or false"),
    ("disable-require", "", "'', but must be true or false"),
    ("disable-require", 1, "1, but must be true or false"),
    ("disable-require", "1", "'1', but must be true or false"),
    ("disable-require", [True], "[true], but must be true or false"),
    ("swarm-resource", True, "true, but must be a string"),
    ("swarm-resource", 5, "5, but must be a string"),
    ("swarm-resource", "A-B", "'A-B', but must be names of environment variables"),
    ("swarm-resource", "A,,B", "but must be names of environment variables"),
    ("supported-driver-capabilities", "compute,gpu", "'compute,gpu', but must be all, or some of compat32,compute,"),
    ("supported-driver-capabilities", "compute, video", "separated by commas without spaces"),
    ("supported-driver-capabilities", "", "'', but must be a string that is not empty"),
    (f"{CLI}.debug", "~/cli.log", "'~/cli.log', but must be an absolute path"),
    (f"{CLI}.debug", "cli.log", "an absolute path"),
    (f"{CLI}.debug", "", "a string that is not empty"),
    (f"{CLI}.debug", "/a\nb", "a string without control characters"),
    (f"{CLI}.root", "run/nvidia", "an absolute path"),
    (f"{CLI}.ldconfig", "@sbin/ldconfig", "an absolute path, with @ before it"),
    (f"{CLI}.ldconfig", "ldconfig", "an absolute path, with @ before it"),
    (f"{CLI}.ldconfig", "@", "an absolute path, with @ before it"),
    (f"{CLI}.path", "bin/cli", "an absolute path or the name of a program"),
    (f"{CLI}.path", "~cli", "an absolute path or the name of a program"),
    (f"{CLI}.user", "root:", "USER or USER:GROUP"),
    (f"{CLI}.user", "ro ot", "USER or USER:GROUP"),
    (f"{CLI}.user", "1a", "USER or USER:GROUP"),
    (f"{CLI}.environment", "A=1", "a value that is not shown, but must be a list of strings"),
    (f"{CLI}.environment", ["A"], "a value that is not shown, but must be NAME=value"),
    (f"{CLI}.environment", ["A=1", 2], "a list that is not shown, but must be a list of strings"),
    (f"{CLI}.environment", ["A=1", None], "a list of strings"),
    (f"{RUNTIME}.log-level", "DEBUG", "one of panic, fatal, error, warn, warning, info, debug, trace"),
    (f"{RUNTIME}.mode", "atuo", "'atuo', but must be one of auto, legacy, cdi, csv, jit-cdi"),
    (f"{RUNTIME}.runtimes", [], "[], but must be a list with at least one entry"),
    (f"{RUNTIME}.runtimes", ["runc", ""], "'', but must be a string that is not empty"),
    (f"{RUNTIME}.runtimes", ["./runc"], "'./runc', but must be an absolute path or the name of a program"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com", "VENDOR/CLASS"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com/gpu=0", "VENDOR/CLASS"),
    (f"{RUNTIME}.modes.cdi.spec-dirs", ["etc/cdi"], "'etc/cdi', but must be an absolute path"),
    (f"{RUNTIME}.modes.csv.mount-spec-path", "csv", "an absolute path"),
    (f"{RUNTIME}.modes.legacy.cuda-compat-mode", "true", "one of ldconfig, mount, disabled, hook"),
    ("nvidia-ctk.path", "../nvidia-ctk", "an absolute path or the name of a program"),
    ("features.disable-cuda-compat-lib-hook", 0, "0, but must be true or false"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_invalid_values(key: str, value: t.Any, message: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        check(key, value)
    assert str(raised.value).startswith(f"settings: {key} is ")
    assert message in str(raised.value)


@pytest.mark.parametrize("value", ["HUNTER2", ["hunter2"], {"x": "hunter2"}, ["A=hunter2", 5], ["A=hunter2\n"]])
def test_messages_hide_the_environment(value: t.Any) -> None:
    with pytest.raises(NvidiaError) as raised:
        check(f"{CLI}.environment", value)
    assert "hunter2" not in str(raised.value).lower()


def test_messages_mask_passwords() -> None:
    with pytest.raises(NvidiaError) as raised:
        check(f"{CLI}.root", "http://bob:hunter2@x/")
    assert "http://********@x/" in str(raised.value)
    with pytest.raises(NvidiaError) as raised:
        check("swarm-resource", ["password=hunter2"])
    assert "[password=********]" in str(raised.value)


# The file and the warning.
UNFIT: list[tuple[str, str]] = [
    (f"{CLI} = 5", f"line 1, column 1: {CLI} is 5, but must be a table. Correct the value"),
    (f'{CLI} = ""', f"{CLI} is '', but must be a table."),
    (f"{CLI} = false", f"{CLI} is false, but must be a table."),
    (f"{CLI} = []", f"{CLI} is [], but must be a table."),
    (f"[{RUNTIME}]\nmodes = 0", f"line 2, column 1: {RUNTIME}.modes is 0, but must be a table."),
    (f'[{RUNTIME}]\nmode = "cdii"', "is 'cdii', but must be one of auto, legacy, cdi, csv, jit-cdi."),
    (f'[{RUNTIME}]\nmode = ""', "is '', but must be one of auto, legacy, cdi, csv, jit-cdi."),
    (f'[{RUNTIME}]\nlog-level = "DEBUGG"', "is 'debugg', but must be one of panic, "),
    (f"[{RUNTIME}]\nruntimes = []", f"{RUNTIME}.runtimes is [], but must be a list with at least one entry."),
    (
        f'[{CLI}]\nenvironment = ["hunter2"]',
        f"{CLI}.environment is a value that is not shown, but must be NAME=value.",
    ),
    (f"[{CLI}]\nno-cgroups = 1", f"{CLI}.no-cgroups is 1, but must be true or false."),
]


@pytest.mark.parametrize(("text", "message"), UNFIT)
def test_invalid_values_in_the_file(text: str, message: str) -> None:
    (error,) = map(str, invalid_values(TomlDocument.from_bytes("/etc/x.toml", text.encode())))
    assert error.startswith("/etc/x.toml, line ")
    assert message in error
    assert "hunter2" not in error


@pytest.mark.parametrize(
    "text",
    [
        "",
        f'[{RUNTIME}]\nlog-level = "Debug"\ndebug = ""',
        "[features]\nnew = 5",
        "swarm-resource = ''",
        DEFAULT,
        OLD,
        # The toolkit ignores blanks and empty names.
        "swarm-resource = 'A, B,'",
        "supported-driver-capabilities = 'compute, utility,'",
    ],
)
def test_valid_values_in_the_file(text: str) -> None:
    assert invalid_values(TomlDocument.from_bytes("/etc/x.toml", text.encode())) == []


# The file, the version of the toolkit, and whether its runtime starts containers (read in the sources).
RUNNING: list[tuple[str, str | None, bool]] = [
    (f"{CLI} = 5", None, False),
    (f'[{CLI}]\nload-kmods = "true"', None, False),
    ('[features]\ndisable-imex-channel-creation = "yes"', None, False),
    (f"[{RUNTIME}]\nruntimes = []", None, False),
    (f'[{RUNTIME}]\nmode = "cdii"', None, False),
    (f'[{RUNTIME}]\nmode = "jit-cdi"', None, True),
    (f'[{RUNTIME}]\nmode = "jit-cdi"', "1.18.0", True),
    (f'[{RUNTIME}]\nmode = "jit-cdi"', "1.17.9", False),
    (f'[{CLI}]\nldconfig = "/sbin/ldconfig"', None, False),
    (f'[{CLI}]\nldconfig = ""', None, False),
    (f'[{CLI}]\nldconfig = "/sbin/ldconfig"', "1.17.3", False),
    (f'[{CLI}]\nldconfig = "/sbin/ldconfig"', "1.17.2", True),
    (f'features.allow-ldconfig-from-container = true\n{CLI}.ldconfig = "/sbin/ldconfig"', None, True),
    (f'features.allow-ldconfig-from-container = false\n{CLI}.ldconfig = "/sbin/ldconfig"', None, False),
    (f'[{RUNTIME}]\nlog-level = "loud"', None, True),
    ('supported-driver-capabilities = "fast"', None, True),
]


@pytest.mark.parametrize(("text", "version", "starts"), RUNNING)
def test_values_that_the_runtime_refuses(text: str, version: str | None, starts: bool) -> None:
    document = TomlDocument.from_bytes("/etc/x.toml", text.encode())
    refused = refused_values(document.data, version)
    assert bool(refused) is not starts
    codes = {error.code for error in invalid_values(document, version)}
    assert codes <= {"setting-invalid"} if starts else codes == {"setting-refused"}
    # Such a value has no effect, so it is not unsafe.
    unsafe = unsafe_settings(effective(document.data), refused)
    assert any(message.startswith(f"{CLI}.ldconfig") for message in unsafe) is (starts and "ldconfig =" in text)


@pytest.mark.parametrize("value", [1, -(2**63), 1.5, True, "", "x\n", [], [1, "x", [True]], {"a": {"b": [1]}}])
def test_valid_unknown_values(value: t.Any) -> None:
    assert check_unknown_value("new.key", value) == value


@pytest.mark.parametrize("value", [None, 2**63, [1, None], [{"a": None}], {"a": b"x"}])
def test_invalid_unknown_values(value: t.Any) -> None:
    with pytest.raises(NvidiaError, match=r"TOML cannot store the value of new\.key"):
        check_unknown_value("new.key", value)
