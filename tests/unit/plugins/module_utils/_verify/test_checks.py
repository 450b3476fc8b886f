# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import shutil
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    HostError,
    MissingPackageError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import CDI_SPEC_BYTES, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._verify.checks import Check, GpuChecks, check_cdi

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
    "usr/bin/nvidia-container-runtime": "x",
    "usr/bin/nvidia-container-runtime-hook": "x",
    "usr/bin/nvidia-container-cli": "x",
    "usr/bin/nvidia-ctk": "x",
    CONFIG: '[nvidia-container-runtime]\nmode = "auto"\n',
}


def write(root: Path, path: str, content: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755 if path.startswith(("usr/", "opt/")) else 0o644)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two GPUs and the toolkit."""
    for path, content in FILES.items():
        write(tmp_path, path, content)
    return tmp_path


def gpu_checks(
    root: Path, name: str = "nvidia", program: str | None = PROGRAM, runtime_dir: str | None = None
) -> GpuChecks:
    return GpuChecks(HostFS(str(root)), name, program, runtime_dir)


def assert_failed(check: Check, detail: str, advice: str = "") -> None:
    assert check.ok is False
    assert detail in check.detail
    assert advice in check.advice


def test_all_checks_pass(root: Path) -> None:
    assert gpu_checks(root).checks() == [
        Check("driver", ok=True, detail="The driver 580.95.05 is loaded."),
        Check("device nodes", ok=True, detail="All device nodes exist. GPUs: 2."),
        Check("toolkit", ok=True, detail=f"{PROGRAM} and the programs that it needs exist."),
        Check("config.toml", ok=True, detail=f"/{CONFIG} is valid."),
    ]


# -- driver and device nodes -----------------------------------------------------------------------------------------


def test_reads_the_driver_version_from_sysfs(root: Path) -> None:
    (root / "proc/driver/nvidia/version").unlink()
    write(root, "sys/module/nvidia/version", "550.54.15\n")
    assert gpu_checks(root).driver().detail == "The driver 550.54.15 is loaded."


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
    check = gpu_checks(root).driver()
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
    assert_failed(gpu_checks(root).devices(), detail, advice)


@pytest.mark.parametrize("folder", ["run/nvidia/driver", "opt/driver"])
def test_device_nodes_of_a_driver_container(root: Path, folder: str) -> None:
    write(root, CONFIG, f'[nvidia-container-cli]\nroot = "/{folder}"\n')
    (root / folder).mkdir(parents=True)
    (root / "dev").rename(root / folder / "dev")
    assert gpu_checks(root).devices().detail == "All device nodes exist. GPUs: 2."
    (root / folder / "dev/nvidia1").unlink()
    assert_failed(gpu_checks(root).devices(), f"missing: /{folder}/dev/nvidia1.", f"`chroot /{folder} nvidia-smi`")
    (root / folder / "dev/nvidia-uvm").unlink()
    assert_failed(gpu_checks(root).devices(), f": /{folder}/dev/nvidia-uvm.", f"`chroot /{folder} nvidia-modprobe -u")


@pytest.mark.parametrize(
    ("driver_root", "mode", "missing"),
    [
        ("", "auto", "/dev/nvidia-uvm"),
        ("/", "legacy", "/dev/nvidia-uvm"),
        ("/opt/driver", "auto", "/opt/driver/dev/nvidia-uvm"),
        # The container gets the nodes of the specification.
        ("/opt/driver", "cdi", "/run/nvidia/driver/dev/nvidia-uvm"),
    ],
)
def test_device_nodes_of_the_root_in_config_toml(root: Path, driver_root: str, mode: str, missing: str) -> None:
    runtime = f'[nvidia-container-runtime]\nmode = "{mode}"\n'
    write(root, CONFIG, f'[nvidia-container-cli]\nroot = "{driver_root}"\n{runtime}')
    for folder in ("run/nvidia/driver/dev", "opt/driver/dev"):
        shutil.copytree(root / "dev", root / folder)
    if mode == "cdi":
        (root / "dev/nvidiactl").unlink()
    (root / missing.lstrip("/")).unlink()
    assert_failed(gpu_checks(root).checks()[1], f"Missing device nodes: {missing}.")
    write(root, missing.lstrip("/"), "")
    (root / "run/nvidia/driver/dev/nvidia0").unlink()
    assert gpu_checks(root).devices().ok


def test_tegra_is_only_supported_with_its_gpu_on_the_pci_bus(root: Path) -> None:
    write(root, "proc/device-tree/compatible", "nvidia,tegra264\0")
    write(root, INFORMATION.format(1), "Model: \t\t NVIDIA Thor\n" + GPU.format(1, 0, "No"))
    assert_failed(gpu_checks(root).devices(), "part of a Tegra", "level: engine")
    write(root, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(root, "sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")
    assert gpu_checks(root).devices().ok
    (root / "dev/nvidia0").unlink()
    assert_failed(gpu_checks(root).devices(), "missing: /dev/nvidia0.")


def test_excluded_gpus_need_no_device_node(root: Path) -> None:
    write(root, INFORMATION.format(2), GPU.format(2, 1, "Yes"))
    (root / "dev/nvidia1").unlink()
    assert gpu_checks(root).devices().detail == "All device nodes exist. GPUs: 1."
    write(root, INFORMATION.format(1), GPU.format(1, 0, "Yes"))
    assert_failed(gpu_checks(root).devices(), "or only excluded ones")


def test_unreadable_information_is_not_checked(root: Path) -> None:
    write(root, INFORMATION.format(2), "")
    check = gpu_checks(root).devices()
    assert check.ok is None
    assert "the GPU does not answer the driver" in check.detail


def test_driver_without_gpus(root: Path) -> None:
    os.rename(root / "proc/driver/nvidia/gpus", root / "proc/driver/nvidia/x")
    assert_failed(gpu_checks(root).devices(), "the driver has found no GPU")


# -- the toolkit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "program", "missing", "detail"),
    [
        ("nvidia", PROGRAM, ["nvidia-container-runtime"], f"Missing programs: {PROGRAM}."),
        ("nvidia", None, ["nvidia-container-runtime"], f"Missing programs: {PROGRAM}."),
        ("nvidia", PROGRAM, ["nvidia-container-cli"], ""),
        ("nvidia", PROGRAM, ["nvidia-container-runtime-hook", "nvidia-ctk"], "runtime-hook, nvidia-ctk."),
        ("nvidia-legacy", PROGRAM, ["nvidia-container-cli"], "Missing programs: nvidia-container-cli."),
        ("x", PROGRAM + ".legacy", ["nvidia-container-runtime-hook"], "programs: nvidia-container-runtime-hook."),
        # A host with only the base package.
        ("nvidia", PROGRAM, ["nvidia-container-runtime-hook", "nvidia-container-cli"], ""),
        (
            "nvidia-legacy",
            PROGRAM,
            ["nvidia-container-runtime-hook", "nvidia-container-cli"],
            "Missing programs: nvidia-container-runtime-hook, nvidia-container-cli.",
        ),
        ("nvidia-cdi", PROGRAM, ["nvidia-ctk"], "Missing programs: nvidia-ctk or nvidia-cdi-hook."),
        ("nvidia-cdi", PROGRAM, ["nvidia-container-runtime-hook", "nvidia-container-cli"], ""),
    ],
)
def test_programs_by_mode(root: Path, name: str, program: str | None, missing: list[str], detail: str) -> None:
    for mode in (".legacy", ".cdi"):
        write(root, f"usr/bin/nvidia-container-runtime{mode}", "x")
    # The mode cdi can do with this program, but generated specifications call nvidia-ctk.
    write(root, "usr/bin/nvidia-cdi-hook", "x")
    if "or nvidia-cdi-hook" in detail:
        missing = [*missing, "nvidia-cdi-hook"]
    for file in missing:
        (root / "usr/bin" / file).unlink()
    check = gpu_checks(root, name, program).toolkit()
    assert check.ok is (not detail)
    if detail:
        assert_failed(check, detail, "nvidia-container-toolkit")


def test_toolkit_in_a_directory(root: Path) -> None:
    os.rename(root / "usr/bin", root / "usr/none")
    in_directory = gpu_checks(root, runtime_dir="/opt/toolkit", program=None)
    assert in_directory.toolkit().ok is False
    for name in ("nvidia-container-runtime", "nvidia-container-runtime.real", "nvidia-ctk"):
        write(root, f"opt/toolkit/{name}", "x")
    write(root, TOOLKIT_CONFIG, "x = ")
    for checks in (in_directory, gpu_checks(root, program="/opt/toolkit/nvidia-container-runtime")):
        assert checks.toolkit().ok
        assert_failed(checks.config(), f"/{TOOLKIT_CONFIG}, line 1")
    (root / "opt/toolkit/nvidia-container-runtime.real").unlink()
    assert_failed(in_directory.toolkit(), "Missing programs: /opt/toolkit/nvidia-container-runtime.real.")


def test_programs_at_the_paths_of_config_toml(root: Path) -> None:
    write(root, CONFIG, '[nvidia-container-cli]\npath = "/opt/nvidia/cli"\n')
    check = gpu_checks(root, "nvidia-legacy").toolkit()
    assert_failed(check, "Missing programs: /opt/nvidia/cli.")
    os.renames(root / "usr/bin/nvidia-container-cli", root / "opt/nvidia/cli")
    assert gpu_checks(root, "nvidia-legacy").toolkit().ok


@pytest.mark.parametrize(
    ("name", "program", "text", "mode"),
    [
        ("nvidia", PROGRAM, 'mode = "auto"', "auto"),
        ("nvidia", PROGRAM, 'mode = "cdi"', "cdi"),
        ("nvidia", PROGRAM, 'mode = "legacy"', "legacy"),
        ("nvidia", PROGRAM, 'mode = "jit-cdi"', "auto"),
        ("nvidia", PROGRAM, "mode = 1", "auto"),
        ("nvidia", PROGRAM, "=", "auto"),
        ("nvidia", PROGRAM + ".cdi", 'mode = "legacy"', "cdi"),
        ("nvidia-legacy", PROGRAM, 'mode = "cdi"', "legacy"),
        ("gpu-cdi", PROGRAM, 'mode = "auto"', "cdi"),
        ("nvidia", None, 'mode = "cdi"', "cdi"),
    ],
)
def test_mode(root: Path, name: str, program: str | None, text: str, mode: str) -> None:
    write(root, CONFIG, f"[nvidia-container-runtime]\n{text}\n")
    assert gpu_checks(root, name, program).mode() == mode


@pytest.mark.parametrize("text", ["", "nvidia-container-runtime = 5"])
def test_mode_without_a_section(root: Path, text: str) -> None:
    write(root, CONFIG, text)
    assert gpu_checks(root).mode() == "auto"


def test_missing_config_is_valid(root: Path) -> None:
    (root / CONFIG).unlink()
    check = gpu_checks(root).config()
    assert (check.name, check.ok, check.advice) == ("config.toml", True, "")
    assert check.detail.startswith(f"/{CONFIG} does not exist, ")


def test_invalid_config(root: Path) -> None:
    write(root, CONFIG, "[nvidia-container-runtime]\nmode = auto\n")
    check = gpu_checks(root).config()
    assert_failed(check, f"/{CONFIG}, line 2: ", "nvidia-ctk --quiet config")
    assert "nothing was changed" not in check.detail


def test_config_that_the_runtime_refuses(root: Path) -> None:
    write(root, CONFIG, '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n')
    assert_failed(gpu_checks(root).config(), f"/{CONFIG}: nvidia-container-cli.ldconfig", "Correct the file")


@pytest.mark.parametrize(
    ("text", "version", "program", "problem"),
    [
        ('[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n', "1.17.2", PROGRAM, ""),
        ('[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n', "1.17.3", PROGRAM, "ldconfig is"),
        ('[nvidia-container-runtime]\nmode = "cdii"\n', "1.19.0", PROGRAM, "mode is 'cdii'"),
        ('[nvidia-container-runtime]\nmode = ""\n', "1.19.0", PROGRAM, "mode is ''"),
        ('[nvidia-container-runtime]\nmode = "jit-cdi"\n', "1.17.8", PROGRAM, "mode is 'jit-cdi'"),
        ('[nvidia-container-runtime]\nmode = "jit-cdi"\n', "1.18.0", PROGRAM, ""),
        # This runtime has one mode only.
        ('[nvidia-container-runtime]\nmode = "cdii"\n', "1.19.0", f"{PROGRAM}.cdi", ""),
    ],
)
def test_config_of_a_version(root: Path, text: str, version: str, program: str, problem: str) -> None:
    def run(argv: t.Sequence[str]) -> tuple[int, str, str]:
        assert argv[-2:] == ["/usr/bin/nvidia-ctk", "--version"]
        return 0, f"NVIDIA Container Toolkit CLI version {version}\n", ""

    write(root, CONFIG, text)
    check = GpuChecks(HostFS(str(root)), "nvidia", program, None, run).config()
    assert (check.ok, problem in check.detail) == (not problem, True)
    # The programs of another user are not run.
    (root / "usr/bin").chmod(0o777)
    GpuChecks(HostFS(str(root)), "nvidia", program, None, lambda _argv: pytest.fail("It was run.")).config()


def test_unreadable_config(root: Path) -> None:
    (root / CONFIG).unlink()
    (root / CONFIG).mkdir()
    assert_failed(gpu_checks(root).config(), "is not a regular file")


def test_skips_config_without_a_parser(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> t.NoReturn:
        raise NvidiaError("The Python package tomlkit is needed.")

    monkeypatch.setattr(runtime_settings, "read", missing)
    check = gpu_checks(root).config()
    assert (check.name, check.ok) == ("config.toml", None)
    assert check.detail.startswith(f"/{CONFIG} ")
    assert check.detail.endswith(" The Python package tomlkit is needed.")


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
    return check_cdi(HostFS(str(root)), DIRECTORIES)


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


def test_a_link_without_target(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").symlink_to("/run/gone/nvidia.yaml")
    assert_failed(check_specs(tmp_path), "/etc/cdi/nvidia.yaml is a broken link.", "nvidia_cdi_spec")


def test_specification_of_another_driver(tmp_path: Path) -> None:
    write(tmp_path, "sys/module/nvidia/version", "590.1\n")
    assert_failed(check_specs(tmp_path, a=spec("0")), "It is for driver 580.1, but the driver is 590.1.")


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
    assert_failed(gpu_checks(root, "nvidia-cdi").cdi(), "No CDI specification in")
    write(root, "var/run/cdi/nvidia.yaml", spec("0", library=LIBRARY.replace("580.1", "580.95.05")))
    (check,) = gpu_checks(root, "nvidia-cdi").checks()[4:]
    assert files_in(check) == ["/var/run/cdi/nvidia.yaml"]


def test_reads_the_directories_of_config_toml(root: Path) -> None:
    write(root, "etc/cdi/nvidia.yaml", "[")
    write(root, "srv/cdi/nvidia.yaml", spec("0", library="/dev/nvidia0"))
    write(root, CONFIG, '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/srv/cdi/"]\n')
    assert gpu_checks(root, "nvidia-cdi").cdi().ok
    (root / "loop").symlink_to("loop")
    write(root, CONFIG, '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/loop/cdi"]\n')
    assert_failed(gpu_checks(root, "nvidia-cdi").cdi(), "too many symbolic links")


def test_refuses_too_large_specifications(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="are larger than 4 MiB in total"):
        check_specs(tmp_path, **{f"f{number}": spec("0") + " " * (CDI_SPEC_BYTES // 4) for number in range(5)})


def test_requests_a_yaml_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_import", lambda _name: None)
    monkeypatch.setattr(bundled, "_registered", {})
    write(tmp_path, "etc/cdi/a.yaml", "kind: nvidia.com/gpu\n")
    with pytest.raises(MissingPackageError, match="PyYAML") as caught:
        check_specs(tmp_path)
    assert caught.value.details == {"needed": "yaml"}
