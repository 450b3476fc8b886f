# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create HTML in which all text is escaped.

Private to this collection. Everything that is not Markup is escaped when it is put into an element, and so is the value
of every attribute.
"""

from __future__ import annotations

import html

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit_values import shown

# Elements without an end tag.
_EMPTY = ("br", "input", "link", "meta")


class Markup(str):
    """HTML that is already escaped."""

    __slots__ = ()


def element(tag: str, /, *content: str | None, **attributes: str | int | bool | None) -> Markup:
    """Return an element. Content that is None is omitted.

    The argument ``class_`` is the attribute ``class``, and other underscores become hyphens. An attribute that is True
    has no value; one that is False or None is omitted.
    """
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(*content)}</{tag}>")


def joined(*content: str | None) -> Markup:
    """Return several pieces, one after the other."""
    return Markup("".join(item if isinstance(item, Markup) else _escaped(item) for item in content if item is not None))


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _escaped(text: str) -> str:
    return html.escape(shown(text))
