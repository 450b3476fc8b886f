# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import posixpath
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.registry import (
    ADDS,
    COLLIDES,
    SHADOWED,
    SHADOWS,
    SKIPPED,
    conflicting_specs,
    is_loaded_path,
    resolve,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.constants import CDI_SPEC_DIRS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError

LOW, HIGH = CDI_SPEC_DIRS
OURS = f"{LOW}/nvidia.yaml"
Data = t.Dict[str, t.Any]


def specification(*names: str, kind: str = "nvidia.com/gpu", version: str = "0.5.0") -> Data:
    devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
    return {"cdiVersion": version, "kind": kind, "devices": devices}


def gpu(*names: str) -> list[str]:
    return [f"nvidia.com/gpu={name}" for name in names]


UNREADABLE = ConfigurationError(f"{LOW}/broken.yaml", "this is no YAML", "Correct the file.", 3, 1)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/etc/cdi/nvidia.yaml", True),
        ("/var/run/cdi/x.json", True),
        ("/etc/cdi/.hidden.yaml", True),
        ("/etc/cdi/.json", True),
        ("/etc/cdi/nvidia.yml", False),
        ("/etc/cdi/nvidia.YAML", False),
        ("/etc/cdi/nvidia.yaml.tmp", False),
        ("/etc/cdi/nvidia", False),
        ("/etc/cdi/below/nvidia.yaml", False),
        ("/elsewhere/nvidia.yaml", False),
    ],
)
def test_which_files_engines_read(path: str, answer: bool) -> None:
    assert is_loaded_path(path) is answer


def test_each_device_comes_from_the_folder_that_goes_before() -> None:
    found = resolve({f"{HIGH}/new.yaml": specification("0", "all"), OURS: specification("0", "1", "all")})
    high = f"{HIGH}/new.yaml"
    assert found.devices == dict(zip(gpu("0", "1", "all"), [high, OURS, high]))
    assert found.shadowed == dict.fromkeys(gpu("0", "all"), (OURS,))
    assert found.unresolvable == {}
    assert found.warnings() == [f"{high} has precedence over {OURS} for nvidia.com/gpu=0, nvidia.com/gpu=all."]


def test_the_order_of_folders_is_the_engines() -> None:
    files = {f"{HIGH}/a.yaml": specification("0"), f"{LOW}/a.yaml": specification("0")}
    assert resolve(files, (HIGH, LOW)).devices == {"nvidia.com/gpu=0": f"{LOW}/a.yaml"}


@pytest.mark.parametrize("also", [{}, {f"{HIGH}/c.yaml": specification("0")}])
def test_two_files_of_one_folder_take_a_device_from_each_other(also: Data) -> None:
    low = {f"{LOW}/b.json": specification("0", "2"), f"{LOW}/a.yaml": specification("0", "1")}
    found = resolve({**low, **also})
    # Even though a later folder has it too.
    assert found.unresolvable == {"nvidia.com/gpu=0": (f"{LOW}/a.yaml", f"{LOW}/b.json")}
    assert found.devices == {"nvidia.com/gpu=1": f"{LOW}/a.yaml", "nvidia.com/gpu=2": f"{LOW}/b.json"}
    assert found.shadowed == {}
    (message,) = found.warnings()
    assert message == (
        f"{LOW}/a.yaml and {LOW}/b.json define the same devices in one directory, so engines find none of them:"
        " nvidia.com/gpu=0. Remove all of these files but one."
    )


def test_two_files_of_the_higher_folder_do_so_too() -> None:
    high = {f"{HIGH}/{name}.yaml": specification("0") for name in "ab"}
    found = resolve({**high, OURS: specification("0")})
    assert found.unresolvable == {"nvidia.com/gpu=0": (f"{HIGH}/a.yaml", f"{HIGH}/b.yaml")}
    assert found.devices == {}


def test_devices_of_other_kinds_have_other_names() -> None:
    found = resolve({OURS: specification("all"), f"{LOW}/gds.yaml": specification("all", kind="nvidia.com/gds")})
    assert sorted(found.devices) == ["nvidia.com/gds=all", "nvidia.com/gpu=all"]


def test_a_faulty_file_is_skipped_as_a_whole() -> None:
    files = {
        OURS: specification("0"),
        f"{HIGH}/bad.yaml": specification("0", "a+b"),
        f"{LOW}/broken.yaml": UNREADABLE,
        f"{LOW}/README.json": {"readme": True},
    }
    found = resolve(files)
    assert found.devices == {"nvidia.com/gpu=0": OURS}
    assert [file.path for file in found.files if file.errors] == [
        f"{LOW}/README.json",
        f"{LOW}/broken.yaml",
        f"{HIGH}/bad.yaml",
    ]
    message = found.warnings()
    assert len(message) == 3
    assert message[0].startswith(f"Engines skip {LOW}/README.json. readme is an unknown field.")
    assert message[1] == (
        f"Engines skip {LOW}/broken.yaml. {LOW}/broken.yaml, line 3, column 1: this is no YAML. Correct the file."
    )
    assert 'devices[1].name is "a+b"' in message[2]


def test_other_files_are_ignored() -> None:
    found = resolve({f"{LOW}/nvidia.yaml.1": UNREADABLE, f"{LOW}/x/y.yaml": UNREADABLE})
    assert found.files == ()
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("path", "names", "effect", "shared", "message"),
    [
        (f"{LOW}/a.yaml", ("0", "5"), COLLIDES, ("0",), "so engines find none of nvidia.com/gpu=0."),
        (
            f"{HIGH}/a.yaml",
            ("0", "5"),
            SHADOWS,
            ("0",),
            "It has precedence over /etc/cdi/nvidia.yaml for nvidia.com/gpu=0.",
        ),
        (f"{LOW}/a.yaml", ("5",), ADDS, (), "Its devices nvidia.com/gpu=5 stay usable"),
        (f"{HIGH}/a.yaml", ("5",), ADDS, (), "Its devices nvidia.com/gpu=5 stay usable"),
        (f"{HIGH}/a.yaml", ("a+b", "1"), SKIPPED, ("1",), "Engines skip it, because it has errors."),
    ],
)
def test_other_files_of_our_kind(
    path: str, names: tuple[str, ...], effect: str, shared: tuple[str, ...], message: str
) -> None:
    (conflict,) = conflicting_specs({path: specification(*names)}, OURS, specification("0", "1"))
    assert conflict[:3] == (path, effect, tuple(gpu(*shared)))
    assert conflict.sentence.startswith(f"{path} also describes nvidia.com/gpu")
    assert message in conflict.sentence


@pytest.mark.parametrize(("names", "effect"), [(("0",), SHADOWED), (("0", "5"), ADDS)])
def test_a_file_in_the_lower_folder(names: tuple[str, ...], effect: str) -> None:
    (conflict,) = conflicting_specs({OURS: specification(*names)}, f"{HIGH}/nvidia.yaml", specification("0", "1"))
    assert conflict.effect == effect
    assert conflict.devices == ("nvidia.com/gpu=0",)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {OURS: specification("0")},
        {f"{LOW}/gds.yaml": specification("all", kind="nvidia.com/gds")},
        {f"{LOW}/m.yaml": specification("0", kind="management.nvidia.com/gpu")},
        {f"{LOW}/nvidia.yaml.bak": specification("0")},
        {f"{LOW}/broken.yaml": UNREADABLE},
    ],
)
def test_no_rivals(files: Data) -> None:
    assert conflicting_specs(files, OURS, specification("0")) == []


def test_where_engines_do_not_look_there_are_no_rivals() -> None:
    assert conflicting_specs({OURS: specification("0")}, "/root/nvidia.yaml", specification("0")) == []


PATHS = st.sampled_from([f"{folder}/{name}" for folder in CDI_SPEC_DIRS for name in ("a.yaml", "b.json", "c.yml")])
SOME = st.lists(st.sampled_from(["0", "1", "all"]), max_size=3, unique=True).map(lambda names: specification(*names))


@given(st.dictionaries(PATHS, SOME | st.just(UNREADABLE) | st.none() | st.integers() | st.lists(st.integers())))
def test_every_device_of_a_good_file_is_accounted_for_once(files: dict[str, t.Any]) -> None:
    found = resolve(files)
    good = {name: file for file in found.files if not file.errors for name in file.devices}
    assert set(found.devices) | set(found.unresolvable) == set(good)
    assert not set(found.devices) & set(found.unresolvable)
    assert {file.path for file in found.files} <= set(files)
    for paths in found.unresolvable.values():
        assert len({posixpath.dirname(path) for path in paths}) < len(paths)
    assert all(isinstance(line, str) for line in found.warnings())
