# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: folders whose every file is configuration to somebody.  Nothing else may be laid there, at
# least not as a backup.

from __future__ import annotations

# Not for a moment either.
CLOSED_FOLDERS = (
    "/etc/containerd/conf.d",
    "/etc/crio/crio.conf.d",
    "/etc/containers/containers.conf.d",
    "/etc/containers/oci/hooks.d",
    "/usr/share/containers/oci/hooks.d",
)
# Files are made here and nowhere else.  Docker and containerd keep in mind what they have read, and look again after a
# file of the folder was written, renamed or removed; one that is moved in from elsewhere they do not notice, and a
# temporary name, which ends neither in .json nor in .yaml, does no harm (CDI project's library, pkg/cdi/cache.go).
WATCHED_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")

# Of these only files with the endings of settings count, so that a temporary name does no harm either.
_DISTRIBUTIONS_FOLDERS = (
    "/etc/k0s/containerd.d",
    "/etc/rancher/k3s/config.yaml.d",
    "/etc/rancher/rke2/config.yaml.d",
)

PARSED_FOLDERS = (*CLOSED_FOLDERS, *WATCHED_FOLDERS, *_DISTRIBUTIONS_FOLDERS)
