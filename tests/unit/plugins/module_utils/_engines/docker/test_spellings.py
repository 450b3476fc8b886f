# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Keys in another case.

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.engine import DOCKER
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

MAIN = "/etc/docker/daemon.json"
NVIDIA = "/usr/bin/nvidia-container-runtime"


def files_of(content: str) -> FakeFiles:
    return FakeFiles({MAIN: content}, "docker")


def present(files: FakeFiles, **asked: t.Any) -> None:
    files.apply(DOCKER.present(RuntimeRequest(**asked), files.context(MAIN, (28, 5, 2))), MAIN)


def paths(files: FakeFiles) -> dict[str, str]:
    return DOCKER.configured(files.context(MAIN, (28, 5, 2))).paths()


def test_names_of_runtimes_and_features_are_exact() -> None:
    files = files_of('{"runtimes": {"NVIDIA": {"path": "/x"}}, "features": {"CDI": false}}')
    present(files, enable_cdi=True)
    written = json.loads(files.content[MAIN])
    assert written["runtimes"] == {"NVIDIA": {"path": "/x"}, "nvidia": {"path": NVIDIA}}
    assert written["features"] == {"CDI": False, "cdi": True}


@pytest.mark.parametrize(
    "text",
    [
        '{"Runtimes": {"a": {"path": "/x"}}}',
        '{"DEFAULT-RUNTIME": "runc"}',
        '{"Features": {"cdi": true}}',
        '{"exec-Opts": []}',
        '{"runtimes": {"nvidia": {"RuntimeType": "io.containerd.runc.v2"}}}',
        '{"runtimes": {"nvidia": {"Path": 5}}}',
        '{"runtimes": {"other": {"path": "/x", "PATH": null}}}',
    ],
)
def test_key_in_another_case_is_refused(text: str) -> None:
    files = files_of(text)
    for act in (present, paths):
        with pytest.raises(ConfigurationError, match=rf"^{MAIN}, line 1, column \d+: .* in case only, .* Rename it to"):
            act(files)
    files.apply(DOCKER.absent(files.context(MAIN)), MAIN, removal=True)
    assert files.content[MAIN].decode() == text
