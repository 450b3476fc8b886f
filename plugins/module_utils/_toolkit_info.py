# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what a host has of the NVIDIA Container Toolkit, read without changing anything.

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, Problem, as_dicts
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_links import config_file
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu_presence import gpu_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._package_managers import manager_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import reboot_required
from ansible_collections.gpufleet.nvidia.plugins.module_utils._plan_writer import TOOLKIT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._repository_conflicts import conflicts, written
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import MAIN_PROGRAM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import (
    DIRECTORY,
    FORMER_PACKAGES,
    LATER_PROGRAMS,
    PACKAGES,
    PROGRAMS,
    VERSIONS_SUFFIX,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_containers import running
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_parts import (
    FOLDER,
    Program,
    differences,
    one_version,
    open_to,
    programs,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_settings import (
    REAL_LDCONFIG,
    effective,
    shown,
    unsafe,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_values import unfit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import Package, PackageManager
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_manifest import Manifest

_Found = t.TypeVar("_Found")


class _Installed(t.NamedTuple):
    """An installation of ours in a directory, as it is told; ``damaged`` are its names that are not what they were."""

    told: dict[str, t.Any]
    manifest: Manifest | None = None
    damaged: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        return self.manifest.version if self.manifest is not None else None

    def differences(self) -> list[str]:
        """What is wrong with it, in sentences."""
        path = self.told["path"]
        if self.manifest is None:
            return [f"{path} leads to {self.told['installed_path']}, which was not installed to its end."]
        return [f"{path}/{name} is missing, or not as it was installed." for name in self.damaged]


def describe_toolkit(host: HostRoot, run: Runner, directory: str = DIRECTORY) -> dict[str, t.Any]:
    """Everything about the toolkit on ``host``; a strange one gives problems in the answer, never an error.

    ``directory`` is where one may be that did not come from packages.  Raises GpufleetError if it is no absolute path.
    """
    return _Look(host, run, host.check_path("toolkit_dir", directory)).describe()


class _Look:
    """One look at a host, in which every part is told whatever cannot be read of the others."""

    def __init__(self, host: HostRoot, run: Runner, directory: str) -> None:
        self._host = host
        self._run = run
        self._directory = directory
        self._problems: list[Problem] = []

    def describe(self) -> dict[str, t.Any]:
        host, gpu = self._host, gpu_of(self._host)
        manager = self._try(lambda: manager_of(host, self._run), None)
        installed = self._installed(manager)
        versions = {name: package.version for name, package in installed.items() if name in PACKAGES}
        in_directory = self._try(self._in_directory, None)
        folder = self._folder(in_directory)
        in_use = in_directory if folder == self._directory else None
        found = programs(host, self._run, folder) if in_use is None else self._programs(in_use)
        vulnerabilities = open_to(versions, found)
        config_path = config_file(host, folder)
        recorded: list[str] = self._try(self._recorded, [])
        settings: dict[str, t.Any] = self._try(lambda: self._settings(config_path, bool(versions or found)), {})
        return {
            "gpu": {"present": gpu.present, "kind": gpu.kind, "evidence": gpu.evidence, "driver_version": gpu.driver},
            "package_manager": None if manager is None else manager.name,
            "gpg": host.find_executable(["gpg"]),
            "packages": {name: {"version": own.version, "held": own.held} for name, own in installed.items()},
            "programs": {name: program._asdict() for name, program in found.items()},
            "version": one_version(versions, found),
            "differences": self._differences(versions, found, folder, in_use),
            "open_cves": None if vulnerabilities is None else [entry._asdict() for entry in vulnerabilities],
            "directory": None if in_directory is None else in_directory.told,
            "config_path": config_path,
            "config_exists": host.exists(config_path),
            "settings": shown(settings),
            "unsafe_settings": unsafe(settings),
            "conflicting_sources": [] if manager is None else self._conflicting(manager.name),
            "recorded_files": recorded,
            "repository_files": written(host),
            "gpu_containers": running(host),
            "reboot_required": reboot_required(host, manager),
            "problems": as_dicts(dict.fromkeys(self._problems)),
        }

    def _try(self, look: t.Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return look()
        except GpufleetError as error:
            self._problems.append(Problem.of(error))
            return otherwise

    def _installed(self, manager: PackageManager | None) -> dict[str, Package]:
        if manager is None:
            return {}
        if not manager.readable:
            message = f"Only {manager.name} of a running host can tell which packages are installed."
            self._problems.append(Problem("packages-unreadable", message))
            return {}
        found: dict[str, Package] = self._try(lambda: manager.installed([*PACKAGES, *FORMER_PACKAGES]), {})
        half = [name for name, package in found.items() if not package.whole]
        if half:
            command = f" Run `dpkg --configure {' '.join(half)}` on the host." if manager.name == "apt" else ""
            message = f"An interrupted installation left these packages half installed: {', '.join(half)}.{command}"
            self._problems.append(Problem("package-half-installed", message))
        return found

    def _folder(self, in_directory: _Installed | None) -> str:
        """Where the toolkit's programs are, or would be."""
        names = [f"{FOLDER}/{MAIN_PROGRAM}", f"{self._directory}/{MAIN_PROGRAM}", MAIN_PROGRAM]
        main = self._host.find_executable(names)
        if main is not None:
            return posixpath.dirname(main)
        # An installation of ours may do without a runtime.
        return FOLDER if in_directory is None else self._directory

    def _in_directory(self) -> _Installed | None:
        """What nvidia_toolkit_install has put into the directory; None if that is nothing."""
        host, path = self._host, self._directory
        if not host.is_there(path + VERSIONS_SUFFIX):
            return None
        # Only hosts that have one pay for these.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_version_reading import (  # noqa: PLC0415
            VersionReader,
        )

        reader = VersionReader(host, path)
        name = reader.current()
        if name is None:
            return None
        manifest = reader.manifest(name)
        told = {"path": path, "installed_path": reader.path(name)}
        if manifest is None:
            return _Installed({**told, "previous_path": None, "components": None, "sources": []})
        previous = None if manifest.replaces is None else reader.path(manifest.replaces)
        more = {
            "previous_path": previous if previous is not None and host.exists(previous) else None,
            "components": None if manifest.components is None else list(manifest.components),
            "sources": sorted(manifest.sources),
        }
        return _Installed({**told, **more}, manifest, reader.damage(manifest, thorough=False).changed)

    def _programs(self, own: _Installed) -> dict[str, Program]:
        """The programs of such an installation, which are asked only if it does not say of which version they are."""
        folder = own.told["path"]
        if own.manifest is None or own.version is None:
            return programs(self._host, self._run, folder)
        names = [name for name in (*PROGRAMS, *LATER_PROGRAMS) if name in own.manifest.files]
        return {
            name: Program(f"{folder}/{name}", own.version)
            for name in names
            if self._host.is_executable(f"{folder}/{name}")
        }

    def _differences(
        self, versions: t.Mapping[str, str], found: t.Mapping[str, Program], folder: str, own: _Installed | None
    ) -> list[str]:
        if own is not None:
            return own.differences()
        # Where there is nothing of the toolkit, nothing of it is missing.
        return differences(versions, found, folder) if versions or found else []

    def _settings(self, path: str, has_toolkit: bool) -> dict[str, t.Any]:
        content = self._host.read(path)
        if content is None and not has_toolkit:
            return {}
        document = TomlDocument.from_bytes(path, content or b"")
        self._problems += (Problem("setting-invalid", message) for message in unfit(document))
        return effective(document.data, self._host.exists(REAL_LDCONFIG))

    def _recorded(self) -> list[str]:
        return [record.path for record in load_records(self._host, TOOLKIT) if record.engine == TOOLKIT]

    def _conflicting(self, family: str) -> list[dict[str, t.Any]]:
        found = conflicts(self._host, family)
        whole = [{"path": path, "line": None, "address": None} for path in found.files]
        return whole + [entry._asdict() for entry in found.mixed]
