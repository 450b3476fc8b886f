# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the settings of the NVIDIA Container Toolkit, one row each, as the config.toml of its
# packages of 1.18 to 1.20 has them, and what a file amounts to.

from __future__ import annotations

import datetime
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._masking import MASK, is_secret, mask_urls_in_string
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_values import leaves

if t.TYPE_CHECKING:
    KeyPath = t.Tuple[str, ...]

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
    found.update((dotted(path), _plain(value)) for path, value in leaves(data))
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
    return mask_urls_in_string(str(value))


def shown(value: t.Any) -> t.Any:
    """``value`` as a result may hold it: secret-looking values and user information in URLs are hidden.

    Strings are judged as ``NAME=value`` too, which is how an environment is written.
    """
    if isinstance(value, dict):
        return {name: MASK if _hides(name, entry) else shown(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(entry) for entry in value]
    return mask_urls_in_string(value) if isinstance(value, str) else value


def _hides(name: t.Any, entry: t.Any) -> bool:
    # Dotted keys hold no dictionaries, so that only the last name says what a value is.
    return entry is not None and not isinstance(entry, (bool, dict)) and is_secret(str(name).rpartition(".")[2])


def _plain(value: t.Any) -> t.Any:
    """As a module can return it."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value
