# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the host's requirements of a GPU container: driver, device nodes, toolkit, config.toml, CDI.

It starts no container and runs no command.
"""

from __future__ import annotations

import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import host_check
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import yaml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs


# The number of reasons that a message lists.
_TOLD = 3
_MAKE = "with gpufleet.nvidia.nvidia_cdi_spec"


class CdiCheck(t.NamedTuple):
    """The result of the CDI check: whether containers get GPUs, and the advice if they do not."""

    ok: bool
    detail: str
    advice: str = ""


def judge_folders(host: hostfs.HostFS, folders: t.Sequence[str]) -> CdiCheck:
    """Check the CDI specifications in ``folders`` as the engines read them; the last directory has precedence.

    Raises:
        MissingPackageError: A file needs PyYAML, which is not installed.
        HostError: As for check_size().
    """
    # The CDI library does not read a directory that is a symbolic link.
    real = [folder for folder in folders if not os.path.islink(host.real_path(folder, last=False))]
    paths = [path for folder in real for path in _paths(host, folder)]
    cdi_registry.check_size(host, paths)
    files = {path: _parsed(host, path) for path in paths}
    found = cdi_registry.resolve(files, real)
    start = cdi_schema.qualified_name(core_constants.GPU_KIND, "")
    used = dict.fromkeys(path for name, path in found.devices.items() if name.startswith(start))
    if not used:
        return _nothing(found, folders, start)
    driver = procfs.loaded_driver(host)
    version = driver.version if driver is not None else None
    for path in used:
        reasons, _missing = host_check.why_stale(cdi_validate.validate(files[path]).document, host, version)
        if reasons:
            advice = f"Make it anew {_MAKE}, or remove it if it is not needed."
            return CdiCheck(
                ok=False,
                detail=f"{path} does not fit this host. {' '.join(reason.message for reason in reasons[:_TOLD])}",
                advice=advice,
            )
    return CdiCheck(
        ok=True,
        detail=f"{core_text.listed(list(used))} {'describes' if len(used) == 1 else 'describe'}"
        f" {core_constants.GPU_KIND}.",
    )


def _nothing(found: cdi_registry.Resolution, folders: t.Sequence[str], start: str) -> CdiCheck:
    """Return the failed check for a host without CDI devices."""
    fewer = {name: paths for name, paths in found.unresolvable.items() if name.startswith(start)}
    # The kind of a file that cannot be read is unknown.
    faulty = tuple(file for file in found.files if file.errors and file.kind in ("", core_constants.GPU_KIND))
    said = found._replace(files=faulty, shadowed={}, unresolvable=fewer).warnings()
    if said:
        return CdiCheck(
            ok=False, detail=" ".join(said[:_TOLD]), advice=f"Make one that is valid {_MAKE}, and remove the others."
        )
    return CdiCheck(
        ok=False,
        detail=f"No specification in {' or '.join(folders)} describes {core_constants.GPU_KIND}.",
        advice=f"Make one {_MAKE}.",
    )


def _paths(host: hostfs.HostFS, folder: str) -> list[str]:
    paths = [f"{folder}/{name}" for name in host.readable_entries(folder) if name.endswith(cdi_registry.SUFFIXES)]
    return [path for path in paths if not os.path.isdir(host.real_path(path, last=False))]


def _parsed(host: hostfs.HostFS, path: str) -> t.Any:
    try:
        return yaml_document.parse(path, host.read(path) or b"")
    except errors.MissingPackageError:
        raise
    except errors.NvidiaError as error:
        return error


DRIVER, DEVICES, TOOLKIT, CONFIG, CDI = "driver", "device nodes", "toolkit", "config.toml", "CDI"

_GPUS = "/proc/driver/nvidia/gpus"
_HOOK, _CLI = "nvidia-container-runtime-hook", "nvidia-container-cli"
_CDI_PROGRAMS = ("nvidia-ctk", "nvidia-cdi-hook")
_SECTION = "nvidia-container-runtime"


class Check(t.NamedTuple):
    """The result of one check. ``ok`` is None if it could not be made; ``advice`` is for a failed check."""

    link: str
    ok: bool | None
    detail: str
    advice: str = ""


def passed(link: str, detail: str) -> Check:
    return Check(link, ok=True, detail=detail)


def failed(link: str, detail: str, advice: str = "") -> Check:
    return Check(link, ok=False, detail=detail, advice=advice)


def skipped(link: str, detail: str) -> Check:
    return Check(link, ok=None, detail=detail)


class GpuChecks:
    """The checks of one host for a runtime with the program ``program`` (None: unknown).

    ``runtime_dir`` is the directory of the toolkit's programs; None selects the directory of ``program``.
    """

    def __init__(self, host: hostfs.HostFS, runtime_name: str, program: str | None, runtime_dir: str | None) -> None:
        self._host = host
        self._name = runtime_name
        self._program = program
        found = posixpath.dirname(program) if program and program.startswith("/") else ""
        self._folder = runtime_dir or found or "/usr/bin"
        self._settings: dict[str, t.Any] | None = None

    def checks(self) -> list[Check]:
        """Return the results of all checks in their order. CDI is checked only if the runtime uses it."""
        looks = [self.driver, self.devices, self.toolkit, self.config]
        return [look() for look in looks] + ([self.cdi()] if self.way() == "cdi" else [])

    # -- the driver ----------------------------------------------------------------------------------------------

    def driver(self) -> Check:
        driver = procfs.loaded_driver(self._host)
        if driver is not None:
            return passed(DRIVER, f"The driver {driver.version or 'of unknown version'} is loaded.")
        if procfs.nvidia_devices(self._host) == {}:
            return failed(
                DRIVER,
                f"{procfs.VERSION_FILES[0]} is not there, and this host has no NVIDIA device on its PCI bus.",
                "Verify hosts without a GPU with level: engine.",
            )
        return failed(
            DRIVER,
            f"{procfs.VERSION_FILES[0]} is not there: no NVIDIA driver is loaded.",
            "Install NVIDIA's driver, load it with modprobe nvidia, and look at the kernel's log if that fails.",
        )

    def devices(self) -> Check:
        nodes = [node for node in device_nodes.NEEDED_NODES if not self._host.exists(node)]
        if nodes:
            return failed(
                DEVICES,
                f"{' and '.join(nodes)} {_is(nodes)} not there.",
                f"Run {device_nodes.CONTROL_NODES[nodes[-1]]}.",
            )
        gpus = len(self._host.readable_entries(_GPUS))
        there = [node for node in self._host.readable_entries("/dev") if re.match(r"nvidia[0-9]+\Z", node)]
        if not gpus:
            return failed(DEVICES, f"{_GPUS} has no entries: the driver has found no GPU.", "Look at the kernel's log.")
        if len(there) < gpus:
            return failed(
                DEVICES,
                f"The driver has found {gpus} GPUs, but of their nodes /dev/nvidia0 and so on {len(there)} are there.",
                "Run nvidia-smi as root, which makes them.",
            )
        return passed(DEVICES, f"The nodes of {gpus} {'GPU is' if gpus == 1 else 'GPUs are'} there.")

    # -- the toolkit ---------------------------------------------------------------------------------------------

    def toolkit(self) -> Check:
        program = self._program or f"{self._folder}/{core_constants.MAIN_PROGRAM}"
        missing = [] if self._host.find_executable([program]) else [program]
        legacy = [name for name in (_HOOK, _CLI) if not self._found(name)]
        modern = [] if any(self._found(name) for name in _CDI_PROGRAMS) else [" or ".join(_CDI_PROGRAMS)]
        way = self.way()
        # In mode auto, the toolkit's version decides between CDI and legacy.
        missing += self._behind_scripts()
        missing += {"legacy": legacy, "cdi": modern}.get(way, legacy + modern if legacy and modern else [])
        if missing:
            return failed(
                TOOLKIT,
                f"{', '.join(missing)} {_is(missing)} not there.",
                "Install the NVIDIA Container Toolkit (package nvidia-container-toolkit, or nvidia_toolkit_install with"
                " source: directory once more), or name its folder in runtime_dir.",
            )
        return passed(TOOLKIT, f"{program} is there, and what it needs.")

    def _behind_scripts(self) -> list[str]:
        """Return the missing programs of a directory install whose wrapper scripts are present."""
        if not self._host.exists(posixpath.join(self._folder, toolkit_constants.OWN_CONFIG_FILE)):
            return []
        names = (posixpath.basename(self._program or core_constants.MAIN_PROGRAM), _HOOK, _CLI)
        scripts = [f"{self._folder}/{name}" for name in names if self._host.exists(f"{self._folder}/{name}")]
        return [f"{path}.real" for path in scripts if not self._host.is_executable(f"{path}.real")]

    def _found(self, name: str) -> bool:
        return self._host.find_executable([f"{self._folder}/{name}", name]) is not None

    def way(self) -> str:
        """Return the runtime's mode: ``cdi``, ``legacy``, or ``auto`` if its version decides."""
        programs = {path: mode for mode, path in core_constants.MODE_PROGRAMS.items()}
        by_program = programs.get(posixpath.basename(self._program or ""))
        by_name = next((mode for mode, name in engines_base.MODE_NAMES.items() if name == self._name), None)
        if by_name is None and self._name.endswith("-cdi"):
            by_name = "cdi"
        mode = by_program or by_name or self._setting("mode")
        return mode if mode in ("cdi", "legacy") else "auto"

    # -- its configuration ---------------------------------------------------------------------------------------

    def config(self) -> Check:
        path = self._config_file()
        try:
            content = self._host.read(path)
            if content is None:
                return passed(CONFIG, f"{path} is not there, so that the toolkit's own settings apply.")
            self._parsed(path, content)
        except errors.ConfigurationError as error:
            place = f"{error.path}, line {error.line}" if error.line is not None else error.path
            return failed(
                CONFIG,
                f"{place}: {error.problem}.",
                "Correct the file, or make it anew with nvidia-ctk --quiet config --output FILE.",
            )
        except errors.HostError as error:
            return failed(CONFIG, str(error))
        except errors.NvidiaError as error:
            # This host has no TOML parser.
            return skipped(CONFIG, f"{path} was not judged. {error}")
        return passed(CONFIG, f"{path} is valid.")

    def _config_file(self) -> str:
        return toolkit_constants.config_file(self._host, self._folder)

    def _parsed(self, path: str, content: bytes) -> dict[str, t.Any]:
        # Only hosts that are checked need this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import (  # noqa: PLC0415
            toml_document,
        )

        return toml_document.TomlDocument.from_bytes(path, content).data

    def _setting(self, *names: str) -> t.Any:
        """Return a setting of the runtime from config.toml; None if it is not set or cannot be read."""
        if self._settings is None:
            path = self._config_file()
            try:
                self._settings = self._parsed(path, self._host.read(path) or b"")
            except errors.NvidiaError:
                self._settings = {}
        found: t.Any = self._settings
        for name in (_SECTION, *names):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    # -- CDI -----------------------------------------------------------------------------------------------------

    def cdi(self) -> Check:
        """Check the CDI specifications in the directories that the runtime reads.

        Raises:
            MissingPackageError: A specification needs a Python package that is not installed.
        """
        named = self._setting("modes", "cdi", "spec-dirs")
        folders = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        named = [folder.rstrip("/") for folder in folders if folder.startswith("/")]
        try:
            found = judge_folders(self._host, list(dict.fromkeys(named)) or list(core_constants.CDI_SPEC_DIRS))
        except errors.HostError as error:
            return failed(CDI, str(error))
        return Check(CDI, found.ok, found.detail, found.advice)


def _is(names: t.Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
