# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_toolkit_install: it also sends a toolkit from the controller to a host that requests it."""

from __future__ import annotations

import re
import typing as t

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.validation import check_type_bool, check_type_list, check_type_str
from ansible.plugins.action.normal import ActionModule as NormalActionModule

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import variables as core_variables
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._shipping import ShippingAction

# Imported here because Ansible loads an action before it forks for its hosts.
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._toolkit_offer import Offer, offer_packages, offer_tree

# The first minor version of Python 3 that can read TOML.
_READS_TOML = 11
_ARCHIVE = "nvidia-container-toolkit.tar.gz"
_INTERNAL = ("shipped_tomlkit", "shipped_toolkit")


class _Asked(t.NamedTuple):
    """The toolkit on the controller that the task names."""

    src: str | None
    files: list[str]
    components: list[str] | None

    @classmethod
    def of(cls, args: t.Mapping[str, t.Any]) -> _Asked | None:
        """Return None if the module needs nothing from the controller, or will refuse the arguments."""
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


class _OfferingAction(NormalActionModule):
    """The action that describes the controller's toolkit to the module, and sends it to a host that requests it."""

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        module_args: dict[str, t.Any] = kwargs.pop("module_args")
        asked = _Asked.of(module_args)
        if asked is not None and kwargs.get("wrap_async"):
            raise AnsibleActionFail(
                "remote_src: false cannot do with async, for the host may ask for files in between. Leave async out, or"
                " copy the toolkit to the host first and set remote_src: true."
            )

        def execute(**offered: t.Any) -> dict[str, t.Any]:
            # Ansible changes the dictionary that it gets, so it gets a copy.
            call = {**kwargs, "module_args": {**module_args, **offered}}
            result: dict[str, t.Any] = super(_OfferingAction, self)._execute_module(*args, **call)
            return result

        try:
            result = execute() if asked is None else self._offer_to(execute, self._offer(asked))
        except errors.NvidiaError as error:
            options: dict[str, dict[str, t.Any]] = {"src": {}, "files": {}, "components": {}}
            raise AnsibleActionFail(
                core_variables.with_variables(str(error), "nvidia_toolkit_install", options)
            ) from None
        invocation = result.get("invocation")
        if isinstance(invocation, dict) and isinstance(invocation.get("module_args"), dict):
            # These options are internal to the module and this plugin.
            for name in _INTERNAL:
                invocation["module_args"].pop(name, None)
        return result

    def _offer_to(self, execute: t.Callable[..., dict[str, t.Any]], offer: Offer) -> dict[str, t.Any]:
        shipped = {"parts": [part._asdict() for part in offer.parts]}
        result = execute(shipped_toolkit=shipped)
        if result.get("needed") == "toolkit":
            result = execute(shipped_toolkit={**shipped, "archive": self._send(offer.archive())})
        return result

    def _offer(self, asked: _Asked) -> Offer:
        cache: str = constants.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        if asked.src is not None:
            return offer_tree(self._found("src", asked.src), asked.components, cache)
        return offer_packages([self._found("files", path) for path in asked.files], asked.components, cache)

    def _found(self, parameter: str, path: str) -> str:
        named = f"nvidia_toolkit_{parameter} ({parameter})"
        if not path:
            raise AnsibleActionFail(f"{named} has an empty path. Name what is on the controller.")
        try:
            return str(self._find_needle("files", path))  # type: ignore[no-untyped-call]
        except AnsibleError as error:
            raise AnsibleActionFail(
                f"{named} {path} is not on the controller. Correct the path. If it is on the host, set"
                f" nvidia_toolkit_files_on to node (remote_src: true). {error}"
            ) from None

    def _send(self, archive: str) -> str:
        """Return the path on the host of a copy in the task's temporary directory."""
        shell = self._connection._shell  # noqa: SLF001
        folder = shell.tmpdir or self._make_tmp_path()
        path = str(shell.join_path(folder, _ARCHIVE))
        # ansible-core 2.19 has no annotation here, 2.21 has one.
        self._transfer_file(archive, path)  # type: ignore[no-untyped-call,unused-ignore]
        self._fixup_perms2((folder, path))  # type: ignore[no-untyped-call]
        return path


class ActionModule(ShippingAction, _OfferingAction):
    """The action that sends what a host may lack: the package tomlkit, and a toolkit from the controller.

    ShippingAction comes first and passes on the arguments that it has completed.
    """

    _lacks_tomlkit = False

    def packages(self) -> tuple[str, ...]:
        return ("tomlkit",) if self._lacks_tomlkit else ()

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        # Most hosts do not need tomlkit, and the others request it. A task with async cannot request it.
        directory = self._task.args.get("source") == "directory"
        outright = bool(kwargs.get("wrap_async")) or _is_older(kwargs.get("task_vars") or {})
        self._lacks_tomlkit = directory and outright
        result = super()._execute_module(*args, **kwargs)
        if directory and not outright and result.get("needed") == "tomlkit":
            self._lacks_tomlkit = True
            result = super()._execute_module(*args, **kwargs)
        result.pop("needed", None)
        return result


def _is_older(variables: t.Mapping[str, t.Any]) -> bool:
    """Return whether the path of the host's Python shows that it cannot read TOML (before 3.11)."""
    facts = variables.get("ansible_facts") or {}
    path = variables.get("ansible_python_interpreter") or facts.get("discovered_interpreter_python") or ""
    found = re.search(r"python3\.([0-9]+)$", str(path))
    return found is not None and int(found.group(1)) < _READS_TOML
