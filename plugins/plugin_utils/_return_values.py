# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read from the documentation of each module which values it returns, and of which types.

Private to this collection. ``_results`` builds the results of hosts from these values only.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import later_tasks
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._results import Shape, Shapes

_RETURN = re.compile(r'^RETURN = r"""\n(.*?)^"""', re.MULTILINE | re.DOTALL)
_INFO, _PLAN, _CONFIG = "nvidia_container_info", "nvidia_site_plan", "nvidia_runtime_config"
# A module of which nothing is known.
NONE: Shapes = {}
# What modules return only for the action plugins of this collection: the package that the host requests (_bundled).
_INTERNAL: Shapes = {"needed": Shape("str")}


def _shape(option: t.Mapping[str, t.Any]) -> Shape:
    """Return the documented type of a value. ``contains`` describes a dictionary, or the dictionaries of a list."""
    contains = option.get("contains")
    known = {name: _shape(value) for name, value in contains.items()} if contains else None
    if option["type"] != "list":
        return Shape(option["type"], contains=known)
    return Shape("list", elements=Shape(option.get("elements", "raw"), contains=known))


def _documented(module: Path) -> Shapes:
    found = _RETURN.search(module.read_text(encoding="utf-8"))
    values = yaml_load(found[1]) if found else {}
    return {name: _shape(value) for name, value in values.items()}


def _read_all(folder: Path) -> dict[str, Shapes]:
    found = {path.stem: _documented(path) for path in sorted(folder.glob("nvidia_*.py"))}
    # Each of its engines has the values that it returns for a single one.
    of_engine = {**found[_CONFIG], "changed": Shape("bool"), "error": Shape("str")}
    found[_CONFIG] = {**found[_CONFIG], "engines": Shape("list", Shape("dict", contains=of_engine))}
    ahead = {name: Shape("result", contains=found[name]) for name in later_tasks.MODULES}
    found[_PLAN] = {**found[_INFO], later_tasks.AHEAD: Shape("dict", contains=ahead)}
    return {name: {**shapes, **_INTERNAL} for name, shapes in found.items()}


# The values that each module returns, by its name. Read here, since Ansible imports an action plugin once, before it
# forks for the hosts.
OF_MODULE = _read_all(Path(__file__).resolve().parents[1] / "modules")
