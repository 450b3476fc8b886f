# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values whose shape no role can use."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

pytest.importorskip("ansible.module_utils.common.yaml", reason="the variables are read on the controller only")

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._settings import known_variables
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._value_shapes import problems

KNOWN = known_variables(Path(__file__).resolve().parents[4])
ENGINES, USERS, FILES = "nvidia_runtime_engines", "nvidia_runtime_users", "nvidia_toolkit_files"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nvidia_runtime_name": ["nvidia"]}, "nvidia_runtime_name is a list. Write one text."),
        ({"nvidia_host_root": {"a": 1}}, "nvidia_host_root is a dictionary. Write one path."),
        ({FILES: "/a.deb,/b.deb"}, "nvidia_toolkit_files is a text. Write a list such as [/srv/a.deb, /srv/b.deb]."),
        ({"nvidia_runtime_verify_command": "nvidia-smi -L"}, "Write a list such as [nvidia-smi, -L]."),
        ({"nvidia_runtime_restart_retries": "-1"}, "nvidia_runtime_restart_retries is -1. Use 0 or more."),
        ({ENGINES: None}, "nvidia_runtime_engines is None. Use auto, or a list"),
        ({ENGINES: {"docker": True}}, "Use auto, or a list such as [docker, containerd/k3s]."),
        ({ENGINES: [["docker"]]}, "nvidia_runtime_engines is [['docker']]."),
        ({ENGINES: "docker,containerd"}, "with each engine for itself."),
        ({ENGINES: ["auto", "docker"]}, "nvidia_runtime_engines has auto and other engines."),
        ({USERS: "alice"}, "nvidia_runtime_users is 'alice'. Use a list of names of users, or all."),
        ({USERS: {"alice": 1}}, "Use a list of names of users, or all."),
        ({USERS: [1000]}, "Use a list of names of users, or all."),
        ({"nvidia_cdi_path": "nvidia.yaml"}, "nvidia_cdi_path has the relative path 'nvidia.yaml'."),
        ({"nvidia_cdi_library_search_paths": ["/a", "b"]}, "has the relative path 'b'."),
        ({FILES: ["a.deb"], "nvidia_toolkit_files_on": "node"}, "nvidia_toolkit_files has the relative path 'a.deb'."),
        ({"nvidia_toolkit_base_url": "mirror/x"}, "Write an address that begins with https://."),
        ({"nvidia_toolkit_key_url": "ftp://mirror/x"}, "nvidia_toolkit_key_url is 'ftp://mirror/x'."),
        ({"nvidia_toolkit_base_url": None}, "nvidia_toolkit_base_url is empty."),
    ],
)
def test_refuses(given: dict[str, t.Any], problem: str) -> None:
    (found,) = problems(given, KNOWN.options)
    assert problem in found


@pytest.mark.parametrize(
    "given",
    [
        {},
        {ENGINES: "docker", USERS: "all"},
        {ENGINES: ["auto"], USERS: []},
        {"nvidia_runtime_extra_modes": "cdi,legacy", "nvidia_toolkit_version": 1.19},
        {FILES: ["a.deb"], "nvidia_toolkit_files_on": "controller"},
        {FILES: ["packages/a.deb"], "nvidia_runtime_before_restart": "hooks/drain.yml"},
        {"nvidia_cdi_path": None, "nvidia_runtime_config_path": "", "nvidia_host_root": "~/tree"},
        {"nvidia_toolkit_key_url": "file:///srv/key", "nvidia_toolkit_repository_url": None},
    ],
)
def test_accepts(given: dict[str, t.Any]) -> None:
    assert problems(given, KNOWN.options) == []
