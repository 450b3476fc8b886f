# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import tarfile
import typing as t
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the controller's half")

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.action.nvidia_toolkit_install import ActionModule
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import (
    _check,
    _controller_source,
    _packing,
    _toolkit_plan,
)
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree

if t.TYPE_CHECKING:
    from pathlib import Path

FOLDER = "/home/fleet/.ansible/tmp/ansible-tmp-1"
ARCHIVE = f"{FOLDER}/nvidia-container-toolkit.tar.gz"


class Host:
    """A host that records the arguments of the module and the files that it receives."""

    def __init__(self, playbook: Path) -> None:
        self.playbook = playbook
        self.is_current = True
        self.unreachable = False
        self.calls: list[dict[str, t.Any]] = []
        self.files: dict[str, list[str]] = {}
        # The package that the host lacks.
        self.lacks = ""
        self.variables: dict[str, t.Any] = {"a": 1}
        self.readable: list[tuple[str, ...]] = []
        self.shell = MagicMock(tmpdir=None)
        self.shell.join_path = "{}/{}".format
        self.removed: list[str] = []

    def run(self, check_mode: bool = False, async_val: int = 0, **args: t.Any) -> dict[str, t.Any]:
        """Return the result of a task, and check that its arguments are unchanged."""
        task = MagicMock(args=args, async_val=async_val, check_mode=check_mode, action="gpufleet.nvidia.x")
        task.get_search_path.return_value = [str(self.playbook)]
        connection = MagicMock(has_native_async=False, _shell=self.shell)
        action: t.Any = ActionModule(task, connection, MagicMock(), DataLoader(), MagicMock(), MagicMock())
        before = dict(args)
        try:
            return dict(action.run(task_vars=self.variables))
        finally:
            action.cleanup()
            assert task.args == before

    def sent(self) -> list[dict[str, t.Any]]:
        """Return the option _bundled of each call, empty if a call has none."""
        return [call.get("_bundled", {}) for call in self.calls]

    def module(self, module_args: dict[str, t.Any]) -> dict[str, t.Any]:
        self.calls.append(dict(module_args))
        result: dict[str, t.Any] = {"changed": False, "invocation": {"module_args": {"_bundled": None, "a": 1}}}
        bundled = module_args.get("_bundled", {})
        if self.lacks and self.lacks not in bundled:
            return {**result, "failed": True, "msg": f"{self.lacks} is needed", "needed": self.lacks}
        if "toolkit_archive" in bundled:
            assert bundled["toolkit_archive"] in self.files
            return {**result, "changed": True}
        if "toolkit" in bundled and not self.is_current:
            return {**result, "failed": True, "msg": "The files are missing.", "needed": "toolkit_archive"}
        return result

    def receive(self, local: str, remote: str) -> None:
        if self.unreachable:
            raise AnsibleConnectionFailure("the line is dead")
        with tarfile.open(local) as archive:
            self.files[remote] = archive.getnames()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host, and a playbook with a toolkit in its directory files."""
    host = Host(tmp_path / "playbook")
    tree(host.playbook / "files/toolkit", "1.20.0")
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(cache))
    monkeypatch.setattr(_packing, "pack_once", lambda name, _cache: f"<{name}>")

    def execute(_self: ActionBase, **call: t.Any) -> dict[str, t.Any]:
        assert call["task_vars"] == host.variables
        assert "module_name" not in call
        return host.module(call["module_args"])

    def make(self: t.Any) -> str:
        self._cleanup_remote_tmp = True
        host.shell.tmpdir = FOLDER
        return FOLDER

    def remove(_self: ActionBase, path: str | None) -> None:
        if path is not None:
            host.removed.append(path)
            host.shell.tmpdir = None

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    monkeypatch.setattr(ActionBase, "_make_tmp_path", make)
    monkeypatch.setattr(ActionBase, "_remove_tmp_path", remove)
    monkeypatch.setattr(ActionBase, "_transfer_file", lambda _self, local, remote: host.receive(local, remote))
    monkeypatch.setattr(ActionBase, "_fixup_perms2", lambda _self, paths: host.readable.append(paths))
    return host


SENT, LATER = [{"tomlkit": "<tomlkit>"}], [{}, {"tomlkit": "<tomlkit>"}]
ALL = [{"tomlkit": "<tomlkit>", "yaml": "<yaml>"}]


@pytest.mark.parametrize(
    ("args", "python", "sent"),
    [
        ({"source": "directory"}, None, LATER),
        ({"source": "directory", "state": "absent"}, None, LATER),
        ({"source": "directory", "async_val": 60}, None, ALL),
        ({"source": "directory"}, "/usr/bin/python3.9", SENT),
        ({"source": "directory"}, "/usr/bin/python3.11", LATER),
        ({"source": "repository"}, "/usr/bin/python3.9", [{}]),
    ],
)
def test_sends_tomlkit(host: Host, args: dict[str, t.Any], python: str | None, sent: list[dict[str, str]]) -> None:
    host.lacks = "tomlkit"
    for variables in (
        {"ansible_python_interpreter": python},
        {"ansible_facts": {"discovered_interpreter_python": python}},
    ):
        host.variables, host.calls = variables, []
        result = host.run(**args)
        assert host.sent() == sent
        assert "needed" not in result
        assert result.get("failed", False) is (args["source"] == "repository")


@pytest.mark.parametrize("lacks", ["", "tomlkit", "yaml"])
@pytest.mark.parametrize("args", [{"source": "directory"}, {"source": "directory", "state": "absent"}])
def test_sends_what_reads_the_files_of_engines(host: Host, args: dict[str, t.Any], lacks: str) -> None:
    """The settings of K3s and RKE2 are in YAML."""
    host.lacks = lacks
    assert not host.run(**args).get("failed")
    assert host.sent() == [{}, *([{lacks: f"<{lacks}>"}] if lacks else [])]


def test_sends_no_tomlkit_without_request(host: Host) -> None:
    host.run(source="directory")
    assert host.sent() == [{}]


@pytest.mark.parametrize("path", ["toolkit", "files/toolkit", "{playbook}/files/toolkit"])
@pytest.mark.parametrize("remote_src", [False, "no", "False", 0])
@pytest.mark.parametrize("check_mode", [False, True])
def test_sends_no_files_to_a_current_host(host: Host, path: str, remote_src: t.Any, check_mode: bool) -> None:
    src = path.format(playbook=host.playbook)
    result = host.run(check_mode, source="directory", remote_src=remote_src, src=src, components=["ctk"])
    (call,) = host.calls
    assert set(call["_bundled"]) == {"toolkit"}
    (part,) = json.loads(call["_bundled"]["toolkit"])
    assert set(part) == {"name", "sha256", "mode", "size", "machine", "soname"}
    assert (part["name"], part["mode"]) == ("nvidia-ctk", 0o755)
    assert call["src"] == src
    assert result == {"changed": False, "invocation": {"module_args": {"a": 1}}}
    assert (host.files, host.removed) == ({}, [])


def test_null_is_as_an_omitted_option(host: Host) -> None:
    args: dict[str, t.Any] = {"state": None, "components": None, "files": None, "src": "toolkit"}
    host.run(source="directory", remote_src=False, **args)
    assert len(json.loads(host.sent()[0]["toolkit"])) == 9


@pytest.mark.parametrize("lacks_tomlkit", [False, True])
def test_sends_the_files_on_request(host: Host, lacks_tomlkit: bool) -> None:
    host.is_current, host.lacks = False, "tomlkit" if lacks_tomlkit else ""
    result = host.run(source="directory", remote_src=False, src="toolkit", components=["ctk", "hook"])
    first, *_between, last = host.calls
    tomlkit = {"tomlkit": "<tomlkit>"} if lacks_tomlkit else {}
    assert last["_bundled"] == {**first["_bundled"], **tomlkit, "toolkit_archive": ARCHIVE}
    assert {**last, "_bundled": 0} == {**first, "_bundled": 0}
    assert host.files == {ARCHIVE: ["nvidia-container-runtime-hook", "nvidia-ctk"]}
    assert host.readable == [(FOLDER, ARCHIVE)]
    assert host.removed == [FOLDER]
    assert result == {"changed": True, "invocation": {"module_args": {"a": 1}}}


def test_uses_the_directory_of_the_module(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.is_current = False
    host.shell.tmpdir = "/tmp/ansible-tmp-2"
    monkeypatch.setattr(ActionBase, "_make_tmp_path", lambda _self: pytest.fail("a second directory"))
    host.run(source="directory", remote_src=False, src="toolkit")
    assert list(host.files) == ["/tmp/ansible-tmp-2/nvidia-container-toolkit.tar.gz"]
    assert host.removed == ["/tmp/ansible-tmp-2"]


def test_removes_the_directory_after_a_connection_failure(host: Host) -> None:
    host.is_current = False
    host.unreachable = True
    with pytest.raises(AnsibleConnectionFailure):
        host.run(source="directory", remote_src=False, src="toolkit")
    assert host.removed == [FOLDER]


def test_error_of_the_controller(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.is_current = False

    def fail(*_args: object) -> t.NoReturn:
        raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr(_controller_source, "_pack", fail)
    with pytest.raises(AnsibleActionFail, match=r"/x on the controller: No space left on device\. Free space"):
        host.run(source="directory", remote_src=False, src="toolkit")
    assert len(host.calls) == 1


@pytest.mark.parametrize(
    "args",
    [
        {"source": "repository", "remote_src": False, "src": "missing"},
        {"source": "directory", "src": "missing"},
        {"source": "directory", "src": "missing", "remote_src": "yes"},
        {"source": "directory", "src": "missing", "remote_src": None},
        {"source": "directory", "src": "missing", "remote_src": "perhaps"},
        {"source": "directory", "src": "missing", "remote_src": False, "state": "absent"},
        {"source": "directory", "remote_src": False},
        {"source": "directory", "remote_src": False, "files": []},
        {"source": "directory", "remote_src": False, "files": None},
        {"source": "directory", "remote_src": False, "files": {"a": 1}},
        {"source": "directory", "remote_src": False, "files": ["missing"], "src": "missing"},
    ],
)
def test_leaves_other_arguments_to_the_module(host: Host, args: dict[str, t.Any]) -> None:
    host.run(**args)
    assert host.calls == [args]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"src": "toolkti"}, "nvidia_toolkit_src (src) toolkti is not on the controller. Correct"),
        ({"files": ["a.deb"]}, "nvidia_toolkit_files (files) a.deb is not on the controller. Correct"),
        ({"files": [""]}, "nvidia_toolkit_files (files) is an empty path. Set a path on the controller."),
        ({"files": "toolkit"}, "toolkit is not a regular file."),
        (
            {"src": "toolkit", "components": ["all"]},
            "nvidia_toolkit_module_options.components (components) contains unknown names: all.",
        ),
        ({"src": "toolkit", "async_val": 60}, "remote_src: false does not work with async"),
    ],
)
def test_refuses_arguments(host: Host, args: dict[str, t.Any], message: str) -> None:
    with pytest.raises(AnsibleActionFail) as caught:
        host.run(source="directory", remote_src=False, **args)
    assert message in str(caught.value)
    assert host.calls == []


def test_async_with_a_toolkit_on_the_host(host: Host) -> None:
    host.run(async_val=60, source="directory", src="/srv/toolkit")
    assert host.sent() == ALL


@pytest.mark.parametrize(("of_role", "state"), [(True, "present"), (True, "absent"), (False, "present")])
def test_the_task_of_the_role_gets_the_options_of_the_plan(
    host: Host, monkeypatch: pytest.MonkeyPatch, of_role: bool, state: str
) -> None:
    monkeypatch.setattr(_check, "is_task_of", lambda _action, role: of_role and role == "nvidia_toolkit")
    monkeypatch.setattr(_toolkit_plan, "options_of_task", lambda _known, _settings, given: {**given, "pending": True})
    host.variables = {_toolkit_plan.SETTINGS: {}}
    host.run(source="existing", state=state)
    assert [call.get("pending") for call in host.calls] == [True if of_role and state == "present" else None]
