# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import access as explain_access
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.access import NodeAccess, Selinux
from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain.container import User, user_of

ROOT, USER, IN_GROUP = User(0, (0,), is_root=True), User(1000, (1000,)), User(1000, (1000, 44))
NODE, OTHER = "/dev/nvidia0", "/dev/nvidia1"


@pytest.mark.parametrize(
    ("node", "user", "denied", "unknown"),
    [
        (NodeAccess(0o666), None, False, False),
        (NodeAccess(0o660, 0, 44), ROOT, False, False),
        (NodeAccess(0o660, 0, 44), USER, True, False),
        (NodeAccess(0o660, 0, 44), IN_GROUP, False, False),
        (NodeAccess(0o664, 0, 44), USER, True, False),
        # Only the first class that matches counts.
        (NodeAccess(0o606, 0, 44), IN_GROUP, True, False),
        (NodeAccess(0o646, 0, 44), IN_GROUP, True, False),
        (NodeAccess(0o606, 0, 44), USER, False, False),
        (NodeAccess(0o606, 0, 44), None, False, True),
        (NodeAccess(0o600, 1000, 44), USER, False, False),
        (NodeAccess(0o660, 0, 44), None, False, True),
        # Root of a user namespace is another user of the host.
        (NodeAccess(0o660, 0, 44), User(100000, (100000,)), True, False),
        (NodeAccess(0o660, 0, 44), User(None), True, False),
    ],
)
def test_permissions(node: NodeAccess, user: User | None, denied: bool, unknown: bool) -> None:
    found = explain_access.denied_by_mode({NODE: node}, user)
    assert found == ((NODE,) * denied, (NODE,) * unknown)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, None),
        ({}, None),
        ({"process": {"user": {}}}, ROOT),
        ({"process": {"user": {"uid": 1000, "gid": 1000, "additionalGids": [44]}}}, IN_GROUP),
        (
            {
                "process": {"user": {"uid": 0, "gid": 0, "additionalGids": [70000]}},
                "linux": {
                    "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}],
                    "gidMappings": [{"containerID": 0, "hostID": 200000, "size": 65536}],
                },
            },
            User(100000, (200000,)),
        ),
        (
            # The ID is outside of all mappings.
            {
                "process": {"user": {"uid": 7}},
                "linux": {"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 7}]},
            },
            User(None, (0,)),
        ),
        ({"process": {"user": "odd"}}, ROOT),
    ],
)
def test_the_user_of_a_config(config: dict[str, t.Any] | None, expected: User | None) -> None:
    assert user_of(config) == expected


@pytest.mark.parametrize(
    ("rules", "denied"),
    [
        ("", ()),
        ("a *:* rwm\n", ()),
        ("c 195:* rwm\n", ()),
        ("c 195:0 rw\nc 195:255 rw\n", (OTHER,)),
        ("c 195:0 r\nc 195:1 rw\n", (NODE,)),
        ("b 195:* rwm\nc 1:* rwm\n", (NODE, OTHER)),
        ("odd\nc *:* rwm\n", ()),
    ],
)
def test_the_device_cgroup(rules: str, denied: tuple[str, ...]) -> None:
    assert explain_access.denied_by_cgroup(rules, (NODE, OTHER, "/dev/nvidia-uvm", "/dev/dri/card0")) == denied


CONFINED = {"process": {"selinuxLabel": "system_u:system_r:container_t:s0:c1,c2"}}
LABELLED = {NODE: NodeAccess(0o666, label="xserver_misc_device_t")}


@pytest.mark.parametrize(
    ("selinux", "config", "nodes", "expected"),
    [
        (None, CONFINED, LABELLED, ((), ())),
        (Selinux(permits=False), CONFINED, LABELLED, ((NODE,), ())),
        (Selinux(permits=True), CONFINED, LABELLED, ((), ())),
        (Selinux(permits=None), CONFINED, LABELLED, ((), (NODE,))),
        (Selinux(permits=False), CONFINED, {NODE: NodeAccess(0o666, label="container_file_t")}, ((), ())),
        (Selinux(permits=False), CONFINED, {NODE: NodeAccess(0o666)}, ((), (NODE,))),
        (Selinux(permits=False), {"process": {"selinuxLabel": "u:r:spc_t:s0"}}, LABELLED, ((), ())),
        (Selinux(permits=False), {}, LABELLED, ((), ())),
        (Selinux(permits=False), None, LABELLED, ((), (NODE,))),
        (Selinux(permits=True), None, LABELLED, ((), ())),
        # A node that the runtime makes has the label of the container.
        (Selinux(permits=False), CONFINED, {}, ((), ())),
    ],
)
def test_selinux(
    selinux: Selinux | None, config: dict[str, t.Any] | None, nodes: dict[str, NodeAccess], expected: t.Any
) -> None:
    assert explain_access.denied_by_selinux(selinux, config, (NODE,), nodes) == expected
