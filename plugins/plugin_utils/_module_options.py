# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Add the dictionaries ROLE_module_options, such as nvidia_cdi_module_options, to the options of the roles' tasks.

Private to this collection.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import later_tasks, variables
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _check, _role_state

Values = t.Mapping[str, t.Any]
_MODULES = {later_tasks.INSTALL: "nvidia_toolkit", later_tasks.RUNTIME: "nvidia_runtime", later_tasks.CDI: "nvidia_cdi"}


def completed(task: t.Any, args: Values, templar: t.Any, known: Values) -> dict[str, t.Any]:
    """Return the options of a task. In a role of this collection, they include those of the role's dictionary.

    Args:
        task: The task.
        args: Its options, evaluated.
        templar: Evaluates templates with the variables of the host.
        known: The variables of the host.

    Raises AnsibleError for an option that the module would refuse, in each task of the role.
    """
    role = next((name for name in _MODULES.values() if _check.is_in_role(task, name)), None)
    options = {} if role is None else _options_of(role, templar, known)
    required = _role_state.table(args.get("require_engines"))
    if role is not None and required.get("options"):
        # The inspection plans what the later task does.
        later = {**required["options"], **_options_of("nvidia_runtime", templar, known)}
        return {**args, "require_engines": {**required, "options": later}}
    module = str(task.action).rpartition(".")[2]
    # The removal of the toolkit has other options.
    removes = module == later_tasks.INSTALL and args.get("state") == "absent"
    return {**args, **options} if _MODULES.get(module) == role and not removes else {**args}


def _options_of(role: str, templar: t.Any, known: Values) -> dict[str, t.Any]:
    name = variables.module_options(role)
    values, problems = _check.converted({name: templar.template(known.get(name) or {})})
    if problems:
        raise AnsibleError(" ".join(problems))
    return {option: value for option, value in values[name].items() if value is not None}
