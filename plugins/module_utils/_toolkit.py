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
# What the role nvidia_toolkit writes (its vars/main.yml); keys carry their fingerprint in their names.
REPOSITORY_FILES = (
    "/etc/apt/sources.list.d/nvidia-container-toolkit.sources",
    "/etc/apt/preferences.d/nvidia-container-toolkit",
    "/etc/apt/apt.conf.d/95nvidia-container-toolkit-proxy",
    "/etc/yum.repos.d/nvidia-container-toolkit.repo",
)
KEY_PATTERNS = (
    "/usr/share/keyrings/nvidia-container-toolkit-*.asc",
    "/etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-container-toolkit-*",
)
# Where it keeps packages that the controller sends.
PACKAGE_CACHE = "/var/cache/gpufleet-nvidia/packages"
