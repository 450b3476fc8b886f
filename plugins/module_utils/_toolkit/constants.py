# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs, directories and configuration files of the toolkit, and its known vulnerabilities.

The names are those of the packages of 1.18 to 1.20. A new bulletin is a new row in the table of vulnerabilities.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# Every complete toolkit has these programs.
PROGRAMS = (
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-cli",
    "nvidia-ctk",
)
# The programs of the packages other than the base package, which has the rest.
PROGRAMS_OF_PACKAGES = {
    "nvidia-container-toolkit": "nvidia-container-runtime-hook",
    "libnvidia-container-tools": "nvidia-container-cli",
}
# Only newer toolkits have these programs. They are optional, but must be of the same version.
LATER_PROGRAMS = ("nvidia-cdi-hook",)
ALL_PROGRAMS = (*PROGRAMS, *LATER_PROGRAMS)

# Options of nvidia_toolkit_install that request a change of config.toml.
CONFIG_OPTIONS = ("settings", "profile", "debug")
# Its options for only one of the two kinds of sources.
OPTIONS_OF_DIRECTORY = ("src", "components", "low_level_runtimes", "default_runtime_executable")
OPTIONS_OF_PACKAGES = ("repository_files", "key_fingerprint", "proxy", "hold", "package_cache")
CONFIG_FILE = "/etc/nvidia-container-runtime/config.toml"
# Relative to the directory of the programs, if the toolkit is installed into a directory of its own.
OWN_CONFIG_FILE = ".config/nvidia-container-runtime/config.toml"
# The directory of packages that the controller sends.
PACKAGE_CACHE = "/var/cache/gpufleet-nvidia/packages"

# NVIDIA's installer uses the same directory.
DIRECTORY = "/usr/local/nvidia/toolkit"
# DIRECTORY is a link to one of several versions. The versions are in a directory with this suffix.
VERSIONS_SUFFIX = ".versions"


def config_file(host: hostfs.HostFS, folder: str) -> str:
    """Return the path of config.toml for the programs in ``folder``.

    Programs in a directory of their own may have their own config.toml.
    """
    own = posixpath.join(folder, OWN_CONFIG_FILE)
    return own if host.exists(own) else CONFIG_FILE


RUNTIMES = (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values())
# CDI specifications name this program and run it without an environment, so it needs no wrapper.
UNWRAPPED = ("nvidia-cdi-hook",)
REAL_SUFFIX = ".real"
# What a complete toolkit contains.
INSTALLED_PROGRAMS = tuple(dict.fromkeys([*ALL_PROGRAMS, *RUNTIMES]))


def programs_in(packages: t.Collection[str], programs: t.Iterable[str]) -> tuple[str, ...]:
    """Return those of ``programs`` that a toolkit with only these ``packages`` has."""
    others = {program for package, program in PROGRAMS_OF_PACKAGES.items() if package not in packages}
    return tuple(program for program in programs if program not in others)


class Vulnerability(t.NamedTuple):
    """A vulnerability of toolkits older than ``floor``."""

    floor: str
    name: str
    about: str


# The versions are those of NVIDIA's bulletins, the first that has the correction. The source does not name them.
VULNERABILITIES = (
    Vulnerability("1.16.2", "CVE-2024-0132", "container escape; use of CDI is not affected"),
    Vulnerability("1.17.4", "CVE-2025-23359", "bypass of the fix for CVE-2024-0132"),
    Vulnerability("1.17.8", "CVE-2025-23266", "enable-cuda-compat hook; before 1.17.5 only in CDI mode"),
    Vulnerability("1.17.8", "CVE-2025-23267", "link following in the enable-cuda-compat hook"),
    Vulnerability("1.19.1", "CVE-2026-24260", "race between check and use"),
)
