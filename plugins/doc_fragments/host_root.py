# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options that name the host's file system, and the group of the modules that have them."""

    DOCUMENTATION = r"""
attributes:
  action_group:
    description: Use C(group/gpufleet.nvidia.all) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpufleet.nvidia.all
options:
  host_root:
    description:
      - Root directory of the host that the module reads or changes.
      - Any value other than V(/) is an offline tree, such as an image that is being built. Symbolic links are resolved
        inside the tree. The module runs no program of the tree, and asks no process and no socket of the machine on
        which it runs.
      - All other paths are paths as the host itself sees them, without this directory.
      - A module that writes refuses a directory that another user could replace during the task, because root would
        then write outside it. The directory and every directory above it must belong to root or to the user that the
        module runs as, and must not be writable by other users. A directory above it may be writable by others if it
        has the sticky bit, such as C(/tmp).
      - A tree that is not live, such as an image in the home directory of a user, may also belong to the user who runs
        the task through C(sudo) (C(SUDO_UID)). Root itself does not write into a tree of another user. Run the task as
        that user or through C(sudo) of that user, or make root the owner of the tree.
    type: path
    default: /
  host_root_live:
    description:
      - Whether the tree at O(host_root) is the root file system of a running host, for example mounted into a
        container.
      - With V(true), programs are run through C(chroot), and the sockets and C(/proc) inside the tree are read. Every
        module then refuses a directory that another user could replace.
      - With V(false), a tree other than V(/) is offline.
    type: bool
    default: false
"""
