# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The options that select an engine of a host."""

    DOCUMENTATION = r"""
options:
  flavor:
    description:
      - How the engine was installed on the host.
      - V(system) is the package of the operating system or of the vendor.
      - V(k3s), V(rke2), V(k0s), and V(microk8s) are the containerd inside these distributions of Kubernetes.
      - V(rootless) is the Docker of the user as whom the task runs. It needs C(become_user), and is refused for root.
      - V(snap) is Docker as a snap. It cannot be configured.
      - V(auto) uses the flavor that the host has. If the host has several, the task fails and the message names them.
    type: str
    choices: [auto, system, snap, rootless, k3s, rke2, k0s, microk8s]
    default: auto
  user:
    description:
      - The user to whom the rootless Docker belongs. It implies O(flavor=rootless).
      - The task must run as that user (C(become_user)). When left out, O(flavor=rootless) uses the user as whom the
        task runs.
    type: str
"""
