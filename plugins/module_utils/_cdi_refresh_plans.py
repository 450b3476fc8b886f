# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what has to stand on a host so that a CDI specification stays fresh: with the toolkit's
# own units, or with ours where it has none.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_engines import engines_for
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, NATIVE, YAML, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_placement import place_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_environment import (
    EnvironmentText,
    environment_file,
    variables,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_links import (
    Link,
    links_of,
    wanted_links,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_options import (
    OPTIONS_FILE,
    options_from_json,
    options_to_json,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_texts import (
    DROP_IN,
    ENGINES,
    LATE,
    OWN_PATH,
    OWN_SERVICE,
    UNITS,
    WANTED_BY,
    Command,
    check_safe,
    early_service,
    order_drop_in,
    own_path,
    own_service,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import (
    DEFAULT_OUTPUT,
    ENVIRONMENT_FILE,
    OUTPUT,
    PATH,
    PROGRAM,
    SERVICE,
    ToolkitRefresh,
    toolkit_refresh,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import NO_GIDS, checked
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_rules import version_number
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import NOTHING, PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    GpufleetError,
    HostError,
    MissingPackageError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._parsed_folders import PARSED_FOLDERS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import load_unit
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import GPU_KIND

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd_units import Unit

# In whose name records are kept.
CDI_REFRESH = "cdi.refresh"
TOOLKIT, COLLECTION = "toolkit", "collection"
OWNERS = (AUTO, TOOLKIT, COLLECTION)
# Programs of the machine that packages do not bring and users do not call (FHS 3.0, /usr/local and /usr/lib).
PROGRAM_DIR = "/usr/local/lib/gpufleet-nvidia"
_PROGRAM_NAME = "cdi-refresh"
# A program takes owner and mode of this one.
_SHELL = "/bin/sh"
# The first version of CDI with additional groups, without which older engines skip a specification.
_GIDS_SINCE = "0.7.0"
_SUFFIXES = (".yaml", ".json")
_GPU_MODES = (AUTO, "nvml", "csv", "wsl")
# What does not outlive a boot, is open to everybody, or is read as something else.
_NO_PROGRAMS = tuple(
    f"{folder}/" for folder in (*PARSED_FOLDERS, UNITS, "/run", "/dev", "/tmp", "/var/tmp", "/proc", "/sys")
)
# Of the engines those that NVIDIA's own units know.
_MAIN_ENGINES = frozenset(ENGINES[:3])
_SMI = "nvidia-smi"


class RefreshOptions(t.NamedTuple):
    """What a task asks for; the specification is that of nvidia_cdi_spec with the options ``cdi``."""

    cdi: CdiOptions = CdiOptions()
    state: str = "present"
    owner: str = AUTO
    before_engines: bool = True
    program_dir: str = PROGRAM_DIR
    start: bool = True


class RefreshPlan(t.NamedTuple):
    """What has to stand on the host.

    ``contents`` are files that are wholly ours, ``programs`` those among them that are one.  ``environment`` is the
    toolkit's file with ``variables`` in it, where its units do the work.  ``links`` are those that are missing.
    ``output`` is where the service writes.
    """

    owner: str
    service: str
    watcher: str | None
    output: str
    contents: t.Mapping[str, bytes]
    links: tuple[Link, ...]
    environment: PlannedFile | None = None
    variables: t.Mapping[str, str] = NOTHING
    programs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[str, ...]:
        """The files among ours that systemd reads."""
        return tuple(path for path in self.contents if path.startswith(UNITS + "/"))


def own_paths(options: RefreshOptions) -> list[str]:
    """All files that any run with this program_dir may have written."""
    program = posixpath.join(options.program_dir, _PROGRAM_NAME)
    units = [f"{UNITS}/{name}" for name in (OWN_SERVICE, OWN_PATH, f"{SERVICE}.d/{DROP_IN}")]
    return [ENVIRONMENT_FILE, OPTIONS_FILE, program, *units]


def plan_of(options: RefreshOptions, host: HostRoot, run: Runner) -> RefreshPlan:
    """What ``options`` amount to on ``host``.  Raises GpufleetError before anything is written."""
    checked(options.cdi.request, host)
    refresh = toolkit_refresh(host)
    owner = options.owner
    if owner == AUTO:
        usable = refresh is not None and not refresh.masked and options.cdi.backend != NATIVE and _is_usual(options.cdi)
        owner = TOOLKIT if usable else COLLECTION
    return _with_toolkit(options, host, run, refresh) if owner == TOOLKIT else _with_own(options, host, refresh)


def _is_usual(options: CdiOptions) -> bool:
    """Whether the toolkit's own file, which describes the GPUs, is what is asked for, or another one is named."""
    return options.path is not None or (options.kind == GPU_KIND and options.mode in _GPU_MODES)


# -- the toolkit's units -----------------------------------------------------------------------------------------------


def _with_toolkit(options: RefreshOptions, host: HostRoot, run: Runner, refresh: ToolkitRefresh | None) -> RefreshPlan:
    if refresh is None:
        raise HostError(
            f"{SERVICE} is not there: the NVIDIA Container Toolkit has it since 1.18. Install that, or use"
            " owner: collection."
        )
    if options.cdi.backend == NATIVE:
        raise GpufleetError(
            f"backend is native, but with owner: toolkit {SERVICE} makes the specification by nvidia-ctk. Leave backend"
            " out, or use owner: collection."
        )
    if not _is_usual(options.cdi):
        raise GpufleetError(
            f"{SERVICE} would write {options.cdi.kind}, mode {options.cdi.mode}, over the specification of the GPUs in"
            f" {refresh.output or DEFAULT_OUTPUT}. Name another path, or use owner: collection."
        )
    cdi = _placed(options.cdi, host)
    links = [*wanted_links(host, SERVICE), *(wanted_links(host, PATH) if refresh.path is not None else [])]
    wanted = variables(_for_weak_engines(cdi, host, run))
    if OUTPUT in wanted:
        _refuse_odd_output(host.check_path("path", wanted[OUTPUT]))
    drop_in = f"{UNITS}/{SERVICE}.d/{DROP_IN}"
    unit = load_unit(host, SERVICE, PROGRAM, without=drop_in)
    contents: dict[str, bytes] = {}
    if unit is not None and options.before_engines:
        contents, more = _in_order(host, unit, drop_in)
        links += more
    environment = planned_environment(host, wanted)
    return RefreshPlan(
        owner=TOOLKIT,
        service=SERVICE,
        watcher=PATH if refresh.path is not None else None,
        output=_output(refresh, environment),
        contents=contents,
        links=tuple(links),
        environment=environment,
        variables=wanted,
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


def planned_environment(host: HostRoot, wanted: t.Mapping[str, str]) -> PlannedFile:
    """The toolkit's environment file as it is to be.  Raises GpufleetError."""
    path = host.resolve(ENVIRONMENT_FILE)
    return environment_file(host.read(path), load_record(host, CDI_REFRESH, path), wanted, path)


def _output(refresh: ToolkitRefresh, environment: PlannedFile) -> str:
    """Where the service will write."""
    before, after = (
        EnvironmentText.from_bytes(environment.path, text or b"").value(OUTPUT)
        for text in (environment.before, environment.after)
    )
    # What it is by the unit itself cannot be told while the file says otherwise.
    return after if after is not None else refresh.output if before is None else DEFAULT_OUTPUT


def _for_weak_engines(options: CdiOptions, host: HostRoot, run: Runner) -> CdiOptions:
    """``options`` with the flag that keeps out what an engine of the host does not read."""
    engines, _told = engines_for(options.for_engines, host, run, {})
    newest = [engine.newest for engine in engines if engine.reads and engine.newest is not None]
    flags = options.request.feature_flags
    if NO_GIDS in flags or all(version_number(version) >= version_number(_GIDS_SINCE) for version in newest):
        return options
    return options._replace(request=options.request._replace(feature_flags=(*flags, NO_GIDS)))


def _refuse_odd_output(path: str) -> None:
    if not path.endswith(_SUFFIXES):
        raise GpufleetError(
            f"path {path} does not end in {' or '.join(_SUFFIXES)}: nvidia-ctk would add that, and engines read no"
            " other files. Let it end so."
        )


def _in_order(host: HostRoot, unit: Unit, drop_in: str) -> tuple[dict[str, bytes], list[Link]]:
    """What brings a specification before the engines start, beside the toolkit's unit as it stands."""
    late = LATE.intersection(unit.after)
    if not late:
        return ({} if _MAIN_ENGINES.issubset(unit.before) else {drop_in: order_drop_in()}), []
    # As in 1.19.0, after multi-user.target, which waits for the engines.  No drop-in can take an After= away, and a
    # copy of the unit would outlive the toolkit's next one.  So another unit does the same earlier.
    program = host.find_executable(unit.arguments[:1] or [PROGRAM]) or f"/usr/bin/{PROGRAM}"
    smi = host.find_executable([_SMI]) or f"/usr/bin/{_SMI}"
    command = Command((program, *(unit.arguments[1:] or ("cdi", "generate"))))
    environment = {OUTPUT: DEFAULT_OUTPUT}
    path = f"{UNITS}/{OWN_SERVICE}"
    text = early_service(command, program, smi, environment, ENVIRONMENT_FILE)
    return {path: text}, _missing(host, links_of(OWN_SERVICE, path, (WANTED_BY,)))


# -- units of our own --------------------------------------------------------------------------------------------------


def _with_own(options: RefreshOptions, host: HostRoot, refresh: ToolkitRefresh | None) -> RefreshPlan:
    # The toolkit's users need not wait for these imports.
    from ansible_collections.gpufleet.nvidia.plugins.module_utils import _cdi_refresh_program  # noqa: PLC0415
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._shipped import shipped_sources  # noqa: PLC0415

    folder = host.check_path("program_dir", options.program_dir)
    check_safe("program_dir", folder)
    if f"{host.resolve(folder)}/".startswith(_NO_PROGRAMS) or folder == "/":
        raise GpufleetError(
            f"program_dir {folder}: a program there would be gone after a boot, taken for something else, or changed by"
            " others. Name a folder such as /opt/gpufleet-nvidia."
        )
    _refuse_second(options.cdi, host)
    place = place_of(options.cdi, host, refresh)
    python = _cdi_refresh_program.interpreter(host)
    program = f"{folder}/{_PROGRAM_NAME}"
    content = host.read(program)
    yaml = _cdi_refresh_program.yaml_sources(shipped_sources("yaml"))
    if content is None or not _cdi_refresh_program.is_current(content, python, yaml):
        if yaml is None:
            raise MissingPackageError(
                "The program that keeps the specification fresh needs PyYAML, which this host's Python lacks, and the"
                " controller has sent none. Install PyYAML on one of them."
            )
        content = _cdi_refresh_program.build(python, yaml)
    command = Command((python, _cdi_refresh_program.ISOLATED, program, OPTIONS_FILE))
    service, watcher = f"{UNITS}/{OWN_SERVICE}", f"{UNITS}/{OWN_PATH}"
    links = [*links_of(OWN_SERVICE, service, (WANTED_BY,)), *links_of(OWN_PATH, watcher, (WANTED_BY,))]
    return RefreshPlan(
        owner=COLLECTION,
        service=OWN_SERVICE,
        watcher=OWN_PATH,
        output=place.path,
        contents={
            program: content,
            OPTIONS_FILE: options_to_json(options.cdi),
            service: own_service(command, OPTIONS_FILE, options.before_engines),
            watcher: own_path(),
        },
        links=tuple(_missing(host, links)),
        programs=(program,),
        warnings=tuple(_rivalry(refresh, place.path)),
    )


def _refuse_second(options: CdiOptions, host: HostRoot) -> None:
    """Raises GpufleetError where our service keeps another kind fresh: it would forget that one without a word."""
    content = host.read(OPTIONS_FILE)
    if content is None:
        return
    try:
        former = options_from_json(OPTIONS_FILE, content)
    except ConfigurationError:
        return
    if former.kind != options.kind:
        raise GpufleetError(
            f"{OWN_SERVICE} keeps {former.kind} fresh, and has room for one kind. Run nvidia_cdi_refresh with state:"
            f" absent first if {options.kind} is to take its place, or have that written by nvidia_cdi_spec alone."
        )


def _missing(host: HostRoot, links: t.Iterable[Link]) -> list[Link]:
    return [link for link in links if not host.is_there(link.path)]


def _rivalry(refresh: ToolkitRefresh | None, path: str) -> t.Iterator[str]:
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


def like_of(plan: RefreshPlan, path: str) -> tuple[str, ...]:
    """Whose mode a new file takes."""
    return (_SHELL,) if path in plan.programs else ()
