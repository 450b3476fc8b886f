# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names and directories that several packages use: directories that daemons read, flavors, program names."""

from __future__ import annotations

# The flavor that the host has.
AUTO = "auto"
# The flavor of an engine that the packages of the operating system or of the vendor install.
SYSTEM = "system"
# The internal option in which the action plugin sends packages and the toolkit to a module.
BUNDLED = "_bundled"
# A new ID at each boot (random(4)).
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# If the unit of an engine is not the default one, its records are stored under UNIT_PREFIX + the name of the unit
# instead of the engine's key.
UNIT_PREFIX = "unit-"


# CONFIG_DIRS, below, are the directories in which programs read all files, or all files with certain endings, as
# configuration. This collection writes only configuration there, and never backups. The names of temporary files
# (_core/atomic_write.py) begin with .gpufleet- and end in .tmp. How programs treat such a name:
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
# In these directories no temporary file gets a name. It is created in a parent directory, or without a name if the
# directory is a separate mount.
STRICT_CONFIG_DIRS = (
    "/etc/containerd/conf.d",
    "/etc/crio/crio.conf.d",
    "/etc/containers/containers.conf.d",
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
)
# Temporary files are created in these directories themselves. Docker and containerd cache the files, and read them
# again after a file in the directory was written, renamed or removed. They do not notice a file that is moved in from
# another directory. A temporary name ends neither in .json nor in .yaml, so they ignore it (CDI project's library,
# pkg/cdi/cache.go).
INOTIFY_DIRS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")

# K3s, RKE2 and k0s read only files with certain endings in these directories, so they ignore a temporary name.
_DISTRIBUTION_DIRS = (
    "/etc/k0s/containerd.d",
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/rke2/config.yaml.d",
)

CONFIG_DIRS = (*STRICT_CONFIG_DIRS, *INOTIFY_DIRS, *_DISTRIBUTION_DIRS)


# The main runtime program of the NVIDIA Container Toolkit 1.20, and by mode the programs that have only that mode.
# The UIDs of the first user namespace, as in /proc/PID/uid_map (user_namespaces(7)).
ALL_USERS = "0 0 4294967295"

MAIN_PROGRAM = "nvidia-container-runtime"
MODE_PROGRAMS = {"cdi": MAIN_PROGRAM + ".cdi", "legacy": MAIN_PROGRAM + ".legacy"}


# The directories in which engines search for CDI specifications.
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
# The CDI kind of GPUs.
GPU_KIND = "nvidia.com/gpu"
