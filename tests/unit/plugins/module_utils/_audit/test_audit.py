# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import os
import tempfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import audit, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit.audit import findings_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import MissingPackageError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.audit_reports import (
    BARE,
    BROKEN_GPU,
    CASES,
    CVE,
    DOCKER_29,
    KERNEL,
    NEWER,
    NO_CDI,
    NO_TOOLKIT,
    NVIDIA,
    ONLY_BASE,
    PODMAN,
    SPEC,
    UNREAD,
    containerd,
    engine,
    fabric,
    gpu,
    healthy_host,
    host_with_specifications,
    parts_with_specifications,
    problem,
    spec,
)


@pytest.fixture
def host(tmp_path: Path) -> HostFS:
    """A tree with only the toolkit's runtime."""
    program = tmp_path / NVIDIA.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    return HostFS.of(str(tmp_path), live=False)


UNREAD_FILE = {"cdi__files": [spec(kind=None, valid=None, stale=None)], "cdi__devices": {}}
PLAIN_MODULE = "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko"


def test_a_healthy_host_has_no_findings(host: HostFS) -> None:
    assert findings_of(host, healthy_host()) == []
    assert findings_of(host, healthy_host(**ONLY_BASE)) == []
    assert findings_of(host, {"engines": None, "toolkit": None, "gpus": None, "cdi": None}) == []


@pytest.mark.parametrize(("parts", "name", "severity", "subject"), CASES)
def test_each_rule(host: HostFS, parts: dict[str, t.Any], name: str, severity: str, subject: str) -> None:
    found = [one for one in findings_of(host, healthy_host(**copy.deepcopy(parts))) if one["id"] == name]
    assert [(one["severity"], one["subject"]) for one in found] == [(severity, subject)]
    assert list(found[0]) == ["severity", "id", "subject", "text", "advice"]


@pytest.mark.parametrize(
    ("flavor", "folders", "advice"),
    [
        ("system", None, "nvidia_runtime_enable_cdi: true"),
        ("system", ["/etc/cdi"], "nvidia_runtime_enable_cdi: true"),
        ("rke2", None, "Upgrade RKE2"),
        ("system", [], "Remove the empty list cdi_spec_dirs"),
        ("rke2", [], "Remove the empty list cdi_spec_dirs"),
    ],
)
def test_what_switches_cdi_on(host: HostFS, flavor: str, folders: list[str] | None, advice: str) -> None:
    live = {"cdi": False, "version": "2.1.4"}
    parts = {"engines": [containerd(flavor=flavor, cdi_directories=folders, live=live)]}
    (found,) = [one for one in findings_of(host, healthy_host(**parts)) if one["id"] == "cdi-off"]
    assert advice in found["advice"]


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        # All packages are installed, or the hook is. A toolkit in a directory has its own.
        ({"engines": [engine(runtimes={"nvidia": f"{NVIDIA}.legacy"})]}, "hook-missing"),
        ({"engines": [engine(runtimes={"nvidia": "/opt/toolkit/nvidia-container-runtime.legacy"})], **ONLY_BASE},
         "hook-missing"),
        ({"engines": [engine(runtimes={"nvidia": f"{NVIDIA}.cdi"}, live=None)], "toolkit__version": "1.17.8",
          **ONLY_BASE}, "hook-missing"),
        # --gpus of Docker before 29.2, an OCI hook, or an engine that is not known may need the packages of the hook.
        ({"engines": [PODMAN], **ONLY_BASE}, "package-unused"),
        ({"engines": [PODMAN, BARE]}, "package-unused"),
        ({"engines": [PODMAN, {**BARE, "version": None}]}, "package-unused"),
        ({"engines": [PODMAN, containerd()]}, "package-unused"),
        ({"engines": [PODMAN, {**PODMAN, "problems": [problem("file-invalid")]}]}, "package-unused"),
        ({"engines": [PODMAN, {**PODMAN, "inspected": False, "user": "ada"}]}, "package-unused"),
        ({"engines": [{**PODMAN, "recorded_files": ["/srv/hooks.d/oci-nvidia-hook.json"]}]}, "package-unused"),
        ({"engines": [PODMAN], "cdi": NO_CDI}, "package-unused"),
        # It is unknown whether an offline tree has a GPU.
        ({"engines": [engine(default_runtime="nvidia")], "toolkit__gpu": None, "gpus": None},
         "default-runtime-without-gpu"),
        # The version of K3s is not that of its containerd.
        ({"engines": [containerd(flavor="k3s", version="1.6.1")]}, "cdi-unsupported"),
        ({"engines": [containerd(version="1.6.20")], "cdi": NO_CDI}, "cdi-unsupported"),
        ({"engines": [containerd(version="unknown")]}, "cdi-unsupported"),
        ({"engines": [DOCKER_29]}, "docker-needs-cdi"),
        ({"engines": [engine(version="29.1.5")], "cdi": NO_CDI}, "docker-needs-cdi"),
        ({"engines": [DOCKER_29], "cdi": None}, "docker-needs-cdi"),
        # The host lacks PyYAML.
        ({"engines": [DOCKER_29], **UNREAD_FILE}, "docker-needs-cdi"),
        ({"engines": [BARE], **UNREAD_FILE}, "gpus-not-configured"),
        # A directory could not be read.
        ({"engines": [BARE], "cdi": {**NO_CDI, "problems": [problem("host-error")]}}, "gpus-not-configured"),
        # Kubernetes does not use this containerd.
        ({"engines": [containerd(runtimes={}, live={"version": "", "runtimes": {}})]}, "engine-not-responding"),
        ({"engines": [engine(engine="crio", live={"version": "", "runtimes": {}})]}, "engine-not-responding"),
        # Flags of the unit may define the runtime.
        ({"engines": [engine(default_runtime="nvidia", runtimes={}, live=None)]}, "runtime-missing"),
        ({"engines": [containerd(default_runtime="nvidia", runtimes={})]}, "runtime-missing"),
        ({"engines": [engine(runtimes={"x": "bare"}, flavor="rootless")]}, "runtime-missing"),
        ({"engines": [BARE]}, "gpus-not-configured"),
        ({"engines": [BARE], "cdi": None}, "gpus-not-configured"),
        ({"engines": [engine(live={"live_restore": False, "running_containers": 0})]}, "live-restore-off"),
        ({"engines": [engine(installed=False)], **NO_TOOLKIT}, "toolkit-missing"),
        ({"gpus": None, "toolkit__gpu": {"present": True, "kind": "wsl"}}, "driver-not-loaded"),
        ({"gpus__modules": {}}, "uvm-not-loaded"),
        ({"gpus__kernel": {**KERNEL, "has_modules": None, "module": None}}, "reboot-required"),
        ({"gpus__kernel": {**KERNEL, "next_release": NEWER, "next_module": PLAIN_MODULE}},
         "next-kernel-without-driver"),
        # The driver of a container, such as that of NVIDIA's GPU operator, is not in the host's directories.
        ({"gpus__kernel": {**KERNEL, "next_release": NEWER, "module": None}}, "next-kernel-without-driver"),
        ({"gpus__fabric_manager": fabric(program=None, version=None)}, "fabric-manager-unusable"),
        ({"gpus__fabric_manager": fabric(version=None)}, "fabric-manager-unusable"),
        # The processes of the host are not visible in a container.
        ({"gpus__fabric_manager": fabric(program=None, version=None, running=None)}, "fabric-manager-unusable"),
        ({"gpus__fabric_manager": fabric(running=None)}, "fabric-manager-unusable"),
        ({"gpus__devices": [gpu(vgpu=None)]}, "vgpu-not-licensed"),
        ({"gpus__devices": [gpu(vgpu={"product": "NVIDIA vPC", "licensed": True})]}, "vgpu-not-licensed"),
        ({"gpus__devices": [gpu(vgpu={"product": None, "licensed": None})]}, "vgpu-not-licensed"),
        ({"cdi": {**NO_CDI, "refresh": {"service": "r.service", "enabled": False}}}, "cdi-refresh-missing"),
        # The units of the host could not be read.
        ({"cdi__refresh": None, "cdi__problems": [problem("host-error")]}, "cdi-refresh-missing"),
        # The finding of the GPU has the problem.
        ({"gpus__devices": [BROKEN_GPU], "gpus__problems": BROKEN_GPU["reasons"]}, "gpu-failed"),
    ],
)  # fmt: skip
def test_no_false_finding(host: HostFS, parts: dict[str, t.Any], name: str) -> None:
    assert name not in [one["id"] for one in findings_of(host, healthy_host(**copy.deepcopy(parts)))]


def test_an_oci_hook_uses_the_packages(host: HostFS, tmp_path: Path) -> None:
    path = tmp_path / "etc/containers/oci/hooks.d/oci-nvidia-hook.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert "package-unused" not in [one["id"] for one in findings_of(host, healthy_host(engines=[PODMAN]))]


@pytest.mark.parametrize(
    ("reader", "source", "directories", "severity"),
    [
        (PODMAN, "/var/run/cdi/a.yaml", None, "critical"),
        (PODMAN, "/var/run/cdi/a.yaml", ["/etc/cdi", "/var/run/cdi"], None),
        (PODMAN, "/run/cdi/a.yaml", ["/etc/cdi", "/var/run/cdi"], None),
        (PODMAN, "/var/run/cdi/a.yaml", ["/etc/cdi", "/run/cdi"], None),
        (PODMAN, "/opt/cdi/a.yaml", ["/opt/cdi"], None),
        (PODMAN, SPEC, ["/opt/cdi"], "critical"),
        (PODMAN, SPEC, [], "critical"),
        ({**PODMAN, "readable": False}, "/var/run/cdi/a.yaml", None, "warning"),
        # Containers of Docker can get GPUs from the runtime too.
        (engine(), "/opt/cdi/a.yaml", None, "warning"),
        (engine(), "/opt/cdi/a.yaml", ["/opt/cdi"], None),
        (engine(), SPEC, ["/opt/cdi"], "warning"),
        (engine(readable=False), "/opt/cdi/a.yaml", None, "warning"),
        (engine(), "/run/cdi/a.yaml", None, None),
    ],
)
def test_directories_that_engines_read(
    host: HostFS, reader: dict[str, t.Any], source: str, directories: list[str] | None, severity: str | None
) -> None:
    reader = {**reader, "cdi_directories": directories}
    parts = healthy_host(engines=[reader], cdi__devices={"nvidia.com/gpu=0": source})
    found = [one for one in findings_of(host, parts) if one["id"] == "cdi-directory-not-read"]
    assert [one["severity"] for one in found] == ([] if severity is None else [severity])
    assert all(("unless" in one["text"]) is (reader.get("readable") is False) for one in found)


@pytest.mark.parametrize(("reader", "paths", "expected"), UNREAD)
def test_files_that_engines_do_not_read(
    tmp_path: Path, reader: dict[str, t.Any], paths: dict[str, int], expected: list[tuple[str, str, str]]
) -> None:
    found = findings_of(host_with_specifications(tmp_path, paths), parts_with_specifications(reader, expected))
    assert [
        (one["id"], one["subject"], one["severity"]) for one in found if one["id"] == "cdi-file-ignored"
    ] == expected


def test_links_between_directories_are_followed(host: HostFS, tmp_path: Path) -> None:
    (tmp_path / "srv/cdi").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cdi").symlink_to("/srv/cdi")
    parts = healthy_host(engines=[PODMAN], cdi__devices={"nvidia.com/gpu=0": "/srv/cdi/a.yaml"})
    assert "cdi-directory-not-read" not in [one["id"] for one in findings_of(host, parts)]


def test_findings_are_sorted_and_unique(host: HostFS) -> None:
    twice = [engine(restart_required=True, problems=[problem("x"), problem("x")])] * 2
    found = findings_of(
        host, healthy_host(engines=twice, toolkit__reboot_required=True, toolkit__known_cves=[CVE, CVE])
    )
    assert [(one["severity"], one["subject"], one["id"]) for one in found] == [
        ("critical", "toolkit", "known-cve"),
        ("warning", "docker", "restart-pending"),
        ("warning", "docker", "x"),
        ("info", "host", "reboot-required"),
    ]


def test_errors_of_a_file_are_sentences(host: HostFS) -> None:
    errors = ["cdiVersion is 1.9, an unknown version. Known versions: 1.0.0, 1.1.0.", "devices is empty."]
    found = {
        one["id"]: one["text"] for one in findings_of(host, healthy_host(cdi__files=[spec(valid=False, errors=errors)]))
    }
    assert " ".join(errors) in found["cdi-invalid"]
    many = [f"devices[{index}].name is empty." for index in range(9)]
    found = {
        one["id"]: one["text"] for one in findings_of(host, healthy_host(cdi__files=[spec(valid=False, errors=many)]))
    }
    assert f"{many[4]} There are 4 more." in found["cdi-invalid"]


def test_messages_name_files_and_devices(host: HostFS) -> None:
    shadowed = {"nvidia.com/gpu=0": ["/etc/cdi/a.json", "/etc/cdi/b.json"], "nvidia.com/gpu=1": ["/etc/cdi/c.json"]}
    source = {"path": "/etc/apt/sources.list", "line": 12, "address": "nvidia.github.io/x"}
    files = [spec(), spec(path="/run/cdi/a.yaml", stale=None)]
    devices = {"nvidia.com/gpu=0": SPEC, "nvidia.com/gpu=1": "/run/cdi/a.yaml"}
    parts = healthy_host(
        engines=[DOCKER_29],
        cdi={"files": files, "devices": devices, "conflicts": {"shadowed": shadowed}},
        toolkit__conflicting_sources=[source],
    )
    found = {(one["id"], one["subject"]): one["text"] for one in findings_of(host, parts)}
    text = found["cdi-conflict", "/etc/cdi/b.json, /etc/cdi/c.json"]
    assert f"also defines them: {SPEC}." in text
    parts["cdi"]["refresh"] = {"service": "r.service", "enabled": True, "output": SPEC}
    texts = {one["id"]: one["text"] for one in findings_of(host, parts)}
    assert texts["cdi-conflict"].count("r.service writes it again") == 1
    assert "nvidia.com/gpu=0" in text
    assert "nvidia.com/gpu=1" in text
    assert "not all specifications of the GPUs" in found["docker-needs-cdi", "docker"]
    assert "/etc/apt/sources.list (line 12: nvidia.github.io/x)" in found["conflicting-source", "/etc/apt/sources.list"]


_OTHER_FILE = "/etc/cdi/nvidia-ctk.yaml"
_WRITTEN = {"enabled": True, "output": "/run/cdi/nvidia.yaml"}


@pytest.mark.parametrize(
    ("file", "refresh", "expected"),
    [
        ({"path": "/etc/cdi/nvidia.yaml"}, None, steps.WRITE_SPECIFICATION),
        ({"path": "/etc/cdi/nvidia.yaml"}, {**_WRITTEN, "enabled": False}, steps.WRITE_SPECIFICATION),
        # The role writes the file of the enabled unit.
        ({"path": "/var/run/cdi/nvidia.yaml"}, _WRITTEN, steps.WRITE_SPECIFICATION),
        ({"path": "/etc/cdi/nvidia.yaml"}, _WRITTEN, steps.REPLACE_SPECIFICATION),
        # Beside this file, that of the role would make all devices unresolvable.
        ({"path": _OTHER_FILE}, None, steps.REPLACE_SPECIFICATION),
        # The kind is unknown, or not that of the GPUs.
        ({"path": _OTHER_FILE, "kind": None}, None, steps.WRITE_OTHER_SPECIFICATION),
        ({"path": "/etc/cdi/nvidia.yaml", "kind": None}, None, steps.WRITE_SPECIFICATION),
        ({"path": _OTHER_FILE, "kind": "acme.example/nic"}, None, steps.WRITE_OTHER_SPECIFICATION),
    ],
)
@pytest.mark.parametrize("state", [{"valid": False, "errors": ["It is broken."]}, {"stale": True}])
def test_advice_for_a_specification(
    host: HostFS, file: dict[str, t.Any], refresh: dict[str, t.Any] | None, expected: str, state: dict[str, t.Any]
) -> None:
    parts = healthy_host(cdi__files=[spec(**file, **state)], cdi__refresh=refresh)
    (found,) = [one for one in findings_of(host, parts) if one["id"] in ("cdi-invalid", "cdi-stale")]
    assert found["advice"] == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("nvidia.com/gpu=0", steps.KEEP_ONE_SPECIFICATION),
        ("acme.example/nic=0", steps.KEEP_ONE_OTHER_SPECIFICATION),
    ],
)
@pytest.mark.parametrize("conflict", ["unresolvable", "shadowed"])
def test_advice_for_files_with_the_same_devices(host: HostFS, conflict: str, device: str, expected: str) -> None:
    conflicts = {conflict: {device: ["/etc/cdi/a.json", "/etc/cdi/b.json"]}}
    parts = healthy_host(cdi__conflicts=conflicts, cdi__devices={"nvidia.com/gpu=0": SPEC, device: SPEC})
    (found,) = findings_of(host, parts)
    assert found["advice"] == expected


@pytest.mark.parametrize(
    ("parts", "name", "expected"),
    [
        ({"cdi__refresh": None}, "cdi-refresh-missing", "nvidia_cdi_refresh: auto"),
        ({"cdi__refresh": None, "toolkit": None}, "cdi-refresh-missing", "nvidia_cdi_refresh: auto"),
        # The refresh units need nvidia-ctk.
        ({"cdi__refresh": None, **NO_TOOLKIT}, "cdi-refresh-missing", "Run gpufleet.nvidia.site after each"),
        ({"cdi__refresh": None, "cdi__devices": {"nvidia.com/gpu=0": "/run/cdi/a.json"}, **NO_TOOLKIT},
         "cdi-refresh-missing", "nvidia_cdi_path below /etc/cdi"),
        ({"engines": [{**PODMAN, "version": "3.4.4"}]}, "cdi-unsupported", "Use a newer release."),
        # docs/security.md explains why no advice completes packages of other vendors.
        ({"toolkit__problems": [problem("toolkit-inconsistent")]}, "toolkit-inconsistent", "and no others."),
    ],
)  # fmt: skip
def test_advice_works_on_the_host(host: HostFS, parts: dict[str, t.Any], name: str, expected: str) -> None:
    (found,) = [one for one in findings_of(host, healthy_host(**copy.deepcopy(parts))) if one["id"] == name]
    assert expected in found["advice"]


# -- permissions and packages ------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_without_root_one_finding_names_unreadable_files() -> None:
    denied = problem("permission-denied", "daemon.json cannot be read.")
    one = engine(
        socket="/run/docker.sock", live=None, problems=[problem("engine-not-responding"), denied, problem("x")]
    )
    # Other users cannot enter the directories of pytest.
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in ("etc/docker/daemon.json", "run/docker.sock", "usr/bin/nvidia-container-runtime"):
            (root / path).parent.mkdir(parents=True)
            (root / path).write_text("{}")
            (root / path).chmod(0o755 if "bin" in path else 0o600)
        (root / "var/lib/gpufleet-nvidia/state").mkdir(parents=True)
        (root / "var/lib/gpufleet-nvidia").chmod(0o700)
        (root / "var/lib/kubelet").mkdir(mode=0o700)
        root.chmod(0o755)
        host = HostFS.of(folder, live=False)
        node = {"root_dir": "/var/lib/kubelet"}
        as_root = findings_of(host, healthy_host(engines=[one], kubernetes=node))
        try:
            os.seteuid(65534)
            found = findings_of(host, healthy_host(engines=[one], kubernetes=node))
        finally:
            os.seteuid(0)
    assert [(one["id"], one["subject"]) for one in found] == [("x", "docker"), ("permission-denied", "host")]
    text = found[1]["text"]
    assert " user 65534," in text
    assert " /var/lib/gpufleet-nvidia/state, /var/lib/kubelet, /etc/docker/daemon.json, /run/docker.sock. " in text
    assert text.endswith(": engine-not-responding (docker); permission-denied (docker).")
    assert [one["id"] for one in as_root] == ["engine-not-responding", "permission-denied", "x"]


def test_a_missing_parser_is_a_finding(host: HostFS, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_args: t.Any) -> list[t.Any]:
        raise MissingPackageError("The Python package tomlkit is needed.")

    monkeypatch.setattr(audit, "foreign_files_of", lacking)
    (found,) = findings_of(host, healthy_host())
    assert (found["id"], found["severity"]) == ("files-not-read", "warning")
    assert "tomlkit" in found["text"]


@pytest.mark.parametrize("live", [True, False])
def test_a_toolkit_without_version(tmp_path: Path, live: bool) -> None:
    found = findings_of(HostFS.of(str(tmp_path), live=live), healthy_host(toolkit__known_cves=None))
    (finding,) = [one for one in found if one["id"] == "toolkit-version-unknown"]
    assert ("directory tree" in finding["advice"]) is not live
