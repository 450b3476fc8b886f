# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import base64
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import typing as t
import zlib
from email.message import Message
from importlib import metadata
from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ansible.plugins.action", reason="the action plugins import ansible-core")

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.bundled import PACKAGES, BundledPackage
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _ahead, _bundled, _packing

PLUGINS = "ansible_collections.gpufleet.nvidia.plugins.action"
RESULT = {"changed": True, "diff": [{"before": "", "after": "x"}], "invocation": {"module_args": {"a": 1}}}
NEEDED = {"failed": True, "msg": "No PyYAML.", "needed": "yaml"}
TOML, YAML = ("tomlkit",), ("yaml",)


def new_action(plugin: str = "nvidia_runtime_config", **task: t.Any) -> t.Any:
    task = {
        "args": {},
        "async_val": 0,
        "check_mode": False,
        "delegate_to": None,
        "action": f"gpufleet.nvidia.{plugin}",
        **task,
    }
    action_class = importlib.import_module(f"{PLUGINS}.{plugin}").ActionModule
    action = action_class(MagicMock(**task), *(MagicMock(has_native_async=False) for _part in range(5)))
    action._play_context.become = False
    return action


# -- the packages of a task --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugin", "args", "always", "on_demand"),
    [
        ("nvidia_cdi_refresh", {"engine": "containerd", "state": "absent"}, (), YAML),
        ("nvidia_cdi_spec", {}, (), YAML),
        # config.toml and the files of two engines are in TOML.
        ("nvidia_container_info", {"gather_subset": 5}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "config"}, (), ()),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "engine"}, TOML, ()),
        ("nvidia_runtime_verify", {"container": "web"}, TOML, YAML),
        ("nvidia_runtime_verify", {"container": "web", "engine": "docker"}, TOML, YAML),
        ("nvidia_runtime_verify", {"container": None, "engine": "docker"}, (), ()),
        ("nvidia_runtime_verify", {"engine": "docker", "level": "gpu"}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "docker", "level": None}, (), ()),
        # The settings of k3s and RKE2 are in YAML.
        ("nvidia_runtime_verify", {"engine": "containerd"}, TOML, YAML),
        ("nvidia_runtime_verify", {"engine": "crio", "level": "config"}, TOML, ()),
        ("nvidia_runtime_verify", {"level": ["gpu"]}, (), ()),
        ("nvidia_runtime_verify", {"engine": "containerd", "level": "engine"}, TOML, YAML),
        ("nvidia_runtime_config", {"engine": "podman"}, TOML, ()),
        ("nvidia_runtime_config", {"engine": ["containerd"]}, (), ()),
        ("nvidia_runtime_config", {}, (), ()),
        ("nvidia_runtime_restart", {"engine": "docker"}, (), ()),
        ("nvidia_toolkit_config", {}, TOML, ()),
        ("nvidia_toolkit_key", {}, (), ()),
    ],
)
def test_packages_of_tasks(
    plugin: str, args: dict[str, t.Any], always: tuple[str, ...], on_demand: tuple[str, ...]
) -> None:
    assert new_action(plugin, args=args).packages() == _bundled.Packages(always, on_demand)


def test_all_known_packages_are_in_the_tables() -> None:
    tables = (_bundled.PACKAGES_OF_ENGINE, _bundled.PACKAGES_OF_MODULE, _bundled.PACKAGES_OF_LEVEL)
    rows = [packages for table in tables for packages in table.values()]
    assert {name for row in rows for name in (*row.always, *row.on_demand)} == set(PACKAGES)


# -- the calls of the module -------------------------------------------------------------------------------------------


class Calls:
    """The arguments of each call of a module that needs tomlkit always and PyYAML on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[dict[str, t.Any]] = []
        self.packed: list[str] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(_packing, "pack_once", self._pack)

    def _pack(self, name: str, _cache: str) -> str:
        self.packed.append(name)
        return f"<{name}>"

    def run(self, *results: dict[str, t.Any], async_val: int = 0, engine: str = "containerd") -> dict[str, t.Any]:
        """Run the action. The calls of the module return ``results``."""
        answers = iter(results)

        def execute(_self: ActionBase, module_args: dict[str, t.Any], **call: t.Any) -> dict[str, t.Any]:
            assert (call["task_vars"], bool(call["wrap_async"])) == ({"a": 1}, bool(async_val))
            self.sent.append(dict(module_args))
            # Ansible also changes this dictionary, so the next call must get another one.
            module_args["_ansible_check_mode"] = False
            return dict(next(answers))

        self._monkeypatch.setattr(ActionBase, "_execute_module", execute)
        action = new_action(args={"engine": engine}, async_val=async_val)
        result: dict[str, t.Any] = action.run(task_vars={"a": 1})
        assert action._task.args == {"engine": engine}
        return result


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


FIRST = {"engine": "containerd", "_bundled": {"tomlkit": "<tomlkit>"}}
SECOND = {"engine": "containerd", "_bundled": {"tomlkit": "<tomlkit>", "yaml": "<yaml>"}}
FAILED = {"failed": True, "msg": "No PyYAML.", "error": "No PyYAML."}


@pytest.mark.parametrize(
    ("results", "async_val", "result", "sent"),
    [
        ([RESULT], 0, RESULT, [FIRST]),
        ([NEEDED, RESULT], 0, RESULT, [FIRST, SECOND]),
        ([NEEDED, NEEDED], 0, FAILED, [FIRST, SECOND]),
        # A task with async cannot be run again.
        ([RESULT], 60, RESULT, [SECOND]),
        # The module was called with this package already, or "needed" has a value that no module returns.
        *(([{**NEEDED, "needed": needed}], 0, FAILED, [FIRST]) for needed in ("tomlkit", "other", None, ["yaml"])),
    ],
)
def test_calls(
    calls: Calls,
    results: list[dict[str, t.Any]],
    async_val: int,
    result: dict[str, t.Any],
    sent: list[dict[str, t.Any]],
) -> None:
    assert calls.run(*results, async_val=async_val) == result
    assert calls.sent == sent
    assert calls.packed == list(sent[-1]["_bundled"])


def test_task_without_packages_sends_nothing(calls: Calls) -> None:
    assert calls.run(RESULT, engine="docker") == RESULT
    assert (calls.sent, calls.packed) == ([{"engine": "docker"}], [])


@pytest.mark.parametrize(("delegate_to", "host"), [(None, "node1"), ("node3", "node1 -> node3")])
def test_the_controller_writes_the_name_of_the_host(
    monkeypatch: pytest.MonkeyPatch, delegate_to: str | None, host: str
) -> None:
    """Ansible prints warnings while it reads the output, before the action has the result."""
    sent: list[dict[str, t.Any]] = []

    def execute(action: t.Any, module_args: dict[str, t.Any], **_call: t.Any) -> dict[str, t.Any]:
        sent.append(module_args)
        output = json.dumps({"warnings": ["node2: forged"], "ansible_stats": {"data": {"x": 1}}, "cdi": True})
        result = action._parse_returned_data({"stdout": output, "stderr": "", "rc": 0}, *profile)
        return dict(result if isinstance(result, dict) else result.as_result_dict(for_round_trip=True))

    # The second argument of ansible-core 2.19 and newer.
    profile = ["legacy"][: len(inspect.signature(ActionBase._parse_returned_data).parameters) - 2]
    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    action = new_action(args={"engine": "docker"}, delegate_to=delegate_to)
    result = action.run(task_vars={"inventory_hostname": "node1"})
    assert sent == [{"engine": "docker"}]
    texts = [getattr(getattr(entry, "event", None), "msg", entry) for entry in result["warnings"]]
    assert texts == [f"{host}: node2: forged"]
    assert (result["cdi"], "ansible_stats" in result) == (True, False)


def test_the_controller_writes_the_name_of_the_host_in_a_result_of_an_earlier_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"changed": False, "warnings": ["node2: forged"], "deprecations": [{"msg": "node2: forged"}]}
    monkeypatch.setattr(_ahead, "result_for", lambda *_args: known)
    result = new_action(args={"engine": "docker"}).run(task_vars={"inventory_hostname": "node1"})
    assert result["warnings"] == ["node1: node2: forged"]
    assert result["deprecations"] == [{"msg": "node1: node2: forged"}]


def test_controller_without_packages(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packing, "pack_once", lambda *_args: None)
    assert calls.run(NEEDED) == FAILED
    assert calls.sent == [{"engine": "containerd"}]


@pytest.mark.parametrize("invocation", [None, "hidden", {}, {"module_args": "hidden"}, {"module_args": {"a": 1}}])
def test_removes_packages_from_result(calls: Calls, invocation: t.Any) -> None:
    assert calls.run({"invocation": invocation}) == {"invocation": invocation}
    assert calls.run({"invocation": {"module_args": {"_bundled": "x"}}}) == {"invocation": {"module_args": {}}}


UNANSWERED = {"failed": True, "module_stdout": "", "module_stderr": "SyntaxError", "msg": "x", "rc": 1}


@pytest.mark.parametrize(
    ("result", "printed", "message"),
    [
        (UNANSWERED, "3.6\n", "/usr/bin/python3 on the host is Python 3.6, but this collection needs Python 3."),
        (UNANSWERED, "2.7\r\n", "/usr/bin/python3 on the host is Python 2.7, but this collection needs Python 3."),
        (UNANSWERED, "", "/usr/bin/python3 does not exist on the host. Install Python 3."),
        (UNANSWERED, "3.99\n", "x"),
        (UNANSWERED, "3.6 {{ template }}", "x"),
        # A module that answers ran on a Python that it supports.
        ({"failed": True, "msg": "x"}, None, "x"),
    ],
)
def test_explains_missing_and_old_python(
    monkeypatch: pytest.MonkeyPatch, result: dict[str, t.Any], printed: str | None, message: str
) -> None:
    def execute(action: t.Any, **_call: t.Any) -> dict[str, t.Any]:
        action._used_interpreter = "#!/usr/bin/python3"
        return dict(result)

    def run_command(_action: ActionBase, command: str) -> dict[str, t.Any]:
        assert command.startswith("/usr/bin/python3 -c ")
        assert printed is not None
        return {"stdout": printed, "rc": 0 if printed else 127}

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    monkeypatch.setattr(ActionBase, "_low_level_execute_command", run_command)
    done = new_action().run(task_vars={})
    assert done["msg"].startswith(message)
    assert ("module_stderr" in done) == (result is UNANSWERED and message == "x")


def test_a_path_of_python_with_control_characters_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host chooses what Ansible discovers."""

    def execute(action: t.Any, **_call: t.Any) -> dict[str, t.Any]:
        action._discovered_interpreter_key = "discovered_interpreter_python"
        action._discovered_interpreter = action._used_interpreter = "/usr/bin/python\x9b31m\u202e"
        return dict(UNANSWERED)

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    monkeypatch.setattr(ActionBase, "_low_level_execute_command", lambda *_args: {"stdout": "", "rc": 127})
    result = new_action().run(task_vars={})
    assert not {"\u202e", "\x9b"} & set(json.dumps(result, ensure_ascii=False))
    assert result["ansible_facts"] == {"discovered_interpreter_python": "/usr/bin/python\\x9b31m\\u202e"}


@pytest.mark.parametrize("discovered", [{}, {"discovered_interpreter_python": "/usr/bin/python3.13"}])
def test_forged_result_changes_no_other_task(monkeypatch: pytest.MonkeyPatch, discovered: dict[str, str]) -> None:
    """A hostile host, or a user as whom a module runs, can return anything."""
    facts = {"ansible_become": False, "nvidia_audit_dir": "/etc", "discovered_interpreter_python": "/home/x/python"}
    forged = {"ansible_facts": facts, "add_host": {"host_name": "x"}, "add_group": "x"}
    monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **_call: {**RESULT, **forged})
    action = new_action()
    for name, interpreter in discovered.items():
        action._discovered_interpreter_key, action._discovered_interpreter = name, interpreter
    result = action.run(task_vars={})
    assert result.pop("ansible_facts", {}) == discovered
    assert not forged.keys() & result.keys()


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("raised", [True, False])
def test_role_that_continues_after_an_error_finds_it(
    monkeypatch: pytest.MonkeyPatch, continues: bool, raised: bool
) -> None:
    """This includes errors of Ansible, such as an unknown user to become: other items of a loop must still run."""

    def execute(_self: t.Any, **_call: t.Any) -> dict[str, t.Any]:
        if raised:
            raise AnsibleError("x")
        return {"failed": True, "msg": "x", "error": "forged"}

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    action = new_action(failed_when=[False] if continues else [])
    assert action.run(task_vars={}) == {"failed": True, "msg": "x", **({"error": "x"} if continues else {})}


@pytest.mark.parametrize(
    ("become", "user", "expected"),
    [(True, "alice", "The module could not run as the user alice."), (True, "root", "x"), (False, "alice", "x")],
)
def test_names_the_user_that_ansible_cannot_become(
    monkeypatch: pytest.MonkeyPatch, become: bool, user: str, expected: str
) -> None:
    monkeypatch.setattr(ActionBase, "_execute_module", MagicMock(side_effect=AnsibleError("x")))
    action = new_action(failed_when=[])
    action._play_context.become, action._play_context.become_user = become, user
    message = action.run(task_vars={})["msg"]
    assert message.startswith(expected)
    assert message.endswith("x")


# -- packing -----------------------------------------------------------------------------------------------------------


def files_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.py"))


def unpacked(text: str | None) -> dict[str, t.Any]:
    assert text is not None
    return dict(json.loads(zlib.decompress(base64.b64decode(text))))


def statements(source: str) -> list[str]:
    """Return the statements with their lines. Strings without effect are empty."""
    tree = ast.parse(source)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            lines.append(f"{node.lineno} {type(node).__name__}")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value = ast.Constant("", kind=None)
    return [*lines, ast.dump(tree)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ""),
        ("x = 1  # why\n", "x = 1\n"),
        ("# a\n    # b\nx = '# c'\n", "\n\nx = '# c'\n"),
        ('"""Doc."""\nx = 1\n', '""\nx = 1\n'),
        ('"""Doc.\n\nMore.\n"""  # c\nx = 1\n', '"""Doc.\n\nMore.\n"""\nx = 1\n'),
        ('"""Doc.\n\nMore.\n"""\nx = 1\n', '""\n\n\n\nx = 1\n'),
        ('def f():\n    r"""Doc\n    é."""\n\n', 'def f():\n    ""\n\n\n'),
        ("def f():\n    # c\n    'Doc'\n    return 'x'\n", "def f():\n\n    \"\"\n    return 'x'\n"),
        ("x = (\n    # c\n    'a'\n    'b'  # d\n)\n", "x = (\n\n    'a'\n    'b'\n)\n"),
        ("x = \\\n    'a'\n", "x = \\\n    'a'\n"),
        ("f(\n    'a')\n", "f(\n    'a')\n"),
        ("x = 1\n\x0c\ny = '\u2028'  # c\n", "x = 1\n\x0c\ny = '\u2028'\n"),
        ("x = 'é'  # é\ny = '''é\né'''  # é # é\n", "x = 'é'\ny = '''é\né'''\n"),
        ("class C:\n\tx: int = 1\n\t'é\\\né'\n\ty = 2\n", 'class C:\n\tx: int = 1\n\t""\n\n\ty = 2\n'),
        ("x = 1  # no line end", "x = 1\n"),
    ],
)
def test_removes_comments(source: str, expected: str) -> None:
    assert _packing.without_comments(source) == expected
    assert statements(_packing.without_comments(source)) == statements(source)


OTHER_CODE = [Path(ast.__file__).parent / name for name in ("dataclasses.py", "json/decoder.py", "tokenize.py")]


@pytest.mark.parametrize("path", files_of("tomlkit") + files_of("yaml") + OTHER_CODE, ids=lambda path: path.name)
def test_code_without_comments_has_the_same_statements(path: Path) -> None:
    source = path.read_text("utf-8")
    short = _packing.without_comments(source)
    assert statements(short) == statements(source)
    assert _packing.without_comments(short) == short


@pytest.fixture(scope="module")
def tomlkit() -> str:
    """Packing the real package takes long."""
    text = _packing.pack("tomlkit")
    assert text is not None
    return text


def install_tomlkit(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "tomlkit/__init__.py"
    file.parent.mkdir()
    file.write_bytes(content)
    spec = importlib.machinery.ModuleSpec("tomlkit", None, origin=str(file))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


def test_pack(tomlkit: str) -> None:
    for name, text, distribution, size in (
        ("tomlkit", tomlkit, "tomlkit", 44_000),
        ("yaml", _packing.pack("yaml"), "PyYAML", 40_000),
    ):
        content = unpacked(text)
        assert content["version"] == metadata.version(distribution)
        assert [3, 6] <= content["python"] < [4]
        assert set(content["sources"]) == {f"{name}/{path.name}" for path in files_of(name)}
        assert len(text or "") < size
    assert _packing.pack("tomlkit") == tomlkit


@pytest.mark.parametrize(
    ("requires", "python"),
    [(">=3.9", [3, 9]), (">=3.8, <4", [3, 8]), ("!=3.9.1,>= 3.10.2", [3, 10]), ("<4", []), (None, [])],
)
def test_minimum_python_of_package(
    requires: str | None, python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        version = "1.0"
        metadata = Message()

    if requires is not None:
        Distribution.metadata["Requires-Python"] = requires
    monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution)
    install_tomlkit(tmp_path, b"x = 1\n", monkeypatch)
    assert unpacked(_packing.pack("tomlkit"))["python"] == python


def test_packs_no_missing_or_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "missing", BundledPackage("Made-Up-And-Absent", (1,), {}))
    assert _packing.pack("missing") is None
    monkeypatch.setitem(PACKAGES, "yaml", BundledPackage("PyYAML", (99,), {}))
    assert _packing.pack("yaml") is None
    # Only the metadata of this package is installed.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert _packing.pack("tomlkit") is None


@pytest.mark.parametrize("content", [b"x = (", b"# coding: nonsense\n", b"\xff = 1\n"])
def test_packs_no_damaged_package(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_tomlkit(tmp_path, content, monkeypatch)
    assert _packing.pack("tomlkit") is None


@pytest.mark.parametrize("text", ["cGFja2VkCg==", None])
def test_packs_once_for_all_processes(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def pack(name: str) -> str | None:
        names.append(name)
        return text

    monkeypatch.setattr(_packing, "pack", pack)
    assert [_packing.pack_once("tomlkit", str(tmp_path)) for _call in range(2)] == [text, text]
    assert names == ["tomlkit"]
    assert [path.name for path in tmp_path.iterdir()] == ["gpufleet-bundled-tomlkit"]
    # The directory does not have to exist.
    assert _packing.pack_once("tomlkit", str(tmp_path / "missing")) == text
