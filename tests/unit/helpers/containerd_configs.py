# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations of containerd from distributions, installers, clouds and manual edits."""

from __future__ import annotations

import types
import typing as t
from pathlib import Path

MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
FOLDER = Path(__file__).parents[1] / "files"

Version = t.Optional[t.Tuple[int, ...]]


def of_file(name: str) -> str:
    return (FOLDER / f"containerd-{name}.toml").read_text(encoding="utf-8")


EKS = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
# Files of administrators
imports = ["/etc/containerd/config.d/*.toml"]

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
discard_unpacked_layers = true

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "pause:3.10"

[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "/etc/containerd/certs.d:/etc/docker/certs.d"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
"""

EKS_GPU = (
    EKS.replace('name = "runc"', 'name = "nvidia"')
    .replace("runtimes.runc", "runtimes.nvidia")
    .replace("SystemdCgroup = true", 'BinaryName = "/usr/bin/nvidia-container-runtime"\nSystemdCgroup = true')
)

GKE = """\
version = 2
required_plugins = ["io.containerd.grpc.v1.cri"]
# A node of a cluster
oom_score = -999
[debug]
  level = "info"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  max_container_log_line_size = 262144
  sandbox_image = "gke.gcr.io/pause:3.8"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/home/kubernetes/bin"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  discard_unpacked_layers = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gvisor]
  runtime_type = "io.containerd.runsc.v1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gvisor.options]
    TypeUrl = "io.containerd.runsc.v1.options"
    ConfigPath = "/run/containerd/runsc/config.toml"
[metrics]
  address = "127.0.0.1:1338"
"""

AKS = """\
version = 2
oom_score = -999
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/oss/pause:3.6"
  enable_cdi = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "/usr/bin/runc"
      SystemdCgroup = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.untrusted]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.untrusted.options]
      BinaryName = "/usr/bin/runc"
  [plugins."io.containerd.grpc.v1.cri".registry.headers]
    X-Meta-Source-Client = ["azure/aks"]
[metrics]
  address = "0.0.0.0:10257"
"""

# Similar to the output of `containerd config migrate`, with the literal strings of the newer encoder.
VERSION_3 = """\
version = 3
imports = []

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    snapshotter = 'overlayfs'
    [plugins.'io.containerd.cri.v1.images'.pinned_images]
      sandbox = 'registry.k8s.io/pause:3.10'

  [plugins.'io.containerd.cri.v1.runtime']
    max_container_log_line_size = 16384 # bytes
    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      default_runtime_name = 'crun'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
          runtime_type = 'io.containerd.runc.v2'
          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
            BinaryName = '/usr/bin/crun'
            SystemdCgroup = true
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          runtime_type = 'io.containerd.runc.v2'
"""

VERSION_4 = "version = 4\n\n[plugins.'io.containerd.cri.v1.runtime']\nenable_selinux = true\n"

VERSION_1 = """\
# The first format
[plugins.cri]
  sandbox_image = "k8s.gcr.io/pause:3.1"
  [plugins.cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v1"
    [plugins.cri.containerd.runtimes.runc.options]
      SystemdCgroup = true
"""

VENDOR = """\
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]

    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"

    [plugins."io.containerd.grpc.v1.cri".containerd]

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          privileged_without_host_devices = false
          runtime_engine = ""
          runtime_root = ""
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
"""

VENDOR_DROP_IN = """\
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "nvidia"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
        BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
        SystemdCgroup = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""

# A file of a site, written for containerd 1.7 and kept after the upgrade.
SITE_DROP_IN = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
SystemdCgroup = true
"""

OUT_OF_ORDER = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true

[grpc]
gid = 5

[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "/x" # where

[plugins."io.containerd.internal.v1.opt"]
path = "/opt"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins]
"""

DOTTED = """\
version = 2
plugins."io.containerd.grpc.v1.cri".sandbox_image = "pause"
plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.runtime_type = "io.containerd.runc.v2"
plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options.SystemdCgroup = true
debug.level = "info" # loud
"""

INLINE = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
cni = { bin_dir = "/opt/cni/bin", conf_dir = "/etc/cni/net.d" } # both
[plugins."io.containerd.grpc.v1.cri".containerd]
runtimes = { runc = { runtime_type = "io.containerd.runc.v2", options = { SystemdCgroup = true } } }
"""

UNICODE = """\
# Größe ist nicht alles — 構成
version = 2
[plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = 'pause "ü"'
    # [plugins."io.containerd.grpc.v1.cri".containerd]
[debug]
    level = "info" # 日本\
"""

# kubespray 2.24 to 2.27 spells these options in this way.
LOWER_CASE_OPTIONS = """\
version = 3
[plugins]
  [plugins."io.containerd.cri.v1.runtime"]
    [plugins."io.containerd.cri.v1.runtime".cni]
      bin_dir = "/usr/lib/cni"
    [plugins."io.containerd.cri.v1.runtime".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes]
        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"
          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
            systemdCgroup = false
            binaryName = "/usr/local/sbin/runc"
"""

# AKS writes the tables of version 3 into a file of version 2.
NEW_NAMES = """\
version = 2
oom_score = -999
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "/usr/local/sbin/runc"
"""

SNAPSHOTTER = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "zfs"
default_runtime_name = "runc"
"""

ONE_FILE: dict[str, str | None] = {
    "missing": None,
    "empty": "",
    "blank": "\n \n",
    "comments only": "# nothing yet\n\n#version = 2\n",
    "nothing of the CRI": 'root = "/data/containerd"\n\n[metrics]\n  address = "127.0.0.1:1338"\n',
    "Debian": of_file("debian"),
    "kubeadm": of_file("kubeadm"),
    "kubespray": of_file("kubespray"),
    "Docker's, CRI switched on": of_file("docker").replace('["cri"]', "[]"),
    "EKS": EKS,
    "EKS with GPUs": EKS_GPU,
    "GKE": GKE,
    "AKS": AKS,
    "k3s": of_file("k3s"),
    "version 3": VERSION_3,
    "version 4": VERSION_4,
    "version 1": VERSION_1,
    "vendor": VENDOR,
    "out of order": "version = 2\n" + OUT_OF_ORDER,
    "dotted": DOTTED,
    "inline": INLINE,
    "Windows": EKS.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + of_file("kubeadm"),
    "tabs": of_file("kubespray").replace("  ", "\t"),
    "Unicode": UNICODE,
    "options in lower case": LOWER_CASE_OPTIONS,
    "new names in version 2": NEW_NAMES,
    "both names in version 2": NEW_NAMES + SITE_DROP_IN.replace('"crun"', '"runc"').partition("\n")[2],
    "snapshotter without runtimes": SNAPSHOTTER,
}
FILES: dict[str, dict[str, str | None]] = {
    **{name: {MAIN: text} for name, text in ONE_FILE.items()},
    "default of 1.7": {MAIN: of_file("1.7")},
    "default of 2.1": {MAIN: of_file("2.1")},
    "default of 2.3": {MAIN: of_file("2.3")},
    "version 3 with a file for 1.7": {
        MAIN: VERSION_3.replace("imports = []", "imports = ['/etc/containerd/conf.d/*.toml']"),
        "/etc/containerd/conf.d/50-site.toml": SITE_DROP_IN,
    },
    "version 4 with a file for 1.7": {
        MAIN: VERSION_4.replace("\n", "\nimports = ['/etc/containerd/conf.d/*.toml']\n", 1),
        "/etc/containerd/conf.d/50-site.toml": SITE_DROP_IN,
    },
    "EKS with a file of the administrator": {
        MAIN: EKS,
        "/etc/containerd/config.d/10-log.toml": "version = 2\n[debug]\nlevel = 'warn'\n",
    },
    "new names in an import": {
        MAIN: 'version = 2\nimports = ["/etc/containerd/site.d/*.toml"]\n',
        "/etc/containerd/site.d/site.toml": NEW_NAMES,
    },
    "vendor's drop-in elsewhere": {
        MAIN: 'version = 2\nimports = ["/etc/containerd/vendor.d/*.toml"]\n' + OUT_OF_ORDER,
        "/etc/containerd/vendor.d/99-nvidia.toml": VENDOR_DROP_IN,
    },
}
VERSIONS: tuple[Version, ...] = (
    None,
    (1, 6, 20),
    (1, 7, 24),
    (2, 0, 1),
    (2, 0, 11),
    (2, 2, 7),
    (2, 3, 4),
    (2, 4, 0),
)
MODES = ("auto", "in_place", "drop_in")
# The first containerd version that supports the format of a file. Older ones are refused.
FIRST_READ_BY: dict[str, tuple[int, ...]] = {
    "k3s": (2, 0),
    "options in lower case": (2, 0),
    "version 3": (2, 0),
    "default of 2.1": (2, 0),
    "version 4": (2, 3),
    "default of 2.3": (2, 3),
    "version 3 with a file for 1.7": (2, 0),
    "version 4 with a file for 1.7": (2, 3),
}


def expected_refusal(
    name: str, version: Version, mode: str = "auto", asked: t.Mapping[str, t.Any] = types.MappingProxyType({})
) -> str | None:
    """Return the expected error for one of FILES as a pattern, None if the plan must succeed."""
    if mode == "drop_in" and (version is None or version < (2, 0)):
        return r"Use config_mode: in_place\.$"
    if version is not None and version < FIRST_READ_BY.get(name, ()):
        return "does not support configuration version"
    if name == "version 1" and version is not None and (2, 0) <= version < (2, 3):
        return "ignores the CRI settings of a file in configuration version 1"
    if name == "version 3 with a file for 1.7" and version == (2, 0, 1) and asked.get("set_as_default"):
        # 2.0.1 uses only the table with the name of version 2, whose default is in the imported file.
        return "this file overrides default_runtime_name" if mode == "in_place" else None
    elsewhere = name.startswith("vendor's") and asked.get("runtime_dir") != "/usr/local/nvidia/toolkit"
    if elsewhere and mode == "in_place" and version is not None and version >= (2, 0):
        return r"vendor.d/99-nvidia.toml: this file overrides the runtime nvidia"
    imported = name.endswith("a file for 1.7") and version is not None and version >= (2, 3)
    if imported and mode == "in_place" and asked.get("set_as_default"):
        return r"50-site.toml: this file overrides default_runtime_name with 'crun'"
    if name.endswith("in an import") and version is not None and version >= (2, 0) and mode == "in_place":
        return r"site.toml: this file overrides default_runtime_name" if asked.get("set_as_default") else None
    return None
