# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The names of the toolkit's packages, and of the repository files of this collection and NVIDIA's instructions."""

from __future__ import annotations

# All four always have the same version, and change in one transaction.
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# The packages that they replace (until 1.15).
FORMER_PACKAGES = (
    "nvidia-docker2",
    "nvidia-docker",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
)

# The names of source files that NVIDIA's old and new instructions create.
FORMER_SOURCES = (
    "nvidia-docker",
    "libnvidia-container",
    "nvidia-container-runtime",
    "nvidia-container-toolkit",
)
# The first part of the addresses in them, without the scheme.
FORMER_ADDRESSES = (
    "nvidia.github.io/libnvidia-container",
    "nvidia.github.io/nvidia-docker",
    "nvidia.github.io/nvidia-container-runtime",
)
# The repository and the files that nvidia_toolkit_install writes for the role nvidia_toolkit. No other instructions use
# these names.
DNF_REPOSITORY = "gpufleet-nvidia-container-toolkit"
APT_SOURCE = "/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources"
DNF_SOURCE = "/etc/yum.repos.d/gpufleet-nvidia-container-toolkit.repo"
REPOSITORY_FILES = (
    APT_SOURCE,
    "/etc/apt/preferences.d/gpufleet-nvidia-container-toolkit",
    "/etc/apt/apt.conf.d/95gpufleet-nvidia-container-toolkit",
    DNF_SOURCE,
)
# The names of key files contain sixteen hexadecimal digits of the key's fingerprint.
_SHORT_FINGERPRINT = "[0-9A-Fa-f]" * 16
KEY_PATTERNS = (
    f"/usr/share/keyrings/gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}.asc",
    f"/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-{_SHORT_FINGERPRINT}",
)
# The role stores fetched keys here until it installs them.
STAGED_KEYS = f"/var/cache/gpufleet-nvidia-key-{_SHORT_FINGERPRINT}.asc"
