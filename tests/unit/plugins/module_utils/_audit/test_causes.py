# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One finding for each cause: consequences are merged into it, and so are items that need the same step."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import findings_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import kubernetes_reports
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.audit_reports import (
    BARE,
    BROKEN_GPU,
    CVE,
    DOCKER_29,
    MIG,
    MITIGATED,
    NO_CDI,
    NO_TOOLKIT,
    NVIDIA,
    OTHER_TOOLKIT,
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


NO_DRIVER = {"present": True, "kind": "pci", "driver_version": None}
UNDESCRIBED = {"gpus": {"problems": [problem("driver-not-loaded")]}, "toolkit__gpu": NO_DRIVER,
               "cdi__files": [], "cdi__devices": {}, "cdi__refresh": {"enabled": False}}  # fmt: skip
PODMAN = engine(engine="podman", target="podman", selected=True, runtimes={}, live=None)
LOST_GPU = gpu(healthy=False, reasons=[problem("driver-version-differs", "Error 18.")])
BROKEN_FILE = problem("file-invalid", "/etc/docker/daemon.json, line 1: odd.")
NO_HOOK = {"stale": True, "missing_paths": ["/usr/bin/nvidia-cdi-hook"], "reasons": [problem("path-missing")]}
NO_PROGRAMS = engine(default_runtime="nvidia", runtimes={"nvidia": "/opt/gone", "kata": "/opt/kata"})
# The changed parts, the ids of the findings, and the consequences that their texts list.
ONE_CAUSE: list[tuple[dict[str, t.Any], list[str], str]] = [
    # Without a driver, the specification is stale and the refresh fails.
    ({"engines": [DOCKER_29], "gpus": {"problems": [problem("driver-not-loaded")]}, "toolkit__gpu": NO_DRIVER,
      "cdi__files": [spec(stale=True, reasons=[problem("path-missing")])],
      "cdi__problems": [problem("cdi-refresh-failed")]},
     ["driver-not-loaded"],
     f"cdi-stale ({SPEC}); docker-needs-cdi (docker); cdi-refresh-failed (r.service)."),
    # Podman needs only a specification, which needs the driver. Docker is not selected.
    ({"engines": [PODMAN, engine(selected=False, runtimes={}, live=None)], **UNDESCRIBED},
     ["driver-not-loaded"], "gpus-not-configured (host)."),
    # The refresh unit writes the specification when the driver is loaded.
    ({"engines": [BARE], **UNDESCRIBED, "cdi__refresh": {"enabled": True}},
     ["driver-not-loaded"], "gpus-not-configured (host)."),
    # Without it, and for an engine that registers runtimes, the driver is only one of two causes.
    ({"engines": [BARE], **UNDESCRIBED}, ["driver-not-loaded", "gpus-not-configured"], ""),
    # Another GPU has its driver, so the specification has another cause.
    ({"gpus__problems": [problem("driver-not-loaded")], "cdi__files": [spec(stale=True)]},
     ["cdi-stale", "driver-not-loaded"], ""),
    # An update of the driver without a restart.
    ({"gpus__problems": [problem("driver-version-differs"), *LOST_GPU["reasons"], problem("x")],
      "gpus__devices": [LOST_GPU, {**LOST_GPU, "index": 1}], "cdi__files": [spec(stale=True)],
      "toolkit__reboot_required": True},
     ["driver-version-differs", "x"],
     f"cdi-stale ({SPEC}); gpu-unusable (gpu 0, gpu 1); reboot-required (host)."),
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
    ({"engines": [NO_PROGRAMS], **NO_TOOLKIT}, ["runtime-missing", "toolkit-missing"],
     "runtime-missing (docker)."),
    ({"cdi__files": [spec(**NO_HOOK)], **NO_TOOLKIT}, ["toolkit-missing"], f"cdi-stale ({SPEC})."),
    ({"cdi__files": [spec(**{**NO_HOOK, "missing_paths": ["/usr/bin/nvidia-cdi-hook", "/dev/nvidia0"]})],
      **NO_TOOLKIT},
     ["cdi-stale", "toolkit-missing"], ""),
    # Docker lacks only a fresh specification.
    ({"engines": [DOCKER_29], "cdi__files": [spec(stale=True)]}, ["cdi-stale"], "docker-needs-cdi (docker)."),
    # A file of another kind has another step.
    ({"engines": [DOCKER_29], "cdi__files": [spec(kind="vendor.com/net", valid=False, stale=None)], "cdi__devices": {}},
     ["cdi-invalid", "docker-needs-cdi"], ""),
    # One command creates all device nodes, and no GPU works without them.
    ({"gpus__missing_nodes": ["/dev/nvidiactl", "/dev/nvidia-uvm"],
      "gpus__devices": [gpu(healthy=False, reasons=[problem("node-unusable", "/dev/nvidiactl does not exist.")])]},
     ["device-node-missing"], ""),
    # A command that creates missing nodes does not correct another one.
    ({"gpus__missing_nodes": ["/dev/nvidia-uvm-tools"],
      "gpus__devices": [gpu(healthy=False, reasons=[problem("node-unusable", "/dev/nvidia0 has the minor 5.")])]},
     ["device-node-missing", "gpu-unusable"], ""),
]  # fmt: skip
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
# The changed parts, the id of the finding, and its subjects.
ONE_STEP: list[tuple[dict[str, t.Any], str, list[str]]] = [
    ({"toolkit__packages": FOUR_HELD}, "package-held", ["toolkit"]),
    ({"toolkit__packages": {"nvidia-docker2": {"version": "2.13"}, "nvidia-container-runtime": {"version": "3"}}},
     "obsolete-package", ["toolkit"]),
    ({"toolkit__known_cves": OLD}, "known-cve", ["toolkit"]),
    ({"toolkit__version_mismatches": ["A is 1.", "B is 2."]}, "toolkit-inconsistent", ["toolkit"]),
    ({"toolkit__unsafe_settings": ["a is true.", "b is true."]}, "unsafe-setting", [CONFIG_FILE]),
    ({"toolkit__problems": [problem("setting-invalid", "a."), problem("setting-invalid", "b.")]},
     "setting-invalid", ["toolkit"]),
    # What can be removed as a whole, and what must be edited, are different steps.
    ({"toolkit__conflicting_sources": [*SOURCES, *ENTRIES]}, "conflicting-source",
     ["/etc/apt/a.list, /etc/apt/b.list", "/etc/apt/c.list"]),
    ({"gpus__devices": OFF_BUS}, "gpu-unusable", ["gpu 0, gpu 1, gpu 2"]),
    # The MIG device has no other reason than its GPU.
    ({"gpus__devices": [{**OFF_BUS[0], "mig_devices": [{**MIG, "reasons": OFF_BUS[0]["reasons"]}]}]},
     "gpu-unusable", ["gpu 0"]),
    ({"gpus__devices": [gpu(index=number, mig_enabled=True) for number in (0, 1)]},
     "mig-without-devices", ["gpu 0, gpu 1"]),
    ({"gpus__devices": [gpu(mig_enabled=True, mig_devices=[MIG_PART, {**MIG_PART, "index": 2}])]},
     "gpu-unusable", ["gpu 0, MIG 1, gpu 0, MIG 2"]),
    ({"cdi__files": [spec(), *(spec(path=f"/etc/cdi/{name}", valid=False) for name in "ab")]},
     "cdi-invalid", ["/etc/cdi/a, /etc/cdi/b"]),
    ({"cdi__files": [spec(path=f"/etc/cdi/{name}", stale=True, reasons=LIBRARIES[:1]) for name in "ab"]},
     "cdi-stale", ["/etc/cdi/a, /etc/cdi/b"]),
    ({"cdi__files": [spec(path=f"/etc/cdi/{name}", warnings=["has x", "has y"]) for name in "ab"]},
     "cdi-unusual-content", ["/etc/cdi/a, /etc/cdi/b"]),
    ({"engines": [engine(version="25.0.3"), containerd(version="1.7.3")],
      "cdi__files": [spec(cdi_version="1.0.0")]},
     "cdi-unsupported", ["docker, containerd"]),
    ({"engines": [engine(), containerd()], "cdi__devices": {"nvidia.com/gpu=0": "/opt/cdi/a.yaml"}},
     "cdi-directory-not-read", ["docker, containerd"]),
    ({"cdi__refresh": None, "cdi__devices": {"nvidia.com/gpu=0": SPEC, "nvidia.com/gpu=1": "/run/cdi/a.json"}},
     "cdi-refresh-missing", [f"/run/cdi/a.json, {SPEC}"]),
    ({"engines": [engine(), *USERS]}, "not-inspected", ["docker/rootless/ada, docker/rootless/bob"]),
    ({"engines": [engine(runtimes=LOST, default_runtime="runc")]}, "runtime-missing", ["docker"]),
    ({"engines": [engine(problems=[problem("setting-defined-twice", "a."), problem("setting-defined-twice", "b.")])]},
     "setting-defined-twice", ["docker"]),
    # Each engine has files and a daemon of its own.
    ({"engines": [engine(restart_required=True), containerd(restart_required=True)]},
     "restart-pending", ["containerd", "docker"]),
]  # fmt: skip


@pytest.fixture(name="host")
def _host(tree: Tree) -> HostFS:
    """A tree with only the toolkit's runtime."""
    tree.file(NVIDIA, b"", 0o755)
    return tree.host()


@pytest.mark.parametrize(("parts", "expected", "consequences"), ONE_CAUSE)
def test_findings_with_one_cause_are_one(
    host: HostFS, parts: dict[str, t.Any], expected: list[str], consequences: str
) -> None:
    found = findings_of(host, healthy_host(**copy.deepcopy(parts)))
    assert sorted(one["id"] for one in found) == expected
    assert "".join(one["text"].partition(" This also causes: ")[2] for one in found) == consequences


def test_a_missing_runtime_of_another_vendor_is_no_cause(host: HostFS) -> None:
    runtimes = {"nvidia": NVIDIA, "kata": "/opt/kata/bin/kata-runtime"}
    engines = [kubernetes_reports.containerd(runtimes=runtimes)]
    found = findings_of(host, kubernetes_reports.parts(engines=engines, **kubernetes_reports.FAILING))
    assert {one["id"] for one in found} >= {"runtime-missing", "device-plugin-not-serving"}


@pytest.mark.parametrize(("parts", "name", "subjects"), ONE_STEP)
def test_one_finding_for_items_with_one_step(
    host: HostFS, parts: dict[str, t.Any], name: str, subjects: list[str]
) -> None:
    found = [one for one in findings_of(host, healthy_host(**copy.deepcopy(parts))) if one["id"] == name]
    assert [one["subject"] for one in found] == subjects


def test_one_version_fixes_all_vulnerabilities(host: HostFS) -> None:
    (found,) = findings_of(host, healthy_host(toolkit__known_cves=OLD, toolkit__version="1.15.0"))
    assert found["severity"] == "critical"
    assert "1.15.0 has 4 known vulnerabilities: CVE-2024-0132 (escape), CVE" in found["text"]
    assert " 1.19.1 or newer (fixes CVE-2024-0132, CVE-2025-23266, CVE-2026-24260, CVE-2025-23359). " in found["advice"]
    assert found["advice"].endswith(" nvidia_toolkit_version: 1.19.1.")
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
    nodes = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidiactl"]
    (found,) = findings_of(host, healthy_host(gpus__missing_nodes=nodes))
    assert (found["severity"], found["subject"]) == ("critical", "/dev/nvidia0")
    assert " nvidia-smi, nvidia-modprobe -u -c 0 and nvidia-modprobe -c 255 " in found["advice"]


def test_a_toolkit_in_another_directory_is_not_missing(host: HostFS) -> None:
    other = {**OTHER_TOOLKIT, "programs": {"nvidia-ctk": {"path": "/opt/nvidia-ctk", "version": "1.19.1"}}}
    parts = healthy_host(toolkit__other_toolkits=[other], **NO_TOOLKIT)
    assert "toolkit-missing" not in [one["id"] for one in findings_of(host, parts)]


def test_missing_nodes_of_a_driver_container(host: HostFS) -> None:
    root = "/run/nvidia/driver"
    for name, severity, command in (
        ("nvidia0", "critical", "nvidia-smi"),
        ("nvidia-uvm", "critical", "nvidia-modprobe -u -c 0"),
        ("nvidia-modeset", "warning", "nvidia-modprobe -m"),
    ):
        (found,) = findings_of(host, healthy_host(gpus__missing_nodes=[f"{root}/dev/{name}"]))
        assert (found["severity"], found["advice"]) == (severity, f"Run chroot {root} {command} as root.")


def test_only_integrated_gpus_do_not_need_uvm(host: HostFS) -> None:
    def found(*models: str) -> list[str]:
        devices = [gpu(index=index, model=model) for index, model in enumerate(models)]
        parts = healthy_host(gpus__modules={"nvidia": {}}, gpus__devices=devices)
        return [one["id"] for one in findings_of(host, parts)]

    assert found() == found("Orin (nvgpu)") == []
    assert found("Orin (nvgpu)", "NVIDIA RTX 6000") == ["uvm-not-loaded"]


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
        ("device-node-missing", "gpu 7, MIG 0, gpu 7, MIG 1, gpu 7, MIG 2, gpu 7, MIG 3, gpu 7, MIG 4 and 2 more"),
    ]


def test_engines_that_the_variables_do_not_select(host: HostFS) -> None:
    docker = engine(missed_toolkit=True)
    (found,) = findings_of(host, healthy_host(engines=[{**docker, "selected": True}]))
    assert (found["severity"], found["advice"]) == ("warning", "Run gpufleet.nvidia.site, which restarts it.")
    assert findings_of(host, healthy_host(engines=[docker])) == [found]
    (found,) = findings_of(host, healthy_host(engines=[{**docker, "selected": False}]))
    assert (found["severity"], found["id"]) == ("info", "restart-pending")
    assert found["advice"].startswith("No playbook changes this engine, because nvidia_runtime_engines and")
    assert found["advice"].endswith(" Otherwise select it first. Run gpufleet.nvidia.site, which restarts it.")
    # Only a play of the user changes the engine of a user.
    (found,) = findings_of(host, healthy_host(engines=[{**docker, "user": "alice", "selected": True}]))
    assert (found["severity"], found["advice"][:24]) == ("warning", "Run a play of this user ")
    # site installs the toolkit and writes the specification whatever engines it configures.
    parts = healthy_host(engines=[engine(selected=False, runtimes={"x": "/opt/nvidia-container-runtime"})])
    (found,) = findings_of(host, parts)
    assert (found["severity"], found["advice"][:14]) == ("warning", "Run gpufleet.n")


@pytest.mark.parametrize(
    ("selected", "reason"),
    [
        ([True, True], "no engine has the NVIDIA runtime, and no CDI specification has GPUs."),
        ([True, False], "no CDI specification has GPUs."),
    ],
)
def test_podman_needs_no_runtime(host: HostFS, selected: list[bool], reason: str) -> None:
    names = ("podman", "docker")
    engines = [
        engine(engine=name, target=name, selected=is_selected, runtimes={}, live=None)
        for name, is_selected in zip(names, selected)
    ]
    (found,) = findings_of(host, healthy_host(engines=engines, cdi__files=[], cdi__devices={}))
    assert found["text"].endswith(f"no container can use the GPU: {reason}")
    assert ("registers the runtime" in found["advice"]) is all(selected)


def test_no_device_plugin_works_without_a_driver(host: HostFS) -> None:
    parts = kubernetes_reports.parts(**kubernetes_reports.FAILING)
    assert "device-plugin-not-serving" in {one["id"] for one in findings_of(host, parts)}
    parts["gpus"].update(driver_version=None, devices=[], problems=[problem("driver-not-loaded")])
    found = findings_of(host, {**parts, "toolkit": {"gpu": {"present": True}}})
    assert [one["id"] for one in found if one["id"].startswith("d")] == ["driver-not-loaded"]
    assert "device-plugin-not-serving (" in found[0]["text"]
