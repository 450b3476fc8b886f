# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan an engine whose containers get GPUs through CDI alone: no runtime of NVIDIA is registered, and CDI is on.

It joins two plans of the engine. The removal takes away what earlier runs registered, and brings back the bytes of a
file whose present content is theirs. The other one, with no runtime to register, writes the setting of CDI where CDI is
not on without it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import facts as engines_facts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors


def completed(request: engines_request.RuntimeRequest) -> engines_request.RuntimeRequest:
    """Return the request with what ``register: false`` implies.

    Raises NvidiaError for options that describe a runtime, or that switch CDI off.
    """
    names = request.given(
        {"set_as_default", "use_legacy_config", *engines_facts.TABLES},
        config_mode=request.config_mode == "hook", enable_cdi=request.enable_cdi is False,
    )  # fmt: skip
    if names:
        raise errors.NvidiaError(
            f"{errors.option:register}: false registers no runtime and needs CDI, so it does not support these options:"
            f" {names}. Remove them, or set {errors.option:register}: true."
        )
    enable_cdi = engines_request.CDI_AUTO if request.enable_cdi is None else request.enable_cdi
    return request._replace(set_as_default=False, enable_cdi=enable_cdi)


def plan(
    engine: engines_base.Planner,
    facts: engines_facts.EngineFacts,
    row: flavors.Flavor,
    request: engines_request.RuntimeRequest,
    context: engines_base.Context,
) -> engines_base.EnginePlan:
    """Return the plan. Raises NvidiaError if containers would get no GPUs, because CDI is off or not supported.

    Args:
        engine: The engine.
        facts: Its facts.
        row: Those of its flavor.
        request: The request, as completed() returns it.
        context: The files and the version of the engine.
    """
    # Runtimes that other tools registered stay.
    context = context._replace(keep_unrecorded=True)
    planned = engine.absent(context)
    writes_cdi = not facts.cdi_always and not row.cdi_advice
    if writes_cdi and (planned.state.cdi is not True or _has_no_cri(facts, planned)):
        planned = engine.present(request, context)
    if not _has_no_cri(facts, planned):
        _require_cdi(facts, row, planned, context)
    return planned


def _has_no_cri(facts: engines_facts.EngineFacts, planned: engines_base.EnginePlan) -> bool:
    """Return whether the engine's CRI is a plugin that is disabled. Then no setting of this collection has effect."""
    return facts.cri_plugin and not planned.state.lists_runtimes


def _require_cdi(
    facts: engines_facts.EngineFacts,
    row: flavors.Flavor,
    planned: engines_base.EnginePlan,
    context: engines_base.Context,
) -> None:
    """Raise NvidiaError if containers would get no GPUs, because CDI is off or this release does not support it."""
    since = facts.cdi_newest[0][0]
    if planned.state.has_empty_cdi_folders:
        raise errors.NvidiaError(
            f"{context.path} was not changed, because {facts.name} has an empty list {facts.cdi_setting}, so CDI would"
            f" be off, and without a runtime containers would get no GPUs. Remove {facts.cdi_setting} from its files"
            f" and from the flags of its unit, or set {errors.option:register}: true."
        )
    if planned.state.cdi is False:
        advice = f"{row.cdi_advice} Or set" if row.cdi_advice else f"Set {errors.option:enable_cdi}: true, or"
        raise errors.NvidiaError(
            f"{context.path} was not changed, because CDI would be off in {facts.name}, and without a runtime"
            f" containers would get no GPUs. {advice} {errors.option:register}: true."
        )
    # The version of a distribution of Kubernetes is higher than that of its engine.
    if context.version is not None and context.version < since:
        raise errors.NvidiaError(
            f"{context.path} was not changed, because {facts.name} {core_text.dotted(context.version)} does not support"
            f" CDI, and without a runtime containers would get no GPUs. Upgrade {facts.name} to"
            f" {core_text.dotted(since)} or newer, or set {errors.option:register}: true."
        )
