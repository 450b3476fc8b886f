# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One finding for each cause: consequences are merged into it, and so are items that need the same step."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import findings_of
from ansible_collections.gpufleet.nvidia.tests.unit.plugins.module_utils._audit.test_audit import (
    BARE,
    BROKEN_GPU,
    CONFIG_TOML,
    CVE,
    DOCKER_29,
    KERNEL,
    MIG,
    MITIGATED,
    NEWER,
    NO_CDI,
    NO_TOOLKIT,
    NODE,
    NVIDIA,
    SPEC,
    containerd,
    engine,
    gpu,
    healthy_host,
    problem,
    spec,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree


@pytest.fixture(name="host")
def _host(tree: Tree) -> HostFS:
    """A tree with only the toolkit's runtime."""
    tree.file(NVIDIA, b"", 0o755)
    return tree.host()


NO_DRIVER = {"present": True, "kind": "pci", "driver_version": None}
LOST_GPU = gpu(healthy=False, reasons=[problem("driver-library-differs", "Error 18.")])
BROKEN_FILE = problem("file-invalid", "/etc/docker/daemon.json, line 1: odd.")
NO_HOOK = {"stale": True, "missing_paths": ["/usr/bin/nvidia-cdi-hook"], "reasons": [problem("path-missing")]}
NO_PROGRAMS = engine(default_runtime="nvidia", runtimes={"nvidia": "/opt/gone", "kata": "/opt/kata"})


@pytest.mark.parametrize(
    ("parts", "expected", "consequences"),
    [
        # Without a driver, the specification is stale and the refresh fails.
        ({"engines": [DOCKER_29], "gpus": {"problems": [problem("gpu-without-driver")]}, "toolkit__gpu": NO_DRIVER,
          "cdi__files": [spec(stale=True, reasons=[problem("path-missing")])],
          "cdi__problems": [problem("cdi-refresh-failed")]},
         ["gpu-without-driver"],
         f"cdi-stale ({SPEC}); docker-needs-cdi (docker); cdi-refresh-failed (r.service)."),
        # The kernel refuses the module.
        ({"gpus": {"problems": [problem("gpu-without-driver")], "kernel": {**KERNEL, "signed": False}},
          "toolkit__gpu": NO_DRIVER, "cdi__files": [spec(stale=True, reasons=[problem("path-missing")])]},
         ["driver-module-unsigned"], f"cdi-stale ({SPEC}); gpu-without-driver (driver)."),
        ({"gpus": {"problems": [problem("gpu-driven-by-nouveau")],
                   "kernel": {**KERNEL, "module": None, "other_releases": [NEWER]}}, "toolkit__gpu": NO_DRIVER},
         ["driver-module-not-built"], "gpu-driven-by-nouveau (driver)."),
        # Another GPU has its driver, so the specification has another cause.
        ({"gpus__problems": [problem("gpu-without-driver")], "cdi__files": [spec(stale=True)]},
         ["cdi-stale", "gpu-without-driver"], ""),
        # An update of the driver without a restart.
        ({"gpus__problems": [problem("driver-modules-differ"), *LOST_GPU["reasons"], problem("x")],
          "gpus__devices": [LOST_GPU, {**LOST_GPU, "index": 1}], "cdi__files": [spec(stale=True)],
          "toolkit__reboot_required": True},
         ["driver-library-differs", "x"],
         f"cdi-stale ({SPEC}); driver-modules-differ (driver); gpu-unusable (gpu 0, gpu 1); reboot-required (host)."),
        # A file that cannot be read defines no runtime.
        ({"engines": [engine(problems=[BROKEN_FILE], runtimes={}, live=None, restart_required=True)], "cdi": NO_CDI},
         ["config-unreadable"], "gpus-not-configured (host); restart-pending (docker)."),
        # A broken file of one engine or of the toolkit does not explain findings about another engine.
        ({"engines": [engine(problems=[BROKEN_FILE, problem("x")]), containerd(restart_required=True)]},
         ["config-unreadable", "restart-pending", "x"], ""),
        ({"toolkit__problems": [problem("file-invalid")], "toolkit__known_cves": [CVE], "engines": [BARE],
          "cdi": NO_CDI},
         ["config-unreadable", "gpus-not-configured", "known-cve"], ""),
        # Programs of the toolkit, but no others.
        ({"engines": [NO_PROGRAMS], **NO_TOOLKIT}, ["runtime-program-missing", "toolkit-missing"],
         "default-runtime-program-missing (docker)."),
        ({"cdi__files": [spec(**NO_HOOK)], **NO_TOOLKIT}, ["toolkit-missing"], f"cdi-stale ({SPEC})."),
        ({"cdi__files": [spec(**{**NO_HOOK, "missing_paths": ["/usr/bin/nvidia-cdi-hook", "/dev/nvidia0"]})],
          **NO_TOOLKIT},
         ["cdi-stale", "toolkit-missing"], ""),
        # Docker lacks only a fresh specification.
        ({"engines": [DOCKER_29], "cdi__files": [spec(stale=True)]}, ["cdi-stale"], "docker-needs-cdi (docker)."),
        ({"cdi__problems": [problem("package-missing")], "cdi__files": [spec(valid=None)] * 2},
         ["files-not-read"], f"cdi-not-parsed ({SPEC})."),
        # One command creates all device nodes, and no GPU works without them.
        ({"gpus__missing_nodes": [NODE, {**NODE, "path": "/dev/nvidia-uvm"}],
          "gpus__devices": [gpu(healthy=False, reasons=[problem("node-unusable")])]},
         ["device-node-missing"], ""),
    ],
)  # fmt: skip
def test_findings_with_one_cause_are_one(
    host: HostFS, parts: dict[str, t.Any], expected: list[str], consequences: str
) -> None:
    found = findings_of(host, healthy_host(**copy.deepcopy(parts)))
    assert sorted(one["id"] for one in found) == expected
    assert "".join(one["text"].partition(" This also causes: ")[2] for one in found) == consequences


FOUR_HELD = {f"package-{number}": {"version": "1.19.1-1", "held": True} for number in range(4)}
OLD = [
    {"name": "CVE-2024-0132", "floor": "1.16.2", "about": "escape"},
    {"name": "CVE-2025-23266", "floor": "1.17.8", "about": "hook"},
    {"name": "CVE-2026-24260", "floor": "1.19.1", "about": "race"},
    {"name": "CVE-2025-23359", "floor": "1.17.4", "about": "bypass"},
]
LIBRARIES = [problem("path-missing", f"It mounts /usr/lib/{name}.") for name in ("a.so", "b.so")]
OFF_BUS = [gpu(index=number, healthy=False, reasons=[problem("gpu-off-bus", f"/sys/{number} is gone.")])
           for number in range(3)]  # fmt: skip
MIG_PART = {**MIG, "reasons": [problem("mig-busy")]}
SOURCES = [{"path": f"/etc/apt/{name}.list", "line": None, "address": None} for name in "ab"]
ENTRIES = [{"path": "/etc/apt/c.list", "line": number, "address": "nvidia.github.io/x"} for number in (3, 9)]
USERS = [engine(target=f"docker/rootless/{user}", user=user, flavor="rootless", inspected=False, runtimes={}, live=None)
         for user in ("ada", "bob")]  # fmt: skip
LOST = {name: f"/opt/{name}" for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")}


@pytest.mark.parametrize(
    ("parts", "name", "subjects"),
    [
        ({"toolkit__packages": FOUR_HELD}, "package-held", ["toolkit"]),
        ({"toolkit__packages": {"nvidia-docker2": {"version": "2.13"}, "nvidia-container-runtime": {"version": "3"}}},
         "obsolete-package", ["toolkit"]),
        ({"toolkit__known_cves": OLD}, "known-cve", ["toolkit"]),
        ({"toolkit__version_mismatches": ["A is 1.", "B is 2."]}, "toolkit-version-mismatch", ["toolkit"]),
        ({"toolkit__unsafe_settings": ["a is true.", "b is true."]}, "unsafe-setting", [CONFIG_TOML]),
        ({"toolkit__problems": [problem("setting-invalid", "a."), problem("setting-invalid", "b.")]},
         "setting-invalid", ["toolkit"]),
        # What can be removed as a whole, and what must be edited, are different steps.
        ({"toolkit__conflicting_sources": [*SOURCES, *ENTRIES]}, "conflicting-source",
         ["/etc/apt/a.list, /etc/apt/b.list", "/etc/apt/c.list"]),
        ({"gpus__devices": OFF_BUS}, "gpu-unusable", ["gpu 0, gpu 1, gpu 2"]),
        ({"gpus__devices": [gpu(index=number, mig_enabled=True) for number in (0, 1)]},
         "mig-without-devices", ["gpu 0, gpu 1"]),
        ({"gpus__devices": [gpu(mig_enabled=True, mig_devices=[MIG_PART, {**MIG_PART, "index": 2}])]},
         "mig-unusable", ["gpu 0, MIG 1, gpu 0, MIG 2"]),
        ({"cdi__files": [spec(), *(spec(path=f"/etc/cdi/{name}", valid=False) for name in "ab")]},
         "cdi-invalid", ["/etc/cdi/a, /etc/cdi/b"]),
        ({"cdi__files": [spec(path=f"/etc/cdi/{name}", stale=True, reasons=LIBRARIES[:1]) for name in "ab"]},
         "cdi-stale", ["/etc/cdi/a, /etc/cdi/b"]),
        ({"cdi__files": [spec(path=f"/etc/cdi/{name}", valid=None) for name in "ab"]},
         "cdi-not-parsed", ["/etc/cdi/a, /etc/cdi/b"]),
        ({"cdi__files": [spec(path=f"/etc/cdi/{name}", warnings=["has x", "has y"]) for name in "ab"]},
         "cdi-unusual-content", ["/etc/cdi/a, /etc/cdi/b"]),
        ({"engines": [engine(version="25.0.3"), containerd(version="1.7.3")],
          "cdi__files": [spec(cdi_version="1.0.0")]},
         "cdi-too-new", ["docker, containerd"]),
        ({"engines": [engine(), containerd()], "cdi__devices": {"nvidia.com/gpu=0": "/opt/cdi/a.yaml"}},
         "cdi-directory-not-read", ["docker, containerd"]),
        ({"cdi__refresh": None, "cdi__devices": {"nvidia.com/gpu=0": SPEC, "nvidia.com/gpu=1": "/run/cdi/a.json"}},
         "cdi-refresh-missing", [f"/run/cdi/a.json, {SPEC}"]),
        ({"engines": [engine(), *USERS]}, "not-inspected", ["docker/rootless/ada, docker/rootless/bob"]),
        ({"engines": [engine(runtimes=LOST, default_runtime="runc")]}, "runtime-program-missing", ["docker"]),
        ({"engines": [engine(problems=[problem("key-duplicated", "a."), problem("key-duplicated", "b.")])]},
         "key-duplicated", ["docker"]),
        # Each engine has files and a daemon of its own.
        ({"engines": [engine(restart_required=True), containerd(restart_required=True)]},
         "restart-pending", ["containerd", "docker"]),
    ],
)  # fmt: skip
def test_one_finding_for_items_with_one_step(
    host: HostFS, parts: dict[str, t.Any], name: str, subjects: list[str]
) -> None:
    found = [one for one in findings_of(host, healthy_host(**copy.deepcopy(parts))) if one["id"] == name]
    assert [one["subject"] for one in found] == subjects


def test_one_version_fixes_all_vulnerabilities(host: HostFS) -> None:
    (found,) = findings_of(host, healthy_host(toolkit__known_cves=OLD, toolkit__version="1.15.0"))
    assert found["severity"] == "critical"
    assert "1.15.0 has 4 known vulnerabilities: CVE-2024-0132 (escape), CVE" in found["text"]
    assert found["advice"] == (
        "Install 1.19.1 or newer (fixes CVE-2024-0132, CVE-2025-23266, CVE-2026-24260, CVE-2025-23359). Run"
        " gpufleet.nvidia.site with nvidia_toolkit_version: 1.19.1."
    )
    # One of them is mitigated, and then all of them.
    settings = {"toolkit__settings": MITIGATED}
    (found,) = findings_of(host, healthy_host(toolkit__known_cves=OLD, **settings))
    assert found["severity"] == "critical"
    (found,) = findings_of(host, healthy_host(toolkit__known_cves=OLD[1:2], **settings))
    assert found["severity"] == "warning"
    # An update of held packages would fail, and a vulnerability may be fixed in no known version.
    held = healthy_host(toolkit__known_cves=[*OLD, {"name": "CVE-X"}], toolkit__packages=FOUR_HELD)
    advice = next(one["advice"] for one in findings_of(host, held) if one["id"] == "known-cve")
    assert advice.endswith("nvidia_toolkit_version: latest and nvidia_toolkit_hold: false.")


def test_missing_nodes_are_one_finding(host: HostFS) -> None:
    nodes = [
        {"path": f"/dev/{name}", "advice": "Make it."} for name in ("nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl")
    ]
    (found,) = findings_of(host, healthy_host(gpus__missing_nodes=nodes))
    assert (found["severity"], found["subject"]) == ("critical", "/dev/nvidia0")
    assert found["advice"] == "Run nvidia-smi, nvidia-modprobe -u -c 0 and nvidia-modprobe -c 255 as root."


def test_held_packages_are_grouped_by_version(host: HostFS) -> None:
    packages = {**FOUR_HELD, "other": {"version": "1.18.0-1", "held": True}}
    (found,) = findings_of(host, healthy_host(toolkit__packages=packages))
    assert "package-0, package-1, package-2, package-3 1.19.1-1; other 1.18.0-1" in found["text"]


def test_gpus_with_the_same_reasons_are_one_finding(host: HostFS) -> None:
    mig = [{**MIG, "index": number} for number in range(7)]
    broken = [{**BROKEN_GPU, "index": number} for number in range(7)]
    parts = healthy_host(gpus__devices=[*broken, gpu(index=7, mig_enabled=True, mig_devices=mig)])
    assert [(one["id"], one["subject"]) for one in findings_of(host, parts)] == [
        ("gpu-unusable", "gpu 0, gpu 1, gpu 2, gpu 3, gpu 4 and 2 more"),
        ("mig-without-capability", "gpu 7, MIG 0, gpu 7, MIG 1, gpu 7, MIG 2, gpu 7, MIG 3, gpu 7, MIG 4 and 2 more"),
    ]
