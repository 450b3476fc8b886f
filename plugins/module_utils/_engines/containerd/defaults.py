# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Repair the default runtime of containerd after a plan removed or restored entries.

Without a defined default runtime, the CRI does not start.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document


class DefaultRepair:
    """The repair of one configuration.

    ``current`` is the configuration before the plan. ``after`` returns the planned one, with the changes made so far.
    """

    def __init__(
        self,
        files: toml_plan.TomlFiles,
        current: containerd_config.ContainerdFiles,
        after: t.Callable[[], containerd_config.ContainerdFiles],
        warnings: list[str],
    ) -> None:
        self._files = files
        self._current = current
        self._after = after
        self._warnings = warnings

    def repair(self) -> None:
        """Repair a default runtime that is no longer defined, and keep runc defined where other runtimes would hide it.

        A default that the plan did not change and that was not defined before stays as it is.
        """
        repaired = False
        # Each iteration changes one file. Then the default runtime of an earlier file may have effect.
        for _attempt in self._current.files:
            if not self._repair_file():
                break
            repaired = True
        after = self._after()
        default = after.default_runtime() or containerd_runtimes.BUILTIN_DEFAULT
        if repaired:
            self._warnings.append(
                f"The previous default runtime is no longer defined. The default runtime is now {default}."
            )
        if default == containerd_runtimes.BUILTIN_DEFAULT:
            self._keep_builtin(after)

    def _repair_file(self) -> bool:
        """Repair the default runtime in the file that sets it. Return whether the file was changed."""
        after = self._after()
        default = after.default_runtime()
        if default is None or _is_defined(default, after):
            return False
        edit = self._files.edit(after.defining_path(containerd_config.DEFAULT))
        roots = after.cri_paths(edit.document)
        defining = (root for root in roots if edit.document.has(*root, *containerd_config.DEFAULT))
        root = next(defining, after.cri_path)
        path = (*root, *containerd_config.DEFAULT)
        is_changed = edit.before.value(*path) != edit.document.value(*path)
        if toml_plan.is_original(edit) or not (is_changed or default in self._current.runtimes()):
            if default != self._current.default_runtime() and after.legacy_default() is None:
                self._warnings.append(
                    f"{edit.path}: default_runtime_name is {default!r}, but no file defines this runtime, and"
                    " containerd's CRI does not start without it. Define the runtime, or change default_runtime_name."
                )
            return False
        edit.document = _without_version(edit, _repaired(edit, root, after.runtimes()))
        return True

    def _keep_builtin(self, after: containerd_config.ContainerdFiles) -> None:
        """Define runc if this plan would remove its entry and other runtimes would hide the built-in one."""
        edit = self._files.edit(after.target_path())
        entry = (*containerd_config.RUNTIMES, containerd_runtimes.BUILTIN_DEFAULT, "runtime_type")
        hidden = not after.merges and bool(after.runtimes()) and toml_plan.lookup(after.cri(), entry) is None
        defined_before = toml_plan.lookup(self._current.cri(), entry) is not None
        original = edit.original.value(*after.cri_path, *containerd_config.RUNTIMES)
        own = not original or containerd_runtimes.BUILTIN_DEFAULT in original
        if hidden and defined_before and own and not toml_plan.is_original(edit):
            edit.document = edit.document.set(after.cri_path + entry, containerd_runtimes.BUILTIN_TYPE)
            self._warnings.append(
                f"{edit.path}: runtimes.{containerd_runtimes.BUILTIN_DEFAULT} stays, because the other runtimes in this"
                " file hide the built-in one and the CRI would not start."
            )


def _is_defined(name: str, files: containerd_config.ContainerdFiles) -> bool:
    """Return whether containerd defines the runtime. Before 2.0, runtimes in the files hide the built-in runc."""
    runtimes = files.runtimes()
    return name in runtimes or (name == containerd_runtimes.BUILTIN_DEFAULT and (files.merges or not runtimes))


def _repaired(
    edit: toml_plan.TomlEdit, root: toml_plan.KeyPath, runtimes: t.Mapping[str, t.Any]
) -> toml_document.TomlDocument:
    """Return the document with the original default runtime if it is still defined, else without a default."""
    for original_root in containerd_config.CRI_TABLE.values():
        previous = edit.original.value(*original_root, *containerd_config.DEFAULT)
        if isinstance(previous, str) and previous in runtimes:
            return edit.document.set((*root, *containerd_config.DEFAULT), previous)
    return edit.document.delete((*root, *containerd_config.DEFAULT), prune=True)


def _without_version(edit: toml_plan.TomlEdit, document: toml_document.TomlDocument) -> toml_document.TomlDocument:
    """Return the document without the version that this collection wrote, unless settings or imports depend on it."""
    if not edit.owns(containerd_runtimes.VERSION) or document.has(*containerd_config.IMPORTS):
        return document
    without = document.restore(containerd_runtimes.VERSION, edit.original)
    return without if containerd_config.has_no_versioned_settings(without) else document
