# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the program that makes a CDI specification anew without Ansible: at boot, after a change
# of the driver, and whenever its unit is started.

from __future__ import annotations

import sys
import time
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_commands import (
    ENVIRONMENT,
    NOT_ENDED,
    TIMEOUT,
    run_pinned,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_options import (
    OPTIONS_FILE,
    options_from_json,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_specification import CdiSpecification
from ansible_collections.gpufleet.nvidia.plugins.module_utils._device_nodes import make_nodes, missing_nodes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import gpu_of, loaded_driver
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner

# Modes whose devices are the driver's.
_DRIVER_MODES = (AUTO, "nvml", "management", "imex")
# Seconds since the kernel's start during which what is missing may still come, and how long to wait for it.
_BOOTING = 300.0
PATIENCE = 45.0
_PAUSE = 2.0
# Seconds for all commands together, so that there is a sentence on what went wrong before systemd ends the unit; and
# for one that only wakes the driver.
BUDGET, WAKING = 105.0, 20.0
_LAST_CHANCE = 1.0
_MODULES = "/lib/modules"
_MODULE = ("/nvidia.ko", "/nvidia-current.ko")
# What loads the driver's modules and makes its devices, the capabilities of MIG among them.
_WAKERS = (("nvidia-smi", "-L"), ("nvidia-modprobe", "-c", "0"), ("nvidia-modprobe", "-u", "-c", "0"))


class NothingToDo(Exception):  # noqa: N818 - it is no error
    """The host has no GPU, or no driver: a sentence that says so."""


class Commands:
    """Runs commands for ``seconds`` at most, from now on; what is begun later ends at once."""

    def __init__(self, seconds: float = BUDGET) -> None:
        self._end = time.monotonic() + seconds

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        return self.run_pinned(argv, ENVIRONMENT)

    def wake(self, argv: list[str]) -> tuple[int, str, str]:
        return self.run_pinned(argv, ENVIRONMENT, WAKING)

    def run_pinned(
        self, argv: list[str], environment: t.Mapping[str, str], limit: float = TIMEOUT
    ) -> tuple[int, str, str]:
        left = max(self._end - time.monotonic(), _LAST_CHANCE)
        return run_pinned(argv, environment, min(limit, left))


class Refresh:
    """One attempt to make the specification of ``options`` on ``host``, and those that follow it while it boots."""

    def __init__(self, options: CdiOptions, host: HostRoot, command: Runner | None = None) -> None:
        self._options = options
        self._host = host
        self._commands = Commands()
        self._run = command or self._commands.run
        self._wake = command or self._commands.wake
        # One try outside of the boot: whoever starts the unit then waits for an answer.
        self._deadline = time.monotonic() + (PATIENCE if self._uptime() < _BOOTING else 0.0)

    def execute(self) -> str:
        """What was done, in a sentence.  Raises GpufleetError, and NothingToDo."""
        while True:
            try:
                if self._options.mode in _DRIVER_MODES:
                    self._prepare()
                return self._make()
            except HostError:
                # What comes with time is missing, perhaps: a device, a module, a socket.
                if time.monotonic() + _PAUSE > self._deadline:
                    raise
            time.sleep(_PAUSE)

    def _prepare(self) -> None:
        """Have the driver and its devices there; raises NothingToDo on a host without, and HostError."""
        host = self._host
        if gpu_of(host).present is False:
            raise NothingToDo("This host has no GPU of NVIDIA, so no CDI specification was made.")
        if loaded_driver(host) is None and not self._is_installed() and not self._is_foreign():
            raise NothingToDo("No driver of NVIDIA is installed for this kernel, so no CDI specification was made.")
        for words in _WAKERS:
            program = host.find_executable(words[:1])
            if program is not None:
                status, _output, _errors = self._wake(host.argv([program, *words[1:]]))
                if status == NOT_ENDED:
                    # The driver hangs, and what is next would too.
                    break
        if loaded_driver(host) is not None:
            nodes, _doubts = missing_nodes(host, self._options.request.driver_root)
            make_nodes(host, nodes)

    def _make(self) -> str:
        specification = CdiSpecification(self._options, self._host, self._run, self._commands.run_pinned)
        result = specification.execute(check_mode=False)
        for warning in result["warnings"]:
            sys.stdout.write(f"{warning}\n")
        if not result["changed"]:
            return f"{result['path']} is fresh."
        return f"{result['path']} was written: {' '.join(result['reasons']) or 'others were in its way.'}"

    def _is_installed(self) -> bool:
        """Whether the running kernel has a module of the driver."""
        release = self._host.read_text("/proc/sys/kernel/osrelease").strip()
        listed = self._host.read_text(f"{_MODULES}/{release}/modules.dep")
        return any(name in listed for name in _MODULE)

    def _is_foreign(self) -> bool:
        """Whether the GPU is one whose driver is no module of that name: Tegra's, or Windows'."""
        return not gpu_of(self._host).evidence.startswith("/sys/bus/pci")

    def _uptime(self) -> float:
        try:
            return float(self._host.read_text("/proc/uptime").split()[0])
        except (IndexError, ValueError):
            return 0.0


def main(arguments: t.Sequence[str]) -> int:
    """The exit status; what was done goes to standard output, an error in one line to standard error."""
    path = arguments[0] if arguments else OPTIONS_FILE
    host = HostRoot("/", live=True)
    try:
        content = host.read(path)
        if content is None:
            raise HostError(f"{path} is not there. Run nvidia_cdi_refresh again, which writes it.")
        sys.stdout.write(f"{Refresh(options_from_json(path, content), host).execute()}\n")
    except NothingToDo as nothing:
        sys.stdout.write(f"{nothing}\n")
    except (GpufleetError, OSError, RecursionError, ValueError) as error:
        # The journal is no place for a traceback, whatever a damaged file or a dying disk comes up with.
        words = " ".join(str(error).split()) or "It failed"
        if not isinstance(error, GpufleetError):
            words = f"No CDI specification was made: {words.rstrip('.')} ({error.__class__.__name__})."
        sys.stderr.write(f"{words}\n")
        return 1
    return 0
