# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of config.toml: names, types and permitted values.

The settings are those of the packages of 1.18 to 1.20.
"""

from __future__ import annotations

import datetime
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]

    # What is wrong with a string, as the end of "KEY should be ..."; empty if nothing is.
    Check = t.Callable[[str], str]


_CLI = "nvidia-container-cli"
_RUNTIME = "nvidia-container-runtime"
_MODES = f"{_RUNTIME}.modes"

LDCONFIG_KEY = f"{_CLI}.ldconfig"
# Its values are for programs, and may be passwords whatever their names.
ENVIRONMENT_KEY = f"{_CLI}.environment"
# Debian's ldconfig is a script around this one, where it is there.
REAL_LDCONFIG = "/sbin/ldconfig.real"


class Setting(t.NamedTuple):
    """One setting: its dotted key, the kind of its value, and its default.

    ``commented``: the default stands in the packages' file as a comment.  Of a string this means that it is not set at
    all; of a boolean, that it would say the same.  None is the default of what does not stand there in any form.
    """

    key: str
    kind: type
    default: t.Any
    commented: bool = False

    @property
    def path(self) -> KeyPath:
        return tuple(self.key.split("."))

    @property
    def implied(self) -> t.Any:
        """What is in effect where the file does not say it; None: nothing."""
        if self.kind is bool:
            return bool(self.default)
        return None if self.commented else self.default


def _commented(key: str, default: t.Any) -> Setting:
    return Setting(key, bool if isinstance(default, bool) else str, default, commented=True)


def _set(key: str, default: t.Any) -> Setting:
    kind = bool if isinstance(default, bool) else list if isinstance(default, list) else str
    return Setting(key, kind, default)


def _feature(name: str) -> Setting:
    return Setting(f"features.{name}", bool, None)


# In the order of the file.
SETTINGS = (
    _commented("accept-nvidia-visible-devices-as-volume-mounts", default=False),
    _commented("accept-nvidia-visible-devices-envvar-when-unprivileged", default=True),
    _set("disable-require", default=False),
    _set("supported-driver-capabilities", "compat32,compute,display,graphics,ngx,utility,video"),
    _commented("swarm-resource", "DOCKER_RESOURCE_GPU"),
    _feature("allow-cuda-compat-libs-from-container"),
    _feature("allow-ldconfig-from-container"),
    _feature("disable-cuda-compat-lib-hook"),
    _feature("ignore-imex-channel-requests"),
    _feature("no-additional-gids-for-device-nodes"),
    _commented(f"{_CLI}.debug", "/var/log/nvidia-container-toolkit.log"),
    _set(ENVIRONMENT_KEY, []),
    _commented(f"{_CLI}.ldcache", "/etc/ld.so.cache"),
    _set(LDCONFIG_KEY, "@/sbin/ldconfig"),
    _set(f"{_CLI}.load-kmods", default=True),
    _commented(f"{_CLI}.no-cgroups", default=False),
    _commented(f"{_CLI}.path", "/usr/bin/nvidia-container-cli"),
    _commented(f"{_CLI}.root", "/run/nvidia/driver"),
    _commented(f"{_CLI}.user", "root:video"),
    _commented(f"{_RUNTIME}.debug", "/var/log/nvidia-container-runtime.log"),
    _set(f"{_RUNTIME}.log-level", "info"),
    _set(f"{_RUNTIME}.mode", "auto"),
    _set(f"{_RUNTIME}.runtimes", ["runc", "crun"]),
    _set(f"{_MODES}.cdi.annotation-prefixes", ["cdi.k8s.io/"]),
    _set(f"{_MODES}.cdi.default-kind", "nvidia.com/gpu"),
    _set(f"{_MODES}.cdi.spec-dirs", ["/etc/cdi", "/var/run/cdi"]),
    _set(f"{_MODES}.csv.mount-spec-path", "/etc/nvidia-container-runtime/host-files-for-container.d"),
    _set(f"{_MODES}.legacy.cuda-compat-mode", "ldconfig"),
    _set("nvidia-container-runtime-hook.path", "nvidia-container-runtime-hook"),
    _set("nvidia-container-runtime-hook.skip-mode-detection", default=False),
    _set("nvidia-ctk.path", "nvidia-ctk"),
)
BY_PATH = {setting.path: setting for setting in SETTINGS}
TABLES = frozenset(path[:depth] for path in BY_PATH for depth in range(1, len(path)))


class _Danger(t.NamedTuple):
    """A key, which of its values are unsafe, and what that means."""

    key: str
    judge: t.Callable[[t.Any], bool]
    words: str


_UNSAFE = (
    _Danger(
        "features.allow-ldconfig-from-container",
        lambda value: value is True,
        "an ldconfig that comes from an image may run with the host's rights. Leave it out unless every image is"
        " trusted.",
    ),
    _Danger(
        "features.allow-cuda-compat-libs-from-container",
        lambda value: value is True,
        "libraries that come from an image are mounted with the host's rights, as before 1.17.4. Leave it out unless"
        " every image is trusted.",
    ),
    _Danger(
        "features.ignore-imex-channel-requests",
        lambda value: value is True,
        "what a container asks of IMEX channels is not looked at. Leave it out where IMEX is used.",
    ),
    _Danger(
        LDCONFIG_KEY,
        lambda value: isinstance(value, str) and not value.startswith("@"),
        "an image can bring a program to this place, which then runs with the host's rights (CVE-2024-0136 and"
        " CVE-2024-0137). Begin the path with @, which means the host's own program.",
    ),
    _Danger(
        f"{_CLI}.no-cgroups",
        lambda value: value is True,
        "in legacy mode the device cgroup of a container is left alone. That suits rootless engines,"
        " but a container of an engine that runs as root then sees its GPUs and may not open them. On a host that has"
        " both, use CDI for the rootless ones.",
    ),
)


def effective(data: t.Mapping[str, t.Any], real_ldconfig: bool = False) -> dict[str, t.Any]:
    """What a config.toml with ``data`` amounts to, by dotted keys: its own values over the defaults.

    A setting that is neither there nor has a default is None.  ``real_ldconfig`` says whether the host has
    REAL_LDCONFIG.
    """
    found = {setting.key: _plain(setting.implied) for setting in SETTINGS}
    found[LDCONFIG_KEY] = default_of(BY_PATH[tuple(LDCONFIG_KEY.split("."))], real_ldconfig)
    found.update((dotted(path), _plain(value)) for path, value in toml_parser.iter_leaves(data))
    return found


def unsafe(settings: t.Mapping[str, t.Any]) -> list[str]:
    """What is dangerous in effective settings, with advice."""
    return [f"{key} is {spelled(settings[key])}: {words}" for key, judge, words in _UNSAFE if judge(settings.get(key))]


def default_of(setting: Setting, real_ldconfig: bool) -> t.Any:
    """The default as the packages write it on this host."""
    return f"@{REAL_LDCONFIG}" if setting.key == LDCONFIG_KEY and real_ldconfig else setting.default


def dotted(path: KeyPath) -> str:
    return ".".join(path)


def spelled(value: t.Any) -> str:
    """A value for a message, without secrets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return masking.mask_urls_in_string(str(value))


def shown(value: t.Any) -> t.Any:
    """``value`` as a result may hold it: secret-looking values and user information in URLs are hidden.

    Strings are judged as ``NAME=value`` too, which is how an environment is written.
    """
    if isinstance(value, dict):
        return {name: masking.MASK if _hides(name, entry) else shown(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(entry) for entry in value]
    return masking.mask_urls_in_string(value) if isinstance(value, str) else value


def _hides(name: t.Any, entry: t.Any) -> bool:
    # Dotted keys hold no dictionaries, so that only the last name says what a value is.
    return entry is not None and not isinstance(entry, (bool, dict)) and masking.is_secret(str(name).rpartition(".")[2])


def _plain(value: t.Any) -> t.Any:
    """As a module can return it."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value


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
    """``value`` as it goes into the file; raises NvidiaError for one that the setting cannot have."""
    if setting.kind is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if isinstance(value, tuple):
        value = list(value)
    complaint = _complaint(setting, value)
    if complaint:
        raise errors.NvidiaError(f"settings: {complaint}. Nothing was changed.")
    return value


def unfit(document: toml_document.TomlDocument) -> list[str]:
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
    """The value of a setting that is not in the table; raises NvidiaError for what TOML cannot hold."""
    if isinstance(value, dict):
        return {name: checked_unknown(f"{key}.{name}", entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [checked_unknown(key, entry) for entry in value]
    number = isinstance(value, (bool, float)) or (isinstance(value, int) and -_INT64 <= value < _INT64)
    if not number and not isinstance(value, str):
        raise errors.NvidiaError(
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
    return repr(masking.mask_urls_in_string(value)) if isinstance(value, str) else spelled(value)
