# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names and directories that several packages use: directories that daemons read, flavors, program names."""

from __future__ import annotations

# Use the flavor that the host has.
AUTO = "auto"
# The engine as the packages of the operating system install it.
SYSTEM = "system"
# Prefix of the owner name under which records of a unit other than the default one are kept. The unit name follows.
UNIT_PREFIX = "unit-"


# Directories in which programs read every file as configuration. This collection writes nothing else there; in
# particular, it keeps no backups there. The names of temporary files (_core/atomic_write.py) begin with .gpufleet- and
# end in .tmp. How programs treat such a name:
#
# - CRI-O reads every file below crio.conf.d, whatever its name, and does not start if one disappears meanwhile
#   (UpdateFromPath in pkg/config/config.go, 1.31 to 1.36).
# - containerd reads the files that match the patterns of its imports. The usual *.toml does not match the name, but *
#   does, because it also matches a leading dot (resolveImports in cmd/containerd/server/config/config.go, 2.0 to 2.4;
#   filepath.Glob of Go).
# - Podman and CRI-O read *.conf in containers.conf.d, and *.json in hooks.d (go.podman.io/common, pkg/config/new.go and
#   pkg/hooks/read.go).
# - The CDI library reads *.json and *.yaml (pkg/cdi/spec-dirs.go).
# - systemd reads *.conf in drop-in directories (systemd.unit(5)), apt reads *.list and *.sources (sources.list(5)).
#
# No temporary files are created there either. If such a directory is a separate mount, a temporary file is created in
# it without a name.
STRICT_CONFIG_DIRS = (
    "/etc/containerd/conf.d",
    "/etc/crio/crio.conf.d",
    "/etc/containers/containers.conf.d",
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
)
# Temporary files are created in these directories themselves. Docker and containerd cache what they have read, and read
# again after a file of the directory was written, renamed or removed. They do not notice a file that is moved in from
# elsewhere. A temporary name ends neither in .json nor in .yaml, so they ignore it (CDI project's library,
# pkg/cdi/cache.go).
INOTIFY_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")

# In these directories programs read only files with certain endings, so they ignore a temporary name.
_DISTRIBUTIONS_FOLDERS = (
    "/etc/k0s/containerd.d",
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/rke2/config.yaml.d",
)

CONFIG_DIRS = (*STRICT_CONFIG_DIRS, *INOTIFY_DIRS, *_DISTRIBUTIONS_FOLDERS)


# NVIDIA Container Toolkit 1.20: one program per mode, with the name under which it is registered beside the main one.
MAIN_PROGRAM = "nvidia-container-runtime"
MODE_PROGRAMS = {"cdi": MAIN_PROGRAM + ".cdi", "legacy": MAIN_PROGRAM + ".legacy"}


# The directories in which engines search for CDI specifications.
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
# The CDI kind of GPUs.
GPU_KIND = "nvidia.com/gpu"
