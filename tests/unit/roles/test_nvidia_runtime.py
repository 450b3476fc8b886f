# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role's variables stand in three places; they must say the same."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROLE = Path(__file__).resolve().parents[3] / "roles" / "nvidia_runtime"
# "Leave it alone" is an answer, so there is no default.
WITHOUT_DEFAULT = {
    "nvidia_runtime_set_as_default",
    "nvidia_runtime_enable_cdi",
    "nvidia_runtime_config_path",
    "nvidia_runtime_engine_version",
}


def load(name: str) -> t.Any:
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def options() -> dict[str, dict[str, t.Any]]:
    found: dict[str, dict[str, t.Any]] = load("meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return found


def test_every_default_is_specified_with_the_same_value() -> None:
    defaults = load("defaults/main.yml")
    assert defaults == {name: option["default"] for name, option in options().items() if "default" in option}
    assert set(options()) - set(defaults) == WITHOUT_DEFAULT


def test_every_variable_used_is_specified_or_the_role_s_own() -> None:
    text = "".join((ROLE / name).read_text(encoding="utf-8") for name in ("tasks/main.yml", "handlers/main.yml"))
    own = set(load("vars/main.yml")) | set(re.findall(r"register: (\w+)", text))
    text += (ROLE / "vars/main.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"(?<!\.)\bnvidia_runtime_\w+", text))
    assert used - own == set(options()) & used
    assert set(options()) <= used


def test_variables_without_default_are_omitted_where_they_are_not_set() -> None:
    text = (ROLE / "tasks/main.yml").read_text(encoding="utf-8")
    for name in WITHOUT_DEFAULT:
        assert f"{name} | default(omit)" in text
