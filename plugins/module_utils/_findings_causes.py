# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Private to this collection: which findings are consequences of another one.

The report has one finding for a cause, which names its consequences by their ids and subjects.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_staleness import PATH_MISSING
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import PermissionDeniedError, few
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_problems import (
    FILES_NOT_READ,
    NOT_ROOT,
    needs_root,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings_words import (
    SEVERITIES,
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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_runtime
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import LATER_PROGRAMS, PROGRAMS

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

    Explains = t.Callable[[Finding, Finding, Described, HostRoot], bool]


class Cause(t.NamedTuple):
    """Findings with one of ``ids`` explain those with one of ``consequences``, if ``explains`` is true for the two."""

    ids: tuple[str, ...]
    consequences: tuple[str, ...]
    explains: Explains


def _of_unread_engine(cause: Finding, other: Finding, described: Described, _host: HostRoot) -> bool:
    of_engine = any(target_of(engine) == cause.subject for engine in described.engines)
    return other.subject == cause.subject or (other.id == "gpus-not-configured" and of_engine)


def _no_driver(_cause: Finding, _other: Finding, described: Described, _host: HostRoot) -> bool:
    """Whether no GPU has a driver: findings about GPUs that have one have other causes."""
    return not text(described.gpus.get("driver_version"))


def _always(_cause: Finding, _other: Finding, _described: Described, _host: HostRoot) -> bool:
    return True


def _lacks_toolkit(_cause: Finding, other: Finding, described: Described, _host: HostRoot) -> bool:
    """Whether all that is missing is the toolkit's: the program of a runtime, or those that a specification names."""
    if other.id == "cdi-stale":
        file = next((one for one in rows(described.cdi.get("files")) if one.get("path") == other.subject), {})
        names = [posixpath.basename(path) for path in texts(file.get("missing_paths"))]
        codes = {reason.code for reason in problems_in(file.get("reasons"))}
        return codes == {PATH_MISSING} and all(name in (*PROGRAMS, *LATER_PROGRAMS) for name in names)
    if other.id == "runtime-program-gone":
        # The rule gives this severity to NVIDIA's runtimes only.
        return other.severity == WARNING
    engine = next((one for one in described.engines if target_of(one) == other.subject), {})
    name = text(engine.get("default_runtime"))
    return is_nvidia_runtime(name, table(engine.get("runtimes")).get(name))


_UNREAD_ENGINE = (
    *("engine-silent", "cri-dead", "restart-pending", "gpus-not-configured", "cdi-folder-not-read"),
    *("default-runtime-gone", "default-runtime-undefined", "default-runtime-without-gpu", "runtime-program-gone"),
)
_WITHOUT_DRIVER = ("cdi-stale", "cdi-refresh-failed", "docker-needs-cdi", "gpu-unusable", "node-missing")
_STALE_DRIVER = (*_WITHOUT_DRIVER, "mig-unusable", "mig-without-capability", "reboot-required")
_DIFFERENT = ("driver-library-differs", "driver-modules-differ")

# In this order.  A cause can be a consequence of one above it.
CAUSES = (
    Cause((NOT_ROOT,), ("engine-silent", PermissionDeniedError.code), needs_root),
    Cause((FILES_NOT_READ,), ("cdi-unread",), _always),
    Cause(("config-unreadable",), _UNREAD_ENGINE, _of_unread_engine),
    Cause(_DIFFERENT, (*_STALE_DRIVER, *_DIFFERENT), _always),
    Cause(("gpu-driven-by-nouveau", "gpu-without-driver", "driver-not-loaded"), _WITHOUT_DRIVER, _no_driver),
    Cause(("toolkit-missing",), ("default-runtime-gone", "runtime-program-gone", "cdi-stale"), _lacks_toolkit),
    Cause(("cdi-stale", "cdi-invalid"), ("docker-needs-cdi",), _always),
)


def merged(found: t.Iterable[Finding], described: Described, host: HostRoot) -> list[Finding]:
    """``found`` without the consequences, which the findings of their causes name, at the worst severity of all."""
    kept = sorted(found, key=Finding.place)
    for row in CAUSES:
        for cause in [one for one in kept if one.id in row.ids]:
            if cause not in kept:
                # A consequence of the finding before it.
                continue
            explained = [
                other
                for other in kept
                if other != cause and other.id in row.consequences and row.explains(cause, other, described, host)
            ]
            kept = [_with(one, explained) if one == cause else one for one in kept if one not in explained]
    return sorted(kept, key=Finding.place)


def _with(cause: Finding, explained: t.Sequence[Finding]) -> Finding:
    subjects: dict[str, list[str]] = {}
    for name, subject in dict.fromkeys((other.id, other.subject) for other in explained):
        subjects.setdefault(name, []).append(subject)
    if not subjects:
        return cause
    told = "; ".join(f"{name} ({few(places)})" for name, places in subjects.items())
    worst = min((cause, *explained), key=lambda one: SEVERITIES.index(one.severity)).severity
    return cause._replace(severity=worst, text=f"{cause.text} This also causes: {told}.")
