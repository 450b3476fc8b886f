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


class ActionModule(BundledAction):
    """The action that also sends the packages of all engines in ``targets``."""

    def packages(self) -> Packages:
        rows = [PACKAGES_OF_ENGINE.get(name.partition("/")[0], Packages()) for name in self._targets()]
        if not rows:
            return super().packages()
        always, on_demand = (tuple(dict.fromkeys(itertools.chain(*names))) for names in zip(*rows))
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
        return [str(name).strip() for name in (given.split(",") if isinstance(given, str) else given)]


def _complete(targets: list[str], result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return one result for each target, with an error for those about which the module has returned nothing.

    A host, or a user as whom the module runs, can forge an answer. It can only contain these targets.
    """
    returned = result.get("engines")
    entries = {
        entry["target"]: {"changed": False, **entry}
        for entry in (returned if isinstance(returned, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("target"), str)
    }
    error = str(result.get("msg") or "The module has returned no result for this engine.")
    return [entries.get(name, {"target": name, "changed": False, "error": error}) for name in targets]
