# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the roles have registered for a host. This file needs nothing of Ansible, except for a value in one text.

Private to this collection. Registered results contain texts of hosts, so they are read here as they are, and never
evaluated as templates.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _engine_selection, _restart_plan

Variables = t.Mapping[str, t.Any]
# The variable of the role nvidia_runtime with the settings that these functions read.
SETTINGS = "nvidia_runtime_settings"
# The variable of a play of this collection with the name of its playbook.
PLAY = "nvidia_playbook"
# A setting of the toolkit, in its section features.
_CUDA_COMPAT = "disable-cuda-compat-lib-hook"
# The settings of the role that each entry of the plan contains.
_OF_ENTRY = (
    "allow_disruption", "require_runtime", "validate", "timeout", "retries", "backup_dir", "before", "after",
    "verify_image", "verify_pull", "verify_command",
)  # fmt: skip


class RoleState:
    """What is known about a host, from the registered results of the roles in a play."""

    def __init__(self, variables: Variables, settings: t.Mapping[str, t.Any]) -> None:
        """Read the variables of a host.

        Args:
            variables: The variables, not evaluated.
            settings: The value of SETTINGS.
        """
        self.variables = variables
        self.settings = settings
        self.selects = _engine_selection.Settings.of(settings)

    def inspection(self) -> dict[str, t.Any] | None:
        """Return what was found on the host, None if it was not inspected.

        The role nvidia_toolkit may have inspected the same host before.
        """
        if self.reuses_inspection():
            return table(self.variables.get("nvidia_toolkit_info"))
        own = table(self.variables.get("nvidia_runtime_inspection"))
        return own if isinstance(own.get("engines"), list) else None

    def reuses_inspection(self) -> bool:
        """Return whether the inspection by the role nvidia_toolkit describes this host and its engines."""
        same = all(self.settings[name] == self.settings[f"toolkit_{name}"] for name in ("host_root", "host_root_live"))
        found = table(self.variables.get("nvidia_toolkit_info"))
        return bool(self.settings["reuse_inspection"]) and same and isinstance(found.get("engines"), list)

    def selection(self, inspection: Variables | None = None) -> _engine_selection.Selection:
        """Select the engines, with this result if nothing is registered."""
        found = self.inspection() if inspection is None else inspection
        return _engine_selection.select(self.selects, tables((found or {}).get("engines")))

    def options(self) -> _restart_plan.Options:
        """Return the settings that decide about restarts."""
        values = self.settings
        enable_cdi = str(values["enable_cdi"]).lower()
        cdi = result_of(self.variables, "nvidia_cdi_specification")
        return _restart_plan.Options(
            values={name: values[name] for name in _OF_ENTRY},
            state=self.selects.state,
            host_root=str(values["host_root"]),
            host_root_live=bool(values["host_root_live"]),
            offline=self.selects.offline,
            check_mode=self.selects.check_mode,
            restart_mode=str(values["restart_mode"]),
            purge_backups=bool(values["purge_backups"]),
            verify=str(values["verify"]),
            registers=bool(values["register"]),
            runtime_name=str(values["name"]),
            enable_cdi=enable_cdi,
            cdi_written=bool(cdi.get("device_count") or cdi.get("refreshed_by")),
        )

    def earlier_entries(self) -> list[dict[str, t.Any]]:
        """Return the entries of earlier runs of the role in this play that no handler has executed."""
        return _restart_plan.remaining(entries_of(self.variables), completed_of(self.variables))


def configuration_of(variables: Variables) -> dict[str, t.Any]:
    """Return the result of the task of the last run of the role, empty if it did not run."""
    registered = table(variables.get("nvidia_runtime_result"))
    return {} if registered.get("skipped") else registered


def entries_of(variables: Variables) -> list[dict[str, t.Any]]:
    """Return the plan of the last run of the role."""
    return tables(configuration_of(variables).get("work"))


def completed_of(variables: Variables) -> list[str]:
    """Return the ``id`` of each entry that handlers have executed."""
    found = variables.get("nvidia_runtime_completed")
    return [str(name) for name in found] if isinstance(found, list) else []


def errors_of(variables: Variables) -> list[str]:
    """Return the errors of the last run of the role: of its configuration, restarts and verifications.

    Results about other entries than those of the last run belong to an earlier run.
    """
    errors = [str(error) for error in configuration_of(variables).get("errors") or []]
    known = {entry["id"]: entry for entry in entries_of(variables)}
    for name in ("nvidia_runtime_restart_results", "nvidia_runtime_verify_results"):
        for result in items(variables.get(name)):
            entry = known.get(str(table(item_of(result)).get("id")))
            if entry is not None and "error" in result:
                errors.append(f"{entry['label']}: {result['error']}")
    return [*errors, *(_skipped_hooks(variables) if errors else [])]


def _skipped_hooks(variables: Variables) -> list[str]:
    completed = completed_of(variables)
    executed = [entry for entry in entries_of(variables) if entry["id"] in completed]
    hooks = dict.fromkeys(entry["after"] for entry in executed if entry["action"] == _restart_plan.RESTART)
    return [f"{hook} was not run, because not all steps on this host were successful." for hook in hooks if hook]


def pending_of(variables: Variables) -> list[dict[str, t.Any]]:
    """Return the entries that no handler has executed yet."""
    completed = completed_of(variables)
    return [entry for entry in entries_of(variables) if entry["id"] not in completed]


def verifications_of(variables: Variables) -> list[dict[str, t.Any]]:
    """Return the entries that the role verifies itself, because no handler will run for this host."""
    pending = pending_of(variables)
    if errors_of(variables) or any(entry["action"] != _restart_plan.NONE for entry in pending):
        return []
    return [entry for entry in pending if entry["verify"] != _restart_plan.OFF]


def gpu_of(variables: Variables) -> dict[str, t.Any]:
    """Return what the role's own inspection has found about the GPU of the host."""
    return table(table(result_of(variables, "nvidia_runtime_inspection").get("toolkit")).get("gpu"))


def targets_with_gpus(state: RoleState) -> list[dict[str, str]]:
    """Return the engines on which the playbook verify starts a container. WSL and Tegra have other devices."""
    if gpu_of(state.variables).get("kind") not in ("driver", "pci"):
        return []
    found = []
    for target in state.selection().targets:
        engine, flavor, instance = _restart_plan.parts_of(target)
        user = instance if flavor == "rootless" else ""
        unit = instance if flavor == "system" else ""
        image = _restart_plan.image_of(engine, state.settings.get("verify_image"))
        found.append({"target": target, "engine": engine, "flavor": flavor, "user": user, "unit": unit, "image": image})
    return found


def without_cuda_compat(_variables: Variables, settings: object) -> object:
    """Return the setting of the toolkit's config.toml that disables the hook for CUDA compatibility libraries."""
    given = _dictionary_in(settings) if isinstance(settings, str) else table(settings)
    return given.get(f"features.{_CUDA_COMPAT}") or table(given.get("features")).get(_CUDA_COMPAT) or False


def _dictionary_in(text: str) -> dict[str, t.Any]:
    """Return the dictionary in a text, as an inventory in INI and ``-e name=value`` give it."""
    # The unit tests of this file need no Ansible.
    from ansible.module_utils.common.validation import check_type_dict  # noqa: PLC0415

    try:
        return table(check_type_dict(text))
    except TypeError:
        # The check of the variables reports it.
        return {}


def result_of(variables: Variables, name: str) -> dict[str, t.Any]:
    """Return a registered result, empty if the task did not run, was skipped, or failed."""
    registered = table(variables.get(name))
    return {} if registered.get("skipped") or registered.get("failed") else registered


def item_of(result: Variables) -> object:
    """Return the item of a loop to which a result belongs."""
    return result.get(str(result.get("ansible_loop_var", "item")))


def items(registered: object) -> list[dict[str, t.Any]]:
    """Return the results of a loop."""
    return tables(table(registered).get("results"))


def table(value: object) -> dict[str, t.Any]:
    """Return the value if it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, t.Any]]:
    """Return the dictionaries of a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
