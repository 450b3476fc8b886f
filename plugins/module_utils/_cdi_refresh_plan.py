# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: which files and links a host needs so that a CDI specification stays fresh: for the
# toolkit's own units, or for units of this collection that run nvidia-ctk.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_engines import engines_for
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, NATIVE, YAML, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_placement import place_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_systemd import Link, links_of, wanted_links
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_texts import (
    DROP_IN,
    ENGINES,
    LATE,
    OWN_ENVIRONMENT_FILE,
    UNITS,
    WANTED_BY,
    Command,
    drop_in,
    environment_text,
    needs_driver,
    needs_loaded_driver,
    own_path,
    own_service,
    toolkit_environment,
    variables,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    DEFAULT_OUTPUT,
    ENVIRONMENT_FILE,
    OUTPUT,
    OWN_PATH,
    OWN_SERVICE,
    PATH,
    PROGRAM,
    SERVICE,
    Refresh,
    own_refresh,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import NO_GIDS, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import version_number
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import NOTHING
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import TEGRA, WSL, gpu_of, loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_placement import Place
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import PinnedRunner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# In whose name records are kept.
CDI_REFRESH = "cdi.refresh"
TOOLKIT, COLLECTION = "toolkit", "collection"
OWNERS = (AUTO, TOOLKIT, COLLECTION)
# The first version of CDI with additional groups, without which older engines skip a specification.
_GIDS_SINCE = "0.7.0"
_SUFFIXES = (".yaml", ".json")
_GPU_MODES = (AUTO, "nvml", "csv", "wsl")
# Modes whose devices are made by the driver's modules.
_DRIVER_MODES = (AUTO, "nvml", "management", "imex")
# Of the engines those that NVIDIA's own units know.
_MAIN_ENGINES = frozenset(ENGINES[:3])
_SMI = "nvidia-smi"
_DROP_IN = f"{UNITS}/{SERVICE}.d/{DROP_IN}"
_NULL = "/dev/null"


class RefreshOptions(t.NamedTuple):
    """What a task asks for; the specification is that of nvidia_cdi_spec with the options ``cdi``."""

    cdi: CdiOptions = CdiOptions()
    state: str = "present"
    owner: str = AUTO
    before_engines: bool = True
    start: bool = True


class RefreshPlan(t.NamedTuple):
    """What a host needs.

    ``contents`` are files of this collection.  ``links`` are those that are missing.  ``variables`` are what the
    environment file of the toolkit's service sets.  ``output`` is where the service writes.
    """

    owner: str
    service: str
    watcher: str | None
    output: str
    contents: t.Mapping[str, bytes]
    links: tuple[Link, ...]
    variables: t.Mapping[str, str] = NOTHING
    warnings: tuple[str, ...] = ()


class Runners(t.NamedTuple):
    """What runs commands on the host: in the task's environment, and in one that is given with the command."""

    run: Runner
    run_pinned: PinnedRunner


def own_paths() -> list[str]:
    """All files that a run may have written, of earlier versions too."""
    units = [f"{UNITS}/{OWN_SERVICE}", f"{UNITS}/{OWN_PATH}", _DROP_IN]
    earlier = ["/usr/local/lib/gpufleet-nvidia/cdi-refresh", "/etc/gpufleet-nvidia/cdi.json", ENVIRONMENT_FILE]
    return [OWN_ENVIRONMENT_FILE, *units, *earlier]


def own_file_path(host: HostRoot, path: str) -> str:
    """Where a file of this collection lies, links in its directory resolved.

    Raises HostError where the file itself is a link: systemctl masks a unit by one to /dev/null, and writing through it
    would replace the device.
    """
    real = host.resolve(path, last=False)
    if not os.path.islink(host.outer(real, last=False)):
        return real
    target = host.resolve(real)
    name = posixpath.basename(path)
    if target == _NULL and name in (OWN_SERVICE, OWN_PATH):
        raise HostError(
            f"{name} is masked by {path}, so that it never starts. Take that back with systemctl unmask {name}, then"
            " run this again."
        )
    raise HostError(
        f"{path} is a link to {target}. This collection writes a file of its own there, and nothing elsewhere. Remove"
        " the link, then run this again."
    )


def plan_of(options: RefreshOptions, host: HostRoot, runners: Runners) -> tuple[RefreshPlan | None, tuple[str, ...]]:
    """What ``options`` amount to on ``host``, and warnings; no plan where nothing on the host can make specifications.

    Raises GpufleetError before anything is written.
    """
    cdi = options.cdi._replace(request=checked(options.cdi.request, host))
    if cdi.backend == NATIVE:
        raise GpufleetError(
            "backend is native, but units make the specification by nvidia-ctk. Leave backend out, or use"
            " nvidia_cdi_spec without a refresh unit (nvidia_cdi_refresh: none for the role)."
        )
    refresh = toolkit_refresh(host)
    usable = refresh is not None and not refresh.masked and _is_usual(cdi)
    if options.owner == TOOLKIT or (options.owner == AUTO and usable):
        plan = _with_toolkit(options, host, runners, refresh)
        return plan, plan.warnings
    program = _generator(host, cdi)
    if program is None:
        missing = (
            f"There is no {PROGRAM} on this host, which makes the CDI specification for a refresh unit. Install the"
            " NVIDIA Container Toolkit (role gpufleet.nvidia.nvidia_toolkit)."
        )
        if options.owner == COLLECTION:
            raise HostError(missing)
        return None, (f"{missing} Until then, run nvidia_cdi_spec again after each boot and change of the driver.",)
    plan = _with_own(options._replace(cdi=cdi), host, runners, refresh, program)
    return plan, plan.warnings


def _is_usual(options: CdiOptions) -> bool:
    """Whether the toolkit's own file, which describes the GPUs, is what is asked for, or another one is named."""
    return options.path is not None or (options.kind == GPU_KIND and options.mode in _GPU_MODES)


def _generator(host: HostRoot, options: CdiOptions) -> str | None:
    """The path of nvidia-ctk, None where the host has none."""
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import find_program  # noqa: PLC0415

    return find_program(host, options.request.cdi_hook_path)


def _command(
    program: str, options: CdiOptions, place: Place | None, host: HostRoot, runners: Runners
) -> tuple[str, ...]:
    """The command that writes to ``place``.  Raises GpufleetError that names an option which ``program`` lacks.

    An offline tree's programs are not run: there it is taken for a recent one.
    """
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_reference import (  # noqa: PLC0415
        NEWEST,
        Output,
        command_of,
        version_of,
    )

    version = version_of(program, runners.run_pinned, host) if host.live else NEWEST
    output = Output("", YAML) if place is None else Output(place.path, place.format)
    return tuple(command_of(program, version, options.mode, checked(options.request, host), output))


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def _with_toolkit(options: RefreshOptions, host: HostRoot, runners: Runners, refresh: Refresh | None) -> RefreshPlan:
    if refresh is None:
        raise HostError(
            f"{SERVICE} is not there: the NVIDIA Container Toolkit has it since 1.18. Install that, or use"
            " owner: collection."
        )
    if not _is_usual(options.cdi):
        raise GpufleetError(
            f"{SERVICE} would write {options.cdi.kind}, mode {options.cdi.mode}, over the specification of the GPUs in"
            f" {refresh.output or DEFAULT_OUTPUT}. Name another path, or use owner: collection."
        )
    cdi = _for_weak_engines(_placed(options.cdi, host), host, runners.run)
    links = [*wanted_links(host, SERVICE), *(wanted_links(host, PATH) if refresh.path is not None else [])]
    wanted = variables(cdi)
    if OUTPUT in wanted and not wanted[OUTPUT].endswith(_SUFFIXES):
        raise GpufleetError(
            f"path {wanted[OUTPUT]} does not end in {' or '.join(_SUFFIXES)}: nvidia-ctk would add that, and engines"
            " read no other files. Let it end so."
        )
    # Without a file, or masked, it was refused above.
    unit = t.cast("Unit", load_unit(host, SERVICE, PROGRAM, without=_DROP_IN))
    program = host.find_executable(unit.arguments[:1] or [PROGRAM]) or f"/usr/bin/{PROGRAM}"
    if cdi.request.device_ids or not cdi.request.all_device or cdi.request.csv_compat_container_root:
        # The options that are newer than the toolkit's units.
        _command(program, cdi, None, host, runners)
    contents: dict[str, bytes] = {}
    late = options.before_engines and bool(LATE.intersection(unit.after))
    order = options.before_engines and not late and not _MAIN_ENGINES.issubset(unit.before)
    text = drop_in(order, bool(wanted))
    if text is not None:
        contents[_DROP_IN] = text
    if wanted:
        contents[OWN_ENVIRONMENT_FILE] = environment_text(wanted)
    if late:
        # As in 1.19.0, after multi-user.target, which waits for the engines.  No drop-in can remove an After=, and a
        # copy of the unit would outlive the toolkit's next one.  So another unit runs the same command earlier.
        service = f"{UNITS}/{OWN_SERVICE}"
        contents[service] = _early(program, unit, host)
        links += _missing(host, links_of(OWN_SERVICE, service, (WANTED_BY,)))
    return RefreshPlan(
        owner=TOOLKIT,
        service=SERVICE,
        watcher=PATH if refresh.path is not None else None,
        output=wanted.get(OUTPUT) or _usual_output(unit, host),
        contents=contents,
        links=tuple(links),
        variables=wanted,
        warnings=tuple(_overridden(unit, wanted, host)),
    )


def _placed(options: CdiOptions, host: HostRoot) -> CdiOptions:
    """``options`` with the path as it is compared elsewhere; raises GpufleetError for one that engines do not read."""
    if options.path is not None:
        return options._replace(path=place_of(options, host, None).path)
    if options.format not in (None, YAML):
        raise GpufleetError(
            f"format is {options.format}, but {SERVICE} writes {DEFAULT_OUTPUT}. Name a path that ends so."
        )
    return options


def _for_weak_engines(options: CdiOptions, host: HostRoot, run: Runner) -> CdiOptions:
    """``options`` with the flag that keeps out what an engine of the host does not read."""
    engines = engines_for(options.for_engines, host, run)
    newest = [engine.newest for engine in engines if engine.reads and engine.newest is not None]
    flags = options.request.feature_flags
    if NO_GIDS in flags or all(version_number(version) >= version_number(_GIDS_SINCE) for version in newest):
        return options
    return options._replace(request=options.request._replace(feature_flags=(*flags, NO_GIDS)))


def _early(program: str, unit: Unit, host: HostRoot) -> bytes:
    conditions, settings = needs_driver(host.find_executable([_SMI]) or f"/usr/bin/{_SMI}")
    return own_service(
        Command((program, *(unit.arguments[1:] or ("cdi", "generate")))),
        before_engines=True,
        conditions=conditions,
        settings=[("Environment", f"{OUTPUT}={DEFAULT_OUTPUT}"), *toolkit_environment(ENVIRONMENT_FILE), *settings],
        nodes=True,
    )


def _lines_of_earlier_versions(host: HostRoot) -> t.Collection[str]:
    """The variables that earlier versions set in the toolkit's environment file; this run restores that file."""
    record = load_record(host, CDI_REFRESH, host.resolve(ENVIRONMENT_FILE))
    return () if record is None else {key[-1] for key in record.keys or {} if key}


def _usual_output(unit: Unit, host: HostRoot) -> str:
    """Where the toolkit's service writes without a variable of this collection."""
    flags = unit.flag_values("--output")
    if flags:
        return flags[-1]
    usual = DEFAULT_OUTPUT if OUTPUT in _lines_of_earlier_versions(host) else unit.environment.get(OUTPUT)
    return DEFAULT_OUTPUT if usual is None else usual


def _overridden(unit: Unit, wanted: t.Mapping[str, str], host: HostRoot) -> t.Iterator[str]:
    """A warning about what the user's environment sets otherwise; the packages' own unit sets the output."""
    usual = {(OUTPUT, DEFAULT_OUTPUT), *wanted.items()}
    names = {name for name in wanted if (name, unit.environment.get(name, wanted[name])) not in usual}
    found = sorted(names.difference(_lines_of_earlier_versions(host)))
    if found:
        yield (
            f"{SERVICE} gets {' and '.join(found)} from {ENVIRONMENT_FILE} or a drop-in too, with another value. That"
            f" of this task counts, in {OWN_ENVIRONMENT_FILE}. Remove the other one, or leave the option out."
        )


# -- units of this collection ------------------------------------------------------------------------------------------


def _with_own(
    options: RefreshOptions, host: HostRoot, runners: Runners, refresh: Refresh | None, program: str
) -> RefreshPlan:
    place = place_of(options.cdi, host, refresh)
    _refuse_second(options.cdi, host)
    cdi = _for_weak_engines(options.cdi, host, runners.run)
    command = Command(_command(program, cdi, place, host, runners))
    if not all(word.isprintable() for word in command.words):
        raise GpufleetError("A unit takes no control characters in the options of its command. Use other names.")
    conditions, settings, nodes = _driver(cdi, host)
    service, watcher = f"{UNITS}/{OWN_SERVICE}", f"{UNITS}/{OWN_PATH}"
    links = [*links_of(OWN_SERVICE, service, (WANTED_BY,)), *links_of(OWN_PATH, watcher, (WANTED_BY,))]
    return RefreshPlan(
        owner=COLLECTION,
        service=OWN_SERVICE,
        watcher=OWN_PATH,
        output=place.path,
        contents={
            service: own_service(
                command,
                before_engines=options.before_engines,
                conditions=conditions,
                settings=settings,
                nodes=nodes,
            ),
            watcher: own_path(),
        },
        links=tuple(_missing(host, links)),
        warnings=tuple(_rivalry(refresh, place.path)),
    )


def _driver(options: CdiOptions, host: HostRoot) -> tuple[t.Any, t.Any, bool]:
    """What the unit does about the driver: conditions, settings, and whether it makes the control devices."""
    if options.mode not in _DRIVER_MODES:
        return (), (), False
    if options.request.driver_root != "/":
        return needs_loaded_driver(), (), False
    smi = host.find_executable([_SMI])
    # WSL and Tegra have GPUs that are not on the PCI bus.
    ready = loaded_driver(host) is not None or gpu_of(host).kind in (WSL, TEGRA)
    if smi is None and ready:
        return (), (), True
    return (*needs_driver(smi or f"/usr/bin/{_SMI}"), True)


def _refuse_second(options: CdiOptions, host: HostRoot) -> None:
    """Raises GpufleetError where our service makes a specification of another kind: it would no longer do so."""
    former = own_refresh(host)
    if former is not None and former.kind != options.kind:
        raise GpufleetError(
            f"{OWN_SERVICE} makes the specification of {former.kind}, and can make only one. Run nvidia_cdi_refresh"
            f" with state: absent first if it is to make that of {options.kind}, or write that with nvidia_cdi_spec"
            " alone."
        )


def _missing(host: HostRoot, links: t.Iterable[Link]) -> list[Link]:
    return [link for link in links if not host.is_there(link.path)]


def _rivalry(refresh: Refresh | None, path: str) -> t.Iterator[str]:
    if refresh is not None and refresh.enabled and refresh.output == path:
        yield (
            f"{SERVICE} is enabled too, and writes the same file in its own way: whoever comes last wins. Disable it"
            f" with systemctl disable {SERVICE} {PATH}, or use owner: toolkit."
        )
    elif refresh is not None and refresh.enabled:
        yield (
            f"{SERVICE} is enabled too, and writes {refresh.output}. Where both describe the same devices, the one in"
            f" {posixpath.dirname(DEFAULT_OUTPUT)} wins. Disable it with systemctl disable {SERVICE} {PATH}, or use"
            " owner: toolkit."
        )
