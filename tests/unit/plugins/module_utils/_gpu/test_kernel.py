# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu.kernel import describe_kernel, unloaded_module
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.gpu_hosts import write

if t.TYPE_CHECKING:
    from pathlib import Path

OLD, RUNNING, NEW = "6.8.0-9-generic", "6.8.0-45-generic", "6.8.0-100-generic"
DKMS = "updates/dkms/nvidia.ko"
ENFORCE, LOCKDOWN = "sys/module/module/parameters/sig_enforce", "sys/kernel/security/lockdown"
KEY = "Ubuntu host Secure Boot Module Signature key"
OTHER_FILES = (
    "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko.zst: kernel/drivers/i2c/nvidia.ko\n"
    "updates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\nupdates/dkms/nvidia-current-drm.ko:\nkernel/nvidia-fs.ko:\n"
)


class Kernels(t.NamedTuple):
    """A host with kernels, of which RUNNING runs."""

    root: Path
    commands: list[list[str]]
    modinfo: tuple[int, str, str] = (127, "", "")

    def add(self, release: str, module: str | None = DKMS, image: bool = True) -> Kernels:
        entries = OTHER_FILES + (f"{module}: kernel/x.ko\n" if module else "")
        write(self.root, {f"lib/modules/{release}/modules.dep": entries})
        if image:
            write(self.root, {f"boot/vmlinuz-{release}": ""})
        return self

    def report(self, files: t.Mapping[str, str] | None = None) -> dict[str, t.Any]:
        write(self.root, {"proc/sys/kernel/osrelease": f"{RUNNING}\n", **(files or {})})
        return describe_kernel(HostFS(str(self.root)))

    def facts(self, files: t.Mapping[str, str] | None = None) -> list[str]:
        return list(unloaded_module(HostFS(str(self.root)), self.run, self.report(files)))

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv[2:])
        return self.modinfo


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels(tmp_path, [])


def test_report(kernels: Kernels) -> None:
    assert kernels.add(RUNNING).report() == {
        "release": RUNNING,
        "has_modules": True,
        "module": f"/lib/modules/{RUNNING}/{DKMS}",
        "next_release": None,
        "next_module": None,
    }
    assert kernels.commands == []


@pytest.mark.parametrize(
    "name",
    [
        "updates/dkms/nvidia.ko.zst", "extra/nvidia.ko.xz", "kernel/drivers/video/nvidia.ko", "nvidia.ko.gz",
        "weak-updates/nvidia/nvidia.ko", "updates/dkms/nvidia-current.ko.xz", "updates/dkms/nvidia-current-open.ko.xz",
        "updates/dkms/nvidia-tesla-535.ko", "updates/dkms/nvidia-legacy-390xx.ko",
    ],
)  # fmt: skip
def test_names_of_the_module(kernels: Kernels, name: str) -> None:
    assert kernels.add(RUNNING, name).report()["module"] == f"/lib/modules/{RUNNING}/{name}"


def test_an_absolute_path_in_the_list_of_modules(kernels: Kernels) -> None:
    write(kernels.root, {f"lib/modules/{RUNNING}/modules.dep": "/opt/drivers/nvidia.ko:\n"})
    assert kernels.report()["module"] == "/opt/drivers/nvidia.ko"


def test_other_modules_are_not_that_of_the_driver(kernels: Kernels) -> None:
    assert kernels.add(RUNNING, None).report()["module"] is None


# -- a module that is not loaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modinfo", "said"),
    [
        (
            (0, f"filename:       /x\nversion:        580.95.05\nsig_id:         PKCS#7\nsigner:         {KEY}\n", ""),
            f'prints version "580.95.05", sig_id "PKCS#7", signer "{KEY}".',
        ),
        ((0, "filename:       /x\nsigner:         \n", ""), "prints no signature."),
        ((1, "", "modinfo: ERROR: could not\nget modinfo\n"), "fails: modinfo: ERROR: could not get modinfo."),
    ],
)
def test_what_modinfo_says(kernels: Kernels, modinfo: tuple[int, str, str], said: str) -> None:
    host, path = kernels._replace(modinfo=modinfo).add(RUNNING), f"/lib/modules/{RUNNING}/{DKMS}"
    assert host.facts() == [f"modinfo {path} {said}"]
    assert host.commands == [["modinfo", path]]


def test_what_the_kernel_says_about_signatures(kernels: Kernels) -> None:
    facts = kernels.add(RUNNING).facts({ENFORCE: "N\n", LOCKDOWN: "none [integrity] confidentiality\n"})
    assert facts[1:] == [f'/{ENFORCE}: "N".', f'/{LOCKDOWN}: "none [integrity] confidentiality".']


def test_a_kernel_without_the_module(kernels: Kernels) -> None:
    # It is not known where a host without any kernel below /lib/modules has them.
    assert kernels.facts() == []
    assert kernels.add(OLD).facts() == [f"/lib/modules/{RUNNING}/modules.dep does not exist."]
    assert kernels.add(RUNNING, None).facts() == [f"/lib/modules/{RUNNING}/modules.dep has no module nvidia."]
    assert kernels.commands == []


# -- other kernels -------------------------------------------------------------------------------------------------


def test_next_kernel(kernels: Kernels) -> None:
    kernels.add(RUNNING).add(OLD).add(NEW, None).add("6.8.0-200-lowlatency").add("6.8.0-300-generic", image=False)
    found = kernels.report()
    # 100 is newer than 45 and 9. The others are of another flavor, or have no image to boot.
    assert (found["next_release"], found["next_module"]) == (NEW, None)
    kernels.add(NEW, f"{DKMS}.zst")
    assert kernels.report()["next_module"] == f"/lib/modules/{NEW}/{DKMS}.zst"


@pytest.mark.parametrize(
    ("running", "other", "is_next"),
    [
        ("6.1.0-18-amd64", "6.1.0-20-amd64", True),
        ("6.1.0-38-amd64", "6.12.41+deb13-amd64", True),
        ("6.1.0-18-cloud-amd64", "6.1.0-20-amd64", False),
        ("6.1.0-18-amd64", "6.1.0-20-rt-amd64", False),
        ("5.14.0-427.el9.x86_64", "5.14.0-503.11.1.el9_5.x86_64", True),
        # The first kernel of a minor release, and its update.
        ("4.18.0-553.el8_10.x86_64", "4.18.0-553.16.1.el8_10.x86_64", True),
        ("4.18.0-553.16.1.el8_10.x86_64", "4.18.0-553.el8_10.x86_64", False),
        ("3.10.0-1160.el7.x86_64", "3.10.0-1160.119.1.el7.x86_64", True),
        ("5.3.18-150300.59.93-default", "5.3.18-150300.59.106-default", True),
        ("5.14.0-503.11.1.el9_5.x86_64", "5.15.0-302.167.6.el9uek.x86_64", False),
        ("5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64+debug", False),
        ("6.10.1-arch1-1", "6.10.2-arch1-1", True),
        ("6.10.1-arch1-1", "6.10.2-zen1-1-zen", False),
    ],
)
def test_flavors(kernels: Kernels, running: str, other: str, is_next: bool) -> None:
    found = kernels.add(running).add(other, None).report({"proc/sys/kernel/osrelease": f"{running}\n"})
    assert found["next_release"] == (other if is_next else None)


def test_image_in_the_directory_of_the_modules(kernels: Kernels) -> None:
    kernels.add(RUNNING).add(NEW, None, image=False)
    write(kernels.root, {f"lib/modules/{NEW}/vmlinuz": ""})
    assert kernels.report()["next_release"] == NEW


def test_the_running_kernel_is_the_newest(kernels: Kernels) -> None:
    assert kernels.add(RUNNING).add(OLD, None).report()["next_release"] is None


def test_removed_modules(kernels: Kernels) -> None:
    # A host without any kernel below /lib/modules keeps them elsewhere.
    assert kernels.report()["has_modules"] is None
    found = kernels.add(NEW).report()
    assert (found["has_modules"], found["module"], found["next_release"]) == (False, None, NEW)
    # A system container with packages of kernels that it does not run.
    assert kernels.report({"run/systemd/container": "lxc"})["has_modules"] is None


def test_odd_directories(kernels: Kernels) -> None:
    for name in ("²", "9" * 250, "x", "6.8.0-45"):
        (kernels.root / "lib/modules" / name).mkdir(parents=True, exist_ok=True)
    assert kernels.add(RUNNING).report()["next_release"] is None
    write(kernels.root, {"proc/sys/kernel/osrelease": "\0\n"})
    assert describe_kernel(HostFS(str(kernels.root)))["module"] is None
