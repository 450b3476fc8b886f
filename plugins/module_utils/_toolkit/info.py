# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the toolkit that is installed on a host. This reads only and changes nothing."""

from __future__ import annotations

import posixpath
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect as packages_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import versions as directory_versions

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest


_Value = t.TypeVar("_Value")
_NO_DIRS: t.Mapping[str, t.Sequence[str]] = types.MappingProxyType({})


def _run_nothing(_argv: t.Sequence[str]) -> tuple[int, str, str]:
    return 127, "", ""


class _DirectoryInstallation(t.NamedTuple):
    """A toolkit that nvidia_toolkit_install has installed in a directory.

    ``path`` is the link to the directory ``installed_path``. ``manifest`` is None if the installation is incomplete.
    ``changed_names`` are the files that are missing or differ from the manifest.
    """

    path: str
    installed_path: str
    manifest: toolkit_manifest.Manifest | None = None
    changed_names: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        return self.manifest.version if self.manifest is not None else None

    def integrity_problems(self) -> list[str]:
        """Return a message for each file that is missing or was modified."""
        if self.manifest is None:
            return [f"The installation in {self.installed_path}, to which {self.path} links, is incomplete."]
        return [f"{self.path}/{name} is missing or was modified." for name in self.changed_names]


def describe_toolkit(
    host: hostfs.HostFS,
    run: core_plan.Runner,
    directory: str = toolkit_constants.DIRECTORY,
    runtime_dirs: t.Mapping[str, t.Sequence[str]] = _NO_DIRS,
) -> dict[str, t.Any]:
    """Return the report of the toolkit on ``host``. Errors become problems in the report.

    ``directory`` is the path of an installation that does not come from packages. ``runtime_dirs`` are the directories
    from which engines run NVIDIA's runtimes, each with the names of these engines. Raises NvidiaError only if
    ``directory`` is invalid.
    """
    return _ToolkitReport(host, run, host.check_path("toolkit_dir", directory), runtime_dirs).describe()


class _ToolkitReport:
    """One scan of a host. A part that cannot be read becomes a problem, and the other parts are still reported."""

    def __init__(
        self,
        host: hostfs.HostFS,
        run: core_plan.Runner,
        directory: str,
        runtime_dirs: t.Mapping[str, t.Sequence[str]] = _NO_DIRS,
    ) -> None:
        self._host = host
        self._run = run
        self._directory = directory
        self._runtime_dirs = runtime_dirs
        self._problems: list[errors.Problem] = []

    def describe(self) -> dict[str, t.Any]:
        host, gpu = self._host, procfs.detect_gpu(self._host)
        manager = self._try(lambda: packages_detect.detect_package_manager(host, self._run), None)
        installed = self._installed(manager)
        versions = {name: package.version for name, package in installed.items() if name in packages_base.PACKAGES}
        in_directory = self._try(self._directory_installation, None)
        program_dir = self._program_dir(in_directory)
        in_use = in_directory if program_dir == self._directory else None
        programs = self._programs(program_dir, in_use)
        recorded: list[str] = self._try(self._recorded, [])
        others: list[dict[str, t.Any]] = self._try(lambda: self._other_toolkits(program_dir, in_directory), [])
        return {
            "gpu": {"present": gpu.present, "kind": gpu.kind, "message": gpu.message},
            "package_manager": None if manager is None else manager.name,
            "gpg": host.find_executable(["gpg"]),
            "packages": {
                name: {"version": package.version, "held": package.held} for name, package in installed.items()
            },
            **self._version_and_config(program_dir, versions, programs),
            "version_mismatches": self._version_mismatches(versions, programs, program_dir, in_use),
            "directory": None if in_directory is None else in_directory.installed_path,
            "other_toolkits": others,
            "conflicting_sources": [] if manager is None else self._conflicting(manager.repository),
            "recorded_files": recorded,
            "repository_files": packages_sources.own_files(host),
            "gpu_containers": gpu_containers.legacy_gpu_containers(host),
            "reboot_required": packages_base.reboot_required(host, manager),
            "problems": errors.as_dicts(dict.fromkeys(self._problems)),
        }

    def _try(self, read: t.Callable[[], _Value], default: _Value) -> _Value:
        try:
            return read()
        except errors.NvidiaError as error:
            self._problems.append(errors.Problem.of(error))
            return default

    def _installed(self, manager: packages_base.PackageManager | None) -> dict[str, packages_base.Package]:
        if manager is None:
            return {}
        if not manager.readable:
            message = (
                f"The installed packages are unknown, because {manager.name} cannot list those of an offline tree."
            )
            self._problems.append(errors.Problem("inspection-incomplete", message, "Inspect the running host instead."))
            return {}
        found: dict[str, packages_base.Package] = self._try(
            lambda: manager.installed([*packages_base.PACKAGES, *packages_base.REPLACED_PACKAGES]), {}
        )
        half = [name for name, package in found.items() if not package.complete]
        if half:
            command = manager.repair_command(half)
            advice = f"Run `{command}` on the host." if command else ""
            message = f"An interrupted installation left these packages half installed: {', '.join(half)}."
            self._problems.append(errors.Problem("toolkit-inconsistent", message, advice))
        return found

    def _program_dir(self, in_directory: _DirectoryInstallation | None) -> str:
        """Return the directory of the toolkit's programs, or the one in which they would be installed."""
        names = [
            f"{toolkit_installed.PROGRAM_DIR}/{core_constants.MAIN_PROGRAM}",
            f"{self._directory}/{core_constants.MAIN_PROGRAM}",
            core_constants.MAIN_PROGRAM,
        ]
        main = self._host.find_executable(names)
        if main is not None:
            return posixpath.dirname(main)
        # An installation in a directory need not include nvidia-container-runtime.
        return toolkit_installed.PROGRAM_DIR if in_directory is None else self._directory

    def _other_toolkits(self, program_dir: str, in_directory: _DirectoryInstallation | None) -> list[dict[str, t.Any]]:
        """Return the report of each toolkit outside ``program_dir`` from which an engine runs NVIDIA's runtimes."""
        host, found = self._host, []
        config_path = toolkit_constants.config_file(host, program_dir)
        for folder, engines in self._runtime_dirs.items():
            if self._real_folders(folder) == {host.resolve(program_dir)}:
                continue
            # It has problems of its own.
            other = _ToolkitReport(host, self._run, self._directory).describe_other(folder, in_directory)
            if other["config_path"] == config_path:
                # The report of the host has the problems of this file.
                other.update(unsafe_settings=[], problems=[])
            found.append({"path": folder, "engines": list(engines), **other})
        return found

    def _real_folders(self, folder: str) -> set[str]:
        """Return the directories of the programs to which NVIDIA's runtimes in ``folder`` link."""
        paths = [f"{folder}/{name}" for name in toolkit_constants.RUNTIMES]
        found = {posixpath.dirname(self._host.resolve(path)) for path in paths if self._host.is_executable(path)}
        return found or {self._host.resolve(folder)}

    def describe_other(self, folder: str, in_directory: _DirectoryInstallation | None) -> dict[str, t.Any]:
        """Return the fields about the toolkit in ``folder``, a directory that the configuration of an engine names."""
        if not trusted_paths.is_trusted_folder(self._host, folder):
            # Another user, such as that of a rootless engine, can replace the programs.
            self._run = _run_nothing
        found = self._programs(folder, in_directory if folder == self._directory else None)
        programs = {name: one for name, one in found.items() if posixpath.dirname(one.path) == folder}
        fields = self._version_and_config(folder, {}, programs)
        return {**fields, "problems": errors.as_dicts(dict.fromkeys(self._problems))}

    def _programs(
        self, folder: str, installation: _DirectoryInstallation | None
    ) -> dict[str, toolkit_installed.Program]:
        """Return the programs in ``folder``. ``installation`` is the one there, None for packages and other tools."""
        if installation is None:
            return toolkit_installed.programs(self._host, self._run, folder)
        return self._directory_programs(installation)

    def _version_and_config(
        self, folder: str, packages: t.Mapping[str, str], programs: t.Mapping[str, toolkit_installed.Program]
    ) -> dict[str, t.Any]:
        """Return the fields about the version of ``programs`` in ``folder``, and about the config.toml they read."""
        version = toolkit_installed.single_version(packages, programs)
        vulnerabilities = toolkit_installed.affecting_cves(packages, programs)
        return {
            "programs": {name: program._asdict() for name, program in programs.items()},
            "version": version,
            "known_cves": None if vulnerabilities is None else [entry._asdict() for entry in vulnerabilities],
            **self._config(folder, version, has_toolkit=bool(packages or programs)),
        }

    def _directory_installation(self) -> _DirectoryInstallation | None:
        """Return the toolkit that nvidia_toolkit_install has installed in the directory, or None."""
        host, path = self._host, self._directory
        if not host.lexists(path + toolkit_constants.VERSIONS_SUFFIX):
            return None

        reader = directory_versions.VersionReader(host, path)
        name = reader.current()
        if name is None:
            return None
        manifest = reader.manifest(name)
        changed = () if manifest is None else reader.check_integrity(manifest, thorough=False).changed
        return _DirectoryInstallation(path, reader.path(name), manifest, changed)

    def _directory_programs(self, installation: _DirectoryInstallation) -> dict[str, toolkit_installed.Program]:
        """Return the programs of ``installation``. They are run only if its manifest has no version."""
        folder = installation.path
        if installation.manifest is None or installation.version is None:
            return toolkit_installed.programs(self._host, self._run, folder)
        return {
            name: toolkit_installed.Program(f"{folder}/{name}", installation.version)
            for name in toolkit_constants.ALL_PROGRAMS
            if name in installation.manifest.files and self._host.is_executable(f"{folder}/{name}")
        }

    def _version_mismatches(
        self,
        versions: t.Mapping[str, str],
        programs: t.Mapping[str, toolkit_installed.Program],
        program_dir: str,
        installation: _DirectoryInstallation | None,
    ) -> list[str]:
        if installation is not None:
            return installation.integrity_problems()
        # Nothing is missing on a host without the toolkit.
        if not versions and not programs:
            return []
        required = toolkit_installed.package_set(versions)
        return toolkit_installed.version_mismatches(versions, programs, program_dir, required)

    def _config(self, folder: str, version: str | None, has_toolkit: bool) -> dict[str, t.Any]:
        """Return the fields about the config.toml that the programs in ``folder`` read."""
        path = toolkit_constants.config_file(self._host, folder)
        fields = {"config_path": path, "settings": {}, "unsafe_settings": []}
        return {**fields, **self._try(lambda: self._settings(path, version, has_toolkit), {})}

    def _settings(self, path: str, version: str | None, has_toolkit: bool) -> dict[str, t.Any]:
        content = self._host.read(path)
        if content is None and not has_toolkit:
            return {}
        document = toml_document.TomlDocument.from_bytes(path, content or b"")
        self._problems += map(errors.Problem.of, toolkit_settings.invalid_values(document, version))
        settings = toolkit_settings.effective(document.data, toolkit_settings.host_defaults(self._host))
        refused = toolkit_settings.refused_values(document.data, version)
        unsafe = toolkit_settings.unsafe_settings(settings, refused, self._host.is_system_container())
        return {"settings": toolkit_settings.masked(settings), "unsafe_settings": unsafe}

    def _recorded(self) -> list[str]:
        return [
            record.path
            for record in core_records.load_records(self._host, core_records.TOOLKIT)
            if record.engine == core_records.TOOLKIT
        ]

    def _conflicting(self, repository: packages_base.Repository) -> list[dict[str, t.Any]]:
        found = packages_sources.conflicts(self._host, repository)
        whole = [{"path": path, "line": None, "address": None} for path in found.files]
        return whole + [entry._asdict() for entry in found.mixed]
