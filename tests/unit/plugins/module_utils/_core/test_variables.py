# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of roles in the messages of modules."""

from __future__ import annotations

import importlib
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.variables import (
    EXCEPTIONS,
    variable_of,
    variables_of,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.argument_specs import specs

# Attributes of modules, and the internal options.
NOT_MEANT = {
    *("action_group", "check_mode", "diff_mode", "idempotent", "platform", "safe_file_operations"),
    "_bundled",
    "_host",
}
ROLES = Path(__file__).resolve().parents[5] / "roles"
# Each role, and the modules of which it sets options.
MODULES = {
    "nvidia_toolkit": ("toolkit_install", "toolkit_config", "toolkit_key"),
    "nvidia_runtime": ("runtime_config", "runtime_restart", "runtime_verify"),
    "nvidia_cdi": ("cdi_spec", "cdi_refresh"),
}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            "gpufleet.nvidia.nvidia_toolkit_install",
            {"source": "nvidia_toolkit_source", "host_root": "nvidia_host_root"},
        ),
        ("nvidia_cdi_spec", {"source": "nvidia_cdi_source", "host_root": "nvidia_host_root"}),
        # The roles pass their variables to this one.
        ("gpufleet.nvidia.nvidia_container_info", {"host_root": "nvidia_host_root"}),
        # A module of no role.
        ("nvidia_audit_report", {}),
    ],
)
def test_options_that_have_a_variable(module: str, expected: dict[str, str]) -> None:
    assert variables_of(module, ["source", "host_root", "predicted_toolkit"]) == expected


def test_options_with_the_name_of_another_option() -> None:
    # The role sets nvidia_runtime_restart_timeout for a restart only, and nvidia_toolkit_dest for a directory only.
    assert variables_of("nvidia_runtime_restart", ["timeout"]) == {"timeout": "nvidia_runtime_restart_timeout"}
    assert variables_of("nvidia_runtime_verify", ["timeout"]) == {}
    assert variables_of("nvidia_toolkit_install", ["dest"]) == {"dest": "nvidia_toolkit_dest"}
    assert variables_of("nvidia_toolkit_key", ["dest"]) == {}


def test_options_in_a_dictionary_of_the_role() -> None:
    expected = {"checksum": "nvidia_toolkit_module_options.checksum", "settings": "nvidia_toolkit_settings"}
    assert variables_of("gpufleet.nvidia.nvidia_toolkit_install", expected) == expected


def test_a_message_has_the_variable_beside_its_option() -> None:
    def text() -> str:
        return f"Set {errors.option:source}: existing, or remove {errors.option:{'version'}}."

    with errors.role_variables({"source": "nvidia_toolkit_source"}):
        assert text() == "Set nvidia_toolkit_source (source): existing, or remove version."
        with errors.role_variables({"version": "nvidia_toolkit_version"}):
            expected = "Set nvidia_toolkit_source (source): existing, or remove nvidia_toolkit_version (version)."
            assert text() == expected
        assert text() == "Set nvidia_toolkit_source (source): existing, or remove version."
    assert text() == "Set source: existing, or remove version."


def test_an_error_ends_the_variables() -> None:
    with pytest.raises(errors.NvidiaError), errors.role_variables({"source": "nvidia_toolkit_source"}):
        raise errors.NvidiaError(f"Set {errors.option:source}.")
    assert f"{errors.option:source}" == "source"


@pytest.mark.parametrize("role", MODULES)
def test_every_variable_exists_and_is_what_the_role_passes(role: str) -> None:
    """Check each option that a task of the role sets with one variable."""
    yaml = pytest.importorskip("yaml")
    tasks = [*ROLES.glob(f"{role}/tasks/*.yml"), *ROLES.glob(f"{role}/handlers/*.yml")]
    described = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    variables = {*described["argument_specs"]["main"]["options"], "nvidia_host_root", "nvidia_host_root_live"}
    for name in MODULES[role]:
        module = importlib.import_module(f"ansible_collections.gpufleet.nvidia.plugins.modules.nvidia_{name}")
        documented = yaml.safe_load(module.DOCUMENTATION)
        options = set(documented["options"])
        for fragment in documented["extends_documentation_fragment"]:
            path = ROLES.parent / f"plugins/doc_fragments/{fragment.rpartition('.')[2]}.py"
            options |= set(re.findall(r"^  ([a-z_]+):$", path.read_text(encoding="utf-8"), re.MULTILINE))
        options -= NOT_MEANT
        named = {option: variable_of(f"nvidia_{name}", option) for option in options}
        assert {variable.partition(".")[0] for variable in named.values() if variable is not None} <= variables
        text = "".join(path.read_text(encoding="utf-8") for path in tasks)
        for option, variable in named.items():
            passed = re.findall(rf'^    {option}: "{{{{ ({role}_\w+)', text, re.MULTILINE)
            assert variable is None or not set(passed) & variables or variable in passed or "host_root" in option, (
                option
            )


def test_an_option_and_its_variable_take_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that names both says "set VARIABLE (OPTION): VALUE"."""
    yaml = pytest.importorskip("yaml")

    def values(described: dict[str, t.Any]) -> set[t.Any]:
        return {True, False} if described.get("type") == "bool" else set(described.get("choices") or ())

    modules = specs(monkeypatch)
    compared = 0
    for role, names in MODULES.items():
        main = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
        variables = main["argument_specs"]["main"]["options"]
        for name in names:
            for option, described in modules[f"nvidia_{name}"].items():
                variable = variables.get(variable_of(f"nvidia_{name}", option))
                allowed = values(variable or {})
                if allowed:
                    assert values(described) <= allowed, option
                    compared += 1
    assert compared > 20


def test_no_exception_says_what_the_rule_says() -> None:
    for role, exceptions in EXCEPTIONS.items():
        assert [option for option, variable in exceptions.items() if variable == f"{role}_{option}"] == []
