# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan which units, drop-ins and links a host needs to refresh its specification."""

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import records as cdi_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import refresh_systemd, refresh_units
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import cdi_support
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import generate as cdi_generate
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The owner in the names of the records.
CDI_REFRESH = "cdi.refresh"
TOOLKIT, COLLECTION = "toolkit", "collection"
OWNERS = (cdi_options.AUTO, TOOLKIT, COLLECTION)
# The first CDI version with additional groups. Engines that read only older versions skip a specification with them.
_GIDS_SINCE = "0.7.0"
_SUFFIXES = (".yaml", ".json")
_GPU_MODES = (cdi_options.AUTO, "nvml", "csv", "wsl")
# Modes whose device nodes the driver's modules create.
_DRIVER_MODES = (cdi_options.AUTO, "nvml", "management", "imex")
_SMI = "nvidia-smi"
_DROP_IN = f"{refresh_units.UNITS}/{refresh_units.SERVICE}.d/{refresh_units.DROP_IN}"
_NULL = "/dev/null"


class RefreshOptions(t.NamedTuple):
    """The options of a task. ``cdi`` describes the specification, as in nvidia_cdi_spec."""

    cdi: cdi_options.CdiOptions = cdi_options.CdiOptions()
    state: str = "present"
    owner: str = cdi_options.AUTO
    before_engines: bool = True
    start: bool = True


class Runners(t.NamedTuple):
    """Functions that run commands on the host: in the task's environment, and in an environment passed as argument."""

    run: core_plan.Runner
    run_pinned: cdi_generate.PinnedRunner


def own_paths() -> list[str]:
    """Return all files that a run of this or an earlier version may have written."""
    units = [
        f"{refresh_units.UNITS}/{refresh_units.OWN_SERVICE}",
        f"{refresh_units.UNITS}/{refresh_units.OWN_PATH}",
        _DROP_IN,
    ]
    earlier = [
        "/usr/local/lib/gpufleet-nvidia/cdi-refresh",
        "/etc/gpufleet-nvidia/cdi.json",
        refresh_units.ENVIRONMENT_FILE,
    ]
    return [refresh_units.OWN_ENVIRONMENT_FILE, *units, *earlier]


def own_file_path(host: hostfs.HostFS, path: str) -> str:
    """Return the path of a file of this collection, with links in its directory resolved.

    Raises HostError if the file itself is a link. systemctl masks a unit by a link to /dev/null, and writing through
    that link would replace the device.
    """
    real = host.resolve(path, last=False)
    if not os.path.islink(host.real_path(real, last=False)):
        return real
    target = host.resolve(real)
    name = posixpath.basename(path)
    if target == _NULL and name in (refresh_units.OWN_SERVICE, refresh_units.OWN_PATH):
        raise errors.HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, then"
            " run this again."
        )
    raise errors.HostError(
        f"{path} is a link to {target}. This collection writes a file of its own there, and nothing elsewhere. Remove"
        " the link, then run this again."
    )


def plan_of(
    options: RefreshOptions, host: hostfs.HostFS, runners: Runners
) -> tuple[refresh_units.RefreshPlan | None, tuple[str, ...]]:
    """Return the plan for ``options`` and its warnings. The plan is None if the host has no generator.

    Raises NvidiaError. Nothing has been written at this point.
    """
    cdi = options.cdi._replace(request=cdi_options.checked(options.cdi.request, host))
    if cdi.backend == cdi_options.NATIVE:
        raise errors.NvidiaError(
            "backend is native, but units make the specification by nvidia-ctk. Leave backend out, or use"
            " nvidia_cdi_spec without a refresh unit (nvidia_cdi_refresh: none for the role)."
        )
    refresh = refresh_units.toolkit_refresh(host)
    usable = refresh is not None and not refresh.masked and _is_usual(cdi)
    if options.owner == TOOLKIT or (options.owner == cdi_options.AUTO and usable):
        plan = _with_toolkit(options, host, runners, refresh)
        return plan, plan.warnings
    program = _generator(host, cdi)
    if program is None:
        missing = (
            f"There is no {refresh_units.PROGRAM} on this host, which makes the CDI specification for a refresh unit."
            f" Install the"
            " NVIDIA Container Toolkit (role gpufleet.nvidia.nvidia_toolkit)."
        )
        if options.owner == COLLECTION:
            raise errors.HostError(missing)
        return None, (f"{missing} Until then, run nvidia_cdi_spec again after each boot and change of the driver.",)
    plan = _with_own(options._replace(cdi=cdi), host, runners, refresh, program)
    return plan, plan.warnings


def _is_usual(options: cdi_options.CdiOptions) -> bool:
    """Return whether the task names a path, or describes the GPUs, as the toolkit's own file does."""
    return options.path is not None or (options.kind == core_constants.GPU_KIND and options.mode in _GPU_MODES)


def _generator(host: hostfs.HostFS, options: cdi_options.CdiOptions) -> str | None:
    """Return the path of nvidia-ctk, or None if the host has none."""
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import (  # noqa: PLC0415
        generate as cdi_generate,
    )

    return cdi_generate.find_program(host, options.request.cdi_hook_path)


def _command(
    program: str,
    options: cdi_options.CdiOptions,
    place: cdi_records.SpecLocation | None,
    host: hostfs.HostFS,
    runners: Runners,
) -> tuple[str, ...]:
    """Return the command that writes to ``place``.

    Programs of an offline tree are not run. There, ``program`` is assumed to be recent. Raises NvidiaError with the
    name of the first option that ``program`` lacks.
    """
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import (  # noqa: PLC0415
        generate as cdi_generate,
    )

    version = cdi_generate.version_of(program, runners.run_pinned, host) if host.live else cdi_generate.NEWEST
    output = (
        cdi_generate.Output("", cdi_options.YAML) if place is None else cdi_generate.Output(place.path, place.format)
    )
    return tuple(
        cdi_generate.command_of(program, version, options.mode, cdi_options.checked(options.request, host), output)
    )


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def _with_toolkit(
    options: RefreshOptions, host: hostfs.HostFS, runners: Runners, refresh: refresh_units.Refresh | None
) -> refresh_units.RefreshPlan:
    if refresh is None:
        raise errors.HostError(
            f"{refresh_units.SERVICE} is not there: the NVIDIA Container Toolkit has it since 1.18. Install that, or"
            f" use"
            " owner: collection."
        )
    if not _is_usual(options.cdi):
        raise errors.NvidiaError(
            f"{refresh_units.SERVICE} would write {options.cdi.kind}, mode {options.cdi.mode}, over the specification"
            f" of the GPUs in"
            f" {refresh.output or refresh_units.DEFAULT_OUTPUT}. Name another path, or use owner: collection."
        )
    cdi = _for_weak_engines(_placed(options.cdi, host), host, runners.run)
    links = [
        *refresh_systemd.wanted_links(host, refresh_units.SERVICE),
        *(refresh_systemd.wanted_links(host, refresh_units.PATH) if refresh.path is not None else []),
    ]
    wanted = refresh_units.variables(cdi)
    if refresh_units.OUTPUT in wanted and not wanted[refresh_units.OUTPUT].endswith(_SUFFIXES):
        raise errors.NvidiaError(
            f"path {wanted[refresh_units.OUTPUT]} does not end in {' or '.join(_SUFFIXES)}: nvidia-ctk would add that,"
            f" and engines"
            " read no other files. Let it end so."
        )
    # The checks above refuse a unit without a file and a masked unit, so this is not None.
    unit = t.cast(
        "systemd_units.Unit",
        systemd_units.load_unit(host, refresh_units.SERVICE, refresh_units.PROGRAM, without=_DROP_IN),
    )
    program = host.find_executable(unit.arguments[:1] or [refresh_units.PROGRAM]) or f"/usr/bin/{refresh_units.PROGRAM}"
    if cdi.request.device_ids or not cdi.request.all_device or cdi.request.csv_compat_container_root:
        # These options are newer than the toolkit's units, so this run of _command() checks that nvidia-ctk has them.
        _command(program, cdi, None, host, runners)
    contents: dict[str, bytes] = {}
    late = options.before_engines and bool(refresh_units.LATE.intersection(unit.after))
    order = options.before_engines and not late and not set(refresh_units.ENGINES).issubset(unit.before)
    text = refresh_units.drop_in(order, bool(wanted))
    if text is not None:
        contents[_DROP_IN] = text
    if wanted:
        contents[refresh_units.OWN_ENVIRONMENT_FILE] = refresh_units.environment_text(wanted)
    if late:
        # The unit of toolkit 1.19.0 comes after multi-user.target, which waits for the engines. A drop-in cannot remove
        # an After=, and a copy of the unit would hide the unit of the toolkit's next version. So another unit runs the
        # same command earlier.
        service = f"{refresh_units.UNITS}/{refresh_units.OWN_SERVICE}"
        contents[service] = _early(program, unit, host)
        links += _missing(
            host, refresh_systemd.links_of(refresh_units.OWN_SERVICE, service, (refresh_units.WANTED_BY,))
        )
    return refresh_units.RefreshPlan(
        owner=TOOLKIT,
        service=refresh_units.SERVICE,
        watcher=refresh_units.PATH if refresh.path is not None else None,
        output=wanted.get(refresh_units.OUTPUT) or _usual_output(unit, host),
        contents=contents,
        links=tuple(links),
        variables=wanted,
        warnings=tuple(_overridden(unit, wanted, host)),
    )


def _placed(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> cdi_options.CdiOptions:
    """Return ``options`` with a normalized path. Raises NvidiaError for a path that engines do not read."""
    if options.path is not None:
        return options._replace(path=cdi_records.place_of(options, host, None).path)
    if options.format not in (None, cdi_options.YAML):
        raise errors.NvidiaError(
            f"format is {options.format}, but {refresh_units.SERVICE} writes {refresh_units.DEFAULT_OUTPUT}. Name a"
            f" path that ends so."
        )
    return options


def _for_weak_engines(
    options: cdi_options.CdiOptions, host: hostfs.HostFS, run: core_plan.Runner
) -> cdi_options.CdiOptions:
    """Return ``options``, with the flag that omits additional groups if an engine of the host cannot read them."""
    engines = cdi_support.engines_for(options.for_engines, host, run)
    newest = [engine.newest for engine in engines if engine.reads and engine.newest is not None]
    flags = options.request.feature_flags
    if cdi_options.NO_GIDS in flags or all(
        cdi_validate.version_number(version) >= cdi_validate.version_number(_GIDS_SINCE) for version in newest
    ):
        return options
    return options._replace(request=options.request._replace(feature_flags=(*flags, cdi_options.NO_GIDS)))


def _early(program: str, unit: systemd_units.Unit, host: hostfs.HostFS) -> bytes:
    conditions, settings = refresh_units.needs_driver(host.find_executable([_SMI]) or f"/usr/bin/{_SMI}")
    return refresh_units.own_service(
        refresh_units.Command((program, *(unit.arguments[1:] or ("cdi", "generate")))),
        before_engines=True,
        conditions=conditions,
        settings=[
            ("Environment", f"{refresh_units.OUTPUT}={refresh_units.DEFAULT_OUTPUT}"),
            *refresh_units.toolkit_environment(refresh_units.ENVIRONMENT_FILE),
            *settings,
        ],
        nodes=True,
    )


def _lines_of_earlier_versions(host: hostfs.HostFS) -> t.Collection[str]:
    """Return the variables that earlier versions set in the toolkit's environment file. This run restores that file."""
    record = core_records.load_record(host, CDI_REFRESH, host.resolve(refresh_units.ENVIRONMENT_FILE))
    return () if record is None else {key[-1] for key in record.keys or {} if key}


def _usual_output(unit: systemd_units.Unit, host: hostfs.HostFS) -> str:
    """Return where the toolkit's service writes without a variable of this collection."""
    flags = unit.flag_values("--output")
    if flags:
        return flags[-1]
    usual = (
        refresh_units.DEFAULT_OUTPUT
        if refresh_units.OUTPUT in _lines_of_earlier_versions(host)
        else unit.environment.get(refresh_units.OUTPUT)
    )
    return refresh_units.DEFAULT_OUTPUT if usual is None else usual


def _overridden(unit: systemd_units.Unit, wanted: t.Mapping[str, str], host: hostfs.HostFS) -> t.Iterator[str]:
    """Yield a warning if the user's environment sets other values. The unit of the packages itself sets the output."""
    usual = {(refresh_units.OUTPUT, refresh_units.DEFAULT_OUTPUT), *wanted.items()}
    names = {name for name in wanted if (name, unit.environment.get(name, wanted[name])) not in usual}
    found = sorted(names.difference(_lines_of_earlier_versions(host)))
    if found:
        yield (
            f"{refresh_units.SERVICE} gets {' and '.join(found)} from {refresh_units.ENVIRONMENT_FILE} or a drop-in"
            f" too, with another value. That"
            f" of this task counts, in {refresh_units.OWN_ENVIRONMENT_FILE}. Remove the other one, or leave the option"
            f" out."
        )


# -- units of this collection ------------------------------------------------------------------------------------------


def _with_own(
    options: RefreshOptions, host: hostfs.HostFS, runners: Runners, refresh: refresh_units.Refresh | None, program: str
) -> refresh_units.RefreshPlan:
    place = cdi_records.place_of(options.cdi, host, refresh)
    _refuse_second(options.cdi, host)
    cdi = _for_weak_engines(options.cdi, host, runners.run)
    command = refresh_units.Command(_command(program, cdi, place, host, runners))
    if not all(word.isprintable() for word in command.words):
        raise errors.NvidiaError("A unit takes no control characters in the options of its command. Use other names.")
    conditions, settings, nodes = _driver(cdi, host)
    service, watcher = (
        f"{refresh_units.UNITS}/{refresh_units.OWN_SERVICE}",
        f"{refresh_units.UNITS}/{refresh_units.OWN_PATH}",
    )
    links = [
        *refresh_systemd.links_of(refresh_units.OWN_SERVICE, service, (refresh_units.WANTED_BY,)),
        *refresh_systemd.links_of(refresh_units.OWN_PATH, watcher, (refresh_units.WANTED_BY,)),
    ]
    return refresh_units.RefreshPlan(
        owner=COLLECTION,
        service=refresh_units.OWN_SERVICE,
        watcher=refresh_units.OWN_PATH,
        output=place.path,
        contents={
            service: refresh_units.own_service(
                command,
                before_engines=options.before_engines,
                conditions=conditions,
                settings=settings,
                nodes=nodes,
            ),
            watcher: refresh_units.own_path(),
        },
        links=tuple(_missing(host, links)),
        warnings=tuple(_rivalry(refresh, place.path)),
    )


def _driver(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> tuple[t.Any, t.Any, bool]:
    """Return how the unit handles the driver: conditions, settings, and whether it creates the control devices."""
    if options.mode not in _DRIVER_MODES:
        return (), (), False
    if options.request.driver_root != "/":
        return refresh_units.needs_loaded_driver(), (), False
    smi = host.find_executable([_SMI])
    # The GPUs of WSL and Tegra are not on the PCI bus.
    ready = gpu_detect.loaded_driver(host) is not None or gpu_detect.gpu_of(host).kind in (
        gpu_detect.WSL,
        gpu_detect.TEGRA,
    )
    if smi is None and ready:
        return (), (), True
    return (*refresh_units.needs_driver(smi or f"/usr/bin/{_SMI}"), True)


def _refuse_second(options: cdi_options.CdiOptions, host: hostfs.HostFS) -> None:
    """Raise NvidiaError if the service of this collection generates another kind. It would stop generating that one."""
    former = refresh_units.own_refresh(host)
    if former is not None and former.kind != options.kind:
        raise errors.NvidiaError(
            f"{refresh_units.OWN_SERVICE} makes the specification of {former.kind}, and can make only one. Run"
            f" nvidia_cdi_refresh"
            f" with state: absent first if it is to make that of {options.kind}, or write that with nvidia_cdi_spec"
            " alone."
        )


def _missing(host: hostfs.HostFS, links: t.Iterable[refresh_units.Link]) -> list[refresh_units.Link]:
    return [link for link in links if not host.lexists(link.path)]


def _rivalry(refresh: refresh_units.Refresh | None, path: str) -> t.Iterator[str]:
    if refresh is not None and refresh.enabled and refresh.output == path:
        yield (
            f"{refresh_units.SERVICE} is enabled too, and writes the same file in its own way: whoever comes last"
            f" wins. Disable it"
            f" with systemctl disable {refresh_units.SERVICE} {refresh_units.PATH}, or use owner: toolkit."
        )
    elif refresh is not None and refresh.enabled:
        yield (
            f"{refresh_units.SERVICE} is enabled too, and writes {refresh.output}. Where both describe the same"
            f" devices, the one in"
            f" {posixpath.dirname(refresh_units.DEFAULT_OUTPUT)} wins. Disable it with systemctl disable"
            f" {refresh_units.SERVICE} {refresh_units.PATH}, or use"
            " owner: toolkit."
        )
