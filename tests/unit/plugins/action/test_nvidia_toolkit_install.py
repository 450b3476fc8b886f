# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

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
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _shipping, _toolkit_offer
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures.elf_programs import tree

if t.TYPE_CHECKING:
    from pathlib import Path

FOLDER = "/home/fleet/.ansible/tmp/ansible-tmp-1"
ARCHIVE = f"{FOLDER}/nvidia-container-toolkit.tar.gz"


class Host:
    """The other end: what the module was told, and what came over the connection."""

    def __init__(self, playbook: Path) -> None:
        self.playbook = playbook
        self.has_it = True
        self.unreachable = False
        self.calls: list[dict[str, t.Any]] = []
        self.files: dict[str, list[str]] = {}
        self.lacks_tomlkit = False
        self.variables: dict[str, t.Any] = {"a": 1}
        self.readable: list[tuple[str, ...]] = []
        self.shell = MagicMock(tmpdir=None)
        self.shell.join_path = "{}/{}".format
        self.removed: list[str] = []

    def run(self, check_mode: bool = False, async_val: int = 0, **args: t.Any) -> dict[str, t.Any]:
        """The task's result, its arguments left as they were."""
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

    def module(self, module_args: dict[str, t.Any]) -> dict[str, t.Any]:
        self.calls.append(dict(module_args))
        # As Ansible does.
        module_args["_ansible_check_mode"] = False
        result: dict[str, t.Any] = {"changed": False, "invocation": {"module_args": {"shipped_toolkit": None, "a": 1}}}
        shipped = module_args.get("shipped_toolkit")
        if self.lacks_tomlkit and "shipped_tomlkit" not in module_args:
            return {**result, "failed": True, "msg": "tomlkit is needed", "needed": "tomlkit"}
        if shipped is not None and "archive" not in shipped and not self.has_it:
            result.update(failed=True, msg="The controller has not sent the toolkit.", needed="toolkit")
        elif shipped is not None and "archive" in shipped:
            assert module_args["shipped_toolkit"]["archive"] in self.files
            result["changed"] = True
        return result

    def receive(self, local: str, remote: str) -> None:
        if self.unreachable:
            raise AnsibleConnectionFailure("the line is dead")
        with tarfile.open(local) as archive:
            self.files[remote] = archive.getnames()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host, and a playbook beside which there is a toolkit."""
    host = Host(tmp_path / "playbook")
    tree(host.playbook / "files/toolkit", "1.20.0")
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(cache))
    monkeypatch.setattr(_shipping, "packed", lambda *_args: "tomlkit, packed")

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


class TestTomlkit:
    @pytest.mark.parametrize(
        ("args", "variables", "shipments"),
        [
            ({"source": "directory"}, {}, ["", "tomlkit, packed"]),
            ({"source": "directory", "state": "absent"}, {}, ["", "tomlkit, packed"]),
            ({"source": "directory", "async": 60}, {}, ["tomlkit, packed"]),
            ({"source": "directory"}, {"ansible_python_interpreter": "/usr/bin/python3.9"}, ["tomlkit, packed"]),
            ({"source": "directory"}, {"ansible_python_interpreter": "/usr/bin/python3.11"}, ["", "tomlkit, packed"]),
            (
                {"source": "directory"},
                {"ansible_facts": {"discovered_interpreter_python": "/usr/libexec/platform-python3.6"}},
                ["tomlkit, packed"],
            ),
            ({"source": "repository"}, {"ansible_python_interpreter": "/usr/bin/python3.9"}, [""]),
        ],
    )
    def test_a_host_that_needs_it_gets_it(
        self, host: Host, args: dict[str, t.Any], variables: dict[str, t.Any], shipments: list[str]
    ) -> None:
        host.lacks_tomlkit = True
        async_val = args.pop("async", 0)
        host.variables = variables
        result = host.run(async_val=async_val, **args)
        assert [call.get("shipped_tomlkit", "") for call in host.calls] == shipments
        assert "needed" not in result
        assert result.get("failed", False) is (args["source"] == "repository")

    def test_a_host_that_can_do_without_is_asked_once(self, host: Host) -> None:
        host.run(source="directory")
        assert [call.get("shipped_tomlkit") for call in host.calls] == [None]

    def test_a_controller_without_it(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.lacks_tomlkit = True
        monkeypatch.setattr(_shipping, "packed", lambda *_args: None)
        result = host.run(source="directory")
        assert result["failed"]
        assert result["msg"] == "tomlkit is needed"
        assert "needed" not in result
        assert len(host.calls) == 2


class TestHostThatHasIt:
    @pytest.mark.parametrize("path", ["toolkit", "files/toolkit", "{playbook}/files/toolkit"])
    @pytest.mark.parametrize("remote_src", [False, "no", "False", 0])
    def test_it_is_asked_once_and_gets_nothing(self, host: Host, path: str, remote_src: t.Any) -> None:
        src = path.format(playbook=host.playbook)
        result = host.run(source="directory", remote_src=remote_src, src=src, components=["ctk"])
        (call,) = host.calls
        (part,) = call["shipped_toolkit"]["parts"]
        assert set(call["shipped_toolkit"]) == {"parts"}
        assert set(part) == {"name", "sha256", "mode", "size", "machine", "soname"}
        assert (part["name"], part["mode"]) == ("nvidia-ctk", 0o755)
        assert call["src"] == src
        assert "shipped_tomlkit" not in call
        assert result == {"changed": False, "invocation": {"module_args": {"a": 1}}}
        assert host.files == {}
        assert host.removed == []

    def test_what_is_left_out_may_be_null(self, host: Host) -> None:
        args: dict[str, t.Any] = {"state": None, "components": None, "files": None, "src": "toolkit"}
        host.run(source="directory", remote_src=False, **args)
        assert len(host.calls[0]["shipped_toolkit"]["parts"]) == 9

    def test_in_check_mode_it_gets_nothing_either(self, host: Host) -> None:
        host.run(check_mode=True, source="directory", remote_src=False, src="toolkit")
        assert len(host.calls) == 1
        assert host.files == {}


class TestHostThatNeedsIt:
    def test_it_gets_the_files_and_is_asked_again(self, host: Host) -> None:
        host.has_it = False
        result = host.run(source="directory", remote_src=False, src="toolkit", components=["ctk", "hook"])
        first, second = host.calls
        assert second["shipped_toolkit"] == {**first["shipped_toolkit"], "archive": ARCHIVE}
        assert {**second, "shipped_toolkit": 0} == {**first, "shipped_toolkit": 0}
        assert host.files == {ARCHIVE: ["nvidia-container-runtime-hook", "nvidia-ctk"]}
        assert host.readable == [(FOLDER, ARCHIVE)]
        assert host.removed == [FOLDER]
        assert result == {"changed": True, "invocation": {"module_args": {"a": 1}}}

    def test_the_folder_that_the_module_came_in_serves(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.has_it = False
        host.shell.tmpdir = "/tmp/ansible-tmp-2"
        monkeypatch.setattr(ActionBase, "_make_tmp_path", lambda _self: pytest.fail("a second folder"))
        host.run(source="directory", remote_src=False, src="toolkit")
        assert list(host.files) == ["/tmp/ansible-tmp-2/nvidia-container-toolkit.tar.gz"]
        assert host.removed == ["/tmp/ansible-tmp-2"]

    def test_a_connection_that_breaks_leaves_no_folder(self, host: Host) -> None:
        host.has_it = False
        host.unreachable = True
        with pytest.raises(AnsibleConnectionFailure):
            host.run(source="directory", remote_src=False, src="toolkit")
        assert host.removed == [FOLDER]

    def test_an_archive_that_cannot_be_made(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.has_it = False

        def fail(*_args: object) -> t.NoReturn:
            raise OSError(28, "No space left on device", "/x")

        monkeypatch.setattr(_toolkit_offer, "_pack", fail)
        with pytest.raises(AnsibleActionFail, match=r"/x on the controller: No space left on device\. Make room"):
            host.run(source="directory", remote_src=False, src="toolkit")
        assert len(host.calls) == 1


class TestWhatIsTheModulesBusiness:
    @pytest.mark.parametrize(
        "args",
        [
            {"source": "repository"},
            {"source": "repository", "remote_src": False, "src": "missing"},
            {"source": "directory", "src": "missing"},
            {"source": "directory", "src": "missing", "remote_src": True},
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
    def test_nothing_is_looked_for(self, host: Host, args: dict[str, t.Any]) -> None:
        result = host.run(**args)
        (call,) = host.calls
        assert {name: value for name, value in call.items() if name != "shipped_tomlkit"} == args
        # The module tells all its options, those of nobody's interest too.
        assert result["invocation"] == {"module_args": {"a": 1}}

    @pytest.mark.parametrize("invocation", [None, "hidden", {}, {"module_args": "hidden"}])
    def test_a_result_without_arguments(self, host: Host, monkeypatch: pytest.MonkeyPatch, invocation: t.Any) -> None:
        monkeypatch.setattr(host, "module", lambda _args: {"failed": True, "invocation": invocation})
        assert host.run(source="directory")["invocation"] == invocation


class TestRefusals:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (
                {"src": "toolkti"},
                "nvidia_toolkit_src (src) toolkti is not on the controller. Correct",
            ),
            ({"files": ["a.deb"]}, "nvidia_toolkit_files (files) a.deb is not on the controller. Correct"),
            ({"files": "toolkit"}, "toolkit is not a regular file. Give the files of the packages."),
            ({"src": "toolkit", "components": ["all"]}, "nvidia_toolkit_components (components) has no all."),
        ],
    )
    def test_before_any_host_is_asked(self, host: Host, args: dict[str, t.Any], message: str) -> None:
        with pytest.raises(AnsibleActionFail) as caught:
            host.run(source="directory", remote_src=False, **args)
        assert message in str(caught.value)
        assert host.calls == []

    def test_async(self, host: Host) -> None:
        with pytest.raises(AnsibleActionFail, match="remote_src: false cannot do with async"):
            host.run(async_val=60, source="directory", remote_src=False, src="toolkit")
        assert host.calls == []

    def test_async_with_a_toolkit_on_the_host(self, host: Host) -> None:
        host.run(async_val=60, source="directory", src="/srv/toolkit")
        assert len(host.calls) == 1
