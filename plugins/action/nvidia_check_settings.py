# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_check_settings: it checks a host's variables on the controller."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _controller_action, _settings

# The same as in plugins/modules/nvidia_check_settings.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "own_variables": {"type": "list", "elements": "str", "default": []},
    "own_tags": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(_controller_action.ControllerAction):
    """The action that refuses misspelled variables and tags, and values that a role would refuse after other changes.

    Only the variables of roles are evaluated, in the same way as by the roles. Of all others only the names are read.
    """

    arguments = ARGUMENTS
    refuses_facts = False

    def work(self, given: dict[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any]:
        tags = [*(variables.get("ansible_run_tags") or ()), *(variables.get("ansible_skip_tags") or ())]
        errors = _settings.tag_problems(tags, given["own_tags"])
        problems = _check.check(self, variables, given["own_variables"])
        errors += problems.errors
        if errors:
            return {"failed": True, "msg": "\n".join(errors), "warnings": problems.warnings}
        return {"changed": False, "warnings": problems.warnings}
