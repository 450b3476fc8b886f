# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tasks for a toolkit in a directory: their options, their result, and the task that removes the toolkit.

install.py contains the task that installs it.
"""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, errors, lock, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import gpu_containers
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import usage as toolkit_usage
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (
    layout as directory_layout,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (
    versions as directory_versions,
)

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import store as directory_store


class DirectoryOptions(t.NamedTuple):
    """The user's options, as documented in nvidia_toolkit_install.

    ``components`` and ``low_level_runtimes`` are None if the user does not set them. ``controller_source`` describes a
    source on the controller. ``thorough`` is true for checksum: full.
    """

    dest: str = toolkit_constants.DIRECTORY
    src: str | None = None
    files: tuple[str, ...] = ()
    controller_source: toolkit_source.ControllerSource | None = None
    components: tuple[str, ...] | None = None
    driver_root: str = "/"
    settings: t.Mapping[str, t.Any] = {}
    profile: str | None = None
    allow_unknown: bool = False
    debug: bool | None = None
    default_runtime: str | None = None
    low_level_runtimes: tuple[str, ...] | None = None
    create_device_nodes: bool = False
    thorough: bool = False
    version: str | None = None
    running_gpu_containers: str = "fail"
    minimum_version: str | None = None
    minimum_version_policy: str = "warn"
    backup_dir: str = core_records.BACKUP_DIR


def check_source(src: str | None, files: t.Collection[str]) -> None:
    """Raise NvidiaError unless a task names one source of the toolkit's files."""
    if (src is None) == (not files):
        raise errors.NvidiaError(
            f"{errors.option:source}: directory requires either {errors.option:src} or {errors.option:files}. Set one"
            " of them."
        )


_EARLIER_TASKS = " Check mode does not know whether an earlier task of this play would do so."


class Tools(t.NamedTuple):
    """The functions that the module passes to a task, because they need Ansible.

    ``run`` runs commands, ``unpack`` unpacks packages into a directory, and ``label`` sets SELinux labels.
    """

    run: core_plan.Runner
    unpack: t.Callable[[list[str], str], None]
    label: directory_store.Label


class DirectoryResult(t.NamedTuple):
    """The result of the task, or the predicted result in check mode.

    ``before`` and ``after`` are the lines of the diff, one for each file. ``kept`` maps the paths of old versions that
    are still used to descriptions of the processes, containers, engines and files that use them.
    """

    changed: bool
    version: str | None = None
    path: str | None = None
    previous: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    config: core_plan.PlannedFile | None = None
    settings: t.Mapping[str, t.Any] = {}
    programs: tuple[str, ...] = ()
    kept: t.Mapping[str, t.Sequence[str]] = {}
    removed: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    backups: tuple[t.Mapping[str, str | None], ...] = ()


class DirectoryTask(toolkit_installed.Policies):
    """The base class of the tasks for a toolkit in one directory of one host."""

    def __init__(self, options: DirectoryOptions, host: hostfs.HostFS, tools: Tools) -> None:
        super().__init__(options.running_gpu_containers, options.minimum_version, options.minimum_version_policy)
        self.options = options
        self.host = host
        self.tools = tools
        dest = host.check_path("dest", options.dest)
        directory_layout.check_dest(dest)
        self.store = directory_versions.VersionReader(host, dest)
        self.config_path = f"{dest}/{toolkit_constants.OWN_CONFIG_FILE}"
        self.backup_dir = host.check_path("backup_dir", options.backup_dir)
        trusted_paths.check_backup_dir(host, self.backup_dir, (*core_constants.CONFIG_DIRS, dest, self.store.folder))

    def writable_store(self) -> directory_store.VersionStore:
        """Return the store with the methods that change versions."""
        # Only a task that changes the host needs this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (  # noqa: PLC0415
            store as directory_store,
        )

        return directory_store.VersionStore(self.host, self.store.dest)

    def remove(self, name: str) -> None:
        """Remove a version. Files in it that this collection did not create are kept."""
        foreign = self.writable_store().remove(name)
        if foreign:
            self.warn(f"Files that this collection did not create are kept: {', '.join(foreign)}.")

    def current(self) -> toolkit_manifest.Manifest | None:
        """Return the manifest of the current version, or None if there is no version or it is incomplete."""
        name = self.store.current()
        return None if name is None else self.store.manifest(name)

    def module_result(self, result: DirectoryResult) -> dict[str, t.Any]:
        """Return the module's result as documented, without the diff of config.toml."""
        version, dest = result.version, self.store.dest
        installed = [name for name in toolkit_constants.ALL_PROGRAMS if name in result.programs]
        return {
            "changed": result.changed,
            "version": version,
            "packages": {},
            "programs": {name: {"path": f"{dest}/{name}", "version": version} for name in installed},
            "origin": None,
            "predicted": None,
            "known_cves": _known_cves(version, bool(result.programs)),
            "gpu_containers": [],
            "reboot_required": None,
            "removed_sources": [],
            "written_files": [],
            "restored_files": [],
            "backup_files": [dict(backup) for backup in result.backups],
            "installed_path": result.path,
            "previous_path": result.previous,
            "kept_paths": {path: list(users) for path, users in result.kept.items()},
            "removed_paths": list(result.removed),
            "repaired_files": list(result.repaired),
            "device_nodes": list(result.device_nodes),
            "settings": dict(result.settings),
            "warnings": self.warnings,
        }

    def predicted_toolkit(self, result: DirectoryResult) -> dict[str, t.Any] | None:
        """Return what a real run would install, for check mode of later tasks; None if the version stays the same.

        ``result`` is the result of check mode.
        """
        current = self.current()
        same_version = current is not None and result.version is not None and current.version == result.version
        if not result.changed or not result.programs or same_version:
            return None
        programs = [name for name in toolkit_constants.INSTALLED_PROGRAMS if name in result.programs]
        return {
            "version": result.version,
            "programs": [f"{self.store.dest}/{name}" for name in programs],
        }

    def read_config(self, path: str) -> bytes | None:
        """Return the content of a config.toml, or None if it does not exist or cannot be read."""
        try:
            return self.host.read(path)
        except errors.HostError:
            return None

    def save_configs(self, names: t.Iterable[str]) -> list[dict[str, str | None]]:
        """Back up the config.toml of these versions, where the user edited it, as save_config() does."""
        backups = []
        for name in names:
            manifest = self.store.manifest(name)
            # If the version is incomplete, it is unknown whether the user edited the file.
            integrity = None if manifest is None else self.store.check_integrity(manifest, thorough=False)
            backups += self.save_config(name, integrity)
        return backups

    def save_config(
        self, name: str, integrity: directory_versions.IntegrityReport | None
    ) -> list[dict[str, str | None]]:
        """Back up a config.toml that the user edited. The caller then removes its version.

        ``integrity`` is None if it is unknown whether the file was edited. Returns the backup for the module's result.
        Raises HostError if a regular file cannot be read, because the removal would lose its content.
        """
        path = f"{self.store.path(name)}/{toolkit_constants.OWN_CONFIG_FILE}"
        edited = integrity is None or toolkit_constants.OWN_CONFIG_FILE in integrity.changed
        state = "may have been edited" if integrity is None else "was edited"
        try:
            content = self.host.read(path) if edited else None
        except errors.HostError as error:
            real = f"{self.host.real_path(self.store.path(name))}/{toolkit_constants.OWN_CONFIG_FILE}"
            if os.path.isfile(real) and not os.path.islink(real):
                raise
            self.warn(f"{self.config_path} {state}. It has no backup: {error}")
            return []
        if content is None:
            return []
        backup = apply.save_backup(self.host, self.backup_dir, self.config_path, content)
        self.warn(
            f"{self.config_path} {state}. Its backup is {backup}. Set {errors.option:settings} instead of editing the"
            " file."
        )
        return [{"path": self.config_path, "backup": backup, "checksum": "absent"}]


def diff_lines(
    manifest: toolkit_manifest.Manifest | None, integrity: directory_versions.IntegrityReport | None = None
) -> tuple[str, ...]:
    """Return the diff lines of a version, one for each file."""
    if manifest is None:
        return ()
    changed = integrity.changed if integrity is not None else ()
    lines = {
        name: diff_line(name, entry.mode, entry.known.sha256 if entry.known else "", entry.target)
        + (" (modified)" if name in changed else "")
        for name, entry in manifest.files.items()
    }
    lines.update((name, f"{name} (foreign)") for name in (integrity.foreign if integrity is not None else ()))
    return tuple(lines[name] for name in sorted(lines))


def diff_line(name: str, mode: int, sha256: str, target: str) -> str:
    """Return the diff line of one file of a version."""
    return f"{name} -> {target}" if target else f"{name} {mode:04o} {sha256[:16]}"


def _known_cves(version: str | None, has_programs: bool) -> list[dict[str, t.Any]] | None:
    if version is None:
        return None if has_programs else []
    return [entry._asdict() for entry in toolkit_installed.known_vulnerabilities(version)]


class DirectoryRemoval(DirectoryTask):
    """The task that removes the toolkit at ``dest`` and all its versions."""

    def execute(self, check_mode: bool) -> DirectoryResult:
        """Remove the toolkit unless ``check_mode``. Raises NvidiaError."""
        if not self._needs_removal():
            return DirectoryResult(changed=False)
        self._check_preconditions(check_mode)
        if check_mode:
            return self._result(self.current())
        with lock.host_lock(self.host):
            if not self._needs_removal():
                return DirectoryResult(changed=False)
            self._check_preconditions(check_mode)
            return self._apply()

    def _needs_removal(self) -> bool:
        store = self.store
        had_original = store.has_original() and store.foreign_entry_type() is None
        return had_original or bool(store.current() or store.names() or store.leftovers()) or store.is_empty()

    def _check_preconditions(self, check_mode: bool) -> None:
        """Raise an error, or warn, if containers or engines use the toolkit."""
        dest = self.store.dest
        # Without the link, dest is missing or belongs to another installer.
        folders = (self.store.folder,) if self.store.current() is None else (dest, self.store.folder)
        # In check mode the engines still have the entries that earlier tasks of the play would have removed.
        self._check_engines(folders, check_mode)
        self.check_containers(
            sorted(
                {name for folder in folders for name in gpu_containers.bundles_referencing(self.host, f"{folder}/")}
            ),
            f"use programs in {dest}. Without these programs no engine can stop the containers.",
            "Remove the containers first",
            "Kill their processes, and remove the containers by hand.",
        )
        named = toolkit_usage.files_mentioning(self.host, toolkit_usage.SPECIFICATIONS_AND_HOOKS, folders)
        if named:
            self.warn(
                f"This task removes programs in {dest} that CDI specifications or OCI hooks name: {', '.join(named)}."
                f" Generate these files again, or remove them.{_EARLIER_TASKS if check_mode else ''}"
            )

    def _check_engines(self, folders: t.Sequence[str], check_mode: bool) -> None:
        found = toolkit_usage.configured_programs(self.host, folders)
        if found:
            each = ", ".join(f"{engine} ({', '.join(programs)})" for engine, programs in found.items())
            problem = f"Engines are configured with runtimes in it, and cannot start containers without them: {each}."
            advice = "Run gpufleet.nvidia.nvidia_runtime_config with nvidia_runtime_state (state): absent first"
        else:
            # The configuration file shows what an engine uses after its next start, not what the running engine uses.
            problem = " ".join(toolkit_usage.engines_still_using(self.host, folders))
            advice = "Restart the engine first, so that it no longer uses the runtimes"
        if not problem:
            return
        warning = f"{self.store.dest} is still in use. {problem} {advice}."
        if check_mode and self.options.running_gpu_containers != "ignore":
            self.warn(f"{warning}{_EARLIER_TASKS}")
        else:
            self.refuse_or_warn(f"{self.store.dest} cannot be removed. {problem}", advice, warning)

    def _apply(self) -> DirectoryResult:
        store = self.writable_store()
        result, current = self._result(self.current()), store.current()
        # Without its link, each version may be the one that was in use.
        backups = self.save_configs(store.names() if current is None else [current])
        store.remove_leftovers()
        store.restore_original()
        for name in store.names():
            self.remove(name)
        store.remove_folder()
        return result._replace(backups=tuple(backups))

    def _result(self, before: toolkit_manifest.Manifest | None) -> DirectoryResult:
        return DirectoryResult(
            changed=True,
            before=diff_lines(before),
            removed=tuple(self.store.path(name) for name in self.store.names()),
        )
