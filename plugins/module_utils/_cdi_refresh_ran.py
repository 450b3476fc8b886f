# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: with which files the service that keeps a CDI specification fresh last ran and was of use.
# Whether files changed in this run does not tell: an earlier one was not to start it, failed, or was killed in between.

from __future__ import annotations

import json
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR, digest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import (
    make_directories,
    remove_empty_directories,
    remove_file,
    replace_file,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

# It is no record of a file, and does not end like one.
NOTE = f"{STATE_DIR}/cdi.refresh.ran"


def state_of(service: str, files: t.Iterable[PlannedFile]) -> str:
    """A digest of all that ``service`` works by, as ``files`` are to be."""
    found = {file.path: digest(file.after) for file in files}
    return digest(json.dumps([service, found], sort_keys=True).encode("utf-8"))


def ran_with(host: HostRoot, state: str) -> bool:
    """Whether the service has run with files in this state, and was of use."""
    return host.read_text(NOTE).strip() == state


def note_run(host: HostRoot, state: str | None) -> None:
    """Remember that the service has run in this state, or forget what is known (None).  Takes the host's lock."""
    # Who starts nothing need not wait for this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._lock import host_lock  # noqa: PLC0415

    with host_lock(host):
        if state is not None:
            make_directories(host, STATE_DIR, 0o700)
            replace_file(host, NOTE, f"{state}\n".encode(), 0o600)
        else:
            forget_run(host)


def forget_run(host: HostRoot) -> None:
    """Forget what is known; the host's lock is held."""
    if host.is_there(NOTE):
        remove_file(host, NOTE)
        remove_empty_directories(host, [posixpath.dirname(STATE_DIR), STATE_DIR])
