# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a host has, read without changing or starting anything.

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import DIRECTORY

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner


# What can be looked at.
SUBJECTS = ("engines", "toolkit", "gpus", "cdi", "findings")


def describe_host(
    host: HostRoot, run: Runner, gather: t.Collection[str] = SUBJECTS, toolkit_dir: str = DIRECTORY
) -> dict[str, t.Any]:
    """Everything about ``host``; a strange one gives problems in the answer, never an error.

    What is not in ``gather`` is None.  ``toolkit_dir``: where a toolkit may be that did not come from packages; raises
    GpufleetError if that is no absolute path.  Where files were left unread for want of a Python package, ``needed``
    names it.
    """
    # Specifications are compared with the GPUs.
    gpus = _describe_gpus(host) if "gpus" in gather or "cdi" in gather else None
    cdi, needed = _describe_cdi(host, run, gpus) if "cdi" in gather else (None, None)
    engines, needed_too = _describe_engines(host, run) if "engines" in gather else (None, None)
    needed = needed or needed_too
    described = {
        "engines": engines,
        "toolkit": _describe_toolkit(host, run, toolkit_dir) if "toolkit" in gather else None,
        "gpus": gpus if "gpus" in gather else None,
        "cdi": cdi,
    }
    findings = _findings(host, described) if "findings" in gather else None
    return {**described, "findings": findings, **({} if needed is None else {"needed": needed})}


# Who asks for the engines only need not wait for the imports of the others.


def _describe_gpus(host: HostRoot) -> dict[str, t.Any]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_info import describe_gpus  # noqa: PLC0415

    return describe_gpus(host)


def _describe_cdi(
    host: HostRoot, run: Runner, gpus: t.Mapping[str, t.Any] | None
) -> tuple[dict[str, t.Any], str | None]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_info import describe_cdi  # noqa: PLC0415

    return describe_cdi(host, run, gpus)


def _describe_toolkit(host: HostRoot, run: Runner, directory: str) -> dict[str, t.Any]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_info import (  # noqa: PLC0415
        describe_toolkit,
    )

    return describe_toolkit(host, run, directory)


def _describe_engines(host: HostRoot, run: Runner) -> tuple[list[dict[str, t.Any]], str | None]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine_info import describe_engines  # noqa: PLC0415

    return describe_engines(host, run)


def _findings(host: HostRoot, described: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._findings import findings_of  # noqa: PLC0415

    return findings_of(host, described)
