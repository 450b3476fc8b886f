# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the tests of the explanation."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.container_reports import Report

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A host with a driver, a toolkit and engines, and a container on it."""
    return Report(tmp_path)
