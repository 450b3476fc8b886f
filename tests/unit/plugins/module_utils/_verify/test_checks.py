# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import Check

if t.TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "/usr/bin/nvidia-container-runtime"
CONFIG = "etc/nvidia-container-runtime/config.toml"
TOOLKIT_CONFIG = "opt/toolkit/.config/nvidia-container-runtime/config.toml"
# As the driver's module writes it.
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 12.3.0\n"
)
INFORMATION = "proc/driver/nvidia/gpus/0000:0{}:00.0/information"
GPU = "Bus Location: \t 0000:0{}:00.0\nDevice Minor: \t {}\nGPU Excluded:\t {}\n"
FILES = {
    "proc/driver/nvidia/version": VERSION,
    INFORMATION.format(1): GPU.format(1, 0, "No"),
    INFORMATION.format(2): GPU.format(2, 1, "No"),
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-uvm-tools": "",
    "dev/nvidia-modeset": "",
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    CONFIG: '[nvidia-container-runtime]\nmode = "auto"\n',
}


def write(root: Path, path: str, content: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two GPUs."""
    for path, content in FILES.items():
        write(tmp_path, path, content)
    return tmp_path


def check_driver(root: Path) -> Check:
    return checks.check_driver(HostFS(str(root)))


def check_devices(root: Path, driver_root: str = "/") -> Check:
    return checks.check_devices(HostFS(str(root)), [driver_root])


def assert_failed(check: Check, detail: str, advice: str = "") -> None:
    assert check.ok is False
    assert detail in check.detail
    assert advice in check.advice


def test_all_checks_pass(root: Path) -> None:
    assert check_driver(root) == Check("driver", ok=True, detail="The driver 580.95.05 is loaded.")
    assert check_devices(root) == Check("device nodes", ok=True, detail="All device nodes exist. GPUs: 2.")


# -- driver and device nodes -----------------------------------------------------------------------------------------


def test_reads_the_driver_version_from_sysfs(root: Path) -> None:
    (root / "proc/driver/nvidia/version").unlink()
    write(root, "sys/module/nvidia/version", "550.54.15\n")
    assert check_driver(root).detail == "The driver 550.54.15 is loaded."


@pytest.mark.parametrize(
    ("vendors", "detail", "advice"),
    [
        (["0x8086", "0x10de"], "no NVIDIA driver is loaded", "modprobe nvidia"),
        (["0x8086"], "no NVIDIA device on its PCI bus", "level: engine"),
        # A machine without a PCI bus has its GPUs elsewhere.
        ([], "no NVIDIA driver is loaded", "modprobe nvidia"),
    ],
)
def test_missing_driver(root: Path, vendors: list[str], detail: str, advice: str) -> None:
    (root / "proc/driver/nvidia/version").unlink()
    for number, vendor in enumerate(vendors):
        write(root, f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", vendor + "\n")
    check = check_driver(root)
    assert check.detail.startswith("/proc/driver/nvidia/version does not exist")
    assert_failed(check, detail, advice)


@pytest.mark.parametrize(
    ("missing", "detail", "advice"),
    [
        (["nvidia-uvm"], "Missing device nodes: /dev/nvidia-uvm.", "Run `nvidia-modprobe -u -c 0` as root."),
        (["nvidiactl"], "Missing device nodes: /dev/nvidiactl.", "Run `nvidia-modprobe -c 255` as root."),
        (["nvidiactl", "nvidia-uvm"], "nodes: /dev/nvidiactl, /dev/nvidia-uvm.", "`nvidia-modprobe -u -c 0`"),
        (["nvidia1"], "found 2 GPUs, but device nodes are missing: /dev/nvidia1.", "nvidia-smi"),
    ],
)
def test_missing_device_nodes(root: Path, missing: list[str], detail: str, advice: str) -> None:
    write(root, "dev/nvidia7", "")
    for name in missing:
        (root / "dev" / name).unlink()
    assert_failed(check_devices(root), detail, advice)


def test_device_nodes_of_a_driver_container(root: Path) -> None:
    (root / "opt/driver").mkdir(parents=True)
    (root / "dev").rename(root / "opt/driver/dev")
    assert check_devices(root, "/opt/driver").ok
    for name, command in (("nvidia1", "nvidia-smi"), ("nvidia-uvm", "nvidia-modprobe -u -c 0")):
        (root / "opt/driver/dev" / name).unlink()
        assert_failed(
            check_devices(root, "/opt/driver"), f": /opt/driver/dev/{name}.", f"`chroot /opt/driver {command}`"
        )


def test_tegra_is_only_supported_with_its_gpu_on_the_pci_bus(root: Path) -> None:
    write(root, "proc/device-tree/compatible", "nvidia,tegra264\0")
    write(root, INFORMATION.format(1), "Model: \t\t NVIDIA Thor\n" + GPU.format(1, 0, "No"))
    assert_failed(check_devices(root), "part of a Tegra", "level: engine")
    write(root, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(root, "sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    assert check_devices(root).ok
    (root / "dev/nvidia0").unlink()
    assert_failed(check_devices(root), "missing: /dev/nvidia0.")


def test_excluded_gpus_need_no_device_node(root: Path) -> None:
    write(root, INFORMATION.format(2), GPU.format(2, 1, "Yes"))
    (root / "dev/nvidia1").unlink()
    assert check_devices(root).detail == "All device nodes exist. GPUs: 1."
    write(root, INFORMATION.format(1), GPU.format(1, 0, "Yes"))
    assert_failed(check_devices(root), "or only excluded ones")


def test_unreadable_information_is_not_checked(root: Path) -> None:
    write(root, INFORMATION.format(2), "")
    check = check_devices(root)
    assert check.ok is None
    assert "the GPU does not answer the driver" in check.detail


def test_driver_without_gpus(root: Path) -> None:
    os.rename(root / "proc/driver/nvidia/gpus", root / "proc/driver/nvidia/x")
    assert_failed(check_devices(root), "the driver has found no GPU")


# -- the mode of the runtime -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "program", "text", "uses_cdi"),
    [
        ("nvidia", PROGRAM, 'mode = "auto"', False),
        ("nvidia", PROGRAM, 'mode = "cdi"', True),
        ("nvidia", PROGRAM, "mode = 1", False),
        ("nvidia", PROGRAM, "=", False),
        ("nvidia", PROGRAM + ".cdi", 'mode = "legacy"', True),
        ("nvidia-legacy", PROGRAM, 'mode = "cdi"', False),
        ("gpu-cdi", PROGRAM, 'mode = "auto"', True),
        ("nvidia", None, 'mode = "cdi"', True),
        ("nvidia", "/opt/toolkit/nvidia-container-runtime", "", True),
    ],
)
def test_runtimes_that_use_cdi(root: Path, name: str, program: str | None, text: str, uses_cdi: bool) -> None:
    write(root, CONFIG, f"[nvidia-container-runtime]\n{text}\n")
    write(root, TOOLKIT_CONFIG, '[nvidia-container-runtime]\nmode = "cdi"\n')
    settings = checks.settings_of(HostFS(str(root)), program)
    assert checks.uses_cdi(name, program, settings) is uses_cdi


# -- CDI -------------------------------------------------------------------------------------------------------------

DIRECTORIES = ["/etc/cdi", "/var/run/cdi"]
LIBRARY = "/usr/lib/libcuda.so.580.1"


def spec(*names: str, kind: str = "nvidia.com/gpu", library: str = LIBRARY) -> str:
    devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in names]
    edits = {"mounts": [{"hostPath": library, "containerPath": library}]}
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits})


OTHER_KIND = spec("0", kind="example.com/net", library="/gone")


def check_specs(root: Path, **specs: str) -> Check:
    write(root, LIBRARY.lstrip("/"), "")
    for name, content in specs.items():
        write(root, f"etc/cdi/{name}.json", content)
    return checks.check_cdi(HostFS(str(root)), DIRECTORIES)


def files_in(check: Check) -> list[str]:
    """Return the specifications that a successful check names."""
    assert (check.name, check.ok) == ("CDI", True)
    return re.findall(r"/[\w/]+\.(?:json|yaml)", check.detail)


def test_valid_specifications(tmp_path: Path) -> None:
    assert files_in(check_specs(tmp_path, a=spec("0"))) == ["/etc/cdi/a.json"]
    # Engines skip invalid files, and files of other kinds are not checked.
    check = check_specs(tmp_path, b=spec(), c="[", d=OTHER_KIND, e=spec("1"))
    assert files_in(check) == ["/etc/cdi/a.json", "/etc/cdi/e.json"]


@pytest.mark.parametrize(
    ("specs", "detail"),
    [
        ({"d": OTHER_KIND}, "No CDI specification in /etc/cdi or /var/run/cdi describes nvidia.com/gpu."),
        ({"a": spec("0"), "b": spec("0")}, "/etc/cdi/a.json and /etc/cdi/b.json define the same devices in one"),
        ({"a": spec()}, "Engines skip /etc/cdi/a.json. devices is empty."),
        ({"a": "["}, "Engines skip /etc/cdi/a.json. /etc/cdi/a.json, line "),
        ({"a": spec("0", library="/gone")}, "/etc/cdi/a.json is stale. These paths no longer exist: /gone."),
    ],
)
def test_unusable_specifications(tmp_path: Path, specs: dict[str, str], detail: str) -> None:
    assert_failed(check_specs(tmp_path, **specs), detail, "nvidia_cdi_spec")


def test_checks_only_files_from_which_engines_take_devices(tmp_path: Path) -> None:
    write(tmp_path, "var/run/cdi/nvidia.json", spec("0"))
    assert check_specs(tmp_path, old=spec("0", library="/gone")).ok
    # The CDI library does not read a directory that is a symbolic link.
    os.rename(tmp_path / "var/run/cdi", tmp_path / "cdi")
    (tmp_path / "var/run/cdi").symlink_to("/cdi")
    assert_failed(check_specs(tmp_path), "/gone")


def test_reads_yaml_and_ignores_other_names(root: Path) -> None:
    write(root, "etc/cdi/nvidia.yaml.old", spec("0"))
    write(root, "etc/cdi/directory.yaml/x", "")
    write(root, LIBRARY.lstrip("/").replace("580.1", "580.95.05"), "")
    assert_failed(checks.check_cdi(HostFS(str(root)), DIRECTORIES), "No CDI specification in")
    write(root, "var/run/cdi/nvidia.yaml", spec("0", library=LIBRARY.replace("580.1", "580.95.05")))
    assert files_in(checks.check_cdi(HostFS(str(root)), DIRECTORIES)) == ["/var/run/cdi/nvidia.yaml"]


def test_requests_a_yaml_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    monkeypatch.setattr(bundled, "_registered", {})
    write(tmp_path, "etc/cdi/a.yaml", "kind: nvidia.com/gpu\n")
    with pytest.raises(MissingPackageError, match="PyYAML") as caught:
        check_specs(tmp_path)
    assert caught.value.details == {"needed": "yaml"}
