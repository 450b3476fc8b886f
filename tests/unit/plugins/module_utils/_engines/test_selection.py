# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines the variables of the role nvidia_runtime select, for the first inspection and for the role."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import requirements, selection
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.selection import Wanted
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _engine_selection
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import engine

ALICE = "docker/rootless/alice"
FOUND = (engine(), engine("containerd/k3s"), engine("containerd"), engine("crio", installed=False))


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ("auto", Wanted()),
        (["auto"], Wanted()),
        ([], Wanted(())),
        ("docker", Wanted(("docker",))),
        (
            ["docker/system", "containerd/system/second"],
            Wanted(("docker/system", "containerd/system/second.service")),
        ),
        (
            ["containerd/system/containerd-1.7", "docker/system/docker", "containerd/system/containerd.service"],
            Wanted(("containerd/system/containerd-1.7.service", "docker/system", "containerd/system")),
        ),
        (["containerd/k3s", "containerd/system/x.scope"], Wanted(("containerd/k3s", "containerd/system/x.scope"))),
    ],
)
def test_spellings(engines: object, expected: Wanted) -> None:
    assert selection.wanted_of(engines, "auto") == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), ["docker", "containerd/k3s", "containerd", "crio"]),
        (Wanted(()), []),
        (Wanted(flavor="k3s"), ["containerd/k3s"]),
        (Wanted(("containerd",)), ["containerd/k3s", "containerd"]),
        (Wanted(("containerd",), "system"), ["containerd"]),
        (Wanted(("containerd/k3s",), "system"), ["containerd/k3s"]),
        (Wanted(("containerd/system",)), ["containerd"]),
        (Wanted(("podman",)), []),
    ],
)
def test_selected_engines(wanted: Wanted, expected: list[str]) -> None:
    assert [found["target"] for found in selection.selected(wanted, FOUND)] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["docker", "podman", "containerd/rke2"], "podman and containerd/rke2"),
        (["crio"], "crio"),
        (["docker/rootless"], "docker/rootless"),
        (["docker/system", "crio/system"], "crio/system"),
        (["docker/system/other.service"], "docker/system/other.service"),
        # A second containerd is found by its unit only.
        (["containerd/system/x.service"], ""),
        ([ALICE], ALICE),
    ],
)
def test_missing_engines(names: list[str], expected: str) -> None:
    found = "".join(selection.missing_errors(names, FOUND))
    assert found.startswith(f"nvidia_runtime_engines names {expected}, which this host") if expected else not found


@pytest.mark.parametrize(
    ("flavor", "missing"),
    [("auto", ""), ("system", ""), ("k3s", "docker, which this host does not have in the flavor k3s")],
)
def test_missing_engines_of_a_flavor(flavor: str, missing: str) -> None:
    found = "".join(selection.missing_errors(["docker", "containerd"], FOUND, flavor))
    assert missing in found
    assert bool(found) is bool(missing)


def test_an_engine_with_problems_is_not_missing() -> None:
    broken = engine("crio", installed=False, problems=[{"code": "file-invalid", "message": "line 1"}])
    assert selection.missing_errors(["crio"], [broken]) == []


@pytest.mark.parametrize("engines", ["podman", ["docker", "crio", ALICE], "auto"])
def test_the_first_inspection_and_the_role_have_the_same_errors(engines: object) -> None:
    found: list[dict[str, t.Any]] = [{**one, "readable": True} for one in (*FOUND, engine(ALICE, inspected=False))]
    wanted = selection.wanted_of(engines, "auto")
    of_role = _engine_selection.select(_engine_selection.Settings(wanted), found)
    assert tuple(requirements.problems_of(requirements.Requirement(wanted), found)) == of_role.errors


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), True),
        (Wanted(("docker", "containerd/k3s")), True),
        (Wanted(("docker/rootless",)), False),
        (Wanted((ALICE,)), False),
        (Wanted(flavor="rootless"), False),
    ],
)
def test_only_root_configures_other_engines(wanted: Wanted, expected: bool) -> None:
    assert wanted.of_root is expected
