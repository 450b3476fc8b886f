# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import tempfile
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.masking import MASK
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.validator import redact
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_trees import DAEMON_JSON, ORIGINAL, Tree, live_tree

if t.TYPE_CHECKING:
    from pathlib import Path


def redacted(message: str, content: t.Any = None, flags: t.Sequence[str] = ()) -> str:
    unit = Unit("docker.service", "/lib/docker.service", arguments=("/usr/bin/dockerd", *flags))
    return redact(message, "json", [json.dumps(content or {}).encode()], unit)


def test_redacts_values_of_conflicts() -> None:
    message = (
        "the following directives are specified both as a flag and in the configuration file: log-opts: (from flag:"
        " map[splunk-token:hunter2 (x)], from file: map[splunk-token:hunter3]), labels: (from flag:"
        " [a=b], from file: [c])"
    )
    masked = f"(from flag: {MASK}, from file: {MASK})"
    assert redacted(message).endswith(f"configuration file: log-opts: {masked}, labels: {masked}")


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
def test_redacts_secrets_of_the_file(content: t.Any) -> None:
    for value in ("hunter2", "http://u:hunter2@proxy", "password=hunter2", 'invalid port ":hunter2" after host'):
        assert "hunter2" not in redacted(f"unable to use {value}: it is bad", content)


def test_redacts_quoted_secrets() -> None:
    secret = 'hun"ter\n2'
    assert redacted(f"a {json.dumps(secret)} b", {"password": secret}) == f'a "{MASK}" b'
    assert redacted("token:12345678]", {"token": 12345678}) == f"token:{MASK}]"


def test_redacts_short_secrets_only_as_words() -> None:
    assert redacted("a bad label 'a'", {"password": "a", "token": ""}) == f"{MASK} bad label '{MASK}'"
    assert redacted("the secretive one", {"password": "secret"}) == f"the {MASK}ive one"


@pytest.mark.parametrize(
    "flags",
    [
        ["--log-opt", "splunk-token=hunter2"],
        ["--log-opt=splunk-token=hunter2"],
        ["--registry-password", "hunter2"],
        ["--registry-password=hunter2"],
    ],
)
def test_redacts_secret_flags(flags: list[str]) -> None:
    assert redacted("cannot parse hunter2", {}, flags) == f"cannot parse {MASK}"
    assert redacted("cannot parse debug", {}, ["--label", "x=debug", "--debug"]) == "cannot parse debug"


def test_redacts_secrets_of_toml() -> None:
    content = b'[plugins.x.auth]\npassword = "hunter2"\n'
    assert redact("bad hunter2", "toml", [content], None) == f"bad {MASK}"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_redact_with_invalid_file(content: bytes) -> None:
    assert redact("all is bad", "json", [content], None) == "all is bad"


# -- runs of the validator -------------------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Tree:
    return live_tree(tmp_path)


def test_validates_new_content_with_flags_of_unit(live: Tree) -> None:
    live.write(
        "/lib/systemd/system/docker.service",
        "[Service]\nExecStart=/usr/bin/dockerd --config-file /srv/daemon.json -H fd://\n",
    )
    seen: list[bytes] = []
    answer = live.run

    def run(argv: list[str]) -> tuple[int, str, str]:
        if "--validate" in argv:
            seen.append(live.path(argv[argv.index("--config-file") + 1]).read_bytes())
        return answer(argv)

    live.run = run  # type: ignore[method-assign]
    outcome = live.present(options={"config_path": DAEMON_JSON})
    assert outcome.engine_version == "26.1.5+dfsg1"
    argv = live.commands[-1]
    assert argv[:3] == ["chroot", str(live.root), "/usr/bin/dockerd"]
    assert argv[-2:] == ["-H", "fd://"]
    assert seen == [live.path(DAEMON_JSON).read_bytes()]
    assert not list(live.path("/tmp").iterdir())


def test_refused_content_is_not_written(live: Tree) -> None:
    live.answers["--validate"] = (1, "", "unable to configure: hosts: https://me:secret@h\n")
    for check_mode in (True, False):
        with pytest.raises(NvidiaError, match="docker refuses the new content") as caught:
            live.present(check_mode=check_mode)
        assert "secret" not in str(caught.value)
    assert not live.path(DAEMON_JSON).exists()
    assert live.present(options={"validate": "false"}).changed


def test_message_without_secrets(live: Tree) -> None:
    live.write(DAEMON_JSON, '{"log-opts": {"splunk-token": "hunter2"}}')
    live.write("/lib/systemd/system/docker.service", "[Service]\nExecStart=dockerd --registry-token hunter3\n")
    live.answers["--validate"] = (1, "", "log-opts: (from flag: map[a:hunter4], from file: x) hunter2 hunter3\n")
    with pytest.raises(NvidiaError, match="docker refuses the new content") as caught:
        live.present()
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["mkdtemp", "makedirs"])
def test_disk_is_full(live: Tree, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full(*_args: t.Any, **_more: t.Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile if name == "mkdtemp" else os, name, full)
    with pytest.raises(HostError, match=r"in /tmp cannot be .*: No space left on device\. Free space"):
        live.present()
    assert not live.path(DAEMON_JSON).exists()
    assert not list(live.path("/tmp").iterdir())


def test_missing_validator(live: Tree) -> None:
    live.answers["--validate"] = (125, "", "Status: unknown flag: --validate\nSee 'dockerd --help'.")
    with pytest.raises(NvidiaError, match="this version of docker has no validator"):
        live.present(options={"validate": "true"})
    assert live.present().changed


def test_restored_file_is_not_validated(live: Tree) -> None:
    live.write(DAEMON_JSON, ORIGINAL)
    live.present()
    live.answers["--validate"] = (1, "", "no")
    live.absent()
    assert live.path(DAEMON_JSON).read_bytes() == ORIGINAL
