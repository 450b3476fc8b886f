# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leave the mounts out of a specification whose sources another user than root can replace.

Engines follow the paths of a specification as root, long after it was written. A user who replaces the source of a
mount by a link chooses which file or directory of the host all containers with GPUs get.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    # A specification or a part of it, as schema.read() returns it.
    Data = t.Mapping[str, t.Any]


def without_replaceable_mounts(document: Data, host: hostfs.HostFS) -> tuple[dict[str, t.Any], list[str]]:
    """Return ``document`` without the mounts whose sources another user can replace, and a warning for each.

    Raises HostError if another user can replace a device node or the program of a hook.
    """
    reasons = host_check.replaceable_paths(document, host)
    removed: dict[str, str] = {}

    def is_kept(mount: Data) -> bool:
        path = mount["hostPath"]
        if path not in reasons or not cdi_validate.is_bind(mount):
            return True
        removed[path] = _warning(path, reasons[path], tuple(mount.get("options", ())) == cdi_edits.SOCKET_OPTIONS)
        return False

    if not reasons:
        return dict(document), []
    result = cdi_edits.with_kept(dict(document), "mounts", is_kept)
    others = {path: reason for path, reason in reasons.items() if path not in removed}
    if others:
        raise errors.HostError(
            f"{' '.join(host_check.replaceable_messages(others))} The specification was not written. Let only root"
            " write there."
        )
    return result, list(removed.values())


def _warning(path: str, reason: str, is_socket: bool) -> str:
    advice = "Let only root write there."
    if is_socket:
        advice = (
            f"Add {cdi_options.NO_IPC} to {errors.option:feature_flags} to leave out all sockets without this warning."
        )
    return f"{path} is not in the specification, because another user could replace it: {reason}. {advice}"
