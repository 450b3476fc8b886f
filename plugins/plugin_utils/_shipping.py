# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action behind every module that reads what some hosts need a package for, and the table of these packages.

Private to the collection.
"""

from __future__ import annotations

import re
import typing as t

from ansible import constants
from ansible.errors import AnsibleAction, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils import basic
from ansible.plugins.action.normal import ActionModule as NormalActionModule

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import packed


class Packages(t.NamedTuple):
    """What a host must be able to import: each package is sent in the option shipped_NAME.

    ``always`` are sent with the task, ``on_demand`` only to a host that lacks them and asks for them.
    """

    always: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()


_NONE = Packages()
# By the option engine of a module. The settings of k3s and RKE2 are in YAML, but only the host knows the flavor of its
# containerd.
PACKAGES_OF_ENGINE = {
    "containerd": Packages(("tomlkit",), ("yaml",)),
    "crio": Packages(("tomlkit",)),
    "podman": Packages(("tomlkit",)),
}
# Modules whose packages do not depend on an engine. Most hosts read no CDI specification in YAML: what this collection
# wrote is known, and JSON needs nothing.
PACKAGES_OF_MODULE = {
    "nvidia_cdi_refresh": Packages(on_demand=("yaml",)),
    "nvidia_cdi_spec": Packages(on_demand=("yaml",)),
    "nvidia_container_info": Packages(("tomlkit",), ("yaml",)),
    "nvidia_toolkit_config": Packages(("tomlkit",)),
}
# At these levels nvidia_runtime_verify reads config.toml too, whatever the engine, and a CDI specification, before it
# starts a container.
PACKAGES_OF_LEVEL = {
    "engine": Packages(("tomlkit",)),
    "gpu": Packages(("tomlkit",), ("yaml",)),
}
# The oldest Python of hosts that the modules support. ansible-core 2.17 and newer name their own here, 2.16 a bool.
_CORE_MINIMUM: object = getattr(basic, "_PY_MIN", None)
_OLDEST_PYTHON: tuple[int, ...] = max((3, 8), _CORE_MINIMUM if isinstance(_CORE_MINIMUM, tuple) else (0,))
_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_NEVER_RETURNED = ("ansible_facts", "add_host", "add_group")


class ShippingAction(NormalActionModule):
    """Runs the module of the same name as Ansible would, and sends along the packages that the host may lack.

    The task keeps its arguments: what travels shows up in no callback, register or log.
    """

    def packages(self) -> tuple[str, ...]:
        """The packages that are sent with this task in any case."""
        return self._packages().always

    def packages_on_demand(self) -> tuple[str, ...]:
        """Those that are sent only to a host that lacks them, such as one whose containerd is part of k3s.

        The module must have changed nothing when it fails for want of one, with its name as the result ``needed``
        (MissingPackageError), for it is then run again.  In the background it cannot be: there these travel at once.
        """
        return self._packages().on_demand

    def _packages(self) -> Packages:
        module, args = str(self._task.action).rpartition(".")[2], self._task.args
        if module in PACKAGES_OF_MODULE:
            return PACKAGES_OF_MODULE[module]
        found = PACKAGES_OF_ENGINE.get(str(args.get("engine")), _NONE)
        level = PACKAGES_OF_LEVEL.get(str(args.get("level")), _NONE)
        # A module with both options needs what either of them names.
        return Packages(*(tuple(dict.fromkeys([*ours, *theirs])) for ours, theirs in zip(found, level)))

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        try:
            result: dict[str, t.Any] = super().run(tmp, task_vars)  # type: ignore[no-untyped-call]
        except (AnsibleAction, AnsibleConnectionFailure):
            raise
        except AnsibleError as error:
            # Such as a user that Ansible cannot become. Other items of a loop are still to be run.
            result = {"failed": True, "msg": str(error)}
        # The modules return none of these, which change variables and other tasks. A hostile host, or a user as whom a
        # module runs, can forge an answer. Only the interpreter that Ansible itself discovered is kept.
        for key in _NEVER_RETURNED:
            result.pop(key, None)
        if result.get("failed") and "module_stdout" in result:
            # The module did not answer at all, as with a Python that cannot compile it.
            self._explain_old_python(result)
        # A role that continues after an error (failed_when: false) finds it in this key.
        result.pop("error", None)
        if result.get("failed") and self._task.failed_when:
            result["error"] = str(result.get("msg", "The module failed without a message."))
        if self._discovered_interpreter_key:
            result["ansible_facts"] = {self._discovered_interpreter_key: self._discovered_interpreter}
        return result

    def _explain_old_python(self, result: dict[str, t.Any]) -> None:
        """Replace the message if the host's Python is too old."""
        interpreter = str(self._used_interpreter or "").lstrip("#!").strip()
        if not interpreter:
            return
        answer = self._low_level_execute_command(f'{interpreter} -c "{_PRINT_VERSION}"')  # type: ignore[no-untyped-call,unused-ignore]
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})\s*", str(answer.get("stdout", "")))
        if found is not None and (int(found[1]), int(found[2])) < _OLDEST_PYTHON:
            needed = ".".join(map(str, _OLDEST_PYTHON))
            result["msg"] = (
                f"{interpreter} on the host is Python {found[1]}.{found[2]}, but Python {needed} or newer is needed."
                " Install it, and set ansible_python_interpreter to its path."
            )
            for key in ("exception", "module_stdout", "module_stderr"):
                result.pop(key, None)

    def _execute_module(self, *args: t.Any, **kwargs: t.Any) -> dict[str, t.Any]:
        on_demand = self.packages_on_demand()
        names = [*self.packages(), *(on_demand if kwargs.get("wrap_async") else ())]
        module_args = {**self._task.args, **_shipments(names)}
        while True:
            # Ansible adds to the dictionary that it is given.
            result: dict[str, t.Any] = super()._execute_module(*args, **{**kwargs, "module_args": dict(module_args)})
            needed = result.get("needed")
            if needed not in on_demand or needed in names:
                break
            names.append(needed)
            shipments = _shipments([needed])
            if not shipments:
                break
            module_args.update(shipments)
        if needed in names:
            # It is between the module and this.
            del result["needed"]
        return result


def _shipments(names: t.Iterable[str]) -> dict[str, str]:
    """The options for those of the packages that the controller has."""
    packages = {name: packed(name, constants.DEFAULT_LOCAL_TMP) for name in names}  # type: ignore[attr-defined]
    return {f"shipped_{name}": shipment for name, shipment in packages.items() if shipment is not None}
