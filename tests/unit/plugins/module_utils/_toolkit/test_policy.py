# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.installed import oldest_safe_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.policy import Policies


def guard(policies: Policies, *containers: str) -> None:
    policies.check_containers(containers, "are hurt.", "Remove them first", "Start them again.")


def test_containers() -> None:
    with pytest.raises(HostError, match=r"The containers a, b are hurt\. Remove them first; running"):
        guard(Policies("fail", None, "warn"), "a", "b")
    warned, ignored = Policies("warn", None, "warn"), Policies("ignore", None, "warn")
    for _again in range(2):
        guard(warned, "a")
        guard(ignored, "a")
    assert warned.warnings == ["The containers a are hurt. Start them again."]
    assert ignored.warnings == []
    guard(Policies("fail", None, "warn"))


@pytest.mark.parametrize(
    ("version", "minimum", "old"),
    [
        ("1.18.0", "1.18.0", False),
        ("1.17.9", "1.18.0", True),
        ("1.9.0", "1.10", True),
        ("1.20.0-rc.1", "1.20.0", True),
        (oldest_safe_version(), None, False),
        ("1.16.0", None, True),
        (None, "9.0.0", False),
    ],
)
def test_the_oldest_version(version: str | None, minimum: str | None, old: bool) -> None:
    fails, warns, ignores = (Policies("fail", minimum, policy) for policy in ("fail", "warn", "ignore"))
    if old:
        with pytest.raises(NvidiaError, match="Choose a newer version, or set minimum_version_policy: warn"):
            fails.check_minimum(version)
    else:
        fails.check_minimum(version)
    for policies in (warns, ignores):
        policies.check_minimum(version)
        policies.check_minimum(version)
    assert len(warns.warnings) == int(old)
    assert ignores.warnings == []


def test_a_minimum_that_is_no_version() -> None:
    with pytest.raises(NvidiaError, match=r"minimum_version 'newest' is no version\. Give one such as"):
        Policies("fail", "newest", "warn")
