# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End a run in the middle, as SIGKILL does."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import atomic_write

if t.TYPE_CHECKING:
    import pytest


class Killed(BaseException):
    """Ends a run. No code catches it."""


def kill_before_write(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Raise Killed just before the write or removal with the number ``step``. Backups are not counted."""
    count = 0

    def counting(function: t.Callable[..., None]) -> t.Callable[..., None]:
        def wrapped(*args: t.Any, **more: t.Any) -> None:
            nonlocal count
            # The same functions write the backups, which come first.
            count += "/backups/" not in str(args[1])
            if count == step and "/backups/" not in str(args[1]):
                raise Killed
            function(*args, **more)

        return wrapped

    for name in ("replace_file", "remove_file"):
        monkeypatch.setattr(atomic_write, name, counting(getattr(atomic_write, name)))
