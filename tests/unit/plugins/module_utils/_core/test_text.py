# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.text import listed, quoted


def test_listed_and_quoted() -> None:
    assert quoted("a\nb\x1b\udc80") == r'"a\nb\u001b\udc80"'
    assert len(quoted("x" * 1000)) < 70
    assert listed(["a", "b", "c", "d"]) == "a, b, c, d"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
