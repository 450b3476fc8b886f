# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One finding for each cause: consequences are merged into it, and so are items that need the same step."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import findings_of
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import kubernetes_reports
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.audit_causes import FOUR_HELD, OLD, ONE_CAUSE, ONE_STEP
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.audit_reports import (
    BROKEN_GPU,
    MIG,
    MITIGATED,
    NO_TOOLKIT,
    NVIDIA,
    OTHER_TOOLKIT,
    engine,
    gpu,
    healthy_host,
    problem,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree


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
    nodes = [
        {"path": f"/dev/{name}", "advice": "Make it."} for name in ("nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl")
    ]
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
        nodes = [{"path": f"{root}/dev/{name}", "advice": "Make it."}]
        (found,) = findings_of(host, healthy_host(gpus__missing_nodes=nodes))
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
