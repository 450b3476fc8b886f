# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_toolkit_install: it also sends a toolkit from the controller to a host that requests it.

For the task of the role nvidia_toolkit, it adds the options that depend on several settings.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.validation import check_type_bool, check_type_list, check_type_str

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import variables as core_variables
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _toolkit_plan
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import BundledAction, Packages

# Imported at the top, although few tasks need it: Ansible loads an action plugin once, before it forks for the hosts.
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._controller_source import (
    Toolkit,
    toolkit_in_directory,
    toolkit_in_packages,
)

# The role whose task gets options of the plan.
_ROLE = "nvidia_toolkit"
# The first minor version of Python 3 with tomllib.
_TOMLLIB_MINOR = 11
# The packages with which the files of engines are read: TOML, and YAML of K3s and RKE2.
_OF_ENGINES = ("tomlkit", "yaml")
# The options that messages about a toolkit on the controller name.
_OPTIONS_OF_SOURCE = ("src", "files", "components")
_ARCHIVE_NAME = "nvidia-container-toolkit.tar.gz"
# The names in the module's option _bundled: a description of the toolkit's files, and an archive with their contents.
_DESCRIPTION, _ARCHIVE = "toolkit", "toolkit_archive"


class _Source(t.NamedTuple):
    """The toolkit on the controller that the task names."""

    src: str | None
    files: list[str]
    components: list[str] | None

    @classmethod
    def of(cls, args: t.Mapping[str, t.Any]) -> _Source | None:
        """Return the source that the task's arguments name.

        None: the module needs nothing from the controller, or it will refuse the arguments.
        """
        given = {name: value for name, value in args.items() if value is not None}
        if given.get("source") != "directory" or given.get("state", "present") != "present":
            return None
        try:
            if check_type_bool(given.get("remote_src", True)):
                return None
            src = check_type_str(given["src"]) if "src" in given else None
            files = [check_type_str(path) for path in check_type_list(given.get("files", []))]
            components = (
                [check_type_str(name) for name in check_type_list(given["components"])]
                if "components" in given
                else None
            )
        except TypeError:
            return None
        return cls(src, files, components) if (src is None) == bool(files) else None


class ActionModule(BundledAction):
    """The action that sends what a host may lack: the package tomlkit, and a toolkit on the controller.

    The module always gets a description of the toolkit. It gets the files only if it requests them.
    """

    _toolkit: Toolkit | None = None
    _has_tomllib = True

    def packages(self) -> Packages:
        if self._task.args.get("source") != "directory":
            requests_config = any(self._task.args.get(name) is not None for name in toolkit_constants.CONFIG_OPTIONS)
            return Packages(("tomlkit",)) if requests_config else Packages()
        # A host whose Python has tomllib gets tomlkit only if it requests it.
        needed = Packages(on_demand=_OF_ENGINES) if self._has_tomllib else Packages(_OF_ENGINES[:1], _OF_ENGINES[1:])
        if self._toolkit is None:
            return needed
        return Packages((_DESCRIPTION, *needed.always), (_ARCHIVE, *needed.on_demand))

    def run_module(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        given = self._task.args
        if given.get("state", "present") == "present" and _check.is_task_of(self, _ROLE):
            variables = task_vars or {}
            settings = self._templar.template(variables[_toolkit_plan.SETTINGS])
            self._task.args = _toolkit_plan.options_of_task(variables, settings, given)
        try:
            return super().run_module(tmp, task_vars)
        finally:
            # No callback or log needs the key and the files of the repository.
            self._task.args = given

    @errors.role_variables(core_variables.variables_of("nvidia_toolkit_install", _OPTIONS_OF_SOURCE))
    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        source = _Source.of(self._task.args)
        if source is not None and kwargs.get("wrap_async"):
            raise AnsibleActionFail(
                f"{errors.option:remote_src}: false does not work with async, because the host may request files from"
                " the controller. Remove async, or copy the toolkit to the host first and set"
                f" {errors.option:remote_src}: true."
            )
        self._has_tomllib = not _lacks_tomllib(kwargs.get("task_vars") or {})
        try:
            self._toolkit = None if source is None else self._read(source)
            return super()._execute_module(*args, **kwargs)
        except errors.NvidiaError as error:
            raise AnsibleActionFail(str(error)) from None

    def bundle(self, names: t.Iterable[str]) -> dict[str, str]:
        names = list(names)
        found = super().bundle(name for name in names if name not in (_DESCRIPTION, _ARCHIVE))
        if self._toolkit is not None and _DESCRIPTION in names:
            found[_DESCRIPTION] = json.dumps([part._asdict() for part in self._toolkit.parts])
        if self._toolkit is not None and _ARCHIVE in names:
            found[_ARCHIVE] = self._send(self._toolkit.archive())
        return found

    def _read(self, source: _Source) -> Toolkit:
        cache: str = constants.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        if source.src is not None:
            return toolkit_in_directory(self._find_on_controller("src", source.src), source.components, cache)
        return toolkit_in_packages(
            [self._find_on_controller("files", path) for path in source.files], source.components, cache
        )

    def _find_on_controller(self, parameter: str, path: str) -> str:
        """Return the path on the controller of ``path``, which the option ``parameter`` contains."""
        if not path:
            raise AnsibleActionFail(f"{errors.option:{parameter}} is an empty path. Set a path on the controller.")
        try:
            return str(self._find_needle("files", path))  # type: ignore[no-untyped-call]
        except AnsibleError as error:
            raise AnsibleActionFail(
                f"{errors.option:{parameter}} {path} is not on the controller. Correct the path. If it is on the host,"
                f" set nvidia_toolkit_files_on to node (remote_src: true). {error}"
            ) from None

    def _send(self, archive: str) -> str:
        """Copy ``archive`` to the temporary directory of the task on the host. Returns the path there."""
        shell = self._connection._shell  # noqa: SLF001
        folder = shell.tmpdir or self._make_tmp_path()
        path = str(shell.join_path(folder, _ARCHIVE_NAME))
        # ansible-core 2.19 has no annotation here, 2.21 has one.
        self._transfer_file(archive, path)  # type: ignore[no-untyped-call,unused-ignore]
        self._fixup_perms2((folder, path))  # type: ignore[no-untyped-call]
        return path


def _lacks_tomllib(variables: t.Mapping[str, t.Any]) -> bool:
    """Return whether the path of the host's Python shows that it cannot read TOML (before 3.11)."""
    facts = variables.get("ansible_facts") or {}
    path = variables.get("ansible_python_interpreter") or facts.get("discovered_interpreter_python") or ""
    found = re.search(r"python3\.([0-9]+)$", str(path))
    return found is not None and int(found.group(1)) < _TOMLLIB_MINOR
