# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requirements of images, as src/cli/dsl.c and src/cli/configure.c of libnvidia-container evaluate them."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import requirements as explain_requirements
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.requirements import (
    Facts,
    InvalidRequirementError,
)

FACTS = Facts("12.4", "550.54.15", "8.0", "Tesla")
# Of the image nvidia/cuda:12.6.3-base-ubuntu22.04, shortened.
CUDA_12_6 = "cuda>=12.6 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536"


@pytest.mark.parametrize(
    ("requirement", "met"),
    [
        ("", True),
        (" , ", True),
        ("cuda>=12.4", True),
        ("cuda>=12.6", False),
        ("cuda>12.4", False),
        ("cuda<=12.4", True),
        ("cuda=12.4.0", True),
        ("cuda!=12.4", False),
        ("CUDA>=12.4", True),
        ("driver>=550", True),
        ("driver>550.54", True),
        ("driver<550.54", False),
        ("driver<551", True),
        # Numbers, not texts.
        ("driver>=99", True),
        ("arch>=7.5", True),
        ("arch>=9", False),
        ("brand=tesla", True),
        ("brand!=Tesla", False),
        ("cuda>=12.6,driver>=550", False),
        ("cuda>=12.6 driver>=550", True),
        # A rule is not read if one before it decides.
        ("cuda>=12.6,x cuda>=12", True),
        ("driver<1,cuda", False),
        (CUDA_12_6, False),
    ],
)
def test_evaluation(requirement: str, met: bool) -> None:
    assert explain_requirements.evaluate(requirement, FACTS) is met


@pytest.mark.parametrize(
    ("facts", "met"),
    [
        (FACTS._replace(driver="535.104.05"), True),
        (FACTS._replace(driver="535.104.05", brand="GeForce"), False),
        # The driver decides without the brand.
        (FACTS._replace(brand=None), False),
        (FACTS._replace(driver="535.104.05", brand=None), None),
        (FACTS._replace(cuda=None), None),
        # Another alternative is met, whatever the unknown value is.
        (FACTS._replace(cuda=None, driver="535.104.05"), True),
        (FACTS._replace(cuda="12.6", driver=None, brand=None), True),
    ],
)
def test_unknown_values(facts: Facts, met: bool | None) -> None:
    assert explain_requirements.evaluate(CUDA_12_6, facts) is met


@pytest.mark.parametrize(
    "requirement",
    ["cuda", ">=12", "cuda>=", "cuda=>12", "cuda==12", "speed>=1", "cuda>=twelve", "brand>tesla", "cuda>=12 x",
     f"cuda>={'9' * 20}"],
)  # fmt: skip
def test_invalid_requirements(requirement: str) -> None:
    with pytest.raises(InvalidRequirementError):
        explain_requirements.evaluate(requirement, FACTS._replace(cuda="11"))


def test_all_gpus_must_meet_a_requirement() -> None:
    other = FACTS._replace(arch="7.0")
    assert explain_requirements.combined("arch>=7", [FACTS, other]) is True
    assert explain_requirements.combined("arch>=8", [FACTS, other]) is False
    assert explain_requirements.combined("arch>=8", [FACTS._replace(arch=None), FACTS]) is None
    assert explain_requirements.combined("arch>=8", [FACTS._replace(arch=None), other]) is False


@pytest.mark.parametrize(
    ("own", "operator", "other", "expected"),
    [("12", "=", "12.0", True), ("12.0.1", ">", "12", True), ("9", "<", "12", True), ("12.10", ">", "12.9", True),
     ("1", "!=", "1.0.0", False), ("1.0.1", "<=", "1", False)],
)  # fmt: skip
def test_versions(own: str, operator: str, other: str, expected: bool) -> None:
    assert explain_requirements.compare_versions(own, operator, other) is expected
