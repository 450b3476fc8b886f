# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The systemd units that refresh a CDI specification: those on a host, and the files that this collection writes.

`plan.py` decides which of these files a host needs.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import options as cdi_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    Settings = t.Sequence[t.Tuple[str, str]]


SERVICE, PATH_UNIT = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"
OWN_SERVICE, OWN_PATH_UNIT = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
PROGRAM = "nvidia-ctk"
# The variable for the specification's path in the toolkit's service, and its default.
_VARIABLES = "NVIDIA_CTK_"
OUTPUT_VARIABLE = f"{_VARIABLES}CDI_OUTPUT_FILE_PATH"
_DEFAULT_OUTPUT = "/var/run/cdi/nvidia.yaml"
_FEATURE_FLAGS_VARIABLE = f"{_VARIABLES}CDI_GENERATE_FEATURE_FLAGS"


class RefreshUnits(t.NamedTuple):
    """A service that runs ``nvidia-ctk cdi generate``, and its path unit, which starts it after a change of the driver.

    ``at_boot`` says whether the service is enabled, and ``on_change`` whether the path unit is enabled. ``usable`` says
    whether the service writes its specification when it is started. ``output`` is that specification, or "". ``kind``
    is the CDI kind from the flags --vendor and --class of the command, or "" without these flags. ``with_sockets`` says
    whether the command lacks the feature flag that leaves out sockets. ``variables`` are the settings of nvidia-ctk in
    the environment of the service.
    """

    at_boot: bool
    on_change: bool
    usable: bool
    output: str
    kind: str
    with_sockets: bool = False
    variables: t.Mapping[str, str] = core_plan.NOTHING

    @property
    def enabled(self) -> bool:
        """Whether the service writes its specification at boot or after a change of the driver."""
        return self.usable and (self.at_boot or self.on_change)


def toolkit_refresh(host: hostfs.HostFS) -> RefreshUnits | None:
    """Return the toolkit's refresh units on ``host``, or None.

    They are not usable where the drop-in of this collection stops them. The units are configuration files of the Debian
    packages up to 1.19.1, which dpkg leaves in /etc if the package is removed. Without their program they are not
    usable either.
    """
    found = _refresh(host, SERVICE, PATH_UNIT, _DEFAULT_OUTPUT, core_constants.GPU_KIND)
    is_stopped = host.exists(DROP_IN) and host.exists(f"{UNIT_DIR}/{OWN_SERVICE}")
    return found._replace(usable=False) if found is not None and is_stopped else found


def own_refresh(host: hostfs.HostFS) -> RefreshUnits | None:
    """Return the units of this collection, or None. An edited service without an output or a kind is none."""
    found = _refresh(host, OWN_SERVICE, OWN_PATH_UNIT, "", "")
    return found if found is not None and found.output and found.kind else None


def planned_refresh(output: str, kind: str) -> RefreshUnits:
    """Return the units of this collection that a task would install, for check mode."""
    return RefreshUnits(at_boot=True, on_change=True, usable=True, output=output, kind=kind)


def _refresh(
    host: hostfs.HostFS, service: str, path: str, default_output: str, default_kind: str
) -> RefreshUnits | None:
    if systemd_units.unit_file(host, service) is None:
        return None
    path_unit = systemd_units.unit_file(host, path)
    on_change = (
        path_unit is not None and not systemd_units.is_masked(host, path_unit) and systemd_units.is_enabled(host, path)
    )
    unit = systemd_units.load_unit(host, service, PROGRAM)
    if unit is None:
        # It is masked.
        return RefreshUnits(at_boot=False, on_change=on_change, usable=False, output="", kind="")
    flags = unit.flag_values("--output")
    program = unit.arguments[0] if unit.arguments else ""
    # A specifier such as %h (systemd.unit(5)) is not resolved here.
    is_known = program.startswith("/") and "%" not in program
    return RefreshUnits(
        at_boot=systemd_units.is_enabled(host, service),
        on_change=on_change,
        usable=not is_known or host.is_executable(program),
        output=flags[-1] if flags else unit.environment.get(OUTPUT_VARIABLE, default_output),
        kind=_kind(unit, default_kind),
        with_sockets=cdi_options.NO_IPC not in _feature_flags(unit),
        variables={name: value for name, value in unit.environment.items() if name.startswith(_VARIABLES)},
    )


def _kind(unit: systemd_units.Unit, default: str) -> str:
    """Return the kind from the flags of the unit. With a default, also from its environment, as nvidia-ctk reads it."""
    vendor, _slash, class_ = default.partition("/")
    named = []
    for name, flag, usual in (("VENDOR", "--vendor", vendor), ("CLASS", "--class", class_)):
        elsewhere = unit.environment.get(f"{_VARIABLES}CDI_GENERATE_{name}", "") or usual if default else ""
        named.append([elsewhere, *unit.flag_values(flag)][-1])
    return "/".join(filter(None, named))


def _feature_flags(unit: systemd_units.Unit) -> list[str]:
    """Return the feature flags of a unit. Those in its command have precedence over those in its environment."""
    values = [*unit.flag_values("--feature-flag"), *unit.flag_values("--feature-flags")]
    values = values or [unit.environment.get(_FEATURE_FLAGS_VARIABLE, "")]
    return [flag for value in values for flag in value.split(",") if flag]


class Link(t.NamedTuple):
    """A link that makes one unit start another. ``target`` is the file of the unit that is started."""

    path: str
    target: str


UNIT_DIR = "/etc/systemd/system"
# The name sorts after the drop-ins of packages and before override.conf, which systemctl edit writes.
DROP_IN = f"{UNIT_DIR}/{SERVICE}.d/50-gpufleet-nvidia.conf"
# The targets that start the service and the path unit. A start of any service also starts again what sysinit.target
# wants, because each service requires that target.
SERVICE_TARGET, PATH_TARGET = "basic.target", "multi-user.target"
# The links that enable the units of this collection.
OWN_LINKS = tuple(
    Link(f"{UNIT_DIR}/{target}.wants/{name}", f"{UNIT_DIR}/{name}")
    for name, target in ((OWN_SERVICE, SERVICE_TARGET), (OWN_PATH_UNIT, PATH_TARGET))
)
# All services are ordered after basic.target, except those of early boot: engines, units that Quadlet generates, the
# services of users. Local file systems are mounted and modules-load.d is done in sysinit.target. The driver's daemons
# start later: the service loads the modules and creates the nodes itself.
_EARLY = (
    ("DefaultDependencies", "no"),
    ("Conflicts", "shutdown.target"),
    ("After", "sysinit.target"),
    ("Before", "basic.target shutdown.target"),
)
# In seconds, for each command. A boot waits for the service, so a GPU that hangs must not block it.
_TIMEOUTS = (("TimeoutStartSec", "120"), ("TimeoutStopSec", "5"))
# In seconds, for all commands: a boot continues after this time, also if a process cannot be killed.
_BOOT_LIMIT = ("JobRunningTimeoutSec", "140")
# An installation of a driver changes the list of modules several times. A service that is started too often also makes
# its path unit fail, and then changes are no longer detected (systemd.path(5)).
_NO_START_LIMIT = ("StartLimitIntervalSec", "0")
_MODULES = ("modules.dep", "modules.dep.bin")
# The condition for a driver that is in a container. That container loads the kernel modules, and systemd skips the
# service until they are loaded.
NEEDS_LOADED_DRIVER = (("ConditionPathExists", "/proc/driver/nvidia/version"),)
_HEADER = "# Written by gpufleet.nvidia. What is changed here is overwritten.\n"
_HOMES = ("/home/", "/root/", "/run/user/")
# ProtectSystem=yes makes these read-only.
_SYSTEM = ("/usr/", "/boot/", "/efi/")
# The capabilities are those of the toolkit's service (1.18 to 1.20), and CAP_CHOWN: nvidia-modprobe removes a new node
# if it cannot change its group to that of the driver's parameters, which is "video" with the packages of Debian.
# Not set: PrivateDevices and ProtectClock, which deny devices; ProtectKernelModules; ProcSubset, which hides
# /proc/driver; ProtectKernelTunables and ProtectControlGroups, which with systemd 252 hide mounts on /proc that a host
# in a container has; MemoryDenyWriteExecute and SystemCallFilter, because the needs of the driver's libraries are not
# documented.
_SANDBOX = (
    ("CapabilityBoundingSet", "CAP_SYS_MODULE CAP_SYS_ADMIN CAP_MKNOD CAP_CHOWN"),
    ("NoNewPrivileges", "yes"),
    # All users may read the specification.
    ("UMask", "0022"),
    # nvidia-ctk before 1.19.1 mounts /tmp/nvidia-mps, which any user can create, into all containers.
    ("PrivateTmp", "yes"),
    ("PrivateNetwork", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX"),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("KeyringMode", "private"),
    ("SystemCallArchitectures", "native"),
)


# -- units -------------------------------------------------------------------------------------------------------------


def own_service(
    command: t.Sequence[str],
    output: str,
    *,
    before_engines: bool,
    conditions: Settings = (),
    settings: Settings = (),
    nodes: bool = False,
) -> bytes:
    """Return the service that runs ``command``, a command of nvidia-ctk that writes ``output``.

    The service is started at boot, by its path unit, or manually. It does not remain active, so each start generates
    the specification again. ``conditions`` are added to the section Unit, and ``settings`` to the section Service. With
    ``nodes``, the service first creates the driver's control devices.
    """
    program = command[0]
    create = [program, "system", "create-device-nodes", "--control-devices"]
    # Without modules that can be loaded, such as those of an updated driver, nodes of the loaded ones are created.
    commands = [[*create, "--load-kernel-modules"], create] if nodes else []
    return _text(
        (
            "Unit",
            [
                ("Description", "Make the CDI specification of NVIDIA GPUs (gpufleet.nvidia)"),
                _path_condition(program),
                *conditions,
                _NO_START_LIMIT,
                *((*_EARLY, _BOOT_LIMIT) if before_engines else ()),
            ],
        ),
        (
            "Service",
            [
                ("Type", "oneshot"),
                # nvidia-ctk searches PATH for programs of the driver, and some releases of systemd omit /sbin.
                ("Environment", f"PATH={':'.join(hostfs.SERVICE_PATH)}"),
                *settings,
                *(("ExecStartPre", f"-{_command_line(arguments)}") for arguments in commands),
                ("ExecStart", _command_line(command)),
                *_TIMEOUTS,
                *_SANDBOX,
                *_directories(command, output),
            ],
        ),
        ("Install", [("WantedBy", SERVICE_TARGET)]),
    )


def _directories(command: t.Iterable[str], output: str) -> Settings:
    """Return the settings for directories: the service may write to that of ``output`` only."""
    folder, paths = posixpath.dirname(output), [argument.partition("=")[2] or argument for argument in command]
    in_home = any(path.startswith(_HOMES) for path in paths)
    home = ("ProtectHome", "read-only" if in_home else "yes")
    # systemd creates these directories.
    for parent, setting in (("/etc/", "ConfigurationDirectory"), ("/run/", "RuntimeDirectory")):
        below = folder[len("/var") :] if folder.startswith("/var/run/") else folder
        # After a colon, systemd expects the name of a link.
        if below.startswith(parent) and ":" not in below:
            kept = [("RuntimeDirectoryPreserve", "yes")] if setting == "RuntimeDirectory" else []
            return [home, ("ProtectSystem", "strict"), (setting, _quoted(below[len(parent) :])), *kept]
    # nvidia-ctk creates another directory.
    settings = ((_HOMES, home), (_SYSTEM, ("ProtectSystem", "yes")))
    return [setting for protected, setting in settings if not f"{folder}/".startswith(protected)]


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
        ("Install", [("WantedBy", PATH_TARGET)]),
    )


def drop_in() -> bytes:
    """Return the drop-in that stops the toolkit's service while the service of this collection is installed.

    The toolkit's packages enable and start their service at each upgrade, and up to 1.19.1 it is in /etc, where it
    cannot be masked. A start of it by an upgrade, or by the manager of MIG devices, starts the service of this
    collection.
    """
    return _text(("Unit", [("ConditionPathExists", f"!{UNIT_DIR}/{OWN_SERVICE}"), ("Wants", OWN_SERVICE)]))


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


class RefreshPlan(t.NamedTuple):
    """The units of this collection that refresh the specification of a host, with the files and links to create.

    ``contents`` maps the paths of this collection's files to their contents. ``links`` are the missing links.
    ``output`` is the specification that the service writes. ``replaced`` is the specification that the toolkit's
    service has written elsewhere, which has to go, or None.
    """

    output: str
    contents: t.Mapping[str, bytes]
    links: tuple[Link, ...]
    replaced: str | None = None
    warnings: tuple[str, ...] = ()
