# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""containerd on a host: unit, socket, version, what the running daemon reports, and the validation of planned files.

This module does not parse or plan configuration files; ``config`` and ``plan`` do. `containerd config dump` validates
planned files: it prints the merged configuration, in which all entries of other tools must stay equal.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import applied, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import options as containerd_options
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document


# The entries of a runtime's table that the CRI reports, with the names in its report (Status of the CRI, the same in
# all tested versions).
_REPORTED_NAMES = {
    "runtime_type": "runtimeType",
    "options": "options",
    "pod_annotations": "PodAnnotations",
    "container_annotations": "ContainerAnnotations",
    "privileged_without_host_devices": "privileged_without_host_devices",
}

# The settings that name the socket. Up to version 3, the plugin's settings have precedence over the older table
# (serviceMigrate in cmd/containerd/server/config/config.go of 2.3.0).
_SOCKET, _SOCKET_OF_PLUGIN = ("grpc", "address"), ("plugins", "io.containerd.server.v1.grpc", "address")
# Matches a file that may name the socket, or import a file that does.
_NAMES_SOCKET = re.compile(
    r"^\s*(\[\s*)?[\"']?(grpc|imports)[\"']?\s*[].=]|io\.containerd\.server\.v1\.grpc", re.MULTILINE | re.IGNORECASE
)


# Entries of a dump that describe the files themselves: the format version and the list of imports.
_ABOUT_FILES = ("version", "imports")


class Containerd(toml_plan.TomlEngine):
    """The containerd of the system. The other flavors are subclasses."""

    name = "containerd"
    flavor = core_constants.SYSTEM
    key = "containerd"
    program = "containerd"
    # The name that containerd 1.x reports for the table default_runtime.
    default_aliases: tuple[str, ...] = (containerd_runtimes.LEGACY_NAME,)
    no_reload = "containerd does not reload its configuration: SIGHUP ends it"
    config_path = "/etc/containerd/config.toml"
    drop_in_path: str | None = containerd_plan.DROP_IN
    service = "containerd.service"
    socket = "/run/containerd/containerd.sock"
    socket_flags = ("--address", "-a", "--a")
    default_runtime = containerd_runtimes.BUILTIN_DEFAULT

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        """Return the installation, with the socket that the files name unless the unit names one.

        A masked unit is not an installation: the program is there for dockerd, which starts a containerd of its own.
        """
        found = super().inspect(host, service)
        if found.unit is None and systemd_units.is_masked_name(host, found.service):
            return found._replace(detected=False)
        if found.unit is not None and found.unit.flag_values(*self.socket_flags):
            return found
        return found._replace(socket=self._configured_socket(host, found.config_path) or found.socket)

    def _configured_socket(self, host: hostfs.HostFS, path: str) -> str | None:
        # Most files do not mention sockets, so they need not be parsed.
        if not _NAMES_SOCKET.search(host.read_text(path)):
            return None
        try:
            files = containerd_config.ContainerdFiles(
                engines_base.HostFiles(host, self.key), host.resolve(path), None
            ).files
        except errors.NvidiaError:
            # The planner reads the same files again and reports the error.
            return None
        addresses = [address for file in reversed(files) for address in _addresses(file.document)]
        return next((address for address in addresses if isinstance(address, str) and address.startswith("/")), None)

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        if installation.pid is None:
            return None
        # Imported here because only a host with a running containerd needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415

        status = cri.runtime_config(host.real_path(installation.socket))
        if status is None:
            # A failed or disabled CRI reports nothing, so only the files themselves can be compared.
            outdated = self._is_outdated(host, installation.pid, self._paths(host, installation))
            return engines_base.LiveState("", {}, "", runtimes_unknown=True, outdated=outdated)
        runtimes = toml_plan.lookup(status, ("containerd", "runtimes"))
        runtimes = runtimes if isinstance(runtimes, dict) else {}
        version = cri.version(host.real_path(installation.socket))
        number = core_text.parse_version(version)
        folders = containerd_plan.cdi_folders(status.get("cdiSpecDirs"), number)
        cdi = status.get("enableCDI") if folders != () else False
        entries = {name: _reported_entries(entry) for name, entry in runtimes.items()}
        return engines_base.LiveState(
            version=version,
            runtimes={name: str(containerd_options.program_of(entry) or "") for name, entry in entries.items()},
            entries=entries,
            default_runtime=str(toml_plan.lookup(status, ("containerd", "defaultRuntimeName")) or ""),
            cdi=cdi if isinstance(cdi, bool) else None,
            cdi_folders=folders,
            outdated=self._is_outdated(host, installation.pid, self._own_unchanged_files(host)),
        )

    def _is_outdated(self, host: hostfs.HostFS, pid: int, paths: t.Sequence[str]) -> bool:
        """Return whether files have changed since the process was started; if that is unknown, by their times."""
        found = applied.AppliedFiles.of(host, self.key).compare(pid, paths, all_files=False)
        if found is applied.Finding.UNKNOWN:
            return processes.changed_since_start(host, pid, paths)
        return found is applied.Finding.OUTDATED

    def _own_unchanged_files(self, host: hostfs.HostFS) -> list[str]:
        """Return the files that this collection created and that have not changed since.

        They contain entries that the CRI does not report.
        """
        created = [record for record in core_records.load_records(host, self.key) if record.created]
        return [record.path for record in created if core_records.digest(host.read(record.path)) in record.written]

    def applied_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        recorded = [record.path for record in core_records.load_records(host, self.key)]
        return list(dict.fromkeys([*self._paths(host, installation), *recorded]))

    def _paths(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        try:
            files = containerd_config.ContainerdFiles(
                engines_base.HostFiles(host, self.key), host.resolve(installation.config_path), None
            )
        except errors.NvidiaError:
            return [installation.config_path]
        return [file.path for file in files.files]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return self._planner_of(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return self._planner_of(context).absent()

    def _planner_of(self, context: engines_base.Context) -> containerd_plan.ContainerdPlanner:
        return containerd_plan.ContainerdPlanner(context)

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        return containerd_plan.configured_state(self._files(context))

    def default_runtime_source(self, context: engines_base.Context) -> str:
        return self._files(context).defining_path(containerd_config.DEFAULT)

    def _files(self, context: engines_base.Context) -> containerd_config.ContainerdFiles:
        return containerd_config.checked_files(context)

    def required_action(self, live: engines_base.LiveState, state: engines_base.ConfiguredState) -> engines_base.Action:
        """Return RESTART or NONE. ``no_reload`` contains the reason."""
        if not state.lists_runtimes:
            return engines_base.Action.NONE
        if live.runtimes_unknown or live.outdated:
            return engines_base.Action.RESTART if live.outdated else engines_base.Action.NONE
        paths = state.paths()
        defaults = {state.default_runtime or containerd_runtimes.BUILTIN_DEFAULT}
        # The name under which containerd reports the table default_runtime.
        defaults |= {containerd_runtimes.LEGACY_NAME} & {*state.runtimes}
        differs = (
            any(live.runtimes.get(name) != path for name, path in paths.items())
            or live.default_runtime not in defaults
            or (None not in (live.cdi, state.cdi) and live.cdi != state.cdi)
            # For runtimes of other tools, only the program is compared.
            or any(
                name not in paths or _reported_differs(live.entries.get(name, {}), state.runtimes[name])
                for name, path in {**live.runtimes, **paths}.items()
                if engines_base.is_nvidia_runtime(name, path)
            )
        )
        return engines_base.Action.RESTART if differs else engines_base.Action.NONE

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, version: tuple[int, ...] | None
    ) -> bool:
        """Return whether containerd defines ``runtime``.

        Before 2.0, the built-in runc exists only while no file defines runtimes.
        """
        if not state.lists_runtimes or runtime in state.runtimes:
            return True
        hidden = version is not None and version < containerd_config.MERGES_SINCE and bool(state.runtimes)
        return runtime == containerd_runtimes.BUILTIN_DEFAULT and not hidden

    def health_problem(
        self,
        host: hostfs.HostFS,
        installation: engines_base.Installation,
        live: engines_base.LiveState,
        state: engines_base.ConfiguredState | None,
    ) -> engines_base.HealthProblem | None:
        # A containerd that reports its runtimes has a working CRI.
        if not live.runtimes_unknown:
            return None
        # Imported here because only a restart needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415

        plugins = cri.list_plugins(host.real_path(installation.socket))
        if plugins is None:
            return engines_base.HealthProblem("answers", f"it does not answer on {installation.socket}")
        cri_plugins = [plugin for plugin in plugins if plugin.serves_cri]
        failed = [f"{plugin.name}: {plugin.error}" for plugin in cri_plugins if plugin.error]
        if failed:
            return engines_base.HealthProblem("cri-loaded", f"its CRI failed to load ({'; '.join(failed)})", final=True)
        if cri_plugins:
            # A containerd that has just started needs a moment.
            return engines_base.HealthProblem("cri-answers", f"its CRI does not answer on {installation.socket}")
        # containerd does not list a disabled CRI.
        expected = state is not None and state.lists_runtimes
        return engines_base.HealthProblem("cri-enabled", "its CRI is disabled", final=True) if expected else None

    def config_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        return self._paths(host, installation)

    # -- the program ---------------------------------------------------------------------------------------------

    def validation_command(
        self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        """Return the validation command, which dumps copies of ``files`` and of all that they import.

        The command in ``compare`` dumps the present files.
        """
        planned = containerd_config.ContainerdFiles.of(context, toml_plan.overlay_of(files))
        staged, originals = _copies(planned, folder, "after")
        argv = [binary, "--config", f"{folder}/{next(iter(staged))}", "config", "dump"]
        present = context.path
        ignored: dict[str, toml_document.TomlDocument | None] = {
            file.path: None for file in files if _is_leftover(file) and file.path != context.path
        }
        if context.content is None or ignored:
            # Without a main file, containerd runs with its built-in defaults, but 1.x refuses to dump them.
            # A leftover may hide settings of the other files, so the planned files are compared with the present ones
            # without it.
            copies, _paths = _copies(containerd_config.ContainerdFiles.of(context, ignored), folder, "before")
            present = f"{folder}/{next(iter(copies))}"
            staged.update(copies)
        return engines_base.ValidationCommand(staged, argv, [binary, "--config", present, "config", "dump"], originals)

    def compare_dumps(self, before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
        """Return the entries of other tools that would change; empty if none would, or if a dump cannot be parsed."""
        roots = set(containerd_config.CRI_TABLE.values())
        names = {name for root in roots for name in toml_plan.changed_tables(files, root + containerd_config.RUNTIMES)}

        def is_own(path: tuple[str, ...]) -> bool:
            inner = path[2:] if path[:2] in roots else ()
            return (
                path[0] in _ABOUT_FILES
                or inner in (containerd_config.DEFAULT, containerd_runtimes.CDI)
                or inner[:2] == containerd_config.LEGACY_DEFAULT
                or (inner[:2] == containerd_config.RUNTIMES and inner[2] in names)
            )

        return toml_plan.compare_dumps(before, after, is_own)

    def printed_state(self, dump: str, version: tuple[int, ...] | None) -> engines_base.ConfiguredState | None:
        document = toml_plan.parse_dump(dump)
        cri = containerd_config.printed_cri(document) if document is not None else None
        if cri is None:
            return None
        runtimes = toml_plan.lookup(cri, containerd_config.RUNTIMES) or {}
        programs = {name: {"path": containerd_options.program_of(entry)} for name, entry in runtimes.items()}
        folders = containerd_plan.cdi_folders(toml_plan.lookup(cri, containerd_runtimes.CDI_FOLDERS), version)
        cdi = toml_plan.lookup(cri, containerd_runtimes.CDI) if folders != () else False
        default = toml_plan.lookup(cri, containerd_config.DEFAULT)
        return engines_base.ConfiguredState(programs, default, cdi if isinstance(cdi, bool) else None)


def _copies(
    files: containerd_config.ContainerdFiles, folder: str, prefix: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return copies of all files by name, the main file first, and the path that each copy represents."""
    names = [f"{prefix}{number}-{posixpath.basename(file.path)}" for number, file in enumerate(files.files)]
    # The copies keep the order, because a later file takes precedence. Nested imports come after those of the level
    # above.
    imports = [f"{folder}/{name}" for name in names[1:]]
    copies = {
        name: _with_imports(file.document, imports if name == names[0] else [])
        for name, file in zip(names, files.files)
    }
    return copies, {name: file.path for name, file in zip(names, files.files)}


def _with_imports(document: toml_document.TomlDocument, paths: list[str]) -> bytes:
    # The entry is deleted first, because an array that contains comments cannot be replaced as a whole.
    document = document.delete(containerd_config.IMPORTS)
    return (document.set(containerd_config.IMPORTS, paths) if paths else document).to_bytes()


def _is_leftover(file: core_plan.PlannedFile) -> bool:
    """Return whether the file is a leftover of another tool that is removed for good."""
    return file.record is not None and file.record.original is None


def _addresses(document: toml_document.TomlDocument) -> list[t.Any]:
    """Return the socket addresses that a file names, the one with precedence first."""
    addresses = [document.value(*_SOCKET_OF_PLUGIN)]
    return addresses if document.value("version") == 4 else [*addresses, document.value(*_SOCKET)]


def _reported_entries(entry: t.Any) -> dict[str, t.Any]:
    """Return the entries that the CRI reports for a runtime, under the names that containerd's files use."""
    if not isinstance(entry, dict):
        return {}
    found: dict[str, t.Any] = containerd_options.canonical(
        {name: entry.get(reported) for name, reported in _REPORTED_NAMES.items()}
    )
    return found


def _reported_differs(reported: t.Mapping[str, t.Any], configured: t.Mapping[str, t.Any]) -> bool:
    """Return whether the entries that the CRI reports for a runtime differ from those in the files."""
    return bool(_nonzero(reported) != _nonzero({name: configured.get(name) for name in _REPORTED_NAMES}))


def _nonzero(entry: t.Any) -> t.Any:
    """Return the entry without zero values, which the CRI may omit."""
    if not isinstance(entry, dict):
        return entry
    return {name: value for name, value in ((name, _nonzero(value)) for name, value in entry.items()) if value}


class EmbeddedContainerd(Containerd):
    """A containerd that a Kubernetes distribution starts as its child process.

    ``starter`` is the program of the distribution. ``services`` are its units; the first is the default.
    """

    starter: str
    services: tuple[str, ...]

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        """Return the installation. ``binary`` is the program of the distribution."""
        name = (
            systemd_units.unit_name(service)
            if service
            else processes.active_unit(host, self.services, self.starter, self.program)
        )
        unit = systemd_units.load_unit(host, name, self.starter)
        return engines_base.Installation(
            binary=systemd_units.find_program(host, unit, self.starter),
            unit=unit,
            service=name,
            socket=self.socket,
            config_path=self._config_path(host, unit),
            pid=processes.find_process(host, unit, self.program),
        )

    def _config_path(self, _host: hostfs.HostFS, _unit: systemd_units.Unit | None) -> str:
        return self.config_path


class ContainerdOfUnit(Containerd):
    """A containerd beside the system's own, identified by its unit, which names the binary, the socket and the file."""

    drop_in_path = None

    def __init__(self, service: str) -> None:
        self.service = service
        self.key = f"{core_constants.UNIT_PREFIX}{service}"

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        """Return the installation. Without a unit, only a record can name the configuration file.

        The default path is not used, because it belongs to the system's containerd.
        """
        installation = super().inspect(host, service)
        if installation.unit is not None:
            return installation
        mains = [record.main for record in core_records.load_records(host, self.key) if record.main]
        if not mains:
            # The registry has refused a unit that does not exist.
            raise errors.NvidiaError(
                f"{self.service} is masked. Run `systemctl unmask {self.service}`, or remove it from"
                f" {errors.option:targets} or {errors.option:service}."
            )
        return installation._replace(binary=None, config_path=mains[0])

    def _planner_of(self, context: engines_base.Context) -> containerd_plan.ContainerdPlanner:
        """Return the planner with a drop-in path of its own. The usual one belongs to the system's containerd."""
        folder, name = f"{posixpath.splitext(self.service)[0]}.d", posixpath.basename(containerd_plan.DROP_IN)
        return containerd_plan.ContainerdPlanner(context, posixpath.join(posixpath.dirname(context.path), folder, name))


CONTAINERD = Containerd()
