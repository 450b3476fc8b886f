# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the names of all variables from the roles and playbooks, and check a host's variables.

Private to this collection. The checks are those that the argument specification of a single role cannot express. The
values are given by the caller.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import typing as t

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import variables as core_variables
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_alone, flavors, parameters
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import cdi_spec, toolkit_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import configure
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import directory as toolkit_directory

if t.TYPE_CHECKING:
    from pathlib import Path

# An unknown name with one of these prefixes is an error.
AUDIT = "nvidia_audit_"
PREFIXES = ("nvidia_toolkit_", "nvidia_runtime_", "nvidia_cdi_", AUDIT)
HOSTS = "nvidia_hosts"
HOST_ROOT = "nvidia_host_root"
SERIAL = "nvidia_serial"
FAMILY = "nvidia_"
# The tags of the playbooks site, rolling and remove.
TAGS = ("toolkit", "cdi", "runtime")
_ROLES = ("toolkit", "runtime", "cdi")
# The tags that Ansible reserves.
_TAGS_OF_ANSIBLE = frozenset({"all", "always", "never", "tagged", "untagged"})
_UNKNOWN = "is not a variable of gpufleet.nvidia."
_OWN = "List a variable of your own in nvidia_own_variables."
_EDITS = 2
_REGISTER = re.compile(r"\bregister: (nvidia_\w+)")
_LOOP_VAR = re.compile(r"\b(?:loop_var|index_var): (nvidia_\w+)")
_NAME = re.compile(r"\bnvidia_\w+")
_OPTIONAL = re.compile(r"\b(nvidia_\w+) \| default\(")
_BATCH = re.compile(r"\s*0*[1-9][0-9]*%?\s*")
_TOOLKIT_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[~.+-][0-9A-Za-z.~+-]+)?|latest")
_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+)+(?:[~+-].*)?")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{40}")
# A user and a password before the host of an address.
_USER_IN_ADDRESS = re.compile(r"(?:[^/?#]*//)?[^/?#]*@")
_ADDRESSES = ("nvidia_toolkit_repository_url", "nvidia_toolkit_base_url", "nvidia_toolkit_key_url")
_ADDRESS = re.compile(r"(?:https?|file)://.+")
_TASK_FILES = ("nvidia_runtime_before_restart", "nvidia_runtime_after_restart")
_FILES = "nvidia_toolkit_files"
# These paths are on the controller, and so may be _FILES.
_OF_CONTROLLER = frozenset({*_TASK_FILES, "nvidia_toolkit_src"})
# Ansible would split a text at its commas, which such a list never means.
_LISTS = {_FILES: "[/srv/a.deb, /srv/b.deb]", "nvidia_runtime_verify_command": "[nvidia-smi, -L]"}
# Variables that must not be empty, and what is used if they are not set.
_NEVER_EMPTY = {"nvidia_runtime_engines": "all engines", "nvidia_toolkit_base_url": "NVIDIA's repository"}
_VERSIONS = {
    "nvidia_toolkit_version": (_TOOLKIT_VERSION, "Use one such as 1.19.1, or latest."),
    "nvidia_toolkit_minimum_version": (_VERSION, "Use one such as 1.19.1."),
    "nvidia_runtime_engine_version": (_VERSION, "Use one such as 26.1.5."),
}
# The argument specifications of the modules that get the dictionaries ROLE_module_options.
_SPECIFICATIONS = {
    "nvidia_toolkit": toolkit_options.SPEC,
    "nvidia_runtime": parameters.SPEC,
    "nvidia_cdi": cdi_spec.SPEC,
}


class Known(t.NamedTuple):
    """The variables of the collection.

    ``options`` has the argument specification of each variable of a role, of nvidia_host_root and of nvidia_serial,
    without defaults, which may be templates. ``settings`` are all variables that a user can set. ``internal`` are those
    that roles and playbooks set themselves, of which ``loops`` exist only in loops. ``defaults`` are those of the
    roles. ``of_audit`` are the settings that the playbook audit names.
    """

    options: dict[str, dict[str, t.Any]]
    settings: frozenset[str]
    internal: frozenset[str]
    loops: frozenset[str]
    defaults: dict[str, t.Any]
    of_audit: frozenset[str]


def known_variables(collection: Path) -> Known:
    """Read the variables of the collection in this directory from its roles and playbooks."""
    options: dict[str, dict[str, t.Any]] = {}
    internal: set[str] = set()
    loops: set[str] = set()
    optional: set[str] = set()
    defaults: dict[str, t.Any] = {}
    for role in sorted((collection / "roles").iterdir()):
        for entry in load(role / "meta/argument_specs.yml")["argument_specs"].values():
            options.update({name: _without_default(option) for name, option in entry["options"].items()})
        specification, names = _SPECIFICATIONS[role.name], core_variables.MODULE_OPTIONS[role.name]
        of_module = {name: _without_default(specification[name]) for name in names}
        options[core_variables.module_options(role.name)]["options"] = of_module
        internal.update(load(role / "vars/main.yml"))
        optional.update(_OPTIONAL.findall((role / "defaults/main.yml").read_text(encoding="utf-8")))
        defaults.update(load(role / "defaults/main.yml"))
        for path in [*role.glob("tasks/*.yml"), *role.glob("handlers/*.yml")]:
            text = path.read_text(encoding="utf-8")
            internal.update(_REGISTER.findall(text))
            loops.update(_LOOP_VAR.findall(text))
            internal.update(_names_of_tasks(load(path)))
    options.update({HOST_ROOT: {"type": "path"}, SERIAL: {"type": "raw"}})
    for path in (collection / "playbooks").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        internal.update(_REGISTER.findall(text))
        loops.update(_LOOP_VAR.findall(text))
        optional.update(_OPTIONAL.findall(text))
        internal.update(_names_of_tasks(load(path)))
    settings = frozenset(options) | optional
    of_audit = settings.intersection(_NAME.findall((collection / "playbooks/audit.yml").read_text(encoding="utf-8")))
    return Known(options, settings, frozenset(internal | loops) - settings, frozenset(loops), defaults, of_audit)


@functools.lru_cache(maxsize=None)
def load(path: Path) -> t.Any:
    """Return the content of a file in YAML of this collection. Several functions read each file; none may change it."""
    return yaml_load(path.read_text(encoding="utf-8"))


def _names_of_tasks(part: t.Any) -> t.Iterator[str]:
    """Yield the variables of plays, roles and tasks in a part of a playbook or of a task file."""
    if isinstance(part, list):
        for entry in part:
            yield from _names_of_tasks(entry)
    elif isinstance(part, dict):
        yield from part.get("vars") or {}
        for key in ("pre_tasks", "roles", "tasks", "post_tasks", "block"):
            yield from _names_of_tasks(part.get(key))


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
    allowed = known.settings | (known.internal - known.loops) | {*own}
    unknown = {str(name) for name in names if str(name).startswith(FAMILY)} - allowed
    for name in sorted(unknown):
        near = _one_word_away(name, known.settings)
        if name.startswith(PREFIXES) or near is not None:
            advice = _nearest(name, known.settings) if near is None else f" Did you mean {near}?"
            errors.append(f"{name} {_UNKNOWN}{advice} {_OWN}")
        else:
            near = next((setting for setting in sorted(known.settings) if _within_edits(name, setting, _EDITS)), None)
            if near is not None:
                warnings.append(f"{name} {_UNKNOWN} Did you mean {near}? {_OWN}")
    return errors, warnings


def tag_problems(tags: t.Iterable[str], own: t.Collection[str]) -> list[str]:
    """Find misspelled tags, with which Ansible would run no task and report success.

    Args:
        tags: The tags that the user selects and skips.
        own: The user's own tags, which are not checked.

    Returns:
        Errors. A tag that does not resemble one of the collection may belong to another play. A short tag such as api
        resembles cdi; nvidia_own_tags permits it.
    """
    problems = []
    for tag in sorted({*tags} - {*TAGS, *own} - _TAGS_OF_ANSIBLE):
        near = next((known for known in TAGS if _within_edits(tag.lower(), known, _EDITS)), None)
        if near is not None:
            problems.append(
                f"The tag {tag} is not one of gpufleet.nvidia. Did you mean {near}? List a tag of your own in"
                " nvidia_own_tags."
            )
    return problems


def _nearest(name: str, names: t.Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(names), n=1)
    return f" Did you mean {found[0]}?" if found else ""


def _one_word_away(name: str, settings: t.Iterable[str]) -> str | None:
    """Return the variable of a role that has one word more or less than ``name``, or None."""
    # A name with only one word after the family, such as nvidia_version, is too general.
    words = name.split("_")
    for setting in sorted(settings) if name.count("_") > 1 else ():
        shorter, longer = sorted((words, setting.split("_")), key=len)
        shortened = [longer[:number] + longer[number + 1 :] for number in range(1, len(longer))]
        if setting.startswith(PREFIXES) and shorter in shortened:
            return setting
    return None


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


def shape_problems(given: t.Mapping[str, t.Any], options: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """Find values that Ansible converts although no role can use them, such as "['x']" for a list in place of a text.

    Args:
        given: The evaluated variables, as the user has set them.
        options: The argument specification of each variable.

    Returns:
        Errors.
    """
    problems = []
    for name, value in sorted(given.items()):
        kind = options[name]["type"]
        if kind in ("str", "path") and isinstance(value, (list, dict)):
            problems.append(f"{name} is a list or a dictionary. Write one {'path' if kind == 'path' else 'text'}.")
        elif name in _LISTS and isinstance(value, str):
            problems.append(f"{name} is a text. Write a list such as {_LISTS[name]}.")
        elif kind == "int" and str(value).startswith("-"):
            problems.append(f"{name} is {value}. Use 0 or more.")
        elif name in _NEVER_EMPTY and value in (None, ""):
            problems.append(f"{name} is empty. Remove it to use {_NEVER_EMPTY[name]}.")
        elif name in _ADDRESSES and value and not _ADDRESS.fullmatch(str(value)):
            problems.append(f"{name} is {value!r}. Write an address that begins with https://.")
        elif "options" in options[name] and isinstance(value, dict):
            inner = {key: value[key] for key in value.keys() & options[name]["options"].keys()}
            problems += [f"{name}: {problem}" for problem in shape_problems(inner, options[name]["options"])]
    return [*problems, *_relative_paths(given, options)]


def _relative_paths(given: t.Mapping[str, t.Any], options: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[str]:
    """Yield an error for a relative path on a host: no directory of a host is the usual one of a task."""
    of_controller = _OF_CONTROLLER if given.get("nvidia_toolkit_files_on") == "node" else {*_OF_CONTROLLER, _FILES}
    for name in sorted(given.keys() - of_controller):
        values = given[name] if isinstance(given[name], list) else [given[name]]
        is_path = "path" in (options[name]["type"], options[name].get("elements"))
        # Ansible expands the other two on the host.
        relative = [path for path in values if isinstance(path, str) and path and path[0] not in "/~$"]
        if is_path and relative:
            yield f"{name} has the relative path {relative[0]!r}. Give the full path on the host."


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
        *_malformed_batches(values),
        *_unknown_engines(values),
        *_single_engine(values),
        *_malformed_versions(values),
        *_malformed_repository(values),
        *_missing_files(values),
        *_base_without_hook(values),
        *_missing_task_files(values, is_file),
    ]


def _different_host_roots(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    roles = [role for role in _ROLES if role != "cdi" or values.get("nvidia_cdi_enabled", True)]
    default = values.get(HOST_ROOT) or "/"
    roots = {f"nvidia_{role}_host_root": values.get(f"nvidia_{role}_host_root") or default for role in roles}
    if len({os.path.normpath(root) for root in roots.values()}) > 1:
        named = ", ".join(f"{name} is {root}" for name, root in roots.items())
        yield f"The roles would change different trees: {named}. Set nvidia_host_root, which is the default of all."


def _malformed_batches(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Yield an error for sizes with which Ansible ends with a traceback, and for 0, which it takes for all hosts."""
    given = values.get(SERIAL)
    if given is None:
        return
    sizes = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
    if not sizes or not all(_BATCH.fullmatch(str(size)) for size in sizes):
        yield f"{SERIAL} is {given!r}. Use a number of hosts above 0, a percentage such as 25%, or a list of them."


def _unknown_engines(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    for name in _engines(values):
        engine, slash, rest = str(name).partition("/")
        flavor = rest.partition("/")[0]
        known = [flavor for of, flavor in flavors.FLAVORS if of == engine]
        if engine not in flavors.ENGINES:
            yield f"nvidia_runtime_engines has {name!r}. {_one_of(engine, flavors.ENGINES)}"
        elif slash and flavor not in known:
            yield f"nvidia_runtime_engines has {name!r}, but {engine} has no such flavor. {_one_of(flavor, known)}"
    for name in values.get("nvidia_cdi_for_engines") or []:
        engine, colon, version = str(name).partition(":")
        if engine not in ("auto", *flavors.ENGINES):
            yield f"nvidia_cdi_for_engines has {name!r}. {_one_of(engine, ('auto', *flavors.ENGINES))}"
        elif colon and _VERSION.fullmatch(version) is None:
            yield f"nvidia_cdi_for_engines has {name!r}, without a version after the colon. Use one such as 26.1.5."


def _one_of(name: str, known: t.Sequence[str]) -> str:
    return f"Use one of {', '.join(known)}.{_nearest(name, known)}"


def _engines(values: t.Mapping[str, t.Any]) -> list[t.Any]:
    """Return the engines that the user names; empty for auto."""
    named = values.get("nvidia_runtime_engines")
    if named in (None, "auto", ["auto"]):
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


def _malformed_repository(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    source, state = values.get("nvidia_toolkit_source", "repository"), values.get("nvidia_toolkit_state", "present")
    if (source, state) != ("repository", "present"):
        return
    fingerprint = str(values.get("nvidia_toolkit_key_fingerprint") or "").replace(" ", "")
    if fingerprint and _FINGERPRINT.fullmatch(fingerprint) is None:
        yield (
            f"nvidia_toolkit_key_fingerprint must have 40 hexadecimal digits and nothing else. {fingerprint!r} has"
            f" {len(re.findall('[0-9A-Fa-f]', fingerprint))}."
        )
    addresses = [name for name in _ADDRESSES if _USER_IN_ADDRESS.match(str(values.get(name) or ""))]
    if addresses:
        yield (
            f"Addresses must not contain a password. Remove it from {' and '.join(addresses)}; apt reads passwords in"
            " /etc/apt/auth.conf.d."
        )


def _missing_files(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    is_installed = values.get("nvidia_toolkit_state", "present") == "present"
    if is_installed and values.get("nvidia_toolkit_source") == "files" and not values.get("nvidia_toolkit_files"):
        yield "nvidia_toolkit_source is files, but nvidia_toolkit_files is empty. Set it to the paths of the packages."


def _base_without_hook(values: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Yield an error for settings that need a part of the toolkit that the base package lacks."""
    is_base = values.get("nvidia_toolkit_packages") == "base"
    if not is_base or values.get("nvidia_toolkit_state", "present") != "present":
        return
    if values.get("nvidia_toolkit_source") == "directory":
        yield (
            "nvidia_toolkit_packages is base, but nvidia_toolkit_source is directory, which installs no packages. Set"
            " nvidia_toolkit_module_options.components to [runtime, ctk, cdi_hook] instead."
        )
        return
    if values.get("nvidia_runtime_state", "present") != "present":
        return
    settings = values.get("nvidia_toolkit_settings")
    given: t.Mapping[str, t.Any] = settings if isinstance(settings, dict) else {}
    section = given.get("nvidia-container-runtime")
    mode = given.get("nvidia-container-runtime.mode") or (section.get("mode") if isinstance(section, dict) else None)
    needed = {
        "the mode in nvidia_toolkit_settings is legacy": mode == "legacy",
        "nvidia_runtime_config_mode is hook": values.get("nvidia_runtime_config_mode") == "hook",
        "nvidia_runtime_extra_modes has legacy": "legacy" in (values.get("nvidia_runtime_extra_modes") or []),
    }
    named = " and ".join(reason for reason, is_set in needed.items() if is_set)
    if named:
        yield (
            f"nvidia_toolkit_packages is base, but {named}, which needs NVIDIA's hook. Set nvidia_toolkit_packages to"
            " full, or change the other setting."
        )


def _missing_task_files(values: t.Mapping[str, t.Any], is_file: t.Callable[[str], bool]) -> t.Iterator[str]:
    for name in _TASK_FILES:
        path = values.get(name)
        if path and not is_file(path):
            yield f"{name}: {path} is not a file on the controller. Use an absolute path."


def refused_options(values: t.Mapping[str, t.Any], unknown: t.Collection[str]) -> t.Iterator[str]:
    """Yield the errors of modules that would refuse their options on each host. A later task sets the ``unknown``."""
    for module, options, check in _MODULES:
        variables = core_variables.variables_of(module, options)
        # The roles leave out what is empty.
        given = {option: values[name] for option, name in variables.items() if values.get(name) not in (None, "")}
        if given.pop("state", "present") == "present" and not {*unknown} & {*variables.values()}:
            try:
                with errors.role_variables(variables):
                    check(given)
            except errors.NvidiaError as error:
                yield str(error)


def _check_toolkit(given: dict[str, t.Any]) -> None:
    configure.SettingsRequest(given.get("settings", {}), allow_unknown=given.get("allow_unknown", False)).values()
    if given.get("source") == "directory":
        toolkit_directory.check_source(given.get("src"), given.get("files", ()))


def _check_runtime(given: dict[str, t.Any]) -> None:
    request = engines_request.RuntimeRequest(**given)
    request.check()
    if not request.register:
        cdi_alone.completed(request)


_MODULES: tuple[tuple[str, tuple[str, ...], t.Callable[[dict[str, t.Any]], None]], ...] = (
    ("nvidia_toolkit_install", ("state", "source", "src", "files", "settings", "allow_unknown"), _check_toolkit),
    ("nvidia_runtime_config", ("state", "runtime_name", "register", "set_as_default", "extra_modes"), _check_runtime),
)
