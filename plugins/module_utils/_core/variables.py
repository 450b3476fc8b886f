# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Add the name of the role variable to a module's option in messages: `nvidia_toolkit_source (source)`."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

# Options whose variable is not named ROLE_OPTION. None: the role has no variable for the option.
_ALL_ROLES: t.Mapping[str, str | None] = {
    "host_root": "nvidia_host_root",
    "host_root_live": "nvidia_host_root_live",
    "predicted_toolkit": None,
    "user": "nvidia_runtime_users",
}
EXCEPTIONS: t.Mapping[str, t.Mapping[str, str | None]] = {
    "nvidia_toolkit": {
        "exclusive": None,
        "package_cache": None,
        "path": None,
        "pending": None,
        "remote_src": "nvidia_toolkit_files_on",
        "repository_files": None,
        "unrecorded": "nvidia_toolkit_remove_unrecorded",
        "create": None,
        "url": "nvidia_toolkit_key_url",
    },
    "nvidia_runtime": {
        "action": None,
        "command": "nvidia_runtime_verify_command",
        "container": None,
        "engine": "nvidia_runtime_engines",
        "expect": None,
        "image": "nvidia_runtime_verify_image",
        "level": "nvidia_runtime_verify",
        "method": None,
        "mode": "nvidia_runtime_restart_mode",
        "pull": "nvidia_runtime_verify_pull",
        "require_runtime": "nvidia_runtime_force_default",
        "retries": "nvidia_runtime_restart_retries",
        "rollback": None,
        "runtime_dir": "nvidia_runtime_dir",
        "runtime_name": "nvidia_runtime_name",
        "runtime_options": "nvidia_runtime_options",
        "runtime_type": "nvidia_runtime_type",
        "service": None,
        "socket": None,
        "targets": "nvidia_runtime_engines",
        "timeout": "nvidia_runtime_restart_timeout",
        "unrecorded": "nvidia_runtime_remove_unrecorded",
    },
    "nvidia_cdi": {"cdi_hook_path": "nvidia_cdi_hook_path", "owner": "nvidia_cdi_refresh", "start": None},
}
# nvidia_container_info belongs to no role.
_OF_INSPECTION = {
    "host_root": "nvidia_host_root",
    "host_root_live": "nvidia_host_root_live",
    "toolkit_dir": "nvidia_toolkit_dest",
}
_ROLE = re.compile(r"(?:.*\.)?(nvidia_(?:toolkit|runtime|cdi))_")
# In a message, a name with an underscore is always an option (_NAME). A single word is an option only before one of its
# values ("source: directory", _VALUE), as the subject ("dest is ..."), and after the verb of an advice ("Set version",
# both _WORD).
_NAME = re.compile(r"(?<![\w./(\-`'\"])([a-z]+(?:_[a-z]+)+)(?![\w/(\-`'\"]| = |\.\w)")
_VALUE = re.compile(r"(?<![\w./(\-])([a-z]+)(?=(?:: | is )([a-z-]+)\b)")
_WORD = re.compile(
    r"(?:(?<![\s\S])|(?<=, but ))[a-z]+(?= is | has | contains | requires | does |: )"
    r"|(?<=[Ll]eave )[a-z]+(?= out\b)"
    r"|(?:(?<=[Cc]orrect )|(?<=[Gg]ive )|(?<=[Ss]et )|(?<=[Rr]emove )|(?<=[Cc]hange ))[a-z]+\b(?![\w(-]|:| that | = )"
)


def variable_of(module: str, option: str) -> str | None:
    """Return the variable of a role that sets ``option`` of ``module``; None if there is none."""
    if module.rpartition(".")[2] == "nvidia_container_info":
        return _OF_INSPECTION.get(option)
    role = _ROLE.match(module)
    if role is None:
        return None
    exceptions = {**_ALL_ROLES, **EXCEPTIONS[role[1]]}
    return exceptions[option] if option in exceptions else f"{role[1]}_{option}"


def with_variables(text: str, module: str, options: t.Mapping[str, t.Mapping[str, t.Any]]) -> str:
    """Return a message with the variable beside each option, as in "nvidia_toolkit_source (source): directory".

    Args:
        text: a message of a module.
        module: the name of the module.
        options: its argument specification.
    """

    def with_variable(option: str) -> str:
        variable = variable_of(module, option) if option in options else None
        return option if variable is None else f"{variable} ({option})"

    def before_value(match: t.Match[str]) -> str:
        option = options.get(match[1], {})
        values = ("true", "false") if option.get("type") == "bool" else option.get("choices", ())
        return with_variable(match[1]) if match[2] in values else match[1]

    # The output of a program may contain the same names with another meaning.
    own, label, output = text.partition(errors.PROGRAM_OUTPUT)
    own = _NAME.sub(lambda match: with_variable(match[1]), own)
    return _WORD.sub(lambda match: with_variable(match[0]), _VALUE.sub(before_value, own)) + label + output
