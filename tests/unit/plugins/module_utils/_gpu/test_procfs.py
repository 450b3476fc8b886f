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
    Instance,
    MigCapabilities,
    Module,
    ProcGpu,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import (
    INFORMATION,
    UNKNOWN_UUID,
    FakeGpu,
    gpu_host,
    mig_minors,
    write,
)

if t.TYPE_CHECKING:
    from pathlib import Path


def host(root: Path, files: t.Mapping[str, str], live: bool = True) -> HostFS:
    write(root, files)
    return HostFS(str(root), live)


# -- presence of a GPU and of the driver -------------------------------------------------------------------------------

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 12.3.0\n"
)


def device(number: int, vendor: str, kind: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
    return {f"{folder}/vendor": vendor + "\n", f"{folder}/class": kind + "\n"}


TEGRA = {"proc/device-tree/compatible": "nvidia,p3737-0000\0nvidia,tegra234\0"}


def tegra_with(name: str) -> dict[str, str]:
    gpu = INFORMATION.format(name=name, uuid="GPU-1", bus="0000:01:00.0", minor=0, excluded="No")
    path = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    return {**TEGRA, **device(1, "0x10de", "0x030200"), "proc/driver/nvidia/version": VERSION, path: gpu}


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        (
            {"proc/driver/nvidia/version": VERSION},
            "driver",
            "The NVIDIA driver is loaded: /proc/driver/nvidia/version",
        ),
        ({"sys/module/nvidia/version": "550.54.15\n"}, "driver", "/sys/module/nvidia/version exists"),
        ({"proc/driver/nvidia/version": "?"}, "driver", "driver is loaded"),
        (
            device(1, "0x10de", "0x030200"),
            "pci",
            "/sys/bus/pci/devices/0000:01:00.0 is an NVIDIA GPU. No NVIDIA driver",
        ),
        (device(1, "0x10de", "0x030000"), "pci", "0000:01:00.0"),
        ({**device(1, "0x8086", "0x030000"), **device(2, "0x10de", "0x030200")}, "pci", "0000:02:00.0"),
        ({**device(1, "0x10de", "0x068000"), **device(2, "0x10de", "0x030200")}, "pci", "0000:02:00.0"),
        ({**device(1, "0x8086", "0x030000"), "dev/dxg": ""}, "wsl", "/dev/dxg exists: Windows"),
        (
            TEGRA,
            "tegra",
            "contains the name of a Tegra",
        ),
        # Orin has a driver for its screen, a Thor has its GPU on the PCI bus, and another Tegra has a card.
        ({**TEGRA, "proc/driver/nvidia/version": VERSION}, "tegra", "contains the name of a Tegra"),
        (tegra_with("NVIDIA Thor"), "tegra", "contains the name of a Tegra"),
        (tegra_with("NVIDIA RTX 6000 Ada Generation"), "driver", "driver is loaded"),
        ({**TEGRA, **device(1, "0x10de", "0x030200")}, "pci", "0000:01:00.0"),
    ],
)
def test_detects_gpu(tmp_path: Path, files: dict[str, str], kind: str, message: str) -> None:
    found = procfs.detect_gpu(host(tmp_path, files))
    assert (found.present, found.kind) == (True, kind)
    assert message in found.message


@pytest.mark.parametrize(
    "files",
    [
        device(1, "0x8086", "0x030000"),
        # An NVSwitch, and the audio function of a GPU.
        {**device(1, "0x10de", "0x068000"), **device(2, "0x10de", "0x040300")},
        {"sys/bus/platform/x": ""},
        {**device(1, "0x1002", "0x030000"), "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0"},
    ],
)
def test_detects_no_gpu(tmp_path: Path, files: dict[str, str]) -> None:
    found = procfs.detect_gpu(host(tmp_path, files))
    assert (found.present, found.kind) == (False, None)
    assert found.message.startswith("No NVIDIA driver is loaded, no NVIDIA GPU is on the PCI bus")


def test_unknown_presence(tmp_path: Path) -> None:
    assert procfs.detect_gpu(host(tmp_path, {})).present is None
    offline = procfs.detect_gpu(host(tmp_path, {"proc/driver/nvidia/version": VERSION}, live=False))
    assert offline == procfs.GpuPresence(None, offline.message)
    assert "offline tree" in offline.message


def test_loaded_driver_and_devices(tmp_path: Path) -> None:
    found = host(tmp_path, {})
    assert procfs.loaded_driver(found) is None
    assert procfs.nvidia_devices(found) is None
    host(tmp_path, device(1, "0x8086", "0x030000"))
    assert procfs.nvidia_devices(found) == {}
    host(tmp_path, {"sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n"})
    assert procfs.nvidia_devices(found) == {"/sys/bus/pci/devices/0000:02:00.0": ""}


# -- /proc/driver/nvidia/gpus ------------------------------------------------------------------------------------------

DEFAULTS = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-614bc606-2078-5444-8c9c-4f8e98ae4dcc",
    "bus": "0000:62:00.0",
    "minor": "5",
    "excluded": "No",
}


def text(**others: str) -> str:
    return INFORMATION.format(**{**DEFAULTS, **others})


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("0000:07:00.0", "0000:07:00.0"),
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00010000:BD:1F.7", "10000:bd:1f.7"),
        ("10000:BD:00.0", "10000:bd:00.0"),
        ("ABCD:00:00.0", "abcd:00:00.0"),
        ("0000ABCD:00:00.0", "abcd:00:00.0"),
        ("FFFFFFFF:00:00.0", "ffffffff:00:00.0"),
    ],
)
def test_normalizes_addresses(address: str, normal: str) -> None:
    assert procfs.normalize_address(address) == normal
    assert procfs.normalize_or_keep(address) == normal


@pytest.mark.parametrize(
    "address", ["", "07:00.0", "0000:07:00.8", "0000:07:00", "000000000:07:00.0", "0000:07:00.0\n"]
)
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(ValueError):
        procfs.normalize_address(address)
    assert procfs.normalize_or_keep(address) == address


def test_parses_information() -> None:
    found = procfs.parse_information(text(), "F")
    assert found == ProcGpu("0000:62:00.0", str(DEFAULTS["uuid"]), 5, "NVIDIA H100 80GB HBM3", excluded=False)


def test_unknown_uuid() -> None:
    assert procfs.parse_information(text(uuid=UNKNOWN_UUID), "F").uuid == ""
    without = "".join(line for line in text().splitlines(True) if not line.startswith("GPU UUID"))
    assert procfs.parse_information(without, "F").uuid == ""


@pytest.mark.parametrize("mark", ["GPU Excluded:\t Yes", "Blacklisted:\t Yes"])
def test_excluded_gpu(mark: str) -> None:
    lines = text(uuid=UNKNOWN_UUID, minor="4294967295").replace("GPU Excluded:\t No", mark)
    assert procfs.parse_information(lines, "F") == ProcGpu("0000:62:00.0", "", 0, "", excluded=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "F: the file is empty: the GPU does not answer"),
        ("\0" * 300, "F: the file is empty"),
        (text(bus="62:00.0"), "F: Bus Location is not a PCI address."),
        (text(uuid="0"), "F: GPU UUID is not a UUID."),
        (text(uuid="GPU-" + "a" * 200), "F: GPU UUID is not a UUID."),
        (text(minor="-1"), "F: Device Minor is not a number."),
        (text(minor="9" * 5000), "F: Device Minor is not a number."),
        (text(minor="\N{SUPERSCRIPT TWO}"), "F: Device Minor is not a number."),
        (text().replace("Device Minor", "Minor"), "F: Device Minor is not a number."),
        (text().replace("Bus Location", "Bus"), "F: Bus Location is not a PCI address."),
    ],
)
def test_invalid_information(content: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        procfs.parse_information(content, "F")
    assert str(caught.value).startswith(message)


LINES = st.sampled_from([*text().splitlines(), "GPU Excluded: Yes", ":", "Bus Location: :::", "Device Minor:"])


@given(st.one_of(st.text(), st.lists(st.one_of(LINES, st.text(max_size=20)), max_size=14).map("\n".join)))
def test_any_text_is_a_gpu_or_an_nvidia_error(content: str) -> None:
    try:
        found = procfs.parse_information(content, "F")
    except NvidiaError as error:
        message = str(error)
    else:
        message = "F"
        assert procfs.normalize_address(found.bus) == found.bus
        assert 0 <= found.minor < 10**7
    assert message.startswith("F")


def test_order_of_gpus(tmp_path: Path) -> None:
    gpus = [
        FakeGpu("10000:01:00.0", 0),
        FakeGpu("0000:b7:00.0", 6),
        FakeGpu("0000:0f:00.0", 3),
        FakeGpu("0000:07:00.0", 2, excluded=True, uuid=UNKNOWN_UUID),
        FakeGpu("0002:01:00.0", 4, uuid=UNKNOWN_UUID),
        FakeGpu("0003:01:00.0", 5, uuid=UNKNOWN_UUID),
    ]
    found = [gpu.bus for gpu in procfs.read_gpus(gpu_host(tmp_path, gpus))]
    assert found == ["0000:0f:00.0", "0000:b7:00.0", "0002:01:00.0", "0003:01:00.0", "10000:01:00.0"]


def test_read_bounded(tmp_path: Path) -> None:
    host = HostFS(str(tmp_path))
    write(tmp_path, {"right": "x" * 100, "long": "x" * 101})
    assert procfs.read_bounded(host, "/right", 100) == "x" * 100
    cases: t.Mapping[str, str] = {
        "/long": "more than 100 bytes",
        "/none": "/none does not exist",
        "/": "/ is not a regular file",
    }
    for path, message in cases.items():
        with pytest.raises(HostError, match=message):
            procfs.read_bounded(host, path, 100)
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert procfs.read_bounded(host, "/bytes", 100) == "\N{REPLACEMENT CHARACTER}"


# -- kernel modules ---------------------------------------------------------------------------------------------------


def test_loaded_modules(tmp_path: Path) -> None:
    write(tmp_path, {"sys/module/nvidia_uvm/refcnt": "2\n", "sys/module/nvidia_uvm/version": ""})
    # Another module, a module that is built in, and a file that is too long.
    write(tmp_path, {"sys/module/nvidiafb/refcnt": "1\n", "sys/module/nvidia_drm/parameters/modeset": "Y\n"})
    write(tmp_path, {"sys/module/gdrdrv/refcnt": "1" * 5000})
    assert procfs.loaded_modules(HostFS(str(tmp_path))) == [Module("nvidia_uvm", None, 2)]


@pytest.mark.parametrize(
    ("modules", "messages"),
    [
        ([], []),
        ([Module("nvidia", "1", 0), Module("nvidia_uvm", "1", 0), Module("nvidia_drm", None, 0)], []),
        ([Module("nvidia", "1", 0), Module("gdrdrv", "2.5", 0)], []),
        (
            [Module("nvidia", "1", 0), Module("nvidia_uvm", "2", None), Module("nvidia_fs", "3", 0)],
            ["The driver's kernel modules have different versions: nvidia 1, nvidia_uvm 2."],
        ),
    ],
)
def test_version_problems(modules: list[Module], messages: list[str]) -> None:
    assert [problem.message for problem in procfs.version_problems(modules)] == messages


def test_gpus_without_driver(tmp_path: Path) -> None:
    for number, kind in enumerate(["0x030000", "0x030200", "0x068000"]):
        folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
        write(tmp_path, {f"{folder}/vendor": "0x10de\n", f"{folder}/class": f"{kind}\n"})
    host = HostFS(str(tmp_path))
    (first,) = procfs.gpus_without_driver(host, ())
    assert "the GPU 0000:00:00.0 (no driver), 0000:01:00.0 (no" in first.message
    assert first.advice.startswith("Install NVIDIA's driver, or load it with modprobe nvidia.")
    (second,) = procfs.gpus_without_driver(host, ["0000:00:00.0"])
    assert second.message.endswith("the GPU 0000:01:00.0 (no driver).")
    # The driver of the first GPU is loaded.
    assert second.advice.startswith("Install a driver that supports this GPU.")
    assert procfs.gpus_without_driver(host, ["0000:00:00.0", "0000:01:00.0"]) == []


# -- MIG --------------------------------------------------------------------------------------------------------------

CAPABILITIES, MINORS = "proc/driver/nvidia/capabilities", "proc/driver/nvidia-caps/mig-minors"


def test_minors(tmp_path: Path) -> None:
    capabilities = MigCapabilities(host(tmp_path, {MINORS: mig_minors()}))
    assert capabilities.minors(0, 0, 0) == (3, 4)
    # Each GPU has 15 GPU instances, and each of these has one line and eight compute instances.
    assert capabilities.minors(2, 7, 1) == (3 + 9 * (2 * 15 + 7), 3 + 9 * (2 * 15 + 7) + 2)
    assert capabilities.nodes(0, 0, 7) == ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap11")


def test_reads_minors_once(tmp_path: Path) -> None:
    capabilities = MigCapabilities(host(tmp_path, {}))
    with pytest.raises(HostError, match="mig-minors does not exist"):
        capabilities.minors(0, 0, 0)
    write(tmp_path, {MINORS: mig_minors()})
    assert capabilities.minors(0, 0, 0) == (3, 4)
    (tmp_path / MINORS).unlink()
    assert capabilities.minors(0, 1, 0) == (12, 13)


@pytest.mark.parametrize(
    ("minor", "gi", "ci", "missing"), [(32, 0, 0, "gpu32/gi0/access"), (0, 0, 8, "gpu0/gi0/ci8/access")]
)
def test_missing_capability(tmp_path: Path, minor: int, gi: int, ci: int, missing: str) -> None:
    with pytest.raises(HostError, match=f"mig-minors does not contain {missing}, although"):
        MigCapabilities(host(tmp_path, {MINORS: mig_minors()})).minors(minor, gi, ci)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config 1\nmonitor\n", "M, line 2: the line is not a capability with its minor number"),
        ("config -1\n", "M, line 1: the line is not"),
        ("config 1 2\n", "M, line 1: the line is not"),
        ("config \N{SUPERSCRIPT TWO}\n", "M, line 1: the line is not"),
        ("config " + "1" * 5000, "M, line 1: the line is not"),
    ],
)
def test_invalid_minors(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        procfs.parse_minors(text, "M")
    assert str(caught.value).startswith(message)


def test_ignores_white_space() -> None:
    assert procfs.parse_minors("\nconfig\t 1 \r\n  \nmonitor 2") == {"config": 1, "monitor": 2}


def test_minors_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "_MAX_CAPABILITIES", 1000)
    with pytest.raises(HostError, match="more than 1000 bytes"):
        MigCapabilities(host(tmp_path, {MINORS: mig_minors()})).minors(0, 0, 0)


LINE = st.one_of(st.sampled_from(["config 1", "gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13"]), st.text(max_size=30))


@given(st.one_of(st.text(), st.lists(LINE, max_size=10).map("\n".join)))
def test_any_text_is_minors_or_an_nvidia_error(text: str) -> None:
    try:
        found = procfs.parse_minors(text, "M")
    except NvidiaError as error:
        message = str(error)
    else:
        message = "M, line "
        assert len(found) <= text.count("\n") + 1
        assert all(0 <= minor < 10**7 for minor in found.values())
    assert message.startswith("M, line ")


def test_mig_instances(tmp_path: Path) -> None:
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
    assert procfs.mig_instances(HostFS(str(tmp_path))) == expected


def test_no_mig_instances(tmp_path: Path) -> None:
    # mig-minors also lists instances that do not exist.
    assert procfs.mig_instances(host(tmp_path, {MINORS: mig_minors()})) == []
