# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find values whose shape no role can use, although Ansible converts them. This file imports nothing of Ansible.

Private to this collection. For example, Ansible turns a list into the text "['x']" where a text is expected.
"""

from __future__ import annotations

import re
import typing as t

# The paths of a task file are on the controller, and so may be those of packages.
_OF_CONTROLLER = ("nvidia_runtime_before_restart", "nvidia_runtime_after_restart", "nvidia_toolkit_src")
_FILES, _FILES_ON = "nvidia_toolkit_files", "nvidia_toolkit_files_on"
# Ansible would split a text at its commas, which such a list never means.
_LISTS = {_FILES: "[/srv/a.deb, /srv/b.deb]", "nvidia_runtime_verify_command": "[nvidia-smi, -L]"}
_ENGINES, _USERS = "nvidia_runtime_engines", "nvidia_runtime_users"
_URLS = ("nvidia_toolkit_base_url", "nvidia_toolkit_key_url", "nvidia_toolkit_repository_url")
_URL = re.compile(r"(?:https?|file)://.+")
_NEGATIVE = re.compile(r"-[0-9]+")


def problems(given: t.Mapping[str, t.Any], options: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """Return what is wrong with values.

    Args:
        given: The evaluated variables, as the user has set them.
        options: The argument specification of each variable.
    """
    found: list[str] = []
    for name, value in sorted(given.items()):
        option = options[name]
        if option["type"] in ("str", "path") and isinstance(value, (list, dict)):
            found.append(f"{name} is a {_kind(value)}. Write one {'path' if option['type'] == 'path' else 'text'}.")
        elif name in _LISTS and isinstance(value, str):
            found.append(f"{name} is a text. Write a list such as {_LISTS[name]}.")
        elif option["type"] == "int" and _NEGATIVE.fullmatch(str(value)):
            found.append(f"{name} is {value}. Use 0 or more.")
    return [*found, *_engines(given), *_users(given), *_relative_paths(given, options), *_addresses(given)]


def _kind(value: object) -> str:
    return "list" if isinstance(value, list) else "dictionary"


def _engines(given: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    value = given.get(_ENGINES, "auto")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield f"{_ENGINES} is {value!r}. Use auto, or a list such as [docker, containerd/k3s]."
    elif any("," in name for name in names):
        yield f"{_ENGINES} is {value!r}. Write a list such as [docker, containerd/k3s], with each engine for itself."
    elif "auto" in names and len(names) > 1:
        yield f"{_ENGINES} has auto and other engines. Use auto alone, which selects all engines, or remove it."


def _users(given: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    value = given.get(_USERS, "all")
    is_list = isinstance(value, list) and all(isinstance(user, str) and user for user in value)
    if value != "all" and not is_list:
        yield f"{_USERS} is {value!r}. Use a list of names of users, or all."


def _relative_paths(given: t.Mapping[str, t.Any], options: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[str]:
    """Yield an error for a relative path on a host: no directory of a host is the usual one of a task."""
    files_on_host = given.get(_FILES_ON, "controller") == "node"
    for name, value in sorted(given.items()):
        if options[name]["type"] == "path" and name not in _OF_CONTROLLER:
            paths = [value]
        elif options[name].get("elements") == "path" and (name != _FILES or files_on_host):
            paths = value if isinstance(value, list) else []
        else:
            continue
        # Ansible expands the other two on the host.
        relative = [path for path in paths if isinstance(path, str) and path and path[0] not in "/~$"]
        if relative:
            yield f"{name} has the relative path {relative[0]!r}. Give the full path on the host."


def _addresses(given: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    for name in _URLS:
        value = given.get(name)
        if isinstance(value, str) and value and not _URL.fullmatch(value):
            yield f"{name} is {value!r}. Write an address that begins with https://."
        elif name == _URLS[0] and name in given and not value:
            yield f"{name} is empty. Remove it to use NVIDIA's repository."
