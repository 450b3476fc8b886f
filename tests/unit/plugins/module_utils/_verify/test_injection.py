# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.injection import (
    CDI,
    GPUS,
    RUNTIME,
    describe,
)


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
