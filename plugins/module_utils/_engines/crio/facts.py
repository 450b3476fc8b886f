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
        # read: the first release with CDI, according to the CDI project's README.
        ((1, 23), "0.3.0"),
        # read: go.mod of the 1.26 branch, library 0.5.3.
        ((1, 26), "0.5.0"),
        # read: go.mod of 1.28, 0.6.0.
        ((1, 28), "0.6.0"),
        # read: go.mod of 1.30, 0.7.x (cri-o #7971).
        ((1, 30), "0.7.0"),
        # read: the 1.32 branch changed to 0.8.1 (cri-o #9025).
        ((1, 33), "0.8.0"),
        # read: go.mod between 1.34 and 1.35, 1.0.1.
        ((1, 35), "1.0.0"),
    ),
    cdi_always=True,
    options=engines_facts.RUNTIMES | engines_facts.TABLES | engines_facts.FILE_OPTIONS,
    hook_mode=True,
    packages=(("tomlkit",), ()),
    cri=True,
)
