# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find specifications that no engine reads: in a linked directory, with another suffix, or without permission."""

from __future__ import annotations

import os
import posixpath
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
        names = host.readable_entries(folder)
        specifications = [name for name in names if name.endswith(cdi_registry.SUFFIXES)]
        if os.path.islink(host.real_path(folder, last=False)):
            message = f"{folder} is a link, and engines do not read a linked directory."
            found += [Ignored(folder, LINKED, message)] if specifications else []
            continue
        for name in names:
            if name.endswith(_OTHER_SUFFIX):
                path = f"{folder}/{name}"
                message = f"{path} ends in {_OTHER_SUFFIX}, and engines read only .yaml and .json."
                found.append(Ignored(path, SUFFIX, message))
        found += _unreadable(host, folder, specifications)
    return found


def _unreadable(host: hostfs.HostFS, folder: str, names: t.Sequence[str]) -> t.Iterator[Ignored]:
    """Yield the directory, or the files, that only their owner and group can read."""
    mode = _mode(host, folder)
    if names and mode is not None and mode & 0o005 != 0o005:
        message = f"{folder} has the mode {mode:04o}, so rootless engines cannot read the specifications in it."
        yield Ignored(folder, UNREADABLE, message)
        return
    for name in names:
        path = posixpath.join(folder, name)
        mode = _mode(host, path)
        if mode is not None and not mode & 0o004:
            message = f"{path} has the mode {mode:04o}, so rootless engines cannot read it."
            yield Ignored(path, UNREADABLE, message)


def _mode(host: hostfs.HostFS, path: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(host.real_path(path)).st_mode)
    except (errors.HostError, OSError):
        return None
