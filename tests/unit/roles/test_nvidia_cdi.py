# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role nvidia_cdi decides by its variables, and what it hands to its two modules."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.options import CDI_OPTIONS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import detect_gpu
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import DIRECTORY
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role

if t.TYPE_CHECKING:
    from pathlib import Path

CDI, TOOLKIT = Role("nvidia_cdi"), Role("nvidia_toolkit")
SPEC, REFRESH = "gpufleet.nvidia.nvidia_cdi_spec", "gpufleet.nvidia.nvidia_cdi_refresh"
SETTING = "disable-cuda-compat-lib-hook"
# Options whose variables have other names.
RENAMED = {"cdi_hook_path": "hook_path"}


def render(text: t.Any, known: dict[str, t.Any]) -> str:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment()
    environment.filters["bool"] = lambda value: str(value).strip().lower() in ("true", "1", "yes")
    environment.tests["skipped"] = lambda result: result.get("skipped", False)
    environment.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    rendered: str = environment.from_string(str(text)).render(known)
    return rendered.strip()


def variables(known: dict[str, t.Any]) -> dict[str, t.Any]:
    """All of the role's, each rendered with those before it, as far as they are needed here."""
    made = {**CDI.load("defaults/main.yml"), **known}
    made["nvidia_cdi_toolkit_settings"] = known.get("nvidia_toolkit_settings") or {}
    for name in ("nvidia_cdi_without_cuda_compat", "nvidia_cdi_offline"):
        made[name] = render(CDI.load("vars/main.yml")[name], made)
    return made


# -- defaults that follow the role of the toolkit ----------------------------------------------------------------------


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
        # Where the role nvidia_toolkit is no part of the play, its defaults are not known.
        ({"nvidia_toolkit_source": "directory"}, f"{DIRECTORY}/nvidia-cdi-hook", "/"),
    ],
)
def test_programs_and_driver_are_where_the_toolkit_has_them(known: dict[str, str], hook: str, driver: str) -> None:
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
        # Back to its default.
        ({f"features.{SETTING}": None}, "[]"),
        ({"features.other": True, "features": {SETTING: True}}, "['enable-cuda-compat']"),
    ],
)
def test_the_setting_against_cuda_of_images_reaches_the_specification(
    settings: dict[str, t.Any] | None, expected: str
) -> None:
    made = variables({} if settings is None else {"nvidia_toolkit_settings": settings})
    assert render(made["nvidia_cdi_disabled_hooks"], made) == expected


# -- what is done ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "True"),
        ({"nvidia_toolkit_info": {}}, "False"),
        ({"nvidia_toolkit_info": {}, "nvidia_toolkit_host_root": "/srv/image"}, "True"),
        ({"nvidia_toolkit_info": {}, "nvidia_toolkit_host_root_live": True}, "True"),
        ({"nvidia_cdi_state": "absent"}, "False"),
    ],
)
def test_a_host_is_asked_once(asked: dict[str, t.Any], expected: str) -> None:
    known = {"nvidia_cdi_state": "present", "nvidia_cdi_host_root": "/", "nvidia_cdi_host_root_live": False, **asked}
    assert render(CDI.load("vars/main.yml")["nvidia_cdi_unasked"], known) == expected


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
        # Windows' GPUs, and Tegra's.
        ([("dev/dxg", "")], "auto", "True"),
        ([("proc/device-tree/compatible", "nvidia,tegra234\0")], "auto", "True"),
        # What needs no driver of a GPU.
        ([], "mofed", "True"),
        ([], "management", "False"),
    ],
)
def test_a_host_is_described_once_it_has_a_driver(
    tmp_path: Path, files: list[tuple[str, str]], mode: str, expected: str
) -> None:
    gpu = detect_gpu(host_with(tmp_path, *files))
    known = {"present": gpu.present, "kind": gpu.kind, "evidence": gpu.evidence, "driver_version": gpu.driver}
    ready = CDI.load("vars/main.yml")["nvidia_cdi_ready"]
    assert render(ready, {"nvidia_cdi_mode": mode, "nvidia_cdi_gpu": known}) == expected


@pytest.mark.parametrize("name", ["asked", "heard"])
def test_the_answer_is_that_of_whoever_asked(name: str) -> None:
    answers = {"nvidia_toolkit_info": {"toolkit": {"gpu": "heard"}}, "nvidia_cdi_info": {"toolkit": {"gpu": "asked"}}}
    text = CDI.load("vars/main.yml")["nvidia_cdi_gpu"]
    assert render(text, {**answers, "nvidia_cdi_unasked": name == "asked"}) == name


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, "present.yml"),
        ({"nvidia_cdi_ready": False}, "no_driver.yml"),
        ({"nvidia_cdi_state": "absent", "nvidia_cdi_ready": False}, "absent.yml"),
    ],
)
def test_each_state_has_a_file_of_tasks(known: dict[str, t.Any], expected: str) -> None:
    usual = {"nvidia_cdi_state": "present", "nvidia_cdi_ready": True}
    assert render(CDI.load("vars/main.yml")["nvidia_cdi_file"], {**usual, **known}) == expected
    assert (CDI.folder / "tasks" / expected).is_file()


@pytest.mark.parametrize(
    ("root", "live", "expected"), [("/", False, "False"), ("/srv/image", False, "True"), ("/srv/host", True, "False")]
)
def test_only_a_tree_of_its_own_is_offline(root: str, live: bool, expected: str) -> None:
    assert (
        variables({"nvidia_cdi_host_root": root, "nvidia_cdi_host_root_live": live})["nvidia_cdi_offline"] == expected
    )


# -- what modules are told ---------------------------------------------------------------------------------------------


def told(file: str, module: str) -> dict[str, t.Any]:
    (task,) = [each for each in CDI.load(f"tasks/{file}") if module in each]
    arguments: dict[str, t.Any] = task[module]
    return arguments


def test_units_make_the_very_specification_of_the_role() -> None:
    spec, units = told("refresh.yml", SPEC), told("units.yml", REFRESH)
    assert set(CDI_OPTIONS) <= set(spec)
    # Other specifications are removed by tasks alone.
    del spec["exclusive"]
    assert {name: value for name, value in units.items() if name in spec} == spec
    assert set(units) - set(spec) == {"owner", "before_engines"}


def test_each_option_has_a_variable_of_its_name_and_with_its_default() -> None:
    specified, spec = CDI.options(), told("refresh.yml", SPEC)
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


def test_what_is_taken_back_is_what_was_written() -> None:
    spec, absent = told("refresh.yml", SPEC), told("absent.yml", SPEC)
    assert absent.pop("state") == "absent"
    assert absent.pop("purge_backups") == "{{ nvidia_cdi_purge_backups }}"
    assert absent == {name: spec[name] for name in absent}
    assert {"path", "vendor", "class", "host_root", "backup_dir"} <= set(absent)


def test_units_go_before_the_specification_that_they_would_write_again() -> None:
    assert [next(key for key in task if "." in key) for task in CDI.load("tasks/absent.yml")] == [REFRESH, SPEC]


def test_a_step_after_a_change_of_mig_devices_is_one_task() -> None:
    assert len(CDI.load("tasks/refresh.yml")) == 1
    specs = CDI.load("meta/argument_specs.yml")["argument_specs"]
    assert specs["refresh"]["options"] == specs["main"]["options"]
