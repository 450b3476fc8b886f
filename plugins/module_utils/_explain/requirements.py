# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evaluate the requirements of an image (NVIDIA_REQUIRE_*) for a driver and a GPU.

The rules are those of nvidia-container-cli, which checks them in mode legacy: src/cli/dsl.c (evaluation) and
src/cli/configure.c (properties) of libnvidia-container 1.14 to 1.18. A requirement is "A,B C": (A and B) or C.
"""

from __future__ import annotations

import re
import typing as t

# The properties, in the order of configure.c.
CUDA, DRIVER, ARCH, BRAND = "cuda", "driver", "arch", "brand"
PROPERTIES = (CUDA, DRIVER, ARCH, BRAND)
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_RULE = re.compile(r"([^<>=!]+)([<>=!]+)(.+)\Z", re.DOTALL)
_DIGITS = re.compile(r"[0-9.]*\Z")
# The longest number that dsl.c accepts fits into 64 bits.
_MAX_DIGITS = 19


class InvalidRequirementError(Exception):
    """The error for a requirement that nvidia-container-cli cannot evaluate."""


class Facts(t.NamedTuple):
    """The values of the properties of one GPU and its driver. None is unknown."""

    cuda: str | None = None
    driver: str | None = None
    arch: str | None = None
    brand: str | None = None


def evaluate(requirement: str, facts: Facts) -> bool | None:
    """Return whether ``facts`` meet one alternative of ``requirement``, or None if an unknown value decides.

    Raises InvalidRequirementError. As in dsl_evaluate(), alternatives after the first that is met are not read, and an
    empty requirement is met.
    """
    unknown, result = False, True
    for alternative in requirement.split(" "):
        if not alternative:
            continue
        met = _conjunction(alternative.split(","), facts)
        if met:
            return True
        unknown = unknown or met is None
        result = False
    return None if unknown else result


def _conjunction(rules: t.Iterable[str], facts: Facts) -> bool | None:
    """Return whether all rules are met. Rules after the first that is not met are not read."""
    unknown = False
    for rule in rules:
        if not rule:
            continue
        met = _rule(rule, facts)
        if met is False:
            return False
        unknown = unknown or met is None
    return None if unknown else True


def _rule(rule: str, facts: Facts) -> bool | None:
    match = _RULE.match(rule)
    if match is None:
        raise InvalidRequirementError(f"{rule!r} is not NAME OPERATOR VALUE")
    name, operator, value = match.groups()
    if operator not in _OPERATORS:
        raise InvalidRequirementError(f"{rule!r} has the unknown operator {operator!r}")
    if name.lower() not in PROPERTIES:
        raise InvalidRequirementError(f"{rule!r} has the unknown property {name!r}")
    own = getattr(facts, name.lower())
    if name.lower() == BRAND:
        return None if own is None else _compare_text(own, operator, value, rule)
    if not _DIGITS.match(value) or any(len(part) > _MAX_DIGITS for part in value.split(".")):
        raise InvalidRequirementError(f"{rule!r} compares with {value!r}, which is not a version")
    return None if own is None else compare_versions(own, operator, value)


def _compare_text(own: str, operator: str, value: str, rule: str) -> bool:
    if operator not in ("=", "!="):
        raise InvalidRequirementError(f"{rule!r} compares a text with {operator!r}")
    return (own.lower() == value.lower()) is (operator == "=")


def compare_versions(own: str, operator: str, value: str) -> bool:
    """Compare two versions as dsl_compare_version() does: 12.0 equals 12, and 550.54 is less than 550.54.15."""
    one, other = _numbers(own), _numbers(value)
    length = max(len(one), len(other))
    left, right = (numbers + [0] * (length - len(numbers)) for numbers in (one, other))
    return {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]{1,19}", version)]


def combined(requirement: str, facts: t.Iterable[Facts]) -> bool | None:
    """Return whether all of ``facts``, one for each GPU, meet ``requirement``. Raises as evaluate()."""
    results = [evaluate(requirement, entry) for entry in facts]
    return False if False in results else None if None in results else True
