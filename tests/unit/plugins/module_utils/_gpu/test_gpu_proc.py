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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.procfs import (
    ProcGpu,
    normalize_address,
    parse_information,
    read_bounded,
    read_gpus,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    INFORMATION,
    UNKNOWN_UUID,
    FakeGpu,
    gpu_host,
    write,
)

if t.TYPE_CHECKING:
    from pathlib import Path

USUAL = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-614bc606-2078-5444-8c9c-4f8e98ae4dcc",
    "bus": "0000:62:00.0",
    "minor": "5",
    "excluded": "No",
}


def text(**others: str) -> str:
    return INFORMATION.format(**{**USUAL, **others})


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("0000:07:00.0", "0000:07:00.0"),
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00010000:BD:1F.7", "00010000:bd:1f.7"),
        ("10000:BD:00.0", "00010000:bd:00.0"),
        ("ABCD:00:00.0", "abcd:00:00.0"),
        ("0000ABCD:00:00.0", "abcd:00:00.0"),
        ("FFFFFFFF:00:00.0", "ffffffff:00:00.0"),
    ],
)
def test_addresses(address: str, normal: str) -> None:
    assert normalize_address(address) == normal


@pytest.mark.parametrize(
    "address", ["", "07:00.0", "0000:07:00.8", "0000:07:00", "000000000:07:00.0", "0000:07:00.0\n"]
)
def test_no_addresses(address: str) -> None:
    with pytest.raises(ValueError):
        normalize_address(address)


def test_a_usual_file() -> None:
    found = parse_information(text(), "F")
    assert found == ProcGpu("0000:62:00.0", str(USUAL["uuid"]), 5, "NVIDIA H100 80GB HBM3", excluded=False)


def test_a_uuid_that_is_not_known_yet() -> None:
    assert parse_information(text(uuid=UNKNOWN_UUID), "F").uuid == ""
    without = "".join(line for line in text().splitlines(True) if not line.startswith("GPU UUID"))
    assert parse_information(without, "F").uuid == ""


@pytest.mark.parametrize("mark", ["GPU Excluded:\t Yes", "Blacklisted:\t Yes"])
def test_an_excluded_gpu(mark: str) -> None:
    lines = text(uuid=UNKNOWN_UUID, minor="4294967295").replace("GPU Excluded:\t No", mark)
    assert parse_information(lines, "F") == ProcGpu("0000:62:00.0", "", 0, "", excluded=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "F: the file is empty: the GPU does not answer"),
        ("\0" * 300, "F: the file is empty"),
        (text(bus="62:00.0"), "F, line 8: Bus Location is not a PCI address."),
        (text(uuid="0"), "F, line 3: GPU UUID is not a UUID."),
        (text(uuid="GPU-" + "a" * 200), "F, line 3: GPU UUID is not a UUID."),
        (text(minor="-1"), "F, line 9: Device Minor is not a number."),
        (text(minor="9" * 5000), "F, line 9: Device Minor is not a number."),
        (text(minor="\N{SUPERSCRIPT TWO}"), "F, line 9: Device Minor is not a number."),
        (text().replace("Device Minor", "Minor"), "F: Device Minor is missing."),
        (text().replace("Bus Location", "Bus"), "F: Bus Location is missing."),
    ],
)
def test_files_without_sense(content: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_information(content, "F")
    assert str(caught.value).startswith(message)


LINES = st.sampled_from([*text().splitlines(), "GPU Excluded: Yes", ":", "Bus Location: :::", "Device Minor:"])


@given(st.one_of(st.text(), st.lists(st.one_of(LINES, st.text(max_size=20)), max_size=14).map("\n".join)))
def test_any_text_is_a_gpu_or_an_error_of_ours(content: str) -> None:
    try:
        found = parse_information(content, "F")
    except NvidiaError as error:
        message = str(error)
    else:
        message = "F"
        assert normalize_address(found.bus) == found.bus
        assert 0 <= found.minor < 10**7
    assert message.startswith("F")


# -- hosts -----------------------------------------------------------------------------------------------------------


def test_order_and_exclusion(tmp_path: Path) -> None:
    gpus = [
        FakeGpu("10000:01:00.0", 0),
        FakeGpu("0000:b7:00.0", 6),
        FakeGpu("0000:0f:00.0", 3),
        FakeGpu("0000:07:00.0", 2, excluded=True, uuid=UNKNOWN_UUID),
        FakeGpu("0002:01:00.0", 4, uuid=UNKNOWN_UUID),
        FakeGpu("0003:01:00.0", 5, uuid=UNKNOWN_UUID),
    ]
    found = [gpu.bus for gpu in read_gpus(gpu_host(tmp_path, gpus))]
    assert found == ["0000:0f:00.0", "0000:b7:00.0", "0002:01:00.0", "0003:01:00.0", "00010000:01:00.0"]


def test_no_driver(tmp_path: Path) -> None:
    assert read_gpus(HostFS(str(tmp_path))) == []


@pytest.mark.parametrize(
    "other",
    [
        {"minor": "5"},
        {"uuid": USUAL["uuid"]},
        {"bus": USUAL["bus"]},
        {"bus": USUAL["bus"], "excluded": "Yes"},
    ],
)
def test_two_files_of_one_gpu(tmp_path: Path, other: dict[str, str]) -> None:
    different = {"bus": "0000:63:00.0", "uuid": "GPU-2", "minor": "6"}
    contents = {"0000:62:00.0": text(), "0000:63:00.0": text(**{**different, **other})}
    write(tmp_path, {f"proc/driver/nvidia/gpus/{name}/information": content for name, content in contents.items()})
    with pytest.raises(HostError, match=r"0000:63:00.0/information and .*0000:62:00.0/.* describe the same GPU"):
        read_gpus(HostFS(str(tmp_path)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path))
    write(tmp_path, {"right": "x" * 100, "long": "x" * 101})
    assert read_bounded(host, "/right", 100) == "x" * 100
    cases: t.Mapping[str, str] = {
        "/long": "more than 100 bytes",
        "/none": "/none does not exist",
        "/": "/ is not a regular file",
    }
    for path, message in cases.items():
        with pytest.raises(HostError, match=message):
            read_bounded(host, path, 100)
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert read_bounded(host, "/bytes", 100) == "\N{REPLACEMENT CHARACTER}"
