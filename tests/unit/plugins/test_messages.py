# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What no message of the collection may say."""

from __future__ import annotations

from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[3]


def test_no_message_speaks_of_the_whole_run() -> None:
    """A task knows what it has changed itself, but not what earlier tasks of the run have changed on the host."""
    folders = [COLLECTION / name for name in ("plugins", "roles", "playbooks")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yml")]
    assert len(paths) > 100
    claims = ("Nothing was changed", "so nothing was changed")
    found = [path for path in paths if any(claim in path.read_text(encoding="utf-8") for claim in claims)]
    assert found == []
