# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Another program that changes a link between lstat(2) and readlink(2)."""

from __future__ import annotations

import os
import typing as t

if t.TYPE_CHECKING:
    import pytest

CHANGES = ("removed", "replaced by a file", "replaced by a directory")
MESSAGE = r"^The link {} cannot be read: .*\. Another program may have changed it\. Run the task again\.$"


def change_links_before_reading(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Change every link right before it is read."""
    readlink = os.readlink

    def late(path: t.Any) -> t.Any:
        os.unlink(path)
        if change == "replaced by a file":
            with open(path, "w", encoding="utf-8"):
                pass
        elif change == "replaced by a directory":
            os.mkdir(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", late)
