# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which hosts are refused before their first change."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.requirements import (
    Requirement,
    problems_of,
    users_of,
)

INVALID = {"code": "file-invalid", "message": "/etc/docker/daemon.json, line 2, column 3: no value."}
SLOW = {"code": "engine-not-responding", "message": "docker runs but does not answer."}
OF_ROOT = {"code": "records-of-root", "message": "Run it as alice."}


def engine(target: str, **changed: t.Any) -> dict[str, t.Any]:
    name, flavor, instance = (*target.split("/"), "system", "")[:3] if "/" in target else (target, "system", "")
    return {"engine": name, "flavor": flavor, "target": target, "user": instance if flavor == "rootless" else None,
            "inspected": True, "installed": True, "readable": True, "problems": [], **changed}  # fmt: skip


BROKEN = engine("docker", readable=False, problems=[SLOW, INVALID])
MISSING = "nvidia_runtime_engines names crio, which this host does not have. Install the engine first"


@pytest.mark.parametrize(
    ("required", "engines", "expected"),
    [
        (Requirement(), [engine("docker"), engine("podman")], []),
        (Requirement(), [BROKEN, engine("podman")], [INVALID["message"]]),
        # An engine that cannot be inspected may be installed.
        (Requirement(), [{**BROKEN, "installed": False}], [INVALID["message"]]),
        # Engines that are not configured may have any file.
        (Requirement(("podman",)), [BROKEN, engine("podman")], []),
        (Requirement(flavor="k3s"), [BROKEN, engine("containerd/k3s")], []),
        (Requirement(files=False), [BROKEN], []),
        # All spellings of an engine.
        (Requirement(("docker",)), [BROKEN], [INVALID["message"]]),
        (Requirement(("docker/system",)), [BROKEN], [INVALID["message"]]),
        (Requirement(("containerd",)), [{**BROKEN, **engine("containerd/k3s", readable=False, problems=[INVALID])}],
         [INVALID["message"]]),
        (Requirement(("containerd/system/gpu",)),
         [engine("containerd/system/gpu.service", readable=False, problems=[INVALID])], [INVALID["message"]]),
        # Named engines must exist. The module finds the unit of a second containerd itself.
        (Requirement(("docker", "crio")), [engine("docker")], [MISSING]),
        (Requirement(("crio",)), [engine("crio", installed=False)], [MISSING]),
        (Requirement(("crio",)), [engine("crio", installed=False, problems=[SLOW])], []),
        (Requirement(("crio",), installed=False), [], []),
        (Requirement(("containerd/system/x.service", "docker/rootless/alice")), [], []),
        # The engines of users.
        (Requirement(users=("alice",)), [engine("docker/rootless/alice", inspected=False, problems=[OF_ROOT])],
         ["Run it as alice."]),
        (Requirement(users=("bob",)), [engine("docker/rootless/alice", inspected=False, problems=[OF_ROOT])], []),
        (Requirement(user="alice"), [BROKEN, engine("docker/rootless/alice")], []),
        (Requirement(user="alice"), [engine("docker/rootless/alice", readable=False, problems=[INVALID])],
         [INVALID["message"]]),
        (Requirement(user="alice", flavor="snap"),
         [engine("docker/rootless/alice", readable=False, problems=[INVALID])], []),
        (Requirement(("crio", "docker/rootless/bob"), user="alice"), [], []),
        (Requirement(("docker/rootless/alice",), user="alice"), [],
         ["nvidia_runtime_engines names docker/rootless/alice, which this host does not have."]),
    ],
)  # fmt: skip
def test_problems(required: Requirement, engines: list[dict[str, t.Any]], expected: list[str]) -> None:
    found = problems_of(required, engines)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected))


def test_advice_of_a_problem() -> None:
    broken = engine("docker", readable=False, problems=[{**INVALID, "advice": "Correct the syntax."}])
    assert problems_of(Requirement(), [broken]) == [f"{INVALID['message']} Correct the syntax."]


def test_users() -> None:
    running = [engine("docker"), engine("docker/rootless/carol", inspected=False)]
    assert users_of(Requirement(), running) == []
    assert users_of(Requirement(users=("all",)), running) == ["carol"]
    assert users_of(Requirement(("docker/rootless/alice",), users=("bob", "alice")), running) == ["bob", "alice"]
