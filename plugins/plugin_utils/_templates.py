# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the variables to which a template refers. This file evaluates nothing.

Private to this collection. The message of Ansible about an undefined variable differs between releases.
"""

from __future__ import annotations

import typing as t

import jinja2
from jinja2 import nodes

# What Ansible defines in templates beside the variables of a host (``item`` only in a loop), and what Jinja defines.
_BUILT_IN = frozenset(
    {"hostvars", "item", "lookup", "now", "omit", "q", "query", "undef", "vars", "caller", "kwargs", "loop", "self",
     "varargs"}
)  # fmt: skip


def missing_names(value: t.Any, variables: t.Mapping[str, t.Any]) -> set[str]:
    """Return the variables that are not set, and to which a value refers.

    Args:
        value: The value of a variable, with templates.
        variables: The variables of the host, not evaluated. A value of one of them is searched too.
    """
    missing: set[str] = set()
    known: set[str] = set()
    pending = [value]
    while pending:
        names = set().union(*map(_names_in, _texts(pending.pop()))) - known - _BUILT_IN
        known |= names
        missing |= names - set(variables)
        pending += [variables[name] for name in names & set(variables)]
    return missing


def _texts(value: t.Any) -> t.Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _texts(key)
            yield from _texts(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _texts(entry)


def _names_in(text: str) -> set[str]:
    if "{{" not in text and "{%" not in text:
        return set()
    # Ansible enables these extensions.
    environment = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"], autoescape=True)
    try:
        tree = environment.parse(text)
    except jinja2.TemplateError:
        return set()
    optional = {id(name) for name in _optional_names(tree)}
    found = [name for name in tree.find_all(nodes.Name) if id(name) not in optional]
    # jinja2.meta would refuse the filters of Ansible. A name that the template sets itself is no variable.
    own = {name.name for name in found if name.ctx != "load"}
    return {name.name for name in found} - own - set(environment.globals)


def _optional_names(tree: nodes.Template) -> t.Iterator[nodes.Node]:
    """Yield the names that need not be defined: those with a default, and those of which a test asks this."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        if node.name in ("default", "d", "defined", "undefined") and isinstance(node.node, nodes.Name):
            yield node.node
