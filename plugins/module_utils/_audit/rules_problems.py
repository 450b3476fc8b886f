# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Findings about problems that occurred while the host was read, such as broken files or missing permissions.

It adds severity and advice; the problems come from the packages that read the host.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import registry as engines_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


NOT_ROOT, FILES_NOT_READ, DRIVER = "not-root", "files-not-read", "driver"


class Kind(t.NamedTuple):
    """The severity, the id and the advice of the finding for a kind of problem."""

    severity: str
    id: str
    advice: str


_FOLLOW = "Follow the advice in the message."
_DENIED = Kind(audit_finding.WARNING, errors.PermissionDeniedError.code, _FOLLOW)
_OTHER = Kind(audit_finding.WARNING, "problem", _FOLLOW)
_NOUVEAU = "Install NVIDIA's driver, keep nouveau from loading, and restart the host."
_PACKAGE = "Install the package that is named, then run this again."
_HALF = "Or install the toolkit again with nvidia_toolkit_install. It completes these packages and no others."
_UNREADABLE = "Do this before the engine restarts: it does not start with a file that it cannot read."
_CONFIG_TOML = "NVIDIA's runtime starts no container with a file that it cannot read."

# The key is the part of the report, then the code of the problem.
KINDS: dict[str, dict[str, Kind]] = {
    "engines": {
        errors.ConfigurationError.code: Kind(audit_finding.CRITICAL, "config-unreadable", _UNREADABLE),
        "engine-silent": Kind(audit_finding.WARNING, "engine-silent", "Look for the cause in the journal of its unit."),
    },
    "toolkit": {
        errors.ConfigurationError.code: Kind(audit_finding.CRITICAL, "config-unreadable", _CONFIG_TOML),
        "package-half-installed": Kind(audit_finding.WARNING, "package-half-installed", _HALF),
    },
    "gpus": {
        "gpu-driven-by-nouveau": Kind(audit_finding.CRITICAL, "gpu-driven-by-nouveau", _NOUVEAU),
        "gpu-without-driver": Kind(
            audit_finding.CRITICAL, "gpu-without-driver", "Install NVIDIA's driver, or load it with modprobe nvidia."
        ),
        "driver-modules-differ": Kind(audit_finding.CRITICAL, "driver-modules-differ", "Restart the host."),
        "driver-library-differs": Kind(
            audit_finding.CRITICAL, "driver-library-differs", "Restart the host, or load the installed kernel module."
        ),
    },
    "cdi": {
        "cdi-refresh-failed": Kind(
            audit_finding.WARNING, "cdi-refresh-failed", "Correct the cause, then start the service again."
        ),
        "cdi-refresh-twice": Kind(
            audit_finding.WARNING, "cdi-refresh-twice", "Switch one of them off with nvidia_cdi_refresh."
        ),
    },
}


def problems(described: audit_finding.Described) -> t.Iterator[audit_finding.Finding]:
    """Yield one finding for each problem in the report.

    A problem that is also a reason why a GPU cannot be used is reported with that GPU.
    """
    for engine in described.engines:
        yield from _of_part("engines", audit_finding.target_of(engine), audit_finding.target_of(engine), engine)
    yield from _of_part("toolkit", "toolkit", "toolkit", described.toolkit)
    reasons = {
        reason
        for gpu in audit_finding.rows(described.gpus.get("devices"))
        for reason in audit_finding.problems_in(gpu.get("reasons"))
    }
    yield from _of_part("gpus", DRIVER, "gpus", described.gpus, reasons)
    service = audit_finding.text(audit_finding.table(described.cdi.get("refresh")).get("service")) or "cdi"
    yield from _of_part("cdi", service, "cdi", described.cdi)


def _of_part(
    name: str, subject: str, other: str, part: t.Mapping[str, t.Any], reported: t.Collection[errors.Problem] = ()
) -> t.Iterator[audit_finding.Finding]:
    """Yield the findings of one part: on ``subject`` for problems of a known kind, on ``other`` for the rest."""
    for problem in audit_finding.problems_in(part.get("problems")):
        kind = KINDS[name].get(problem.code)
        if problem.code == errors.MissingPackageError.code:
            yield unread_files(problem.message)
        elif kind is not None:
            yield audit_finding.Finding(kind.severity, kind.id, subject, problem.message, kind.advice)
        elif problem not in reported:
            kind = _DENIED if problem.code == errors.PermissionDeniedError.code else _OTHER
            yield audit_finding.Finding(kind.severity, kind.id, other, problem.message, kind.advice)


def unread_files(message: str) -> audit_finding.Finding:
    """Return the finding for files that need a Python package which this host lacks."""
    return audit_finding.Finding(audit_finding.WARNING, FILES_NOT_READ, "host", message, _PACKAGE)


# -- a task without root's permissions -------------------------------------------------------------------------------


def without_root(described: audit_finding.Described, host: hostfs.HostFS) -> t.Iterator[audit_finding.Finding]:
    """Yield one finding with all files that the task's user may not read."""
    uid = os.geteuid()
    denied = [path for path in _paths(described) if _is_denied(host, path)] if uid else []
    if denied:
        said = (
            f"The task runs as user {uid}, not as root. It cannot read {core_text.listed(denied)}, so findings may be"
            f" missing."
        )
        yield audit_finding.Finding(audit_finding.WARNING, NOT_ROOT, "host", said, "Run with -b (become).")


def needs_root(
    _cause: audit_finding.Finding, other: audit_finding.Finding, described: audit_finding.Described, host: hostfs.HostFS
) -> bool:
    """Return whether ``other`` is caused by missing root permissions."""
    sockets = [
        audit_finding.text(one.get("socket"))
        for one in described.engines
        if audit_finding.target_of(one) == other.subject
    ]
    return other.id == errors.PermissionDeniedError.code or any(
        _is_denied(host, socket) for socket in sockets if socket
    )


def _paths(described: audit_finding.Described) -> list[str]:
    """Return the known files and directories that the report depends on."""
    paths = [
        core_records.STATE_DIR,
        *core_constants.CDI_SPEC_DIRS,
        *gpu_containers.BUNDLE_FOLDERS,
        audit_finding.text(described.toolkit.get("config_path")),
    ]
    paths += [path for flavor in engines_registry.FLAVORS.values() for path in flavor.paths]
    for engine in described.engines:
        socket = audit_finding.text(engine.get("socket")) if engine.get("running") is True else ""
        paths += [audit_finding.text(engine.get("config_path")), *audit_finding.texts(engine.get("unit_files")), socket]
    return [path for path in dict.fromkeys(paths) if path]


def _is_denied(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the task's user may not use ``path``, or may not find out whether it exists."""
    try:
        outer = host.real_path(path)
        mode = os.stat(outer).st_mode
    except (PermissionError, errors.PermissionDeniedError):
        return True
    except (errors.HostError, OSError, ValueError):
        return False
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.W_OK if stat.S_ISSOCK(mode) else os.R_OK
    return not os.access(outer, needed, effective_ids=True)
