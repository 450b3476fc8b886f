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
    "nvidia_runtime_drop_in_path",
    "nvidia_runtime_type",
    "nvidia_runtime_engine_version",
}
# Handlers are far from the place where the role was told its variables: they find these in what is noted for them.
OF_HANDLERS = {
    "nvidia_runtime_before_restart",
    "nvidia_runtime_after_restart",
    "nvidia_runtime_verify_image",
    "nvidia_runtime_verify_command",
}
WITHOUT_DEFAULT |= OF_HANDLERS


def load(name: str) -> t.Any:
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def tasks(folder: str) -> list[Path]:
    return sorted((ROLE / folder).glob("*.yml"))


def options() -> dict[str, dict[str, t.Any]]:
    found: dict[str, dict[str, t.Any]] = load("meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return found


def test_every_default_is_specified_with_the_same_value() -> None:
    defaults = load("defaults/main.yml")
    assert defaults == {name: option["default"] for name, option in options().items() if "default" in option}
    assert set(options()) - set(defaults) == WITHOUT_DEFAULT


def test_every_variable_used_is_specified_or_the_role_s_own() -> None:
    text = "".join(path.read_text(encoding="utf-8") for folder in ("tasks", "handlers") for path in tasks(folder))
    own = set(load("vars/main.yml")) | set(re.findall(r"(?:register|loop_var): (\w+)", text))
    # What hooks are told.
    own.add("nvidia_runtime_restarts")
    text += (ROLE / "vars/main.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"(?<!\.)\bnvidia_runtime_\w+", text))
    assert used - own == set(options()) & used
    assert set(options()) <= used


def test_variables_without_default_are_omitted_where_they_are_not_set() -> None:
    text = (ROLE / "tasks/main.yml").read_text(encoding="utf-8")
    for name in WITHOUT_DEFAULT - OF_HANDLERS:
        assert f"{name} | default(omit)" in text


@pytest.mark.parametrize(
    ("pending", "changed", "earlier", "expected"),
    [
        # An engine that answered knows best, whatever was changed on the way.
        ("none", "restart", "restart", "none"),
        ("reload", "restart", None, "reload"),
        ("restart", "none", None, "restart"),
        # For a silent one all changes of the play add up.
        (None, "reload", None, "reload"),
        (None, "reload", "restart", "restart"),
        (None, "restart", "reload", "restart"),
        (None, "none", "reload", "reload"),
        (None, "none", None, "none"),
    ],
)
def test_what_the_handlers_give_an_engine(
    pending: str | None, changed: str, earlier: str | None, expected: str
) -> None:
    jinja2 = pytest.importorskip("jinja2")
    variables = load("vars/main.yml")
    item = {"item": "docker", "pending_action": pending, "restart_action": changed}
    due = {} if earlier is None else {"/ docker": {"action": earlier}}
    known = {"item": item, "nvidia_runtime_host_root": "/", "nvidia_runtime_unfinished": []}
    place = jinja2.Template(variables["nvidia_runtime_place"]).render(known)
    assert place == "/ docker"
    known["nvidia_runtime_noted"] = due.get(place, {})
    action = jinja2.Template(variables["nvidia_runtime_action"])
    assert action.render(known).strip() == expected


@pytest.mark.parametrize(
    ("mode", "signalable", "expected"),
    [("auto", [], "restart"), ("systemd", [], "restart"), ("signal", [], "reload"), ("auto", ["docker"], "reload")],
)
def test_what_was_cut_off_is_begun_again_by_the_means_at_hand(mode: str, signalable: list[str], expected: str) -> None:
    jinja2 = pytest.importorskip("jinja2")
    action = jinja2.Template(load("vars/main.yml")["nvidia_runtime_action"])
    item = {"item": "docker", "pending_action": "none", "restart_action": "none"}
    known = {"nvidia_runtime_unfinished": ["docker"], "nvidia_runtime_restart_mode": mode}
    assert action.render(item=item, nvidia_runtime_signalable=signalable, **known).strip() == expected


def test_engines_are_treated_in_the_same_order_in_every_run() -> None:
    """These filters go by the hash of their items, which differs from one run to the next."""
    for path in [*tasks("tasks"), *tasks("handlers"), ROLE / "vars/main.yml"]:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"\|\s*(union|difference|intersect|symmetric_difference)\b", text)
