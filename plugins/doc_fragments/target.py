# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Which of a host's engines is meant."""

    DOCUMENTATION = r"""
options:
  flavor:
    description:
      - How the engine comes to the host.
      - V(system) is the operating system's or the vendor's package. For containerd there are the ones inside V(k3s),
        V(rke2), V(k0s), and V(microk8s) too.
      - V(rootless) is the Docker of the user as whom the task runs, so it needs C(become_user). As root it is refused.
      - V(snap) is Docker as a snap. It cannot be configured; what earlier versions changed in it can be restored.
      - V(auto) takes the one that the host has. A host with several fails, and the message names them.
    type: str
    choices: [auto, system, snap, rootless, k3s, rke2, k0s, microk8s]
    default: auto
  user:
    description:
      - The user whose rootless Docker is meant, for a task that states it. It implies O(flavor=rootless).
      - The task has to run as that user (C(become_user)). When left out, O(flavor=rootless) means that user anyway.
    type: str
"""
