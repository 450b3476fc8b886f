# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the host's requirements of a GPU container: driver, device nodes, CDI. It runs no program."""

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


DRIVER, DEVICES, CDI = "driver", "device nodes", "CDI"

# The number of reasons that a message lists.
_LISTED = 3


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


def check_driver(host: hostfs.HostFS) -> Check:
    driver = procfs.loaded_driver(host)
    if driver is not None:
        return passed(DRIVER, f"The driver {driver.version or 'of unknown version'} is loaded.")
    if procfs.nvidia_devices(host) == {}:
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


def check_devices(host: hostfs.HostFS, driver_roots: t.Sequence[str]) -> Check:
    """Check the device nodes in ``driver_roots``, as dev_directory() searches them."""
    if procfs.has_other_nodes(host):
        detail = "The GPU of this host is part of a Tegra, whose device nodes cannot be checked."
        return failed(DEVICES, detail, f"Use {errors.option:level}: engine.")
    folder = device_nodes.dev_directory(host, driver_roots)
    missing = device_nodes.missing_in(folder, device_nodes.NEEDED_NODES, host)
    if missing:
        command = device_nodes.command_for_node(missing[-1])
        return failed(DEVICES, f"Missing device nodes: {', '.join(missing)}.", f"Run `{command}` as root.")
    try:
        gpus = procfs.read_gpus(host)
    except errors.NvidiaError as error:
        return skipped(DEVICES, f"The device nodes of the GPUs were not checked. {error}")
    if not gpus:
        detail = f"{procfs.GPUS} has no GPU, or only excluded ones: the driver has found no GPU that it uses."
        return failed(DEVICES, detail, "Read the kernel's log.")
    missing = device_nodes.missing_in(folder, [f"/dev/nvidia{gpu.minor}" for gpu in gpus], host)
    if missing:
        command = device_nodes.command_for_node(missing[-1])
        detail = f"The driver has found {len(gpus)} GPUs, but device nodes are missing: {core_text.listed(missing)}."
        return failed(DEVICES, detail, f"Run `{command}` as root, which creates them.")
    return passed(DEVICES, f"All device nodes exist. GPUs: {len(gpus)}.")


def uses_cdi(name: str, program: str | None, settings: runtime_settings.RuntimeSettings) -> bool:
    """Return whether the runtime ``name`` has the mode ``cdi``: by its program, its name, or config.toml."""
    by_name = next((mode for mode, known in engines_request.MODE_NAMES.items() if known == name), None)
    by_name = by_name or ("cdi" if name.endswith("-cdi") else None)
    return (runtime_settings.mode_of_program(program or "") or by_name or settings.mode) == "cdi"


def settings_of(host: hostfs.HostFS, program: str | None) -> runtime_settings.RuntimeSettings:
    """Return the settings in the config.toml of a runtime's ``program``; the defaults if it cannot be read."""
    program_dir = posixpath.dirname(program or "") or toolkit_installed.PROGRAM_DIR
    try:
        return runtime_settings.read(host, toolkit_constants.config_file(host, program_dir))
    except errors.NvidiaError:
        return runtime_settings.RuntimeSettings()


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
