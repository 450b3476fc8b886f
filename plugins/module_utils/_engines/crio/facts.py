# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of CRI-O."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts

# `_engines/facts.py` says what "run" and "read" mean.
FACTS = engines_facts.EngineFacts(
    name="crio",
    cdi_newest=(
        # read: library 0.3.2 (commit f35fba4486). First 1.24.0, last without it 1.23.5.
        ((1, 24), "0.3.0"),
        # read: 0.5.0. First 1.25.0, last without it 1.24.6.
        ((1, 25), "0.5.0"),
        # read: 0.6.0. First 1.28.0, last without it 1.27.8.
        ((1, 28), "0.6.0"),
        # read: 0.7.2 (cri-o #7971). First 1.30.0, last without it 1.29.13.
        ((1, 30), "0.7.0"),
        # read: 0.8.0. First 1.31.0, last without it 1.30.14.
        ((1, 31), "0.8.0"),
        # read: 1.0.1. First 1.33.0, last without it 1.32.13.
        ((1, 33), "1.0.0"),
        # read: 1.1.0. First 1.35.0, last without it 1.34.11.
        ((1, 35), "1.1.0"),
    ),
    cdi_always=True,
    options=engines_facts.RUNTIMES | engines_facts.TABLES | engines_facts.FILE_OPTIONS,
    hook_mode=True,
    packages=(("tomlkit",), ()),
    cri=True,
)
