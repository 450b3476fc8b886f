# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The dictionaries ROLE_module_options reach the modules of the roles, and are checked as their options."""

from __future__ import annotations

import types
import typing as t

import pytest

pytest.importorskip("ansible.plugins.action", reason="the options are completed on the controller only")

from ansible.errors import AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.variables import MODULE_OPTIONS
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _module_options
from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role

INFO, INSTALL, CDI, RUNTIME = (
    "nvidia_container_info", "nvidia_toolkit_install", "nvidia_cdi_spec", "nvidia_runtime_config"
)  # fmt: skip
MODULES = {"nvidia_toolkit": INSTALL, "nvidia_cdi": CDI, "nvidia_runtime": RUNTIME}
# A value of each option that differs from its default.
VALUES: dict[str, dict[str, t.Any]] = {
    "nvidia_toolkit": {
        "checksum": "full", "components": ["ctk"], "create_device_nodes": True,
        "default_runtime_executable": "crun", "low_level_runtimes": ["crun"],
    },
    "nvidia_cdi": {
        "all_device": False, "before_engines": False, "config_search_paths": ["/a"], "csv_compat_container_root": "/a",
        "csv_files": ["/a.csv"], "csv_ignore_patterns": ["x"], "device_ids": ["0"], "device_name_strategies": ["uuid"],
        "feature_flags": ["disable-ipc-discoverer"], "format": "json", "ldconfig_path": "/a", "require_devices": False,
        "use_nvml": False,
    },
    "nvidia_runtime": {
        "container_annotations": ["a"], "cri_disabled": "fail", "drop_in_path": "/a.toml", "runtime_type": "oci",
        "use_legacy_config": True,
    },
}  # fmt: skip
OPTIONS = [(role, name) for role, values in VALUES.items() for name in values]


class Templar:
    def template(self, value: t.Any) -> t.Any:
        return value


def completed(
    role: str | None, module: str, args: dict[str, t.Any], known: dict[str, t.Any] | None = None
) -> dict[str, t.Any]:
    path = types.SimpleNamespace(_role_path=str(Role(role).folder)) if role else None
    task = types.SimpleNamespace(_role=path, action=f"gpufleet.nvidia.{module}")
    return _module_options.completed(task, args, Templar(), known or {})


def given(role: str, **options: t.Any) -> dict[str, t.Any]:
    return {f"{role}_module_options": options}


def test_the_values_are_those_of_all_options() -> None:
    assert {role: sorted(values) for role, values in VALUES.items()} == {
        role: list(names) for role, names in MODULE_OPTIONS.items()
    }


@pytest.mark.parametrize("role", VALUES)
def test_the_documentation_lists_the_options(role: str) -> None:
    text = Role(role).options()[f"{role}_module_options"]["description"][0]
    assert all(f"C({name})" in text for name in VALUES[role])
    assert text.count("C(") == len(VALUES[role])


@pytest.mark.parametrize(("role", "name"), OPTIONS)
def test_an_option_reaches_the_module(role: str, name: str) -> None:
    value = VALUES[role][name]
    known = given(role, **{name: value})
    assert completed(role, MODULES[role], {"state": "present"}, known) == {"state": "present", name: value}
    # It has precedence over module_defaults of the play.
    assert completed(role, MODULES[role], {name: "default"}, known) == {name: value}


def test_the_inspection_plans_with_the_options_of_the_engines() -> None:
    known = {**given("nvidia_runtime", runtime_type="oci"), **given("nvidia_toolkit", checksum="full")}
    required = {"names": "auto", "options": {"register": True}}
    expected = {"names": "auto", "options": {"register": True, "runtime_type": "oci"}}
    for role in ("nvidia_toolkit", "nvidia_runtime"):
        assert completed(role, INFO, {"require_engines": required}, known) == {"require_engines": expected}
        # The role nvidia_runtime is not in the play, or removes the runtimes.
        for args in ({"require_engines": {"names": "auto"}}, {"gather_subset": ["engines"]}):
            assert completed(role, INFO, args, known) == args


@pytest.mark.parametrize(
    ("role", "module", "args"),
    [
        # The options of the installation are not those of the removal.
        ("nvidia_toolkit", INSTALL, {"state": "absent", "source": "repository"}),
        ("nvidia_toolkit", "nvidia_toolkit_key", {"url": "x"}),
        ("nvidia_runtime", "nvidia_runtime_restart", {"engine": "docker"}),
        # A task of the user.
        (None, INSTALL, {"source": "existing"}),
    ],
)
def test_other_tasks_stay_as_they_are(role: str | None, module: str, args: dict[str, t.Any]) -> None:
    known = {**given("nvidia_toolkit", components=["ctk"]), **given("nvidia_runtime", runtime_type="oci")}
    assert completed(role, module, args, known) == args


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        (None, {}),
        ({"use_nvml": None, "all_device": False, "device_ids": "0,1"}, {"all_device": False, "device_ids": ["0", "1"]}),
        # As -e and an inventory in INI give it.
        ("{'format': 'json'}", {"format": "json"}),
        ("format=json", {"format": "json"}),
    ],
)
def test_values_as_users_give_them(options: t.Any, expected: dict[str, t.Any]) -> None:
    assert completed("nvidia_cdi", CDI, {}, {"nvidia_cdi_module_options": options}) == expected


@pytest.mark.parametrize(
    ("role", "options", "problem"),
    [
        ("nvidia_cdi", {"csv_file": ["/a"]}, "Unknown option: nvidia_cdi_module_options.csv_file. Supported param"),
        ("nvidia_cdi", {"state": "absent"}, "Unknown option: nvidia_cdi_module_options.state."),
        ("nvidia_cdi", {"format": "toml"}, "must be one of: yaml, json, got: toml found in nvidia_cdi_module_options"),
        ("nvidia_cdi", {"use_nvml": "maybe"}, "Argument 'use_nvml' is of type str found in 'nvidia_cdi_module_opt"),
        ("nvidia_cdi", "x", "Argument 'nvidia_cdi_module_options' is of type"),
        ("nvidia_runtime", {"host_root": "/a"}, "Unknown option: nvidia_runtime_module_options.host_root."),
        # A fact of a host must not name a file of the controller.
        ("nvidia_toolkit", {"src": "/etc/shadow"}, "Unknown option: nvidia_toolkit_module_options.src."),
        ("nvidia_toolkit", {"remote_src": False}, "Unknown option: nvidia_toolkit_module_options.remote_src."),
    ],
)
def test_every_task_of_the_role_refuses_what_the_module_would_refuse(role: str, options: t.Any, problem: str) -> None:
    for module in (MODULES[role], INFO):
        with pytest.raises(AnsibleError) as caught:
            completed(role, module, {}, {f"{role}_module_options": options})
        assert problem in str(caught.value)
