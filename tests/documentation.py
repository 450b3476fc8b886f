# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the fenced blocks of the documentation, for the tests that run its commands and check its variables.

A section is the text below a heading of level two. A YAML block that begins with a comment such as "# site.yml" is the
content of that file. A console block has commands, each after "$ " or "# ". A block that is not run has the comment
"<!-- not run: REASON -->" above.
"""

from __future__ import annotations

import re
import shlex
import typing as t
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- not run: ([^>]*) -->\n\s*\Z")
_FILE = re.compile(r"# ([\w./-]+\.yml)\n")


class Block(t.NamedTuple):
    """A fenced block, with the reason why it is not run, and the heading of its section."""

    page: str
    line: int
    section: str
    language: str
    text: str
    reason: str

    @property
    def file(self) -> str:
        """The path of the file that the block contains, empty if it is no file."""
        found = _FILE.match(self.text) if self.language == "yaml" else None
        return found[1] if found else ""

    @property
    def lines(self) -> list[str]:
        """The commands as they are printed, without the prompt."""
        return [line[2:] for line in self.text.splitlines() if line.startswith(("$ ", "# "))]

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command."""
        return [shlex.split(line, comments=True) for line in self.lines]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page. ``page`` is its path in the collection."""
    text = (COLLECTION / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        section = (re.findall(r"^## (.*)$", before, re.MULTILINE) or [""])[-1]
        content = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        marker = _MARKER.search(before)
        reason = marker[1] if marker else ""
        found.append(Block(page, before.count("\n") + 1, section, match[2], content, reason))
    return found
