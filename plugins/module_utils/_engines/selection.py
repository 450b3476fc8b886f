# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which engines the variables of the role nvidia_runtime select, from the description of the engines.

The first inspection of a host (``requirements``) and the role (``plugin_utils/_engine_selection``) use these functions,
so both configure the same engines and print the same errors. An engine is described as in ``engines`` of
nvidia_container_info.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

AUTO = core_constants.AUTO
_OF_USER, _SYSTEM = "rootless", "/system"
_ROOTLESS = f"docker/{_OF_USER}/"
_UNIT = re.compile(r"([a-z]+)/system/(.+)")

Described = t.Mapping[str, t.Any]


class Wanted(t.NamedTuple):
    """What the user selects: ``engines`` is None for auto."""

    engines: tuple[str, ...] | None = None
    flavor: str = AUTO

    @property
    def named(self) -> tuple[str, ...]:
        """The engines that the user names."""
        return self.engines or ()

    @property
    def of_root(self) -> bool:
        """Whether only root can configure the engines. A user may configure the own rootless Docker."""
        names = (self.flavor, *(name for entry in self.named for name in entry.split("/")))
        return _OF_USER not in names


def wanted_of(engines: object, flavor: str) -> Wanted:
    """Return the values of nvidia_runtime_engines and nvidia_runtime_flavor, with usual names."""
    listed = [engines] if isinstance(engines, str) else list(t.cast("t.Iterable[object]", engines))
    names = [str(name) for name in listed]
    return Wanted(engines=None if AUTO in names else tuple(_usual_name(name) for name in names), flavor=str(flavor))


def _usual_name(name: str) -> str:
    """Return the name of an engine as nvidia_container_info spells it."""
    found = _UNIT.fullmatch(name)
    if found is None:
        return name
    engine, unit = found[1], systemd_units.unit_name(found[2])
    row = flavors.FLAVORS.get((engine, core_constants.SYSTEM))
    is_usual = row is not None and unit in row.services
    return f"{engine}{_SYSTEM}" if is_usual else f"{engine}{_SYSTEM}/{unit}"


def is_of_unit(target: str) -> bool:
    """Return whether the target is an engine with a unit of its own, which an inspection may not find."""
    found = _UNIT.fullmatch(target)
    row = flavors.FLAVORS.get((found[1], core_constants.SYSTEM)) if found is not None else None
    return row is not None and row.by_unit


def is_of_user(target: str) -> bool:
    """Return whether only a task that runs as the owner of this engine can configure it."""
    return target.startswith(_ROOTLESS)


def target_named(name: str) -> str:
    """Return the target of an engine that the user names: ``containerd`` for ``containerd/system``."""
    return name[: -len(_SYSTEM)] if name.endswith(_SYSTEM) else name


def _names_of(engine: Described) -> set[str]:
    """Return the names that stand for one engine and for no other flavor of it."""
    target = str(engine["target"])
    return {target} if "/" in target else {f"{target}{_SYSTEM}"}


def selected(wanted: Wanted, engines: t.Sequence[Described]) -> list[Described]:
    """Return the engines that are configured if they are installed."""
    return [engine for engine in engines if _is_selected(wanted, engine)]


def _is_selected(wanted: Wanted, engine: Described) -> bool:
    if not _names_of(engine).isdisjoint(wanted.named):
        return True
    is_named = wanted.engines is None or engine["engine"] in wanted.engines
    return is_named and wanted.flavor in (AUTO, engine["flavor"])


def targets(wanted: Wanted, inspected: t.Sequence[Described], *, removal: bool = False) -> tuple[str, ...]:
    """Return the names of the engines to configure.

    Args:
        wanted: What the user selects.
        inspected: The engines that a task could inspect.
        removal: Whether engines that have been removed, but whose files this collection changed, are configured too.
    """
    existing = [engine for engine in inspected if engine["installed"] or (removal and engine["recorded_files"])]
    found = selected(wanted, existing)
    # They may be installed later.
    known = {engine["engine"] for engine in found}
    others = [name for name in wanted.named if "/" not in name and name not in known]
    names = [
        *(target_named(name) for name in wanted.named if "/" in name),
        *(str(engine["target"]) for engine in found),
        *(others if wanted.flavor == AUTO else []),
    ]
    return tuple(dict.fromkeys(names))


def missing_errors(names: t.Sequence[str], inspected: t.Sequence[Described], flavor: str = AUTO) -> list[str]:
    """Return an error for named engines that the host does not have.

    An engine with problems may be installed, and its module reports why it cannot be read. The module also reports a
    unit of a second containerd that does not exist.

    Args:
        names: The engines that must exist.
        inspected: The engines that a task could inspect.
        flavor: The flavor that an engine named without a flavor must have.
    """
    existing = [engine for engine in inspected if engine["installed"] or engine["problems"]]
    known = {name for engine in existing for name in _names_of(engine)}
    known.update(str(engine["engine"]) for engine in existing if flavor in (AUTO, engine["flavor"]))
    missing = [name for name in names if name not in known and not is_of_unit(name)]
    if not missing:
        return []
    where = "" if flavor == AUTO else f" in the flavor {flavor} (nvidia_runtime_flavor)"
    if flavor == _OF_USER:
        where += " for the user as whom the task runs (become_user)"
    advice = "Install the engine first, remove it from nvidia_runtime_engines, or set that to auto."
    return [f"nvidia_runtime_engines names {' and '.join(missing)}, which this host does not have{where}. {advice}"]
