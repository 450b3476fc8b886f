# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the units, the drop-in and the links that a host needs to refresh its specification.

`units.py` has the contents of the files, and `refresh.py` writes them.
"""

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    units as refresh_units,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate as cdi_generate
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The records of the files of refresh units have names that begin with this.
CDI_REFRESH = "cdi.refresh"
_SMI = "nvidia-smi"
_NULL = "/dev/null"


class RefreshOptions(t.NamedTuple):
    """The options of a task. ``cdi`` describes the specification, as in nvidia_cdi_spec."""

    cdi: cdi_options.CdiOptions = cdi_options.CdiOptions()
    state: str = "present"
    before_engines: bool = True
    start: bool = True


class Runners(t.NamedTuple):
    """Functions that run commands on the host.

    ``run`` uses the environment of the task, and ``run_pinned`` only the PATH of services.
    """

    run: core_plan.Runner
    run_pinned: core_plan.Runner


def own_paths() -> list[str]:
    """Return all files that this collection may have written."""
    return [
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_SERVICE}",
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_PATH_UNIT}",
        refresh_units.DROP_IN,
    ]


def own_file_path(host: hostfs.HostFS, path: str) -> str:
    """Return the path of a file of this collection, with links in its directory resolved.

    Raises HostError if the file itself is a link. A masked unit is a link to /dev/null, and a write through that link
    would replace /dev/null.
    """
    real = host.resolve(path, last=False)
    if not os.path.islink(host.real_path(real, last=False)):
        return real
    target = host.resolve(real)
    name = posixpath.basename(path)
    if target == _NULL and name in (refresh_units.OWN_SERVICE, refresh_units.OWN_PATH_UNIT):
        raise errors.HostError(
            f"{name} is masked by {path}, so it never starts. Run systemctl unmask {name}, then run this task again."
        )
    raise errors.HostError(
        f"{path} is a link to {target}, but this collection writes its own file there. Remove the link, then run this"
        " task again."
    )


def plan_of(
    options: RefreshOptions, host: hostfs.HostFS, runners: Runners
) -> tuple[refresh_units.RefreshPlan | None, tuple[str, ...]]:
    """Return the plan for ``options`` and its warnings. The plan is None if the host has no nvidia-ctk.

    This function writes nothing. Raises NvidiaError for options that the units do not support or that contradict the
    host.
    """
    cdi = options.cdi._replace(request=cdi_options.checked(options.cdi.request, host))
    if cdi.backend == cdi_options.NATIVE:
        raise errors.NvidiaError(
            f"{errors.option:backend} is native, but refresh units run nvidia-ctk. Remove {errors.option:backend}, or"
            " use nvidia_cdi_spec without a refresh unit (nvidia_cdi_refresh: none for the role)."
        )

    program = generate.find_program(host, cdi.request.cdi_hook_path)
    if program is None:
        warning = (
            f"This host has no {refresh_units.PROGRAM}, and refresh units run this program. Install the NVIDIA"
            " Container Toolkit (role gpufleet.nvidia.nvidia_toolkit). Until then, run nvidia_cdi_spec after each boot"
            " and after each change of the driver."
        )
        return None, (warning,)
    plan = _plan(options._replace(cdi=cdi), host, runners, program)
    return plan, plan.warnings


def _version(program: str, host: hostfs.HostFS, runners: Runners) -> cdi_generate.Version:
    """Return the version of ``program``. Raises HostError if it cannot be run.

    No program of an offline tree is run; there, it is assumed to be the newest.
    """
    return generate.version_of(program, runners.run_pinned, host) if host.live else generate.NEWEST


def _for_old_engines(
    options: cdi_options.CdiOptions, host: hostfs.HostFS, run: core_plan.Runner
) -> cdi_options.CdiOptions:
    """Return ``options``, with the flag that omits additional groups if an engine of the host cannot read them."""
    engines = cdi_support.engines_for(options.for_engines, host, run)
    newest = [cdi_versions.version_number(engine.newest) for engine in engines if engine.reads and engine.newest]
    flags, since = options.request.feature_flags, cdi_versions.version_number(cdi_versions.GIDS_SINCE)
    if cdi_options.NO_GIDS in flags or all(version >= since for version in newest):
        return options
    return options._replace(request=options.request._replace(feature_flags=(*flags, cdi_options.NO_GIDS)))


def _plan(options: RefreshOptions, host: hostfs.HostFS, runners: Runners, program: str) -> refresh_units.RefreshPlan:
    location = cdi_records.location_of(options.cdi, host, None)
    _require_same_kind(options.cdi, host)
    cdi = _for_old_engines(options.cdi, host, runners.run)
    version = _version(program, host, runners)
    command = generate.command_of(program, version, cdi.mode, cdi.request, (location.path, location.format))
    if not all(argument.isprintable() for argument in command):
        raise errors.NvidiaError(
            "An option contains a control character, and the command of a systemd unit cannot contain one. Change"
            " the option."
        )
    conditions, settings, nodes = _driver_conditions(cdi, host)
    service = refresh_units.own_service(
        command,
        location.path,
        before_engines=options.before_engines,
        conditions=conditions,
        settings=settings,
        nodes=nodes,
    )
    contents = {
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_SERVICE}": service,
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_PATH_UNIT}": refresh_units.own_path(),
    }
    toolkit = refresh_units.toolkit_refresh(host)
    replaced: str | None = None
    warnings: list[str] = []
    if cdi.kind == (core_constants.GPU_KIND if toolkit is None else toolkit.kind or core_constants.GPU_KIND):
        # Also where the toolkit has no service yet: its next version may have one.
        contents[refresh_units.DROP_IN] = refresh_units.drop_in()
        if toolkit is not None:
            replaced = _replaced_file(toolkit, location.path, host)
            warnings += _unused_settings(toolkit)
    return refresh_units.RefreshPlan(
        output=location.path,
        contents=contents,
        links=tuple(link for link in refresh_units.OWN_LINKS if not host.lexists(link.path)),
        replaced=replaced,
        warnings=tuple(warnings),
    )


def _replaced_file(toolkit: refresh_units.RefreshUnits, path: str, host: hostfs.HostFS) -> str | None:
    """Return the file that the toolkit's service has written, unless it is ``path`` or a file of this collection.

    Engines read it after /etc/cdi, so it would have precedence until the next boot.
    """
    if not toolkit.output.startswith("/") or host.read(toolkit.output) is None:
        return None
    other = host.resolve(toolkit.output)
    return None if other == host.resolve(path) or cdi_records.is_recorded(host, other) else other


def _unused_settings(toolkit: refresh_units.RefreshUnits) -> t.Iterator[str]:
    """Yield a warning if the administrator has set options for the toolkit's service."""
    names = sorted({*toolkit.variables} - {refresh_units.OUTPUT_VARIABLE})
    if names:
        yield (
            f"{' and '.join(names)} in the environment of {refresh_units.SERVICE} has no effect, because"
            f" {refresh_units.OWN_SERVICE} writes the specification instead. Set options of this task, and remove the"
            " variables."
        )


def _driver_conditions(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> tuple[t.Any, t.Any, bool]:
    """Return how the unit handles the driver: conditions, settings, and whether it creates the control devices."""
    if options.mode not in cdi_options.DRIVER_MODES:
        return (), (), False
    if options.request.driver_root != "/":
        return refresh_units.NEEDS_LOADED_DRIVER, (), False
    smi = host.find_executable([_SMI])
    # The drivers of WSL and Tegra have other nodes, and loaded_driver() does not find them.
    is_other = procfs.detect_gpu(host).kind in (procfs.WSL, procfs.TEGRA)
    if smi is None and (is_other or procfs.loaded_driver(host) is not None):
        return (), (), not is_other
    return (*refresh_units.needs_driver(smi or f"/usr/bin/{_SMI}"), not is_other)


def _require_same_kind(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> None:
    """Raise NvidiaError if the service of this collection generates another kind.

    The new unit would replace that service, so nothing would generate that kind.
    """
    existing = refresh_units.own_refresh(host)
    if existing is not None and existing.kind != options.kind:
        raise errors.NvidiaError(
            f"{refresh_units.OWN_SERVICE} generates {existing.kind}, and supports only one kind. Run"
            f" nvidia_cdi_refresh with {errors.option:state}: absent first, or write {options.kind} with"
            " nvidia_cdi_spec only."
        )
