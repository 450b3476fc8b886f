# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Merge findings that have the same cause into one finding. The findings themselves come from the rules_* files."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import finding as audit_finding
from ansible_collections.gpufleet.nvidia.plugins.module_utils._audit import rules_problems
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Explains = t.Callable[[audit_finding.Finding, audit_finding.Finding, audit_finding.Described, hostfs.HostFS], bool]


class Cause(t.NamedTuple):
    """A rule that merges findings.

    A finding with one of ``ids`` explains a finding with one of ``consequences`` if ``explains`` returns true for the
    two.
    """

    ids: tuple[str, ...]
    consequences: tuple[str, ...]
    explains: Explains


def _of_unread_engine(
    cause: audit_finding.Finding, other: audit_finding.Finding, described: audit_finding.Described, _host: hostfs.HostFS
) -> bool:
    of_engine = any(audit_finding.target_of(engine) == cause.subject for engine in described.engines)
    return other.subject == cause.subject or (other.id == "gpus-not-configured" and of_engine)


def _no_driver(
    _cause: audit_finding.Finding,
    _other: audit_finding.Finding,
    described: audit_finding.Described,
    _host: hostfs.HostFS,
) -> bool:
    """Return whether no GPU has a driver. If one has, findings about GPUs have other causes."""
    return not audit_finding.text(described.gpus.get("driver_version"))


def _always(
    _cause: audit_finding.Finding,
    _other: audit_finding.Finding,
    _described: audit_finding.Described,
    _host: hostfs.HostFS,
) -> bool:
    return True


def _lacks_toolkit(
    _cause: audit_finding.Finding,
    other: audit_finding.Finding,
    described: audit_finding.Described,
    _host: hostfs.HostFS,
) -> bool:
    """Return whether only the toolkit is missing: the program of a runtime, or those that a specification names."""
    if other.id == "cdi-stale":
        file = next(
            (one for one in audit_finding.rows(described.cdi.get("files")) if one.get("path") == other.subject), {}
        )
        names = [posixpath.basename(path) for path in audit_finding.texts(file.get("missing_paths"))]
        codes = {reason.code for reason in audit_finding.problems_in(file.get("reasons"))}
        return codes == {host_check.PATH_MISSING} and all(
            name in (*toolkit_constants.PROGRAMS, *toolkit_constants.LATER_PROGRAMS) for name in names
        )
    if other.id == "runtime-program-gone":
        # The rule gives this severity only to NVIDIA's runtimes.
        return other.severity == audit_finding.WARNING
    engine = next((one for one in described.engines if audit_finding.target_of(one) == other.subject), {})
    name = audit_finding.text(engine.get("default_runtime"))
    return engines_base.is_nvidia_runtime(name, audit_finding.table(engine.get("runtimes")).get(name))


_UNREAD_ENGINE = (
    *("engine-silent", "cri-dead", "restart-pending", "gpus-not-configured", "cdi-folder-not-read"),
    *("default-runtime-gone", "default-runtime-undefined", "default-runtime-without-gpu", "runtime-program-gone"),
)
_WITHOUT_DRIVER = ("cdi-stale", "cdi-refresh-failed", "docker-needs-cdi", "gpu-unusable", "node-missing")
_STALE_DRIVER = (*_WITHOUT_DRIVER, "mig-unusable", "mig-without-capability", "reboot-required")
_DIFFERENT = ("driver-library-differs", "driver-modules-differ")

# The order matters: a cause can be a consequence of one above it.
CAUSES = (
    Cause((rules_problems.NOT_ROOT,), ("engine-silent", errors.PermissionDeniedError.code), rules_problems.needs_root),
    Cause((rules_problems.FILES_NOT_READ,), ("cdi-unread",), _always),
    Cause(("config-unreadable",), _UNREAD_ENGINE, _of_unread_engine),
    Cause(_DIFFERENT, (*_STALE_DRIVER, *_DIFFERENT), _always),
    Cause(("gpu-driven-by-nouveau", "gpu-without-driver", "driver-not-loaded"), _WITHOUT_DRIVER, _no_driver),
    Cause(("toolkit-missing",), ("default-runtime-gone", "runtime-program-gone", "cdi-stale"), _lacks_toolkit),
    Cause(("cdi-stale", "cdi-invalid"), ("docker-needs-cdi",), _always),
)


def merged(
    found: t.Iterable[audit_finding.Finding], described: audit_finding.Described, host: hostfs.HostFS
) -> list[audit_finding.Finding]:
    """Return ``found`` without the consequences.

    The finding of a cause names its consequences and gets the highest severity of all of them.
    """
    kept = sorted(found, key=audit_finding.Finding.place)
    for row in CAUSES:
        for cause in [one for one in kept if one.id in row.ids]:
            if cause not in kept:
                # It is a consequence of an earlier cause.
                continue
            explained = [
                other
                for other in kept
                if other != cause and other.id in row.consequences and row.explains(cause, other, described, host)
            ]
            kept = [_with(one, explained) if one == cause else one for one in kept if one not in explained]
    return sorted(kept, key=audit_finding.Finding.place)


def _with(cause: audit_finding.Finding, explained: t.Sequence[audit_finding.Finding]) -> audit_finding.Finding:
    subjects: dict[str, list[str]] = {}
    for name, subject in dict.fromkeys((other.id, other.subject) for other in explained):
        subjects.setdefault(name, []).append(subject)
    if not subjects:
        return cause
    told = "; ".join(f"{name} ({core_text.listed(places)})" for name, places in subjects.items())
    worst = min((cause, *explained), key=lambda one: audit_finding.SEVERITIES.index(one.severity)).severity
    return cause._replace(severity=worst, text=f"{cause.text} This also causes: {told}.")
