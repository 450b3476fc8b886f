# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The model of the merge, compared with what an installed CRI-O prints for generated files.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import typing as t
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import ConfiguredState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.config import builtin_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio.engine import CRIO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.crio_strategies import CONTENTS, REQUESTS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_crio import (
    FOLDER,
    HOSTS,
    MAIN,
    NVIDIA,
    PACKAGED,
    Host,
    accepts,
    default,
    table,
)

PROGRAM = shutil.which("crio") if os.environ.get("GPUFLEET_NIGHTLY") == "1" else None
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no crio to compare with, or not GPUFLEET_NIGHTLY=1")
MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

# What the decoder of CRI-O reads in its own way.
SPELLINGS = [
    table("runc", runtime_path='"/x"').replace("runtimes", "Runtimes"),
    table("kata", RUNTIME_PATH='"/kata"', Runtime_Type='"vm"'),
    "[crio]\nruntime.Default_Runtime = 'runc'\nruntime.runtimes.runc.runtime_path = '/dotted'\n",
    "\ufeff[crio.runtime]\r\ncdi_spec_dirs = []\r\n",
    table("gpu", runtime_path='"/x"') + "[Crio.runtime.runtimes.gpu]\nmonitor_cgroup = 'pod'\n",
    default("") + "timezone = 'Local'\n",
]
FILES = st.dictionaries(
    st.sampled_from([MAIN, PACKAGED, f"{FOLDER}/.hidden", f"{FOLDER}/a/z", f"{FOLDER}/a.conf", f"{FOLDER}/zz~"]),
    st.sampled_from(SPELLINGS),
    max_size=3,
)


def version() -> tuple[int, ...]:
    output = subprocess.run([str(PROGRAM), "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"([0-9]+)\.([0-9]+)\.([0-9]+)", output)
    assert match is not None
    return tuple(map(int, match.groups()))


def printed(host: Host) -> str | None:
    """Return what `crio config` prints for the files of the host, None if it refuses them."""
    with TemporaryDirectory() as folder:
        for path, content in host.files.content.items():
            target = Path(folder + path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        main = folder + MAIN if MAIN in host.files.content else "/dev/null"
        argv = [str(PROGRAM), "--config", main, "--config-dir", folder + FOLDER, "config"]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return result.stdout if result.returncode == 0 else None


def programs(state: ConfiguredState) -> dict[str, str | None]:
    return {name: entry.get("path") or None for name, entry in state.runtimes.items()}


def expect_same(host: Host, dump: str) -> None:
    """Check that the model of the files equals what CRI-O prints. It prints its own default as a comment."""
    builtin = builtin_runtimes(host.version)[0]
    found = CRIO.printed_state(dump, host.version) or ConfiguredState()
    expected = CRIO.configured(host.planner().context)
    assert {builtin: None, **programs(found)} == {builtin: None, **programs(expected)}
    assert (found.default_runtime or builtin) == expected.default_runtime


def check(content: t.Mapping[str, str], asked: dict[str, t.Any]) -> bool:
    """Return False if CRI-O or the planner refuses the files."""
    host = Host({**content, NVIDIA: ""}, version=version())
    before = printed(host)
    if before is None or not accepts(Host({**content, NVIDIA: ""}, version=host.version), asked):
        return False
    expect_same(host, before)
    plan = host.present(**asked)
    after = printed(host)
    assert after is not None
    expect_same(host, after)
    state = CRIO.printed_state(after, host.version)
    assert state is not None
    assert state.paths().items() >= RuntimeRequest(**asked).runtimes().items()
    assert CRIO.compare_dumps(before, after, [file for file in plan.files if file.changed]) == ""
    return True


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("asked", [{}, {"set_as_default": True}, {"runtime_name": "gpu.v1"}], ids=str)
def test_real_files(name: str, asked: dict[str, t.Any]) -> None:
    assert check(HOSTS[name], asked)


@MANY
@given(CONTENTS, FILES, REQUESTS)
def test_generated_files(content: dict[str, str], spelled: dict[str, str], asked: dict[str, t.Any]) -> None:
    assume(check({**content, **spelled}, asked))
