# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of each role, and the options that it passes to its modules."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CDI_OPTIONS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.variables import MODULE_OPTIONS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import parameters
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import DIRECTORY
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _role_state
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role, render

CDI, RUNTIME, TOOLKIT = Role("nvidia_cdi"), Role("nvidia_runtime"), Role("nvidia_toolkit")
INSTALL = "gpufleet.nvidia.nvidia_toolkit_install"
SPEC, CONFIG = "gpufleet.nvidia.nvidia_cdi_spec", "gpufleet.nvidia.nvidia_runtime_config"
SETTING = "disable-cuda-compat-lib-hook"
# Options whose variables have other names.
RENAMED = {"cdi_hook_path": "hook_path"}


def variables(known: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the variables of the role, with those rendered that the tests need."""
    values = {**CDI.load("defaults/main.yml"), **known}
    found = _role_state.without_cuda_compat({}, known.get("nvidia_toolkit_settings"))
    return {**values, "nvidia_cdi_without_cuda_compat": found}


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


# -- nvidia_cdi: options of the modules --------------------------------------------------------------------------------


def arguments_of(file: str, module: str) -> dict[str, t.Any]:
    (task,) = [task for task in CDI.load(f"tasks/{file}") if module in task]
    arguments: dict[str, t.Any] = task[module]
    return arguments


def test_variables_match_the_options() -> None:
    specified, spec = CDI.options(), arguments_of("refresh.yml", SPEC)
    for name in CDI_OPTIONS.keys() - {*MODULE_OPTIONS["nvidia_cdi"]}:
        option = CDI_OPTIONS[name]
        variable = f"nvidia_cdi_{RENAMED.get(name, name)}"
        assert re.match(rf"{{{{ (omit if )?{variable}\b", spec[name])
        described = {
            key: specified[variable][key] for key in ("type", "elements", "choices") if key in specified[variable]
        }
        assert described == {key: option[key] for key in ("type", "elements", "choices") if key in option}
        default = specified[variable].get("default")
        if "nvidia_toolkit" not in str(default) and "without_cuda_compat" not in str(default):
            assert default == option.get("default")


@pytest.mark.parametrize(
    ("state", "refresh", "units", "task"),
    [
        ("present", "auto", "auto", "Write the CDI specification"),
        ("present", "none", "none", "Write the CDI specification"),
        # A removal removes the units of earlier runs.
        ("absent", "none", "auto", "Remove the CDI specification"),
        ("absent", "auto", "auto", "Remove the CDI specification"),
    ],
)
def test_one_task_for_the_units_and_the_specification(state: str, refresh: str, units: str, task: str) -> None:
    (imported,) = CDI.load("tasks/main.yml")
    assert imported["ansible.builtin.import_tasks"] == "refresh.yml"
    # A condition that is false would print a line for each host.
    assert "when" not in imported
    known = {
        "nvidia_cdi_state": state,
        "nvidia_cdi_refresh": refresh,
        "nvidia_cdi_when_no_driver": "fail",
        "omit": "OMIT",
    }
    values = {name: render(text, known) for name, text in imported["vars"].items()}
    assert values == {
        "nvidia_cdi_requested_state": state, "nvidia_cdi_refresh_units": units, "nvidia_cdi_task": task,
        "nvidia_cdi_no_driver_policy": "fail",
    }  # fmt: skip
    (written,) = CDI.load("tasks/refresh.yml")
    assert render(written["name"], values) == task
    arguments = {name: render(written[SPEC][name], {**known, **values}) for name in ("state", "refresh")}
    assert arguments == {"state": state, "refresh": units}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "OMIT"),
        ({"nvidia_toolkit_installation": {"skipped": True}}, "OMIT"),
        ({"nvidia_toolkit_installation": {"predicted": None}}, "OMIT"),
        ({"nvidia_toolkit_installation": {"predicted": {"version": "1.20.0"}}}, "{'version': '1.20.0'}"),
    ],
)
def test_check_mode_knows_the_toolkit_of_an_earlier_task(known: dict[str, t.Any], expected: str) -> None:
    (cdi,) = [task[SPEC] for task in CDI.load("tasks/refresh.yml")]
    (runtime,) = [task[CONFIG] for task in RUNTIME.load("tasks/configure.yml") if CONFIG in task]
    for arguments in (cdi, runtime):
        assert render(arguments["predicted_toolkit"], {"omit": "OMIT", **known}) == expected


def test_refresh_is_one_task_that_does_not_change_units() -> None:
    (task,) = CDI.load("tasks/refresh.yml")
    assert render(task["name"], {}) == "Write the CDI specification"
    arguments = {name: render(task[SPEC][name], {"omit": "OMIT"}) for name in ("state", "refresh", "when_no_driver")}
    assert arguments == {"state": "present", "refresh": "OMIT", "when_no_driver": "OMIT"}
    specs = CDI.load("meta/argument_specs.yml")["argument_specs"]
    assert specs["refresh"]["options"] == specs["main"]["options"]


# -- nvidia_toolkit ---------------------------------------------------------------------------------------------------


def test_the_inspection_plans_what_is_configured() -> None:
    given = RUNTIME.load("vars/main.yml")["nvidia_runtime_required_engines"]["options"]
    (task, *_others) = RUNTIME.load("tasks/configure.yml")
    options = task["gpufleet.nvidia.nvidia_runtime_config"]
    # The action plugins add the other options to both.
    assert set(given) == set(parameters.SPEC) - {*MODULE_OPTIONS["nvidia_runtime"]}
    assert given == {name: options[name] for name in given}


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
