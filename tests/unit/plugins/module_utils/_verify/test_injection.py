# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.injection import (
    CDI,
    GPUS,
    RUNTIME,
    InjectionFacts,
    choose,
    describe,
    reason_for_none,
)

DOCKER = InjectionFacts("docker", cdi=True, cdi_problem="", hook=True)
CONTAINERD = DOCKER._replace(engine="containerd")


@pytest.mark.parametrize(
    ("facts", "injection"),
    [
        (DOCKER, CDI),
        (DOCKER._replace(cdi=False), GPUS),
        (DOCKER._replace(cdi=None), GPUS),
        (DOCKER._replace(cdi_problem="stale"), GPUS),
        (DOCKER._replace(cdi=False, hook=False), None),
        (CONTAINERD, CDI),
        # Only Docker has --gpus.
        (CONTAINERD._replace(cdi=False), None),
    ],
)
def test_choice(facts: InjectionFacts, injection: str | None) -> None:
    assert choose(facts) == injection


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (DOCKER._replace(cdi=None), "It is unknown whether docker reads CDI specifications, or its version cannot."),
        (DOCKER._replace(cdi=False), "CDI is off in docker."),
        (DOCKER._replace(cdi_problem="No specification."), "No specification."),
    ],
)
def test_reason(facts: InjectionFacts, reason: str) -> None:
    assert reason_for_none(facts) == reason


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
