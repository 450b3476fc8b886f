# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What made the page of an audit: the version of the collection, and the command of the controller.

Private to this collection.
"""

from __future__ import annotations

import re
import shlex
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data

if t.TYPE_CHECKING:
    from collections.abc import Mapping

_COLLECTION = Path(__file__).parents[3]
# Only the values of these variables are shown. Others may be secrets.
_SHOWN_VARIABLES = re.compile(r"nvidia_(?:audit_\w+|hosts)")
# The options of ansible-playbook with a value that says which hosts and tasks ran: the key in CLIARGS, and the option.
_OPTIONS = (("inventory", "-i"), ("subset", "--limit"), ("tags", "--tags"), ("skip_tags", "--skip-tags"))
_FLAGS = (("become", "-b"), ("check", "--check"))


def version(collection: Path = _COLLECTION) -> str | None:
    """Return the version of this collection, or None if it is unknown.

    An installed collection has it in MANIFEST.json, and a clone in galaxy.yml.
    """
    try:
        manifest = json_data.load((collection / "MANIFEST.json").read_bytes())
        return json_data.field(json_data.field(manifest, "collection_info", dict), "version", str)
    except (OSError, ValueError):
        pass
    try:
        found = re.search(r"^version: (\S+)$", (collection / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return None if found is None else found.group(1)


def command(arguments: Mapping[str, t.Any]) -> str | None:
    """Return the command that runs, without options that do not select hosts or tasks, and without secrets.

    ``arguments`` are ``ansible.context.CLIARGS``. They are empty if Ansible was not started by a command.
    """
    playbooks = _texts(arguments.get("args"))
    if not playbooks:
        return None
    words = ["ansible-playbook", *playbooks]
    for key, option in _OPTIONS:
        values = [value for value in _texts(arguments.get(key)) if (key, value) != ("tags", "all")]
        words += [word for value in values for word in (option, value)]
    words += [option for key, option in _FLAGS if arguments.get(key) is True]
    words += [
        word for text in _texts(arguments.get("extra_vars")) for shown in _variables(text) for word in ("-e", shown)
    ]
    return shlex.join(words)


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in values if isinstance(item, str) and item]


def _variables(variables: str) -> list[str]:
    """Return the variables in an argument of -e. Dots are the values of unknown variables, and JSON or YAML."""
    if variables.startswith("@"):
        return [variables]
    try:
        pairs = [word.partition("=") for word in shlex.split(variables)]
    except ValueError:
        return ["..."]
    if not all(sign and re.fullmatch(r"\w+", name) for name, sign, _value in pairs):
        return ["..."]
    return [
        f"{name}={shlex.quote(value) if _SHOWN_VARIABLES.fullmatch(name) else '...'}" for name, _sign, value in pairs
    ]
