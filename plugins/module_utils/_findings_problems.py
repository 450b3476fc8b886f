# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Private to this collection: the findings that follow from problems, by their codes, and from denied files.

The rules about all other parts of a description are in the other modules named _findings_*.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import FLAVORS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    HostError,
    MissingPackageError,
    PermissionDeniedError,
    Problem,
    few,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    CRITICAL,
    WARNING,
    Described,
    Finding,
    problems_in,
    rows,
    table,
    target_of,
    text,
    texts,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import STATE_DIR
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import SPECIFICATION_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import BUNDLE_FOLDERS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

NOT_ROOT, FILES_NOT_READ, DRIVER = "not-root", "files-not-read", "driver"


class Kind(t.NamedTuple):
    """What a problem means: the severity, the id and the advice of its finding."""

    severity: str
    id: str
    advice: str


_FOLLOW = "Follow the advice in the message."
_DENIED = Kind(WARNING, PermissionDeniedError.code, _FOLLOW)
_OTHER = Kind(WARNING, "problem", _FOLLOW)
_NOUVEAU = "Install NVIDIA's driver, keep nouveau from loading, and restart the host."
_PACKAGE = "Install the package that is named, then run this again."
_HALF = "Or install the toolkit again with nvidia_toolkit_install. It completes these packages and no others."
_UNREADABLE = "Do this before the engine restarts: it does not start with a file that it cannot read."
_CONFIG_TOML = "NVIDIA's runtime starts no container with a file that it cannot read."

# By the part of the description and the code of the problem.
KINDS: dict[str, dict[str, Kind]] = {
    "engines": {
        ConfigurationError.code: Kind(CRITICAL, "config-unreadable", _UNREADABLE),
        "engine-silent": Kind(WARNING, "engine-silent", "Look for the cause in the journal of its unit."),
    },
    "toolkit": {
        ConfigurationError.code: Kind(CRITICAL, "config-unreadable", _CONFIG_TOML),
        "package-half-installed": Kind(WARNING, "package-half-installed", _HALF),
    },
    "gpus": {
        "gpu-driven-by-nouveau": Kind(CRITICAL, "gpu-driven-by-nouveau", _NOUVEAU),
        "gpu-without-driver": Kind(
            CRITICAL, "gpu-without-driver", "Install NVIDIA's driver, or load it with modprobe nvidia."
        ),
        "driver-modules-differ": Kind(CRITICAL, "driver-modules-differ", "Restart the host."),
        "driver-library-differs": Kind(
            CRITICAL, "driver-library-differs", "Restart the host, or load the installed kernel module."
        ),
    },
    "cdi": {
        "cdi-refresh-failed": Kind(WARNING, "cdi-refresh-failed", "Correct the cause, then start the service again."),
        "cdi-refresh-twice": Kind(WARNING, "cdi-refresh-twice", "Switch one of them off with nvidia_cdi_refresh."),
    },
}


def problems(described: Described) -> t.Iterator[Finding]:
    """One finding for each problem in the description; one that a GPU has as its reason is that GPU's finding."""
    for engine in described.engines:
        yield from _of_part("engines", target_of(engine), target_of(engine), engine)
    yield from _of_part("toolkit", "toolkit", "toolkit", described.toolkit)
    reasons = {reason for gpu in rows(described.gpus.get("devices")) for reason in problems_in(gpu.get("reasons"))}
    yield from _of_part("gpus", DRIVER, "gpus", described.gpus, reasons)
    service = text(table(described.cdi.get("refresh")).get("service")) or "cdi"
    yield from _of_part("cdi", service, "cdi", described.cdi)


def _of_part(
    name: str, subject: str, other: str, part: t.Mapping[str, t.Any], reported: t.Collection[Problem] = ()
) -> t.Iterator[Finding]:
    """The findings of one part: ``subject`` is what problems of a known kind are about, ``other`` what others are."""
    for problem in problems_in(part.get("problems")):
        kind = KINDS[name].get(problem.code)
        if problem.code == MissingPackageError.code:
            yield unread_files(problem.message)
        elif kind is not None:
            yield Finding(kind.severity, kind.id, subject, problem.message, kind.advice)
        elif problem not in reported:
            kind = _DENIED if problem.code == PermissionDeniedError.code else _OTHER
            yield Finding(kind.severity, kind.id, other, problem.message, kind.advice)


def unread_files(message: str) -> Finding:
    """The finding that nothing on the host can read some files."""
    return Finding(WARNING, FILES_NOT_READ, "host", message, _PACKAGE)


# -- a task without root's permissions --------------------------------------------------------------------------------


def without_root(described: Described, host: HostRoot) -> t.Iterator[Finding]:
    """One finding with all files that the task's user may not read."""
    uid = os.geteuid()
    denied = [path for path in _paths(described) if _is_denied(host, path)] if uid else []
    if denied:
        said = f"The task runs as user {uid}, not as root. It cannot read {few(denied)}, so findings may be missing."
        yield Finding(WARNING, NOT_ROOT, "host", said, "Run with -b (become).")


def needs_root(_cause: Finding, other: Finding, described: Described, host: HostRoot) -> bool:
    """Whether root's permissions would have prevented ``other``."""
    sockets = [text(one.get("socket")) for one in described.engines if target_of(one) == other.subject]
    return other.id == PermissionDeniedError.code or any(_is_denied(host, socket) for socket in sockets if socket)


def _paths(described: Described) -> list[str]:
    """The files and folders whose content matters, as far as they are known."""
    paths = [STATE_DIR, *SPECIFICATION_FOLDERS, *BUNDLE_FOLDERS, text(described.toolkit.get("config_path"))]
    paths += [path for flavor in FLAVORS.values() for path in flavor.paths]
    for engine in described.engines:
        socket = text(engine.get("socket")) if engine.get("running") is True else ""
        paths += [text(engine.get("config_path")), *texts(engine.get("unit_files")), socket]
    return [path for path in dict.fromkeys(paths) if path]


def _is_denied(host: HostRoot, path: str) -> bool:
    """Whether the task's user may not use what is at ``path``, or may not even see whether anything is."""
    try:
        outer = host.outer(path)
        mode = os.stat(outer).st_mode
    except (PermissionError, PermissionDeniedError):
        return True
    except (HostError, OSError, ValueError):
        return False
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.W_OK if stat.S_ISSOCK(mode) else os.R_OK
    return not os.access(outer, needed, effective_ids=True)
