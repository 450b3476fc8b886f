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
        # read: library 0.5.4 (containerd #8152); run: 1.6.20 of Debian 12 reads no specifications. First 1.7.0, last
        # without it 1.6.39.
        ((1, 7), "0.5.0"),
        # read: 0.6.1. First 1.7.12, last without it 1.7.11.
        ((1, 7, 12), "0.6.0"),
        # read: 0.7.2 (containerd #10077); Debian 13 builds its 1.7.24 with 0.8.0. First 1.7.16, last without it 1.7.15.
        ((1, 7, 16), "0.7.0"),
        # read: 0.8.1. First 1.7.27, last without it 1.7.26. 2.0.0 has 0.8.0.
        ((1, 7, 27), "0.8.0"),
        # read: 1.0.0 (containerd #11522). First 2.0.5, last without it 2.0.4.
        ((2, 0, 5), "1.0.0"),
        # read: 1.1.0 (containerd #12664). First 2.2.1, last without it 2.2.0.
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
