# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify import checks as verify_checks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import Check, GpuChecks

PROGRAM = "/usr/bin/nvidia-container-runtime"
CONFIG = "etc/nvidia-container-runtime/config.toml"
# As the driver's module writes it.
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 12.3.0\n"
)
WHOLE = {
    "proc/driver/nvidia/version": VERSION,
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "",
    "proc/driver/nvidia/gpus/0000:02:00.0/information": "",
    "dev/nvidiactl": "",
    "dev/nvidia-uvm": "",
    "dev/nvidia-uvm-tools": "",
    "dev/nvidia-modeset": "",
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "usr/bin/nvidia-container-runtime": "x",
    "usr/bin/nvidia-container-runtime-hook": "x",
    "usr/bin/nvidia-container-cli": "x",
    "usr/bin/nvidia-ctk": "x",
    CONFIG: '[nvidia-container-runtime]\nmode = "auto"\n',
}

# JSON is YAML, too.
SPECIFICATION = """\
{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
 "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}
"""


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    for path, content in WHOLE.items():
        write(HostFS(str(tmp_path)), path, content)
    return HostFS(str(tmp_path))


def write(host: HostFS, path: str, content: str) -> None:
    file = Path(host.root, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755 if path.startswith(("usr/", "opt/")) else 0o644)


def remove(host: HostFS, *paths: str) -> None:
    for path in paths:
        Path(host.root, path).unlink()


def links(
    host: HostFS, name: str = "nvidia", program: str | None = PROGRAM, runtime_dir: str | None = None
) -> GpuChecks:
    return GpuChecks(host, name, program, runtime_dir)


def broken(check: Check) -> tuple[str, str]:
    assert check.ok is False
    return check.detail, check.advice


def test_a_whole_host(host: HostFS) -> None:
    found = links(host).checks()
    assert [check.link for check in found] == ["driver", "device nodes", "toolkit", "config.toml"]
    assert all(check.ok for check in found)
    assert found[0].detail == "The driver 580.95.05 is loaded."
    assert found[1].detail == "The nodes of 2 GPUs are there."


def test_driver_as_sysfs_tells(host: HostFS) -> None:
    remove(host, "proc/driver/nvidia/version")
    write(host, "sys/module/nvidia/version", "550.54.15\n")
    assert links(host).driver().detail == "The driver 550.54.15 is loaded."


@pytest.mark.parametrize(
    ("vendors", "words", "advice"),
    [
        (["0x8086", "0x10de"], "no NVIDIA driver is loaded", "modprobe nvidia"),
        (["0x8086"], "no NVIDIA device on its PCI bus", "level: engine"),
        # A machine without such a bus has its GPUs elsewhere.
        ([], "no NVIDIA driver is loaded", "modprobe nvidia"),
    ],
)
def test_no_driver(host: HostFS, vendors: list[str], words: str, advice: str) -> None:
    remove(host, "proc/driver/nvidia/version")
    for number, vendor in enumerate(vendors):
        write(host, f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", vendor + "\n")
    detail, advised = broken(links(host).driver())
    assert detail.startswith("/proc/driver/nvidia/version is not there")
    assert words in detail
    assert advice in advised


@pytest.mark.parametrize(
    ("missing", "detail", "advice"),
    [
        (["dev/nvidia-uvm"], "/dev/nvidia-uvm is not there.", "Run nvidia-modprobe -u -c 0."),
        (["dev/nvidiactl"], "/dev/nvidiactl is not there.", "Run nvidia-modprobe -c 0."),
        (["dev/nvidiactl", "dev/nvidia-uvm"], "/dev/nvidiactl and /dev/nvidia-uvm are not there.", "modprobe -u -c 0."),
        (["dev/nvidia1"], "found 2 GPUs, but of their nodes /dev/nvidia0 and so on 1 are there", "nvidia-smi"),
    ],
)
def test_no_device_nodes(host: HostFS, missing: list[str], detail: str, advice: str) -> None:
    remove(host, *missing)
    found = broken(links(host).devices())
    assert detail in found[0]
    assert advice in found[1]


def test_a_driver_without_gpus(host: HostFS) -> None:
    for number in (1, 2):
        folder = f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        remove(host, folder + "/information")
        os.rmdir(os.path.join(host.root, folder))
    assert "the driver has found no GPU" in broken(links(host).devices())[0]


@pytest.mark.parametrize(
    ("name", "program", "missing", "detail"),
    [
        ("nvidia", PROGRAM, ["nvidia-container-runtime"], f"{PROGRAM} is not there."),
        ("nvidia", None, ["nvidia-container-runtime"], f"{PROGRAM} is not there."),
        ("nvidia", PROGRAM, ["nvidia-container-cli"], ""),
        ("nvidia", PROGRAM, ["nvidia-container-runtime-hook", "nvidia-ctk"], "runtime-hook, nvidia-ctk or nvidia-cdi"),
        ("nvidia-legacy", PROGRAM, ["nvidia-container-cli"], "nvidia-container-cli is not there."),
        ("x", PROGRAM + ".legacy", ["nvidia-container-runtime-hook"], "nvidia-container-runtime-hook is not there."),
        ("nvidia-cdi", PROGRAM, ["nvidia-ctk"], "nvidia-ctk or nvidia-cdi-hook is not there."),
        ("nvidia-cdi", PROGRAM, ["nvidia-container-runtime-hook", "nvidia-container-cli"], ""),
    ],
)
def test_toolkit(host: HostFS, name: str, program: str | None, missing: list[str], detail: str) -> None:
    for mode in (".legacy", ".cdi"):
        write(host, f"usr/bin/nvidia-container-runtime{mode}", "x")
    remove(host, *(f"usr/bin/{file}" for file in missing))
    check = links(host, name, program).toolkit()
    assert check.ok is (not detail)
    if detail:
        assert detail in check.detail
        assert "nvidia-container-toolkit" in check.advice


def test_a_toolkit_in_a_folder_of_its_own(host: HostFS) -> None:
    remove(host, *(path for path in WHOLE if path.startswith("usr/bin/")))
    folder = "opt/toolkit"
    assert links(host, runtime_dir="/opt/toolkit", program=None).toolkit().ok is False
    for name in ("nvidia-container-runtime", "nvidia-container-runtime.real", "nvidia-ctk"):
        write(host, f"{folder}/{name}", "x")
    write(host, f"{folder}/.config/nvidia-container-runtime/config.toml", "x = ")
    for found in (
        links(host, runtime_dir="/opt/toolkit", program=None),
        links(host, program="/opt/toolkit/nvidia-container-runtime"),
    ):
        assert found.toolkit().ok
        assert f"/{folder}/.config/nvidia-container-runtime/config.toml, line 1" in broken(found.config())[0]
    # A script without its program.
    remove(host, f"{folder}/nvidia-container-runtime.real")
    check = links(host, runtime_dir="/opt/toolkit", program=None).toolkit()
    assert "/opt/toolkit/nvidia-container-runtime.real is not there" in check.detail


def test_no_config_is_none_that_is_wrong(host: HostFS) -> None:
    remove(host, CONFIG)
    check = links(host).config()
    assert check.ok
    assert "is not there" in check.detail


def test_a_broken_config(host: HostFS) -> None:
    write(host, CONFIG, "[nvidia-container-runtime]\nmode = auto\n")
    detail, advice = broken(links(host).config())
    assert detail.startswith(f"/{CONFIG}, line 2: ")
    assert "auto" not in detail
    assert "nothing was changed" not in detail + advice


def test_a_config_that_cannot_be_read(host: HostFS) -> None:
    remove(host, CONFIG)
    os.mkdir(os.path.join(host.root, CONFIG))
    assert "is not a regular file" in broken(links(host).config())[0]


def test_a_config_that_this_python_cannot_judge(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_args: object) -> t.NoReturn:
        raise NvidiaError("The Python package tomlkit is needed.")

    monkeypatch.setattr(verify_checks.GpuChecks, "_parsed", none)
    check = links(host).config()
    assert check.ok is None
    assert check.detail == f"/{CONFIG} was not judged. The Python package tomlkit is needed."


@pytest.mark.parametrize(
    ("name", "program", "mode", "way"),
    [
        ("nvidia", PROGRAM, "auto", "auto"),
        ("nvidia", PROGRAM, "cdi", "cdi"),
        ("nvidia", PROGRAM, "legacy", "legacy"),
        ("nvidia", PROGRAM, "jit-cdi", "auto"),
        ("nvidia", PROGRAM + ".cdi", "legacy", "cdi"),
        ("nvidia-legacy", PROGRAM, "cdi", "legacy"),
        ("gpu-cdi", PROGRAM, "auto", "cdi"),
        ("nvidia", None, "cdi", "cdi"),
    ],
)
def test_way(host: HostFS, name: str, program: str | None, mode: str, way: str) -> None:
    write(host, CONFIG, f'[nvidia-container-runtime]\nmode = "{mode}"\n')
    assert links(host, name, program).way() == way


@pytest.mark.parametrize("text", ["", "nvidia-container-runtime = 5", "[nvidia-container-runtime]\nmode = 1", "="])
def test_the_way_of_a_strange_config(host: HostFS, text: str) -> None:
    write(host, CONFIG, text)
    assert links(host).way() == "auto"


@pytest.mark.parametrize(
    ("path", "content", "found"),
    [
        ("etc/cdi/nvidia.json", SPECIFICATION, True),
        ("var/run/cdi/nvidia.yaml", SPECIFICATION, True),
        ("etc/cdi/nvidia.yaml.old", SPECIFICATION, False),
        ("etc/cdi/other.yaml", SPECIFICATION.replace("nvidia.com/gpu", "example.com/net"), False),
        ("srv/cdi/nvidia.yaml", SPECIFICATION, False),
    ],
)
def test_specifications(host: HostFS, path: str, content: str, found: bool) -> None:
    write(host, path, content)
    (check,) = links(host, "nvidia-cdi").checks()[4:]
    assert check.link == "CDI"
    assert check.ok is found
    assert f"/{path} describes" in check.detail if found else "gpufleet.nvidia.nvidia_cdi_spec" in check.advice


def test_folders_of_specifications_that_config_toml_names(host: HostFS) -> None:
    write(host, "srv/cdi/nvidia.yaml", SPECIFICATION)
    write(host, "etc/cdi/unreadable.yaml/x", "")
    assert links(host, "nvidia-cdi").cdi().ok is False
    write(host, CONFIG, '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/srv/cdi/"]\n')
    assert links(host, "nvidia-cdi").cdi().detail == "/srv/cdi/nvidia.yaml describes nvidia.com/gpu."


def test_a_folder_that_cannot_be_looked_at(host: HostFS) -> None:
    os.symlink("loop", os.path.join(host.root, "loop"))
    write(host, CONFIG, '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/loop/cdi"]\n')
    assert "too many symbolic links" in broken(links(host, "nvidia-cdi").cdi())[0]
