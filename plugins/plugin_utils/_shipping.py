# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the action behind every module that reads what some hosts need a package for: the
# configuration of an engine, CDI specifications.

from __future__ import annotations

import typing as t

from ansible import constants
from ansible.plugins.action.normal import ActionModule as NormalActionModule

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import packed

# What a host must be able to import to read an engine's configuration.  Each travels in the option shipped_NAME.
PACKAGES_OF_ENGINE: dict[str, tuple[str, ...]] = {
    "containerd": ("tomlkit",),
    "crio": ("tomlkit",),
    "podman": ("tomlkit",),
}
# The configuration of k3s and RKE2 is in YAML; what flavour a host's containerd has is known there only.
PACKAGES_ON_DEMAND: dict[str, tuple[str, ...]] = {"containerd": ("yaml",)}
_NEVER_RETURNED = ("ansible_facts", "add_host", "add_group")


class ShippingAction(NormalActionModule):
    """Runs the module of the same name as Ansible would, and sends along the packages that the host may lack.

    The task keeps its arguments: what travels shows up in no callback, register or log.
    """

    def packages(self) -> tuple[str, ...]:
        """The packages that travel with this task in any case."""
        return PACKAGES_OF_ENGINE.get(str(self._task.args.get("engine")), ())

    def packages_on_demand(self) -> tuple[str, ...]:
        """Those that travel only to a host that lacks them, such as one whose containerd is part of k3s.

        The module must have changed nothing when it fails for want of one, with its name as the result ``needed``
        (MissingPackageError), for it is then run again.  In the background it cannot be: there these travel at once.
        """
        return PACKAGES_ON_DEMAND.get(str(self._task.args.get("engine")), ())

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)  # type: ignore[no-untyped-call]
        # The modules return none of these, which change variables and other tasks. A hostile host, or a user as whom a
        # module runs, can forge an answer. Only the interpreter that Ansible itself discovered is kept.
        for key in _NEVER_RETURNED:
            result.pop(key, None)
        if self._discovered_interpreter_key:
            result["ansible_facts"] = {self._discovered_interpreter_key: self._discovered_interpreter}
        return result

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        on_demand = self.packages_on_demand()
        names = [*self.packages(), *(on_demand if kwargs.get("wrap_async") else ())]
        module_args = {**self._task.args, **_shipments(names)}
        while True:
            # Ansible adds to the dictionary that it is given.
            result: dict[str, t.Any] = super()._execute_module(*args, **{**kwargs, "module_args": dict(module_args)})
            needed = result.get("needed")
            if needed not in on_demand or needed in names:
                break
            names.append(needed)
            shipments = _shipments([needed])
            if not shipments:
                break
            module_args.update(shipments)
        if needed in names:
            # It is between the module and this.
            del result["needed"]
        return result


def _shipments(names: t.Iterable[str]) -> dict[str, str]:
    """The options for those of the packages that the controller has."""
    packages = {name: packed(name, constants.DEFAULT_LOCAL_TMP) for name in names}  # type: ignore[attr-defined]
    return {f"shipped_{name}": shipment for name, shipment in packages.items() if shipment is not None}
