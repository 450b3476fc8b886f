# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures that several test files of the toolkit share."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import VERSIONS, World

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A host whose repository offers several versions."""
    world = World(tmp_path)
    world.listed = world.published = list(VERSIONS)
    return world
