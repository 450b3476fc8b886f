# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# A removal leaves NVIDIA's runtimes that others registered in files that we have not touched.

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.plan import CrioPlanner
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

MAIN = "/etc/crio/crio.conf"
DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
THEIRS = """\
# mine
[crio.runtime]
default_runtime = "gpu"

[crio.runtime.runtimes.gpu]
runtime_path = "/opt/nvidia/nvidia-container-runtime"
monitor_path = "/usr/bin/conmon"
"""


@pytest.mark.parametrize(
    ("theirs", "ours", "mode"), [(MAIN, DROP_IN, "drop_in"), (DROP_IN, MAIN, "in_place"), (MAIN, DROP_IN, "auto")]
)
def test_what_others_registered_stays(theirs: str, ours: str, mode: str) -> None:
    files = FakeFiles({theirs: THEIRS}, "crio")
    before = dict(files.content)
    request = RuntimeRequest(config_mode=mode, extra_modes=("cdi",))
    files.apply(CrioPlanner(files.context(MAIN)).present(request), MAIN)
    assert ours in files.content
    files.apply(CrioPlanner(files.context(MAIN)).absent(), MAIN, removal=True)
    assert files.content == before


def test_where_nothing_is_recorded_nvidias_programs_go() -> None:
    files = FakeFiles({MAIN: THEIRS}, "crio")
    files.apply(CrioPlanner(files.context(MAIN)).absent(), MAIN, removal=True)
    assert files.content == {MAIN: b"# mine\n"}


def test_the_drop_in_of_another_configuration_stays() -> None:
    files = FakeFiles({MAIN: "[crio]\n"}, "crio")
    files.apply(CrioPlanner(files.context(MAIN)).present(RuntimeRequest()), MAIN)
    other = "/etc/other/crio.conf"
    files.put(other, "[crio]\n")
    context = files.context(other)._replace(recorded=())
    assert not any(file.changed for file in CrioPlanner(context).absent().files)
