# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.plan import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.text import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import (
    Action,
    ConfiguredState,
    EnginePlan,
    Installation,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.flavors import FLAVORS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.registry import Target
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit


def test_the_greater_action_includes_the_lesser() -> None:
    assert max(Action) is Action.RESTART
    assert [str(action) for action in sorted(Action)] == ["none", "reload", "restart"]
    # The role compares them as words.
    assert sorted(str(action) for action in Action) == [str(action) for action in sorted(Action)]
    assert [bool(action) for action in sorted(Action)] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("20.10.24+dfsg1", (20, 10, 24)),
        ("v2.1.9", (2, 1, 9)),
        (" 28.5.2-0ubuntu1~24.04", (28, 5, 2)),
        ("27", (27,)),
        ("1.6.20~ds1", (1, 6, 20)),
        ("", None),
        ("latest", None),
        ("dev-26.1", None),
    ],
)
def test_versions(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_two_plans_at_once() -> None:
    files = PlannedFile("/a", None, b""), PlannedFile("/b", b"", b"")
    one = EnginePlan(files[:1], ConfiguredState(default_runtime="x"), Action.RELOAD, ("w",), "/drop", 2)
    other = EnginePlan(files[1:], ConfiguredState(), Action.RESTART, ("v",))
    assert one.joined(other) == EnginePlan(files, one.state, Action.RESTART, ("w", "v"), "/drop", 2)
    assert [file.changed for file in files] == [True, False]


def test_paths_of_runtimes() -> None:
    state = ConfiguredState({"a": {"path": "/a"}, "b": {"runtimeType": "x"}, "c": None, "d": {"path": 1}})
    assert state.paths() == {"a": "/a"}


@pytest.mark.parametrize(("wrapper", "count"), [("", 0), ("/bin/sh", 1)])
def test_a_wrapped_engine_is_in_doubt(wrapper: str, count: int) -> None:
    unit = Unit("x.service", "/lib/x.service", wrapper=wrapper)
    installation = Installation("/usr/bin/x", unit, "x.service", "/run/x.sock", "/etc/x")
    assert len(installation.warnings()) == count
    assert installation._replace(unit=None).warnings() == []


def test_the_table_knows_each_engine_by_its_own_name() -> None:
    loaded = {
        place: Target(*place, "x.service" if row.by_unit else "alice" if row.by_user else "").load()
        for place, row in FLAVORS.items()
    }
    assert {place: (engine.name, engine.flavor) for place, engine in loaded.items()} == {
        place: place for place in FLAVORS
    }
    usual = {place: Target(*place).load().key for place, row in FLAVORS.items() if not row.by_user}
    assert usual == {place: FLAVORS[place].key for place in usual}
    keys = [engine.key for engine in loaded.values()]
    assert len(set(keys)) == len(keys)
