# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.injection import (
    AUTO,
    CDI,
    GPUS,
    RUNTIME,
    InjectionFacts,
    choose,
    describe,
    reason_for_none,
)

DOCKER = InjectionFacts("docker", daemon=True, registered=True, cdi=True, cdi_problem="", hook=True)
CONTAINERD = DOCKER._replace(engine="containerd")
PODMAN = InjectionFacts("podman", daemon=False, registered=False, cdi=None, cdi_problem="", hook=True)


@pytest.mark.parametrize(
    ("facts", "method", "injection"),
    [
        (DOCKER, AUTO, RUNTIME),
        (DOCKER._replace(registered=False), AUTO, CDI),
        (DOCKER._replace(registered=False), RUNTIME, RUNTIME),
        (DOCKER._replace(registered=False, cdi=False), AUTO, GPUS),
        (DOCKER._replace(registered=False, cdi=None), AUTO, GPUS),
        (DOCKER._replace(registered=False, cdi_problem="stale"), AUTO, GPUS),
        (DOCKER._replace(registered=False, cdi=False, hook=False), AUTO, None),
        (CONTAINERD._replace(registered=False), AUTO, CDI),
        # Only Docker has --gpus.
        (CONTAINERD._replace(registered=False, cdi=False), AUTO, None),
        (PODMAN, AUTO, CDI),
        (PODMAN, RUNTIME, CDI),
    ],
)
def test_choice(facts: InjectionFacts, method: str, injection: str | None) -> None:
    assert choose(facts, method) == injection


def test_reason() -> None:
    facts = DOCKER._replace(registered=False, hook=False)
    assert reason_for_none(facts._replace(cdi=None)) == "CDI is off in docker."
    assert reason_for_none(facts._replace(cdi_problem="No specification.")) == "No specification."


@pytest.mark.parametrize(
    ("injection", "engine", "text"),
    [
        (RUNTIME, "docker", "--runtime gpu"),
        (RUNTIME, "crio", "runtime handler gpu"),
        (CDI, "podman", "--device nvidia.com/gpu=all"),
        (CDI, "containerd", "CDI device nvidia.com/gpu=all"),
        (GPUS, "docker", "--gpus all"),
    ],
)
def test_description(injection: str, engine: str, text: str) -> None:
    assert describe(injection, engine, "gpu") == text
