# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action of nvidia_runtime_classes, which writes RuntimeClass objects on the controller."""

from __future__ import annotations

import os
import re
import typing as t

from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils import _controller_action, _controller_files

# The same as in plugins/modules/nvidia_runtime_classes.py.
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "engines": {"type": "list", "elements": "dict", "required": True},
    "directory": {"type": "path", "default": "runtime-classes"},
    "runtime_name": {"type": "str", "default": "nvidia"},
}
_HEADER = "# Written by the playbook gpufleet.nvidia.runtime_classes, which replaces only files with this line.\n"
# What version 1.1.0 wrote has no header.
_CLASS = """\
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: "{name}"
handler: "{name}"
"""
_PROGRAM = re.compile(r"/nvidia-container-runtime[^/]*\Z")
# The names that Kubernetes accepts, without dots.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_MODE, _DIRECTORY_MODE = 0o644, 0o755
# A file of this playbook is shorter.
_BYTES = 4096


class ActionModule(_controller_action.ControllerAction):
    """Write one file for each NVIDIA runtime of the kubelet's engine."""

    arguments = ARGUMENTS

    def work(self, given: dict[str, t.Any], _variables: dict[str, t.Any]) -> dict[str, t.Any]:
        # Ansible resolves a relative path from the directory of the playbook.
        folder = os.path.join(os.environ.get("PWD") or os.getcwd(), given["directory"])
        names, others = names_of(given["engines"], given["runtime_name"])
        changed = [name for name in names if self._write(folder, name)]
        warnings = [
            f"No RuntimeClass was written for the runtime {name} of this host, since its name begins neither with"
            f" {given['runtime_name']} (nvidia_runtime_name) nor with nvidia."
            for name in others
        ]
        return {"changed": bool(changed), "names": names, "warnings": warnings}

    def _write(self, folder: str, name: str) -> bool:
        """Write the file of a class, unless it has this content. Return whether it changes."""
        path = os.path.join(folder, f"{name}.yml")
        old, new = _CLASS.format(name=name).encode(), (_HEADER + _CLASS.format(name=name)).encode()
        try:
            present = _controller_files.read(path, _BYTES)
            if present is not None and present != old and not present.startswith(_HEADER.encode()):
                raise AnsibleActionFail(
                    f"{path} on the controller was not written by this playbook, so it was not replaced. Move this"
                    " file, or call ansible-playbook in another directory."
                )
            if present != new and not self._task.check_mode:
                os.makedirs(folder, _DIRECTORY_MODE, exist_ok=True)
                _controller_files.replace(path, new, _MODE)
        except OSError as error:
            raise AnsibleActionFail(
                f"{path} on the controller cannot be written: {error.strerror}. Call ansible-playbook in a directory to"
                " which you can write."
            ) from None
        return present != new


def names_of(engines: t.Iterable[t.Mapping[str, t.Any]], runtime_name: str) -> tuple[list[str], list[str]]:
    """Return the NVIDIA runtimes of the kubelet's engine that get a class, and those with another name.

    A host chooses the names, and may be hostile. Only names that the fleet itself uses become files of the controller.

    Args:
        engines: What nvidia_container_info returned.
        runtime_name: The name of the runtime in this fleet.
    """
    used = next((engine for engine in engines if engine.get("used_by_kubelet")), {})
    runtimes = used.get("runtimes")
    found = runtimes.items() if isinstance(runtimes, dict) else ()
    names = [str(name) for name, program in found if _PROGRAM.search(str(program)) and _NAME.match(str(name))]
    # Every name begins with an empty one.
    own = [name for name in names if name.startswith((runtime_name or "nvidia", "nvidia"))]
    return own, [name for name in names if name not in own]
