# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names and directories that several packages use: directories that daemons read, flavors, program names."""

from __future__ import annotations

# Whichever the host has.
AUTO = "auto"
# The engine as the operating system's packages bring it.
SYSTEM = "system"
FLAVOR_NAMES = (SYSTEM, "snap", "rootless", "k3s", "rke2", "k0s", "microk8s")
# What the records of a unit beside the usual one are called by, in front of its name.
UNIT_KEY = "unit-"


# Directories whose files are configuration to a program. Nothing else is written there, above all no backup. The names
# of temporary files (_core/atomic_write.py) begin with .gpufleet- and end in .tmp. What programs do with such a name:
#
# - CRI-O reads every file below crio.conf.d, whatever its name is, and does not start if one disappears meanwhile
#   (UpdateFromPath in pkg/config/config.go, 1.31 to 1.36).
# - containerd reads what the patterns of its imports match.  The usual *.toml does not match it, but * does: it also
#   matches a leading dot (resolveImports in cmd/containerd/server/config/config.go, 2.0 to 2.4; filepath.Glob of Go).
# - Podman and CRI-O read *.conf in containers.conf.d, and *.json in hooks.d (go.podman.io/common, pkg/config/new.go and
#   pkg/hooks/read.go).
# - The CDI library reads *.json and *.yaml (pkg/cdi/spec-dirs.go).
# - systemd reads *.conf in drop-in directories (systemd.unit(5)), apt *.list and *.sources (sources.list(5)).
# Temporary files are not made there either.  A folder that is a mount of its own gets them without a name.
STRICT_CONFIG_DIRS = (
    "/etc/containerd/conf.d",
    "/etc/crio/crio.conf.d",
    "/etc/containers/containers.conf.d",
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
)
# Files are made here and nowhere else.  Docker and containerd keep in mind what they have read, and look again after a
# file of the folder was written, renamed or removed; one that is moved in from elsewhere they do not notice, and a
# temporary name, which ends neither in .json nor in .yaml, does no harm (CDI project's library, pkg/cdi/cache.go).
INOTIFY_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")

# Of these only files with the endings of settings count, so that a temporary name does no harm either.
_DISTRIBUTIONS_FOLDERS = (
    "/etc/k0s/containerd.d",
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/rke2/config.yaml.d",
)

CONFIG_DIRS = (*STRICT_CONFIG_DIRS, *INOTIFY_DIRS, *_DISTRIBUTIONS_FOLDERS)


# NVIDIA Container Toolkit 1.20: one program per mode, each with the name it is registered under beside the main one.
MAIN_PROGRAM = "nvidia-container-runtime"
MODE_PROGRAMS = {"cdi": MAIN_PROGRAM + ".cdi", "legacy": MAIN_PROGRAM + ".legacy"}


# Where engines look for CDI specifications.
SPECIFICATION_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# What they call GPUs there.
GPU_KIND = "nvidia.com/gpu"
