# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.schema import (
    device_name_problem,
    kind_problem,
    split_kind,
)


@pytest.mark.parametrize(
    "kind",
    [
        "nvidia.com/gpu",
        "management.nvidia.com/gpu",
        "NVIDIA.com/GPU",
        "a_b/c-d",
        "ab/c9",
        "nvidia.com/gpu.coherent",
        "v" * 300 + "/gpu",
        "vv/" + "c" * 80,
    ],
)
def test_valid_kinds(kind: str) -> None:
    assert kind_problem(kind) == ""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("", 'must be VENDOR/CLASS, such as nvidia.com/gpu, but is ""'),
        ("gpu", "must be VENDOR/CLASS"),
        ("/gpu", "must be VENDOR/CLASS"),
        ("nvidia.com/", "must be VENDOR/CLASS"),
        ("1a.com/gpu", 'the vendor "1a.com"'),
        ("nvidia-/gpu", 'the vendor "nvidia-"'),
        ("nvi dia/gpu", 'the vendor "nvi dia"'),
        ("nvidia.com/gpu/x", 'the class "gpu/x"'),
        ("nvidia.com/gpu\n", r'the class "gpu\n"'),
        ("nvidia.com/gpü", "the class"),
        ("v/gpu", 'the vendor "v", which must have two characters'),
    ],
)
def test_invalid_kinds(kind: str, message: str) -> None:
    assert message in kind_problem(kind)


@pytest.mark.parametrize("name", ["0", "0:1", "gpu0", "all", "GPU-0a1b", "MIG-x_y.z", "9"])
def test_valid_device_names(name: str) -> None:
    assert device_name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "_a", "a_", "a+b", "MIG-GPU-x/1/0", "0 1", "a\n", "ü"])
def test_invalid_device_names(name: str) -> None:
    assert device_name_problem(name)


def test_split_kind() -> None:
    assert split_kind("nvidia.com/gpu/x") == ("nvidia.com", "gpu/x")
    assert split_kind("gpu") == ("", "gpu")
