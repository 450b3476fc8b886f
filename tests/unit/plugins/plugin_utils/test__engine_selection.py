# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines of a host the role nvidia_runtime configures."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.selection import Wanted
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _engine_selection as selection_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._engine_selection import Settings
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import engine

ALICE = "docker/rootless/alice"


def settings_of(values: dict[str, t.Any]) -> Settings:
    wanted = {name: values[name] for name in Wanted._fields if name in values}
    return Settings(Wanted(**wanted), **{name: value for name, value in values.items() if name not in wanted})


FOUND = (
    engine(), engine("containerd/k3s"), engine("containerd"), engine("crio", installed=False, recorded_files=["/x"]),
    engine(ALICE, inspected=False),
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({}, ("docker", "containerd/k3s", "containerd")),
        ({"flavor": "k3s"}, ("containerd/k3s",)),
        ({"state": "absent"}, ("docker", "containerd/k3s", "containerd", "crio")),
        ({"engines": ("containerd",)}, ("containerd/k3s", "containerd")),
        ({"engines": ("containerd",), "flavor": "system"}, ("containerd",)),
        ({"engines": ("containerd/system",)}, ("containerd",)),
        ({"engines": ("containerd/system",), "flavor": "k3s"}, ("containerd",)),
        ({"engines": ("containerd/system", "containerd/k3s")}, ("containerd", "containerd/k3s")),
        ({"engines": ("containerd/system", "containerd")}, ("containerd", "containerd/k3s")),
        # They may be installed later.
        ({"engines": ("podman/system",), "check_mode": True}, ("podman",)),
        ({"engines": ("podman", "docker"), "offline": True}, ("docker", "podman")),
        ({"engines": ("podman",), "flavor": "k3s", "check_mode": True}, ()),
        # A unit of a second containerd is not searched for.
        ({"engines": ("containerd/system/second.service",)}, ("containerd/system/second.service",)),
        ({"users": ("alice",)}, ("docker", "containerd/k3s", "containerd", ALICE)),
        ({"users": None}, ("docker", "containerd/k3s", "containerd", ALICE)),
        ({"engines": (ALICE,)}, (ALICE,)),
    ],
)
def test_targets(settings: dict[str, t.Any], targets: tuple[str, ...]) -> None:
    found = selection_of.select(settings_of(settings), FOUND, {"alice": [engine(ALICE)]})
    assert found.targets == targets
    assert found.errors == ()


def test_a_user_adds_no_other_engine() -> None:
    forged = [engine("docker", running=False), engine("docker/rootless/bob"), engine(ALICE)]
    found = selection_of.select(Settings(Wanted(users=("alice",))), [engine()], {"alice": forged, "eve": forged})
    assert found.targets == ("docker", ALICE)
    assert found.engines == (engine(), engine(ALICE))


@pytest.mark.parametrize(
    ("settings", "of_users", "missing"),
    [
        ({"engines": ("podman",)}, {}, True),
        ({"engines": ("podman",), "offline": True}, {}, False),
        ({"engines": ("podman",), "check_mode": True}, {}, False),
        ({"engines": ("podman",), "state": "absent"}, {}, False),
        # Only the task of its user fails: the user can hide an engine, and must not prevent those of others.
        ({"engines": (ALICE,)}, {}, False),
        ({"engines": (ALICE,)}, {"alice": []}, False),
    ],
)
def test_named_engines_exist(settings: dict[str, t.Any], of_users: dict[str, t.Any], missing: bool) -> None:
    # Root does not find the engines of users.
    without_alice = FOUND[:-1]
    found = selection_of.select(settings_of(settings), without_alice, of_users)
    assert len(found.errors) == missing


@pytest.mark.parametrize(
    "name", ["engine", "flavor", "target", "inspected", "installed", "running", "service", "recorded_files", "problems"]
)
def test_an_engine_without_a_value_is_an_error(name: str) -> None:
    """A host can return anything. What it returns has the documented types, but may lack values."""
    forged = {key: value for key, value in engine("crio").items() if key != name}
    found = selection_of.select(settings_of({"engines": ("docker",)}), [engine(), forged, {}], {})
    assert found.targets == ("docker",)
    assert found.errors == ("The host returned an engine without all of its values.",)


def test_groups_of_root() -> None:
    targets = [ALICE, "docker/rootless", "containerd/rke2", "docker", "containerd/system/rootless-k3s.service", "crio"]
    of_root = ["containerd/rke2", "docker", "containerd/system/rootless-k3s.service", "crio"]
    assert selection_of.groups_of_root(targets) == [of_root, ["docker/rootless"]]
    assert selection_of.groups_of_root([]) == []


def test_settings_of_variables() -> None:
    values = {"engines": "auto", "flavor": "auto", "users": "all", "state": "present", "host_root": "/srv",
              "host_root_live": False, "check_mode": True}  # fmt: skip
    assert Settings.of(values) == Settings(Wanted(users=None), offline=True, check_mode=True)
