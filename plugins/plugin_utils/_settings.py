# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the names of all variables from the roles and playbooks, and check a host's variables.

Private to this collection. The checks are those that the argument specification of a single role cannot express. The
values are given by the caller.
"""

from __future__ import annotations

import difflib
import os
import re
import typing as t

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors

if t.TYPE_CHECKING:
    from pathlib import Path

# An unknown name with one of these prefixes is an error.
PREFIXES = ("nvidia_toolkit_", "nvidia_runtime_", "nvidia_cdi_")
HOST_ROOT = "nvidia_host_root"
_ROLES = ("toolkit", "runtime", "cdi")
_FAMILY = "nvidia_"
_UNKNOWN = "is not a variable of gpufleet.nvidia."
_OWN = "List a variable of your own in nvidia_own_variables."
_EDITS = 2
_SET_BY_TASKS = re.compile(r"\b(?:register|loop_var): (nvidia_\w+)")
_OPTIONAL = re.compile(r"\b(nvidia_\w+) \| default\(")
_TOOLKIT_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[~.+-][0-9A-Za-z.~+-]+)?|latest")
_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+)+(?:[~+-].*)?")
_HOOKS = ("nvidia_runtime_before_restart", "nvidia_runtime_after_restart")
_VERSIONS = {
    "nvidia_toolkit_version": (_TOOLKIT_VERSION, "Use one such as 1.19.1, or latest."),
    "nvidia_toolkit_minimum_version": (_VERSION, "Use one such as 1.19.1."),
    "nvidia_runtime_engine_version": (_VERSION, "Use one such as 26.1.5."),
}


class Known(t.NamedTuple):
    """The variables of the collection.

    ``options`` has the argument specification of each variable of a role and of nvidia_host_root, without defaults,
    which may be templates. ``settings`` are all variables that a user can set. ``internal`` are those that roles and
    playbooks set themselves.
    """

    options: dict[str, dict[str, t.Any]]
    settings: frozenset[str]
    internal: frozenset[str]


def known_variables(collection: Path) -> Known:
    """Read the variables of the collection in this directory from its roles and playbooks."""
    options: dict[str, dict[str, t.Any]] = {}
    internal: set[str] = set()
    optional: set[str] = set()
    for role in sorted((collection / "roles").iterdir()):
        for entry in _load(role / "meta/argument_specs.yml")["argument_specs"].values():
            options.update({name: _without_default(option) for name, option in entry["options"].items()})
        internal.update(_load(role / "vars/main.yml"))
        optional.update(_OPTIONAL.findall((role / "defaults/main.yml").read_text(encoding="utf-8")))
        for path in [*role.glob("tasks/*.yml"), *role.glob("handlers/*.yml")]:
            internal.update(_SET_BY_TASKS.findall(path.read_text(encoding="utf-8")))
    options[HOST_ROOT] = {"type": "path"}
    for path in (collection / "playbooks").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        internal.update(_SET_BY_TASKS.findall(text))
        optional.update(_OPTIONAL.findall(text))
    return Known(options, frozenset(options) | optional, frozenset(internal))


def _load(path: Path) -> dict[str, t.Any]:
    found: dict[str, t.Any] = yaml_load(path.read_text(encoding="utf-8"))
    return found


def _without_default(option: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {key: value for key, value in option.items() if key != "default"}


def name_problems(names: t.Iterable[str], known: Known, own: t.Collection[str]) -> tuple[list[str], list[str]]:
    """Find misspelled variables.

    Args:
        names: The names of a host's variables, without those of facts.
        known: The variables of the collection.
        own: The user's own variables, which are not checked.

    Returns:
        Errors, and warnings.
    """
    errors, warnings = [], []
    unknown = {str(name) for name in names if str(name).startswith(_FAMILY)} - known.settings - known.internal - {*own}
    for name in sorted(unknown):
        if name.startswith(PREFIXES):
            errors.append(f"{name} {_UNKNOWN}{_nearest(name, known.settings)} {_OWN}")
        else:
            near = next((setting for setting in sorted(known.settings) if _within_edits(name, setting, _EDITS)), None)
            if near is not None:
                warnings.append(f"{name} {_UNKNOWN} Did you mean {near}? {_OWN}")
    return errors, warnings


def _nearest(name: str, names: t.Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(names), n=1)
    return f" Did you mean {found[0]}?" if found else ""


def _within_edits(first: str, second: str, limit: int) -> bool:
    """Return whether at most ``limit`` insertions, removals or replacements are needed (Levenshtein distance)."""
    if abs(len(first) - len(second)) > limit:
        return False
    row = list(range(len(second) + 1))
    for count, character in enumerate(first, 1):
        previous, row = row, [count]
        for column, other in enumerate(second, 1):
            row.append(min(row[-1] + 1, previous[column] + 1, previous[column - 1] + (character != other)))
        if min(row) > limit:
            return False
    return row[-1] <= limit


def value_problems(values: t.Mapping[str, t.Any], is_file: t.Callable[[str], bool]) -> list[str]:
    """Check the values of all roles, beyond what their argument specifications express.

    Args:
        values: The variables that are set.
        is_file: Returns whether a task file exists on the controller.

    Returns:
        Errors.
    """
    return [
        *_different_host_roots(values),
        *_unknown_engines(values),
        *_single_engine(values),
        *_malformed_versions(values),
        *_missing_hooks(values, is_file),
    ]


def _different_host_roots(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    roles = [role for role in _ROLES if role != "cdi" or values.get("nvidia_cdi_enabled", True)]
    default = values.get(HOST_ROOT) or "/"
    roots = {f"nvidia_{role}_host_root": values.get(f"nvidia_{role}_host_root") or default for role in roles}
    if len({os.path.normpath(root) for root in roots.values()}) > 1:
        named = ", ".join(f"{name} is {root}" for name, root in roots.items())
        yield f"The roles would change different trees: {named}. Set nvidia_host_root, which is the default of all."


def _unknown_engines(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    for name in _engines(values):
        engine, _slash, rest = str(name).partition("/")
        flavor = rest.partition("/")[0]
        known = [flavor for of, flavor in flavors.FLAVORS if of == engine]
        if engine not in flavors.ENGINES:
            yield f"nvidia_runtime_engines has {name!r}. {_one_of(engine, flavors.ENGINES)}"
        elif rest and flavor not in known:
            yield f"nvidia_runtime_engines has {name!r}, but {engine} has no such flavor. {_one_of(flavor, known)}"
    for name in values.get("nvidia_cdi_for_engines") or []:
        engine = str(name).partition(":")[0]
        if engine not in ("auto", *flavors.ENGINES):
            yield f"nvidia_cdi_for_engines has {name!r}. {_one_of(engine, ('auto', *flavors.ENGINES))}"
    users = values.get("nvidia_runtime_users")
    if isinstance(users, str) and users != "all":
        yield f"nvidia_runtime_users is {users!r}. Use a list of users, or all."


def _one_of(name: str, known: t.Sequence[str]) -> str:
    return f"Use one of {', '.join(known)}.{_nearest(name, known)}"


def _engines(values: t.Mapping[str, t.Any]) -> list[t.Any]:
    """Return the engines that the user names; empty for auto."""
    named = values.get("nvidia_runtime_engines")
    if named in (None, "auto"):
        return []
    return named if isinstance(named, list) else [named]


def _single_engine(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    if values.get("nvidia_runtime_config_path") and len(_engines(values)) != 1:
        yield "nvidia_runtime_config_path is for one engine. Name one engine only in nvidia_runtime_engines."


def _malformed_versions(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    for name, (pattern, advice) in _VERSIONS.items():
        version = values.get(name)
        if version and pattern.fullmatch(str(version)) is None:
            yield f"{name} {version!r} is not a version. {advice}"


def _missing_hooks(values: t.Mapping[str, t.Any], is_file: t.Callable[[str], bool]) -> t.Iterator[str]:
    for name in _HOOKS:
        path = values.get(name)
        if path and not is_file(path):
            yield f"{name}: {path} is not a file on the controller. Use an absolute path."
