# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report of a healthy host, its parts with problems, and the expected findings."""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE

if t.TYPE_CHECKING:
    from pathlib import Path

NVIDIA = "/usr/bin/nvidia-container-runtime"
SPEC = "/etc/cdi/nvidia.yaml"


def engine(**other: t.Any) -> dict[str, t.Any]:
    """An engine without problems."""
    return {
        "engine": "docker",
        "flavor": "system",
        "target": "docker",
        "installed": True,
        "version": "28.5.2",
        "running": True,
        "config_path": "/etc/docker/daemon.json",
        "runtimes": {"nvidia": NVIDIA},
        "default_runtime": "runc",
        "recorded_files": [],
        "live": {
            "version": "28.5.2",
            "runtimes": {"nvidia": NVIDIA, "runc": "runc"},
            "default_runtime": "runc",
            "cdi": True,
            "live_restore": True,
            "running_containers": 0,
        },
        "restart_required": False,
        "unfinished_restart": False,
        "problems": [],
        **other,
    }


def containerd(**other: t.Any) -> dict[str, t.Any]:
    return engine(**{"engine": "containerd", "target": "containerd", "version": "2.1.9", **other})


def spec(**other: t.Any) -> dict[str, t.Any]:
    """A valid specification of the GPUs."""
    return {
        "path": SPEC,
        "kind": "nvidia.com/gpu",
        "cdi_version": "0.5.0",
        "devices": ["0"],
        "valid": True,
        "errors": [],
        "warnings": [],
        "stale": False,
        "reasons": [],
        **other,
    }


def gpu(**other: t.Any) -> dict[str, t.Any]:
    answer = {"index": 0, "mig_enabled": False, "mig_devices": [], "healthy": True}
    return {**answer, "reasons": [], **other}


def problem(code: str, message: str = "Odd.") -> dict[str, str]:
    return {"code": code, "message": message}


def healthy_host(**parts: t.Any) -> dict[str, t.Any]:
    """The report of a healthy host, changed by ``parts``: PART__KEY, or PART alone."""
    answer: dict[str, t.Any] = {
        "engines": [engine()],
        "toolkit": {
            "gpu": {"present": True, "message": "The driver is loaded."},
            "packages": {"nvidia-container-toolkit": {"version": "1.19.1-1", "held": False}},
            "programs": {"nvidia-ctk": {"path": "/usr/bin/nvidia-ctk", "version": "1.19.1"}},
            "version": "1.19.1",
            "version_mismatches": [],
            "known_cves": [],
            "config_path": CONFIG_FILE,
            "settings": {},
            "unsafe_settings": [],
            "conflicting_sources": [],
            "gpu_containers": [],
            "reboot_required": False,
            "problems": [],
        },
        "gpus": {
            "driver_version": "580.95.05",
            "source": "nvml",
            "modules": {"nvidia": {}, "nvidia_uvm": {}},
            "devices": [gpu()],
            "missing_nodes": [],
            "kernel": copy.deepcopy(KERNEL),
            "fabric_manager": fabric(),
            "problems": [],
        },
        "cdi": {
            "files": [spec()],
            "devices": {"nvidia.com/gpu=0": SPEC},
            "conflicts": {"shadowed": {}, "unresolvable": {}},
            "refresh": {"service": "r.service", "enabled": True, "output": SPEC},
            "problems": [],
        },
    }
    # Whole parts are replaced last.
    for name, value in sorted(parts.items(), key=lambda item: "__" not in item[0]):
        part, _separator, inner = name.partition("__")
        if inner:
            answer[part][inner] = value
        else:
            answer[part] = value
    return answer


KERNEL: dict[str, t.Any] = {
    "release": "6.8.0-45-generic",
    "has_modules": True,
    "module": "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst",
    "next_release": None,
    "next_module": None,
}
NEWER = "6.8.0-100-generic"


def fabric(**changes: t.Any) -> dict[str, t.Any]:
    return {"program": "/usr/bin/nv-fabricmanager", "version": "580.95.05", "running": True, **changes}


CVE = {"name": "CVE-2025-23266", "floor": "1.17.8", "about": "hook"}
MITIGATED = {"features.disable-cuda-compat-lib-hook": True}
SHADOWED = {"shadowed": {"nvidia.com/gpu=0": ["/etc/cdi/a.json"]}}
NO_CDI: dict[str, t.Any] = {"files": [], "devices": {}, "conflicts": {}, "refresh": None, "problems": []}
NO_RUNTIME: dict[str, t.Any] = {"runtimes": {}, "live": None}
BARE = engine(**NO_RUNTIME)
DOCKER_29 = engine(version="29.2.0")
PODMAN = engine(engine="podman", target="podman", version="5.5.1", **NO_RUNTIME)
BROKEN_GPU = gpu(healthy=False, reasons=[problem("gpu-failed")])
MIG = {"index": 1, "healthy": False, "reasons": [{"code": "mig-node-unusable", "message": "No node."}]}
NO_TOOLKIT: dict[str, t.Any] = {"toolkit__programs": {}, "toolkit__packages": {}}
OPERATOR = "/usr/local/nvidia/toolkit"
OTHER_TOOLKIT: dict[str, t.Any] = {
    "path": OPERATOR,
    "engines": ["containerd"],
    "known_cves": [],
    "config_path": f"{OPERATOR}/config.toml",
    "problems": [],
}
ONLY_BASE: dict[str, t.Any] = {
    "toolkit__packages": {"nvidia-container-toolkit-base": {"version": "1.19.1-1", "held": False}},
    "toolkit__programs": {"nvidia-container-runtime": {"path": NVIDIA, "version": "1.19.1"}},
}
# The changed parts, and the finding's id, severity and subject.
CASES: list[tuple[dict[str, t.Any], str, str, str]] = [
    # the toolkit
    ({"toolkit__known_cves": [CVE]}, "known-cve", "critical", "toolkit"),
    ({"toolkit__known_cves": [CVE], "toolkit__settings": MITIGATED}, "known-cve", "warning", "toolkit"),
    ({"toolkit__known_cves": [{**CVE, "name": "CVE-X"}], "toolkit__settings": MITIGATED},
     "known-cve", "critical", "toolkit"),
    # 1.17.4 has neither the setting nor the hook, and parts of several versions have no version.
    ({"toolkit__known_cves": [CVE], "toolkit__settings": MITIGATED, "toolkit__version": "1.17.4"},
     "known-cve", "critical", "toolkit"),
    ({"toolkit__known_cves": [CVE], "toolkit__settings": MITIGATED, "toolkit__version": None},
     "known-cve", "critical", "toolkit"),
    ({"toolkit__known_cves": [CVE], "toolkit__settings": MITIGATED, "toolkit__version": "1.17.5"},
     "known-cve", "warning", "toolkit"),
    ({"toolkit__known_cves": None}, "toolkit-version-unknown", "info", "toolkit"),
    ({"toolkit__other_toolkits": [{**OTHER_TOOLKIT, "known_cves": [CVE]}]}, "known-cve", "critical", OPERATOR),
    ({"toolkit__other_toolkits": [{**OTHER_TOOLKIT, "known_cves": None}]}, "toolkit-version-unknown", "info", OPERATOR),
    ({"toolkit__other_toolkits": [{**OTHER_TOOLKIT, "unsafe_settings": ["no-cgroups is true."]}]},
     "unsafe-setting", "warning", f"{OPERATOR}/config.toml"),
    ({"toolkit__other_toolkits": [{**OTHER_TOOLKIT, "problems": [problem("setting-refused")]}]},
     "setting-refused", "critical", OPERATOR),
    (NO_TOOLKIT, "toolkit-missing", "critical", "toolkit"),
    ({"toolkit__other_toolkits": [{**OTHER_TOOLKIT, "programs": {}}], **NO_TOOLKIT},
     "toolkit-missing", "critical", "toolkit"),
    # An engine without the runtime takes the GPUs from a specification that needs none of NVIDIA's programs.
    ({"engines": [BARE], **NO_TOOLKIT}, "toolkit-missing", "info", "toolkit"),
    ({"engines": [BARE], "cdi__files": [spec(stale=True)], **NO_TOOLKIT}, "toolkit-missing", "critical", "toolkit"),
    ({"engines": [BARE], "cdi": NO_CDI, **NO_TOOLKIT}, "toolkit-missing", "critical", "toolkit"),
    ({"toolkit__version_mismatches": ["nvidia-ctk is 1.18.0."]}, "toolkit-inconsistent", "warning", "toolkit"),
    ({"engines": [engine(runtimes={"nvidia": f"{NVIDIA}.legacy"})], **ONLY_BASE}, "hook-missing", "critical", "docker"),
    ({"toolkit__settings": {"nvidia-container-runtime.mode": "legacy"}, **ONLY_BASE},
     "hook-missing", "critical", "docker"),
    ({"toolkit__version": "1.17.8", "toolkit__known_cves": [], **ONLY_BASE}, "hook-missing", "critical", "docker"),
    ({"toolkit__problems": [problem("toolkit-inconsistent")]}, "toolkit-inconsistent", "warning", "toolkit"),
    ({"toolkit__problems": [problem("file-invalid")]}, "config-unreadable", "critical", "toolkit"),
    ({"toolkit__packages": {"nvidia-docker2": {"version": "2.13"}}}, "obsolete-package", "warning", "toolkit"),
    ({"toolkit__packages": {"libnvidia-container1": {"held": True}}}, "package-held", "info", "toolkit"),
    ({"engines": [PODMAN]}, "package-unused", "info", "toolkit"),
    ({"engines": [{**DOCKER_29, **NO_RUNTIME}]}, "package-unused", "info", "toolkit"),
    ({"toolkit__conflicting_sources": [{"path": "/etc/apt/x.list", "line": None, "address": None}]},
     "conflicting-source", "warning", "/etc/apt/x.list"),
    ({"toolkit__unsafe_settings": ["no-cgroups is true."]}, "unsafe-setting", "warning", CONFIG_FILE),
    ({"toolkit__reboot_required": True}, "reboot-required", "info", "host"),
    ({"toolkit__gpu_containers": ["docker/1"]}, "containers-lose-gpus", "warning", "toolkit"),
    # the driver and the GPUs
    ({"gpus__problems": [problem("gpu-driven-by-nouveau")], "gpus__devices": []},
     "gpu-driven-by-nouveau", "critical", "driver"),
    ({"gpus__problems": [problem("driver-not-loaded")]}, "driver-not-loaded", "critical", "driver"),
    ({"gpus__problems": [problem("driver-version-differs")]}, "driver-version-differs", "critical", "driver"),
    ({"gpus__problems": [problem("driver-library-missing")]}, "driver-library-missing", "critical", "driver"),
    ({"gpus": None, "toolkit__gpu": {"present": True, "kind": "pci"}}, "driver-not-loaded", "critical", "driver"),
    ({"gpus__devices": [{**BROKEN_GPU, "index": 3}]}, "gpu-unusable", "critical", "gpu 3"),
    ({"gpus__devices": [gpu(mig_enabled=True, mig_devices=[MIG])]},
     "device-node-missing", "critical", "gpu 0, MIG 1"),
    ({"gpus__devices": [gpu(mig_enabled=True, mig_devices=[{**MIG, "reasons": [problem("x")]}])]},
     "gpu-unusable", "critical", "gpu 0, MIG 1"),
    ({"gpus__devices": [gpu(mig_enabled=True)]}, "mig-without-devices", "warning", "gpu 0"),
    ({"gpus__missing_nodes": ["/dev/nvidiactl"]}, "device-node-missing", "critical", "/dev/nvidiactl"),
    ({"gpus__missing_nodes": ["/dev/nvidia7"]}, "device-node-missing", "critical", "/dev/nvidia7"),
    ({"gpus__missing_nodes": ["/dev/nvidia-modeset"]},
     "device-node-missing", "warning", "/dev/nvidia-modeset"),
    ({"gpus__modules": {"nvidia": {}}}, "uvm-not-loaded", "warning", "driver"),
    ({"gpus__kernel": {**KERNEL, "has_modules": False, "module": None}},
     "reboot-required", "warning", "driver"),
    ({"gpus__kernel": {**KERNEL, "next_release": NEWER}}, "next-kernel-without-driver", "warning", "driver"),
    ({"gpus__fabric_manager": fabric(program=None, version=None, running=False)},
     "fabric-manager-unusable", "critical", "nvidia-fabricmanager.service"),
    ({"gpus__fabric_manager": fabric(running=False)},
     "fabric-manager-unusable", "critical", "nvidia-fabricmanager.service"),
    ({"gpus__fabric_manager": fabric(version="580.82.07")},
     "fabric-manager-unusable", "warning", "nvidia-fabricmanager.service"),
    ({"gpus__fabric_manager": fabric(version="580.82.07", running=False)},
     "fabric-manager-unusable", "critical", "nvidia-fabricmanager.service"),
    ({"gpus__devices": [gpu(vgpu={"product": "NVIDIA vPC", "licensed": False})]}, "vgpu-not-licensed", "warning",
     "nvidia-gridd.service"),
    # CDI
    ({"cdi__files": [spec(valid=False, errors=["Odd."], stale=None)], "cdi__devices": {}},
     "cdi-invalid", "critical", SPEC),
    ({"cdi__files": [spec(), spec(path="/etc/cdi/b.yaml", valid=False)]}, "cdi-invalid", "warning", "/etc/cdi/b.yaml"),
    ({"cdi__files": [spec(kind="vendor.com/net", valid=False)], "cdi__devices": {}}, "cdi-invalid", "warning", SPEC),
    ({"cdi__files": [spec(warnings=["Odd."])]}, "cdi-unusual-content", "info", SPEC),
    ({"cdi__files": [spec(stale=True, reasons=[problem("path-missing")])]}, "cdi-stale", "critical", SPEC),
    ({"cdi__files": [spec(), spec(path="/run/cdi/z", stale=True)]}, "cdi-stale", "warning", "/run/cdi/z"),
    ({"cdi__conflicts": {"unresolvable": {"nvidia.com/gpu=0": ["/etc/cdi/a", "/etc/cdi/b"]}}},
     "cdi-conflict", "critical", "/etc/cdi/b"),
    ({"cdi__conflicts": SHADOWED}, "cdi-conflict", "warning", "/etc/cdi/a.json"),
    ({"engines": [containerd(version="1.6.20")]}, "cdi-unsupported", "info", "containerd"),
    ({"engines": [containerd(version="1.6.15", flavor="microk8s")]}, "cdi-unsupported", "info", "containerd"),
    ({"engines": [containerd(version="1.7.3")], "cdi__files": [spec(cdi_version="0.7.0")]},
     "cdi-unsupported", "critical", "containerd"),
    ({"engines": [PODMAN], "cdi__devices": {"nvidia.com/gpu=0": "/var/run/cdi/nvidia.yaml"}},
     "cdi-directory-not-read", "critical", "podman"),
    ({"engines": [DOCKER_29], "cdi__files": [spec(valid=None, stale=None)]}, "docker-needs-cdi", "critical", "docker"),
    ({"engines": [DOCKER_29], "cdi": NO_CDI}, "docker-needs-cdi", "warning", "docker"),
    ({"cdi__problems": [problem("cdi-refresh-failed")]}, "cdi-refresh-failed", "warning", "r.service"),
    ({"cdi__problems": [problem("cdi-graphics-incomplete")]}, "cdi-graphics-incomplete", "warning", "cdi"),
    ({"cdi__problems": [problem("package-missing")]}, "files-not-read", "warning", "host"),
    ({"cdi__problems": [problem("host-error")]}, "inspection-incomplete", "warning", "cdi"),
    ({"cdi__problems": [problem("permission-denied")]}, "permission-denied", "warning", "cdi"),
    ({"cdi__refresh": {"service": "r.service", "enabled": False}}, "cdi-refresh-missing", "warning", "r.service"),
    ({"cdi__refresh": None}, "cdi-refresh-missing", "info", SPEC),
    ({"cdi__refresh": None, "cdi__devices": {"nvidia.com/gpu=0": "/var/run/cdi/n.yaml"}},
     "cdi-refresh-missing", "warning", "/var/run/cdi/n.yaml"),
    # engines
    ({"engines": [engine(restart_required=True)]}, "restart-pending", "warning", "docker"),
    ({"engines": [engine(missed_toolkit=True)]}, "restart-pending", "warning", "docker"),
    ({"engines": [engine(unfinished_restart=True)]}, "restart-pending", "warning", "docker"),
    ({"engines": [engine(live=None, problems=[problem("engine-not-responding")])]},
     "engine-not-responding", "warning", "docker"),
    ({"engines": [engine(problems=[problem("engine-release-fails")])]}, "engine-release-fails", "critical", "docker"),
    ({"engines": [engine(problems=[problem("file-invalid")])]}, "config-unreadable", "critical", "docker"),
    ({"engines": [engine(problems=[problem("setting-defined-twice")])]}, "setting-defined-twice", "warning", "docker"),
    ({"engines": [engine(problems=[problem("inspection-incomplete")])]}, "inspection-incomplete", "warning", "docker"),
    ({"engines": [engine(problems=[problem("engine-unsupported")])]}, "engine-unsupported", "warning", "docker"),
    ({"engines": [engine(problems=[problem("flags-unreadable")])]}, "flags-unreadable", "warning", "docker"),
    ({"toolkit__problems": [problem("inspection-incomplete")]}, "inspection-incomplete", "warning", "toolkit"),
    ({"toolkit__problems": [problem("setting-invalid")]}, "setting-invalid", "warning", "toolkit"),
    ({"toolkit__problems": [problem("setting-refused")]}, "setting-refused", "critical", "toolkit"),
    ({"gpus__problems": [problem("gpus-from-proc")]}, "gpus-from-proc", "warning", "driver"),
    ({"gpus__problems": [problem("gpu-uuid-unknown")]}, "gpu-uuid-unknown", "warning", "driver"),
    ({"gpus__problems": [problem("error")]}, "inspection-incomplete", "warning", "gpus"),
    ({"engines": [containerd(live={"version": "", "runtimes": {}, "default_runtime": ""})]},
     "engine-not-responding", "critical", "containerd"),
    ({"engines": [engine(inspected=False, user="ada")]}, "not-inspected", "info", "docker"),
    ({"engines": [engine(default_runtime="nvidia", runtimes={"nvidia": "/opt/gone"})]},
     "runtime-missing", "critical", "docker"),
    ({"engines": [engine(default_runtime="nvidia")], "toolkit__gpu": {"present": False}, "gpus__devices": []},
     "default-runtime-without-gpu", "critical", "docker"),
    ({"engines": [containerd(default_runtime="nvidia", runtimes={}, live=None)]},
     "runtime-missing", "critical", "containerd"),
    ({"engines": [engine(runtimes={"nvidia": NVIDIA, "nvidia-cdi": "/opt/nvidia-container-runtime.cdi"})]},
     "runtime-missing", "warning", "docker"),
    ({"engines": [engine(runtimes={"nvidia": NVIDIA, "kata": "/opt/kata"})]},
     "runtime-missing", "info", "docker"),
    ({"engines": [BARE], "cdi": NO_CDI}, "gpus-not-configured", "critical", "host"),
    ({"engines": [BARE], "cdi": {**NO_CDI, "problems": [problem("cdi-refresh-failed")]}},
     "gpus-not-configured", "critical", "host"),
    ({"engines": [engine(live={"cdi": False})]}, "cdi-off", "info", "docker"),
    ({"engines": [containerd(flavor="k3s", live={"cdi": False, "version": "2.1.4"})]}, "cdi-off", "info", "containerd"),
    ({"engines": [engine(live={"live_restore": False, "running_containers": 2})]},
     "live-restore-off", "info", "docker"),
    ({"engines": [engine(installed=False, recorded_files=["/etc/x"])]}, "engine-not-installed", "info", "docker"),
]  # fmt: skip


def host_with_specifications(root: Path, paths: t.Mapping[str, int]) -> HostFS:
    """Return a host with these files in /etc/cdi, by mode. The name "" is the directory, and "->" makes it a link."""
    folder = root / "etc/cdi"
    folder.mkdir(parents=True)
    for name, mode in paths.items():
        if name not in ("", "->"):
            (folder / name).write_text("")
            (folder / name).chmod(mode)
    if "->" in paths:
        folder.rename(root / "cdi")
        folder.symlink_to("/cdi")
    elif "" in paths:
        folder.chmod(paths[""])
    return HostFS.of(str(root), live=False)


def parts_with_specifications(reader: dict[str, t.Any], expected: t.Sequence[tuple[str, str, str]]) -> dict[str, t.Any]:
    """Return a report in which an engine reads a specification of the GPUs if the severity is a warning."""
    read = {"nvidia.com/gpu=0": SPEC} if expected and expected[0][2] == "warning" else {}
    return healthy_host(engines=[reader], cdi__devices=read)


# An engine, the files in /etc/cdi with their modes as in host_with_specifications(), and the expected findings.
UNREAD: list[tuple[dict[str, t.Any], dict[str, int], list[tuple[str, str, str]]]] = [
    (PODMAN, {"nvidia.yaml": 0o600}, [("cdi-file-ignored", "/etc/cdi/nvidia.yaml", "warning")]),
    (PODMAN, {"nvidia.yaml": 0o640, "": 0o700}, [("cdi-file-ignored", "/etc/cdi", "warning")]),
    # The daemons of other engines run as root.
    (engine(), {"nvidia.yaml": 0o600, "": 0o700}, []),
    (engine(flavor="rootless"), {"nvidia.yaml": 0o600}, [("cdi-file-ignored", "/etc/cdi/nvidia.yaml", "warning")]),
    (engine(), {"nvidia.yml": 0o644}, [("cdi-file-ignored", "/etc/cdi/nvidia.yml", "critical")]),
    (engine(), {"nvidia.yaml": 0o644, "->": 0}, [("cdi-file-ignored", "/etc/cdi", "critical")]),
]
