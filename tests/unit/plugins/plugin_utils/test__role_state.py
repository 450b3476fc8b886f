# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Python reads from the results that the roles have registered."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _role_state
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._role_state import RoleState
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.reported_engines import SETTINGS, engine

INFO = {"engines": [engine()]}
OWN = {"engines": [engine("crio")]}
ENTRY = {"id": "1", "action": "none", "verify": "config", "label": "docker.service", "after": "",
         "engine_info": {"target": "docker", "host_root": "/"}}  # fmt: skip
RESTART = {**ENTRY, "id": "2", "action": "restart"}


def state(variables: dict[str, t.Any] | None = None, **settings: t.Any) -> RoleState:
    return RoleState(variables or {}, {**SETTINGS, **settings})


@pytest.mark.parametrize(
    ("known", "settings", "expected"),
    [
        ({"nvidia_toolkit_info": INFO}, {}, INFO),
        ({"nvidia_toolkit_info": INFO, "nvidia_runtime_inspection": OWN}, {}, INFO),
        ({"nvidia_toolkit_info": INFO, "nvidia_runtime_inspection": OWN}, {"reuse_inspection": False}, OWN),
        # The role nvidia_toolkit has inspected another host, or no engines.
        ({"nvidia_toolkit_info": INFO}, {"host_root": "/srv"}, None),
        ({"nvidia_toolkit_info": INFO}, {"host_root_live": True}, None),
        ({"nvidia_toolkit_info": {"toolkit": {}}, "nvidia_runtime_inspection": OWN}, {}, OWN),
        ({"nvidia_runtime_inspection": {"skipped": True}}, {}, None),
        ({}, {}, None),
    ],
)
def test_inspection(known: dict[str, t.Any], settings: dict[str, t.Any], expected: object) -> None:
    assert state(known, **settings).inspection() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"features": {"disable-cuda-compat-lib-hook": true}}', True),
        ("features.disable-cuda-compat-lib-hook=true", "true"),
        ("features.other=true", False),
        ("no dictionary", False),
    ],
)
def test_settings_in_one_text(text: str, expected: object) -> None:
    """An inventory in INI and -e give texts, which a template of a newer Ansible does not convert."""
    pytest.importorskip("ansible", reason="the conversion is that of Ansible")
    assert _role_state.without_cuda_compat({}, text) == expected


@pytest.mark.parametrize(
    ("registered", "expected"),
    [
        ({"changed": False, "device_count": 2, "refreshed_by": None}, True),
        # Without a driver, and a removal.
        ({"changed": True, "device_count": 0, "refreshed_by": "x.service"}, True),
        ({"changed": True, "device_count": 0, "refreshed_by": None}, False),
        ({"changed": False, "skipped": True}, False),
        (None, False),
    ],
)
def test_whether_a_specification_was_written(registered: object, expected: bool) -> None:
    assert state({"nvidia_cdi_specification": registered}).options().cdi_written is expected


@pytest.mark.parametrize(
    ("registered", "expected"),
    [({"work": [ENTRY], "errors": ["x"]}, ([ENTRY], ["x"])), ({"skipped": True}, ([], [])), ([5], ([], []))],
)
def test_the_last_run_of_the_role(registered: object, expected: tuple[list[t.Any], list[str]]) -> None:
    known = {"nvidia_runtime_result": registered}
    assert (_role_state.entries_of(known), _role_state.errors_of(known)) == expected


def test_selection() -> None:
    assert state({"nvidia_toolkit_info": INFO}).selection().targets == ("docker",)
    assert state().selection(OWN).targets[0] == "crio"


def test_options_of_an_image() -> None:
    found = state(host_root="/srv", enable_cdi=False, purge_backups=True).options()
    assert (found.offline, found.enable_cdi, found.purge_backups) == (True, "false", True)
    assert found.values["timeout"] == 60
    assert "engines" not in found.values


@pytest.mark.parametrize(
    ("work", "completed", "errors", "pending", "verified"),
    [
        ([ENTRY], [], [], ["1"], ["1"]),
        # The handlers verify all engines.
        ([ENTRY, RESTART], [], [], ["1", "2"], []),
        ([ENTRY, RESTART], ["1", "2"], [], [], []),
        # The host fails without a verification.
        ([ENTRY], [], ["crio: x"], ["1"], []),
        ([{**ENTRY, "verify": "off"}], [], [], ["1"], []),
    ],
)
def test_work(
    work: list[t.Any], completed: list[str], errors: list[str], pending: list[str], verified: list[str]
) -> None:
    known = {
        "nvidia_runtime_result": {"work": work, "errors": errors},
        "nvidia_runtime_completed": completed,
    }
    assert [entry["id"] for entry in _role_state.pending_of(known)] == pending
    assert [entry["id"] for entry in _role_state.verifications_of(known)] == verified


@pytest.mark.parametrize(("kind", "expected"), [("driver", 2), ("pci", 2), ("tegra", 0), (None, 0)])
def test_engines_to_verify(kind: str | None, expected: int) -> None:
    info = {"engines": [engine("docker/rootless/alice"), engine("containerd/system/x.service"), engine()],
            "toolkit": {"gpu": {"kind": kind}}}  # fmt: skip
    found = _role_state.targets_with_gpus(state({"nvidia_runtime_inspection": info}))
    expected_targets = ["docker/rootless/alice", "containerd/system/x.service", "docker"]
    assert [one["target"] for one in found] == (expected_targets if expected else [])
    # Docker needs no image, and may not have that of a CRI.
    images = {one["target"]: one["image"] for one in _role_state.targets_with_gpus(
        state({"nvidia_runtime_inspection": {**info, "engines": [engine(), engine("containerd")]}}, verify_image="a:1")
    )}  # fmt: skip
    assert images == ({"docker": "", "containerd": "a:1"} if expected else {})
    assert [(one["user"], one["unit"]) for one in found][:expected] == [("alice", ""), ("", "x.service")][:expected]
