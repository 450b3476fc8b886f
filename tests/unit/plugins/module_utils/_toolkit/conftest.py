# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures that several test files of the toolkit share."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import VERSIONS, FakePackageManager

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def manager(tmp_path: Path) -> FakePackageManager:
    """A host whose repository offers several versions."""
    manager = FakePackageManager(tmp_path)
    manager.listed = manager.published = list(VERSIONS)
    return manager
