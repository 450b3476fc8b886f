# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build a version of the toolkit beside the current one, test it, and make it the current one.

directory.py contains the options, the result and the removal.
"""

from __future__ import annotations

import contextlib
import fcntl
import posixpath
import tempfile
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import usage as toolkit_usage
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import directory as toolkit_directory
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import layout as directory_layout
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import manifest as toolkit_manifest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import source as toolkit_source

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (
        store as directory_store,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory import (
        versions as directory_versions,
    )


# NVIDIA's toolkit container locks this file while it runs (nvidia-toolkit of 1.17 to 1.20).
_INSTALLER_LOCK = "/run/nvidia/toolkit/toolkit.pid"
_FAPOLICYD = "/run/fapolicyd/fapolicyd.fifo"


class DirectoryPlan(t.NamedTuple):
    """The required changes.

    ``before`` is the current version if it is complete, and ``layout`` the directory that replaces it. ``stale``
    versions are removed. ``kept`` versions stay, because they are in use: usage.users() returned the values.
    ``previous_config`` is the previous content of config.toml if a version is built.
    """

    before: toolkit_manifest.Manifest | None
    integrity: directory_versions.IntegrityReport | None
    layout: directory_layout.DirectoryLayout
    build: bool
    leftovers: tuple[str, ...]
    stale: tuple[str, ...]
    kept: t.Mapping[str, t.Sequence[str]]
    nodes: tuple[device_nodes.CharacterDevice, ...]
    previous_config: bytes | None

    @property
    def has_changes(self) -> bool:
        return self.build or bool(self.leftovers or self.stale or self.nodes)


class DirectoryInstallation(toolkit_directory.DirectoryTask):
    """The task that installs the toolkit at ``dest``, complete and of one version."""

    def execute(self, check_mode: bool) -> toolkit_directory.DirectoryResult:
        """Install the toolkit unless ``check_mode``. Raises NvidiaError."""
        self._spec = self._requested_spec()
        if self.options.create_device_nodes and not self.host.live:
            raise errors.HostError(
                f"{errors.option:create_device_nodes} requires a running host. Set"
                f" {errors.option:create_device_nodes}: false for an offline tree."
            )
        if not check_mode:
            lock.remove_stale_directories(self.host, tempfile.gettempdir(), lock.TOOLKIT_PREFIX)
        reader = toolkit_source.SourceReader(self.host, self.current(), thorough=self.options.thorough)
        with contextlib.closing(reader):
            source = self._source(reader)
            plan = self._plan(source)
            if not plan.has_changes:
                if not check_mode:
                    self._refresh_manifest(plan, source)
                self._check_preconditions(plan, source)
                return self._result(plan, plan.before)
            self._check_preconditions(plan, source)
            if check_mode:
                return self._check_mode_result(plan, source)
            with lock.host_lock(self.host):
                # Another run may have changed the versions since, so the plan is made again under the lock.
                plan = self._plan(source)
                self._check_preconditions(plan, source)
                return self._apply(plan, source)

    # -- Requested and installed state ---------------------------------------------------------------------------------

    def _requested_spec(self) -> directory_layout.DirectorySpec:
        options, dest = self.options, self.store.dest
        driver_root = self.host.check_path("driver_root", options.driver_root)
        runtimes = options.low_level_runtimes
        for runtime in runtimes or ():
            self._check_runtime(f"{errors.option:low_level_runtimes} contains", runtime)
        if options.default_runtime is not None:
            self._check_runtime(f"{errors.option:default_runtime_executable} is", options.default_runtime)
        if runtimes is None:
            found, warnings = toolkit_usage.low_level_runtimes(self.host)
            runtimes = tuple(found)
            for warning in warnings:
                self.warn(warning)
        elif not runtimes:
            raise errors.NvidiaError(
                f"{errors.option:low_level_runtimes} is empty. Add a runtime such as runc, or remove the option."
            )
        real_ldconfig = self.host.exists(posixpath.join(driver_root, "sbin/ldconfig.real"))
        config = directory_layout.ConfigInputs(
            driver_root, runtimes, options.settings, options.profile, options.debug, real_ldconfig,
            options.allow_unknown, self.host.is_system_container(),
        )  # fmt: skip
        return directory_layout.DirectorySpec(dest, config, options.default_runtime)

    def _check_runtime(self, parameter: str, runtime: str) -> None:
        for folder in (self.store.dest, self.host.resolve(self.store.folder)):
            directory_layout.check_runtime(parameter, runtime, folder)
            if runtime.startswith("/"):
                # The runtime may be a link with another name.
                directory_layout.check_runtime(f"{parameter} {runtime}, a link to", self.host.resolve(runtime), folder)

    def _source(self, reader: toolkit_source.SourceReader) -> toolkit_source.Source:
        options = self.options
        if options.controller_source is not None:
            return reader.from_controller(options.controller_source)
        toolkit_directory.check_source(options.src, options.files)
        if options.src is not None:
            src = self.host.check_path("src", options.src)
            for folder in (self.store.dest, self.store.folder):
                if (self.host.resolve(src) + "/").startswith(self.host.resolve(folder) + "/"):
                    raise errors.NvidiaError(
                        f"{errors.option:src} {src} is in {folder}, the directory to install into. Choose another"
                        f" {errors.option:src}."
                    )
            return reader.from_tree(src, options.components)
        files = [self.host.check_path("files", path) for path in options.files]
        return reader.from_packages(files, options.components, self.tools.unpack)

    def _plan(self, source: toolkit_source.Source) -> DirectoryPlan:
        name, before = self.store.current(), self.current()
        integrity = None if before is None else self.store.check_integrity(before, self.options.thorough)
        layout = directory_layout.build_layout(
            source.parts, self._spec, self.store.path(name or toolkit_source.name_of(source, self._spec))
        )
        build = before is None or integrity is None or integrity.is_damaged or layout_differs(layout, before)
        # The current version stays as the previous one when a new version is built.
        stay = {name} if build or before is None else {name, before.replaces}
        others = [other for other in self.store.names() if other not in stay]
        used = {other: toolkit_usage.users(self.host, self.store.path(other)) for other in others}
        return DirectoryPlan(
            before,
            integrity,
            layout,
            build,
            leftovers=tuple(self.store.leftovers()),
            stale=tuple(other for other, users in used.items() if not users),
            kept={other: users for other, users in used.items() if users},
            nodes=tuple(self._missing_device_nodes()) if self.options.create_device_nodes else (),
            previous_config=self.read_config(self.config_path) if build and before else None,
        )

    def _missing_device_nodes(self) -> list[device_nodes.CharacterDevice]:
        # On most hosts the driver has created the device nodes already.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes  # noqa: PLC0415

        found, warnings = device_nodes.missing_nodes(self.host, self._spec.config.driver_root)
        for warning in warnings:
            self.warn(warning)
        return found

    # -- Preconditions -------------------------------------------------------------------------------------------------

    def _check_preconditions(self, plan: DirectoryPlan, source: toolkit_source.Source) -> None:
        """Raise an error, or warn, for every problem that is known before the host is changed."""
        for warning in plan.layout.warnings:
            self.warn(warning)
        self._check_version(
            toolkit_source.version_of(source) if plan.build or plan.before is None else plan.before.version
        )
        if not plan.build:
            return
        toolkit_source.check_machine(source.parts, self.host)
        store = self.writable_store()
        store.check_switch()
        self._check_removed_programs(plan)
        if self.store.foreign_entry_type() == "directory":
            self._refuse_running_installer()
        store.check_free_space(sum(part.size for part in source.parts))
        if self.host.live and self.host.lexists(_FAPOLICYD):
            self.warn(
                "fapolicyd runs on this host and blocks programs that it does not trust. After each new version run"
                f" `fapolicyd-cli --file add {self.store.folder}/ --trust-file gpufleet-nvidia` and then"
                " `fapolicyd-cli --update`."
            )

    def _check_removed_programs(self, plan: DirectoryPlan) -> None:
        """Refuse to remove programs that engines are configured with."""
        present = plan.before.files if plan.before is not None else self.store.names_at_dest()
        removed = {name for name in present if name not in plan.layout.entries}
        if not removed:
            return
        found = toolkit_usage.programs_among(
            toolkit_usage.configured_programs(self.host, (self.store.dest, self.store.folder)), removed
        )
        if not found:
            return
        problem = (
            f"Engines are configured with programs in {self.store.dest} that the new version does not contain:"
            f" {', '.join(found)}. They could not start containers."
        )
        self.refuse_or_warn(problem, "Choose other components, or configure the engines first", problem)

    def _check_final_version(self, version: str | None) -> None:
        """Check the version after the programs were run. An unknown version is then an error if the task needs it."""
        self._check_version(version)
        policy = self.options.minimum_version_policy
        if version is None and (self.options.version is not None or policy == "fail"):
            raise errors.NvidiaError(
                "The version of the toolkit in the source is unknown: its programs report none, or are in an offline"
                f" tree. Remove {errors.option:version} and set {errors.option:minimum_version_policy}: warn, or add"
                " the component cli, whose library contains the version."
            )

    def _check_version(self, version: str | None) -> None:
        requested = self.options.version
        if requested is not None and version is not None and toolkit_installed.upstream_version(requested) != version:
            raise errors.NvidiaError(
                f"The source contains version {version} of the toolkit, but {errors.option:version} is {requested}."
                " Change one of them."
            )
        self.check_minimum(version)

    def _refuse_running_installer(self) -> None:
        """Raise HostError if NVIDIA's toolkit container runs, since it rebuilds its directory."""
        with contextlib.suppress(FileNotFoundError, PermissionError), open(
            self.host.real_path(_INSTALLER_LOCK)
        ) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.HostError(
                    f"NVIDIA's toolkit container manages {self.store.dest} and runs on this host (it locks"
                    f" {_INSTALLER_LOCK}). Remove it from this host first, for example with toolkit.enabled=false of"
                    f" the GPU operator, or choose another {errors.option:dest}."
                ) from None

    # -- Changes under the lock ----------------------------------------------------------------------------------------

    def _apply(self, plan: DirectoryPlan, source: toolkit_source.Source) -> toolkit_directory.DirectoryResult:
        store, after = self.writable_store(), plan.before
        # Without its link, each of the old versions may be the one that was in use.
        backups = self.save_configs(plan.stale) if store.current() is None else []
        if plan.build:
            after = self._build(store, source)
            backups += self._switch(store, plan, after.name)
        elif plan.leftovers:
            store.remove_leftovers()
        if plan.nodes:
            self._create_device_nodes(plan.nodes)
        for name in plan.stale:
            self.remove(name)
        return self._result(plan, after)._replace(backups=tuple(backups))

    def _build(self, store: directory_store.VersionStore, source: toolkit_source.Source) -> toolkit_manifest.Manifest:
        """Return the manifest of the new version, which is complete and tested, but not the current one yet.

        If a step raises NvidiaError, the new version is removed.
        """
        contents = source.fetch()
        try:
            store.prepare_build()
            new = directory_layout.build_layout(source.parts, self._spec, store.build_dir)
            for name, entry in new.entries.items():
                if entry.part:
                    store.copy_part(name, entry, contents[entry.part])
            version = self._run_programs(store.build_dir, new) if self.host.live else toolkit_source.version_of(source)
            self._check_final_version(version)
            return self._finish(store, source, version)
        except errors.NvidiaError:
            with contextlib.suppress(errors.NvidiaError):
                store.remove_leftovers()
                store.remove_folder()
            raise

    def _finish(
        self, store: directory_store.VersionStore, source: toolkit_source.Source, version: str | None
    ) -> toolkit_manifest.Manifest:
        """Write the files and links that are not copied from the source, and the manifest of the new version."""
        name = store.new_name(toolkit_source.name_of(source, self._spec, version))
        final = directory_layout.build_layout(source.parts, self._spec, store.path(name))
        for each, entry in final.entries.items():
            if not entry.part:
                store.write_entry(each, entry)
        manifest = toolkit_manifest.Manifest(
            name, version, store.current(), self.options.components, source.parts, source.sources, {}
        )
        return store.finish(manifest, final.entries, self.tools.label)

    def _run_programs(self, folder: str, new: directory_layout.DirectoryLayout) -> str | None:
        """Return the version that the new programs report. Raises NvidiaError if one does not run or if they differ."""
        found = {}
        for name, entry in new.entries.items():
            if not entry.part or entry.part.startswith("lib"):
                continue
            argv = [f"{folder}/{name}"]
            if entry.part == directory_layout.CLI:
                # env(1) would read a path that contains "=" as a variable.
                argv = ["/bin/sh", "-c", 'export LD_LIBRARY_PATH="$0"; exec "$@"', folder, *argv]
            reported = toolkit_installed.run_version(argv, self.host, self.tools.run)
            if reported.version is None and reported.status:
                raise errors.HostError(
                    f"The new {entry.part} does not run on this host: {reported.output or reported.status}. Use a"
                    f" toolkit for this host. {self.store.dest} is unchanged."
                )
            found[entry.part] = reported.version
        versions = {version for version in found.values() if version is not None}
        if len(versions) > 1:
            each = ", ".join(f"{name} {version}" for name, version in found.items())
            raise errors.NvidiaError(
                f"The source contains parts of several versions: {each}. Use parts of one version."
            )
        return versions.pop() if versions else None

    def _switch(
        self, store: directory_store.VersionStore, plan: DirectoryPlan, name: str
    ) -> list[dict[str, str | None]]:
        """Make a version the current one. Returns the backups of the previous version's config.toml."""
        try:
            current = store.current()
            # The plan has no integrity if the version is incomplete.
            backups = [] if current is None else self.save_config(current, plan.integrity)
            store.switch(name)
        except errors.NvidiaError:
            # If no program uses the new version yet, it is removed.
            with contextlib.suppress(errors.NvidiaError):
                store.remove_leftovers()
                if not store.may_be_current(name):
                    store.remove(name)
                store.remove_folder()
            raise
        return backups

    def _create_device_nodes(self, nodes: t.Sequence[device_nodes.CharacterDevice]) -> None:
        # On most hosts the driver has created the device nodes already.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes  # noqa: PLC0415

        device_nodes.create_nodes(self.host, nodes, self.tools.run)

    def _refresh_manifest(self, plan: DirectoryPlan, source: toolkit_source.Source) -> None:
        """Write the new identities of unchanged files, so that the next run need not read them."""
        before, integrity = plan.before, plan.integrity
        if before is None or integrity is None or not (integrity.fresh or before.sources != source.sources):
            return
        self.writable_store().refresh_manifest(before.refreshed(integrity.fresh, source.sources))

    # -- Result --------------------------------------------------------------------------------------------------------

    def _check_mode_result(
        self, plan: DirectoryPlan, source: toolkit_source.Source
    ) -> toolkit_directory.DirectoryResult:
        result = self._result(plan, plan.before)
        if not plan.build:
            return result
        if toolkit_source.version_of(source) is None:
            self.warn("Check mode does not run the new programs, so their version is unknown and not checked.")
        if plan.integrity is not None and toolkit_constants.OWN_CONFIG_FILE in plan.integrity.changed:
            self.warn(f"{self.config_path} was edited. The task would make a backup of it.")
        path = self.store.path(self.writable_store().new_name(toolkit_source.name_of(source, self._spec)))
        result = result._replace(version=toolkit_source.version_of(source), path=path)
        return self._with_new_files(result, directory_layout.build_layout(source.parts, self._spec, path), plan)

    def _result(
        self, plan: DirectoryPlan, after: toolkit_manifest.Manifest | None
    ) -> toolkit_directory.DirectoryResult:
        current = plan.before.name if plan.before is not None else None
        previous = current if plan.build else plan.before.replaces if plan.before is not None else None
        lines = toolkit_directory.diff_lines(plan.before, plan.integrity)
        result = toolkit_directory.DirectoryResult(
            changed=plan.has_changes,
            version=None if after is None else after.version,
            path=None if after is None else self.store.path(after.name),
            previous=None if previous is None else self.store.path(previous),
            before=lines,
            after=lines,
            settings=plan.layout.settings,
            programs=tuple(plan.layout.entries),
            kept={self.store.path(name): users for name, users in plan.kept.items()},
            removed=(*(self.store.path(name) for name in plan.stale), *plan.leftovers),
            repaired=(*plan.integrity.changed, *plan.integrity.foreign) if plan.integrity is not None else (),
            device_nodes=tuple(node.path for node in plan.nodes),
        )
        if after is None or not plan.build:
            return result
        return self._with_new_files(
            result, directory_layout.build_layout(after.parts, self._spec, self.store.path(after.name)), plan
        )

    def _with_new_files(
        self, result: toolkit_directory.DirectoryResult, new: directory_layout.DirectoryLayout, plan: DirectoryPlan
    ) -> toolkit_directory.DirectoryResult:
        """Return the result with the new files and config.toml for the diff."""
        return result._replace(
            after=tuple(
                toolkit_directory.diff_line(name, each.mode, each.sha256, each.target)
                for name, each in sorted(new.entries.items())
            ),
            settings=new.settings,
            config=core_plan.PlannedFile(self.config_path, plan.previous_config, new.config.encode()),
        )


def layout_differs(layout: directory_layout.DirectoryLayout, before: toolkit_manifest.Manifest) -> bool:
    """Return whether a version has other names, modes or contents than ``layout``."""
    recorded = {
        name: (entry.mode, entry.known.sha256 if entry.known is not None else "", entry.target)
        for name, entry in before.files.items()
    }
    return recorded != {name: (entry.mode, entry.sha256, entry.target) for name, entry in layout.entries.items()}
