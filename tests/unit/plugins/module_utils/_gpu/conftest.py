# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for the tests of NVML."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import compiled

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML."""
    return compiled(tmp_path_factory.mktemp("nvml"))
