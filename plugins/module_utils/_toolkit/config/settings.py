# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of config.toml: names, types and permitted values.

The settings are those of the toolkits 1.17 to 1.20 (internal/config, since 1.19 api/config/v1).
"""

from __future__ import annotations

import datetime
import re
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import masking, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import os_release
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document

    KeyPath = t.Tuple[str, ...]

    # Returns what a string should be, as the end of "KEY should be ...". Empty if the string is valid.
    Check = t.Callable[[str], str]


_CLI = "nvidia-container-cli"
_RUNTIME = "nvidia-container-runtime"
_MODES = f"{_RUNTIME}.modes"

LDCONFIG_KEY, USER_KEY, MODE_KEY = f"{_CLI}.ldconfig", f"{_CLI}.user", f"{_RUNTIME}.mode"
# With this setting, nvidia-container-cli may run ldconfig of an image, and LDCONFIG_KEY needs no @.
ALLOW_LDCONFIG_KEY = "features.allow-ldconfig-from-container"
# In legacy mode the device cgroup of a container is not changed.
_NO_CGROUPS = f"{_CLI}.no-cgroups"
# The values are environment variables for programs. Any of them may contain a password.
ENVIRONMENT_KEY = f"{_CLI}.environment"
# Debian's ldconfig is a script that runs this program, if it exists.
REAL_LDCONFIG = "/sbin/ldconfig.real"
_SUSE = {"suse", "opensuse"}


NO_DEFAULTS: t.Mapping[str, str] = types.MappingProxyType({})


def dotted(path: KeyPath) -> str:
    return ".".join(path)


def path_of(key: str) -> KeyPath:
    return tuple(key.split("."))


class Setting(t.NamedTuple):
    """One setting: its dotted key, the type of its value, and its default.

    ``commented``: the packages' file contains the default as a comment. A string is then not set, and a boolean has
    the value in the comment. A default of None means that the packages' file does not contain the setting.
    """

    key: str
    kind: type
    default: t.Any
    commented: bool = False

    @property
    def path(self) -> KeyPath:
        return path_of(self.key)

    @property
    def implied(self) -> t.Any:
        """The effective value if the file does not contain the setting. None: not set."""
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


# In the order of the packages' file. It does not contain those with the default None.
SETTINGS = (
    _commented("accept-nvidia-visible-devices-as-volume-mounts", default=False),
    _commented("accept-nvidia-visible-devices-envvar-when-unprivileged", default=True),
    _set("disable-require", default=False),
    _set("supported-driver-capabilities", "compat32,compute,display,graphics,ngx,utility,video"),
    _commented("swarm-resource", "DOCKER_RESOURCE_GPU"),
    _feature("allow-cuda-compat-libs-from-container"),
    Setting(ALLOW_LDCONFIG_KEY, bool, None),
    _feature("allow-unknown-oci-spec-fields"),
    _feature("disable-cuda-compat-lib-hook"),
    _feature("disable-imex-channel-creation"),
    _feature("ignore-imex-channel-requests"),
    _feature("no-additional-gids-for-device-nodes"),
    _commented(f"{_CLI}.debug", "/var/log/nvidia-container-toolkit.log"),
    _set(ENVIRONMENT_KEY, []),
    _commented(f"{_CLI}.ldcache", "/etc/ld.so.cache"),
    _set(LDCONFIG_KEY, "@/sbin/ldconfig"),
    _set(f"{_CLI}.load-kmods", default=True),
    _commented(f"{_CLI}.no-cgroups", default=False),
    Setting(f"{_CLI}.no-pivot", bool, None),
    _commented(f"{_CLI}.path", "/usr/bin/nvidia-container-cli"),
    _commented(f"{_CLI}.root", "/run/nvidia/driver"),
    _commented(USER_KEY, "root:video"),
    _commented(f"{_RUNTIME}.debug", "/var/log/nvidia-container-runtime.log"),
    _set(f"{_RUNTIME}.log-level", "info"),
    _set(MODE_KEY, "auto"),
    _set(f"{_RUNTIME}.runtimes", ["runc", "crun"]),
    _set(f"{_MODES}.cdi.annotation-prefixes", ["cdi.k8s.io/"]),
    _set(f"{_MODES}.cdi.default-kind", "nvidia.com/gpu"),
    _set(f"{_MODES}.cdi.spec-dirs", ["/etc/cdi", "/var/run/cdi"]),
    Setting(f"{_MODES}.csv.compat-container-root", str, None),
    _set(f"{_MODES}.csv.mount-spec-path", "/etc/nvidia-container-runtime/host-files-for-container.d"),
    Setting(f"{_MODES}.jit-cdi.nvcdi-disable-hooks", list, None),
    Setting(f"{_MODES}.jit-cdi.nvcdi-feature-flags", list, None),
    _set(f"{_MODES}.legacy.cuda-compat-mode", "ldconfig"),
    _set("nvidia-container-runtime-hook.path", "nvidia-container-runtime-hook"),
    _set("nvidia-container-runtime-hook.skip-mode-detection", default=False),
    _set("nvidia-ctk.path", "nvidia-ctk"),
)
BY_PATH = {setting.path: setting for setting in SETTINGS}
TABLES = frozenset(path[:depth] for path in BY_PATH for depth in range(1, len(path)))


class _UnsafeValue(t.NamedTuple):
    """A key, a function that returns whether a value is unsafe, and a message about the danger."""

    key: str
    is_unsafe: t.Callable[[t.Any], bool]
    message: str


_UNSAFE = (
    _UnsafeValue(
        ALLOW_LDCONFIG_KEY,
        lambda value: value is True,
        "ldconfig from an image may run with the privileges of the host. Remove this setting unless all images are"
        " trusted.",
    ),
    _UnsafeValue(
        "features.allow-cuda-compat-libs-from-container",
        lambda value: value is True,
        "libraries from an image are mounted with the privileges of the host, as before 1.17.4. Remove this setting"
        " unless all images are trusted.",
    ),
    _UnsafeValue(
        "features.ignore-imex-channel-requests",
        lambda value: value is True,
        "requests of containers for IMEX channels are ignored. Remove this setting on hosts with IMEX.",
    ),
    _UnsafeValue(
        LDCONFIG_KEY,
        lambda value: isinstance(value, str) and not value.startswith("@"),
        "an image can contain a program with this path, which then runs with the privileges of the host (CVE-2024-0136"
        " and CVE-2024-0137). Put @ before the path to use the program of the host.",
    ),
    _UnsafeValue(
        _NO_CGROUPS,
        lambda value: value is True,
        "in legacy mode the device cgroup of a container is not changed. Rootless engines need this, but containers of"
        " an engine that runs as root cannot open their GPUs then. On a host with both kinds of engines, use CDI for"
        " the rootless ones.",
    ),
)


def effective(data: t.Mapping[str, t.Any], defaults: t.Mapping[str, str] = NO_DEFAULTS) -> dict[str, t.Any]:
    """Return the effective settings of a config.toml with ``data``, by dotted keys: its values over the defaults.

    A setting without a value and without a default is None. ``defaults`` are those of host_defaults().
    """
    found = {setting.key: _plain(setting.implied) for setting in SETTINGS}
    found.update(defaults)
    found.update((dotted(path), _plain(value)) for path, value in toml_parser.iter_leaves(data))
    return found


def unsafe_settings(
    settings: t.Mapping[str, t.Any], refused: t.Collection[KeyPath] = (), in_container: bool = False
) -> list[str]:
    """Return a message with advice for each unsafe value in effective settings.

    Values at the paths ``refused``, which the runtime refuses, have no effect. A system container needs no-cgroups.
    """
    return [
        f"{key} is {format_value(settings[key])}: {message}"
        for key, is_unsafe, message in _UNSAFE
        if is_unsafe(settings.get(key)) and path_of(key) not in refused and not (in_container and key == _NO_CGROUPS)
    ]


def host_defaults(host: hostfs.HostFS) -> dict[str, str]:
    """Return the defaults that the packages write only on hosts such as ``host``, by dotted keys.

    On SUSE the user is not a comment. See getLdConfigPathStub() and getUserGroup() in api/config/v1/config.go of the
    toolkit (1.20).
    """
    found = {}
    if host.exists(REAL_LDCONFIG):
        found[LDCONFIG_KEY] = f"@{REAL_LDCONFIG}"
    if not _SUSE.isdisjoint(os_release.distribution_of(host)):
        found[USER_KEY] = BY_PATH[path_of(USER_KEY)].default
    return found


def default_of(setting: Setting, defaults: t.Mapping[str, str] = NO_DEFAULTS) -> t.Any:
    """Return the default as the packages write it; None if they write it as a comment or not at all.

    ``defaults`` are those of host_defaults().
    """
    return defaults.get(setting.key, None if setting.commented else setting.default)


def format_value(value: t.Any) -> str:
    """Return a value for a message, without secrets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(format_value, masking.mask_value(value))) + "]"
    return masking.mask_urls_in_string(str(value))


def masked(value: t.Any) -> t.Any:
    """Return ``value`` for a result: values of secret names and user information in URLs are masked.

    Strings are also checked as ``NAME=value``, the form of an environment variable.
    """
    if isinstance(value, dict):
        return {name: masking.MASK if _is_secret_entry(name, entry) else masked(entry) for name, entry in value.items()}
    return masking.mask_value(value)


def _is_secret_entry(name: t.Any, entry: t.Any) -> bool:
    # The last part of a dotted key names the value. A dotted key never contains a dictionary.
    return (
        entry is not None
        and not isinstance(entry, (bool, dict))
        and masking.is_secret(str(name).rpartition(".")[2], entry)
    )


def _plain(value: t.Any) -> t.Any:
    """Return the value in a form that a module can return."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value


LEVEL_KEY = "nvidia-container-runtime.log-level"
# Ansible's templates may return booleans as these strings.
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
_KINDS = {bool: "true or false", str: "a string", list: "a list of strings"}
_CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
_INT64 = 2**63


def _any_text(_value: str) -> str:
    return ""


def _one_of(*choices: str) -> Check:
    return lambda value: "" if value in choices else "one of " + ", ".join(choices)


def _matching(pattern: str, message: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: "" if compiled.fullmatch(value) else message


def _absolute(value: str) -> str:
    return "" if value.startswith("/") else "an absolute path"


def _program(value: str) -> str:
    """Return "" for a valid program. A name is found in PATH.

    A relative path is invalid, since it depends on the process that starts the container.
    """
    return "" if value.startswith("/") or not re.search(r"[/~]", value) else "an absolute path or the name of a program"


def _host_path(value: str) -> str:
    return "" if value.startswith("@") else f"a path with @ before it, because {ALLOW_LDCONFIG_KEY} is not true"


def _ldconfig(value: str) -> str:
    return "" if value.startswith(("/", "@/")) else "an absolute path, with @ before it to use the program of the host"


def _capabilities(value: str) -> str:
    known = value == "all" or all(word in _CAPABILITIES for word in value.split(","))
    return "" if known else f"all, or some of {','.join(_CAPABILITIES)}, separated by commas without spaces"


_MODE_NAMES = ("auto", "legacy", "cdi", "csv", "jit-cdi")
# The first versions with the mode jit-cdi (internal/info/auto.go), and with the check of ldconfig (assertValid() in
# internal/config). Last without them 1.17.9 and 1.17.2.
JIT_CDI_SINCE, _HOST_LDCONFIG_SINCE = "1.18.0-rc.1", "1.17.3"
_USER = r"(?:[A-Za-z_][A-Za-z0-9_.-]*\$?|[0-9]+)"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# The check of a list applies to each of its entries.
_CHECKS: dict[str, Check] = {
    "supported-driver-capabilities": _capabilities,
    "swarm-resource": _matching(f"{_VARIABLE}(?:,{_VARIABLE})*", "names of environment variables, separated by commas"),
    "nvidia-container-cli.debug": _absolute,
    ENVIRONMENT_KEY: _matching(rf"(?s){_VARIABLE}=.*", "NAME=value"),
    "nvidia-container-cli.ldcache": _absolute,
    "nvidia-container-cli.ldconfig": _ldconfig,
    "nvidia-container-cli.path": _program,
    "nvidia-container-cli.root": _absolute,
    "nvidia-container-cli.user": _matching(f"{_USER}(?::{_USER})?", "USER or USER:GROUP, as names or numbers"),
    "nvidia-container-runtime.debug": _absolute,
    # The levels of the library that writes the log.
    LEVEL_KEY: _one_of(*("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")),
    MODE_KEY: _one_of(*_MODE_NAMES),
    "nvidia-container-runtime.runtimes": _program,
    "nvidia-container-runtime.modes.cdi.default-kind": _matching(
        r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", "VENDOR/CLASS"
    ),
    "nvidia-container-runtime.modes.cdi.spec-dirs": _absolute,
    "nvidia-container-runtime.modes.csv.mount-spec-path": _absolute,
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": _one_of("ldconfig", "mount", "disabled", "hook"),
    "nvidia-container-runtime-hook.path": _program,
    "nvidia-ctk.path": _program,
}
# Lists in one text, in which the toolkit ignores blanks and empty names.
_WITH_BLANKS = ("supported-driver-capabilities", "swarm-resource")
# The runtime refuses to start a container if this list is empty.
_NEVER_EMPTY = ("nvidia-container-runtime.runtimes",)


def check_value(setting: Setting, value: t.Any) -> t.Any:
    """Return ``value`` as it is written to the file. Raises NvidiaError for an invalid value."""
    if setting.kind is bool and isinstance(value, str):
        value = _BOOLEANS.get(value.lower(), value)
    if isinstance(value, tuple):
        value = list(value)
    problem = _value_problem(setting, value, _check_of(setting))
    if problem:
        raise errors.NvidiaError(f"{errors.option:settings}: {problem}.")
    return value


def known_values(data: t.Mapping[str, t.Any]) -> dict[KeyPath, t.Any]:
    """Return the values of known tables and settings in the ``data`` of a config.toml, outer tables first."""
    found: dict[KeyPath, t.Any] = {(): data}
    for path in [*sorted(TABLES), *BY_PATH]:
        outer = found.get(path[:-1])
        if isinstance(outer, dict) and path[-1] in outer:
            found[path] = outer[path[-1]]
    del found[()]
    return found


def refused_values(data: t.Mapping[str, t.Any], version: str | None = None) -> dict[KeyPath, str]:
    """Return a problem, by path, for each value with which NVIDIA's runtime starts no container.

    It refuses wrong types (Unmarshal() in api/config/v1/toml.go), an ldconfig of the image (assertValid() in
    config.go), an empty list of runtimes (findRuntime() in internal/oci) and an unknown mode (validate() in
    internal/modifier), as read in 1.17 to 1.20. ``version`` is that of the toolkit; None counts as the newest.
    """
    values = known_values(data)
    has_jit_cdi = toolkit_installed.is_at_least(version, JIT_CDI_SINCE)
    checks = {MODE_KEY: _one_of(*(_MODE_NAMES if has_jit_cdi else _MODE_NAMES[:-1]))}
    is_allowed = values.get(path_of(ALLOW_LDCONFIG_KEY)) is True
    if not is_allowed and toolkit_installed.is_at_least(version, _HOST_LDCONFIG_SINCE):
        checks[LDCONFIG_KEY] = _host_path
    found = {}
    for path, value in values.items():
        setting = BY_PATH.get(path)
        if setting is not None:
            problem = _value_problem(setting, value, checks.get(setting.key, _any_text))
        else:
            problem = "" if isinstance(value, dict) else _type_problem(dotted(path), value, "a table")
        if problem:
            found[path] = problem
    return found


def check_ldconfig(data: t.Mapping[str, t.Any]) -> None:
    """Raise NvidiaError if no container would start with the ldconfig in the ``data`` of a config.toml.

    The version of the toolkit is not known. Toolkits before 1.17.3 ignore the setting that allows such a value.
    """
    problem = refused_values(data).get(path_of(LDCONFIG_KEY))
    if problem:
        raise errors.NvidiaError(
            f"{errors.option:settings}: {problem}. Put @ before the path to use the program of the host, or set"
            f" {ALLOW_LDCONFIG_KEY}: true if all images are trusted."
        )


# The codes of invalid_values(): the runtime starts no container with the value, or it uses another value instead.
REFUSED, TOLERATED = "setting-refused", "setting-invalid"


def invalid_values(document: toml_document.TomlDocument, version: str | None = None) -> list[errors.ConfigurationError]:
    """Return an error, with its position, for each value in a config.toml that the toolkit ``version`` cannot use.

    The code of an error is REFUSED or TOLERATED.
    """
    refused = refused_values(document.data, version)
    found = []
    for path, value in known_values(document.data).items():
        setting = BY_PATH.get(path)
        problem = refused.get(path) or ("" if setting is None else _file_value_problem(setting, value))
        if problem:
            error = document.error(path, problem, "Correct the value.")
            error.code = REFUSED if path in refused else TOLERATED
            found.append(error)
    return found


def _file_value_problem(setting: Setting, value: t.Any) -> str:
    """Return the problem with a value in the file. The toolkit accepts more values there than a task does."""
    # The toolkit reads an empty string as not set, and levels in upper or lower case.
    if value == "" and setting.kind is str and setting.commented:
        return ""
    if isinstance(value, str) and setting.key == LEVEL_KEY:
        value = value.lower()
    elif isinstance(value, str) and setting.key in _WITH_BLANKS:
        value = ",".join(filter(None, map(str.strip, value.split(","))))
    return _value_problem(setting, value, _check_of(setting))


def _check_of(setting: Setting) -> Check:
    check = _CHECKS.get(setting.key, _any_text)
    return lambda text: _text_problem(text) or check(text)


def _value_problem(setting: Setting, value: t.Any, check: Check) -> str:
    """Return the problem with a value as a sentence without its end. Empty if the value is valid."""
    if not fits(setting, value):
        return _type_problem(setting.key, value, _KINDS[setting.kind])
    if setting.key in _NEVER_EMPTY and not value:
        return _type_problem(setting.key, value, "a list with at least one entry")
    for text in value if setting.kind is list else [value] if setting.kind is str else []:
        expected = check(text)
        if expected:
            return _type_problem(setting.key, text, expected)
    return ""


def fits(setting: Setting, value: t.Any) -> bool:
    """Return whether ``value`` has the setting's type."""
    if setting.kind is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, setting.kind)


def kind_of(setting: Setting) -> str:
    """Return the setting's type for a message."""
    return _KINDS[setting.kind]


def check_unknown_value(key: str, value: t.Any) -> t.Any:
    """Return the value of an unknown setting. Raises NvidiaError for a value that TOML cannot contain."""
    if isinstance(value, dict) and all(isinstance(name, str) and core_text.is_unicode(name) for name in value):
        return {name: check_unknown_value(f"{key}.{name}", entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [check_unknown_value(key, entry) for entry in value]
    number = isinstance(value, (bool, float)) or (isinstance(value, int) and -_INT64 <= value < _INT64)
    if not number and not (isinstance(value, str) and core_text.is_unicode(value)):
        raise errors.NvidiaError(
            f"{errors.option:settings}: TOML cannot store the value of {key}. Use strings, numbers, booleans, lists"
            " and dictionaries."
        )
    return value


def _text_problem(text: str) -> str:
    if not text.strip():
        return "a string that is not empty"
    return "" if text.isprintable() else "a string without control characters"


def _type_problem(key: str, value: t.Any, expected: str) -> str:
    return f"{key} is {_format_given(key, value)}, but must be {expected}"


def _format_given(key: str, value: t.Any) -> str:
    if key == ENVIRONMENT_KEY:
        return "a list that is not shown" if isinstance(value, list) else "a value that is not shown"
    # The quotes distinguish a string such as "5" from a value of another type.
    return repr(masking.mask_urls_in_string(value)) if isinstance(value, str) else format_value(value)
