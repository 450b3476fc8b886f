# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan which units, drop-ins and links a host needs to refresh its specification.

`units.py` has the contents of the files, and `refresh.py` writes them.
"""

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    systemd as refresh_systemd,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.refresh import (
    units as refresh_units,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate as cdi_generate
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The records of the files of refresh units have names that begin with this.
CDI_REFRESH = "cdi.refresh"
# The first CDI version with additional groups. Engines that support only older versions skip a specification that has
# additional groups.
_GIDS_SINCE = (0, 7, 0)
# The modes that describe GPUs.
_GPU_MODES = (cdi_options.AUTO, "nvml", "csv", "wsl")
_SMI = "nvidia-smi"
_DROP_IN = f"{refresh_units.UNIT_DIR}/{refresh_units.SERVICE}.d/{refresh_units.DROP_IN}"
_NULL = "/dev/null"


class RefreshOptions(t.NamedTuple):
    """The options of a task. ``cdi`` describes the specification, as in nvidia_cdi_spec."""

    cdi: cdi_options.CdiOptions = cdi_options.CdiOptions()
    state: str = "present"
    owner: str = cdi_options.AUTO
    before_engines: bool = True
    start: bool = True


class Runners(t.NamedTuple):
    """Functions that run commands on the host.

    ``run`` uses the environment of the task, and ``run_pinned`` exactly the environment that its caller passes.
    """

    run: core_plan.Runner
    run_pinned: cdi_generate.PinnedRunner


def own_paths() -> list[str]:
    """Return all files that this collection may have written."""
    return [
        refresh_units.OWN_ENVIRONMENT_FILE,
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_SERVICE}",
        f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_PATH_UNIT}",
        _DROP_IN,
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
    refresh = refresh_units.toolkit_refresh(host)
    toolkit_usable = refresh is not None and refresh.usable and _fits_toolkit_unit(cdi)
    if options.owner == cdi_options.TOOLKIT or (options.owner == cdi_options.AUTO and toolkit_usable):
        # The toolkit's service takes the root of the driver for dev_root too.
        dev_root = cdi.request.dev_root if options.cdi.request.dev_root else ""
        cdi = cdi._replace(request=cdi.request._replace(dev_root=dev_root))
        plan = _toolkit_plan(options._replace(cdi=cdi), host, runners, _require_toolkit_refresh(refresh, cdi))
        return plan, plan.warnings
    # A host with the toolkit's units does not need this import.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate  # noqa: PLC0415

    program = generate.find_program(host, cdi.request.cdi_hook_path)
    if program is None:
        missing = (
            f"This host has no {refresh_units.PROGRAM}, and refresh units run this program. Install the NVIDIA"
            " Container Toolkit (role gpufleet.nvidia.nvidia_toolkit)."
        )
        if options.owner == cdi_options.COLLECTION:
            raise errors.HostError(missing)
        advice = "Until then, run nvidia_cdi_spec after each boot and after each change of the driver."
        return None, (f"{missing} {advice}",)
    plan = _own_plan(options._replace(cdi=cdi), host, runners, refresh, program)
    return plan, plan.warnings


def _command(
    program: str,
    version: cdi_generate.Version,
    options: cdi_options.CdiOptions,
    location: cdi_records.SpecLocation | None,
    host: hostfs.HostFS,
) -> list[str]:
    """Return the command that writes to ``location``, or to standard output if this is None.

    Raises NvidiaError with the name of the first option that this ``version`` of ``program`` does not support.
    """
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate  # noqa: PLC0415

    output = ("", cdi_options.YAML) if location is None else (location.path, location.format)
    request = cdi_options.checked(options.request, host)
    return generate.command_of(program, version, options.mode, request, output)


def _version(program: str, host: hostfs.HostFS, runners: Runners) -> cdi_generate.Version:
    """Return the version of ``program``. Raises HostError if it cannot be run.

    No program of an offline tree is run; there, it is assumed to be the newest.
    """
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate  # noqa: PLC0415

    return generate.version_of(program, runners.run_pinned, host) if host.live else generate.NEWEST


def _socket_warnings(
    program: str, version: cdi_generate.Version | None, mode: str, unit: systemd_units.Unit | None = None
) -> t.Iterator[str]:
    """Yield a warning if the unit that runs ``program`` mounts what any user can create at /tmp/nvidia-mps.

    ``version`` is None for a program that cannot be run, so that the unit writes nothing. ``unit`` is the toolkit's
    service, whose command may have feature flags of its own.
    """
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.generate import generate  # noqa: PLC0415

    flags = [] if unit is None else refresh_units.feature_flags(unit, in_command=True)
    if flags and cdi_options.NO_IPC not in flags and mode in generate.MODES_WITH_SOCKETS:
        yield (
            f"The command of {refresh_units.SERVICE} has feature flags without {cdi_options.NO_IPC}, so the service"
            f" mounts /tmp/nvidia-mps if it exists. {refresh_units.SOCKET_DANGER} Add the flag to the command."
        )
    elif version is not None and generate.mounts_sockets(version, mode):
        yield (
            f"{program} has version {core_text.dotted(version)}, so each start of the refresh service mounts"
            f" /tmp/nvidia-mps if it exists and is no directory. {refresh_units.SOCKET_DANGER} Install the NVIDIA"
            f" Container Toolkit {core_text.dotted(generate.NO_IPC_SINCE)} or newer."
        )


def _for_old_engines(
    options: cdi_options.CdiOptions, host: hostfs.HostFS, run: core_plan.Runner
) -> cdi_options.CdiOptions:
    """Return ``options``, with the flag that omits additional groups if an engine of the host cannot read them."""
    engines = cdi_support.engines_for(options.for_engines, host, run)
    newest = [cdi_versions.version_number(engine.newest) for engine in engines if engine.reads and engine.newest]
    flags = options.request.feature_flags
    if cdi_options.NO_GIDS in flags or all(version >= _GIDS_SINCE for version in newest):
        return options
    return options._replace(request=options.request._replace(feature_flags=(*flags, cdi_options.NO_GIDS)))


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def _fits_toolkit_unit(options: cdi_options.CdiOptions) -> bool:
    """Return whether the toolkit's service can write this specification.

    Without a path, the service writes to its default path, where engines expect the specification of the GPUs.
    """
    return options.path is not None or (options.kind == core_constants.GPU_KIND and options.mode in _GPU_MODES)


def _require_toolkit_refresh(
    refresh: refresh_units.RefreshUnits | None, options: cdi_options.CdiOptions
) -> refresh_units.RefreshUnits:
    if refresh is None:
        raise errors.HostError(
            f"{refresh_units.SERVICE} does not exist. Install the NVIDIA Container Toolkit 1.18 or newer, or set"
            f" {errors.option:owner}: collection."
        )
    if refresh.problem:
        raise errors.HostError(
            f"{refresh.problem} Install the NVIDIA Container Toolkit 1.18 or newer, or set {errors.option:owner}:"
            " collection."
        )
    if not _fits_toolkit_unit(options):
        raise errors.NvidiaError(
            f"{refresh_units.SERVICE} would replace {refresh.output or refresh_units.DEFAULT_OUTPUT}, which is the"
            f" specification of the GPUs, by one of {options.kind} in mode {options.mode}. Set {errors.option:path},"
            f" or set {errors.option:owner}: collection."
        )
    return refresh


def _toolkit_plan(
    options: RefreshOptions, host: hostfs.HostFS, runners: Runners, refresh: refresh_units.RefreshUnits
) -> refresh_units.RefreshPlan:
    cdi = _for_old_engines(_with_resolved_path(options.cdi, host), host, runners.run)
    links = refresh_systemd.missing_links(host, refresh_units.SERVICE)
    if refresh.path is not None:
        links += refresh_systemd.missing_links(host, refresh_units.PATH_UNIT)
    # _require_toolkit_refresh() has refused a missing unit, and missing_links() a masked one, so this is not None.
    unit = t.cast(
        "systemd_units.Unit",
        systemd_units.load_unit(host, refresh_units.SERVICE, refresh_units.PROGRAM, without=_DROP_IN),
    )
    kept_flags = () if options.cdi.request.feature_flags else tuple(refresh_units.feature_flags(unit))
    kept = refresh_units.FEATURE_FLAGS_VARIABLE if kept_flags else ""
    cdi = cdi._replace(request=cdi_options.without_sockets(cdi.request, kept_flags))
    variables = refresh_units.variables(cdi)
    program = host.find_executable(unit.arguments[:1] or [refresh_units.PROGRAM]) or f"/usr/bin/{refresh_units.PROGRAM}"
    # Some releases with the toolkit's units do not support these options.
    is_newer = bool(cdi.request.device_ids or not cdi.request.all_device or cdi.request.csv_compat_container_root)
    version = None
    try:
        version = _version(program, host, runners)
    except errors.HostError:
        if is_newer:
            raise
    if version is not None and is_newer:
        # The command is built only for this check.
        _command(program, version, cdi, None, host)
    contents: dict[str, bytes] = {}
    late = options.before_engines and bool(refresh_units.LATE_UNITS.intersection(unit.after))
    add_order = options.before_engines and not late and not set(refresh_units.ENGINES).issubset(unit.before)
    drop_in = refresh_units.drop_in(add_order, bool(variables))
    if drop_in is not None:
        contents[_DROP_IN] = drop_in
    if variables:
        contents[refresh_units.OWN_ENVIRONMENT_FILE] = refresh_units.environment_text(variables)
    if late:
        # The unit of toolkit 1.19.0 is ordered after multi-user.target, which waits for the engines. A drop-in cannot
        # remove an After=, and a copy of the unit in /etc would replace the unit of each later version of the toolkit.
        # So a unit of this collection runs the same command earlier.
        service = f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_SERVICE}"
        contents[service] = _early_unit(program, unit, host)
        links += _own_links(host, refresh_units.OWN_SERVICE)
    output = _effective_output(host, unit, contents, variables)
    return refresh_units.RefreshPlan(
        owner=cdi_options.TOOLKIT,
        service=refresh_units.SERVICE,
        path_unit=refresh_units.PATH_UNIT if refresh.path is not None else None,
        output=output,
        contents=contents,
        links=tuple(links),
        variables=variables,
        warnings=(
            *_overridden_variables(unit, variables, without=kept),
            *_socket_warnings(program, version, cdi.mode, unit),
        ),
    )


def _with_resolved_path(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> cdi_options.CdiOptions:
    if options.path is not None:
        path = cdi_records.location_of(options, host, None).path
        if not path.endswith(cdi_registry.SUFFIXES):
            suffixes = " or ".join(cdi_registry.SUFFIXES)
            raise errors.NvidiaError(
                f"{errors.option:path} is {path}, which does not end in {suffixes}: nvidia-ctk would write another"
                f" file. Change {errors.option:path}."
            )
        return options._replace(path=path)
    if options.format not in (None, cdi_options.YAML):
        raise errors.NvidiaError(
            f"{errors.option:format} is {options.format}, but {refresh_units.SERVICE} writes"
            f" {refresh_units.DEFAULT_OUTPUT}. Set {errors.option:path} to a file that ends in .{options.format}."
        )
    return options


def _effective_output(
    host: hostfs.HostFS, unit: systemd_units.Unit, contents: t.Mapping[str, bytes], variables: t.Mapping[str, str]
) -> str:
    """Return the file that the toolkit's service writes after the change.

    Raises NvidiaError if a drop-in that systemd reads later, or a flag in the command, sets another value than
    ``variables``. A change of the feature flags alone is not an error: the user need not have asked for flags.
    """
    written = host.with_files({own_file_path(host, path): content for path, content in contents.items()})
    later = systemd_units.load_unit(written, refresh_units.SERVICE, refresh_units.PROGRAM) or unit
    effective = {**later.environment, refresh_units.OUTPUT_VARIABLE: _toolkit_output(later)}
    lost = sorted(
        name
        for name, value in variables.items()
        if effective.get(name) != value and name != refresh_units.FEATURE_FLAGS_VARIABLE
    )
    if lost:
        own = posixpath.basename(_DROP_IN)
        drop_ins = [path for path in unit.drop_ins if posixpath.basename(path) > own]
        raise errors.NvidiaError(
            f"{refresh_units.SERVICE} would ignore {' and '.join(lost)} of this task, because"
            f" {' or '.join(drop_ins) or unit.path} sets the environment or the command after"
            f" {refresh_units.OWN_ENVIRONMENT_FILE}. Remove that setting, or set {errors.option:owner}: collection."
        )
    return effective[refresh_units.OUTPUT_VARIABLE]


def _early_unit(program: str, unit: systemd_units.Unit, host: hostfs.HostFS) -> bytes:
    """Return the unit that runs the command of the toolkit's service before the engines, with the same variables."""
    # The unit reads these files itself.
    files = {refresh_units.ENVIRONMENT_FILE: b"", refresh_units.OWN_ENVIRONMENT_FILE: b""}
    fixed = systemd_units.load_unit(host.with_files(files), refresh_units.SERVICE, without=_DROP_IN) or unit
    variables = {refresh_units.OUTPUT_VARIABLE: refresh_units.DEFAULT_OUTPUT, **fixed.environment}
    conditions, settings = refresh_units.needs_driver(host.find_executable([_SMI]) or f"/usr/bin/{_SMI}")
    return refresh_units.own_service(
        [program, *(unit.arguments[1:] or ("cdi", "generate"))],
        before_engines=True,
        conditions=conditions,
        settings=[
            *refresh_units.assignments(variables),
            *refresh_units.TOOLKIT_ENVIRONMENT,
            *settings,
        ],
        nodes=True,
    )


def _toolkit_output(unit: systemd_units.Unit) -> str:
    """Return the file that the toolkit's service writes if this collection sets no variable for it."""
    flags = unit.flag_values("--output")
    if flags:
        return flags[-1]
    return unit.environment.get(refresh_units.OUTPUT_VARIABLE, refresh_units.DEFAULT_OUTPUT)


def _overridden_variables(unit: systemd_units.Unit, variables: t.Mapping[str, str], without: str) -> t.Iterator[str]:
    """Yield a warning if other files set the same variables, except ``without``, to other values.

    The packaged unit sets the output to its default, which needs no warning.
    """
    same = {(refresh_units.OUTPUT_VARIABLE, refresh_units.DEFAULT_OUTPUT), *variables.items()}
    names = {name for name in variables if (name, unit.environment.get(name, variables[name])) not in same}
    found = sorted(names - {without})
    if found:
        yield (
            f"{refresh_units.ENVIRONMENT_FILE} or a drop-in of {refresh_units.SERVICE} sets {' and '.join(found)} to"
            f" another value. {refresh_units.OWN_ENVIRONMENT_FILE} with the value of this task has precedence. Remove"
            " the other value, or remove the option."
        )


# -- units of this collection ------------------------------------------------------------------------------------------


def _own_plan(
    options: RefreshOptions,
    host: hostfs.HostFS,
    runners: Runners,
    refresh: refresh_units.RefreshUnits | None,
    program: str,
) -> refresh_units.RefreshPlan:
    if refresh is not None:
        # This task removes the links that an earlier one created for the toolkit's units.
        own = {link.path for link in refresh_systemd.own_links(host)}
        at_boot, on_change = (
            systemd_units.is_enabled(host, name, own) for name in (refresh_units.SERVICE, refresh_units.PATH_UNIT)
        )
        refresh = refresh._replace(at_boot=at_boot, on_change=on_change)
    location = cdi_records.location_of(options.cdi, host, refresh)
    _require_same_kind(options.cdi, host)
    cdi = _for_old_engines(options.cdi, host, runners.run)
    version = _version(program, host, runners)
    command = _command(program, version, cdi, location, host)
    if not all(argument.isprintable() for argument in command):
        raise errors.NvidiaError(
            "An option contains a control character, and the command of a systemd unit cannot contain one. Change"
            " the option."
        )
    conditions, settings, nodes = _driver_conditions(cdi, host)
    service = refresh_units.own_service(
        command, before_engines=options.before_engines, conditions=conditions, settings=settings, nodes=nodes
    )
    return refresh_units.RefreshPlan(
        owner=cdi_options.COLLECTION,
        service=refresh_units.OWN_SERVICE,
        path_unit=refresh_units.OWN_PATH_UNIT,
        output=location.path,
        contents={
            f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_SERVICE}": service,
            f"{refresh_units.UNIT_DIR}/{refresh_units.OWN_PATH_UNIT}": refresh_units.own_path(),
        },
        links=(*_own_links(host, refresh_units.OWN_SERVICE), *_own_links(host, refresh_units.OWN_PATH_UNIT)),
        warnings=(
            *_second_writer_warning(refresh, location.path, host),
            *_socket_warnings(program, version, cdi.mode),
        ),
    )


def _driver_conditions(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> tuple[t.Any, t.Any, bool]:
    """Return how the unit handles the driver: conditions, settings, and whether it creates the control devices."""
    if options.mode not in cdi_options.DRIVER_MODES:
        return (), (), False
    if options.request.driver_root != "/":
        return refresh_units.NEEDS_LOADED_DRIVER, (), False
    smi = host.find_executable([_SMI])
    # loaded_driver() does not find the drivers of WSL and Tegra.
    ready = procfs.loaded_driver(host) is not None or procfs.detect_gpu(host).kind in (procfs.WSL, procfs.TEGRA)
    if smi is None and ready:
        return (), (), True
    return (*refresh_units.needs_driver(smi or f"/usr/bin/{_SMI}"), True)


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


def _own_links(host: hostfs.HostFS, name: str) -> list[refresh_units.Link]:
    links = refresh_systemd.links_of(name, f"{refresh_units.UNIT_DIR}/{name}", (refresh_units.WANTED_BY,))
    return [link for link in links if not host.lexists(link.path)]


def _second_writer_warning(
    refresh: refresh_units.RefreshUnits | None, path: str, host: hostfs.HostFS
) -> t.Iterator[str]:
    if refresh is None or not refresh.enabled:
        return
    other = cdi_records.output_of(refresh, host)
    folders = [posixpath.dirname(file) for file in (other, path)]
    if other == path:
        effect = "both units write it"
    elif folders[0] == folders[1]:
        effect = "engines do not find the devices that both files describe"
    elif {*folders} == {*core_constants.CDI_SPEC_DIRS}:
        later = core_constants.CDI_SPEC_DIRS[-1]
        effect = f"for devices that both files describe, the one in {later} has precedence"
    else:
        effect = "two files describe the same devices"
    yield (
        f"{refresh_units.SERVICE} is also enabled and writes {refresh.output}, so {effect}. Run systemctl disable"
        f" {refresh_units.SERVICE} {refresh_units.PATH_UNIT}, or set {errors.option:owner}: toolkit."
    )
