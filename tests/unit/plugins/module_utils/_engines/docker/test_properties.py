# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_files import NVIDIA, File

PATHS = st.sampled_from([NVIDIA, "nvidia-container-runtime", "/opt/kata", "/x/nvidia-container-runtime.cdi"])
ENTRIES = st.fixed_dictionaries({"path": PATHS}, optional={"runtimeArgs": st.just(["-v"])})
RUNTIMES = st.dictionaries(st.sampled_from(["nvidia", "nvidia-cdi", "kata", "gpu"]), ENTRIES, max_size=3)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "runtimes": RUNTIMES | st.none(),
        "default-runtime": st.sampled_from(["runc", "nvidia", "kata", "gpu"]),
        "features": st.dictionaries(st.sampled_from(["cdi", "buildkit"]), st.booleans(), max_size=2) | st.none(),
        "debug": st.booleans(),
        "log-opts": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    },
)
STYLES = st.sampled_from([{}, {"indent": 2}, {"indent": "\t"}, {"indent": 4}, {"separators": (",", ":")}])
TEXTS = st.builds(lambda data, style: json.dumps(data, **style), FILES, STYLES) | st.sampled_from([None, "", "\n"])
ASKED = st.fixed_dictionaries(
    {},
    optional={
        "runtime_name": st.sampled_from(["nvidia", "gpu", "nvidia-cdi", "nvidia-legacy"]),
        "runtime_dir": st.sampled_from(["/usr/bin", "/usr/local/nvidia/toolkit"]),
        "extra_modes": st.sets(st.sampled_from(["cdi", "legacy"])).map(tuple),
        "set_as_default": st.booleans(),
        "enable_cdi": st.sampled_from([True, False, "auto"]),
    },
)


@given(TEXTS, ASKED)
def test_property_idempotent(text: str | None, asked: dict[str, t.Any]) -> None:
    file = File(text)
    file.present(**asked)
    once = file.content
    assert not file.present(**asked).files[0].changed
    assert file.content == once


@given(TEXTS, st.lists(ASKED, min_size=1, max_size=4))
def test_property_absent_restores_original(text: str | None, calls: list[dict[str, t.Any]]) -> None:
    file = File(text)
    original = file.content
    for asked in calls:
        file.present(**asked)
    if file.record is not None:
        file.absent()
    assert file.content == original


@given(FILES, STYLES, st.lists(ASKED, min_size=1, max_size=3), st.integers(0, 2))
def test_property_foreign_content_survives(
    data: dict[str, t.Any], style: dict[str, t.Any], calls: list[dict[str, t.Any]], moment: int
) -> None:
    file = File(json.dumps(data, **style))
    for number, asked in enumerate(calls):
        if number == moment:
            file.edit(labels=["foreign"])
        file.present(**asked)
        after = file.data
        assert after.get("debug") == data.get("debug")
        assert after.get("log-opts") == data.get("log-opts")
        assert (after.get("features") or {}).get("buildkit") == (data.get("features") or {}).get("buildkit")
        for name, entry in (data.get("runtimes") or {}).items():
            assert after["runtimes"][name].get("runtimeArgs") == entry.get("runtimeArgs")
    if file.record is not None:
        file.absent()
        assert (file.data.get("labels") == ["foreign"]) is (moment < len(calls))
        assert {**file.data, "labels": None} == {**data, "labels": None} or moment < len(calls)


@given(TEXTS, ASKED)
def test_property_default_stays_defined(text: str | None, asked: dict[str, t.Any]) -> None:
    file = File(text)

    def dangling() -> bool:
        default = file.data.get("default-runtime", "runc")
        return default != "runc" and default not in (file.data.get("runtimes") or {})

    assume(not dangling())
    file.present(**asked)
    assert not dangling()
    file.edit(labels=["foreign"])
    file.absent()
    assert not dangling()
