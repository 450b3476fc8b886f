# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack a Python package of the controller as a text for a host. This file imports nothing of Ansible.

Private to this collection.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import json
import os
import re
import tempfile
import tokenize
import zlib
from importlib import metadata
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled

# A string between one of these tokens and the end of a line is a statement: a docstring, or a string without effect.
_BEFORE_STATEMENT = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT)


def pack_once(name: str, cache: str) -> str | None:
    """Return pack() of ``name``, executed once for all processes that share the directory ``cache``.

    Ansible forks for every host and task, so a result in memory would be lost. An empty file stands for None.
    """
    path = Path(cache, f"gpufleet-bundled-{name}")
    try:
        return path.read_text("ascii") or None
    except OSError:
        text = pack(name)
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=cache)
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(text or "")
        os.replace(temporary, path)
    return text


def pack(name: str) -> str | None:
    """Return the installed package ``name`` as a text for the host, or None if there is no suitable package.

    The result is one compressed JSON text, which is a quarter smaller than a zip. The same package gives the same text.
    """
    package = bundled.PACKAGES[name]
    try:
        distribution = metadata.distribution(package.distribution)
        spec = importlib.util.find_spec(name)
        if not package.accepts(distribution.version) or spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        sources = {path.relative_to(folder.parent).as_posix(): _source(path) for path in folder.rglob("*.py")}
    except (ImportError, OSError, SyntaxError, ValueError, tokenize.TokenError):
        return None
    python = re.search(r">=\s*(\d+)\.(\d+)", distribution.metadata["Requires-Python"] or "")
    content = {
        "version": distribution.version,
        "python": [int(part) for part in python.groups()] if python is not None else [],
        "sources": sources,
    }
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _source(path: Path) -> str:
    with tokenize.open(path) as stream:
        return without_comments(stream.read())


def without_comments(source: str) -> str:
    """Return Python source without comments and docstrings, a third smaller; every statement keeps its line number."""
    lines = list(io.StringIO(source))
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for before, token, after in reversed(list(zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]]))):
        is_statement = before is token or before.type in _BEFORE_STATEMENT
        # Columns are not used: Python 3.12.1 reports wrong ones behind a non-ASCII string of several lines.
        first, last = token.start[0] - 1, token.end[0]
        if token.type == tokenize.COMMENT:
            lines[first] = lines[first][: lines[first].rindex(token.string)].rstrip(" \t") + "\n"
        elif token.type == tokenize.STRING and is_statement and after.type == tokenize.NEWLINE:
            indentation = lines[first][: -len(lines[first].lstrip(" \t\f"))]
            lines[first:last] = [indentation + '""\n', *["\n"] * (last - first - 1)]
    return "".join(lines)
