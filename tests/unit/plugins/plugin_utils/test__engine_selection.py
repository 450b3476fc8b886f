# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines of a host the role nvidia_runtime configures."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _engine_selection as selection_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._engine_selection import Settings

ALICE = "docker/rootless/alice"


def engine(target: str = "docker", **values: t.Any) -> dict[str, t.Any]:
    """Return an engine as nvidia_container_info describes it."""
    name, _slash, rest = target.partition("/")
    flavor, _slash, instance = rest.partition("/")
    return {
        "engine": name, "flavor": flavor or "system", "target": target,
        "user": instance if flavor == "rootless" else None,
        "installed": True, "running": True, "service": f"{name}.service", "recorded_files": [],
        "unfinished_restart": False, "inspected": True, "used_by_kubelet": False, "problems": [], **values,
    }  # fmt: skip


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
        # They may be installed later.
        ({"engines": ("podman", "docker"), "offline": True}, ("docker", "podman")),
        ({"engines": ("podman",), "flavor": "k3s", "check_mode": True}, ()),
        # Other engines of the same name are not selected.
        ({"engines": ("containerd/system/second.service",)}, ("containerd/system/second.service",)),
        ({"users": ("alice",)}, ("docker", "containerd/k3s", "containerd", ALICE)),
        ({"users": None}, ("docker", "containerd/k3s", "containerd", ALICE)),
        ({"engines": (ALICE,)}, (ALICE,)),
    ],
)
def test_targets(settings: dict[str, t.Any], targets: tuple[str, ...]) -> None:
    found = selection_of.select(Settings(**settings), FOUND, {"alice": [engine(ALICE)]})
    assert found.targets == targets
    assert found.errors == ()


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("auto", ()),
        ("docker", ("docker",)),
        (["docker/system", "containerd/system/second"], ("docker", "containerd/system/second.service")),
        (["containerd/k3s"], ("containerd/k3s",)),
    ],
)
def test_names_of_engines(named: object, expected: tuple[str, ...]) -> None:
    assert selection_of.named_engines(named) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ()), ({"users": None}, ("alice",)), ({"users": ("bob",), "engines": (ALICE, "docker")}, ("bob", "alice")),
    ],
)  # fmt: skip
def test_users(settings: dict[str, t.Any], expected: tuple[str, ...]) -> None:
    assert selection_of.users_of(Settings(**settings), FOUND) == expected


def test_a_user_adds_no_other_engine() -> None:
    forged = [engine("docker", running=False), engine("docker/rootless/bob"), engine(ALICE)]
    found = selection_of.select(Settings(users=("alice",)), [engine()], {"alice": forged, "eve": forged})
    assert found.targets == ("docker", ALICE)
    assert found.engines == (engine(), engine(ALICE))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"engines": ("docker", "podman", "containerd/rke2")}, "podman and containerd/rke2"),
        ({"engines": ("crio",)}, "crio"),
        # A second containerd is found by its unit only. Problems are reported by the module.
        ({"engines": ("containerd/system/x.service",)}, ""),
        ({"engines": ("podman",), "offline": True}, ""),
        ({"engines": ("podman",), "check_mode": True}, ""),
        ({"engines": ("podman",), "state": "absent"}, ""),
        # Its user has not been inspected yet.
        ({"engines": (ALICE,)}, ""),
    ],
)
def test_named_engines_exist(settings: dict[str, t.Any], names: str) -> None:
    found = selection_of.select(Settings(**settings), FOUND[:4], {})
    assert (f"names {names}, which this host does not have" in "".join(found.errors)) is bool(names)


def test_a_named_engine_with_problems_is_not_missing() -> None:
    broken = engine("crio", installed=False, problems=[{"code": "file-invalid", "message": "line 1"}])
    assert selection_of.select(Settings(engines=("crio",)), [broken], {}).errors == ()


def test_records_that_only_root_can_read_are_errors() -> None:
    foreign = engine(ALICE, inspected=False, problems=[{"code": "records", "message": "Remove the records."}])
    assert selection_of.select(Settings(), [foreign], {}).errors == ()
    assert selection_of.select(Settings(users=("alice",)), [foreign], {}).errors == ("Remove the records.",)


def test_groups_of_root() -> None:
    targets = [ALICE, "docker/rootless", "containerd/rke2", "docker", "containerd/system/rootless-k3s.service", "crio"]
    assert selection_of.groups_of_root(targets) == [
        ["docker", "containerd/system/rootless-k3s.service", "crio"], ["containerd/rke2"], ["docker/rootless"],
    ]  # fmt: skip
    assert selection_of.groups_of_root([]) == []


def test_settings_of_variables() -> None:
    values = {"engines": "auto", "flavor": "auto", "users": "all", "state": "present", "host_root": "/srv",
              "host_root_live": False, "check_mode": True}  # fmt: skip
    assert Settings.of(values) == Settings(users=None, offline=True, check_mode=True)
