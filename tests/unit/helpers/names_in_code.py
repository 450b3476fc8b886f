# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Search code for comparisons and tables with a name, such as that of an engine. Arguments are not searched."""

from __future__ import annotations

import ast
import typing as t


def lines_with(names: t.Collection[str], text: str) -> set[int]:
    """Return the lines of Python code on which a name is compared, or is a key or an entry of a table."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            values = list(node.keys)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            values = list(node.elts)
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value in names:
                found.add(value.lineno)
    return found
