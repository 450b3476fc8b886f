# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the toolkit that is installed on a host. This reads only and changes nothing."""

from __future__ import annotations

import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import procfs
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import detect as packages_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import sources as packages_sources
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import settings as toolkit_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import manifest as toolkit_manifest


_Value = t.TypeVar("_Value")


class _Installed(t.NamedTuple):
    """An installation of this collection in a directory.

    ``fields`` are the fields of the result. ``changed_names`` are the names that differ from the manifest.
    """

    fields: dict[str, t.Any]
    manifest: toolkit_manifest.Manifest | None = None
    changed_names: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        return self.manifest.version if self.manifest is not None else None

    def version_mismatches(self) -> list[str]:
        """Return a message for each problem of the installation."""
        path = self.fields["path"]
        if self.manifest is None:
            return [f"{path} is a link to {self.fields['installed_path']}, whose installation is incomplete."]
        return [f"{path}/{name} is missing or was modified." for name in self.changed_names]


def describe_toolkit(
    host: hostfs.HostFS, run: core_plan.Runner, directory: str = toolkit_constants.DIRECTORY
) -> dict[str, t.Any]:
    """Return everything about the toolkit on ``host``. A problem with the toolkit is reported in the result.

    ``directory`` is the path of an installation that does not come from packages. Raises NvidiaError only if this is
    not an absolute path.
    """
    return _ToolkitReport(host, run, host.check_path("toolkit_dir", directory)).describe()


class _ToolkitReport:
    """One scan of a host. A part that cannot be read becomes a problem, and the other parts are still reported."""

    def __init__(self, host: hostfs.HostFS, run: core_plan.Runner, directory: str) -> None:
        self._host = host
        self._run = run
        self._directory = directory
        self._problems: list[errors.Problem] = []

    def describe(self) -> dict[str, t.Any]:
        host, gpu = self._host, procfs.detect_gpu(self._host)
        manager = self._try(lambda: packages_detect.detect_package_manager(host, self._run), None)
        installed = self._installed(manager)
        versions = {name: package.version for name, package in installed.items() if name in packages_base.PACKAGES}
        in_directory = self._try(self._in_directory, None)
        folder = self._folder(in_directory)
        in_use = in_directory if folder == self._directory else None
        found = toolkit_installed.programs(host, self._run, folder) if in_use is None else self._programs(in_use)
        vulnerabilities = toolkit_installed.affecting_cves(versions, found)
        config_path = toolkit_constants.config_file(host, folder)
        recorded: list[str] = self._try(self._recorded, [])
        settings: dict[str, t.Any] = self._try(lambda: self._settings(config_path, bool(versions or found)), {})
        return {
            "gpu": {"present": gpu.present, "kind": gpu.kind, "evidence": gpu.evidence, "driver_version": gpu.driver},
            "package_manager": None if manager is None else manager.name,
            "gpg": host.find_executable(["gpg"]),
            "packages": {name: {"version": own.version, "held": own.held} for name, own in installed.items()},
            "programs": {name: program._asdict() for name, program in found.items()},
            "version": toolkit_installed.single_version(versions, found),
            "version_mismatches": self._version_mismatches(versions, found, folder, in_use),
            "known_cves": None if vulnerabilities is None else [entry._asdict() for entry in vulnerabilities],
            "directory": None if in_directory is None else in_directory.fields,
            "config_path": config_path,
            "config_exists": host.exists(config_path),
            "settings": toolkit_settings.masked(settings),
            "unsafe_settings": toolkit_settings.unsafe_settings(settings),
            "conflicting_sources": [] if manager is None else self._conflicting(manager.name),
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
            self._problems.append(errors.Problem("packages-unreadable", message))
            return {}
        found: dict[str, packages_base.Package] = self._try(
            lambda: manager.installed([*packages_base.PACKAGES, *packages_base.REPLACED_PACKAGES]), {}
        )
        half = [name for name, package in found.items() if not package.complete]
        if half:
            command = f" Run `dpkg --configure {' '.join(half)}` on the host." if manager.name == "apt" else ""
            message = f"An interrupted installation left these packages half installed: {', '.join(half)}.{command}"
            self._problems.append(errors.Problem("package-half-installed", message))
        return found

    def _folder(self, in_directory: _Installed | None) -> str:
        """Return the directory of the toolkit's programs, or where they would be installed."""
        names = [
            f"{toolkit_installed.FOLDER}/{core_constants.MAIN_PROGRAM}",
            f"{self._directory}/{core_constants.MAIN_PROGRAM}",
            core_constants.MAIN_PROGRAM,
        ]
        main = self._host.find_executable(names)
        if main is not None:
            return posixpath.dirname(main)
        # An installation in a directory may lack a runtime.
        return toolkit_installed.FOLDER if in_directory is None else self._directory

    def _in_directory(self) -> _Installed | None:
        """Return the installation of nvidia_toolkit_install in the directory, or None."""
        host, path = self._host, self._directory
        if not host.lexists(path + toolkit_constants.VERSIONS_SUFFIX):
            return None
        # Only hosts with such an installation need this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import (  # noqa: PLC0415
            directory_versions,
        )

        reader = directory_versions.VersionReader(host, path)
        name = reader.current()
        if name is None:
            return None
        manifest = reader.manifest(name)
        fields = {"path": path, "installed_path": reader.path(name)}
        if manifest is None:
            return _Installed({**fields, "previous_path": None, "components": None, "sources": []})
        previous = None if manifest.replaces is None else reader.path(manifest.replaces)
        more = {
            "previous_path": previous if previous is not None and host.exists(previous) else None,
            "components": None if manifest.components is None else list(manifest.components),
            "sources": sorted(manifest.sources),
        }
        return _Installed({**fields, **more}, manifest, reader.check_integrity(manifest, thorough=False).changed)

    def _programs(self, own: _Installed) -> dict[str, toolkit_installed.Program]:
        """Return the programs of such an installation. They are run only if the manifest lacks their version."""
        folder = own.fields["path"]
        if own.manifest is None or own.version is None:
            return toolkit_installed.programs(self._host, self._run, folder)
        return {
            name: toolkit_installed.Program(f"{folder}/{name}", own.version)
            for name in toolkit_constants.ALL_PROGRAMS
            if name in own.manifest.files and self._host.is_executable(f"{folder}/{name}")
        }

    def _version_mismatches(
        self,
        versions: t.Mapping[str, str],
        found: t.Mapping[str, toolkit_installed.Program],
        folder: str,
        own: _Installed | None,
    ) -> list[str]:
        if own is not None:
            return own.version_mismatches()
        # Nothing is missing on a host without the toolkit.
        return toolkit_installed.version_mismatches(versions, found, folder) if versions or found else []

    def _settings(self, path: str, has_toolkit: bool) -> dict[str, t.Any]:
        content = self._host.read(path)
        if content is None and not has_toolkit:
            return {}
        document = toml_document.TomlDocument.from_bytes(path, content or b"")
        self._problems += (
            errors.Problem("setting-invalid", message) for message in toolkit_settings.invalid_values(document)
        )
        return toolkit_settings.effective(document.data, self._host.exists(toolkit_settings.REAL_LDCONFIG))

    def _recorded(self) -> list[str]:
        return [
            record.path
            for record in core_records.load_records(self._host, apply.TOOLKIT)
            if record.engine == apply.TOOLKIT
        ]

    def _conflicting(self, family: str) -> list[dict[str, t.Any]]:
        found = packages_sources.conflicts(self._host, family)
        whole = [{"path": path, "line": None, "address": None} for path in found.files]
        return whole + [entry._asdict() for entry in found.mixed]
