# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import importlib
import json
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import SERVICE_PATH, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import mask_json
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import mask_toml
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import (
    command_runner,
    diff_of,
    host_from_params,
    pinned_runner,
    run_module,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.dummy_module import DummyModule, Ended, argument_spec_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_docker import docker_host
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_systemd import FILE, FakeSystemd


def finished(work: t.Callable[[], dict[str, t.Any]], **params: t.Any) -> DummyModule:
    module = DummyModule(**params)
    with pytest.raises(Ended):
        run_module(t.cast("t.Any", module), work)
    return module


def test_result_and_warnings() -> None:
    module = finished(lambda: {"changed": True, "warnings": ["one", "two"]})
    assert module.result == {"changed": True}
    assert module.warnings == ["one", "two"]
    assert finished(lambda: {"changed": False}).result == {"changed": False}


def test_warnings_of_steps_that_do_not_fail_the_task() -> None:
    def work() -> dict[str, t.Any]:
        errors.warn("The disk is full.")
        errors.warn("The disk is full.")
        return {"warnings": ["one"]}

    def fail() -> dict[str, t.Any]:
        errors.warn("The disk is full.")
        raise HostError("It failed.")

    assert finished(work).warnings == ["one", "The disk is full."]
    assert finished(fail).warnings == ["The disk is full."]
    assert finished(dict).warnings == []


def test_warnings_name_variables() -> None:
    module = finished(lambda: {"warnings": [f"Set {errors.option:lock_timeout}.", "two"]})
    assert module.warnings == ["Set nvidia_toolkit_lock_timeout (lock_timeout).", "two"]


def test_error_of_the_collection() -> None:
    def work() -> dict[str, t.Any]:
        raise ConfigurationError("/etc/x", "it is bad", "Correct it.", 3, 4)

    assert finished(work).result == {"failed": True, "msg": "/etc/x, line 3, column 4: it is bad. Correct it."}


# The task of DummyModule has the option lock_timeout.
VALUES = [
    "{errors.option:lock_timeout}",
    "{option:lock_timeout}",
    "/{x}/{0}/{{",
    "lock_timeout: 1",
    "Set lock_timeout.",
]


@pytest.mark.parametrize("value", VALUES)
def test_values_in_messages_stay_as_they_are(value: str) -> None:
    def work() -> dict[str, t.Any]:
        cause = HostError(f"{value} is damaged.")
        raise HostError(f"{cause} Set {errors.option:lock_timeout}. Program output: {value}")

    printed = "nvidia_toolkit_lock_timeout (lock_timeout)"
    msg = finished(work).result["msg"]
    assert msg == f"{value} is damaged. Set {printed}. Program output: {value}"


def test_a_task_leaves_no_variables_behind() -> None:
    finished(dict)
    assert f"{errors.option:lock_timeout}" == "lock_timeout"


def test_lone_surrogates_are_escaped() -> None:
    def work() -> dict[str, t.Any]:
        raise HostError("é \ud83d")

    assert finished(work).result["msg"] == r"é \ud83d"
    assert finished(lambda: {"warnings": ["é \udcff"]}).warnings == [r"é \udcff"]


def test_other_errors_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_module(t.cast("t.Any", DummyModule()), lambda: {"changed": bool(1 // 0)})


def test_host_from_params(tmp_path: Path) -> None:
    module = DummyModule(host_root=str(tmp_path), host_root_live=True)
    assert host_from_params(t.cast("t.Any", module)) == HostFS(str(tmp_path.resolve()), live=True)
    with pytest.raises(HostError):
        host_from_params(t.cast("t.Any", DummyModule(host_root="relative", host_root_live=False)))


@pytest.mark.parametrize("selinux", [True, False])
def test_selinux_labels(tmp_path: Path, selinux: bool) -> None:
    module = DummyModule(host_root="/", host_root_live=False)
    module.selinux = selinux
    label_of = host_from_params(t.cast("t.Any", module)).label_of
    assert (label_of is not None) == selinux
    if label_of is not None:
        assert (label_of("/etc/docker"), label_of("/tmp")) == ("system_u:object_r:docker_t:s0:c1", None)
        module.params["host_root"] = str(tmp_path)
        assert host_from_params(t.cast("t.Any", module)).label_of is None


@pytest.mark.parametrize(
    ("mask", "text"), [(mask_json, '{"password": "hunter2"}\n'), (mask_toml, 'password = "hunter2"\n')]
)
def test_diff_hides_secrets(mask: t.Callable[[str], str], text: str) -> None:
    created, removed = diff_of(
        [PlannedFile("/etc/new", None, text.encode()), PlannedFile("/etc/gone", text.encode(), None)], mask
    )
    masked = text.replace("hunter2", "********")
    assert created == {
        "before_header": "/etc/new (absent)", "after_header": "/etc/new", "before": "", "after": masked,
    }  # fmt: skip
    assert removed == {
        "before_header": "/etc/gone", "after_header": "/etc/gone (absent)", "before": masked, "after": "",
    }  # fmt: skip


def test_pending_action(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ansible.module_utils.basic")
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import runtime_config  # noqa: PLC0415
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_runtime_config  # noqa: PLC0415

    specification = argument_spec_of(monkeypatch, nvidia_runtime_config)
    arguments: dict[str, t.Any] = {name: option.get("default") for name, option in specification.items()}
    arguments.update(engine="docker", host_root=str(tmp_path))
    result = runtime_config.configure(t.cast("t.Any", DummyModule(**arguments)))
    assert result["changed"] is True
    assert result["restart_action"] == "reload"
    assert result["restart_required"] is False
    assert result["pending_action"] is None


def test_result_of_a_failed_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ansible.module_utils.basic")
    yaml = pytest.importorskip("yaml")
    from ansible_collections.gpufleet.nvidia.plugins.modules import nvidia_runtime_restart  # noqa: PLC0415

    specification = argument_spec_of(monkeypatch, nvidia_runtime_restart)
    arguments: dict[str, t.Any] = {name: option.get("default") for name, option in specification.items()}
    with docker_host() as docker:
        systemd = FakeSystemd(docker)
        systemd.ends = lambda text: "failed" if "nvidia" in text else "active"
        docker.write("/x.backup", "{}")
        docker.write(FILE, '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}')
        rollback = [{"path": FILE, "backup": "/x.backup", "checksum": None}]
        arguments.update(engine="docker", rollback=rollback, host_root=str(docker.root), host_root_live=True)
        module = DummyModule(**arguments)
        monkeypatch.setattr(_module, "command_runner", lambda _module: systemd.run)
        with docker.answers(), pytest.raises(Ended):
            run_module(t.cast("t.Any", module), lambda: nvidia_runtime_restart.restart_engine(t.cast("t.Any", module)))
        documented = set(yaml.safe_load(nvidia_runtime_restart.RETURN))
        assert docker.path(FILE).read_text(encoding="utf-8") == "{}"
    assert set(module.result) == {"failed", "msg", "changed"} | documented
    assert module.result["state"] == "rolled_back"
    assert (module.result["changed"], module.result["rolled_back"]) == (True, True)


_PRINT_ENVIRONMENT = (
    "import os, sys; print(*(os.environ[name] for name in ('LC_ALL', 'KEPT', 'DEBIAN_FRONTEND', 'NEEDRESTART_MODE')));"
    "print('x', file=sys.stderr); sys.exit(3)"
)


@pytest.mark.parametrize("missing", [[], ["timeout"]])
def test_environment_of_commands(monkeypatch: pytest.MonkeyPatch, missing: list[str]) -> None:
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    module = DummyModule()
    module.missing = missing
    result = command_runner(t.cast("t.Any", module))([sys.executable, "-c", _PRINT_ENVIRONMENT])
    assert result == (3, "C.UTF-8 kept noninteractive l\n", "x\n")


@pytest.mark.parametrize("missing", [[], ["timeout"]])
def test_missing_program(missing: list[str]) -> None:
    module = DummyModule()
    module.missing = missing
    status, output, complaint = command_runner(t.cast("t.Any", module))(["/nowhere/program"])
    assert (status, output) == (127, "")
    assert "/nowhere/program" in complaint


def test_timeout() -> None:
    status, _output, complaint = command_runner(t.cast("t.Any", DummyModule()), limit=1)(["sleep", "60"])
    assert (status, complaint) == (124, "it did not end within 1 seconds")


def test_timeout_of_a_command_that_ignores_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = DummyModule()
    monkeypatch.setattr(module, "get_bin_path", lambda _name: "/usr/bin/timeout")
    run_command = module.run_command

    def with_short_kill_delay(argv: list[str], **options: t.Any) -> tuple[int, str, str]:
        return run_command([argv[0], "-k", "0.1", *argv[3:]], **options)

    monkeypatch.setattr(module, "run_command", with_short_kill_delay)
    status, _output, complaint = command_runner(t.cast("t.Any", module), limit=1)(
        ["sh", "-c", "trap '' TERM; sleep 60; sleep 60"]
    )
    assert (status, complaint) == (124, "it did not end within 1 seconds")


@pytest.mark.parametrize("status", [137, -9])
@pytest.mark.parametrize("seconds", [1.0, 8.0])
def test_killed_command_is_a_timeout_only_after_its_limit(
    monkeypatch: pytest.MonkeyPatch, status: int, seconds: float
) -> None:
    clock = iter([100.0, 100.0 + seconds])
    module = DummyModule()
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr(module, "run_command", lambda _argv, **_options: (status, "", "Killed"))
    expected = (124, "", "it did not end within 7 seconds") if seconds > 7 else (status, "", "Killed")
    assert command_runner(t.cast("t.Any", module), limit=7)(["x"]) == expected


SECRETS = ["hunter2", "hunter3", "hunter4", "hunter5", "hunter6", "hunter7"]
_LOGGED: dict[str, tuple[str, dict[str, t.Any]]] = {
    "settings": (
        "nvidia_toolkit_config",
        {
            "settings": {
                "nvidia-container-cli": {"environment": ["API_TOKEN=hunter2 of mine", "P=http://bob:hunter3@proxy"]},
                "nvidia-container-runtime.log-level": "debug",
                "x": {"password": "hunter4", "apiKey": "runc", "secret": True, "tokens": [["hunter5"], 1234567]},
            },
            "allow_unknown": True,
        },
    ),
    "text": (
        "nvidia_toolkit_config",
        {"settings": '{"x": {"password": "hunter4"}, "mode": "debug"}', "allow_unknown": True},
    ),
    "unsupported": (
        "nvidia_toolkit_config",
        {"settings": '{"x": {"password": "hunter4"}}', "setting": {"clientSecret": "hunter6"}, "debug": "debug"},
    ),
    "runtime_options": (
        "nvidia_runtime_config",
        {"engine": "containerd", "runtime_options": {"BinaryName": "debug", "auth": "hunter7", "Root": "runc"}},
    ),
    "directory": ("nvidia_toolkit_install", {"source": "directory", "settings": {"debug": {"db_passwd": "hunter4"}}}),
    # Python writes these secrets with escape sequences where a dictionary becomes a text.
    "escaped": (
        "nvidia_toolkit_config",
        {
            "settings": {"x": {"password": "a\\hunter2", "private_key": "'\"\nhunter3\n", "mode": "debug"}},
            "allow_unknown": True,
        },
    ),
}


@pytest.mark.parametrize("case", list(_LOGGED))
def test_secrets_in_parameters_are_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    basic = pytest.importorskip("ansible.module_utils.basic")
    name, given = _LOGGED[case]
    tree = tmp_path / "tree"
    (tree / "etc/nvidia-container-runtime").mkdir(parents=True)
    (tree / "etc/nvidia-container-runtime/config.toml").write_text("", encoding="utf-8")
    # Releases before 2.21 always put the invocation into the result.
    internal = {
        f"_ansible_{key}": True for key in ("check_mode", "diff", "inject_invocation") if key in basic.PASS_VARS
    }
    arguments = {"ANSIBLE_MODULE_ARGS": {**given, "host_root": str(tree), **internal}}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps(arguments).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    monkeypatch.setattr(basic, "has_journal", False)
    logged: list[str] = []
    monkeypatch.setattr(basic.syslog, "syslog", lambda _priority, message: logged.append(message))
    with pytest.raises(SystemExit):
        importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.modules.{name}").main()
    result = capsys.readouterr().out
    assert ("failed" in json.loads(result)) == (case in ("unsupported", "directory"))
    assert bool(logged) == (case != "unsupported")
    for text in (*logged, result):
        assert [secret for secret in (*SECRETS, "of mine", "1234567") if secret in text] == []
    # Ordinary values stay readable.
    assert all("debug" in text for text in (*logged[:1], result))
    if case == "settings":
        assert "'apiKey': 'runc', 'secret': True" in logged[0]


# Action plugins do the work of these modules, which contain only documentation.
_MODULES = sorted(
    {path.stem for path in (Path(__file__).parents[4] / "plugins/modules").glob("nvidia_*.py")}
    - {"nvidia_audit_report", "nvidia_check_settings", "nvidia_host_summary"}
)


@pytest.mark.parametrize("name", _MODULES)
def test_all_modules_use_new_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    basic = pytest.importorskip("ansible.module_utils.basic")
    arguments = {"ANSIBLE_MODULE_ARGS": {"unknown": {"password": "hunter2"}}}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps(arguments).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    with pytest.raises(SystemExit):
        importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.modules.{name}").main()
    result = capsys.readouterr().out
    assert json.loads(result)["failed"]
    assert "hunter2" not in result


_LITERAL = ["$HOME", "${HOME}/x", "~root", "~/x"]


@pytest.mark.parametrize("limit", [60, None])
def test_arguments_of_commands_are_not_expanded(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    basic = pytest.importorskip("ansible.module_utils.basic")
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", b'{"ANSIBLE_MODULE_ARGS": {}}')
    # ansible-core needs this from 2.19 on.
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    module = basic.AnsibleModule(argument_spec={})
    output = "\n".join(_LITERAL) + "\n"
    assert command_runner(module, limit)(["printf", "%s\\n", *_LITERAL]) == (0, output, "")
    assert pinned_runner(module)(["env"]) == (0, f"PATH={':'.join(SERVICE_PATH)}\n", "")


@pytest.mark.parametrize(("limit", "argv"), [(7, ["/usr/bin/timeout", "-k", "5", "7", "x"]), (None, ["x"])])
def test_limit_of_commands(monkeypatch: pytest.MonkeyPatch, limit: int | None, argv: list[str]) -> None:
    ran: list[list[str]] = []
    module = DummyModule()

    def run_command(argv: list[str], **_more: t.Any) -> tuple[int, str, str]:
        ran.append(argv)
        return 0, "", ""

    monkeypatch.setattr(module, "run_command", run_command)
    assert command_runner(t.cast("t.Any", module), limit)(["x"]) == (0, "", "")
    assert ran == [argv]
