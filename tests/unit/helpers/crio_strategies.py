# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generated configurations of CRI-O and requests, for property-based tests."""

from __future__ import annotations

from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    BUNDLED,
    DISTRIBUTION,
    DROP_IN,
    FOLDER,
    MAIN,
    OLD,
    OPERATOR,
    PACKAGED,
    PROFILES,
    STOCK,
    default,
    table,
)

REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "runtime_name": st.sampled_from(["nvidia", "gpu", "nvidia-cdi"]),
        "runtime_dir": st.sampled_from(["/usr/bin", "/opt/nvidia"]),
        "extra_modes": st.sampled_from([(), ("cdi",), ("cdi", "legacy")]),
        "set_as_default": st.sampled_from([None, True, False]),
        "config_mode": st.sampled_from(["auto", "drop_in", "in_place"]),
        "drop_in_path": st.sampled_from([None, f"{FOLDER}/98", f"{FOLDER}/z/1"]),
        "runtime_type": st.sampled_from([None, "oci", "vm"]),
        "runtime_options": st.sampled_from([{}, {"monitor_path": "/x"}, {"default_annotations": {"a.b/c": "d"}}]),
        "container_annotations": st.sampled_from([(), ("x",), ("x", "y")]),
    },
)
SNIPPETS = [
    "",
    "# nothing\n",
    STOCK,
    BUNDLED,
    DISTRIBUTION,
    OLD,
    OPERATOR,
    PROFILES,
    DISTRIBUTION.replace("\n", "\r\n"),
    default("runc") + table("runc"),
    'crio.runtime.runtimes.runc.runtime_path = "/runc"\ncrio.runtime.default_runtime = "runc"',
    'crio = { runtime = { default_runtime = "crun" } }\n',
    table("nvidia", runtime_path='"/site"', of_theirs="1") + table("gpu", monitor_path='"/site"'),
    "[[array]]\nx = 1\n[[array]]\n",
]
CONTENTS = st.dictionaries(
    st.sampled_from([MAIN, PACKAGED, f"{FOLDER}/00-default", f"{FOLDER}/y/deep.bak", DROP_IN]),
    st.sampled_from(SNIPPETS),
    max_size=4,
)
