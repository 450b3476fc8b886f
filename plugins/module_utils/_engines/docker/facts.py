# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of Docker."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts

# The programs of the toolkit that `docker run --gpus` searches, and the first release that tries the second one, for
# CDI, before the other (moby 86f122af27, daemon/devices_nvidia_linux.go of docker-v29.2.0). docker-v29.1.5 is the last
# release that uses only the first program.
GPUS_PROGRAMS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
GPUS_BY_CDI_SINCE = (29, 2)

# `_engines/facts.py` says what "run" and "read" mean.
FACTS = engines_facts.EngineFacts(
    name="docker",
    cdi_newest=(
        # read: 25.0 is the first release with CDI; library 0.6.2 (moby #45134, #46774).
        ((25, 0), "0.6.0"),
        # run: 26.1.5 of Debian 13, with its own library; read: 0.7.1 (moby #47706).
        ((26, 1), "0.7.0"),
        # run: 28.5.2 of Debian sid; read: 1.0.1 (moby #49738).
        ((28, 5), "1.0.0"),
    ),
    cdi_setting="cdi-spec-dirs",
    options=engines_facts.RUNTIMES | {"extra_modes"},
    device_option=True,
    gpus_option=True,
    runtime_option=True,
    gpus_by_cdi=GPUS_BY_CDI_SINCE,
)
