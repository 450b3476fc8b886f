# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of Docker."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts

# The programs of the toolkit that `docker run --gpus` searches, and the first release that tries the second one, for
# CDI, before the other (moby 86f122af27, daemon/devices_nvidia_linux.go). First 29.2.0, last without it 29.1.5.
GPUS_PROGRAMS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
GPUS_BY_CDI_SINCE = (29, 2)

# `_engines/facts.py` says what "run" and "read" mean.
FACTS = engines_facts.EngineFacts(
    name="docker",
    cdi_newest=(
        # read: library 0.6.2 (moby #45134, #46774). First 25.0.0, last without it 24.0.9.
        ((25, 0), "0.6.0"),
        # read: 0.8.1, only on the branch 25.0. First 25.0.17, last without it 25.0.16.
        ((25, 0, 17), "0.8.0"),
        # read: 0.6.2 again, 26.0.0 to 26.0.2.
        ((26, 0), "0.6.0"),
        # read: 0.7.1 (moby #47706); run: 26.1.5 of Debian 13, with its own library. First 26.1.0, last without it
        # 26.0.2.
        ((26, 1), "0.7.0"),
        # read: 0.8.0. First 27.4.0, last without it 27.3.1.
        ((27, 4), "0.8.0"),
        # read: 1.0.1 (moby #49738); run: 28.5.2 of Debian sid. First 28.1.0, last without it 28.0.4.
        ((28, 1), "1.0.0"),
        # read: 1.1.0. First 29.2.0, last without it 29.1.5.
        ((29, 2), "1.1.0"),
    ),
    cdi_setting="cdi-spec-dirs",
    options=engines_facts.RUNTIMES | {"extra_modes"},
    device_option=True,
    gpus_option=True,
    runtime_option=True,
    gpus_by_cdi=GPUS_BY_CDI_SINCE,
)
