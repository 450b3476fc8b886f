# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_host_summary: it fails with the errors of a host, or prints how far a play has come."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _controller_action, _reports, _role_state

# The same as in plugins/modules/nvidia_host_summary.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "line": {"type": "int", "default": 0},
    "of_batch": {"type": "bool", "default": False},
}


class ActionModule(_controller_action.ControllerAction):
    """The action that reads the registered results of hosts as they are, and evaluates nothing in them."""

    arguments = ARGUMENTS

    def work(self, given: dict[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any]:
        if given["of_batch"]:
            hosts = variables["ansible_play_batch"]
            # Some releases of ansible-core evaluate templates in what hosts have answered, if it comes from hostvars in
            # another way (CVE-2024-11079).
            known = {host: _role_state.table(variables["hostvars"].raw_get(host)) for host in hosts}
            forged = {host for host in hosts if _check.facts_problems(known[host])}
            fails = {host: host in forged or bool(_role_state.errors_of(known[host])) for host in hosts}
            line = _reports.line_of_batch(variables, fails)
            return {"changed": False, "msg": line, "_ansible_verbose_always": True}
        lines = _reports.lines_of(variables)
        error = lines[given["line"]][1] if given["line"] < len(lines) else ""
        if error:
            # In a loop, the item is the line of the host.
            line = "" if self._task.loop else _reports.line_of_failure(variables)
            return {"failed": True, "changed": False, "msg": f"{error} {line}".rstrip()}
        return {"changed": False}
