# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin of modules that may need a Python package on the host: it sends the controller's package.

Private to this collection. module_utils/_core/bundled.py imports the packages on the host.
"""

from __future__ import annotations

import re
import typing as t

from ansible import constants
from ansible.errors import AnsibleAction, AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils import basic
from ansible.plugins.action.normal import ActionModule as NormalActionModule

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import printable
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import (
    _ahead,
    _async_jobs,
    _check,
    _controller_action,
    _module_options,
    _packing,
    _reports,
    _results,
    _return_values,
)


class Packages(t.NamedTuple):
    """The packages that a host must be able to import.

    ``always`` are sent with the task, ``on_demand`` only to a host that lacks them and requests them.
    """

    always: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()


_NONE = Packages()
# The key is the module's option engine.
PACKAGES_OF_ENGINE = {name: Packages(*facts.packages) for name, facts in flavors.FACTS.items()}
# Modules whose packages do not depend on an engine. Most hosts read no CDI specification in YAML: the collection knows
# the files that it wrote, and JSON needs no package.
PACKAGES_OF_MODULE = {
    "nvidia_cdi_refresh": Packages(on_demand=("yaml",)),
    "nvidia_cdi_spec": Packages(on_demand=("yaml",)),
    "nvidia_container_info": Packages(("tomlkit",), ("yaml",)),
    "nvidia_site_plan": Packages(("tomlkit",), ("yaml",)),
    "nvidia_toolkit_config": Packages(("tomlkit",)),
}
# The key is the option level of nvidia_runtime_verify, for every engine. At level gpu the module reads config.toml, and
# may read a CDI specification, before it starts a container. At level engine it reads them only to explain why a
# container failed. It then never requests a package, because it would start the container a second time.
PACKAGES_OF_LEVEL = {
    "engine": Packages(("tomlkit",)),
    "gpu": Packages(("tomlkit",), ("yaml",)),
}
# With the option container, nvidia_runtime_verify reads config.toml and CDI specifications.
PACKAGES_OF_CONTAINER = Packages(("tomlkit",), ("yaml",))
# The oldest supported Python of a host. ansible-core 2.17 and newer have their own minimum here, 2.16 has a bool.
_CORE_MINIMUM: object = getattr(basic, "_PY_MIN", None)
_OLDEST_PYTHON: tuple[int, ...] = max((3, 8), _CORE_MINIMUM if isinstance(_CORE_MINIMUM, tuple) else (0,))
_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
# The exit status of a shell for a program that does not exist.
_NOT_FOUND = 127
_COLLECTION = "gpufleet.nvidia."


class BundledAction(_controller_action.CollectionAction, NormalActionModule):
    """The action that runs the module of the same name, and sends the packages that the host may lack.

    The arguments of the task stay unchanged, so no callback, register or log contains the packages.
    """

    # What the module that runs now may return, and how its warnings begin.
    _shapes: _results.Shapes = _return_values.NONE
    _prefix = ""

    def packages(self) -> Packages:
        """Return the packages for this task.

        A module that lacks a package fails with its name in the result ``needed`` (MissingPackageError), and is then
        run again with the package. It must not have changed anything before. A task with async cannot be run again, so
        all packages are sent with it.
        """
        return self.packages_of(str(self._task.action), self._task.args)

    def packages_of(self, action: str, args: t.Mapping[str, t.Any]) -> Packages:
        """Return the packages for a module of this collection with these options."""
        module = action.rpartition(".")[2]
        if module in PACKAGES_OF_MODULE:
            return PACKAGES_OF_MODULE[module]
        if args.get("container"):
            return PACKAGES_OF_CONTAINER
        of_engine = PACKAGES_OF_ENGINE.get(str(args.get("engine")), _NONE)
        of_level = PACKAGES_OF_LEVEL.get(str(args.get("level")), _NONE)
        # A module with both options needs the packages of both.
        return Packages(*(tuple(dict.fromkeys([*one, *other])) for one, other in zip(of_engine, of_level)))

    def run_checked(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        variables = task_vars or {}
        problem = _check.skipped_tag(self, variables)
        if problem:
            raise AnsibleActionFail(problem)
        try:
            self._task.args = _module_options.completed(self._task, self._task.args, self._templar, variables)
            result = self.run_module(tmp, task_vars)
        except AnsibleAction:
            raise
        except AnsibleConnectionFailure as error:
            # The message contains output of the host.
            raise AnsibleConnectionFailure(printable.line(str(error))) from None
        except AnsibleError as error:
            # For example, Ansible cannot become a user. The other items of a loop must still run.
            result = {"failed": True, "msg": printable.line(f"{self._problem_with_user()}{error}")}
        result = self.clean(result)
        # A role that continues after an error (failed_when: false) reads the message from this key.
        result.pop("error", None)
        if result.get("failed") and self._task.failed_when:
            result["error"] = str(result.get("msg", "The module failed without a message."))
        elif result.get("failed") and not self._task.ignore_errors:
            result["msg"] = self._with_state_of_host(str(result.get("msg", "")), variables)
        if self._discovered_interpreter_key:
            path = printable.line(str(self._discovered_interpreter))
            result["ansible_facts"] = {self._discovered_interpreter_key: path}
        return result

    def _problem_with_user(self) -> str:
        """Return what to check for a task that runs as another user than root and could not be started."""
        user = self._play_context.become_user if self._play_context.become else None
        if user in (None, "root"):
            return ""
        return (
            f"The module could not run as the user {user}. Check that this user exists on the host, and that Ansible"
            " can become this user and pass it files (README of the role nvidia_runtime, Rootless Docker). "
        )

    def _with_state_of_host(self, message: str, variables: dict[str, t.Any]) -> str:
        """Return the error of a task, in a role of this collection's playbooks with the last line about the host."""
        if not str(variables.get("ansible_role_name", "")).startswith(_COLLECTION):
            return message
        return f"{message} {_reports.line_of_failure(variables)}".rstrip()

    def run_module(self, tmp: str | None, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Run the module of this task, and return its result."""
        result: dict[str, t.Any] = NormalActionModule.run(self, tmp, task_vars)
        return result

    def clean(self, result: dict[str, t.Any]) -> dict[str, t.Any]:
        """Explain why a module gave no answer."""
        if result.get("failed") and "module_stdout" in result:
            # For example, the host's Python cannot compile the module.
            self._explain_python(result)
        return result

    def _module_name(self, name: object) -> str:
        return str(self._task.action if name is None else name).rpartition(".")[2]

    def _parse_returned_data(self, *args: t.Any, **kwargs: t.Any) -> t.Any:
        # Ansible prints warnings of a module, and output that is no result, before it returns the result. The second
        # argument of newer releases is not used here.
        res, *rest = args
        output = _results.rebuilt_output(res["stdout"], self._shapes, self._prefix)
        parse: t.Any = super()._parse_returned_data
        return parse({**res, "stdout": output}, *rest, **kwargs)

    def _explain_python(self, result: dict[str, t.Any]) -> None:
        """Replace the message if the host's Python is missing or too old."""
        # The host may have chosen its path.
        interpreter = str(self._used_interpreter or "").lstrip("#!").strip()
        if not interpreter or not printable.is_plain(interpreter):
            return
        answer = self._low_level_execute_command(f'{interpreter} -c "{_PRINT_VERSION}"')  # type: ignore[no-untyped-call,unused-ignore]
        minimum = ".".join(map(str, _OLDEST_PYTHON))
        message = ""
        if answer.get("rc") == _NOT_FOUND:
            message = (
                f"{interpreter} does not exist on the host. Install Python {minimum} or newer, or set"
                " ansible_python_interpreter to its path."
            )
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})\s*", str(answer.get("stdout", "")))
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST_PYTHON:
            message = (
                f"{interpreter} on the host is Python {found[1]}.{found[2]}, but this collection needs Python {minimum}"
                " or newer. Install it, and set ansible_python_interpreter to its path."
            )
        if message:
            result["msg"] = message
            for key in ("exception", "module_stdout", "module_stderr"):
                result.pop(key, None)

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        """Run a module, and return its result. All results of modules pass here before anything reads or shows them."""
        variables = kwargs.get("task_vars") or {}
        host = variables.get("inventory_hostname", "")
        # The other host returns the warnings of a delegated task. Ansible writes its result in the same way.
        host = f"{host} -> {self._task.delegate_to}" if self._task.delegate_to else host
        self._prefix = f"{host}: "
        result = self._execute_with_packages(*args, **kwargs)
        # Ansible has added parts to it.
        return _results.rebuilt(result, self._shapes)

    def _execute_with_packages(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        # Without a name, the module of this task.
        module = kwargs.get("module_name")
        given = {**(self._task.args if module is None else kwargs.pop("module_args"))}
        self._shapes = _return_values.OF_MODULE.get(self._module_name(module), _return_values.NONE)
        packages = self.packages() if module is None else self.packages_of(module, given)
        names = [*packages.always, *(packages.on_demand if kwargs.get("wrap_async") else ())]
        variables = kwargs.get("task_vars") or {}
        known = _ahead.result_for(self, variables, self._module_name(module), given)
        if known is not None and not kwargs.get("wrap_async"):
            # It was in the result of another module, without the name of the host before its warnings.
            return _results.rebuilt(known, self._shapes, self._prefix)
        sent = self.bundle(names)
        while True:
            # Ansible changes the dictionary that it gets, so it gets a copy.
            module_args = {**given, **({core_constants.BUNDLED: dict(sent)} if sent else {})}
            result: dict[str, t.Any] = super()._execute_module(*args, **{**kwargs, "module_args": module_args})
            # The host chooses this value, and may return anything.
            needed = result.pop("needed", None)
            if needed not in packages.on_demand or needed in names:
                break
            names.append(needed)
            found = self.bundle([needed])
            if not found:
                break
            sent.update(found)
        invocation = result.get("invocation")
        if isinstance(invocation, dict) and isinstance(invocation.get("module_args"), dict):
            invocation["module_args"].pop(core_constants.BUNDLED, None)
        return _async_jobs.result_of(self, result, self._runner(variables)) if kwargs.get("wrap_async") else result

    def _runner(self, variables: t.Mapping[str, t.Any]) -> _async_jobs.Run:
        def run(module: str, options: dict[str, t.Any]) -> dict[str, t.Any]:
            execute: t.Any = super(BundledAction, self)._execute_module
            result: dict[str, t.Any] = execute(module_name=module, module_args=options, task_vars=variables)
            return result

        return run

    def bundle(self, names: t.Iterable[str]) -> dict[str, str]:
        """Return the result of _packing.pack_once() for each of the packages that the controller has, by name."""
        packages = {name: _packing.pack_once(name, constants.DEFAULT_LOCAL_TMP) for name in names}  # type: ignore[attr-defined]
        return {name: text for name, text in packages.items() if text is not None}
