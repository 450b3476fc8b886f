# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse every change of the host while a task only finds out whether it would change something.

Whatever changes a host calls before_change() first: the lock, the functions that write files, systemctl, and the
commands of package managers.
"""

from __future__ import annotations

import contextlib
import typing as t

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


class ChangeRefusedError(Exception):
    """A change that was about to begin. It is no error of this collection, so that no task handles it."""


_refused = [False]


@contextlib.contextmanager
def refuse_changes() -> t.Iterator[None]:
    """Raise ChangeRefusedError before each change in the context."""
    _refused[0] = True
    try:
        yield
    finally:
        _refused[0] = False


def before_change() -> None:
    """Raise ChangeRefusedError if changes are refused."""
    if _refused[0]:
        raise ChangeRefusedError


def refusable(run: core_plan.Runner) -> core_plan.Runner:
    """Return a runner for commands that change the host."""

    def run_unless_refused(argv: list[str]) -> tuple[int, str, str]:
        before_change()
        return run(argv)

    return run_unless_refused
