# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_warn: it prints the warnings of a role."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

# The same as in plugins/modules/nvidia_warn.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {"warnings": {"type": "list", "elements": "str", "required": True}}


class ActionModule(ActionBase):
    """The action that returns texts as warnings. No task of Ansible does so, and texts in a result are easy to miss."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(argument_spec=ARGUMENTS)  # type: ignore[no-untyped-call]
        host = (task_vars or {}).get("inventory_hostname", "")
        return {**result, "changed": False, "warnings": [f"{host}: {text}" for text in given["warnings"]]}
