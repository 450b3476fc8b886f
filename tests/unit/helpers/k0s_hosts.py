# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory trees of k0s and MicroK8s.

k0s: `k0s install` and pkg/component/worker/containerd of 1.30 (containerd 1.7), 1.36.0 and after it (containerd 2).
MicroK8s: microk8s-resources/default-args and wrappers/run-containerd-with-args, as of containerd 1.7 and 2.1.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.engine_trees import EngineTree

if t.TYPE_CHECKING:
    from pathlib import Path

UNIT = "[Service]\nExecStart=/usr/local/bin/k0s {0}\nKillMode=process\n\n[Install]\nWantedBy=multi-user.target\n"
CGROUP = "sys/fs/cgroup/system.slice/{0}/cgroup.procs"
HEADER = "# k0s_managed=true\n# This is a placeholder configuration for k0s managed containerd.\n"

# The files that k0s 1.30 writes when it starts, with all settings, also unset ones (shortened).
MAIN_2 = HEADER + 'imports = ["/run/k0s/containerd-cri.toml"]\nversion = 2\n'
GENERATED_2 = """\
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.9"

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
          privileged_without_host_devices = false
          runtime_type = "io.containerd.runc.v2"
          sandbox_mode = "podsandbox"
          snapshotter = ""

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
            BinaryName = ""
            IoUid = 0
            Root = ""
            SystemdCgroup = false
"""
# The files of k0s 1.36.0, and of newer releases, whose containerd merges the drop-ins.
MAIN_3 = HEADER + 'imports = ["/run/k0s/containerd-cri.toml"]\nversion = 3\n'
GENERATED_3 = """\
version = 3

[plugins]
  [plugins."io.containerd.cri.v1.images"]
    [plugins."io.containerd.cri.v1.images".pinned_images]
      sandbox = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.cri.v1.runtime"]
"""
MAIN_NATIVE = HEADER + GENERATED_3.replace("version = 3\n", 'imports = ["/etc/k0s/containerd.d/*.toml"]\nversion = 3\n')

ARGUMENTS = "/var/snap/microk8s/current/args"
TEMPLATE = ARGUMENTS + "/containerd-template.toml"
TEMPLATE_TEXT = """\
# Use config version 2 to enable new configuration fields.
version = 2
oom_score = 0

[metrics]
  address = "127.0.0.1:1338"

# The table contains all of the server options.
[plugins."io.containerd.grpc.v1.cri"]

  sandbox_image = "registry.k8s.io/pause:3.10"

  [plugins."io.containerd.grpc.v1.cri".containerd]

    # snapshotter is the snapshotter used by containerd.
    snapshotter = "${SNAPSHOTTER}"

    # default_runtime_name is the default runtime name to use.
    default_runtime_name = "${RUNTIME}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      # runtime_type is the runtime type to use in containerd
      runtime_type = "${RUNTIME_TYPE}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime]
      runtime_type = "${RUNTIME_TYPE}"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime.options]
        BinaryName = "nvidia-container-runtime"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${SNAP_DATA}/opt/cni/bin"

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "${SNAP_DATA}/args/certs.d"
"""


def k0s_tree(root: Path, *command: str, files: t.Mapping[str, str | None] | None = None) -> EngineTree:
    """Return a running worker of k0s 1.30, unless ``files`` differ. ``command`` is the subcommand of k0s with flags."""
    service = "k0scontroller.service" if "controller" in command else "k0sworker.service"
    given: dict[str, str | None] = {
        f"etc/systemd/system/{service}": UNIT.format(" ".join(command or ("worker",))),
        "usr/local/bin/k0s": "",
        "var/lib/k0s/bin/containerd": "",
        "etc/k0s/containerd.toml": MAIN_2,
        "run/k0s/containerd-cri.toml": GENERATED_2,
        CGROUP.format(service): "6\n7\n",
        "proc/6/comm": "k0s\n",
        "proc/7/comm": "containerd\n",
    }
    given.update(files or {})
    existing = {name: text for name, text in given.items() if text is not None}
    return EngineTree(root, flavor="k0s", files=existing, live=False)


def microk8s_tree(root: Path, text: str = TEMPLATE_TEXT) -> EngineTree:
    """Return a MicroK8s with revision 5000 of the snap, the target of the links ``current``."""
    revision = "5000"
    tree = EngineTree(root, flavor="microk8s", live=False)
    tree.write(f"var/snap/microk8s/{revision}/args/containerd-template.toml", text)
    (root / "var/snap/microk8s/current").symlink_to(revision)
    service = "snap.microk8s.daemon-containerd.service"
    tree.write(f"etc/systemd/system/{service}", "[Service]\nExecStart=/usr/bin/snap run microk8s.daemon-containerd\n")
    tree.write(f"snap/microk8s/{revision}/bin/containerd", "")
    (root / "snap/microk8s/current").symlink_to(revision)
    tree.write(CGROUP.format(service), "9\n")
    tree.write("proc/9/comm", "containerd\n")
    return tree


def refresh(tree: EngineTree, previous: str, revision: str) -> None:
    """Copy the template and change the link ``current`` of the data, as snapd does."""
    tree.write(
        f"var/snap/microk8s/{revision}/args/containerd-template.toml",
        tree.text(f"/var/snap/microk8s/{previous}/args/containerd-template.toml"),
    )
    current = tree.root / "var/snap/microk8s/current"
    current.unlink()
    current.symlink_to(revision)


DROP_IN = "/etc/k0s/containerd.d/99-nvidia.toml"
CRI_2 = 'plugins."io.containerd.grpc.v1.cri"'
RUNC_TYPE = "io.containerd.runc.v2"


def document(tree: EngineTree, path: str = DROP_IN) -> dict[str, t.Any]:
    return TomlDocument.from_bytes(path, tree.text(path).encode()).data


def runtimes_2(tree: EngineTree) -> t.Any:
    return document(tree)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]


def runtime_2(name: str, program: str, **options: str) -> str:
    lines = "".join(f"{key} = {value}\n" for key, value in options.items())
    table = f"{CRI_2}.containerd.runtimes.{name}"
    return f'[{table}]\nruntime_type = "{RUNC_TYPE}"\n[{table}.options]\nBinaryName = "{program}"\n{lines}'
