# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.settings import (
    BY_PATH,
    check_unknown_value,
    check_value,
    invalid_values,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import DEFAULT, OLD, SAMPLES

CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"


def check(key: str, value: t.Any) -> t.Any:
    return check_value(BY_PATH[tuple(key.split("."))], value)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in SAMPLES.items() for value in values])
def test_what_is_right_stays_as_it_is(key: str, value: t.Any) -> None:
    assert check(key, value) == value
    assert isinstance(check(key, value), type(value))


@pytest.mark.parametrize(
    ("word", "value"), [("True", True), ("yes", True), ("true", True), ("False", False), ("NO", False)]
)
def test_words_of_templates_are_booleans(word: str, value: bool) -> None:
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
    (f"{RUNTIME}.modes.cdi.annotation-prefixes", []),
    (f"{RUNTIME}.modes.legacy.cuda-compat-mode", "mount"),
]


@pytest.mark.parametrize(("key", "value"), RIGHT)
def test_more_that_is_right(key: str, value: t.Any) -> None:
    assert check(key, value) == value


# Key, value, and what is said of it.
WRONG: list[tuple[str, t.Any, str]] = [
    ("disable-require", "maybe", "'maybe', but should be true or false"),
    ("disable-require", "", "'', but should be true or false"),
    ("disable-require", 1, "1, but should be true or false"),
    ("disable-require", "1", "'1', but should be true or false"),
    ("disable-require", [True], "[true], but should be true or false"),
    ("swarm-resource", True, "true, but should be a string"),
    ("swarm-resource", 5, "5, but should be a string"),
    ("swarm-resource", "A-B", "'A-B', but should be the name of an environment variable"),
    ("swarm-resource", "A,,B", "but should be the name of an environment variable"),
    ("supported-driver-capabilities", "compute,gpu", "'compute,gpu', but should be all, or some of compat32,compute,"),
    ("supported-driver-capabilities", "compute, video", "with commas and without blanks"),
    ("supported-driver-capabilities", "", "'', but should be a string that is not empty"),
    (f"{CLI}.debug", "~/cli.log", "'~/cli.log', but should be an absolute path"),
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
    (f"{CLI}.environment", "A=1", "a value that is not shown, but should be a list of strings"),
    (f"{CLI}.environment", ["A"], "a value that is not shown, but should be NAME=value"),
    (f"{CLI}.environment", ["A=1", 2], "a list that is not shown, but should be a list of strings"),
    (f"{CLI}.environment", ["A=1", None], "a list of strings"),
    (f"{RUNTIME}.log-level", "DEBUG", "one of panic, fatal, error, warn, warning, info, debug, trace"),
    (f"{RUNTIME}.mode", "atuo", "'atuo', but should be one of auto, legacy, cdi, csv, jit-cdi"),
    (f"{RUNTIME}.runtimes", [], "[], but should be a list of at least one"),
    (f"{RUNTIME}.runtimes", ["runc", ""], "'', but should be a string that is not empty"),
    (f"{RUNTIME}.runtimes", ["./runc"], "'./runc', but should be an absolute path or the name of a program"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com", "VENDOR/CLASS"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com/gpu=0", "VENDOR/CLASS"),
    (f"{RUNTIME}.modes.cdi.spec-dirs", ["etc/cdi"], "'etc/cdi', but should be an absolute path"),
    (f"{RUNTIME}.modes.csv.mount-spec-path", "csv", "an absolute path"),
    (f"{RUNTIME}.modes.legacy.cuda-compat-mode", "true", "one of ldconfig, mount, disabled, hook"),
    ("nvidia-ctk.path", "../nvidia-ctk", "an absolute path or the name of a program"),
    ("features.disable-cuda-compat-lib-hook", 0, "0, but should be true or false"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG)
def test_what_is_wrong_is_said_with_what_would_be_right(key: str, value: t.Any, words: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        check(key, value)
    assert str(raised.value).startswith(f"settings: {key} is ")
    assert words in str(raised.value)
    assert str(raised.value).endswith("Nothing was changed.")


@pytest.mark.parametrize("value", ["HUNTER2", ["hunter2"], {"x": "hunter2"}, ["A=hunter2", 5], ["A=hunter2\n"]])
def test_no_word_of_an_environment_is_told(value: t.Any) -> None:
    with pytest.raises(NvidiaError) as raised:
        check(f"{CLI}.environment", value)
    assert "hunter2" not in str(raised.value).lower()


def test_no_password_is_told() -> None:
    with pytest.raises(NvidiaError) as raised:
        check(f"{CLI}.root", "http://bob:hunter2@x/")
    assert "http://********@x/" in str(raised.value)
    with pytest.raises(NvidiaError) as raised:
        check("swarm-resource", ["password=hunter2"])
    assert "[password=********]" in str(raised.value)


# What a person wrote, and what is said of it.
UNFIT: list[tuple[str, str]] = [
    (f"{CLI} = 5", f"line 1, column 1: {CLI} is 5, but should be a table. The toolkit cannot use that."),
    (f'{CLI} = ""', f"{CLI} is '', but should be a table."),
    (f"{CLI} = false", f"{CLI} is false, but should be a table."),
    (f"{CLI} = []", f"{CLI} is [], but should be a table."),
    (f"[{RUNTIME}]\nmodes = 0", f"line 2, column 1: {RUNTIME}.modes is 0, but should be a table."),
    (f'[{RUNTIME}]\nmode = "cdii"', "is 'cdii', but should be one of auto, legacy, cdi, csv, jit-cdi."),
    (f'[{RUNTIME}]\nmode = ""', "is '', but should be a string that is not empty."),
    (f'[{RUNTIME}]\nlog-level = "DEBUGG"', "is 'debugg', but should be one of panic, "),
    (f"[{RUNTIME}]\nruntimes = []", f"{RUNTIME}.runtimes is [], but should be a list of at least one."),
    (
        f'[{CLI}]\nenvironment = ["hunter2"]',
        f"{CLI}.environment is a value that is not shown, but should be NAME=value.",
    ),
    (f"[{CLI}]\nno-cgroups = 1", f"{CLI}.no-cgroups is 1, but should be true or false."),
]


@pytest.mark.parametrize(("text", "words"), UNFIT)
def test_what_a_person_wrote_wrong_is_said_with_its_place(text: str, words: str) -> None:
    (said,) = invalid_values(TomlDocument.from_bytes("/etc/x.toml", text.encode()))
    assert said.startswith("/etc/x.toml, line ")
    assert words in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "text",
    ["", f'[{RUNTIME}]\nlog-level = "Debug"\ndebug = ""', "[features]\nnew = 5", "swarm-resource = ''", DEFAULT, OLD],
)
def test_what_the_toolkit_takes_is_right(text: str) -> None:
    assert invalid_values(TomlDocument.from_bytes("/etc/x.toml", text.encode())) == []


@pytest.mark.parametrize("value", [1, -(2**63), 1.5, True, "", "x\n", [], [1, "x", [True]], {"a": {"b": [1]}}])
def test_an_unknown_setting_may_be_all_that_toml_has(value: t.Any) -> None:
    assert check_unknown_value("new.key", value) == value


@pytest.mark.parametrize("value", [None, 2**63, [1, None], [{"a": None}], {"a": b"x"}])
def test_what_toml_has_not_is_refused(value: t.Any) -> None:
    with pytest.raises(NvidiaError, match=r"settings: new\.key.* holds what TOML cannot"):
        check_unknown_value("new.key", value)
