# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about problems that occurred while the host was read, and about a task without root's permissions.

The problems come from the code that reads the host. The rules here add severity and advice.
"""

from __future__ import annotations

import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import report, steps
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import inventory, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# -- problems in the report ------------------------------------------------------------------------------------------


class Kind(t.NamedTuple):
    """What the finding for a kind of problem adds to the problem: a step after the problem's own advice.

    ``instead`` replaces that advice, which is for the user of a module. The finding has the code of the problem as its
    id, unless ``id`` is set.
    """

    severity: str = report.WARNING
    id: str = ""
    then: str = ""
    instead: str = ""


_UNREADABLE = "With a file that it cannot read, a daemon does not start again, and Podman starts no container."
_CONFIG_TOML = "NVIDIA's runtime starts no container with a file that it cannot read."
_REFUSED_SETTING = "Until then, NVIDIA's runtime starts no container."
_CRITICAL = Kind(report.CRITICAL)
_OTHER = Kind()
_MIG = "If the host has MIG devices, inspect it while it runs, with the libnvidia-ml.so.1 of the driver's version."

# The key is the part of the report, then the code of the problem. A problem without a row is a warning too.
KINDS: dict[str, dict[str, Kind]] = {
    "engines": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _UNREADABLE),
        "engine-not-responding": Kind(then="Look for the cause in the journal of its unit."),
        "engine-unsupported": Kind(instead="Nothing is needed if its containers need no GPUs."),
        "flags-unreadable": Kind(instead=steps.SET_CONFIG_PATH),
        "engine-release-fails": _CRITICAL,
    },
    "toolkit": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _CONFIG_TOML),
        "toolkit-inconsistent": Kind(then=steps.COMPLETE_PACKAGES),
        "setting-refused": Kind(report.CRITICAL, instead=steps.SET_TOOLKIT_SETTING, then=_REFUSED_SETTING),
        "setting-invalid": Kind(instead=steps.SET_TOOLKIT_SETTING),
    },
    "other_toolkits": {
        errors.ConfigurationError.code: Kind(report.CRITICAL, "config-unreadable", _CONFIG_TOML),
        "setting-refused": Kind(report.CRITICAL, instead=steps.SET_OTHER_TOOLKIT, then=_REFUSED_SETTING),
        "setting-invalid": Kind(instead=steps.SET_OTHER_TOOLKIT),
    },
    "gpus": {
        **dict.fromkeys(procfs.WITHOUT_DRIVER, _CRITICAL),
        inventory.ABSENT: Kind(report.CRITICAL, instead=steps.INSTALL_LIBRARIES),
        "driver-version-differs": Kind(report.CRITICAL, instead=steps.RELOAD_DRIVER),
        "gpu-uuid-unknown": _OTHER,
        "gpus-from-proc": Kind(instead=_MIG),
    },
    "cdi": {"cdi-refresh-failed": Kind(then=steps.START_REFRESH)},
    "kubernetes": {},
}
# What may be wrong in the report of an engine whose files cannot be read.
_OF_UNREAD_FILES = (
    "engine-not-responding", "restart-pending", "cdi-directory-not-read", "default-runtime-without-gpu",
    "runtime-missing",
)  # fmt: skip
# The codes of errors that say only that something could not be read.
_GENERIC = ("", errors.NvidiaError.code, errors.HostError.code, errors.ConfigurationError.code)


def problems(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for each problem in the report, with the findings that it explains."""
    for finding in _without_consequences(facts):
        yield finding._replace(explains=_consequences(facts, finding.id, finding.subject))


def _consequences(facts: report.HostFacts, name: str, subject: str) -> report.Consequences:
    """Return what the finding ``name`` about ``subject`` explains."""
    if name == "driver-version-differs":
        return (*report.WITHOUT_DRIVER, *report.consequences("reboot-required"))
    if name in procfs.WITHOUT_DRIVER:
        return facts.without_driver
    if name == inventory.ABSENT:
        return report.WITHOUT_RUNTIME
    if name == "engine-not-responding":
        return facts.without_engine(subject)
    if name == "config-unreadable" and subject in map(report.target_of, facts.engines):
        same_engine = report.consequences(*_OF_UNREAD_FILES, subject=subject)
        return (*same_engine, *report.consequences("gpus-not-configured"), *facts.without_engine(subject))
    return ()


def _without_consequences(facts: report.HostFacts) -> report.Findings:
    """Yield one finding for each problem in the report.

    A problem of the driver that has no row in KINDS and is also a reason why a GPU cannot be used is reported with that
    GPU.
    """
    for engine in facts.engines:
        yield from _of_part("engines", report.target_of(engine), report.target_of(engine), engine)
    for toolkit in facts.toolkits:
        subject = report.toolkit_subject(toolkit)
        yield from _of_part("toolkit" if toolkit is facts.toolkit else "other_toolkits", subject, subject, toolkit)
    devices = report.rows(facts.gpus.get("devices"))
    reasons = {reason for gpu in devices for reason in report.problems_in(gpu.get("reasons"))}
    yield from _of_part("gpus", report.DRIVER, "gpus", facts.gpus, reasons)
    yield from _of_part("cdi", facts.refresh_service, "cdi", facts.cdi)
    yield from _of_part("kubernetes", "kubelet", "kubelet", facts.kubernetes)


def _of_part(
    name: str, subject: str, other: str, part: t.Mapping[str, t.Any], reported: t.Collection[errors.Problem] = ()
) -> report.Findings:
    """Yield the findings of one part: on ``subject`` for problems of a known kind, on ``other`` for the rest."""
    for problem in report.problems_in(part.get("problems")):
        kind = KINDS[name].get(problem.code)
        if problem.code == errors.MissingPackageError.code:
            yield unread_files(problem)
        elif kind is not None:
            yield _finding(kind, subject, problem)
        elif problem not in reported:
            yield _finding(_OTHER, other, problem)


def _finding(kind: Kind, subject: str, problem: errors.Problem) -> report.Finding:
    name = kind.id or ("inspection-incomplete" if problem.code in _GENERIC else problem.code)
    advice = " ".join(filter(None, (kind.instead or problem.advice, kind.then))) or steps.CORRECT
    return report.Finding(kind.severity, name, subject, problem.message, advice)


def unread_files(problem: errors.Problem) -> report.Finding:
    """Return the finding for files that need a Python package which this host lacks."""
    advice = problem.advice or "Install the package for the controller's Ansible."
    return report.warning("files-not-read", "host", problem.message, advice)


# -- a task without root's permissions -------------------------------------------------------------------------------


def without_root(facts: report.HostFacts, host: hostfs.HostFS) -> report.Findings:
    """Yield one finding with all files that the task's user may not read."""
    uid = os.geteuid()
    denied = [path for path in _paths(facts, host) if is_denied(host, path)] if uid else []
    if denied:
        message = f"The task runs as user {uid}, not as root. It cannot read {core_text.listed(denied)}."
        targets = [
            report.target_of(engine)
            for engine in facts.engines
            if report.text(engine.get("socket")) and is_denied(host, report.text(engine.get("socket")))
        ]
        explains = (
            *report.consequences(errors.PermissionDeniedError.code),
            *(report.Consequence("engine-not-responding", target) for target in targets),
        )
        message = f"{message} Findings may be missing."
        yield report.warning(errors.PermissionDeniedError.code, "host", message, "Run with -b (become).", explains)


def _paths(facts: report.HostFacts, host: hostfs.HostFS) -> list[str]:
    """Return the known files and directories that the report depends on."""
    paths = [
        core_records.STATE_DIR,
        *core_constants.CDI_SPEC_DIRS,
        *gpu_containers.bundle_folders(host),
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
