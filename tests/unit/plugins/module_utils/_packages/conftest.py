# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host whose programs are fakes."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_packages import FakePrograms

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def programs() -> FakePrograms:
    return FakePrograms()


@pytest.fixture
def live_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostFS:
    """A host whose commands have no chroot, and do not wait for locks."""
    monkeypatch.setattr(packages_base, "_PAUSE", 0.0)
    monkeypatch.setattr(HostFS, "argv", lambda _host, argv: list(argv))
    return HostFS(str(tmp_path), live=True)
