# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leave the hooks out of a specification that the host's hook program does not have.

nvidia-cdi-hook before 1.18.0 ends with status 3 for an unknown hook, and then no container with the specification
starts. The program's own help lists its hooks. The flags that this collection writes need no such check: in the tags
from 1.16.0 to 1.20.0, each hook has them from its first release on (cmd/nvidia-cdi-hook).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

# Without these, programs in containers do not find the driver's libraries.
_ESSENTIAL = (cdi_options.CREATE_SYMLINKS, cdi_options.LDCACHE)
# A heading in a help of urfave/cli (the toolkit has its version 2 before 1.18.0, and version 3 since), and a command
# below it. Commands are indented by three spaces, or by five below a category.
_HEADING = re.compile(r"([A-Z][A-Z ]*):\s*\Z")
_COMMAND = re.compile(r" {3}(?: {2})?([a-z][a-z0-9-]*)(?=[\s,]|\Z)")


def without_unknown_hooks(
    documents: t.Mapping[str, t.Any], request: cdi_options.Request, host: hostfs.HostFS, run_pinned: core_plan.Runner
) -> tuple[dict[str, t.Any], list[str]]:
    """Return ``documents`` with the hooks that the hook program has, and a message about those that were left out.

    All hooks stay, with a message, if the program cannot be asked. A missing program is not reported here. Raises
    HostError for an unknown hook that containers need, or that ``request`` names.
    """
    path, prefix = request.cdi_hook_path, cdi_options.hook_arguments(request.cdi_hook_path)
    edits = [each for document in documents.values() for _field, each in host_check.all_edits(document)]
    used = dict.fromkeys(hook["args"][len(prefix)] for each in edits for hook in each.get("hooks", ()))
    if not used or not host.is_executable(path) or host.is_predicted(host.resolve(path)):
        return dict(documents), []
    known, problem = _known_hooks([path, *prefix[1:], "--help"], host, run_pinned)
    unknown = [] if problem else [name for name in used if name not in known]
    needed = sorted({*unknown} & {*_ESSENTIAL, *request.enabled_hooks})
    if needed:
        raise errors.HostError(
            f"{path} does not have the hook {core_text.listed(needed)}. The specification was not written. Install a"
            f" newer NVIDIA Container Toolkit, or change {errors.option:enabled_hooks} or {errors.option:hooks}."
        )
    if unknown:
        problem = (
            f"The specification is without the hook {core_text.listed(unknown)}, which {path} does not have. Install a"
            " newer NVIDIA Container Toolkit."
        )
    kept = {
        name: cdi_edits.with_kept(document, "hooks", lambda hook: hook["args"][len(prefix)] not in unknown)
        for name, document in documents.items()
    }
    return kept, [problem] if problem else []


def _known_hooks(argv: list[str], host: hostfs.HostFS, run_pinned: core_plan.Runner) -> tuple[list[str], str]:
    """Return the hooks that the program lists, and the reason as a message if it lists none."""
    reason = "programs of an offline tree are not run"
    if host.live:
        status, output, error = run_pinned(host.argv(argv))
        names = commands_of(output)
        if status == 0 and names:
            return names, ""
        reason = core_text.quoted(error.strip()) if status and error.strip() else f"exit status {status}, no commands"
    return [], (
        f"It is not known which hooks {argv[0]} has ({reason}). If `{' '.join(argv)}` does not list a hook of the"
        f" specification, add it to {errors.option:disabled_hooks}."
    )


def commands_of(text: str) -> list[str]:
    """Return the names of the commands in a help of urfave/cli, without their aliases."""
    found, heading = [], ""
    for line in text.splitlines():
        match = _HEADING.match(line)
        heading = match.group(1) if match else heading
        command = _COMMAND.match(line) if heading == "COMMANDS" else None
        if command:
            found.append(command.group(1))
    return found
