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
    ("source", "state", "key_missing", "expected"),
    [
        ("directory", "present", True, "directory"),
        ("directory", "absent", True, "directory_absent"),
        ("repository", "present", True, "key"),
        ("repository", "present", False, "install"),
        ("files", "present", True, "files"),
        ("existing", "present", True, "install"),
        ("existing", "absent", True, "absent"),
    ],
)
def test_toolkit_task_file(source: str, state: str, key_missing: bool, expected: str) -> None:
    variables = {
        "nvidia_toolkit_source": source,
        "nvidia_toolkit_state": state,
        "nvidia_toolkit_key_missing": key_missing,
    }
    assert render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_file"], variables) == f"{expected}.yml"
    assert (TOOLKIT.folder / "tasks" / f"{expected}.yml").is_file()


@pytest.mark.parametrize("file", ["directory.yml", "directory_absent.yml"])
def test_directory_is_one_task(file: str) -> None:
    (task,) = TOOLKIT.load(f"tasks/{file}")
    assert task[INSTALL]["source"] == "directory"
    assert task["register"] == "nvidia_toolkit_installation"


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
    ("manager", "gpg", "refused"),
    [("dnf", None, True), ("dnf", "/usr/bin/gpg", False), ("apt", None, False)],
)
def test_missing_gpg(manager: str, gpg: str | None, refused: bool) -> None:
    known = {"nvidia_toolkit_manager": manager, "nvidia_toolkit_info": {"toolkit": {"gpg": gpg}}}
    message = render(TOOLKIT.load("vars/main.yml")["nvidia_toolkit_gpg_missing"], known)
    assert ("gnupg2" in message) is bool(message) is refused
    assert "[nvidia_toolkit_gpg_missing]" in TOOLKIT.load("vars/main.yml")["nvidia_toolkit_errors_repository"]
