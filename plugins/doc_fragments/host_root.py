# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options that name the host's file system."""

    DOCUMENTATION = r"""
options:
  host_root:
    description:
      - Root directory of the host that is looked at or changed.
      - Anything but V(/) is an offline tree, such as an image being built. Symbolic links are resolved inside it, none
        of its programs is run, and no process or socket of the machine that runs the module is asked.
      - All other paths are written as the host itself sees them, without this directory.
      - A module that writes refuses a directory that another user could replace meanwhile, since root would then write
        outside it. It and every directory above it must belong to root or to the user that the module runs as, and must
        not be writable by other users; a directory above it may be if it has the sticky bit, such as C(/tmp).
      - A tree that is not live, such as an image in a user's home, may also belong to the user who runs the task
        through C(sudo) (C(SUDO_UID)). Root itself does not write into a tree of another user. Run the task as that user
        or through that user's C(sudo), or give the tree to root.
    type: path
    default: /
  host_root_live:
    description:
      - The tree at O(host_root) is the root file system of a running host, for example mounted into a container.
      - Programs are then run through C(chroot), and sockets and C(/proc) inside the tree are consulted.
      - Every module then refuses a directory that another user could replace.
    type: bool
    default: false
"""
