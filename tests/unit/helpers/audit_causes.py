# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports of hosts whose findings have one cause, or need one step, and the expected findings."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import CONFIG_FILE
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.audit_reports import (
    BARE,
    CVE,
    DOCKER_29,
    MIG,
    NO_CDI,
    NO_TOOLKIT,
    NODE,
    SPEC,
    containerd,
    engine,
    gpu,
    problem,
    spec,
)

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
    ({"gpus__missing_nodes": [NODE, {**NODE, "path": "/dev/nvidia-uvm"}],
      "gpus__devices": [gpu(healthy=False, reasons=[problem("node-unusable", "/dev/nvidiactl does not exist.")])]},
     ["device-node-missing"], ""),
    # A command that creates missing nodes does not correct another one.
    ({"gpus__missing_nodes": [{**NODE, "path": "/dev/nvidia-uvm-tools"}],
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
