# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the host's requirements of a GPU container: driver, device nodes, toolkit, config.toml, CDI.

It starts no container, and runs only nvidia-ctk, for its version.
"""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import compare as cdi_compare
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import registry as cdi_registry
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes, procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import runtime_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


DRIVER, DEVICES, TOOLKIT, CONFIG, CDI = "driver", "device nodes", "toolkit", "config.toml", "CDI"

# The number of reasons that a message lists.
_LISTED = 3
HOOK = runtime_settings.HOOK
_LEGACY_PROGRAMS = (HOOK, runtime_settings.CLI)
_JIT_CDI = "jit-cdi"
# A specification that is made for a container calls the program of nvidia-ctk.path (newAutomaticCDISpecModifier in
# internal/modifier/cdi.go, 1.18.0 to 1.20.0).
_PROGRAMS_OF_MODE = {"legacy": _LEGACY_PROGRAMS, _JIT_CDI: (runtime_settings.CTK,)}
_CDI_PROGRAMS = (runtime_settings.CTK, "nvidia-cdi-hook")


class Check(t.NamedTuple):
    """The result of one check. ``ok`` is None if it could not be made; ``advice`` is for a failed check."""

    name: str
    ok: bool | None
    detail: str
    advice: str = ""


def passed(name: str, detail: str) -> Check:
    return Check(name, ok=True, detail=detail)


def failed(name: str, detail: str, advice: str = "") -> Check:
    return Check(name, ok=False, detail=detail, advice=advice)


def skipped(name: str, detail: str) -> Check:
    return Check(name, ok=None, detail=detail)


def missing_programs(
    host: hostfs.HostFS, folder: str, mode: str, settings: runtime_settings.RuntimeSettings
) -> tuple[str, ...]:
    """Return the programs of the toolkit that its runtime needs in a mode and that the host lacks.

    The programs are searched where config.toml names them, else in ``folder`` and in PATH.
    """
    configured = settings.programs

    def is_found(name: str) -> bool:
        path = configured.get(name, "")
        return host.find_executable([path] if path.startswith("/") else [f"{folder}/{name}", path or name]) is not None

    if mode in _PROGRAMS_OF_MODE:
        return tuple(configured.get(name) or name for name in _PROGRAMS_OF_MODE[mode] if not is_found(name))
    return () if any(map(is_found, _CDI_PROGRAMS)) else (" or ".join(_CDI_PROGRAMS),)


class GpuChecks:
    """The checks of one host for a runtime with the program ``program`` (None: unknown).

    ``runtime_dir`` is the directory of the toolkit's programs; None selects the directory of ``program``. ``run`` runs
    nvidia-ctk for the version of the toolkit; with None, it counts as the newest.
    """

    def __init__(
        self,
        host: hostfs.HostFS,
        runtime_name: str,
        program: str | None,
        runtime_dir: str | None,
        run: core_plan.Runner | None = None,
    ) -> None:
        self._host = host
        self._name = runtime_name
        self._program = program
        program_dir = posixpath.dirname(program) if program and program.startswith("/") else ""
        self._runtime_dir = runtime_dir or program_dir or "/usr/bin"
        self._run = run
        self._settings: runtime_settings.RuntimeSettings | None = None

    def checks(self) -> list[Check]:
        """Return the results of all checks in their order. CDI is checked only if the runtime uses it."""
        is_cdi = self.mode() == "cdi"
        # A specification has paths of its own.
        devices = self.devices(device_nodes.DRIVER_ROOTS if is_cdi else ())
        results = [self.driver(), devices, self.toolkit(), self.config()]
        return [*results, self.cdi()] if is_cdi else results

    # -- the driver ----------------------------------------------------------------------------------------------

    def driver(self) -> Check:
        driver = procfs.loaded_driver(self._host)
        if driver is not None:
            return passed(DRIVER, f"The driver {driver.version or 'of unknown version'} is loaded.")
        if procfs.nvidia_devices(self._host) == {}:
            return failed(
                DRIVER,
                f"{procfs.VERSION_FILES[0]} does not exist, and this host has no NVIDIA device on its PCI bus.",
                f"Use {errors.option:level}: engine for hosts without a GPU.",
            )
        return failed(
            DRIVER,
            f"{procfs.VERSION_FILES[0]} does not exist: no NVIDIA driver is loaded.",
            "Install NVIDIA's driver, and load it with `modprobe nvidia`. If that fails, read the kernel's log.",
        )

    def devices(self, driver_roots: t.Sequence[str] = ()) -> Check:
        """Check the device nodes in ``driver_roots`` as dev_directory() does; by default in the root of config.toml."""
        if procfs.has_other_nodes(self._host):
            detail = "The GPU of this host is part of a Tegra, whose device nodes cannot be checked."
            return failed(DEVICES, detail, f"Use {errors.option:level}: engine.")
        folder = device_nodes.dev_directory(self._host, driver_roots or [self.settings().driver_root or "/"])
        missing = device_nodes.missing_in(folder, device_nodes.NEEDED_NODES, self._host)
        if missing:
            command = device_nodes.command_for_node(missing[-1])
            return failed(DEVICES, f"Missing device nodes: {', '.join(missing)}.", f"Run `{command}` as root.")
        try:
            gpus = procfs.read_gpus(self._host)
        except errors.NvidiaError as error:
            return skipped(DEVICES, f"The device nodes of the GPUs were not checked. {error}")
        if not gpus:
            detail = f"{procfs.GPUS} has no GPU, or only excluded ones: the driver has found no GPU that it uses."
            return failed(DEVICES, detail, "Read the kernel's log.")
        missing = device_nodes.missing_in(folder, [f"/dev/nvidia{gpu.minor}" for gpu in gpus], self._host)
        if missing:
            command = device_nodes.command_for_node(missing[-1])
            detail = (
                f"The driver has found {len(gpus)} GPUs, but device nodes are missing: {core_text.listed(missing)}."
            )
            return failed(DEVICES, detail, f"Run `{command}` as root, which creates them.")
        return passed(DEVICES, f"All device nodes exist. GPUs: {len(gpus)}.")

    # -- the toolkit ---------------------------------------------------------------------------------------------

    def toolkit(self) -> Check:
        program = self._program or f"{self._runtime_dir}/{core_constants.MAIN_PROGRAM}"
        missing = [] if self._host.find_executable([program]) else [program]
        missing += self._missing_real_programs()
        legacy, cdi, generated = (
            missing_programs(self._host, self._runtime_dir, mode, self.settings())
            for mode in ("legacy", "cdi", _JIT_CDI)
        )
        # In mode auto, the toolkit's version decides between generated specifications and legacy.
        auto = [*legacy, *generated] if legacy and generated else []
        missing += {"legacy": list(legacy), "cdi": list(cdi), "auto": auto}[self.mode()]
        if missing:
            return failed(
                TOOLKIT,
                f"Missing programs: {', '.join(missing)}.",
                "Install the NVIDIA Container Toolkit (package nvidia-container-toolkit, or nvidia_toolkit_install"
                f" with {errors.option:source}: directory), or set {errors.option:runtime_dir} to the directory of its"
                " programs.",
            )
        return passed(TOOLKIT, f"{program} and the programs that it needs exist.")

    def _missing_real_programs(self) -> list[str]:
        """Return the missing programs of a directory install whose wrapper scripts are present."""
        if not self._host.exists(posixpath.join(self._runtime_dir, toolkit_constants.OWN_CONFIG_FILE)):
            return []
        names = (posixpath.basename(self._program or core_constants.MAIN_PROGRAM), *_LEGACY_PROGRAMS)
        scripts = [f"{self._runtime_dir}/{name}" for name in names if self._host.exists(f"{self._runtime_dir}/{name}")]
        return [f"{path}.real" for path in scripts if not self._host.is_executable(f"{path}.real")]

    def mode(self) -> str:
        """Return the runtime's mode: ``cdi``, ``legacy``, or ``auto`` if its version decides."""
        by_program = runtime_settings.mode_of_program(self._program or "")
        by_name = next((mode for mode, name in engines_request.MODE_NAMES.items() if name == self._name), None)
        if by_name is None and self._name.endswith("-cdi"):
            by_name = "cdi"
        mode = by_program or by_name or self.settings().mode
        return mode if mode in ("cdi", "legacy") else "auto"

    # -- its configuration ---------------------------------------------------------------------------------------

    def config(self) -> Check:
        path = self._config_file()
        try:
            version = toolkit_installed.version_in(self._runtime_dir, self._host, self._run) if self._run else None
            settings = runtime_settings.read(self._host, path, version)
        except errors.ConfigurationError as error:
            line = f", line {error.line}" if error.line is not None else ""
            return failed(CONFIG, f"{error.path}{line}: {error.problem}.", runtime_settings.CORRECT_FILE)
        except errors.HostError as error:
            return failed(CONFIG, str(error))
        except errors.NvidiaError as error:
            # This host has no TOML parser.
            return skipped(CONFIG, f"{path} was not checked. {error}")
        if not self._host.exists(path):
            return passed(CONFIG, f"{path} does not exist, so the toolkit uses its defaults.")
        # A runtime with a mode of its own ignores the one in the file.
        has_mode = runtime_settings.mode_of_program(self._program or "") is not None
        invalid = settings.invalid or ("" if has_mode else settings.invalid_mode)
        if invalid:
            detail = f"NVIDIA's runtime starts no container with {path}: {invalid}."
            return failed(CONFIG, detail, runtime_settings.CORRECT_FILE)
        return passed(CONFIG, f"{path} is valid.")

    def _config_file(self) -> str:
        return toolkit_constants.config_file(self._host, self._runtime_dir)

    def settings(self) -> runtime_settings.RuntimeSettings:
        """Return the settings in config.toml; the defaults if it cannot be read."""
        if self._settings is None:
            try:
                self._settings = runtime_settings.read(self._host, self._config_file())
            except errors.NvidiaError:
                self._settings = runtime_settings.RuntimeSettings()
        return self._settings

    # -- CDI -----------------------------------------------------------------------------------------------------

    def cdi(self) -> Check:
        """Check the CDI specifications in the directories that the runtime reads.

        Raises:
            MissingPackageError: A specification needs a Python package that is not installed.
        """
        try:
            return check_cdi(self._host, self.settings().cdi_folders)
        except errors.HostError as error:
            return failed(CDI, str(error))


def check_cdi(host: hostfs.HostFS, directories: t.Sequence[str]) -> Check:
    """Check the CDI specifications in ``directories`` as engines read them; the last directory has precedence.

    Raises:
        MissingPackageError: A file needs PyYAML, which is not installed.
        HostError: As for check_size().
    """
    documents, resolution = read_specifications(host, directories)
    prefix = cdi_schema.qualified_name(core_constants.GPU_KIND, "")
    used = dict.fromkeys(path for name, path in resolution.devices.items() if name.startswith(prefix))
    if not used:
        return _no_devices(resolution, directories, prefix)
    driver = procfs.loaded_driver(host)
    version = driver.version if driver is not None else None
    for path in used:
        reasons, _missing = cdi_compare.stale_reasons(cdi_validate.validate(documents[path]).document, host, version)
        if reasons:
            return failed(
                CDI,
                f"{path} is stale. {' '.join(reason.message for reason in reasons[:_LISTED])}",
                "Create it again with nvidia_cdi_spec, or remove it if it is not needed.",
            )
    return passed(CDI, f"{core_constants.GPU_KIND} is described in {core_text.listed(list(used))}.")


def has_hooks(host: hostfs.HostFS, directories: t.Sequence[str], name: str) -> bool:
    """Return whether the specification of a CDI device runs a hook. Without the device, or if unknown, it may.

    Raises MissingPackageError as check_cdi().
    """
    try:
        documents, resolution = read_specifications(host, directories)
    except errors.MissingPackageError:
        raise
    except errors.HostError:
        return True
    path = resolution.devices.get(name)
    if path is None:
        return True
    document = cdi_validate.validate(documents[path]).document
    own = [device for device in document.get("devices", ()) if device.get("name") == name.partition("=")[2]]
    return any(part.get(cdi_schema.EDITS, {}).get("hooks") for part in [document, *own])


def read_specifications(
    host: hostfs.HostFS, directories: t.Sequence[str]
) -> tuple[dict[str, t.Any], cdi_registry.Resolution]:
    """Return the data of the files in ``directories``, or the error of reading them, and how engines combine them.

    Raises as check_cdi().
    """
    # The CDI library does not read a directory that is a symbolic link.
    real = [directory for directory in directories if not cdi_registry.is_link(host, directory)]
    paths = [path for directory in real for path in _spec_paths(host, directory)]
    cdi_registry.check_size(host, paths)
    known: dict[str, t.Any] = {}
    documents = {path: cdi_registry.read_specification(host, path, known) for path in paths}
    return documents, cdi_registry.resolve(documents, real)


def _no_devices(resolution: cdi_registry.Resolution, directories: t.Sequence[str], prefix: str) -> Check:
    """Return the failed check for a host without CDI devices."""
    unresolvable = {name: paths for name, paths in resolution.unresolvable.items() if name.startswith(prefix)}
    # The kind of a file that cannot be read is unknown.
    invalid = tuple(file for file in resolution.files if file.errors and file.kind in ("", core_constants.GPU_KIND))
    warnings = resolution._replace(files=invalid, shadowed={}, unresolvable=unresolvable).warnings()
    if warnings:
        advice = "Create a valid specification with nvidia_cdi_spec, and remove the others."
        return failed(CDI, " ".join(warnings[:_LISTED]), advice)
    return failed(
        CDI,
        f"No CDI specification in {' or '.join(directories) or 'no directory'} describes {core_constants.GPU_KIND}.",
        "Create one with nvidia_cdi_spec.",
    )


def _spec_paths(host: hostfs.HostFS, directory: str) -> list[str]:
    paths = [f"{directory}/{name}" for name in host.readable_entries(directory) if name.endswith(cdi_registry.SUFFIXES)]
    return [path for path in paths if not cdi_registry.is_directory(host, path)]
