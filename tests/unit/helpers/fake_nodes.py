# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fake device nodes, because only root can create real ones."""

from __future__ import annotations

import os
import stat
import typing as t

if t.TYPE_CHECKING:
    from pathlib import Path

    import pytest


class FakeNodes:
    """Devices below ``root`` that os.stat and os.lstat report: major and minor numbers by path on the host.

    Tests may change ``nodes``. Those in ``block`` are block devices, all others are character devices.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, nodes: t.Mapping[str, tuple[int, int]]) -> None:
        self.nodes = dict(nodes)
        self.block: set[str] = set()
        for name in ("stat", "lstat"):
            monkeypatch.setattr(os, name, self._with_nodes(getattr(os, name), f"{root}"))

    def _with_nodes(self, real: t.Callable[..., os.stat_result], root: str) -> t.Callable[..., os.stat_result]:
        def fake(path: t.Any, **options: t.Any) -> os.stat_result:
            name = path[len(root) :] if isinstance(path, str) and path.startswith(root + "/") else ""
            if name not in self.nodes:
                return real(path, **options)
            kind = stat.S_IFBLK if name in self.block else stat.S_IFCHR
            fields = (kind | 0o666, *[0] * 9)
            return os.stat_result(fields, {"st_rdev": os.makedev(*self.nodes[name])})

        return fake
