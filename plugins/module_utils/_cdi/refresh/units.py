# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The systemd units that refresh a CDI specification: those on a host, and the files that this collection writes.

`plan.py` decides which of these files a host needs.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import edits as cdi_edits
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import flavors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import env_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    Settings = t.Sequence[t.Tuple[str, str]]


SERVICE, PATH_UNIT = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
OWN_SERVICE, OWN_PATH_UNIT = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
PROGRAM = "nvidia-ctk"
# The file with the administrator's options for the toolkit's service, and the variable for the specification's path.
ENVIRONMENT_FILE = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
_VARIABLES = "NVIDIA_CTK_"
OUTPUT_VARIABLE = f"{_VARIABLES}CDI_OUTPUT_FILE_PATH"
# The default output of the toolkit's service.
DEFAULT_OUTPUT = "/var/run/cdi/nvidia.yaml"


# The end of a warning about a unit that mounts /tmp/nvidia-mps.
SOCKET_DANGER = "Any user can create it, and so choose a file of the host that containers with GPUs get."


class RefreshUnits(t.NamedTuple):
    """A service that runs ``nvidia-ctk cdi generate``, and its path unit, which starts it after a change of the driver.

    ``service`` and ``path`` are the files of the units. ``path`` is None if there is no path unit. ``at_boot`` says
    whether the service is enabled, and ``on_change`` whether the path unit is enabled. ``masked`` says whether the
    service is masked. ``output`` is the specification that the service writes, or "". ``kind`` is the CDI kind from the
    flags --vendor and --class of the command, or "" without these flags. ``with_sockets`` says whether the command
    lacks the feature flag that leaves out sockets. ``command`` is the command line of the service, if it runs
    nvidia-ctk. ``problem`` says why the service writes nothing on this host, or is "".
    """

    service: str
    path: str | None
    at_boot: bool
    on_change: bool
    masked: bool
    output: str
    kind: str
    with_sockets: bool = False
    command: tuple[str, ...] = ()
    problem: str = ""

    @property
    def usable(self) -> bool:
        """Whether the service writes its specification when it is started."""
        return not self.masked and not self.problem

    @property
    def enabled(self) -> bool:
        """Whether the service writes its specification at boot or after a change of the driver."""
        return self.usable and (self.at_boot or self.on_change)


def toolkit_refresh(host: hostfs.HostFS) -> RefreshUnits | None:
    """Return the toolkit's refresh units on ``host``, or None."""
    found = _refresh(host, SERVICE, PATH_UNIT, DEFAULT_OUTPUT, core_constants.GPU_KIND)
    return None if found is None else found._replace(problem=_problem(found, host))


def _problem(refresh: RefreshUnits, host: hostfs.HostFS) -> str:
    """Return why the toolkit's service writes nothing; empty if it does, or if that is unknown.

    The units are configuration files of the Debian packages up to 1.19.1. dpkg leaves them in /etc if the package is
    removed, or replaced by a version without units.
    """
    program = refresh.command[0] if refresh.command else ""
    # A specifier such as %h (systemd.unit(5)) is not resolved here.
    if not program.startswith("/") or "%" in program:
        return ""
    if not host.is_executable(program):
        return f"{refresh.service} runs {program}, which is not an executable file."
    named = any(argument.startswith("--output") for argument in refresh.command)
    if named or not refresh.service.startswith(f"{UNIT_DIR}/") or not _ignores_output(program, host):
        return ""
    return (
        f"{refresh.service} is left from another version of the toolkit: {program} is older than"
        f" {core_text.dotted(_UNITS_SINCE)} and ignores {OUTPUT_VARIABLE}, so the service writes no file."
    )


def _ignores_output(program: str, host: hostfs.HostFS) -> bool:
    """Return whether ``program``, a nvidia-ctk, is known to ignore OUTPUT_VARIABLE.

    The program is not run. It is written in Go, so it contains the name of each variable that it reads. A script, which
    runs another program, is unknown.
    """
    if host.predicted is not None and host.is_predicted(host.resolve(program)):
        version = core_text.parse_version(host.predicted.version or "")
        return version is not None and version < _UNITS_SINCE
    try:
        content = host.read(program, _PROGRAM_BYTES) or b""
    except errors.HostError:
        return False
    return content.startswith(b"\x7fELF") and OUTPUT_VARIABLE.encode() not in content


def own_refresh(host: hostfs.HostFS) -> RefreshUnits | None:
    """Return the units of this collection that generate a specification of their own, or None.

    None is also returned for the service that only runs the command of the toolkit's service before the engines start.
    That command has no flags for the output and the kind.
    """
    found = _refresh(host, OWN_SERVICE, OWN_PATH_UNIT, "", "")
    return found if found is not None and found.output and found.kind else None


def planned_refresh(output: str, kind: str) -> RefreshUnits:
    """Return the units of this collection that a task would install, for check mode."""
    service, path_unit = (f"{UNIT_DIR}/{name}" for name in (OWN_SERVICE, OWN_PATH_UNIT))
    return RefreshUnits(service, path_unit, at_boot=True, on_change=True, masked=False, output=output, kind=kind)


def predicted_host(host: hostfs.HostFS) -> hostfs.HostFS:
    """Return ``host`` with the toolkit's units as an earlier task of the play would install them in a real run.

    Packages have the units since 1.18. A masked unit stays masked, and a unit in /etc stays. Only for check mode.
    """
    predicted = host.predicted
    if predicted is None or not predicted.packages:
        return host
    version = core_text.parse_version(predicted.version or "")
    files: dict[str, bytes | None] = {}
    for name, content in ((SERVICE, _predicted_service(version)), (PATH_UNIT, _PREDICTED_PATH)):
        path = systemd_units.unit_file(host, name)
        if version is not None and version < _UNITS_SINCE:
            files.update({} if path is None or path.startswith(f"{UNIT_DIR}/") else {path: None})
        elif path is None:
            files[f"/usr/lib/systemd/system/{name}"] = content
        elif name == SERVICE and not systemd_units.is_masked(host, path):
            unit = systemd_units.load_unit(host, name)
            is_late = unit is not None and _LATE in unit.after
            files.update({} if is_late is (version == _LATE_VERSION) else {path: content})
    return host._replace(predicted=predicted._replace(files={**predicted.files, **files}))


def _predicted_service(version: tuple[int, ...] | None) -> bytes:
    """Return what this collection uses of the toolkit's service in ``version``; None stands for the newest one."""
    return _text(
        ("Unit", [("After", _LATE)] if version == _LATE_VERSION else []),
        (
            "Service",
            [
                ("Environment", f"{OUTPUT_VARIABLE}={DEFAULT_OUTPUT}"),
                ("EnvironmentFile", f"-{ENVIRONMENT_FILE}"),
                ("ExecStart", f"/usr/bin/{PROGRAM} cdi generate"),
            ],
        ),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def _refresh(
    host: hostfs.HostFS, service: str, path: str, default_output: str, default_kind: str
) -> RefreshUnits | None:
    file = systemd_units.unit_file(host, service)
    if file is None:
        return None
    path_unit = systemd_units.unit_file(host, path)
    on_change = (
        path_unit is not None and not systemd_units.is_masked(host, path_unit) and systemd_units.is_enabled(host, path)
    )
    unit = systemd_units.load_unit(host, service, PROGRAM)
    if unit is None:
        return RefreshUnits(file, path_unit, at_boot=False, on_change=on_change, masked=True, output="", kind="")
    flags = unit.flag_values("--output")
    return RefreshUnits(
        file,
        path_unit,
        at_boot=systemd_units.is_enabled(host, service),
        on_change=on_change,
        masked=False,
        output=flags[-1] if flags else unit.environment.get(OUTPUT_VARIABLE, default_output),
        kind=_kind(unit, default_kind),
        with_sockets=cdi_options.NO_IPC not in feature_flags(unit),
        command=unit.arguments,
    )


def _kind(unit: systemd_units.Unit, default: str) -> str:
    """Return the kind from the flags of the unit. With a default, also from its environment, as nvidia-ctk reads it."""
    vendor, _slash, class_ = default.partition("/")
    named = []
    for field, flag, usual in (("vendor", "--vendor", vendor), ("class_", "--class", class_)):
        elsewhere = unit.environment.get(_REQUEST_VARIABLES[field], "") or usual if default else ""
        named.append([elsewhere, *unit.flag_values(flag)][-1])
    return "/".join(filter(None, named))


def feature_flags(unit: systemd_units.Unit, in_command: bool = False) -> list[str]:
    """Return the feature flags of a unit. Those in its command have precedence over those in its environment.

    With ``in_command``, only those in its command.
    """
    values = [*unit.flag_values("--feature-flag"), *unit.flag_values("--feature-flags")]
    if not values and not in_command:
        values = [unit.environment.get(FEATURE_FLAGS_VARIABLE, "")]
    return [flag for value in values for flag in value.split(_SEPARATOR) if flag]


class Link(t.NamedTuple):
    """A link that makes one unit start another. ``target`` is the file of the unit that is started."""

    path: str
    target: str


UNIT_DIR = "/etc/systemd/system"
# The name sorts after the drop-ins of packages and before override.conf, which systemctl edit writes.
DROP_IN = "50-gpufleet-nvidia.conf"
OWN_ENVIRONMENT_FILE = "/etc/gpufleet-nvidia/cdi-refresh.env"
WANTED_BY = "multi-user.target"

# Units that start containers at boot: the engines, the units of Podman, which has no daemon, and the kubelet.
ENGINES = (
    *(service for row in flavors.FLAVORS.values() for service in row.services),
    "podman.service",
    "podman-restart.service",
    "kubelet.service",
)
# The driver's daemons, which initialize the GPUs and the NVSwitch fabric. The packaged units are not ordered after an
# engine, and start no engine. nvidia-mig-manager.service is not in this list: its hooks start the kubelet and wait for
# it. The kubelet would wait for the service of this collection, and that service for nvidia-mig-manager.service, until
# both time out.
_DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
_DEVICES = ("systemd-modules-load.service", *_DAEMONS)
# A unit that is ordered after one of these cannot be ordered before an engine. systemd would resolve the ordering
# cycle by not starting one of the units in it.
LATE_UNITS = frozenset({"multi-user.target", "graphical.target", "default.target", *ENGINES})
# In seconds. The engines wait for the service, so a GPU that hangs must not block the boot. The toolkit's service has
# no timeout (1.18 to 1.20).
_TIMEOUTS = (("TimeoutStartSec", "120"), ("TimeoutStopSec", "5"))
# An installation of a driver changes the list of modules several times. A service that is started too often also makes
# its path unit fail, and then changes are no longer detected (systemd.path(5)).
_NO_START_LIMIT = ("StartLimitIntervalSec", "0")
_MODULES = ("modules.dep", "modules.dep.bin")
# The condition for a driver that is in a container. That container loads the kernel modules, and systemd skips the
# service until they are loaded.
NEEDS_LOADED_DRIVER = (("ConditionPathExists", "/proc/driver/nvidia/version"),)
_OWN_ENVIRONMENT = ("EnvironmentFile", f"-{OWN_ENVIRONMENT_FILE}")
# With these settings, a unit of this collection reads the environment files of the toolkit's service.
TOOLKIT_ENVIRONMENT = (("EnvironmentFile", f"-{ENVIRONMENT_FILE}"), _OWN_ENVIRONMENT)
# The toolkit's packages contain the units since this version.
_UNITS_SINCE = (1, 18)
# The limit for reading nvidia-ctk, in bytes. It has about 10 MiB.
_PROGRAM_BYTES = 64 << 20
# The service of this version is ordered after _LATE. A later version has no such order.
_LATE_VERSION, _LATE = (1, 19, 0), "multi-user.target"
_PREDICTED_PATH = f"[Install]\nWantedBy={WANTED_BY}\n".encode()
_HEADER = "# Written by gpufleet.nvidia. What is changed here is overwritten.\n"


# -- units -------------------------------------------------------------------------------------------------------------


def own_service(
    command: t.Sequence[str],
    *,
    before_engines: bool,
    conditions: Settings = (),
    settings: Settings = (),
    nodes: bool = False,
) -> bytes:
    """Return the service that runs ``command``, a command of nvidia-ctk.

    The service is started at boot, by its path unit, or manually. It does not remain active, so each start generates
    the specification again. ``conditions`` are added to the section Unit, and ``settings`` to the section Service. With
    ``nodes``, the service first creates the driver's control devices.
    """
    program = command[0]
    order = [("After", " ".join(_DEVICES)), *([("Before", " ".join(ENGINES))] if before_engines else [])]
    create = _command_line([program, "system", "create-device-nodes", "--control-devices", "--load-kernel-modules"])
    return _text(
        (
            "Unit",
            [
                ("Description", "Make the CDI specification of NVIDIA GPUs (gpufleet.nvidia)"),
                _path_condition(program),
                *conditions,
                _NO_START_LIMIT,
                *order,
            ],
        ),
        (
            "Service",
            [
                ("Type", "oneshot"),
                # nvidia-ctk searches PATH for programs of the driver, and some releases of systemd omit /sbin.
                ("Environment", f"PATH={':'.join(hostfs.SERVICE_PATH)}"),
                *settings,
                *([("ExecStartPre", f"-{create}")] if nodes else []),
                ("ExecStart", _command_line(command)),
                *_TIMEOUTS,
            ],
        ),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def needs_driver(smi: str) -> tuple[Settings, Settings]:
    """Return conditions and settings with which systemd skips the service if nvidia-smi finds no driver.

    ``smi`` is the path of nvidia-smi. nvidia-smi also loads the driver and creates its devices.
    """
    return [_path_condition(smi)], [("ExecCondition", _command_line([smi, "-L"]))]


def own_path() -> bytes:
    """Return the path unit, which starts the service when depmod writes its files.

    depmod writes them after kernel modules were added or removed.
    """
    description = "Make the CDI specification of NVIDIA GPUs after a change of the driver (gpufleet.nvidia)"
    return _text(
        ("Unit", [("Description", description)]),
        ("Path", [("PathChanged", f"/lib/modules/%v/{name}") for name in _MODULES]),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def drop_in(order: bool, environment: bool) -> bytes | None:
    """Return the drop-in of the toolkit's service, or None if it would be empty.

    ``order`` starts the service before the engines, and adds timeouts. The service then does not remain active, because
    a path unit cannot start a service that is active. ``environment`` adds the environment file of this collection. If
    several files assign a variable, the assignment in the last file has effect (systemd.exec(5)).
    """
    if not order and not environment:
        return None
    return _text(
        ("Unit", [("After", " ".join(_DAEMONS)), ("Before", " ".join(ENGINES))] if order else []),
        ("Service", [*([("RemainAfterExit", "no"), *_TIMEOUTS] if order else []), *[_OWN_ENVIRONMENT] * environment]),
    )


def assignments(variables: t.Mapping[str, str]) -> Settings:
    """Return settings with the variables of nvidia-ctk among ``variables``."""
    found = (f"{name}={value}" for name, value in sorted(variables.items()) if name.startswith(_VARIABLES))
    # Unlike in commands, a dollar sign has no meaning here (systemd.exec(5)).
    return [("Environment", _quoted(assignment)) for assignment in found]


def _path_condition(path: str) -> tuple[str, str]:
    return "ConditionPathExists", path.replace("%", "%%")


def _text(*sections: tuple[str, Settings]) -> bytes:
    text = _HEADER
    for section, settings in sections:
        if settings:
            text += f"\n[{section}]\n" + "".join(f"{name}={value}\n" for name, value in settings)
    return text.encode("utf-8")


def _command_line(arguments: t.Iterable[str]) -> str:
    # systemd expands percent signs and dollar signs in the command (systemd.unit(5), systemd.service(5)).
    return " ".join(map(_quoted_argument, arguments))


def _quoted_argument(argument: str) -> str:
    return _quoted(argument.replace("$", "$$"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if re.fullmatch(r"[^\s\"'\\;]+", text) else f'"{escaped}"'


# -- the environment of the toolkit's service --------------------------------------------------------------------------

# The variables that "nvidia-ctk cdi generate" reads instead of its flags (1.18 to 1.20), by the fields of Request.
_PREFIX = f"{_VARIABLES}CDI_GENERATE_"
FEATURE_FLAGS_VARIABLE = f"{_PREFIX}FEATURE_FLAGS"
_REQUEST_VARIABLES = {
    "vendor": f"{_PREFIX}VENDOR",
    "class_": f"{_PREFIX}CLASS",
    "device_name_strategies": f"{_PREFIX}DEVICE_NAME_STRATEGIES",
    "device_ids": f"{_PREFIX}DEVICE_IDS",
    "driver_root": "NVIDIA_CTK_DRIVER_ROOT",
    "dev_root": "NVIDIA_CTK_DEV_ROOT",
    "library_search_paths": f"{_PREFIX}LIBRARY_SEARCH_PATHS",
    "config_search_paths": f"{_PREFIX}CONFIG_SEARCH_PATHS",
    "csv_files": f"{_PREFIX}CSV_FILES",
    "csv_ignore_patterns": f"{_PREFIX}CSV_IGNORE_PATTERNS",
    "csv_compat_container_root": f"{_PREFIX}CSV_CONTAINER_COMPAT_ROOT",
    "cdi_hook_path": "NVIDIA_CTK_CDI_HOOK_PATH",
    "ldconfig_path": f"{_PREFIX}LDCONFIG_PATH",
    "feature_flags": FEATURE_FLAGS_VARIABLE,
}
_FORMAT, _MODE = f"{_PREFIX}OUTPUT_FORMAT", f"{_PREFIX}MODE"
_ENABLED, _DISABLED = f"{_PREFIX}ENABLED_HOOKS", f"{_PREFIX}DISABLED_HOOKS"
_NO_ALL = f"{_PREFIX}NO_ALL_DEVICE"
# nvidia-ctk separates lists with this character, and has no way to escape it.
_SEPARATOR = ","


def variables(options: cdi_options.CdiOptions) -> dict[str, str]:
    """Return the environment variables with which the toolkit's service writes the specification of ``options``.

    An option with its default value needs no variable. Raises NvidiaError for values that a variable cannot contain.
    """
    request, defaults = options.request, cdi_options.Request()
    found: dict[str, t.Any] = {}
    if options.path is not None:
        found[OUTPUT_VARIABLE] = options.path
    if options.format is not None:
        found[_FORMAT] = options.format
    if options.mode != cdi_options.AUTO:
        found[_MODE] = options.mode
    for field, name in _REQUEST_VARIABLES.items():
        value = getattr(request, field)
        if value != getattr(defaults, field):
            found[name] = value
    found.update(_hook_variables(request))
    if not request.all_device:
        found[_NO_ALL] = "true"
    return {name: _variable_value(name, value) for name, value in found.items()}


def _hook_variables(request: cdi_options.Request) -> dict[str, t.Any]:
    if request.hooks == cdi_options.NONE:
        return {_DISABLED: cdi_edits.ALL}
    named = {_ENABLED: request.enabled_hooks, _DISABLED: request.disabled_hooks}
    return {name: hooks for name, hooks in named.items() if hooks}


def _variable_value(name: str, value: t.Any) -> str:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if not item.isprintable() or (isinstance(value, tuple) and _SEPARATOR in item):
            raise errors.NvidiaError(
                f"{item!r} cannot be passed to nvidia-cdi-refresh.service, because values in {name} cannot contain"
                f" {'commas' if item.isprintable() else 'control characters'}. Change the value, or set"
                f" {errors.option:owner}: collection."
            )
    return _SEPARATOR.join(items)


def environment_text(values: t.Mapping[str, str]) -> bytes:
    """Return the content of this collection's environment file."""
    return (_HEADER + "".join(f"{env_file.assignment(*pair)}\n" for pair in values.items())).encode("utf-8")


class RefreshPlan(t.NamedTuple):
    """The units that refresh the specification of a host, and the files and links to create for them.

    ``owner`` says whose units are used: ``toolkit`` or ``collection``. ``service`` and ``path_unit`` are their names.
    ``contents`` maps the paths of this collection's files to their contents. ``links`` are the missing links.
    ``variables`` are the settings in this collection's environment file. ``output`` is the specification that the
    service writes.
    """

    owner: str
    service: str
    path_unit: str | None
    output: str
    contents: t.Mapping[str, bytes]
    links: tuple[Link, ...]
    variables: t.Mapping[str, str] = core_plan.NOTHING
    warnings: tuple[str, ...] = ()
