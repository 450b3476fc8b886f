# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the role nvidia_runtime decides by its variables."""

from __future__ import annotations

import re

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.roles.role_files import Role

load = Role("nvidia_runtime").load


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
    item = {"item": "docker", "target": "docker", "pending_action": pending, "restart_action": changed}
    due = {} if earlier is None else {"/ docker": {"action": earlier}}
    known = {"item": item, "nvidia_runtime_host_root": "/", "nvidia_runtime_interrupted": []}
    place = jinja2.Template(variables["nvidia_runtime_pending_key"]).render(known)
    assert place == "/ docker"
    known["nvidia_runtime_earlier_entry"] = due.get(place, {})
    action = jinja2.Template(variables["nvidia_runtime_action"])
    assert action.render(known).strip() == expected


@pytest.mark.parametrize(
    ("mode", "signalable", "expected"),
    [("auto", [], "restart"), ("systemd", [], "restart"), ("signal", [], "reload"), ("auto", ["docker"], "reload")],
)
def test_what_was_cut_off_is_begun_again_by_the_means_at_hand(mode: str, signalable: list[str], expected: str) -> None:
    jinja2 = pytest.importorskip("jinja2")
    action = jinja2.Template(load("vars/main.yml")["nvidia_runtime_action"])
    item = {"item": "docker", "target": "docker", "pending_action": "none", "restart_action": "none"}
    known = {"nvidia_runtime_interrupted": ["docker"], "nvidia_runtime_restart_mode": mode}
    assert action.render(item=item, nvidia_runtime_reloadable_by_signal=signalable, **known).strip() == expected


@pytest.mark.parametrize(("restartable", "warnings"), [([], 1), (["docker"], 0)])
def test_warns_of_an_interrupted_restart_that_the_role_may_not_repeat(restartable: list[str], warnings: int) -> None:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(autoescape=False)
    environment.filters["regex_replace"] = lambda value, pattern, new: re.sub(pattern, new, value)
    expression = load("vars/main.yml")["nvidia_runtime_warnings"].strip()[2:-2]
    # Ansible escapes a backslash in an expression before Jinja reads it.
    found = environment.compile_expression(expression.replace("\\", "\\\\"))(
        nvidia_runtime_targets=["docker"], nvidia_runtime_interrupted=["docker"], nvidia_runtime_not_restarted=[],
        nvidia_runtime_restartable=restartable, nvidia_runtime_state="present", nvidia_runtime_without_cdi=[],
    )  # fmt: skip
    assert len(found) == warnings
    assert all("restart of docker was interrupted" in warning for warning in found)
