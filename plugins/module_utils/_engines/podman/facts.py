# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of Podman."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts

# `_engines/facts.py` says what "run" and "read" mean.
FACTS = engines_facts.EngineFacts(
    name="podman",
    cdi_newest=(
        # read: the first release with CDI as it was released, according to the CDI project's README.
        ((4, 1), "0.3.0"),
        # run: 4.3.1 of Debian 12, whose library is 0.5.2.
        ((4, 3), "0.5.0"),
        # read: 0.6.2 (podman #20558); 4.9.3 refuses additionalGids (NVIDIA/nvidia-container-toolkit #1860).
        ((4, 8), "0.6.0"),
        # read: 0.7.1 (podman #22280).
        ((5, 1), "0.7.0"),
        # run: 5.4.2 of Debian 13.
        ((5, 4), "0.8.0"),
        # run: 5.8.6 of Debian sid.
        ((5, 8), "1.0.0"),
    ),
    # run: 4.3.1, 5.4.2 and 5.8.6 read both; read: 5.5 reads only /etc/cdi (podman #26569), until containers/common
    # #2462.
    cdi_folders=(((5, 5), ("/etc/cdi",)), ((5, 6), core_constants.CDI_SPEC_DIRS)),
    packages=(("tomlkit",), ()),
    rootless=True,
    device_option=True,
)
