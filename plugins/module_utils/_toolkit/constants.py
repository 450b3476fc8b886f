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


# Without these there is no toolkit.
PROGRAMS = (
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-cli",
    "nvidia-ctk",
)
# These came later: they need not be there, but must be of the same version.
LATER_PROGRAMS = ("nvidia-cdi-hook",)

CONFIG_FILE = "/etc/nvidia-container-runtime/config.toml"
# Below the folder of the programs, where these were installed into one of their own.
OWN_CONFIG_FILE = ".config/nvidia-container-runtime/config.toml"
# Where it keeps packages that the controller sends.
PACKAGE_CACHE = "/var/cache/gpufleet-nvidia/packages"

# Where the toolkit goes on hosts whose packages are not to be touched, as NVIDIA's installer has it.
DIRECTORY = "/usr/local/nvidia/toolkit"
# That is a link to one of several versions, which lie beside it in a folder of this name.
VERSIONS_SUFFIX = ".versions"


def config_file(host: hostfs.HostFS, folder: str) -> str:
    """The config.toml of the programs in ``folder``: their own, if they were installed into a folder of their own."""
    own = posixpath.join(folder, OWN_CONFIG_FILE)
    return own if host.exists(own) else CONFIG_FILE


RUNTIMES = (core_constants.MAIN_PROGRAM, *core_constants.MODE_PROGRAMS.values())
# CDI specifications name it, and run it without an environment; it needs none.
UNWRAPPED = ("nvidia-cdi-hook",)
REAL_SUFFIX = ".real"


class Vulnerability(t.NamedTuple):
    """A toolkit older than ``floor`` is open to ``name``."""

    floor: str
    name: str
    about: str


VULNERABILITIES = (
    Vulnerability("1.16.2", "CVE-2024-0132", "container escape; use of CDI is not affected"),
    Vulnerability("1.17.4", "CVE-2025-23359", "bypass of the fix for CVE-2024-0132"),
    Vulnerability("1.17.8", "CVE-2025-23266", "enable-cuda-compat hook; before 1.17.5 only in CDI mode"),
    Vulnerability("1.17.8", "CVE-2025-23267", "link following in the enable-cuda-compat hook"),
    Vulnerability("1.19.1", "CVE-2026-24260", "race between check and use"),
)
