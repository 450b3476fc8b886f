# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find specifications that no engine reads, or no rootless engine.

No engine reads a linked directory or a file with another suffix. Rootless engines lack permission for some files.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The kinds of reasons.
LINKED, SUFFIX, UNREADABLE = "linked", "suffix", "unreadable"
_OTHER_SUFFIX = ".yml"


class Ignored(t.NamedTuple):
    """A file or directory that engines do not read, or not for all users: the kind of the reason, and a sentence."""

    path: str
    kind: str
    message: str


def ignored_paths(host: hostfs.HostFS, folders: t.Sequence[str] = core_constants.CDI_SPEC_DIRS) -> list[Ignored]:
    """Return what engines ignore in ``folders``, by the rules of the CDI library (pkg/cdi/spec-dirs.go, 0.3 to 1.1)."""
    found: list[Ignored] = []
    for folder in folders:
        paths = [f"{folder}/{name}" for name in host.readable_entries(folder)]
        files = [path for path in paths if not cdi_registry.is_directory(host, path)]
        specifications = [path for path in files if path.endswith(cdi_registry.SUFFIXES)]
        # The links of a directory with entries are no loop.
        if files and cdi_registry.is_link(host, folder):
            message = f"{folder} is a link, and engines do not read a linked directory."
            found += [Ignored(folder, LINKED, message)] if specifications else []
            continue
        for path in files:
            if path.endswith(_OTHER_SUFFIX):
                message = f"{path} ends in {_OTHER_SUFFIX}, and engines read only .yaml and .json."
                found.append(Ignored(path, SUFFIX, message))
        found += _unreadable(host, folder, specifications)
    return found


def _unreadable(host: hostfs.HostFS, folder: str, paths: t.Sequence[str]) -> t.Iterator[Ignored]:
    """Yield the directory, or the files, that only their owner and group can read."""
    mode = _mode(host, folder)
    if paths and mode is not None and mode & 0o005 != 0o005:
        message = f"{folder} has the mode {mode:04o}, so rootless engines cannot read the specifications in it."
        yield Ignored(folder, UNREADABLE, message)
        return
    for path in paths:
        mode = _mode(host, path)
        if mode is not None and not mode & 0o004:
            message = f"{path} has the mode {mode:04o}, so rootless engines cannot read it."
            yield Ignored(path, UNREADABLE, message)


def _mode(host: hostfs.HostFS, path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(host.real_path(path)).st_mode)
    except (errors.HostError, OSError):
        return None
