# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what the NVIDIA Container Toolkit consists of and where it lies, as its packages of 1.18
# to 1.20 have it, and what stood in their place before them.

from __future__ import annotations

# They always move together: one version, one transaction.
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# What they replace (until 1.15).
FORMER_PACKAGES = (
    "nvidia-docker2",
    "nvidia-docker",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
)

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

# The sources of packages that NVIDIA's instructions, old and new, leave behind.
FORMER_SOURCES = (
    "nvidia-docker",
    "libnvidia-container",
    "nvidia-container-runtime",
    "nvidia-container-toolkit",
)
# How the addresses in them begin, without the scheme.
FORMER_ADDRESSES = (
    "nvidia.github.io/libnvidia-container",
    "nvidia.github.io/nvidia-docker",
    "nvidia.github.io/nvidia-container-runtime",
)
# What nvidia_toolkit_install writes for the role nvidia_toolkit, under names that nobody else's instructions use.
DNF_REPOSITORY = "gpufleet-nvidia-container-toolkit"
APT_SOURCE = "/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources"
DNF_SOURCE = "/etc/yum.repos.d/gpufleet-nvidia-container-toolkit.repo"
REPOSITORY_FILES = (
    APT_SOURCE,
    "/etc/apt/preferences.d/gpufleet-nvidia-container-toolkit",
    "/etc/apt/apt.conf.d/95gpufleet-nvidia-container-toolkit",
    DNF_SOURCE,
)
# Keys carry sixteen hexadecimal digits of their fingerprints in their names.
_SHORT_FINGERPRINT = "[0-9A-Fa-f]" * 16
KEY_PATTERNS = (
    f"/usr/share/keyrings/gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}.asc",
    f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}",
)
# Where the role keeps those that it fetched, until they are in their places.
STAGED_KEYS = f"/var/cache/gpufleet-nvidia-key-{_SHORT_FINGERPRINT}.asc"
# Where it keeps packages that the controller sends.
PACKAGE_CACHE = "/var/cache/gpufleet-nvidia/packages"

# Where the toolkit goes on hosts whose packages are not to be touched, as NVIDIA's installer has it.
DIRECTORY = "/usr/local/nvidia/toolkit"
# That is a link to one of several versions, which lie beside it in a folder of this name.
VERSIONS_SUFFIX = ".versions"

# Where engines look for CDI specifications.
SPECIFICATION_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# What they call GPUs there.
GPU_KIND = "nvidia.com/gpu"
