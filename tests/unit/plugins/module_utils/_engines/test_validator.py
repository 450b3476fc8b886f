# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.masking import MASK
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.validator import redact
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit


def hidden(said: str, content: t.Any = None, flags: t.Sequence[str] = ()) -> str:
    unit = Unit("docker.service", "/lib/docker.service", arguments=("/usr/bin/dockerd", *flags))
    return redact(said, "json", [json.dumps(content or {}).encode()], unit)


def test_both_values_of_a_conflict_go_whatever_they_are() -> None:
    said = (
        "the following directives are specified both as a flag and in the configuration file: log-opts: (from flag:"
        " map[splunk-token:hunter2 (x)], from file: map[splunk-token:hunter3]), labels: (from flag:"
        " [a=b], from file: [c])"
    )
    gone = f"(from flag: {MASK}, from file: {MASK})"
    assert hidden(said).endswith(f"configuration file: log-opts: {gone}, labels: {gone}")


@pytest.mark.parametrize(
    "content",
    [
        {"log-opts": {"splunk-token": "hunter2"}},
        {"auths": {"registry": {"x": ["hunter2"]}}},
        {"proxies": {"http-proxy": "http://u:hunter2@proxy"}},
        {"proxies": {"http-proxy": "http://u:hunter2/more@proxy"}},
        {"exec-opts": ["password='hunter2'"]},
    ],
)
def test_what_the_file_hides_is_hidden(content: t.Any) -> None:
    for value in ("hunter2", "http://u:hunter2@proxy", "password=hunter2", 'invalid port ":hunter2" after host'):
        assert "hunter2" not in hidden(f"unable to use {value}: it is bad", content)


def test_secrets_are_hidden_as_they_are_quoted() -> None:
    secret = 'hun"ter\n2'
    assert hidden(f"a {json.dumps(secret)} b", {"password": secret}) == f'a "{MASK}" b'
    assert hidden("token:12345678]", {"token": 12345678}) == f"token:{MASK}]"


def test_a_short_secret_takes_no_words_apart() -> None:
    assert hidden("a bad label 'a'", {"password": "a", "token": ""}) == f"{MASK} bad label '{MASK}'"
    assert hidden("the secretive one", {"password": "secret"}) == f"the {MASK}ive one"


@pytest.mark.parametrize(
    "flags",
    [
        ["--log-opt", "splunk-token=hunter2"],
        ["--log-opt=splunk-token=hunter2"],
        ["--registry-password", "hunter2"],
        ["--registry-password=hunter2"],
    ],
)
def test_what_secret_flags_say_is_hidden(flags: list[str]) -> None:
    assert hidden("cannot parse hunter2", {}, flags) == f"cannot parse {MASK}"
    assert hidden("cannot parse debug", {}, ["--label", "x=debug", "--debug"]) == "cannot parse debug"


def test_toml_is_read_too() -> None:
    content = b'[plugins.x.auth]\npassword = "hunter2"\n'
    assert redact("bad hunter2", "toml", [content], None) == f"bad {MASK}"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_file_that_cannot_be_read_hides_nothing(content: bytes) -> None:
    assert redact("all is bad", "json", [content], None) == "all is bad"
