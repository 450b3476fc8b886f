# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The names of the toolkit's packages, and of the repository files that this collection and NVIDIA's instructions
write.
"""

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
