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
        # read: library 0.4.0. First 4.1.0, last without it 4.0.3, which reads CDI up to 0.2.0. 3.2 to 3.4 read JSON of
        # a format before 0.3.0 in /etc/cdi.
        ((4, 1), "0.4.0"),
        # read: 0.5.2; run: 4.3.1 of Debian 12. First 4.3.0, last without it 4.2.1.
        ((4, 3), "0.5.0"),
        # read: 0.6.1; 4.9.3 refuses additionalGids (NVIDIA/nvidia-container-toolkit #1860). First 4.7.0, last without
        # it 4.6.2.
        ((4, 7), "0.6.0"),
        # read: 0.7.2 (podman #22280). First 5.1.0, last without it 5.0.3.
        ((5, 1), "0.7.0"),
        # read: 0.8.0; run: 5.4.2 of Debian 13. First 5.2.0, last without it 5.1.2.
        ((5, 2), "0.8.0"),
        # read: 1.0.1; run: 5.8.6 of Debian sid. First 5.5.0, last without it 5.4.2.
        ((5, 5), "1.0.0"),
    ),
    # run: 4.3.1, 5.4.2 and 5.8.6 read both. read (DefaultCdiSpecDirs of containers/common): only /etc/cdi (podman
    # #26569): first 5.5.0, last without it 5.4.2. Both again (containers/common #2462): first 5.6.0, last without it
    # 5.5.2.
    cdi_folders=(((5, 5), ("/etc/cdi",)), ((5, 6), core_constants.CDI_SPEC_DIRS)),
    packages=(("tomlkit",), ()),
    rootless=True,
    device_option=True,
)
