# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directory trees as k0s and MicroK8s lay them out.

k0s: `k0s install` and pkg/component/worker/containerd of 1.30 (containerd 1.7), 1.36.0 and after it (containerd 2).
MicroK8s: microk8s-resources/default-args and wrappers/run-containerd-with-args, as of containerd 1.7 and 2.1.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureEngine, Options

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.configure import ConfigureResult

NVIDIA = "/usr/bin/nvidia-container-runtime"
UNIT = "[Service]\nExecStart=/usr/local/bin/k0s {0}\nKillMode=process\n\n[Install]\nWantedBy=multi-user.target\n"
CGROUP = "sys/fs/cgroup/system.slice/{0}/cgroup.procs"
HEADER = "# k0s_managed=true\n# This is a placeholder configuration for k0s managed containerd.\n"

# What k0s 1.30 writes when it starts: all settings, those that are not set too (shortened).
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
# What k0s 1.36.0 writes, and newer ones, which leave the merging to containerd.
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


class Tree:
    """A host's directory tree, and the module's work on it."""

    def __init__(self, root: Path, flavor: str, files: t.Mapping[str, str] | None = None) -> None:
        self.root = root
        self.flavor = flavor
        self.commands: list[list[str]] = []
        self.answers: dict[str, tuple[int, str, str]] = {}
        self.live = False
        (root / "tmp").mkdir(exist_ok=True)
        for name, text in (files or {}).items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if "/bin/" in name:
            path.chmod(0o755)

    def text(self, name: str) -> str:
        return (self.root / name.lstrip("/")).read_text()

    @property
    def host(self) -> HostFS:
        return HostFS(str(self.root), self.live)

    def _run(self, argv: list[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
        return next(
            (answer for word, answer in self.answers.items() if any(word in given for given in argv)), (0, "", "")
        )

    def configuration(self, request: RuntimeRequest | None, **options: t.Any) -> ConfigureEngine:
        given = {"flavor": self.flavor, **options}
        return ConfigureEngine(Options("containerd", request, **given), self.host, self._run)

    def present(
        self, check_mode: bool = False, options: t.Mapping[str, t.Any] | None = None, **asked: t.Any
    ) -> ConfigureResult:
        return self.configuration(RuntimeRequest(**asked), **(options or {})).execute(check_mode)

    def absent(self, check_mode: bool = False, **options: t.Any) -> ConfigureResult:
        return self.configuration(None, **options).execute(check_mode)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """All but what this collection keeps for itself."""
        paths = [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]
        found = {str(path.relative_to(self.root)): (path.stat().st_mode & 0o777, path.read_bytes()) for path in paths}
        return {name: value for name, value in found.items() if not name.startswith("var/lib/gpufleet-nvidia/")}


def k0s_tree(root: Path, *command: str, **files: t.Any) -> Tree:
    """A worker of k0s 1.30 that runs, unless other files are given; ``command`` is what the unit has k0s do."""
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
    given.update(files.get("files", {}))
    return Tree(root, "k0s", {name: text for name, text in given.items() if text is not None})


def microk8s_tree(root: Path, text: str = TEMPLATE_TEXT, revision: str = "5000", **files: str) -> Tree:
    """A MicroK8s with its revision of the snap, which ``current`` leads to."""
    tree = Tree(root, "microk8s", files)
    tree.write(f"var/snap/microk8s/{revision}/args/containerd-template.toml", text)
    (root / "var/snap/microk8s/current").symlink_to(revision)
    service = "snap.microk8s.daemon-containerd.service"
    tree.write(f"etc/systemd/system/{service}", "[Service]\nExecStart=/usr/bin/snap run microk8s.daemon-containerd\n")
    tree.write(f"snap/microk8s/{revision}/bin/containerd", "")
    (root / "snap/microk8s/current").symlink_to(revision)
    tree.write(CGROUP.format(service), "9\n")
    tree.write("proc/9/comm", "containerd\n")
    return tree


def refresh(tree: Tree, former: str, revision: str) -> None:
    """What snapd does: the data is copied, and ``current`` leads to the copy."""
    tree.write(
        f"var/snap/microk8s/{revision}/args/containerd-template.toml",
        tree.text(f"/var/snap/microk8s/{former}/args/containerd-template.toml"),
    )
    current = tree.root / "var/snap/microk8s/current"
    current.unlink()
    current.symlink_to(revision)
