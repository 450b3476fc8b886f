# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec.edits import (
    Device,
    DeviceNode,
    Edits,
    Hook,
    Mount,
    merged,
    node_edits,
    to_spec,
)

KIND = "nvidia.com/gpu"
NULL, ZERO = (
    DeviceNode("/dev/null", major=1, minor=3, mode=0o666),
    DeviceNode("/dev/zero", "/x/dev/zero", 1, 5, 0o660, gid=44),
)
ONE, TWO = Hook("/usr/bin/h", ("h", "one")), Hook("/usr/bin/h", ("h", "two"))


def test_all_fields() -> None:
    edits = Edits(("A=b",), (ZERO,), (ONE,), (Mount("/host", "/inside", ("ro",)),), (44,))
    made = to_spec(KIND, [Device("x", edits)], Edits(), all_device=False)
    assert json.dumps(made) == json.dumps(
        {
            "cdiVersion": "0.7.0",
            "kind": KIND,
            "devices": [
                {
                    "name": "x",
                    "containerEdits": {
                        "env": ["A=b"],
                        "deviceNodes": [
                            {
                                "path": "/dev/zero",
                                "hostPath": "/x/dev/zero",
                                "major": 1,
                                "minor": 5,
                                "fileMode": 0o660,
                                "permissions": "rwm",
                                "gid": 44,
                            }
                        ],
                        "hooks": [
                            {
                                "hookName": "createContainer",
                                "path": "/usr/bin/h",
                                "args": ["h", "one"],
                                "env": ["NVIDIA_CTK_DEBUG=false"],
                            }
                        ],
                        "mounts": [{"hostPath": "/host", "containerPath": "/inside", "options": ["ro"]}],
                        "additionalGids": [44],
                    },
                }
            ],
            "containerEdits": {},
        }
    )


@pytest.mark.parametrize(
    ("mode", "gid", "gids"), [(0o660, 44, (44,)), (0o664, 44, (44,)), (0o666, 44, ()), (0o600, 0, ())]
)
def test_additional_groups(mode: int, gid: int, gids: tuple[int, ...]) -> None:
    node = DeviceNode("/dev/x", mode=mode, gid=gid)
    assert node_edits([node], with_gids=True).gids == gids
    assert node_edits([node], with_gids=False) == Edits(nodes=(node,))


def test_sorted_entries() -> None:
    nodes = [DeviceNode(path) for path in ("/dev/dri/a", "/dev/z", "/dev/b", "/dev/z")]
    mounts = [Mount("/h", path) for path in ("/bin/lib/x/y", "/etc/b", "/etc/a", "/etc/b")]
    edits = Edits(("B=1", "A=1", "B=1"), tuple(nodes), (TWO, ONE, TWO), tuple(mounts), (9, 10, 9, 2))
    common = to_spec(KIND, [Device("10", edits), Device("2", edits)], edits, all_device=False)["containerEdits"]
    assert common["env"] == ["B=1", "A=1"]
    assert [node["path"] for node in common["deviceNodes"]] == ["/dev/b", "/dev/z", "/dev/dri/a"]
    assert [hook["args"][1] for hook in common["hooks"]] == ["two", "one"]
    assert [mount["containerPath"] for mount in common["mounts"]] == ["/etc/a", "/etc/b", "/bin/lib/x/y"]
    assert common["additionalGids"] == [2, 9, 10]


def test_common_edits_are_not_repeated() -> None:
    common = Edits(("A=1",), (NULL,), (ONE,), (Mount("/a", "/a"),), (44,))
    own = merged(common, Edits(nodes=(ZERO,), hooks=(TWO,)))
    made = to_spec(KIND, [Device("own", own), Device("same", common)], common, all_device=False)
    # Groups are repeated, and so are the edits of a device that would be empty.
    assert made["devices"][0]["containerEdits"] == Edits(nodes=(ZERO,), hooks=(TWO,), gids=(44,)).to_dict()
    assert made["devices"][1]["containerEdits"] == common.to_dict()


def test_all_device() -> None:
    devices = [
        Device(str(number), Edits(hooks=(Hook("/h", (str(number),)),), nodes=(NULL,))) for number in (2, 10, "gpu1", 1)
    ]
    made = to_spec(KIND, devices, Edits(), all_device=True)
    assert [device["name"] for device in made["devices"]] == ["1", "10", "2", "all", "gpu1"]
    edits = made["devices"][-2]["containerEdits"]
    assert [hook["args"] for hook in edits["hooks"]] == [["1"], ["10"], ["2"], ["gpu1"]]
    assert edits["deviceNodes"] == [NULL.to_dict()]


def test_existing_all_device() -> None:
    made = to_spec(KIND, [Device("all", Edits(nodes=(NULL,))), Device("b", Edits(nodes=(ZERO,)))], Edits(), True)
    assert [device["name"] for device in made["devices"]] == ["all", "b"]
    assert to_spec(KIND, [], Edits(), all_device=True)["devices"] == []


ENTRIES = st.builds(
    Edits,
    env=st.lists(st.sampled_from(["A=1", "B=2"])).map(tuple),
    nodes=st.lists(st.sampled_from([NULL, ZERO])).map(tuple),
    hooks=st.lists(st.sampled_from([ONE, TWO])).map(tuple),
    mounts=st.lists(st.builds(Mount, st.sampled_from("ab"), st.sampled_from("ab"))).map(tuple),
    gids=st.lists(st.integers(1, 3)).map(tuple),
)


@given(st.dictionaries(st.sampled_from("abcd"), ENTRIES, min_size=1), ENTRIES)
def test_all_entries_occur_once(devices: dict[str, Edits], common: Edits) -> None:
    made = to_spec(KIND, [Device(name, edits) for name, edits in devices.items()], common, all_device=True)
    shared = made["containerEdits"]
    for device in made["devices"]:
        name, found = device["name"], device["containerEdits"]
        expected = (merged(*devices.values()) if name == "all" else devices[name]).to_dict()
        for field in ("env", "deviceNodes", "hooks", "mounts"):
            entries = found.get(field, [])
            assert all(entries.count(entry) == 1 for entry in entries)
            for entry in expected.get(field, []):
                assert entry in entries or entry in shared.get(field, [])
        assert found.get("additionalGids", []) == sorted(set(expected.get("additionalGids", [])))
    # No object occurs twice, because a YAML writer would create aliases.
    assert len(_parts(made)) == len({id(part) for part in _parts(made)})


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [value, *(part for entry in value.values() for part in _parts(entry))]
    return [value, *(part for entry in value for part in _parts(entry))] if isinstance(value, list) else []
