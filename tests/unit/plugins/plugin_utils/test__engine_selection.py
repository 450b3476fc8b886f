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
        # Only the user sees more of it than that it runs.
        ({"flavor": "rootless"}, ()),
    ],
)
def test_targets(settings: dict[str, t.Any], targets: tuple[str, ...]) -> None:
    found = selection_of.select(settings_of(settings), FOUND)
    assert found.targets == targets
    assert found.errors == ()


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({"flavor": "rootless"}, (ALICE,)),
        ({"engines": ("docker",), "flavor": "rootless"}, (ALICE,)),
        ({"engines": (ALICE,)}, (ALICE,)),
        ({}, ("docker", ALICE)),
    ],
)
def test_targets_of_a_user(settings: dict[str, t.Any], targets: tuple[str, ...]) -> None:
    of_bob = engine("docker/rootless/bob", inspected=False)
    found = selection_of.select(settings_of(settings), [engine(used_by_kubelet=True), engine(ALICE), of_bob])
    assert (found.targets, found.errors) == (targets, ())
    # Without it, the role does not warn that the play leaves it out.
    assert found.kubelet == (() if settings else ("docker",))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"engines": ("podman",)}, True),
        ({"engines": ("podman",), "offline": True}, False),
        ({"engines": ("podman",), "check_mode": True}, False),
        ({"engines": ("podman",), "state": "absent"}, False),
        # Root sees only that it runs.
        ({"engines": (ALICE,)}, True),
    ],
)
def test_named_engines_exist(settings: dict[str, t.Any], missing: bool) -> None:
    found = selection_of.select(settings_of(settings), FOUND)
    assert len(found.errors) == missing


@pytest.mark.parametrize(
    "name", ["engine", "flavor", "target", "inspected", "installed", "running", "service", "recorded_files", "problems"]
)
def test_an_engine_without_a_value_is_an_error(name: str) -> None:
    """A host can return anything. What it returns has the documented types, but may lack values."""
    forged = {key: value for key, value in engine("crio").items() if key != name}
    found = selection_of.select(settings_of({"engines": ("docker",)}), [engine(), forged, {}])
    assert found.targets == ("docker",)
    assert found.errors == ("The host returned an engine without all of its values.",)


def test_settings_of_variables() -> None:
    values = {"engines": "auto", "flavor": "auto", "state": "present", "host_root": "/srv",
              "host_root_live": False, "check_mode": True}  # fmt: skip
    assert Settings.of(values) == Settings(offline=True, check_mode=True)
