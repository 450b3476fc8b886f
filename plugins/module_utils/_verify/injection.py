# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a container gets the GPUs: through a registered runtime, CDI, or Docker's own option."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors

# The option "method" is one of METHODS. GPUS is an option of Docker.
RUNTIME, CDI, GPUS, AUTO = "runtime", "cdi", "gpus", "auto"
METHODS = (RUNTIME, CDI, AUTO)
# The qualified CDI name of all GPUs.
ALL_GPUS = "nvidia.com/gpu=all"


def without_cdi(engine: str, cdi: bool | None) -> str:
    """Return why ``engine`` adds no CDI devices. ``cdi`` is False, or None if it is unknown."""
    if cdi is None:
        return f"It is unknown whether {engine} reads CDI specifications, or its version cannot."
    return f"CDI is off in {engine}."


def describe(injection: str, engine: str, runtime_name: str) -> str:
    """Return the injection as users of the engine write it."""
    if injection == CDI:
        return f"--device {ALL_GPUS}" if flavors.FACTS[engine].device_option else f"CDI device {ALL_GPUS}"
    if injection == GPUS:
        return "--gpus all"
    return f"--runtime {runtime_name}" if flavors.FACTS[engine].runtime_option else f"runtime handler {runtime_name}"
