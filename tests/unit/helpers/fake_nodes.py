# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes that only seem to be in a tree: to make some takes root."""

from __future__ import annotations

import os
import stat
import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

    import pytest


class FakeNodes:
    """Character devices below ``root``: major and minor numbers by path on the host, which tests may change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, nodes: t.Mapping[str, tuple[int, int]]) -> None:
        self.nodes = dict(nodes)
        for name in ("stat", "lstat"):
            monkeypatch.setattr(os, name, self._telling(getattr(os, name), str(root)))

    def _telling(self, real: t.Callable[..., os.stat_result], root: str) -> t.Callable[..., os.stat_result]:
        def told(path: t.Any, **options: t.Any) -> os.stat_result:
            name = path[len(root) :] if isinstance(path, str) and path.startswith(root + "/") else ""
            if name not in self.nodes:
                return real(path, **options)
            fields = (stat.S_IFCHR | 0o666, *[0] * 9)
            return os.stat_result(fields, {"st_rdev": os.makedev(*self.nodes[name])})

        return told
