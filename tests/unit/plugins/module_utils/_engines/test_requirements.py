# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which hosts are refused before their first change."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import info, parameters
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.requirements import (
    Requirement,
    planned,
    problems_of,
    targets_of,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.selection import Wanted
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import DISTRIBUTION, PACKAGED
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.rootless_hosts import FILE, Rootless, alices_host

if t.TYPE_CHECKING:
    from pathlib import Path

INVALID = {"code": "file-invalid", "message": "/etc/docker/daemon.json, line 2, column 3: no value."}
SLOW = {"code": "engine-not-responding", "message": "docker runs but does not answer."}


def engine(target: str, **changed: t.Any) -> dict[str, t.Any]:
    name, flavor, instance = target.split("/") if "/" in target else (target, "system", "")
    return {"engine": name, "flavor": flavor, "target": target, "user": instance if flavor == "rootless" else None,
            "inspected": True, "installed": True, "readable": True, "problems": [], **changed}  # fmt: skip


BROKEN = engine("docker", readable=False, problems=[SLOW, INVALID])
MISSING = "nvidia_runtime_engines names crio, which this host does not have. Install the engine first"
ALICE = "docker/rootless/alice"
ROOTLESS = Requirement(Wanted(flavor="rootless"))


@pytest.mark.parametrize(
    ("required", "engines", "expected"),
    [
        (Requirement(), [engine("docker"), engine("podman")], []),
        (Requirement(), [BROKEN, engine("podman")], [INVALID["message"]]),
        # An engine that cannot be inspected may be installed.
        (Requirement(), [{**BROKEN, "installed": False}], [INVALID["message"]]),
        # Engines that are not configured may have any file.
        (Requirement(Wanted(("podman",))), [BROKEN, engine("podman")], []),
        (Requirement(files=False), [BROKEN], []),
        # Named engines must exist.
        (Requirement(Wanted(("docker", "crio"))), [engine("docker")], [MISSING]),
        (Requirement(Wanted(("crio",)), installed=False), [], []),
        # The engine of a user, in a play of this user and in one of root.
        (ROOTLESS, [BROKEN, engine(ALICE)], []),
        (ROOTLESS, [engine(ALICE, readable=False, problems=[INVALID])], [INVALID["message"]]),
        (Requirement(), [engine(ALICE, inspected=False, readable=False, problems=[INVALID])], []),
        (Requirement(Wanted((ALICE,))), [engine(ALICE)], []),
        (Requirement(Wanted((ALICE,))), [engine(ALICE, inspected=False)], [f"nvidia_runtime_engines names {ALICE}, "]),
    ],
)
def test_problems(required: Requirement, engines: list[dict[str, t.Any]], expected: list[str]) -> None:
    found = problems_of(required, engines)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected))


def test_advice_of_a_problem() -> None:
    broken = engine("docker", readable=False, problems=[{**INVALID, "advice": "Correct the syntax."}])
    assert problems_of(Requirement(), [broken]) == [f"{INVALID['message']} Correct the syntax."]


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        (Requirement(), ["podman", ALICE]),
        # The file at another path is planned, whatever the usual file contains.
        (Requirement(files=False), ["docker", "podman", ALICE]),
        (Requirement(Wanted(("crio", "docker"))), [ALICE, "crio"]),
        (ROOTLESS, [ALICE]),
        # The module refuses the engine of another user.
        (Requirement(Wanted(("docker/rootless/bob",))), ["docker/rootless/bob"]),
    ],
)
def test_engines_to_plan(required: Requirement, expected: list[str]) -> None:
    others = [engine("podman"), engine(ALICE), engine("docker/rootless/bob", inspected=False)]
    assert targets_of(required, [BROKEN, *others]) == expected


PARAMS = {name: option.get("default") for name, option in parameters.SPEC.items()}


def plan(host: HostFS, target: str, **options: t.Any) -> list[str]:
    described, _needed = info.describe_engines(host, lambda _argv: (0, "", ""))
    return planned({**PARAMS, **options}, [target], described, host, lambda _argv: (0, "", ""))


def test_plan_of_a_host_without_the_toolkit(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path), live=False)
    config = tmp_path / "etc/docker/daemon.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"runtimes": {"gpu": 1}}', encoding="utf-8")
    assert plan(host, "docker", set_as_default=True, require_runtime=True) == []
    assert config.read_text(encoding="utf-8") == '{"runtimes": {"gpu": 1}}'
    (problem,) = plan(host, "docker", runtime_name="gpu")
    assert problem.startswith("/etc/docker/daemon.json, line 1, column 22: runtimes.gpu has the type number")
    (problem,) = plan(host, "podman", config_path="/x")
    assert problem.startswith("config_path is not supported for podman")


def test_key_in_another_case_is_a_problem_of_the_description_and_of_the_plan(tmp_path: Path) -> None:
    tree = EngineTree(tmp_path, "crio", None, {PACKAGED: DISTRIBUTION, "/usr/bin/crio": ""}, live=False)
    tree.present()
    own = "/etc/crio/crio.conf.d/99-nvidia.toml"
    tree.write(own, tree.text(own) + 'Monitor_Cgroup = "pod"\n')

    described, _needed = info.describe_engines(tree.host, tree.run)
    (problem,) = problems_of(Requirement(Wanted(("crio",))), described)
    assert "differs from monitor_cgroup in case only" in problem
    assert plan(tree.host, "crio") == [problem]


@pytest.fixture
def alice() -> t.Iterator[Rootless]:
    with alices_host() as host:
        yield host


def test_plan_of_a_user(alice: Rootless) -> None:
    # Only root can use this directory of backups.
    assert plan(alice.host, ALICE, backup_dir="/var/lib/gpufleet-nvidia/backups") == []
    alice.write(FILE, '{"features": {"cdi": "yes"}}')
    (problem,) = plan(alice.host, ALICE)
    assert problem.startswith(f"{FILE}, line 1, column 22: features.cdi has the type string")
