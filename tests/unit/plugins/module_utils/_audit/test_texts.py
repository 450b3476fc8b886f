# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the texts of all findings: those of every case of the other tests, with every id that docs/audit.md lists."""

from __future__ import annotations

import copy
import json
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import findings_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.host_info import describe_host
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.hosts.fixtures import audit_fleet, audit_results
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import audit_causes, audit_reports, foreign_files, leftovers
from ansible_collections.gpufleet.nvidia.tests.unit.helpers import kubernetes_reports as kubernetes
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

ROOT = Path(__file__).parents[5]
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
A, B, M1, MIG = kubernetes.A, kubernetes.B, kubernetes.M1, kubernetes.MIG
NODE = kubernetes.parts
BARE = kubernetes.containerd("runc", nvidia=False)
DEAD = [kubernetes.socket(listens=False, answers=False)]
MIGS = [kubernetes.resource(MIG, (), recorded=[M1]), kubernetes.resource(devices=(), recorded=[A, B])]

# A container of a pod that was started with another runtime.
WITHOUT_RUNTIME = kubernetes.resource(held=(A,))
WITHOUT_RUNTIME["held"][0]["program"] = "/usr/bin/runc"

NODES: list[dict[str, t.Any]] = [
    NODE(running=False, pid=None),
    NODE(running=False, cpu_manager={"policy": "static", "last_policy": "none"}),
    NODE(engine=None, cri_endpoint="unix:///run/isulad.sock"),
    NODE(engines=[kubernetes.containerd(engine="docker", target="docker"), BARE]),
    NODE(engines=[kubernetes.containerd("runc")], **kubernetes.FAILING),
    NODE(**kubernetes.NOTHING),
    NODE(**kubernetes.FAILING),
    NODE(device_plugins=DEAD),
    NODE(**{**kubernetes.NOTHING, "dra_drivers": [kubernetes.driver(False, False)]}),
    NODE(resources=MIGS, device_plugins=[]),
    NODE(plugin_processes=[kubernetes.process(41), kubernetes.process(42)]),
    NODE(dra_drivers=[kubernetes.driver(True)]),
    NODE(resources=[kubernetes.resource(), kubernetes.resource("example.com/gpu", (B,))]),
    NODE(plugin_processes=[kubernetes.process(before=True)]),
    NODE(resources=[kubernetes.resource(devices=(A,))]),
    NODE(resources=[kubernetes.resource(devices=(A,), held=(A, B))]),
    NODE(resources=[kubernetes.resource(devices=(), recorded=[])]),
    NODE(gpus=kubernetes.gpus(kubernetes.gpu(A, M1), kubernetes.gpu(B)), resources=[kubernetes.resource()]),
    NODE(**kubernetes.FAILING, plugin_logs=[kubernetes.log(7)]),
    NODE(**kubernetes.FAILING, plugin_logs=[kubernetes.log(7, "/usr/bin/runc")]),
    *(
        NODE(engines=[kubernetes.containerd(default)], resources=[WITHOUT_RUNTIME], device_list_strategies=["envvar"])
        for default in ("nvidia", "runc")
    ),
    NODE(
        gpus=kubernetes.gpus(kubernetes.gpu(A, M1)),
        resources=[kubernetes.resource(MIG, (M1,)), kubernetes.resource(devices=(), recorded=None, held=(A,))],
    ),
    NODE(problems=[{"code": "kubelet-not-responding", "message": "The kubelet does not answer on /x: No."}]),
]
# Several files or items of one kind.
SEVERAL: list[dict[str, str | None]] = [
    {leftovers.HOOK: leftovers.HOOK_FILE, leftovers.OWN_HOOK: leftovers.HOOK_FILE, **foreign_files.PODMAN},
]


REPORTS: list[dict[str, t.Any]] = [
    *(
        audit_reports.healthy_host(**copy.deepcopy(case))
        for case in [
            *(parts for parts, *_expected in audit_reports.CASES),
            *(parts for parts, *_expected in audit_causes.ONE_CAUSE),
            *(parts for parts, *_expected in audit_causes.ONE_STEP),
        ]
    ),
    *NODES,
    *(
        NODE(engines=[engine], device_list_strategies=strategies)
        for strategies, engine, _expected in kubernetes.STRATEGIES
    ),
]


def findings_of_unread(root: Path, case: tuple[t.Any, ...]) -> list[dict[str, str]]:
    """Return the findings of one case of audit_reports.UNREAD."""
    reader, paths, expected = case
    host = audit_reports.host_with_specifications(root, paths)
    return findings_of(host, audit_reports.parts_with_specifications(reader, expected))


TREES = [*(files for files, *_expected in foreign_files.CASES), *SEVERAL]


def problems_of(finding: t.Mapping[str, str]) -> list[str]:
    """Return what is wrong with the texts of a finding."""
    text, advice = finding["text"], finding["advice"]
    whole = f"{text} {advice}"
    paths = re.findall(r"(?<![\w/.])/[\w.+-]+(?:/[\w.+@:=-]*[\w-])+", whole.partition(" This also causes: ")[0])
    return [
        *(f"{path} is there twice" for path in set(paths) if paths.count(path) > 1),
        *(f"the module {name} is named" for name in MODULES if re.search(rf"\b{name}\b(?!:)", whole)),
        *(f"{found!r} is in it" for found in re.findall(r"[.,;:]\s*[.,;:]|[.;]\s*,|  ", whole.replace("...", ""))),
        *(["it claims that nothing was changed"] if re.search("nothing was changed", whole, re.IGNORECASE) else []),
        *(["the advice points to the message"] if re.search(r"\bthe (message|text)\b", advice) else []),
        *(["modprobe is advised twice"] if whole.count("modprobe nvidia") > 1 else []),
        *(["the text is no sentence"] if not text.endswith((".", ")")) else []),
        *(["the advice is no sentence"] if not advice.endswith(".") else []),
    ]


@pytest.fixture
def empty(tree: Tree) -> HostFS:
    tree.file(audit_reports.NVIDIA, b"", 0o755)
    return tree.host()


@pytest.mark.parametrize("parts", REPORTS)
def test_texts_of_reports(empty: HostFS, parts: dict[str, t.Any]) -> None:
    assert {one["id"]: problems_of(one) for one in findings_of(empty, parts) if problems_of(one)} == {}


@pytest.mark.parametrize("case", audit_reports.UNREAD)
def test_texts_about_unread_files(tmp_path: Path, case: tuple[t.Any, ...]) -> None:
    found = findings_of_unread(tmp_path, case)
    assert {one["id"]: problems_of(one) for one in found if problems_of(one)} == {}


DPKG = audit_fleet.PACKAGE.format("nvidia-container-toolkit", "1.19.1").replace("ok installed", "ok half-configured")
SPECIFICATION = audit_fleet.SPECIFICATION
# Files that cannot be read or used, as the packages of the collection read them.
BROKEN: list[dict[str, str]] = [
    {"etc/docker/daemon.json": '{"runtimes": ', "usr/bin/dockerd": ""},
    {"etc/docker/daemon.json": '{"runtimes": {}, "runtimes": {}}', "usr/bin/dockerd": ""},
    {"etc/containerd/config.toml": "version = \n", "usr/bin/containerd": ""},
    {"etc/crio/crio.conf.d/10-x.conf": "[crio", "usr/bin/crio": ""},
    {"etc/nvidia-container-runtime/config.toml": "[", "usr/bin/nvidia-ctk": ""},
    {"etc/nvidia-container-runtime/config.toml": "[nvidia-container-cli]\nno-cgroups = 1\nldcache = 2\n"},
    {"etc/cdi/nvidia.json": "{", "etc/cdi/b.json": '{"cdiVersion": "9.9.9", "kind": "nvidia.com/gpu", "devices": []}'},
    {"etc/cdi/nvidia.json": json.dumps(audit_fleet.STALE_SPECIFICATION), "etc/cdi/b.json": json.dumps(SPECIFICATION)},
    {f"etc/cdi/{name}.json": json.dumps(audit_fleet.STALE_SPECIFICATION) for name in "ab"},
    {"etc/os-release": "ID=debian\n", "var/lib/dpkg/status": DPKG},
    {"etc/systemd/system/docker.service": "[Service]\nExecStart=/usr/bin/env dockerd\n", "usr/bin/dockerd": ""},
]


@pytest.mark.parametrize("kind", [*audit_fleet.KINDS, *(audit_fleet.Kind("broken", files) for files in BROKEN)])
def test_texts_about_hosts(tmp_path: Path, kind: audit_fleet.Kind) -> None:
    audit_fleet.make_tree(tmp_path, kind)
    live = bool(kind.variables.get("nvidia_runtime_host_root_live"))
    report = describe_host(HostFS.of(str(tmp_path), live=live), audit_results.no_command)
    assert {one["id"]: [one, *problems_of(one)] for one in report["findings"] if problems_of(one)} == {}
    assert kind.name != "broken" or report["findings"]


@pytest.mark.parametrize("files", TREES)
def test_texts_about_files(tree: Tree, files: dict[str, str | None]) -> None:
    foreign_files.create(tree, files)
    found = findings_of(tree.host(), {})
    assert {one["id"]: problems_of(one) for one in found if problems_of(one)} == {}
    assert len({one["id"] for one in found}) == len(found)


def test_every_finding_has_a_case(empty: HostFS, tmp_path: Path) -> None:
    """The report of the playbook adds the first two."""
    seen = {"host-unreachable", "inspection-failed"}
    seen.update(one["id"] for parts in REPORTS for one in findings_of(empty, parts))
    for number, files in enumerate(TREES):
        tree = Tree(tmp_path / str(number))
        foreign_files.create(tree, files)
        seen.update(one["id"] for one in findings_of(tree.host(), {}))
    for number, case in enumerate(audit_reports.UNREAD):
        seen.update(one["id"] for one in findings_of_unread(tmp_path / f"unread{number}", case))
    lines = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").partition("\n## Findings\n")[2].splitlines()
    rows = [line.partition(" | ")[0] for line in lines if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    assert documented - seen == set()
    # A problem of a kind that has no row.
    assert seen - documented == {"x"}
    audit = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    assert [name for name in sorted(documented) if f"`{name}`" not in audit] == []


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("/etc/cdi/a.json is odd.", "Remove /etc/cdi/a.json."),
        ("It has version 1.1.0., devices is empty.", "Do it."),
        ("It is odd. Nothing was changed.", "Do it."),
        ("It is odd.", "Follow the advice in the message."),
        ("It is odd.", "Write it with nvidia_cdi_spec."),
        ("Run modprobe nvidia.", "Load it with modprobe nvidia."),
        ("It is odd", "Do it."),
    ],
)
def test_problems_are_found(text: str, advice: str) -> None:
    assert problems_of({"text": text, "advice": advice}) != []
    assert problems_of({"text": "/a/b is odd, /a/b.c too.", "advice": "Set nvidia_cdi_refresh: auto."}) == []
