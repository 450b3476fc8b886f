# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last lines of a playbook about a host, and about the hosts of all batches. This file imports nothing of Ansible.

Private to this collection.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _batches, _host_line, _role_state

Variables = _role_state.Variables
PLAY = _role_state.PLAY
ROLLING, VERIFY = "rolling", "verify"
_KINDS_WITH_GPUS = ("driver", "pci")


def lines_of(variables: Variables) -> list[tuple[str, str]]:
    """Return the last lines of a playbook about a host, each with the error of the host or an empty text."""
    line = _line(variables, interrupted=False)
    if variables.get(PLAY) != VERIFY:
        return [(line, " | ".join(_role_state.errors_of(variables)))]
    return [*_host_line.verified_lines(variables, _nothing_to_verify(variables)), (line, "")]


def line_of_failure(variables: Variables) -> str:
    """Return what the error of a task that fails now says about its host. Empty in other plays than those of PLAY."""
    playbook = variables.get(PLAY)
    if not isinstance(playbook, str):
        return ""
    text = f"State of this host: {_line(variables, interrupted=True)}."
    if playbook != ROLLING:
        return text
    host, batch = variables["inventory_hostname"], variables["ansible_play_batch"]
    found = _batches.progress(
        variables["ansible_play_hosts_all"], variables["ansible_play_hosts"], batch, [host], batch
    )
    return f"{text} {_batches.summary(found)}"


def line_of_batch(variables: Variables, errors: t.Mapping[str, bool]) -> str:
    """Return the line about all hosts after a batch.

    Args:
        variables: The variables of a host of the batch, not evaluated.
        errors: Whether each host of the batch will fail.
    """
    failed = [host for host, fails in errors.items() if fails]
    batch = variables["ansible_play_batch"]
    found = _batches.progress(variables["ansible_play_hosts_all"], variables["ansible_play_hosts"], batch, failed)
    return _batches.summary(found)


def _line(variables: Variables, interrupted: bool) -> str:
    situation = _host_line.Situation(
        check_mode=bool(variables.get("ansible_check_mode")),
        interrupted=interrupted,
    )
    return _host_line.host_line(variables, situation)


def _nothing_to_verify(variables: Variables) -> str:
    gpu = _role_state.gpu_of(variables)
    if gpu.get("kind") in _KINDS_WITH_GPUS:
        return _host_line.missing_engine(variables)
    return "WSL and Tegra are not supported" if gpu.get("present") else "no NVIDIA GPU"
