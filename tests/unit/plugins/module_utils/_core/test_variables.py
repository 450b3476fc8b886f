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

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.variables import (
    EXCEPTIONS,
    variable_of,
    with_variables,
)

OPTIONS: dict[str, dict[str, t.Any]] = {
    "source": {"choices": ["directory", "existing"]}, "version": {}, "files": {}, "hold": {"type": "bool"}, "dest": {},
    "minimum_version_policy": {}, "settings": {}, "lock_timeout": {}, "host_root": {}, "package_cache": {},
}  # fmt: skip
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
    ("text", "expected"),
    [
        ("source is existing, but", "nvidia_toolkit_source (source) is existing, but"),
        ("Set source: directory.", "Set nvidia_toolkit_source (source): directory."),
        ("The source is a file.", "The source is a file."),
        ("Or set hold: true.", "Or set nvidia_toolkit_hold (hold): true."),
        ("Leave version out, or", "Leave nvidia_toolkit_version (version) out, or"),
        ("It holds 1.2, but version is 1.1.", "It holds 1.2, but nvidia_toolkit_version (version) is 1.1."),
        ("The version of it is 1.", "The version of it is 1."),
        ("Correct files, or", "Correct nvidia_toolkit_files (files), or"),
        ("Remove version and set", "Remove nvidia_toolkit_version (version) and set"),
        ("Remove files that are old", "Remove files that are old"),
        ("files requires it", "nvidia_toolkit_files (files) requires it"),
        ("dest is the root", "nvidia_toolkit_dest (dest) is the root"),
        ("settings: debug is", "nvidia_toolkit_settings (settings): debug is"),
        ("Let lock_timeout be longer", "Let nvidia_toolkit_lock_timeout (lock_timeout) be longer"),
        # An option without a variable, an option in a path or in another name, and a variable that is named already.
        ("package_cache x", "package_cache x"), ("/etc/lock_timeout", "/etc/lock_timeout"),
        ("a.lock_timeout", "a.lock_timeout"), ("nvidia_toolkit_dest (dest) is", "nvidia_toolkit_dest (dest) is"),
        ("Set nvidia_host_root, or host_root", "Set nvidia_host_root, or nvidia_host_root (host_root)"),
        # The output of a program, an assignment, and code.
        ("It failed. Program output: lock_timeout is 1.", "It failed. Program output: lock_timeout is 1."),
        ("lock_timeout = 1", "lock_timeout = 1"), ("`lock_timeout` is", "`lock_timeout` is"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_variable_comes_before_the_option(text: str, expected: str) -> None:
    assert with_variables(text, "gpufleet.nvidia.nvidia_toolkit_install", OPTIONS) == expected
    assert with_variables(expected, "nvidia_toolkit_install", OPTIONS) == expected


def test_a_module_of_no_role_names_its_options() -> None:
    assert with_variables("Set host_root.", "nvidia_audit_report", OPTIONS) == "Set host_root."
    # The roles pass their variables to this one.
    expected = "Set nvidia_host_root (host_root)."
    assert with_variables("Set host_root.", "gpufleet.nvidia.nvidia_container_info", OPTIONS) == expected


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
        assert {variable for variable in named.values() if variable is not None} <= variables
        text = "".join(path.read_text(encoding="utf-8") for path in tasks)
        for option, variable in named.items():
            passed = re.findall(rf'^    {option}: "{{{{ ({role}_\w+)', text, re.MULTILINE)
            assert variable is None or not set(passed) & variables or variable in passed or "host_root" in option, (
                option
            )


def test_no_exception_says_what_the_rule_says() -> None:
    for role, exceptions in EXCEPTIONS.items():
        assert [option for option, variable in exceptions.items() if variable == f"{role}_{option}"] == []
