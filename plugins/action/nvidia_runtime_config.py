# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of nvidia_runtime_config: with ``targets``, its result has one entry for each of them."""

from __future__ import annotations

import itertools
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import (
    PACKAGES_OF_ENGINE,
    BundledAction,
    Packages,
)

# Their settings are in YAML, and they run as root, so one task can contain them and other engines.
_IN_YAML = ("containerd/k3s", "containerd/rke2")
# The values of a result that the role nvidia_runtime uses, and their types.
_VALUES: dict[str, tuple[type, ...]] = {
    "changed": (bool,),
    "restart_required": (bool,),
    "restart_action": (str,),
    "pending_action": (str, type(None)),
    "runtimes": (dict,),
    "default_runtime": (str,),
    "backup_files": (list,),
    "service": (str,),
    "cdi": (bool, type(None)),
}


class ActionModule(BundledAction):
    """The action that also sends the packages of all engines in ``targets``."""

    def packages(self) -> Packages:
        targets = self._targets()
        rows = [PACKAGES_OF_ENGINE.get(name.partition("/")[0], Packages()) for name in targets]
        if not rows:
            return super().packages()
        always, on_demand = (tuple(dict.fromkeys(itertools.chain(*names))) for names in zip(*rows))
        if len(targets) > 1 and any(name in targets for name in _IN_YAML):
            # The module cannot request a package after it has changed another engine.
            always = tuple(dict.fromkeys([*always, *on_demand]))
        return Packages(always, on_demand)

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        targets = self._targets()
        # A task with async has no result yet.
        if targets and not result.get("skipped") and not self._task.async_val:
            result["engines"] = _complete(targets, result)
        return result

    def _targets(self) -> list[str]:
        given = self._task.args.get("targets") or []
        names = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
        return list(dict.fromkeys(str(name).strip() for name in names))


def _complete(targets: list[str], result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return one result for each target, with an error for those about which the module has returned nothing.

    A host, or a user as whom the module runs, can forge an answer. It can only contain these targets. An entry with
    other values would make a later task of the role fail, and so prevent the restarts of the other engines.
    """
    returned = result.get("engines")
    entries = {
        entry["target"]: {**entry, "changed": entry.get("changed") is True}
        for entry in (returned if isinstance(returned, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("target"), str) and _is_usable(entry)
    }
    error = str(result.get("msg") or "The module has returned no result for this engine.")
    return [entries.get(name, {"target": name, "changed": False, "error": error}) for name in targets]


def _is_usable(entry: dict[str, t.Any]) -> bool:
    if "error" in entry:
        return isinstance(entry["error"], str)
    return all(name in entry and isinstance(entry[name], kinds) for name, kinds in _VALUES.items())
