# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task that all operations on the toolkit's packages share, and the files that it keeps on the host."""

from __future__ import annotations

import json
import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import (
    apply,
    atomic_write,
    errors,
    json_data,
    record_store,
    trusted_paths,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers, processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import repository as toolkit_repository
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import rpm_keys

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_OWN_DIRECTORY = "gpufleet-nvidia"
# The list of packages that runs of this collection installed. The directory also contains records. load_records() finds
# the records of an engine by the beginning of the file name, and no engine is named "installed".
INSTALLED = core_records.INSTALLED_PACKAGES


def remove_sources(host: hostfs.HostFS, paths: t.Iterable[str], backup_dir: str) -> list[dict[str, str | None]]:
    """Remove the files ``paths``, which define repositories, each after a backup. Returns the backups."""
    backups: list[dict[str, str | None]] = []
    for path in paths:
        content = host.read(path)
        if content is None:
            continue
        # The backup is named after the removed file, also if a link leads to it.
        backup = apply.save_backup(host, backup_dir, host.resolve(path), content)
        backups.append({"path": path, "backup": backup, "checksum": core_records.digest(None)})
        atomic_write.remove_file(host, path)
    return backups


# -- config.toml -----------------------------------------------------------------------------------------------------


def track_config(host: hostfs.HostFS) -> core_records.OriginalFile | None:
    """Write a record that config.toml does not exist, before package scripts create it.

    Returns None if the file exists or was recorded before.
    """
    path = host.resolve(toolkit_constants.CONFIG_FILE)
    if (
        host.lexists(toolkit_constants.CONFIG_FILE)
        or core_records.load_record(host, core_records.PACKAGES, path) is not None
    ):
        return None
    record = record_store.with_directories(
        host, record_store.new_record(host, core_records.PACKAGES, path, None)._replace(created=True)
    )
    record_store.save(host, record._replace(written=(core_records.digest(None),)))
    return record


def untrack_config(host: hostfs.HostFS, record: core_records.OriginalFile | None) -> None:
    """Remove the record of track_config() if the packages did not create the file."""
    if record is not None and not host.lexists(toolkit_constants.CONFIG_FILE):
        record_store.drop(host, record)


def recorded_config(host: hostfs.HostFS) -> core_records.OriginalFile | None:
    """Return the record of a config.toml that the packages created, or None."""
    path = host.resolve(toolkit_constants.CONFIG_FILE)
    return core_records.load_record(host, core_records.PACKAGES, path)


def has_written_settings(host: hostfs.HostFS) -> bool:
    """Return whether nvidia_toolkit_config has settings in config.toml and may have to restore the original file."""
    return core_records.load_record(host, core_records.TOOLKIT, host.resolve(toolkit_constants.CONFIG_FILE)) is not None


def remove_config(
    host: hostfs.HostFS, record: core_records.OriginalFile, backup_dir: str
) -> list[dict[str, str | None]]:
    """Remove the config.toml that the packages created, after a backup. Returns the backup.

    The record is removed last, so that the next run can complete an interrupted removal.
    """
    backups: list[dict[str, str | None]] = []
    content = host.read(record.path)
    if content is not None:
        backup = apply.save_backup(host, backup_dir, record.path, content, record.to_bytes())
        backups.append({"path": record.path, "backup": backup, "checksum": core_records.digest(None)})
        atomic_write.remove_file(host, record.path)
    record_store.drop(host, record)
    return backups


# -- packages that this collection installed -------------------------------------------------------------------------


def recorded_packages(host: hostfs.HostFS) -> tuple[str, ...]:
    """Return the packages that runs of this collection installed. Raises HostError for a damaged list."""
    content = host.read(INSTALLED)
    if content is None:
        return ()
    try:
        return json_data.strings(json_data.load(content), "packages")
    except ValueError as error:
        raise errors.HostError(
            f"{INSTALLED} is damaged: {error}. Rename this file. A removal then keeps the packages, and lists them."
        ) from error


def record_packages(host: hostfs.HostFS, names: t.Collection[str], *, renew: bool) -> bytes | None:
    """Write ``names`` to the list before a change installs them. Returns the previous list for restore_packages().

    With ``renew``, the list gets the present moment as that of the last installation.
    """
    before = host.read(INSTALLED)
    moment = processes.now(host) if renew else processes.recorded_moment(host, INSTALLED)
    fields = {"packages": sorted(names), **(moment._asdict() if moment is not None else {})}
    restore_packages(host, (json.dumps(fields) + "\n").encode("ascii"))
    return before


def restore_packages(host: hostfs.HostFS, content: bytes | None) -> None:
    """Write the list, or remove it if ``content`` is None."""
    if content is None:
        record_store.remove_state(host, INSTALLED)
    elif content != host.read(INSTALLED):
        record_store.write_state(host, INSTALLED, content)


# -- packages that the controller sent -------------------------------------------------------------------------------


def check_cache(host: hostfs.HostFS, path: str) -> str:
    """Return ``path`` normalized. Raises NvidiaError if other programs may use the directory."""
    normal = host.check_path("package_cache", path)
    if normal != toolkit_constants.PACKAGE_CACHE and _OWN_DIRECTORY not in posixpath.dirname(normal).split("/"):
        raise errors.NvidiaError(
            f"{errors.option:package_cache} {path!r} is not allowed, because this module deletes the files in it. Use"
            f" {toolkit_constants.PACKAGE_CACHE}, or a directory in one with the name {_OWN_DIRECTORY}."
        )
    return normal


def stale_files(host: hostfs.HostFS, cache: str | None, keep: t.Collection[str]) -> list[str]:
    """Return the files in the cache that are not in ``keep``."""
    if cache is None:
        return []
    kept = {host.resolve(path, last=False) for path in keep}
    paths = [f"{cache}/{name}" for name in host.entries(cache)]
    files = [path for path in paths if not os.path.isdir(host.real_path(path, last=False))]
    return [path for path in files if host.resolve(path, last=False) not in kept]


def clean_cache(host: hostfs.HostFS, cache: str, files: t.Iterable[str]) -> None:
    """Remove ``files`` of the cache, and its directories if they are empty then."""
    for path in files:
        atomic_write.remove_entry(host, path)
    atomic_write.remove_empty_directories(host, [posixpath.dirname(cache), cache])


# In these directories apt, dnf and zypper may read any file as configuration.
SOURCE_FOLDERS = (
    "/etc/apt/sources.list.d",
    "/etc/apt/preferences.d",
    "/etc/apt/apt.conf.d",
    "/etc/yum.repos.d",
    "/etc/zypp",
)
# The messages of apt-get and dnf (4 and 5) about a package that they could not fetch. zypper says it in its XML.
_NOT_DOWNLOADED = re.compile(
    r"Failed to fetch|Unable to fetch|Error downloading|Failed to download|Cannot download|Status code: 4|No more mirr"
)
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")


class InstallOptions(t.NamedTuple):
    """The user's options, as documented in nvidia_toolkit_install."""

    state: str = "present"
    source: str = "repository"
    packages: str = packages_base.FULL
    version: str | None = None
    files: tuple[str, ...] = ()
    pending: bool = False
    repository_files: tuple[toolkit_repository.RepositoryFile, ...] | None = None
    key_fingerprint: str | None = None
    proxy: str | None = None
    hold: bool | None = None
    remove_conflicts: bool = True
    running_gpu_containers: str = "fail"
    minimum_version: str | None = None
    minimum_version_policy: str = "warn"
    backup_dir: str = core_records.BACKUP_DIR
    package_cache: str | None = None
    config_restored: bool = False


class State(t.NamedTuple):
    """The installed packages: those of the toolkit, and the former packages that they replace."""

    packages: dict[str, packages_base.Package]
    former: dict[str, packages_base.Package]

    @property
    def half_installed(self) -> tuple[str, ...]:
        """The packages that are half installed."""
        return tuple(name for name, package in {**self.packages, **self.former}.items() if not package.complete)

    def diff_lines(self) -> list[str]:
        """Return the diff lines, one for each package."""
        every = {**self.packages, **self.former}
        return [
            f"{name} {package.version}{' (held)' if package.held else ''}"
            f"{'' if package.complete else ' (half installed)'}"
            for name, package in sorted(every.items())
        ]


class TaskResult(t.NamedTuple):
    """The result of the task, or the predicted result in check mode (``predicted``).

    A removal does not remove ``unrecorded`` packages.
    """

    changed: bool
    before: State
    after: State
    origin: str | None = None
    removed_sources: tuple[str, ...] = ()
    removed_files: tuple[str, ...] = ()
    repository: toolkit_repository.RepositoryPlan = toolkit_repository.RepositoryPlan()
    keys: rpm_keys.KeyPlan = rpm_keys.KeyPlan()
    backups: tuple[t.Mapping[str, str | None], ...] = ()
    predicted: bool = False
    unrecorded: tuple[str, ...] = ()


class PackageTask(toolkit_installed.Policies):
    """A task for the packages of one host."""

    def __init__(
        self,
        options: InstallOptions,
        host: hostfs.HostFS,
        manager: packages_base.PackageManager | None,
        run: core_plan.Runner,
    ) -> None:
        super().__init__(options.running_gpu_containers, options.minimum_version, options.minimum_version_policy)
        self.options = options
        self.host = host
        self.run = run
        self._manager = manager
        self.backup_dir = host.check_path("backup_dir", options.backup_dir)
        trusted_paths.check_backup_dir(host, self.backup_dir, (*core_constants.CONFIG_DIRS, *SOURCE_FOLDERS))
        self.cache = None if options.package_cache is None else check_cache(host, options.package_cache)
        self.files = tuple(host.check_path("files", path) for path in options.files)
        files = options.repository_files
        self.repository_files = None if files is None else toolkit_repository.check_files(files, options.proxy)
        self.gpu_containers: list[str] = []
        self._programs: dict[str, toolkit_installed.Program] | None = None
        self._check_options()

    @property
    def manager(self) -> packages_base.PackageManager:
        """The package manager. Raises HostError if the host has no known one."""
        if self._manager is None:
            raise errors.HostError(
                "Unsupported package manager: this host has none of apt, dnf and zypper, or it has several and"
                f" /etc/os-release does not show which one is its own. Set {errors.option:source}: directory, or"
                f" install the NVIDIA Container Toolkit in another way and set {errors.option:source}: existing."
            )
        return self._manager

    def installed_state(self) -> State:
        """Read the installed packages."""
        if self._manager is None:
            return State({}, {})
        found = self._manager.installed((*packages_base.PACKAGES, *packages_base.REPLACED_PACKAGES))
        return State(
            {name: found[name] for name in packages_base.PACKAGES if name in found},
            {name: found[name] for name in packages_base.REPLACED_PACKAGES if name in found},
        )

    def require_key_check(self) -> None:
        """Raise HostError if the key of the repository cannot be checked on this host."""
        if self.options.key_fingerprint and self.repository_files and self.host.live and self.manager.imports_keys:
            rpm_keys.require_gpg(self.host)

    def plan_keys(self, repository: toolkit_repository.RepositoryPlan) -> rpm_keys.KeyPlan:
        """Return the required changes of the keys in rpm. Raises WrongKeyError and HostError."""
        if self._manager is None or not self._manager.imports_keys or not self.host.live:
            return rpm_keys.KeyPlan()
        files, fingerprint = self.repository_files or (), self.options.key_fingerprint
        return rpm_keys.plan_keys(self.host, self.run, repository, files, fingerprint)

    def check_gpu_containers(self) -> None:
        """Raise HostError, or warn, for containers that lose their GPU in this change.

        Package scripts make systemd reload its units.
        """
        self.gpu_containers = gpu_containers.legacy_gpu_containers(self.host)
        self.check_containers(
            self.gpu_containers,
            "got their GPUs from NVIDIA's legacy hook. They lose them when package scripts reload systemd.",
            "Stop them first, or use CDI for them",
            "Create them again afterwards.",
        )

    def read_programs(self) -> dict[str, toolkit_installed.Program]:
        """Return the toolkit's programs as they are now. The result reports them too."""
        self._programs = toolkit_installed.programs(self.host, self.run)
        return self._programs

    def module_result(self, result: TaskResult) -> dict[str, t.Any]:
        """Return the module's result as documented."""
        found = self.read_programs() if self._programs is None else self._programs
        versions = {name: package.version for name, package in result.after.packages.items()}
        version = toolkit_installed.single_version(versions, {} if result.predicted else found)
        known_cves = toolkit_installed.affecting_cves(versions, {} if result.predicted else found)
        removed = [f"{path} (source)" for path in result.removed_sources]
        removed += [f"{path} (file)" for path in result.removed_files]
        packages_diff = {
            "before_header": "packages",
            "after_header": "packages",
            "before": _text([*result.before.diff_lines(), *removed]),
            "after": _text(result.after.diff_lines()),
        }
        return {
            "changed": result.changed,
            "diff": [packages_diff, *result.repository.diff(), *result.keys.diff()],
            # A version that is not known yet is reported as None.
            "version": version if version is not None and toolkit_installed.upstream_version(version) else None,
            "packages": {
                name: {"version": package.version, "held": package.held}
                for name, package in {**result.after.packages, **result.after.former}.items()
            },
            "programs": {name: {"path": entry.path, "version": entry.version} for name, entry in found.items()},
            "origin": result.origin,
            "predicted": _predicted_toolkit(result, version),
            "known_cves": None if known_cves is None else [entry._asdict() for entry in known_cves],
            "gpu_containers": self.gpu_containers,
            "reboot_required": packages_base.reboot_required(self.host, self._manager),
            "removed_sources": list(result.removed_sources),
            "written_files": [file.path for file in result.repository.files],
            "restored_files": [file.path for file in result.repository.restored],
            "unrecorded": list(result.unrecorded),
            "backup_files": [dict(backup) for backup in result.backups],
            "warnings": [*self.warnings, *packages_base.warnings_of(self._manager)],
        }

    def _check_options(self) -> None:
        options = self.options
        if options.files and options.source != "files":
            raise errors.NvidiaError(
                f"{errors.option:files} requires {errors.option:source}: files. Remove {errors.option:files}, or"
                f" change {errors.option:source}."
            )
        if options.source == "files" and options.state == "present" and not options.files:
            raise errors.NvidiaError(
                f"{errors.option:source}: files requires {errors.option:files}. Set it to the paths, on the host, of"
                f" {', '.join(packages_base.PACKAGE_SETS[options.packages])}."
            )
        if self.repository_files and options.source != "repository":
            raise errors.NvidiaError(
                f"{errors.option:repository_files} requires {errors.option:source}: repository. Remove"
                f" {errors.option:repository_files}, or change {errors.option:source}."
            )
        if options.key_fingerprint is not None and not _FINGERPRINT.fullmatch(options.key_fingerprint):
            raise errors.NvidiaError(f"{errors.option:key_fingerprint} must have 40 hexadecimal digits.")
        if options.source != "existing" and not self.host.live:
            raise errors.HostError(
                "Packages cannot be installed or removed in an offline tree, because their scripts must run in it."
                f" Run the task in a chroot with {errors.option:host_root_live}: true, or set {errors.option:source}:"
                " existing."
            )


def explain_failure(error: packages_base.CommandError, before: State, after: State) -> errors.HostError:
    """Return the error of a failed transaction, with the state of the packages after it."""
    if after == before:
        state = "The packages are unchanged."
    else:
        state = f"The packages are now: {', '.join(after.diff_lines()) or 'none of them installed'}."
        if any(not package.complete for package in after.packages.values()):
            state += " The next run completes the half-installed packages."
    failure = errors.HostError(f"{error} {state}")
    failure.details = {"changed": after != before}
    return failure


def is_download_error(error: packages_base.CommandError) -> bool:
    """Return whether a transaction failed because a package could not be fetched, for example with old lists."""
    return error.not_downloaded or any(_NOT_DOWNLOADED.search(line) for line in error.output)


def _predicted_toolkit(result: TaskResult, version: str | None) -> dict[str, t.Any] | None:
    """Return what a real run would install, for check mode of later tasks; None if the version stays the same."""
    before, after = (
        {name: package.version for name, package in state.packages.items()} for state in (result.before, result.after)
    )
    if not result.predicted or not after or before == after:
        return None
    return {
        "version": toolkit_installed.upstream_version(version or ""),
        "programs": [
            f"{toolkit_installed.PROGRAM_DIR}/{name}"
            for name in toolkit_constants.programs_in(after, toolkit_constants.INSTALLED_PROGRAMS)
        ],
    }


def _text(lines: t.Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
