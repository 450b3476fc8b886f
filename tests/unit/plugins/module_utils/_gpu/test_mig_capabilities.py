# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    HostError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import (
    Capabilities,
    Instance,
    mig_instances,
    parse_minors,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import mig_minors, write

if t.TYPE_CHECKING:
    from pathlib import Path

CAPABILITIES, MINORS = "proc/driver/nvidia/capabilities", "proc/driver/nvidia-caps/mig-minors"


def host(root: Path, text: str | None) -> HostFS:
    write(root, {} if text is None else {MINORS: text})
    return HostFS(str(root))


def test_minors(tmp_path: Path) -> None:
    capabilities = Capabilities(host(tmp_path, mig_minors()))
    assert capabilities.minors(0, 0, 0) == (3, 4)
    # A line each for 15 GPU instances of 8 compute instances before them.
    assert capabilities.minors(2, 7, 1) == (3 + 9 * (2 * 15 + 7), 3 + 9 * (2 * 15 + 7) + 2)
    assert capabilities.nodes(0, 0, 7) == ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap11")


def test_the_file_is_read_when_it_is_needed_and_once(tmp_path: Path) -> None:
    capabilities = Capabilities(host(tmp_path, None))
    with pytest.raises(HostError, match="mig-minors does not exist"):
        capabilities.minors(0, 0, 0)
    write(tmp_path, {MINORS: mig_minors()})
    assert capabilities.minors(0, 0, 0) == (3, 4)
    (tmp_path / MINORS).unlink()
    assert capabilities.minors(0, 1, 0) == (12, 13)


@pytest.mark.parametrize(
    ("minor", "gi", "ci", "missing"), [(32, 0, 0, "gpu32/gi0/access"), (0, 0, 8, "gpu0/gi0/ci8/access")]
)
def test_a_capability_that_is_not_there(tmp_path: Path, minor: int, gi: int, ci: int, missing: str) -> None:
    with pytest.raises(HostError, match=f"mig-minors does not contain {missing}, although"):
        Capabilities(host(tmp_path, mig_minors())).minors(minor, gi, ci)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config 1\nmonitor\n", "M, line 2: the line is not a capability with its minor number"),
        ("config -1\n", "M, line 1: the line is not"),
        ("config 1 2\n", "M, line 1: the line is not"),
        ("config \N{SUPERSCRIPT TWO}\n", "M, line 1: the line is not"),
        ("config " + "1" * 5000, "M, line 1: the line is not"),
        ("config 1\n\nconfig 1\n", "M, line 3: the line repeats a capability"),
    ],
)
def test_files_without_sense(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_minors(text, "M")
    assert str(caught.value).startswith(message)


def test_what_is_overlooked() -> None:
    assert parse_minors("\nconfig\t 1 \r\n  \nmonitor 2") == {"config": 1, "monitor": 2}


def test_a_file_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "_MAX_CAPABILITIES", 1000)
    with pytest.raises(HostError, match="more than 1000 bytes"):
        Capabilities(host(tmp_path, mig_minors())).minors(0, 0, 0)


LINE = st.one_of(st.sampled_from(["config 1", "gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13"]), st.text(max_size=30))


@given(st.one_of(st.text(), st.lists(LINE, max_size=10).map("\n".join)))
def test_any_text_is_minors_or_an_error_of_ours(text: str) -> None:
    try:
        found = parse_minors(text, "M")
    except NvidiaError as error:
        message = str(error)
    else:
        message = "M, line "
        assert len(found) <= text.count("\n") + 1
        assert all(0 <= minor < 10**7 for minor in found.values())
    assert message.startswith("M, line ")


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9/]{0,30}\Z"), st.integers(0, 10**7 - 1)))
def test_what_the_driver_writes_is_read(minors: dict[str, int]) -> None:
    assert parse_minors("".join(f"{name} {minor}\n" for name, minor in minors.items())) == minors


def test_instances(tmp_path: Path) -> None:
    files = [
        "mig/config",
        "mig/monitor",
        "gpu10/mig/gi1/access",
        "gpu2/mig/gi11/ci0/access",
        "gpu2/mig/gi3/access",
        "gpu2/mig/gi3/ci10/access",
        "gpu2/mig/gi3/ci2/access",
        "gpu3/mig/config",
        "gpux/mig/gi1/access",
    ]
    write(tmp_path, {f"{CAPABILITIES}/{path}": "" for path in files})
    expected = [Instance(2, 3, (2, 10)), Instance(2, 11, (0,)), Instance(10, 1, ())]
    assert mig_instances(HostFS(str(tmp_path))) == expected


def test_no_instances(tmp_path: Path) -> None:
    # mig-minors alone says nothing of the present.
    assert mig_instances(host(tmp_path, mig_minors())) == []
