# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which values a setting of the toolkit may have.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import mask_urls_in_string
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import (
    ENVIRONMENT_KEY,
    SETTINGS,
    TABLES,
    dotted,
    spelled,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import Setting

    # What is wrong with a string, as the end of "KEY should be ..."; empty if nothing is.
    Check = t.Callable[[str], str]

LEVEL_KEY = "nvidia-container-runtime.log-level"
# As Ansible's templates may deliver them.
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_KINDS = {bool: "true or false", str: "a string", list: "a list of strings"}
_CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
_INT64 = 2**63


def _anything(_value: str) -> str:
    return ""


def _one_of(*choices: str) -> Check:
    return lambda value: "" if value in choices else "one of " + ", ".join(choices)


def _matching(pattern: str, words: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: "" if compiled.fullmatch(value) else words


def _absolute(value: str) -> str:
    return "" if value.startswith("/") else "an absolute path"


def _program(value: str) -> str:
    """A name is looked up in PATH; a path that is relative would depend on who starts the container."""
    return "" if value.startswith("/") or not re.search(r"[/~]", value) else "an absolute path or the name of a program"


def _ldconfig(value: str) -> str:
    return "" if value.startswith(("/", "@/")) else "an absolute path, with @ before it for the host's own program"


def _capabilities(value: str) -> str:
    known = value == "all" or all(word in _CAPABILITIES for word in value.split(","))
    return "" if known else f"all, or some of {','.join(_CAPABILITIES)}, with commas and without blanks"


_USER = r"(?:[A-Za-z_][A-Za-z0-9_.-]*\$?|[0-9]+)"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# Of a list, for each of its entries.
_CHECKS: dict[str, Check] = {
    "supported-driver-capabilities": _capabilities,
    "swarm-resource": _matching(
        f"{_VARIABLE}(?:,{_VARIABLE})*", "the name of an environment variable, or several with commas between them"
    ),
    "nvidia-container-cli.debug": _absolute,
    ENVIRONMENT_KEY: _matching(rf"(?s){_VARIABLE}=.*", "NAME=value"),
    "nvidia-container-cli.ldcache": _absolute,
    "nvidia-container-cli.ldconfig": _ldconfig,
    "nvidia-container-cli.path": _program,
    "nvidia-container-cli.root": _absolute,
    "nvidia-container-cli.user": _matching(f"{_USER}(?::{_USER})?", "USER or USER:GROUP, as names or numbers"),
    "nvidia-container-runtime.debug": _absolute,
    # As the library that writes the log names them.
    LEVEL_KEY: _one_of(*("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")),
    "nvidia-container-runtime.mode": _one_of("auto", "legacy", "cdi", "csv", "jit-cdi"),
    "nvidia-container-runtime.runtimes": _program,
    "nvidia-container-runtime.modes.cdi.default-kind": _matching(
        r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?", "VENDOR/CLASS"
    ),
    "nvidia-container-runtime.modes.cdi.spec-dirs": _absolute,
    "nvidia-container-runtime.modes.csv.mount-spec-path": _absolute,
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": _one_of("ldconfig", "mount", "disabled", "hook"),
    "nvidia-container-runtime-hook.path": _program,
    "nvidia-ctk.path": _program,
}
# The runtime refuses to start a container without one.
_NEVER_EMPTY = ("nvidia-container-runtime.runtimes",)


def checked(setting: Setting, value: t.Any) -> t.Any:
    """``value`` as it goes into the file; raises GpufleetError for one that the setting cannot have."""
    if setting.kind is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if isinstance(value, tuple):
        value = list(value)
    complaint = _complaint(setting, value)
    if complaint:
        raise GpufleetError(f"settings: {complaint}. Nothing was changed.")
    return value


def unfit(document: TomlDocument) -> list[str]:
    """What a config.toml holds that the toolkit cannot use, in sentences with its place."""
    advice = "The toolkit cannot use that. Correct it by hand or with the module nvidia_toolkit_config."
    tables = [path for path in sorted(TABLES) if document.has(*path) and not isinstance(document.value(*path), dict)]
    found = [(path, _sentence(dotted(path), document.value(*path), "a table")) for path in tables]
    there = [setting for setting in SETTINGS if document.has(*setting.path)]
    found += [(setting.path, _complaint_of_person(setting, document.value(*setting.path))) for setting in there]
    return [str(document.error(path, complaint, advice)) for path, complaint in found if complaint]


def _complaint_of_person(setting: Setting, value: t.Any) -> str:
    """The same as for a task, but for what the toolkit accepts beyond that."""
    # It takes an empty string as none at all, and levels in any case.
    if value == "" and setting.kind is str and setting.commented:
        return ""
    return _complaint(setting, value.lower() if setting.key == LEVEL_KEY and isinstance(value, str) else value)


def _complaint(setting: Setting, value: t.Any) -> str:
    """What is wrong with a value, as a sentence without its end; empty if nothing is."""
    if not _fits(setting, value):
        return _sentence(setting.key, value, _KINDS[setting.kind])
    if setting.key in _NEVER_EMPTY and not value:
        return _sentence(setting.key, value, "a list of at least one")
    for text in value if setting.kind is list else [value] if setting.kind is str else []:
        wanted = _text_problem(text) or _CHECKS.get(setting.key, _anything)(text)
        if wanted:
            return _sentence(setting.key, text, wanted)
    return ""


def _fits(setting: Setting, value: t.Any) -> bool:
    """Whether ``value`` is of the setting's kind."""
    if setting.kind is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, setting.kind)


def kind_of(setting: Setting) -> str:
    """The setting's kind in words."""
    return _KINDS[setting.kind]


def checked_unknown(key: str, value: t.Any) -> t.Any:
    """The value of a setting that is not in the table; raises GpufleetError for what TOML cannot hold."""
    if isinstance(value, dict):
        return {name: checked_unknown(f"{key}.{name}", entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked_unknown(key, entry) for entry in value]
    number = isinstance(value, (bool, float)) or (isinstance(value, int) and -_INT64 <= value < _INT64)
    if not number and not isinstance(value, str):
        raise GpufleetError(
            f"settings: {key} holds what TOML cannot. Give a string, a number, true, false, a list or a dictionary of"
            " such."
        )
    return value


def _text_problem(text: str) -> str:
    if not text.strip():
        return "a string that is not empty"
    return "" if text.isprintable() else "a string without control characters"


def _sentence(key: str, value: t.Any, wanted: str) -> str:
    return f"{key} is {_given(key, value)}, but should be {wanted}"


def _given(key: str, value: t.Any) -> str:
    if key == ENVIRONMENT_KEY:
        return "a list that is not shown" if isinstance(value, list) else "a value that is not shown"
    # A word that stands for another kind, such as "5", is told from it by its quotes.
    return repr(mask_urls_in_string(value)) if isinstance(value, str) else spelled(value)
