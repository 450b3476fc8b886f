# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the action behind every module that reads an engine's configuration.

from __future__ import annotations

import typing as t

from ansible import constants
from ansible.plugins.action.normal import ActionModule as NormalActionModule

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import packed

# What a host must be able to import to read an engine's configuration.  Each travels in the option shipped_NAME.
PACKAGES_OF_ENGINE: dict[str, tuple[str, ...]] = {
    "containerd": ("tomlkit",),
    "crio": ("tomlkit",),
}


class ShippingAction(NormalActionModule):
    """Runs the module of the same name as Ansible would, and sends along the packages that the host may lack.

    The task keeps its arguments: what travels shows up in no callback, register or log.
    """

    def packages(self) -> tuple[str, ...]:
        """The packages that a host may lack for this task."""
        return PACKAGES_OF_ENGINE.get(str(self._task.args.get("engine")), ())

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        module_args = dict(self._task.args)
        for name in self.packages():
            shipment = packed(name, constants.DEFAULT_LOCAL_TMP)  # type: ignore[attr-defined]
            if shipment is not None:
                module_args[f"shipped_{name}"] = shipment
        kwargs["module_args"] = module_args
        result: dict[str, t.Any] = super()._execute_module(*args, **kwargs)
        return result
