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
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import NVIDIA, EngineTree

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


# -- what the engine prints must contain what the task sets ------------------------------------------------------------

RUNTIME_3 = 'plugins."io.containerd.cri.v1.runtime"'
PRINTED = f"""\
version = 3
[{RUNTIME_3}]
enable_cdi = true
[{RUNTIME_3}.containerd]
default_runtime_name = 'nvidia'
[{RUNTIME_3}.containerd.runtimes.nvidia]
runtime_type = 'io.containerd.runc.v2'
[{RUNTIME_3}.containerd.runtimes.nvidia.options]
BinaryName = '{NVIDIA}'
"""


@pytest.mark.parametrize(
    ("printed", "lacking"),
    [
        (PRINTED, None),
        (PRINTED.replace("enable_cdi = true\n", ""), None),
        ("", None),
        ("no TOML", None),
        (PRINTED.replace("runtimes.nvidia", "runtimes.runc"), f"the runtime nvidia with the program {NVIDIA}"),
        (PRINTED.replace(NVIDIA, "/usr/bin/runc"), f"{NVIDIA} .it prints /usr/bin/runc"),
        (PRINTED.replace("name = 'nvidia'", "name = 'runc'"), "the default runtime nvidia .it prints runc"),
        (PRINTED.replace("cdi = true", "cdi = false"), "the CDI setting True .it prints False"),
    ],
)
def test_output_without_the_own_entries_is_refused(tmp_path: Path, printed: str, lacking: str | None) -> None:
    tree = EngineTree(tmp_path, files={"usr/bin/containerd": "", "etc/containerd/config.toml": "version = 2\n"})
    tree.answers = {"--version": (0, "containerd v2.1.9", ""), "dump": (0, printed, "")}
    before = tree.files()
    asked: dict[str, t.Any] = {"set_as_default": True, "enable_cdi": True}
    if lacking is None:
        assert tree.present(**asked).changed
        return
    for check_mode in (True, False):
        with pytest.raises(NvidiaError, match=f"^/etc/containerd/.* was not changed.*without .*{lacking}"):
            tree.present(check_mode, **asked)
    assert tree.files() == before


@pytest.mark.parametrize(("program", "refused"), [(NVIDIA, False), ("", True)])
def test_output_of_crio_without_the_own_entries_is_refused(tmp_path: Path, program: str, refused: bool) -> None:
    tree = EngineTree(tmp_path, "crio", files={"usr/bin/crio": ""})
    printed = (
        f'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "{program}"\n'
    )
    tree.answers = {"--version": (0, "crio version 1.30.0", ""), "--config-dir": (0, printed, "")}
    if refused:
        with pytest.raises(NvidiaError, match=rf"without the runtime nvidia with the program {NVIDIA} .it prints \)"):
            tree.present(set_as_default=True)
    else:
        assert tree.present(set_as_default=True).changed
        # A removal requires nothing.
        assert tree.absent().changed
