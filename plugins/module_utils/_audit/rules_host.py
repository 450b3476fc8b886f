# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about problems that occurred while the host was read, and about a task without root's permissions.

The problems come from the packages that read the host. The rules here add severity and advice.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


NOT_ROOT, FILES_NOT_READ = "not-root", "files-not-read"
_DRIVER = "driver"


# -- problems in the report ------------------------------------------------------------------------------------------


class Kind(t.NamedTuple):
    """The severity, the id and the advice of the finding for a kind of problem."""

    severity: str
    id: str
    advice: str


_FOLLOW = "Follow the advice in the message."
_DENIED = Kind(report.WARNING, errors.PermissionDeniedError.code, _FOLLOW)
_OTHER = Kind(report.WARNING, "problem", _FOLLOW)
_NOUVEAU = "Install NVIDIA's driver, keep nouveau from loading, and restart the host."
_PACKAGE = "Install the package that the message names, then inspect the host again."
_HALF = "Or install the toolkit again with nvidia_toolkit_install. It completes these packages and no others."
_JOURNAL = "Look for the cause in the journal of its unit."
_UNREADABLE = "Do this before the engine restarts: it does not start with a file that it cannot read."
_CONFIG_TOML = "NVIDIA's runtime starts no container with a file that it cannot read."

# The key is the part of the report, then the code of the problem.
KINDS: dict[str, dict[str, Kind]] = {
    "engines": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _UNREADABLE),
        "engine-not-responding": Kind(report.WARNING, "engine-not-responding", _JOURNAL),
    },
    "toolkit": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _CONFIG_TOML),
        "package-half-installed": Kind(report.WARNING, "package-half-installed", _HALF),
    },
    "gpus": {
        "gpu-driven-by-nouveau": Kind(report.CRITICAL, "gpu-driven-by-nouveau", _NOUVEAU),
        "gpu-without-driver": Kind(
            report.CRITICAL, "gpu-without-driver", "Install NVIDIA's driver, or load it with modprobe nvidia."
        ),
        "driver-modules-differ": Kind(report.CRITICAL, "driver-modules-differ", "Restart the host."),
        "driver-library-missing": Kind(
            report.CRITICAL,
            "driver-library-missing",
            "Install the libraries of the loaded driver's version. If they are elsewhere, set nvidia_cdi_driver_root.",
        ),
        "driver-library-differs": Kind(
            report.CRITICAL, "driver-library-differs", "Restart the host, or load the installed kernel module."
        ),
    },
    "cdi": {
        "cdi-refresh-failed": Kind(
            report.WARNING, "cdi-refresh-failed", "Correct the cause, then start the service again."
        ),
        "cdi-refresh-duplicate": Kind(
            report.WARNING, "cdi-refresh-duplicate", "Disable one of them with nvidia_cdi_refresh."
        ),
    },
    "kubernetes": {
        "pod-resources-not-responding": Kind(report.WARNING, "pod-resources-not-responding", _FOLLOW),
    },
}


def problems(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for each problem in the report.

    A problem that is also a reason why a GPU cannot be used is reported with that GPU.
    """
    for engine in facts.engines:
        yield from _of_part("engines", report.target_of(engine), report.target_of(engine), engine)
    yield from _of_part("toolkit", "toolkit", "toolkit", facts.toolkit)
    devices = report.rows(facts.gpus.get("devices"))
    reasons = {reason for gpu in devices for reason in report.problems_in(gpu.get("reasons"))}
    yield from _of_part("gpus", _DRIVER, "gpus", facts.gpus, reasons)
    yield from _of_part("cdi", facts.refresh_service, "cdi", facts.cdi)
    yield from _of_part("kubernetes", "kubelet", "kubelet", facts.kubernetes)


def _of_part(
    name: str, subject: str, other: str, part: t.Mapping[str, t.Any], reported: t.Collection[errors.Problem] = ()
) -> report.Findings:
    """Yield the findings of one part: on ``subject`` for problems of a known kind, on ``other`` for the rest."""
    for problem in report.problems_in(part.get("problems")):
        kind = KINDS[name].get(problem.code)
        if problem.code == errors.MissingPackageError.code:
            yield unread_files(problem.message)
        elif kind is not None:
            yield report.Finding(kind.severity, kind.id, subject, problem.message, kind.advice)
        elif problem not in reported:
            kind = _DENIED if problem.code == errors.PermissionDeniedError.code else _OTHER
            yield report.Finding(kind.severity, kind.id, other, problem.message, kind.advice)


def unread_files(message: str) -> report.Finding:
    """Return the finding for files that need a Python package which this host lacks."""
    return report.warning(FILES_NOT_READ, "host", message, _PACKAGE)


# -- a task without root's permissions -------------------------------------------------------------------------------


def without_root(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield one finding with all files that the task's user may not read."""
    uid = os.geteuid()
    denied = [path for path in _paths(facts) if is_denied(host, path)] if uid else []
    if denied:
        message = f"The task runs as user {uid}, not as root. It cannot read {core_text.listed(denied)}."
        yield report.warning(NOT_ROOT, "host", f"{message} Findings may be missing.", "Run with -b (become).")


def _paths(facts: report.HostFacts) -> list[str]:
    """Return the known files and directories that the report depends on."""
    paths = [
        core_records.STATE_DIR,
        *core_constants.CDI_SPEC_DIRS,
        *gpu_containers.BUNDLE_FOLDERS,
        report.text(facts.toolkit.get("config_path")),
        report.text(facts.kubernetes.get("root_dir")),
    ]
    paths += [path for flavor in flavors.FLAVORS.values() for path in flavor.paths]
    for engine in facts.engines:
        socket = report.text(engine.get("socket")) if engine.get("running") is True else ""
        paths += [report.text(engine.get("config_path")), *report.texts(engine.get("unit_files")), socket]
    return [path for path in dict.fromkeys(paths) if path]


def is_denied(host: hostfs.HostFS, path: str) -> bool:
    """Return whether the task's user may not use ``path``, or may not find out whether it exists."""
    try:
        process_path = host.real_path(path)
        mode = os.stat(process_path).st_mode
    except (PermissionError, errors.PermissionDeniedError):
        return True
    except (errors.HostError, OSError, ValueError):
        return False
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.W_OK if stat.S_ISSOCK(mode) else os.R_OK
    return not os.access(process_path, needed, effective_ids=True)


RULES = (problems,)
HOST_RULES = (without_root,)
