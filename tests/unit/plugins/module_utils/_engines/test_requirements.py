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
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.selection import Wanted

INVALID = {"code": "file-invalid", "message": "/etc/docker/daemon.json, line 2, column 3: no value."}
SLOW = {"code": "engine-not-responding", "message": "docker runs but does not answer."}
OF_ROOT = {"code": "records-of-root", "message": "Run it as alice."}


def engine(target: str, **changed: t.Any) -> dict[str, t.Any]:
    name, flavor, instance = (*target.split("/"), "system", "")[:3] if "/" in target else (target, "system", "")
    return {"engine": name, "flavor": flavor, "target": target, "user": instance if flavor == "rootless" else None,
            "inspected": True, "installed": True, "readable": True, "problems": [], **changed}  # fmt: skip


BROKEN = engine("docker", readable=False, problems=[SLOW, INVALID])
MISSING = "nvidia_runtime_engines names crio, which this host does not have. Install the engine first"
ALICE = "docker/rootless/alice"


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
        # The engines of users.
        (Requirement(Wanted((ALICE,))), [], []),
        (
            Requirement(Wanted(users=("alice",))),
            [engine(ALICE, inspected=False, problems=[OF_ROOT])],
            ["Run it as alice."],
        ),
        (Requirement(Wanted(users=("bob",))), [engine(ALICE, inspected=False, problems=[OF_ROOT])], []),
        (Requirement(user="alice"), [BROKEN, engine(ALICE)], []),
        (Requirement(user="alice"), [engine(ALICE, readable=False, problems=[INVALID])], [INVALID["message"]]),
        # The role does not select it.
        (Requirement(Wanted(("podman",)), user="alice"), [engine(ALICE, readable=False, problems=[INVALID])], []),
        (Requirement(Wanted(("crio", "docker/rootless/bob")), user="alice"), [], []),
        (Requirement(Wanted((ALICE,)), user="alice"), [], [f"nvidia_runtime_engines names {ALICE}, which this host"]),
    ],
)
def test_problems(required: Requirement, engines: list[dict[str, t.Any]], expected: list[str]) -> None:
    found = problems_of(required, engines)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected))


def test_advice_of_a_problem() -> None:
    broken = engine("docker", readable=False, problems=[{**INVALID, "advice": "Correct the syntax."}])
    assert problems_of(Requirement(), [broken]) == [f"{INVALID['message']} Correct the syntax."]
