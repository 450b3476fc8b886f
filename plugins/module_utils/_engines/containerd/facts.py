# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of containerd, also for the Kubernetes distributions that contain it."""

from __future__ import annotations

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts

# `_engines/facts.py` says what "run" and "read" mean.
FACTS = engines_facts.EngineFacts(
    name="containerd",
    cdi_newest=(
        # run: 1.6.20 of Debian 12 reads no specifications; read: 1.7.0 is the first with CDI, library 0.5.4
        # (containerd #8152).
        ((1, 7), "0.5.0"),
        # read: 0.6.2 (containerd #9685).
        ((1, 7, 13), "0.6.0"),
        # read: 0.7.1 (containerd #10077); Debian 13 builds its 1.7.24 with 0.8.0.
        ((1, 7, 16), "0.7.0"),
        # run: 2.1.9 of Debian sid (ctr); read: 1.0.0 (containerd #11522).
        ((2, 1), "1.0.0"),
        # read: 1.1.0 (containerd #12664).
        ((2, 2, 1), "1.1.0"),
    ),
    options=engines_facts.RUNTIMES | engines_facts.TABLES | engines_facts.FILE_OPTIONS | {"use_legacy_config"},
    # The settings of k3s and RKE2 are in YAML, but only the host knows the flavor of its containerd.
    packages=(("tomlkit",), ("yaml",)),
    cri=True,
    cri_plugin=True,
    files_define_runtimes=True,
    load_image="ctr --namespace k8s.io images import FILE",
)
