# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the restarts and verifications after a configuration of engines. This file imports nothing of Ansible.

Private to this collection. The handlers of the role nvidia_runtime execute the plan as it is.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import selection as engines_selection

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._engine_selection import Selection

ABSENT, PRESENT = "absent", "present"
NONE, RELOAD, RESTART = "none", "reload", "restart"
OFF = "off"
LEVELS = ("config", "engine", "gpu")
# From the weakest to the strongest.
_ACTIONS = (NONE, RELOAD, RESTART)
_ROOTLESS = "rootless"
# The runtimes of this collection, besides the one that the role names. Only these are expected after a restart.
_OWN_RUNTIMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
# A containerd with a unit of the system. Without CRI it has no runtimes.
_WITH_CRI = re.compile(r"containerd(/system/.*)?")

# Engines that start a container only from an image that the user names.
_NEED_IMAGE = tuple(name for name, facts in flavors.FACTS.items() if facts.cri)

Result = t.Mapping[str, t.Any]
# One engine of the plan, a dictionary of plain values, because tasks read it and it is stored in a result.
Entry = t.Dict[str, t.Any]


def image_of(engine: str, image: object, command: object = None) -> str:
    """Return the image with which an engine is verified.

    Docker and Podman need none and may not have that of a CRI. Only a command of the user may need it.
    """
    return str(image) if image and (command or engine in _NEED_IMAGE) else ""


@dataclasses.dataclass(frozen=True)
class Options:
    """The variables of the role that decide about restarts. ``values`` are those that each entry of the plan contains.

    ``registers`` is false if containers get GPUs through CDI alone. ``cdi_written`` is true if the role nvidia_cdi
    manages a CDI specification of this host, or units that write one.
    """

    values: t.Mapping[str, t.Any]
    state: str = PRESENT
    host_root: str = "/"
    host_root_live: bool = False
    offline: bool = False
    check_mode: bool = False
    restart_mode: str = "auto"
    purge_backups: bool = False
    verify: str = OFF
    registers: bool = True
    runtime_name: str = "nvidia"
    enable_cdi: str = ""
    cdi_written: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """What remains to be done for the engines of one task.

    Attributes:
        entries: The engines to restart, to reload, or only to verify.
        changed: Whether an engine has to be restarted or reloaded although its files were not changed.
        warnings: Messages about engines that the play leaves in a state that the user may not expect.
        errors: The errors of the configuration, each with the name of its engine.
    """

    entries: tuple[Entry, ...]
    changed: bool
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


class Planner:
    """Plans for the results of one task."""

    def __init__(self, selection: Selection, options: Options, earlier: t.Sequence[Entry]) -> None:
        """Find the engines that may be restarted.

        Args:
            selection: The engines of the host.
            options: The variables of the role.
            earlier: The entries of earlier runs of the role in the same play that no handler has executed yet.
        """
        self._selection, self._options = selection, options
        self._earlier = {key_of(entry): entry for entry in earlier}
        engines = selection.engines
        running = [engine for engine in engines if engine["running"]]
        self.interrupted = () if options.offline else tuple(e["target"] for e in engines if e.get("unfinished_restart"))
        # An engine that was stopped on purpose stays stopped. One that an interrupted restart may have stopped is
        # restarted. An engine without systemd gets a signal.
        self._restartable: tuple[str, ...] = ()
        if options.restart_mode != NONE:
            self._restartable = (*(e["target"] for e in running if e["service"]), *self.interrupted)
        self._reloadable: tuple[str, ...] = ()
        if options.restart_mode in ("auto", "signal"):
            self._reloadable = tuple(e["target"] for e in running if not e["service"])

    def plan(self, results: t.Sequence[Result]) -> Plan:
        """Plan the restarts of the engines that a task has configured.

        Args:
            results: The result of each engine, as ``engines`` of nvidia_runtime_config.

        Returns:
            The plan. The caller gives each entry an ``id``.
        """
        results = [self._permitted(result) for result in results]
        configured = [result for result in results if "error" not in result]
        entries = [self._entry(result) for result in configured if self._has_work(result)]
        return Plan(
            entries=tuple(entries),
            changed=any(self._is_outdated(result) for result in configured),
            warnings=(*self._warnings_of_host(), *self._warnings(configured)),
            errors=tuple(f"{result['target']}: {result['error']}" for result in results if "error" in result),
        )

    def _is_restartable(self, result: Result) -> bool:
        target = result["target"]
        if target in self._restartable:
            return True
        # An inspection may not find a unit that the user names. Then the task that configured it knows whether it runs.
        is_new = all(engine["target"] != target for engine in self._selection.engines)
        is_running = engines_selection.is_of_unit(target) and bool(result.get("pending_action"))
        return is_new and is_running and self._options.restart_mode != NONE

    def _permitted(self, result: Result) -> Result:
        """Return the result without a restart that the mode does not permit, and that the files do not need."""
        if self._options.restart_mode != "signal" or not result.get("missed_toolkit"):
            return result
        action = RELOAD if result["changed"] else NONE
        return {**result, "pending_action": action, "restart_required": action != NONE}

    def _has_work(self, result: Result) -> bool:
        return self._needs_restart(result) or self._level(result) != OFF

    def _is_outdated(self, result: Result) -> bool:
        """Return whether the daemon has to apply files from before this task.

        This is a change, so that the handlers also run after a play that ended before its handlers.
        """
        target = result["target"]
        if self._is_restartable(result):
            return bool(result["restart_required"]) or target in self.interrupted
        by_signal = target in self._reloadable and result["pending_action"] == RELOAD
        return bool(result["restart_required"]) and by_signal

    def _needs_restart(self, result: Result) -> bool:
        target = result["target"]
        if not (result["changed"] or result["restart_required"] or target in self.interrupted):
            return False
        return self._is_restartable(result) or (target in self._reloadable and self._action(result) == RELOAD)

    def _action(self, result: Result) -> str:
        target = result["target"]
        if target in self.interrupted:
            is_reload = self._options.restart_mode == "signal" or target in self._reloadable
            return RELOAD if is_reload else RESTART
        # pending_action covers all changes, including earlier and reverted ones. Without it, the stronger of two
        # actions is used.
        pending = result["pending_action"]
        actions = [pending] if pending else [result["restart_action"], self._of_earlier(result, "action", NONE)]
        # A host can forge the result, so an unknown action counts as the strongest one.
        return max((str(action) if action in _ACTIONS else RESTART for action in actions), key=_ACTIONS.index)

    def _of_earlier(self, result: Result, name: str, default: t.Any) -> t.Any:
        return self._earlier.get((self._options.host_root, result["target"]), {}).get(name, default)

    def _level(self, result: Result) -> str:
        options = self._options
        if options.verify not in LEVELS or options.state == ABSENT or options.check_mode:
            return OFF
        # A containerd whose CRI is disabled has no runtimes of this collection. Podman never has any.
        needs_none = result["target"] == "podman" or (not options.registers and result["cdi"])
        return options.verify if needs_none or options.runtime_name in result["runtimes"] else OFF

    def _entry(self, result: Result) -> Entry:
        """Return what the handlers need. They do not see variables that are set for the role only."""
        options, target = self._options, str(result["target"])
        # The action plugin has checked the target. A host can forge the rest of a result.
        engine, flavor, instance = parts_of(target)
        action = self._action(result) if self._needs_restart(result) else self._of_earlier(result, "action", NONE)
        purged = options.purge_backups and options.state == ABSENT
        where = "" if options.host_root == "/" else f"{options.host_root} "
        # Podman has no service, and the services of users have one name.
        name = target if flavor == _ROOTLESS else result["service"] or target
        return {
            **options.values,
            "label": f"{where}{name}",
            "engine_info": {"engine": engine, "flavor": flavor, "instance": instance, "target": target,
                            "service": result["service"], "host_root": options.host_root},
            "user": instance if flavor == _ROOTLESS else "",
            "unit": instance if flavor == "system" else "",
            "host_root_live": options.host_root_live,
            "action": action,
            "mode": options.restart_mode,
            "expect": self._expected(result),
            # A purge removes the files for a rollback, including those from before this play.
            "rollback": [*([] if purged else self._of_earlier(result, "rollback", [])), *result["backup_files"]],
            "verify": self._level(result),
            "verify_image": image_of(engine, options.values.get("verify_image"), options.values.get("verify_command")),
            "verify_method": "runtime" if options.registers else "cdi",
            "runtime_name": options.runtime_name,
        }  # fmt: skip

    def _expected(self, result: Result) -> dict[str, t.Any]:
        if self._options.state == ABSENT:
            return {}
        known = (self._options.runtime_name, *_OWN_RUNTIMES)
        runtimes = [name for name in result["runtimes"] if name in known]
        return {"runtimes": runtimes, "default_runtime": result["default_runtime"]}

    def _warnings_of_host(self) -> t.Iterator[str]:
        present = self._options.state == PRESENT
        targets = self._selection.targets
        if present and not targets:
            found, advice = "No container engine was found on this host", "Install one"
            if any(engine["installed"] for engine in self._selection.engines):
                found = "nvidia_runtime_engines and nvidia_runtime_flavor select no engine of this host"
                advice = "Change them"
            yield f"{found}, so nothing was configured. {advice}, or remove the host from the play."
        for target in self.interrupted:
            if target not in self._restartable:
                yield f"A restart of {target} was interrupted, and this play does not repeat it. Restart it."
        for target in self._selection.kubelet if present else ():
            if target not in targets:
                yield (
                    f"The kubelet of this host uses {target}, which nvidia_runtime_engines and nvidia_runtime_flavor do"
                    f" not select, so pods get no NVIDIA runtime. Add {target} to nvidia_runtime_engines."
                )

    def _warnings(self, configured: t.Sequence[Result]) -> t.Iterator[str]:
        for result in configured:
            target = result["target"]
            by_signal = target in self._reloadable and result["pending_action"] == RELOAD
            if result["restart_required"] and not self._is_restartable(result) and not by_signal:
                yield (
                    f"{target} still runs with its previous configuration, and this play does not restart it. Restart"
                    " it."
                )
        if self._options.state == ABSENT:
            return
        for result in configured:
            target = result["target"]
            without_cri = self._options.registers and _WITH_CRI.fullmatch(target) and not result["runtimes"]
            if without_cri and target in self._selection.kubelet:
                yield (
                    f"The kubelet of this host uses {target}, whose CRI is disabled, so no pod can start. Remove cri"
                    f" from disabled_plugins, restart {target}, and run this play again."
                )
        without = [r["target"] for r in configured if r["cdi"] is False and _has_cdi_setting(r["target"])]
        if without and self._options.cdi_written and self._options.enable_cdi != "false":
            yield (
                f"CDI is off in {' and '.join(without)}, so the CDI specification of this host has no effect there. Set"
                " nvidia_runtime_enable_cdi to true, or nvidia_cdi_enabled to false."
            )


def parts_of(target: str) -> tuple[str, str, str]:
    """Return the engine, the flavor, and the instance (a user or a unit, or empty) of a target."""
    engine, _slash, rest = target.partition("/")
    flavor, _slash, instance = rest.partition("/")
    return engine, flavor or "system", instance


def _has_cdi_setting(target: str) -> bool:
    """Return whether this collection can switch CDI on in an engine. K3s, RKE2, CRI-O and Podman decide themselves."""
    row = flavors.FLAVORS.get(parts_of(target)[:2])
    if row is None or row.cdi_advice:
        return False
    facts = flavors.FACTS[row.engine]
    return "enable_cdi" in facts.options and not facts.cdi_always


def key_of(entry: Entry) -> tuple[str, str]:
    """Return what identifies the engine of an entry on a host: the host root and the target."""
    return entry["engine_info"]["host_root"], entry["engine_info"]["target"]


def remaining(entries: t.Sequence[Entry], completed: t.Collection[str]) -> list[Entry]:
    """Return the entries that the handlers have not executed yet.

    Without a restart or reload the role has verified the engines itself, so nothing remains.

    Args:
        entries: The entries of an earlier run of the role.
        completed: The ``id`` of each entry that was executed.
    """
    left = [entry for entry in entries if entry["id"] not in completed]
    return left if any(entry["action"] != NONE for entry in left) else []
