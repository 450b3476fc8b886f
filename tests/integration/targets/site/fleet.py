# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of different kinds, as directory trees with an inventory.

fleet.py make DIRECTORY: create DIRECTORY/trees and DIRECTORY/hosts.json.
fleet.py driver DIRECTORY VERSION: write the files of this version of the driver to the hosts with GPUs.
fleet.py changes FILE: print the changed tasks of each host in an output of ansible-playbook.
fleet.py check DIRECTORY: compare the files of the hosts with those that site.yml should have written.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[3] / "hosts" / "fixtures"
TOOLKIT = (
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-cli",
    "nvidia-ctk",
    "nvidia-cdi-hook",
)
CDI_DEVICE = {"name": "0", "containerEdits": {"env": ["A=b"]}}
BY_HAND = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [CDI_DEVICE]}
DEST = "/opt/nvidia toolkit"
AS_ROOT = os.geteuid() == 0


class Host(t.NamedTuple):
    """A host: its variables, its programs, and its files.

    ``expected`` maps paths to patterns of the content after site.yml, or to None for a missing file. ``described`` is
    the same for files that depend on the GPUs. It is checked only for root, because only root can create device nodes.
    """

    variables: dict[str, t.Any]
    programs: tuple[str, ...]
    files: dict[str, str]
    expected: dict[str, str | None]
    gpus: int = 0
    described: t.Mapping[str, str | None] = {}


HOSTS = {
    # The toolkit of packages, Docker with its containerd, and a CDI specification written by hand.
    "packages": Host(
        variables={
            # later.key stands for a setting of a newer toolkit.
            "nvidia_toolkit_settings": {"features.disable-cuda-compat-lib-hook": True, "later.key": "x"},
            "nvidia_toolkit_allow_unknown": True,
            "nvidia_cdi_exclusive": True,
            # The nvidia-ctk of this host is not a program.
            "nvidia_cdi_refresh": "none",
        },
        programs=("dockerd", "containerd", *TOOLKIT),
        files={
            "/etc/docker/daemon.json": '{"debug": true}',
            "/etc/containerd/config.toml": 'disabled_plugins = ["cri"]\n',
            "/etc/cdi/by-hand.json": json.dumps(BY_HAND),
            "/etc/nvidia-container-runtime/config.toml": "disable-require = false # ours\n",
        },
        expected={
            "/etc/docker/daemon.json": r'(?s)(?=.*"debug": true)(?=.*"default-runtime": "nvidia").*"/usr/bin/nvidia-c',
            "/etc/containerd/config.toml": r'^disabled_plugins = \["cri"\]\n$',
            "/etc/nvidia-container-runtime/config.toml": r'(?s)^disable-require = false # ours\n.*hook = t.*key = "x"',
        },
        gpus=2,
        described={
            "/etc/cdi/nvidia.yaml": r"(?s)^(?=.*kind: nvidia\.com/gpu)(?!.*enable-cuda-compat).*path: /usr/bin/nvid",
            "/etc/cdi/by-hand.json": None,
        },
    ),
    # The controller sends the toolkit. It replaces a directory of another installer, and its path contains a space. The
    # CDI specification must also work for a Podman that does not support additionalGids.
    "directory": Host(
        variables={
            "nvidia_toolkit_source": "directory",
            "nvidia_toolkit_src": "{{ tree }}/srv/toolkit",
            "nvidia_toolkit_dest": DEST,
            "nvidia_toolkit_settings": {"nvidia-container-runtime.mode": "cdi", "later.key": "x"},
            "nvidia_toolkit_allow_unknown": True,
            "nvidia_cdi_for_engines": ["podman:4.9.3"],
            "nvidia_cdi_refresh": "none",
        },
        programs=("crio", "runc", "containerd"),
        files={
            "/etc/crio/crio.conf.d/10-crio.conf": '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n',
            "/etc/containerd/config.toml": "version = 3\n",
            f"{DEST}/nvidia-ctk": "Of another installer.",
        },
        expected={
            "/etc/crio/crio.conf.d/99-nvidia.toml": f'runtime_path = "{DEST}/nvidia-container-runtime"',
            # The version of containerd is not known in a tree, so the entries are written to the main file.
            "/etc/containerd/config.toml": rf'(?s)^version = 3\n.*default_runtime_name = "nvidia".*"{DEST}/nvidia-con',
            f"{DEST}/.config/nvidia-container-runtime/config.toml": r'(?s)(?=.*mode = "cdi").*key = "x"',
        },
        gpus=1,
        described={
            "/etc/cdi/nvidia.yaml": rf'(?s)^(?=.*enable-cuda-compat)(?!.*additionalGids).*path: "{DEST}/nvid',
        },
    ),
    # As "directory", but in an image, with units of this collection that run the nvidia-ctk which the play installs.
    "bare": Host(
        variables={
            "nvidia_cdi_host_root_live": False,
            "nvidia_toolkit_source": "directory",
            "nvidia_toolkit_src": "{{ tree }}/srv/toolkit",
        },
        programs=("dockerd", "containerd"),
        files={
            "/etc/containerd/config.toml": "version = 3\n",
        },
        expected={
            "/etc/docker/daemon.json": r'(?s)(?=.*"default-runtime": "nvidia").*"/usr/local/nvidia/toolkit/nv',
            "/etc/systemd/system/gpufleet-nvidia-cdi.service": "/usr/local/nvidia/toolkit/nvidia-ctk",
            "/etc/cdi": None,
        },
    ),
    # An image that is being built: its engine, the programs of the runtime and the GPUs come later.
    "image": Host(
        variables={
            "nvidia_cdi_host_root_live": False,
            "nvidia_runtime_engines": ["docker"],
            "nvidia_runtime_dir": "/opt/later",
            "nvidia_runtime_force_default": True,
            # YAML reads an unquoted off as false.
            "nvidia_runtime_verify": False,
        },
        programs=TOOLKIT,
        files={},
        expected={
            "/etc/docker/daemon.json": r'(?s)(?=.*"default-runtime": "nvidia").*"/opt/later/nvidia-container-runtime"',
            "/etc/systemd/system/gpufleet-nvidia-cdi.path": r"/lib/modules/%v/modules\.dep",
            "/etc/cdi": None,
        },
    ),
    # No driver is loaded, and when_no_driver is fail, so the host must fail without a change.
    "refused": Host(
        variables={"nvidia_cdi_when_no_driver": "fail"},
        programs=("dockerd", *TOOLKIT),
        files={},
        expected={"/etc": None},
    ),
}
VARIABLES = {
    "ansible_connection": "local",
    "ansible_python_interpreter": "{{ ansible_playbook_python }}",
    "nvidia_toolkit_source": "existing",
    "nvidia_host_root": "{{ tree }}",
    "nvidia_runtime_set_as_default": True,
    # The modules read /proc and /dev of the tree. No systemd runs in it.
    "nvidia_cdi_host_root_live": True,
    # The driver's library has no code.
    "nvidia_cdi_module_options": {"use_nvml": False},
    # The engines in the trees are not programs, so their versions cannot be read.
    "nvidia_cdi_for_engines": [],
}


def run(fixture: str, *arguments: object) -> None:
    """Run a program of the fixtures."""
    subprocess.run([sys.executable, "-B", FIXTURES / fixture, *map(str, arguments)], check=True)


def write(path: Path, content: str, mode: int) -> None:
    """Write a file, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)


def make(work: Path) -> None:
    """Make the hosts and their inventory."""
    inventory = {}
    for name, host in HOSTS.items():
        tree = work / "trees" / name
        for folder in ("usr/bin", "var/lib", "sys/bus", "tmp", "opt", "run"):
            (tree / folder).mkdir(parents=True)
        for program in ("python3.11", *host.programs):
            write(tree / "usr/bin" / program if "/" not in program else tree / program[1:], "Never run.", 0o755)
        for path, content in host.files.items():
            write(tree / path[1:], content, 0o640)
        if "nvidia_toolkit_src" in host.variables:
            run("elf_programs.py", "tree", tree / "srv/toolkit", "1.20.0")
        inventory[name] = {"tree": str(tree), "nvidia_cdi_enabled": AS_ROOT or not host.gpus, **host.variables}
    (work / "hosts.json").write_text(json.dumps({"all": {"hosts": inventory, "vars": VARIABLES}}), encoding="utf-8")
    change_driver(work, "575.57.08")


def change_driver(work: Path, version: str) -> None:
    """Write the files of the driver to the hosts with GPUs."""
    for name, host in HOSTS.items():
        if host.gpus and AS_ROOT:
            run("gpu_tree.py", work / "trees" / name, version, host.gpus)


def check(work: Path) -> list[str]:
    """Return a message for each difference from the expected files."""
    wrong = []
    for name, host in HOSTS.items():
        tree = work / "trees" / name
        for path, pattern in {**host.expected, **(host.described if AS_ROOT else {})}.items():
            file = tree / path[1:]
            if pattern is None:
                wrong += [f"{name}: {path} exists"] if os.path.lexists(file) else []
            elif not file.exists():
                wrong.append(f"{name}: {path} does not exist")
            elif not re.search(pattern, file.read_text(encoding="utf-8")):
                wrong.append(f"{name}: {path} does not match {pattern!r}: {file.read_text(encoding='utf-8')}")
    link = work / "trees/directory" / DEST[1:]
    if not link.is_symlink() or not re.match(r"nvidia toolkit\.versions/1\.20\.0-[0-9a-f]{12}", os.readlink(link)):
        wrong.append(f"{link} does not lead to version 1.20.0")
    return wrong


def changes(output: str) -> list[str]:
    """Return the host and the name of each changed task."""
    found = []
    for section in re.split(r"\n(?:TASK|RUNNING HANDLER) \[", output.partition("PLAY RECAP")[0])[1:]:
        name = section.partition("]")[0]
        found += [f"{host}: {name}" for host in re.findall(r"^changed: \[(\w+)\]", section, re.MULTILINE)]
    return sorted(found)


def main() -> None:
    """Run the action of the command line."""
    action, work = sys.argv[1], Path(sys.argv[2]).resolve()
    if action == "changes":
        print("\n".join(changes(work.read_text(encoding="utf-8"))))
        return
    if action == "make":
        make(work)
    elif action == "driver":
        change_driver(work, sys.argv[3])
    else:
        sys.exit("\n".join(check(work)) or 0)


if __name__ == "__main__":
    main()
