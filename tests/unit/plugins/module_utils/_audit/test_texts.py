# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The texts of findings about whole hosts. conftest.py checks them, as in all tests of the audit."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import audit_fleet, audit_results
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.finding_texts import problems_of

if t.TYPE_CHECKING:
    from pathlib import Path

DPKG = audit_fleet.PACKAGE.format("nvidia-container-toolkit", "1.19.1").replace("ok installed", "ok half-configured")
SPECIFICATION = audit_fleet.SPECIFICATION
# Files that cannot be read or used, as the packages of the collection read them.
BROKEN: list[dict[str, str]] = [
    {"etc/docker/daemon.json": '{"runtimes": ', "usr/bin/dockerd": ""},
    {"etc/docker/daemon.json": '{"runtimes": {}, "runtimes": {}}', "usr/bin/dockerd": ""},
    {"etc/containerd/config.toml": "version = \n", "usr/bin/containerd": ""},
    {"etc/crio/crio.conf.d/10-x.conf": "[crio", "usr/bin/crio": ""},
    {"etc/nvidia-container-runtime/config.toml": "[", "usr/bin/nvidia-ctk": ""},
    {"etc/nvidia-container-runtime/config.toml": "[nvidia-container-cli]\nno-cgroups = 1\nldcache = 2\n"},
    {"etc/cdi/nvidia.json": "{", "etc/cdi/b.json": '{"cdiVersion": "9.9.9", "kind": "nvidia.com/gpu", "devices": []}'},
    {"etc/cdi/nvidia.json": json.dumps(audit_fleet.STALE_SPECIFICATION), "etc/cdi/b.json": json.dumps(SPECIFICATION)},
    {f"etc/cdi/{name}.json": json.dumps(audit_fleet.STALE_SPECIFICATION) for name in "ab"},
    {"etc/os-release": "ID=debian\n", "var/lib/dpkg/status": DPKG},
    {"etc/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/env dockerd\n", "usr/bin/dockerd": ""},
]


@pytest.mark.parametrize("kind", [*audit_fleet.KINDS, *(audit_fleet.Kind("broken", files) for files in BROKEN)])
def test_texts_about_hosts(tmp_path: Path, kind: audit_fleet.Kind) -> None:
    audit_fleet.make_tree(tmp_path, kind)
    live = bool(kind.variables.get("nvidia_runtime_host_root_live"))
    report = describe_host(HostFS.of(str(tmp_path), live=live), audit_results.no_command)
    assert kind.name != "broken" or report["findings"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("/etc/cdi/a.json is odd.", "Remove /etc/cdi/a.json."),
        ("It has version 1.1.0., devices is empty.", "Do it."),
        ("It is odd. Nothing was changed.", "Do it."),
        ("It is odd.", "Follow the advice in the message."),
        ("It is odd.", "Write it with nvidia_cdi_spec."),
        ("Run modprobe nvidia.", "Load it with modprobe nvidia."),
        ("It is odd", "Do it."),
    ],
)
def test_problems_are_found(text: str, advice: str) -> None:
    assert problems_of(text, advice) != []
    assert problems_of("/a/b is odd, /a/b.c too.", "Set nvidia_cdi_refresh: auto.") == []
