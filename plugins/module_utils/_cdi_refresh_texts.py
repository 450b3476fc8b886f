# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the units of our own that keep a CDI specification fresh, and the drop-in that puts the
# toolkit's into place.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError

OWN_SERVICE, OWN_PATH = "gpufleet-nvidia-cdi.service", "gpufleet-nvidia-cdi.path"
UNITS = "/etc/systemd/system"
# Sorts behind what packages bring, and before what a person would add.
DROP_IN = "50-gpufleet-nvidia.conf"
WANTED_BY = "multi-user.target"

# What starts containers at boot.
ENGINES = (
    "docker.service",
    "containerd.service",
    "crio.service",
    "podman.service",
    "podman-restart.service",
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.docker.dockerd.service",
)
# The driver's own daemons, which complete the devices.  None of them comes after an engine, as their packages have
# them, so that no cycle arises; and none of them starts an engine and waits for it.  nvidia-mig-manager.service does:
# its hooks start kubelet from within, which would wait for us, and we for it, until both time out.  So nothing here
# comes after that one; as after any change of MIG devices, the specification is then made anew by whoever changed them.
_DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
_DEVICES = ("systemd-modules-load.service", *_DAEMONS)
# A unit that comes after one of these cannot come before an engine: they wait for the engines, and systemd breaks such
# a cycle by leaving one of its units out.
LATE = frozenset({"multi-user.target", "graphical.target", "default.target", *ENGINES})
# Seconds.  Engines wait for it, so that a GPU that hangs must not hold up the boot for ever.
_PATIENCE = 120
# The same for one that does not end when it is told to: systemd would give it 90.
_FAREWELL = 5
_LIMITS = (("TimeoutStartSec", str(_PATIENCE)), ("TimeoutStopSec", str(_FAREWELL)))
# Modules of the kernel come in bursts.  A service that is started too often makes its path unit fail too, and then
# nothing watches any more (systemd.path(5)).
_NO_START_LIMIT = ("StartLimitIntervalSec", "0")
_MODULES = ("modules.dep", "modules.dep.bin")
_WRITTEN_BY = "# Written by gpufleet.nvidia. What is changed here is overwritten.\n"
_SAFE = re.compile(r"/[A-Za-z0-9_./+-]*")


class Command(t.NamedTuple):
    """What a unit runs: its program first."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        # systemd reads a percent sign and a dollar sign in it (systemd.unit(5), systemd.service(5)).
        return " ".join(map(_quoted, self.words))


def own_service(command: Command, options_file: str, before_engines: bool) -> bytes:
    """The unit that makes the specification anew whenever it is started: at boot, by hand, and by its path unit.

    It does not remain active, so that each start does the work again.
    """
    head = _head("Make the CDI specification of NVIDIA GPUs")
    return _text(
        ("Unit", [*head, ("ConditionPathExists", options_file), _NO_START_LIMIT]),
        ("Unit", _order(before_engines)),
        ("Service", [("Type", "oneshot"), ("ExecStart", str(command)), *_LIMITS]),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def own_path() -> bytes:
    """The unit that starts the service when modules of the kernel come or go: depmod then writes these files."""
    watched = [("PathChanged", f"/lib/modules/%v/{name}") for name in _MODULES]
    return _text(
        ("Unit", _head("Make the CDI specification of NVIDIA GPUs after a change of the driver")),
        ("Path", watched),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def early_service(
    command: Command, program: str, smi: str, environment: t.Mapping[str, str], environment_file: str
) -> bytes:
    """A unit that does before the engines what the toolkit's own does too late for them.

    smi: nvidia-smi, which loads the driver and makes its devices; a host without a driver is none to fail on.
    """
    nodes = Command((program, "system", "create-device-nodes", "--control-devices", "--load-kernel-modules"))
    return _text(
        (
            "Unit",
            [
                *_head("Make the CDI specification of NVIDIA GPUs before engines start"),
                ("ConditionPathExists", program),
                ("ConditionPathExists", smi),
            ],
        ),
        ("Unit", _order(before_engines=True)),
        (
            "Service",
            [
                ("Type", "oneshot"),
                *(("Environment", _quoted(f"{name}={value}")) for name, value in environment.items()),
                ("EnvironmentFile", f"-{environment_file}"),
                ("ExecCondition", str(Command((smi, "-L")))),
                ("ExecStartPre", f"-{nodes}"),
                ("ExecStart", str(command)),
                *_LIMITS,
            ],
        ),
        ("Install", [("WantedBy", WANTED_BY)]),
    )


def order_drop_in() -> bytes:
    """What puts the toolkit's service before the engines, and has each start do the work again.

    While it remained active, neither its path unit nor anybody else could start it.
    """
    return _text(
        ("Unit", [("After", " ".join(_DAEMONS)), ("Before", " ".join(ENGINES))]),
        ("Service", [("RemainAfterExit", "no"), *_LIMITS]),
    )


def check_safe(parameter: str, path: str) -> None:
    """Raises GpufleetError for a path that a unit file would need quotes or escapes for."""
    if not _SAFE.fullmatch(path):
        raise GpufleetError(
            f"{parameter} {path!r}: units take only letters, digits and the signs . _ + - / in it. Name another folder."
        )


def _head(description: str) -> list[tuple[str, str]]:
    return [("Description", f"{description} (gpufleet.nvidia)")]


def _order(before_engines: bool) -> list[tuple[str, str]]:
    order = [("After", " ".join(_DEVICES))]
    return [*order, ("Before", " ".join(ENGINES))] if before_engines else order


def _text(*parts: tuple[str, list[tuple[str, str]]]) -> bytes:
    text, current = _WRITTEN_BY, ""
    for section, settings in parts:
        if section != current:
            text += f"\n[{section}]\n"
        text += "".join(f"{name}={value}\n" for name, value in settings)
        current = section
    return text.encode("utf-8")


def _quoted(word: str) -> str:
    """A word of a unit's command line or environment as systemd reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[^\s\"'\\;]+", word) else f'"{escaped}"'
