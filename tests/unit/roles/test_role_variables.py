# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of each role, and the options that it passes to its modules."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CDI_OPTIONS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import detect_gpu
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import DIRECTORY
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role, render

if t.TYPE_CHECKING:
    from pathlib import Path

CDI, RUNTIME, TOOLKIT = Role("nvidia_cdi"), Role("nvidia_runtime"), Role("nvidia_toolkit")
INSTALL = "gpufleet.nvidia.nvidia_toolkit_install"
SPEC, REFRESH = "gpufleet.nvidia.nvidia_cdi_spec", "gpufleet.nvidia.nvidia_cdi_refresh"
SETTING = "disable-cuda-compat-lib-hook"
# Options whose variables have other names.
RENAMED = {"cdi_hook_path": "hook_path"}


def variables(known: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the variables of the role, with those rendered that the tests need."""
    values = {**CDI.load("defaults/main.yml"), **known}
    values["nvidia_cdi_toolkit_settings"] = known.get("nvidia_toolkit_settings") or {}
    for name in ("nvidia_cdi_without_cuda_compat", "nvidia_cdi_offline"):
        values[name] = render(CDI.load("vars/main.yml")[name], values)
    return values


# -- nvidia_cdi: defaults that depend on nvidia_toolkit ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "hook", "driver"),
    [
        ({}, "/usr/bin/nvidia-cdi-hook", "/"),
        (
            {
                "nvidia_toolkit_source": "repository",
                "nvidia_toolkit_dest": "/opt/t",
                "nvidia_toolkit_driver_root": "/d",
            },
            "/usr/bin/nvidia-cdi-hook",
            "/",
        ),
        (
            {"nvidia_toolkit_source": "directory", "nvidia_toolkit_dest": "/opt/t", "nvidia_toolkit_driver_root": "/d"},
            "/opt/t/nvidia-cdi-hook",
            "/d",
        ),
        # Without the role nvidia_toolkit in the play, its defaults are unknown.
        ({"nvidia_toolkit_source": "directory"}, f"{DIRECTORY}/nvidia-cdi-hook", "/"),
    ],
)
def test_default_paths(known: dict[str, str], hook: str, driver: str) -> None:
    defaults = CDI.load("defaults/main.yml")
    assert render(defaults["nvidia_cdi_hook_path"], known) == hook
    assert render(defaults["nvidia_cdi_driver_root"], known) == driver


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, "[]"),
        ({}, "[]"),
        ({"features": None}, "[]"),
        ({"features": {SETTING: False}}, "[]"),
        ({"features": {SETTING: True}}, "['enable-cuda-compat']"),
        ({f"features.{SETTING}": True}, "['enable-cuda-compat']"),
        ({f"features.{SETTING}": False}, "[]"),
        # Null is the default.
        ({f"features.{SETTING}": None}, "[]"),
        ({"features.other": True, "features": {SETTING: True}}, "['enable-cuda-compat']"),
    ],
)
def test_setting_of_the_toolkit_disables_the_hook(settings: dict[str, t.Any] | None, expected: str) -> None:
    values = variables({} if settings is None else {"nvidia_toolkit_settings": settings})
    assert render(values["nvidia_cdi_disabled_hooks"], values) == expected


# -- nvidia_cdi: tasks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "True"),
        ({"nvidia_toolkit_info": {}}, "False"),
        ({"nvidia_toolkit_info": {}, "nvidia_toolkit_host_root": "/srv/image"}, "True"),
        ({"nvidia_toolkit_info": {}, "nvidia_toolkit_host_root_live": True}, "True"),
        ({"nvidia_cdi_state": "absent"}, "False"),
    ],
)
def test_host_is_inspected_once(known: dict[str, t.Any], expected: str) -> None:
    known = {"nvidia_cdi_state": "present", "nvidia_cdi_host_root": "/", "nvidia_cdi_host_root_live": False, **known}
    assert render(CDI.load("vars/main.yml")["nvidia_cdi_inspection_needed"], known) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "False"),
        ({"nvidia_runtime_reuse_inspection": False}, "True"),
        ({"nvidia_toolkit_info": {"toolkit": {}}}, "True"),
        ({"nvidia_runtime_host_root": "/srv/image"}, "True"),
        ({"nvidia_runtime_host_root_live": True}, "True"),
        ({"nvidia_toolkit_installation": {"changed": True}}, "True"),
        ({"nvidia_toolkit_installation": {"changed": False}}, "False"),
        ({"nvidia_cdi_units": {"changed": True}}, "True"),
        ({"nvidia_cdi_specification": {"changed": True}}, "True"),
    ],
)
def test_inspection_of_the_engines_is_reused_until_a_change(known: dict[str, t.Any], expected: str) -> None:
    values = {
        **RUNTIME.load("vars/main.yml"), "nvidia_runtime_reuse_inspection": True, "nvidia_runtime_host_root": "/",
        "nvidia_runtime_host_root_live": False, "nvidia_toolkit_info": {"engines": [], "toolkit": {}}, **known,
    }  # fmt: skip
    values["nvidia_runtime_changed_before"] = render(values["nvidia_runtime_changed_before"], values)
    assert render(values["nvidia_runtime_inspection_needed"], values) == expected


@pytest.mark.parametrize(
    ("target", "user"),
    [
        ("docker/rootless/alice", "alice"),
        ("docker/rootless", ""),
        ("docker", ""),
        ("containerd/system/rootless-containerd.service", ""),
    ],
)
def test_user_of_a_group(target: str, user: str) -> None:
    assert render(RUNTIME.load("vars/main.yml")["nvidia_runtime_user"], {"item": [target]}) == user


LOADED = ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n")
ON_THE_BUS = [
    ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de"),
    ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200"),
]


def host_with(path: Path, *files: tuple[str, str]) -> HostFS:
    for name, content in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    (path / "sys/bus").mkdir(parents=True, exist_ok=True)
    return HostFS(str(path), live=True)


@pytest.mark.parametrize(
    ("files", "mode", "expected"),
    [
        ([], "auto", "False"),
        ([LOADED], "auto", "True"),
        # A GPU without its driver.
        (ON_THE_BUS, "nvml", "False"),
        # WSL and Tegra.
        ([("dev/dxg", "")], "auto", "True"),
        ([("proc/device-tree/compatible", "nvidia,tegra234\0")], "auto", "True"),
        # A mode that needs no GPU driver.
        ([], "mofed", "True"),
        ([], "management", "False"),
    ],
)
def test_specification_needs_a_driver(tmp_path: Path, files: list[tuple[str, str]], mode: str, expected: str) -> None:
    gpu = detect_gpu(host_with(tmp_path, *files))
    known = {"present": gpu.present, "kind": gpu.kind, "message": gpu.message, "driver_version": gpu.driver}
    text = CDI.load("vars/main.yml")["nvidia_cdi_has_devices"]
    assert render(text, {"nvidia_cdi_mode": mode, "nvidia_cdi_gpu": known}) == expected


@pytest.mark.parametrize("role", ["cdi", "toolkit"])
def test_result_of_the_inspection(role: str) -> None:
    results = {f"nvidia_{name}_info": {"toolkit": {"gpu": name}} for name in ("cdi", "toolkit")}
    text = CDI.load("vars/main.yml")["nvidia_cdi_gpu"]
    assert render(text, {**results, "nvidia_cdi_inspection_needed": role == "cdi"}) == role


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, ""),
        ({"nvidia_cdi_inspection_needed": True}, "inspect.yml"),
        ({"nvidia_cdi_has_devices": False}, "no_driver.yml"),
        ({"nvidia_cdi_state": "absent", "nvidia_cdi_has_devices": False}, "absent.yml"),
    ],
)
def test_cdi_task_file(known: dict[str, t.Any], expected: str) -> None:
    defaults = {"nvidia_cdi_state": "present", "nvidia_cdi_has_devices": True, "nvidia_cdi_inspection_needed": False}
    assert render(CDI.load("vars/main.yml")["nvidia_cdi_file"], {**defaults, **known}) == expected
    assert not expected or (CDI.folder / "tasks" / expected).is_file()


@pytest.mark.parametrize(
    ("root", "live", "expected"), [("/", False, "False"), ("/srv/image", False, "True"), ("/srv/host", True, "False")]
)
def test_offline_tree(root: str, live: bool, expected: str) -> None:
    assert (
        variables({"nvidia_cdi_host_root": root, "nvidia_cdi_host_root_live": live})["nvidia_cdi_offline"] == expected
    )


# -- nvidia_cdi: options of the modules --------------------------------------------------------------------------------


def arguments_of(file: str, module: str) -> dict[str, t.Any]:
    (task,) = [task for task in CDI.load(f"tasks/{file}") if module in task]
    arguments: dict[str, t.Any] = task[module]
    return arguments


def test_units_have_the_options_of_the_specification() -> None:
    spec, units = arguments_of("refresh.yml", SPEC), arguments_of("units.yml", REFRESH)
    assert set(CDI_OPTIONS) <= set(spec)
    # Units do not remove other specifications.
    del spec["exclusive"]
    assert units.pop("owner") == "{{ nvidia_cdi_refresh }}"
    assert spec.pop("refresh") == "{{ nvidia_cdi_refresh_units | default(omit) }}"
    assert units == spec


def test_variables_match_the_options() -> None:
    specified, spec = CDI.options(), arguments_of("refresh.yml", SPEC)
    for name, option in CDI_OPTIONS.items():
        variable = f"nvidia_cdi_{RENAMED.get(name, name)}"
        assert re.match(rf"{{{{ {variable}\b", spec[name])
        described = {
            key: specified[variable][key] for key in ("type", "elements", "choices") if key in specified[variable]
        }
        assert described == {key: option[key] for key in ("type", "elements", "choices") if key in option}
        default = specified[variable].get("default")
        if "nvidia_toolkit" not in str(default) and "without_cuda_compat" not in str(default):
            assert default == option.get("default")


def test_removal_has_the_options_of_the_specification() -> None:
    spec, absent = arguments_of("refresh.yml", SPEC), arguments_of("absent.yml", SPEC)
    assert absent.pop("state") == "absent"
    assert absent.pop("purge_backups") == "{{ nvidia_cdi_purge_backups }}"
    assert absent == {name: spec[name] for name in absent}
    assert {"path", "vendor", "class", "host_root", "backup_dir"} <= set(absent)


def test_units_are_removed_first() -> None:
    assert [next(key for key in task if "." in key) for task in CDI.load("tasks/absent.yml")] == [REFRESH, SPEC]


def test_refresh_is_one_task() -> None:
    assert len(CDI.load("tasks/refresh.yml")) == 1
    specs = CDI.load("meta/argument_specs.yml")["argument_specs"]
    assert specs["refresh"]["options"] == specs["main"]["options"]


# -- nvidia_toolkit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        # A host that is up to date.
        ({}, []),
        ({"nvidia_toolkit_key_missing": True}, ["key"]),
        ({"nvidia_toolkit_files_to_send": ["x.deb"]}, ["send"]),
        ({"nvidia_toolkit_info": {"users_to_inspect": ["me"]}, "nvidia_toolkit_key_missing": True}, ["users", "key"]),
        ({"nvidia_toolkit_gpu_missing": True, "nvidia_toolkit_install_enabled": False,
          "nvidia_toolkit_key_missing": True}, ["no_gpu"]),
        ({"nvidia_toolkit_gpu_missing": True, "nvidia_toolkit_files_to_send": ["x.deb"]}, ["no_gpu", "send"]),
        # Packages are installed in / only.
        ({"nvidia_toolkit_host_root": "/tree", "nvidia_toolkit_key_missing": True}, ["refuse_packages"]),
        ({"nvidia_toolkit_host_root": "/tree", "nvidia_toolkit_source": "directory"}, []),
        ({"nvidia_toolkit_host_root": "/tree", "nvidia_toolkit_source": "existing"}, []),
        ({"nvidia_toolkit_host_root": "/tree", "nvidia_toolkit_state": "absent"}, ["remove_packages"]),
        ({"nvidia_toolkit_state": "absent", "nvidia_toolkit_gpu_missing": True}, ["remove_packages"]),
        ({"nvidia_toolkit_state": "absent", "nvidia_toolkit_source": "directory"}, ["remove_directory"]),
    ],
)  # fmt: skip
def test_steps_that_only_some_hosts_need(changed: dict[str, t.Any], steps: list[str]) -> None:
    known = {
        "nvidia_toolkit_source": "repository", "nvidia_toolkit_state": "present", "nvidia_toolkit_info": {},
        "nvidia_toolkit_gpu_missing": False, "nvidia_toolkit_install_enabled": True,
        "nvidia_toolkit_key_missing": False, "nvidia_toolkit_files_to_send": [], "nvidia_toolkit_host_root": "/",
        **changed,
    }  # fmt: skip
    role = TOOLKIT.load("vars/main.yml")
    assert render(role["nvidia_toolkit_steps"], known) == str(steps)
    file = render(role["nvidia_toolkit_file"], {"nvidia_toolkit_steps": steps})
    assert not steps or (TOOLKIT.folder / "tasks" / file).is_file()
    assert len(steps) < 2 or all(f"'{step}' in nvidia_toolkit_steps" in TOOLKIT.tasks() for step in steps)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "True"),
        ({"nvidia_toolkit_inspect_engines": False}, "False"),
        ({"nvidia_runtime_state": "absent"}, "False"),
        ({"ansible_run_tags": ["toolkit", "cdi"]}, "False"),
        ({"ansible_run_tags": ["toolkit", "mine"]}, "True"),
        ({"ansible_skip_tags": ["runtime"]}, "False"),
    ],
)
def test_engines_are_required_if_they_are_configured(changed: dict[str, t.Any], expected: str) -> None:
    known = {
        "nvidia_toolkit_inspect_engines": True, "nvidia_toolkit_state": "present", "ansible_run_tags": ["all"],
        "ansible_skip_tags": [], **changed,
    }  # fmt: skip
    assert render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_requires_engines"], known) == expected


def test_removal_of_a_directory_is_one_task() -> None:
    (task,) = TOOLKIT.load("tasks/remove_directory.yml")
    assert task[INSTALL]["source"] == "directory"


def test_default_directory() -> None:
    assert TOOLKIT.load("defaults/main.yml")["nvidia_toolkit_dest"] == DIRECTORY
    (inspection, *_tasks) = TOOLKIT.load("tasks/main.yml")
    assert inspection["gpufleet.nvidia.nvidia_container_info"]["toolkit_dir"] == "{{ nvidia_toolkit_dest }}"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "/usr/bin"),
        ({"nvidia_toolkit_source": "repository", "nvidia_toolkit_dest": "/opt/toolkit"}, "/usr/bin"),
        ({"nvidia_toolkit_source": "directory", "nvidia_toolkit_dest": "/opt/toolkit"}, "/opt/toolkit"),
        # Without the role nvidia_toolkit in the play, its defaults are unknown.
        ({"nvidia_toolkit_source": "directory"}, DIRECTORY),
    ],
)
def test_directory_of_runtimes(known: dict[str, str], expected: str) -> None:
    assert render(RUNTIME.load("defaults/main.yml")["nvidia_runtime_dir"], known) == expected


@pytest.mark.parametrize(
    ("manager", "gpg", "root", "expected"),
    [
        ("apt", None, "/", "True"), ("dnf", "/usr/bin/gpg", "/", "True"),
        # The installation refuses these hosts, so nothing is written before.
        ("dnf", None, "/", "False"), ("", None, "/", "False"), ("apt", None, "/tree", "False"),
    ],
)  # fmt: skip
def test_key_is_fetched_only_for_a_host_that_can_use_it(
    manager: str, gpg: str | None, root: str, expected: str
) -> None:
    known = {
        "nvidia_toolkit_source": "repository", "nvidia_toolkit_host_root": root, "nvidia_toolkit_key_given": False,
        "nvidia_toolkit_manager": manager, "nvidia_toolkit_info": {"toolkit": {"gpg": gpg}},
        "nvidia_toolkit_staged_key": "x", "nvidia_toolkit_existing_files": [], "nvidia_toolkit_key_refresh": False,
    }  # fmt: skip
    assert render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_key_missing"], known) == expected


# -- nvidia_runtime ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pending", "changed", "earlier", "expected"),
    [
        # The engine reported what it needs.
        ("none", "restart", "restart", "none"),
        ("reload", "restart", None, "reload"),
        ("restart", "none", None, "restart"),
        # The engine reported nothing, so the strongest action of the play is used.
        (None, "reload", None, "reload"),
        (None, "reload", "restart", "restart"),
        (None, "restart", "reload", "restart"),
        (None, "none", "reload", "reload"),
        (None, "none", None, "none"),
    ],
)
def test_action_of_the_handler(pending: str | None, changed: str, earlier: str | None, expected: str) -> None:
    variables = RUNTIME.load("vars/main.yml")
    item = {"target": "docker", "pending_action": pending, "restart_action": changed}
    due = {} if earlier is None else {"/ docker": {"action": earlier}}
    known = {"item": item, "nvidia_runtime_host_root": "/", "nvidia_runtime_interrupted": []}
    key = render(variables["nvidia_runtime_pending_key"], known)
    assert key == "/ docker"
    known["nvidia_runtime_earlier_entry"] = due.get(key, {})
    assert render(variables["nvidia_runtime_action"], known) == expected


@pytest.mark.parametrize(
    ("mode", "signalable", "expected"),
    [("auto", [], "restart"), ("systemd", [], "restart"), ("signal", [], "reload"), ("auto", ["docker"], "reload")],
)
def test_repeats_an_interrupted_restart(mode: str, signalable: list[str], expected: str) -> None:
    item = {"target": "docker", "pending_action": "none", "restart_action": "none"}
    known = {
        "item": item,
        "nvidia_runtime_interrupted": ["docker"],
        "nvidia_runtime_restart_mode": mode,
        "nvidia_runtime_reloadable_by_signal": signalable,
    }
    assert render(RUNTIME.load("vars/main.yml")["nvidia_runtime_action"], known) == expected


@pytest.mark.parametrize(("restartable", "warnings"), [([], 1), (["docker"], 0)])
def test_warns_about_an_interrupted_restart(restartable: list[str], warnings: int) -> None:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(autoescape=False)
    environment.filters["regex_replace"] = lambda value, pattern, new: re.sub(pattern, new, value)
    expression = RUNTIME.load("vars/main.yml")["nvidia_runtime_warnings"].strip()[2:-2]
    # Ansible escapes a backslash in an expression before Jinja reads it.
    found = environment.compile_expression(expression.replace("\\", "\\\\"))(
        nvidia_runtime_targets=["docker"], nvidia_runtime_interrupted=["docker"], nvidia_runtime_not_restarted=[],
        nvidia_runtime_restartable=restartable, nvidia_runtime_state="present", nvidia_runtime_without_cdi=[],
    )  # fmt: skip
    assert len(found) == warnings
    assert all("restart of docker was interrupted" in warning for warning in found)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "False"),
        ({"nvidia_runtime_result": {"changed": True}, "nvidia_runtime_results": [{}]}, "True"),
        ({"nvidia_runtime_results": []}, "True"),
        ({"nvidia_runtime_results": [{"error": "x"}]}, "True"),
        ({"nvidia_runtime_results": [{"restart_required": True}]}, "True"),
        ({"nvidia_runtime_results": [{"restart_required": False, "cdi": True}]}, "False"),
        ({"nvidia_runtime_info": {"engines": [{"unfinished_restart": True}]}}, "True"),
        ({"nvidia_runtime_verify": "gpu"}, "True"),
        ({"nvidia_cdi_units": {}, "nvidia_runtime_results": [{"cdi": False}]}, "True"),
        ({"nvidia_runtime_results": [{"cdi": False}]}, "False"),
        ({"nvidia_runtime_info_of_users": {}}, "True"),
    ],
)
def test_follow_up_is_skipped_on_unchanged_hosts_only(known: dict[str, t.Any], expected: str) -> None:
    values = {
        "nvidia_runtime_info": {"engines": [{"unfinished_restart": False}]}, "nvidia_runtime_verify": "off",
        "nvidia_runtime_result": {}, "nvidia_runtime_results": [{"cdi": None}], **known,
    }  # fmt: skip
    role = RUNTIME.load("vars/main.yml")
    values["nvidia_runtime_restart_interrupted"] = render(role["nvidia_runtime_restart_interrupted"], values)
    assert render(role["nvidia_runtime_follow_up_needed"], values) == expected
