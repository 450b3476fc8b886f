# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the variables that name files of the controller, or that decide about all hosts of a play.

Private to this collection. A fact has precedence over the inventory, and a hostile host can return one in the result of
any module of Ansible. So these variables must not be facts of a host. They are derived from the tasks that run on the
controller or once for all hosts, in every playbook and role, so that a new task needs no entry in a list.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _settings

if t.TYPE_CHECKING:
    from pathlib import Path

# Whether the user has named hosts (--limit) is a variable too. In ansible-core 2.19 and newer, a fact can replace omit.
_NAME = re.compile(r"\b(?:nvidia_\w+|ansible_limit|omit)\b")
_PREFIX = "ansible_"
_OF_ANSIBLE = (_PREFIX, "omit")
_COLLECTION = "gpufleet.nvidia."
_CONTROLLER_ACTION = re.compile(r"^class ActionModule\(.*\bControllerAction\):", re.MULTILINE)
# Tasks of these actions read files of the controller.
_READ_FILES = ("ansible.builtin.copy", "ansible.builtin.include_tasks", "ansible.builtin.include_vars",
               "ansible.builtin.script", "ansible.builtin.template")  # fmt: skip
# The options of a module that its action plugin reads on the controller.
OPTIONS = {f"{_COLLECTION}nvidia_toolkit_install": ("source", "src", "files", "remote_src")}
# The keys of variables in a role's vars/main.yml from which Python takes files of the controller.
_KEYS = {
    "nvidia_runtime_settings": ("before", "after"),
    "nvidia_toolkit_plan_settings": ("source", "files", "files_on"),
}
_LISTS_OF_TASKS = ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always")


def controller_variables(collection: Path, settings: t.Collection[str]) -> frozenset[str]:
    """Return the variables of this collection that a fact must not set.

    Args:
        collection: The directory of the collection.
        settings: The names of all variables that a user can set. Others are left out, except for those of Ansible.
    """
    actions = {path.stem: path.read_text(encoding="utf-8") for path in (collection / "plugins/action").glob("*.py")}
    local = {f"{_COLLECTION}{name}" for name, text in actions.items() if _CONTROLLER_ACTION.search(text)}
    files = [*collection.glob("playbooks/*.yml"), *collection.glob("roles/*/tasks/*.yml"),
             *collection.glob("roles/*/handlers/*.yml")]  # fmt: skip
    found: set[str] = set()
    for path in files:
        found.update(*(_names(part) for part in _parts(_settings.load(path), local)))
    variables: dict[str, t.Any] = {}
    for path in collection.glob("roles/*/defaults/main.yml"):
        variables.update(_settings.load(path))
    for path in collection.glob("roles/*/vars/main.yml"):
        own = _settings.load(path)
        found.update(*(_names(own[name].get(key)) for name in own.keys() & _KEYS.keys() for key in _KEYS[name]))
        variables.update(own)
    return frozenset(
        name for name in _with_sources(found, variables) if name in settings or name.startswith(_OF_ANSIBLE)
    )


def _names(value: t.Any) -> set[str]:
    return set(_NAME.findall(str(value)))


def _parts(entries: t.Any, local: t.Collection[str]) -> t.Iterator[t.Any]:
    """Yield what is evaluated for the controller or for all hosts, in the plays or tasks of a file.

    Args:
        entries: Plays, blocks and tasks.
        local: The actions of this collection that run on the controller.
    """
    for entry in entries or ():
        nested = [name for name in _LISTS_OF_TASKS if name in entry]
        if "hosts" in entry:
            # Ansible evaluates the keywords of a play once.
            yield {key: value for key, value in entry.items() if key not in (*nested, "vars", "roles")}
        for name in nested:
            yield from _parts(entry[name], local)
        if "run_once" in entry or "delegate_to" in entry or any(name in entry for name in (*local, *_READ_FILES)):
            yield {key: value for key, value in entry.items() if key != "name"}
        for module in OPTIONS.keys() & entry.keys():
            yield [entry[module].get(option) for option in OPTIONS[module]]


def _with_sources(names: t.Iterable[str], variables: t.Mapping[str, t.Any]) -> set[str]:
    """Return the names, and those to which the values of roles for them refer.

    The variables in _KEYS have many keys, of which only some name files.
    """
    found, waiting = set(), [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [] if name in _KEYS else _names(variables.get(name))
    return found


def chosen_by_facts(names: t.Collection[str], facts: t.Collection[str]) -> list[str]:
    """Return which of these variables the facts of a host set. Ansible keeps facts without the prefix ansible_."""
    return sorted(name for name in names if name in facts or (name.startswith(_PREFIX) and name[8:] in facts))
