# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import UNIT_BYTES, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import env_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import load_unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.environment_files import FILES
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import within

if t.TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("text", "variables"), FILES)
def test_values_as_systemd_sets_them(
    text: str, variables: dict[str, str] | tuple[dict[str, str], dict[str, str]]
) -> None:
    older, newer = variables if isinstance(variables, tuple) else (variables, variables)
    assert env_file.parse(text) == newer
    assert env_file.parse(text, joins_comments=True) == older


CONTINUED = "# a \\\nA=1\nB=2\n"


def test_comment_with_a_backslash() -> None:
    with pytest.raises(HostError, match=r"^/etc/default/x, line 1: this comment ends with a backslash"):
        env_file.read("/etc/default/x", CONTINUED)
    # The next line has no effect in any release.
    assert env_file.read("/etc/default/x", "A=1\n# a \\\n# b\n") == {"A": "1"}


def unit_of(root: Path, files: dict[str, str], setting: str = "/etc/default/docker") -> t.Any:
    service = f"[Service]\nEnvironmentFile=-{setting}\nExecStart=/usr/bin/dockerd $DOCKER_OPTS\n"
    for name, text in {"usr/lib/systemd/system/docker.service": service, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return load_unit(HostFS(str(root)), "docker.service", "dockerd")


@pytest.mark.parametrize(
    "text",
    [
        'DOCKER_OPTS="--debug\n  --config-file=/data/daemon.json\n"\n',
        "DOCKER_OPTS='--debug \\\n  --config-file=/data/daemon.json'\n",
        'DOCKER_OPTS="--debug \\\n  --config-file=/data/daemon.json"\n',
        "DOCKER_OPTS=--debug --config-file=/data/\\\ndaemon.json\n",
    ],
)
def test_flags_over_several_lines(tmp_path: Path, text: str) -> None:
    unit = unit_of(tmp_path, {"etc/default/docker": text})
    assert unit.flag_values("--config-file") == ["/data/daemon.json"]


def test_a_pattern_of_files(tmp_path: Path) -> None:
    files = {"etc/default/docker.d/b.env": "DOCKER_OPTS=-b\n", "etc/default/docker.d/a.env": "DOCKER_OPTS=-a\n"}
    assert unit_of(tmp_path, files, "/etc/default/docker.d/*.env").arguments == ("/usr/bin/dockerd", "-b")


@pytest.mark.parametrize("piece", ["A=1\n", "A='\n", 'A="\\"', "A=\\\n", "# \\\n", "=", "\\", " ", "'a'"])
def test_the_largest_file_is_read_in_linear_time(piece: str) -> None:
    text = "A=" + piece * (UNIT_BYTES // len(piece))
    with within(10):
        env_file.parse(text)
        env_file.parse(text, joins_comments=True)
