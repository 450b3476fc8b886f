# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a container with a GPU needs of its host beside an engine, read without running
# anything: the driver, its devices, the toolkit and its configuration, and a CDI specification.

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import (
    ConfigurationError,
    GpufleetError,
    HostError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import (
    CONTROL_NODES,
    NEEDED_NODES,
    VERSION_FILES,
    loaded_driver,
    nvidia_devices,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import (
    MAIN_PROGRAM,
    MODE_NAMES,
    MODE_PROGRAMS,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import (
    CONFIG_FILE,
    OWN_CONFIG_FILE,
    SPECIFICATION_FOLDERS,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

DRIVER, DEVICES, TOOLKIT, CONFIG, CDI = "driver", "device nodes", "toolkit", "config.toml", "CDI"

_GPUS = "/proc/driver/nvidia/gpus"
_HOOK, _CLI = "nvidia-container-runtime-hook", "nvidia-container-cli"
_CDI_PROGRAMS = ("nvidia-ctk", "nvidia-cdi-hook")
_SECTION = "nvidia-container-runtime"


class Check(t.NamedTuple):
    """What was found of one link; ``ok`` is None where it could not be judged, ``advice`` is for a broken one."""

    link: str
    ok: bool | None
    detail: str
    advice: str = ""


def holds(link: str, detail: str) -> Check:
    return Check(link, ok=True, detail=detail)


def breaks(link: str, detail: str, advice: str = "") -> Check:
    return Check(link, ok=False, detail=detail, advice=advice)


def unjudged(link: str, detail: str) -> Check:
    return Check(link, ok=None, detail=detail)


def config_file(host: HostRoot, folder: str) -> str:
    """The config.toml of the programs in ``folder``: their own, if they were installed into a folder of their own."""
    own = posixpath.join(folder, OWN_CONFIG_FILE)
    return own if host.exists(own) else CONFIG_FILE


class GpuLinks:
    """These links of one host, for a runtime with the program ``program`` (None: unknown).

    ``runtime_dir`` is where the toolkit's programs are, None for the folder of that program.
    """

    def __init__(self, host: HostRoot, runtime_name: str, program: str | None, runtime_dir: str | None) -> None:
        self._host = host
        self._name = runtime_name
        self._program = program
        found = posixpath.dirname(program) if program and program.startswith("/") else ""
        self._folder = runtime_dir or found or "/usr/bin"
        self._settings: dict[str, t.Any] | None = None

    def checks(self) -> list[Check]:
        """All that these links are, in the order of the chain; CDI only where it is the way in."""
        looks = [self.driver, self.devices, self.toolkit, self.config]
        return [look() for look in looks] + ([self.cdi()] if self.way() == "cdi" else [])

    # -- the driver ----------------------------------------------------------------------------------------------

    def driver(self) -> Check:
        driver = loaded_driver(self._host)
        if driver is not None:
            return holds(DRIVER, f"The driver {driver.version or 'of unknown version'} is loaded.")
        if nvidia_devices(self._host) == {}:
            return breaks(
                DRIVER,
                f"{VERSION_FILES[0]} is not there, and this host has no NVIDIA device on its PCI bus.",
                "Verify hosts without a GPU with level: engine.",
            )
        return breaks(
            DRIVER,
            f"{VERSION_FILES[0]} is not there: no NVIDIA driver is loaded.",
            "Install NVIDIA's driver, load it with modprobe nvidia, and look at the kernel's log if that fails.",
        )

    def devices(self) -> Check:
        nodes = [node for node in NEEDED_NODES if not self._host.exists(node)]
        if nodes:
            return breaks(DEVICES, f"{' and '.join(nodes)} {_is(nodes)} not there.", f"Run {CONTROL_NODES[nodes[-1]]}.")
        gpus = len(self._host.readable_entries(_GPUS))
        there = [node for node in self._host.readable_entries("/dev") if re.match(r"nvidia[0-9]+\Z", node)]
        if not gpus:
            return breaks(DEVICES, f"{_GPUS} has no entries: the driver has found no GPU.", "Look at the kernel's log.")
        if len(there) < gpus:
            return breaks(
                DEVICES,
                f"The driver has found {gpus} GPUs, but of their nodes /dev/nvidia0 and so on {len(there)} are there.",
                "Run nvidia-smi as root, which makes them.",
            )
        return holds(DEVICES, f"The nodes of {gpus} {'GPU is' if gpus == 1 else 'GPUs are'} there.")

    # -- the toolkit ---------------------------------------------------------------------------------------------

    def toolkit(self) -> Check:
        program = self._program or f"{self._folder}/{MAIN_PROGRAM}"
        missing = [] if self._host.find_executable([program]) else [program]
        legacy = [name for name in (_HOOK, _CLI) if not self._found(name)]
        modern = [] if any(self._found(name) for name in _CDI_PROGRAMS) else [" or ".join(_CDI_PROGRAMS)]
        way = self.way()
        # Which of the two ways the runtime takes by itself depends on its version.
        missing += self._behind_scripts()
        missing += {"legacy": legacy, "cdi": modern}.get(way, legacy + modern if legacy and modern else [])
        if missing:
            return breaks(
                TOOLKIT,
                f"{', '.join(missing)} {_is(missing)} not there.",
                "Install the NVIDIA Container Toolkit (package nvidia-container-toolkit, or nvidia_toolkit_install with"
                " source: directory once more), or name its folder in runtime_dir.",
            )
        return holds(TOOLKIT, f"{program} is there, and what it needs.")

    def _behind_scripts(self) -> list[str]:
        """Programs that are not there, though the scripts in front of them are, in a directory of their own."""
        if not self._host.exists(posixpath.join(self._folder, OWN_CONFIG_FILE)):
            return []
        names = (posixpath.basename(self._program or MAIN_PROGRAM), _HOOK, _CLI)
        scripts = [f"{self._folder}/{name}" for name in names if self._host.exists(f"{self._folder}/{name}")]
        return [f"{path}.real" for path in scripts if not self._host.is_executable(f"{path}.real")]

    def _found(self, name: str) -> bool:
        return self._host.find_executable([f"{self._folder}/{name}", name]) is not None

    def way(self) -> str:
        """How the runtime puts GPUs into containers: ``cdi``, ``legacy``, or as its version decides (``auto``)."""
        programs = {path: mode for mode, path in MODE_PROGRAMS.items()}
        by_program = programs.get(posixpath.basename(self._program or ""))
        by_name = next((mode for mode, name in MODE_NAMES.items() if name == self._name), None)
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
                return holds(CONFIG, f"{path} is not there, so that the toolkit's own settings apply.")
            self._parsed(path, content)
        except ConfigurationError as error:
            place = f"{error.path}, line {error.line}" if error.line is not None else error.path
            return breaks(
                CONFIG,
                f"{place}: {error.problem}.",
                "Correct the file, or make it anew with nvidia-ctk --quiet config --output FILE.",
            )
        except HostError as error:
            return breaks(CONFIG, str(error))
        except GpufleetError as error:
            # Nothing on this host can read TOML.
            return unjudged(CONFIG, f"{path} was not judged. {error}")
        return holds(CONFIG, f"{path} is valid.")

    def _config_file(self) -> str:
        return config_file(self._host, self._folder)

    def _parsed(self, path: str, content: bytes) -> dict[str, t.Any]:
        # Only a host on which these links are looked at pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import (  # noqa: PLC0415
            TomlDocument,
        )

        return TomlDocument.from_bytes(path, content).data

    def _setting(self, *names: str) -> t.Any:
        """What config.toml says of the runtime, None where it says nothing or cannot be read."""
        if self._settings is None:
            path = self._config_file()
            try:
                self._settings = self._parsed(path, self._host.read(path) or b"")
            except GpufleetError:
                self._settings = {}
        found: t.Any = self._settings
        for name in (_SECTION, *names):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    # -- CDI -----------------------------------------------------------------------------------------------------

    def cdi(self) -> Check:
        """Raises MissingPackageError where a specification cannot be read without a package that is not there."""
        named = self._setting("modes", "cdi", "spec-dirs")
        folders = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        # Only where CDI is the way in need anybody wait for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_link import judge_folders  # noqa: PLC0415

        named = [folder.rstrip("/") for folder in folders if folder.startswith("/")]
        try:
            found = judge_folders(self._host, list(dict.fromkeys(named)) or list(SPECIFICATION_FOLDERS))
        except HostError as error:
            return breaks(CDI, str(error))
        return Check(CDI, found.ok, found.detail, found.advice)


def _is(names: t.Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
