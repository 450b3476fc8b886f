# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the engines of a host that the role nvidia_runtime configures. This file imports nothing of Ansible.

Private to this collection. The facts are the results of nvidia_container_info: one of root, and one of each named user.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

AUTO, ALL = "auto", "all"
PRESENT, ABSENT = "present", "absent"
_ROOTLESS = "docker/rootless/"
_OWN_ROOTLESS = "docker/rootless"
_SEPARATE = ("/k3s", "/rke2")
_SYSTEM = re.compile(r"([a-z]+)/system")
_UNIT_WITHOUT_SUFFIX = re.compile(r"[a-z]+/system/[^.]+")

EngineInfo = t.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The variables of the role that select engines.

    ``engines`` is empty for auto, and ``users`` is None for all users whose engine runs. ``offline`` is true for a
    directory tree that is not the file system of a running host.
    """

    engines: tuple[str, ...] = ()
    flavor: str = AUTO
    users: tuple[str, ...] | None = ()
    state: str = PRESENT
    offline: bool = False
    check_mode: bool = False

    @classmethod
    def of(cls, values: t.Mapping[str, t.Any]) -> Settings:
        """Build the settings from the values of the variables, by their names without the prefix of the role."""
        users = values["users"]
        root = str(values["host_root"])
        return cls(
            engines=named_engines(values["engines"]),
            flavor=str(values["flavor"]),
            users=None if users == ALL else tuple(str(user) for user in users),
            state=str(values["state"]),
            offline=root != "/" and not values["host_root_live"],
            check_mode=bool(values["check_mode"]),
        )


@dataclasses.dataclass(frozen=True)
class Selection:
    """The engines of a host that the role configures.

    Attributes:
        engines: The engines that were inspected, as nvidia_container_info describes them.
        targets: The names of the engines to configure.
        users: The users as whom tasks for rootless engines run.
        kubelet: The engines that the kubelet uses.
        errors: Reasons not to configure anything on this host.
    """

    engines: tuple[EngineInfo, ...]
    targets: tuple[str, ...]
    users: tuple[str, ...]
    kubelet: tuple[str, ...]
    errors: tuple[str, ...]


def named_engines(engines: object) -> tuple[str, ...]:
    """Return the value of nvidia_runtime_engines with the names of nvidia_container_info; empty for auto."""
    if engines == AUTO:
        return ()
    names = [engines] if isinstance(engines, str) else list(t.cast("t.Iterable[object]", engines))
    return tuple(_usual_name(str(name)) for name in names)


def _usual_name(name: str) -> str:
    system = _SYSTEM.fullmatch(name)
    if system is not None:
        return system[1]
    return f"{name}.service" if _UNIT_WITHOUT_SUFFIX.fullmatch(name) else name


def users_of(settings: Settings, engines: t.Sequence[EngineInfo]) -> tuple[str, ...]:
    """Return the users whose rootless engines the role configures.

    Any user may have a rootless Docker, so only users that the play names are configured.

    Args:
        settings: The variables of the role.
        engines: What root has found on the host. It is only used for ``all``.
    """
    found = [str(engine["user"]) for engine in engines if engine.get("user")]
    named = [name[len(_ROOTLESS) :] for name in settings.engines if name.startswith(_ROOTLESS)]
    return _unique([*(found if settings.users is None else settings.users), *filter(None, named)])


def select(
    settings: Settings, of_root: t.Sequence[EngineInfo], of_users: t.Mapping[str, t.Sequence[EngineInfo]]
) -> Selection:
    """Select the engines of a host.

    Args:
        settings: The variables of the role.
        of_root: The engines that root has found.
        of_users: The engines that each user has found. A user can forge them, so only the user's own engine is used.

    Returns:
        The selection, with the reasons not to configure anything.
    """
    users = users_of(settings, of_root)
    # Root opens no file of a user, and reports only that such an engine runs.
    inspected = [engine for engine in of_root if engine["inspected"]]
    for user in users:
        own = [engine for engine in of_users.get(user, ()) if engine.get("inspected")]
        inspected += [engine for engine in own if engine.get("target") == f"{_ROOTLESS}{user}"]
    errors = _record_errors(of_root, users)
    if not settings.offline and not settings.check_mode and settings.state == PRESENT:
        errors += _missing(settings, inspected, [user for user in users if user not in of_users])
    return Selection(
        engines=tuple(inspected),
        targets=_targets(settings, inspected),
        users=users,
        kubelet=_unique(str(engine["target"]) for engine in of_root if engine.get("used_by_kubelet")),
        errors=tuple(errors),
    )


def _targets(settings: Settings, inspected: t.Sequence[EngineInfo]) -> tuple[str, ...]:
    found = [
        engine
        for engine in inspected
        if settings.flavor in (AUTO, engine["flavor"])
        and (engine["installed"] or (settings.state == ABSENT and engine["recorded_files"]))
    ]
    if not settings.engines:
        return _unique(str(engine["target"]) for engine in found)
    complete = [name for name in settings.engines if "/" in name]
    matching = [str(engine["target"]) for engine in found if engine["engine"] in settings.engines]
    known = {engine["engine"] for engine in found}
    others = [name for name in settings.engines if "/" not in name and name not in known]
    return _unique([*complete, *matching, *(others if settings.flavor == AUTO else [])])


def _record_errors(of_root: t.Sequence[EngineInfo], users: t.Sequence[str]) -> list[str]:
    """Return the problems of users' engines that root has found, such as records that only root can read."""
    foreign = [engine for engine in of_root if not engine["inspected"] and engine.get("user") in users]
    return [str(problem["message"]) for engine in foreign for problem in engine["problems"]]


def _missing(settings: Settings, inspected: t.Sequence[EngineInfo], unknown_users: t.Sequence[str]) -> list[str]:
    """Return an error for named engines that the host does not have.

    An engine with problems may be installed, and its module reports why it cannot be read. A unit of a second
    containerd is not searched for.
    """
    existing = [engine for engine in inspected if engine["installed"] or engine["problems"]]
    known = {engine[key] for engine in existing for key in ("engine", "target")}
    known |= {f"{_ROOTLESS}{user}" for user in unknown_users}
    missing = [name for name in settings.engines if name not in known and "/system/" not in name]
    if not missing:
        return []
    names = " and ".join(missing)
    advice = "Install the engine first, remove it from nvidia_runtime_engines, or set that to auto."
    return [f"nvidia_runtime_engines names {names}, which this host does not have. {advice}"]


def groups_of_root(targets: t.Iterable[str]) -> list[list[str]]:
    """Return the targets of each run of nvidia_runtime_config that does not run as a named user.

    K3s and RKE2 are separate, because in check mode the other engines may get a default runtime that these may not
    get. A rootless engine without a user belongs to the user of the connection.
    """
    of_root = [target for target in targets if not is_of_user(target)]
    separate = [target for target in of_root if target.endswith(_SEPARATE)]
    own = [target for target in of_root if target == _OWN_ROOTLESS]
    others = [target for target in of_root if target not in separate and target not in own]
    return [group for group in (others, separate, own) if group]


def is_of_user(target: str) -> bool:
    """Return whether the tasks for this engine run as a user that the play names."""
    return target.startswith(_ROOTLESS)


def target_of(user: str) -> str:
    """Return the name of a user's rootless engine."""
    return f"{_ROOTLESS}{user}"


def _unique(names: t.Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
