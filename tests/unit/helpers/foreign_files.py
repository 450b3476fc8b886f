# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts with files that other tools manage, and the expected findings."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.gpufleet.nvidia.tests.unit.helpers.leftovers import (
    CRIO_DROP_IN,
    CRIO_MAIN,
    CRIO_STRAY,
    DAEMON_JSON,
    DROP_IN,
    HOOK,
    HOOK_FILE,
    MAIN,
    NVIDIA,
    OWN_HOOK,
    STRAY,
    main_file,
    runtime,
    small_drop_in,
    snapshot,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.tests.unit.helpers.driver_trees import Tree

FILES = Path(__file__).parents[1] / "files"
UNIT = "/usr/lib/systemd/system/docker.service"
CRIO_DIR = "/etc/crio/crio.conf.d"
PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
HOOK_PROGRAM = "/usr/bin/nvidia-container-runtime-hook"
PODMAN: dict[str, str | None] = {"/usr/bin/podman": ""}
# CRI-O reads hooks in /etc only with such a setting.
HOOKS_DIR = '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]\n'


def example(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def create(tree: Tree, files: t.Mapping[str, str | None]) -> None:
    """Create ``files``. None is a directory; a text that begins with @ is a link."""
    for path, text in files.items():
        if text is None:
            tree.folder(path)
        elif text.startswith("@"):
            tree.link(path, text[1:])
        else:
            tree.file(path, text.encode("utf-8", "surrogateescape"), 0o755 if path.startswith("/usr/bin") else 0o644)


def unit(flags: str) -> str:
    return f"[Service]\nExecStart=/usr/bin/dockerd {flags}\n"


RUNTIME = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
KUBESPRAY = example("containerd-kubespray.toml")
# Flags of dockerd, and daemon.json with the same setting, whose name differs.
CONFLICTS = [
    ("--authorization-plugin=opa", '{"authorization-plugins": []}'),
    ("--default-address-pool=base=10.1.0.0/16,size=24", '{"default-address-pools": []}'),
    ("--default-network-opt=bridge=x=1", '{"default-network-opts": {}}'),
    ("-b=br0", '{"bridge": "br0"}'),
    ("--host-gateway-ip=192.0.2.1", '{"host-gateway-ip": "192.0.2.1"}'),
    ("--host-gateway-ip=192.0.2.1", '{"host-gateway-ips": []}'),
    ("--no-proxy=x", '{"proxies": {"no-proxy": "x"}}'),
]
# The files of a host, and the finding's id, severity and subject.
CASES: list[tuple[dict[str, str | None], str, str, str]] = [
    ({MAIN: KUBESPRAY}, "kubespray-owns-file", "warning", MAIN),
    ({MAIN: main_file(), DROP_IN: snapshot()}, "legacy-file", "warning", DROP_IN),
    ({MAIN: main_file("x"), STRAY: small_drop_in()}, "legacy-file", "warning", STRAY),
    ({MAIN: main_file() + runtime("nvidia", NVIDIA), DROP_IN: snapshot()}, "setting-defined-twice", "warning", DROP_IN),
    ({MAIN: 'disabled_plugins = ["cri"]\n'}, "cri-disabled", "info", MAIN),
    ({DAEMON_JSON: '{"hosts": []}', UNIT: unit("-H fd://"), "/usr/bin/dockerd": ""},
     "setting-defined-twice", "critical", DAEMON_JSON),
    ({DAEMON_JSON: '{"default-runtime": "runc"}', UNIT: unit("--default-runtime=nvidia")},
     "setting-defined-twice", "critical", DAEMON_JSON),
    ({CRIO_STRAY: CRIO_DROP_IN}, "legacy-file", "warning", CRIO_STRAY),
    ({CRIO_MAIN: RUNTIME, f"{CRIO_DIR}/99-nvidia.conf": RUNTIME},
     "setting-defined-twice", "warning", f"{CRIO_DIR}/99-nvidia.conf"),
    ({PID_FILE: "12\n"}, "gpu-operator-toolkit", "warning", PID_FILE),
    ({"/usr/local/nvidia/toolkit": None}, "gpu-operator-toolkit", "info", "/usr/local/nvidia/toolkit"),
    ({HOOK: HOOK_FILE, **PODMAN}, "legacy-file", "critical", HOOK),
    ({HOOK: HOOK_FILE, HOOK_PROGRAM: "", **PODMAN}, "legacy-file", "warning", HOOK),
    ({HOOK: HOOK_FILE, CRIO_MAIN: ""}, "legacy-file", "critical", HOOK),
    ({OWN_HOOK: '{"hook": "/opt/nvidia-container-toolkit"}', **PODMAN}, "legacy-file", "critical", OWN_HOOK),
    ({OWN_HOOK: HOOK_FILE, CRIO_MAIN: HOOKS_DIR}, "legacy-file", "critical", OWN_HOOK),
    # The first one is replaced by the second, whose program exists.
    ({HOOK: HOOK_FILE.replace("/usr/bin/", "/opt/"), OWN_HOOK: HOOK_FILE, HOOK_PROGRAM: "", **PODMAN},
     "legacy-file", "warning", OWN_HOOK),
]  # fmt: skip
CASES += [
    ({DAEMON_JSON: settings, UNIT: unit(flag)}, "setting-defined-twice", "critical", DAEMON_JSON)
    for flag, settings in CONFLICTS
]
