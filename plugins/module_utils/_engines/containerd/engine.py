# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""containerd on a host: unit, socket, version, and what the running daemon reports.

This module does not parse or plan configuration files; ``config`` and ``plan`` do.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import config as containerd_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import plan as containerd_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import runtimes as containerd_runtimes
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document


# The name that containerd 1.x reports for the default runtime of the old table default_runtime.
LEGACY_DEFAULT_NAME = "default"
BUILTIN_STAYS_SINCE = (2,)
# The entries of a runtime's table that the CRI reports, and its names for them (Status of the CRI, the same in all
# tested versions).
_TOLD = {
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
    r"^\s*(\[\s*)?[\"']?(grpc|imports)[\"']?\s*[].=]|io\.containerd\.server\.v1\.grpc", re.MULTILINE
)


class Containerd(toml_plan.TomlEngine):
    """The containerd of the system. The other flavors are subclasses."""

    name = "containerd"
    flavor = core_constants.SYSTEM
    key = "containerd"
    program = "containerd"
    default_aliases: tuple[str, ...] = (LEGACY_DEFAULT_NAME,)
    no_reload = "containerd ends on the signal that others take for a reload"
    config_path = "/etc/containerd/config.toml"
    drop_in_path: str | None = containerd_plan.DROP_IN
    service = "containerd.service"
    socket = "/run/containerd/containerd.sock"
    socket_flags = ("--address", "-a")
    default_runtime = containerd_runtimes.BUILTIN_DEFAULT

    def inspect(self, host: hostfs.HostFS, service: str | None = None) -> engines_base.Installation:
        """Return the installation, with the socket that the files name unless the unit names one."""
        found = super().inspect(host, service)
        if found.unit is not None and found.unit.flag_values(*self.socket_flags):
            return found
        return found._replace(socket=self._named_socket(host, found.config_path) or found.socket)

    def _named_socket(self, host: hostfs.HostFS, path: str) -> str | None:
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
        named = [address for file in reversed(files) for address in _addresses(file.document)]
        return next((address for address in named if isinstance(address, str) and address.startswith("/")), None)

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        if installation.pid is None:
            return None
        # Imported here because only a host with a running containerd needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415

        said = cri.runtime_config(host.real_path(installation.socket))
        if said is None:
            # A failed or disabled CRI reports nothing, so only the age of the process can be compared with the files.
            late = processes.changed_since_start(host, installation.pid, self._paths(host, installation))
            return engines_base.LiveState("", {}, "", runtimes_unknown=True, outdated=late)
        runtimes = toml_plan.lookup(said, ("containerd", "runtimes"))
        runtimes = runtimes if isinstance(runtimes, dict) else {}
        cdi = said.get("enableCDI")
        return engines_base.LiveState(
            version=cri.version(host.real_path(installation.socket)),
            runtimes={name: str(containerd_config.program_of(entry) or "") for name, entry in runtimes.items()},
            entries={name: _in_words_of_files(entry) for name, entry in runtimes.items()},
            default_runtime=str(toml_plan.lookup(said, ("containerd", "defaultRuntimeName")) or ""),
            cdi=cdi if isinstance(cdi, bool) else None,
            outdated=processes.changed_since_start(host, installation.pid, self._written(host)),
        )

    def _written(self, host: hostfs.HostFS) -> list[str]:
        """Return the files that this collection created and that have not changed since.

        A snapshot contains settings that the CRI does not report, so the age of these files is compared instead.
        """
        made = [record for record in core_records.load_records(host, self.key) if record.created]
        return [record.path for record in made if core_records.digest(host.read(record.path)) in record.written]

    def _paths(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        try:
            files = containerd_config.ContainerdFiles(
                engines_base.HostFiles(host, self.key), host.resolve(installation.config_path), None
            )
        except errors.NvidiaError:
            return [installation.config_path]
        return [file.path for file in files.files]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: engines_base.RuntimeRequest, context: engines_base.Context) -> engines_base.EnginePlan:
        return containerd_plan.ContainerdPlanner(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return containerd_plan.ContainerdPlanner(context).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        return containerd_plan.configured_state(containerd_config.ContainerdFiles.of(context))

    def required_action(self, live: engines_base.LiveState, state: engines_base.ConfiguredState) -> engines_base.Action:
        """Return RESTART or NONE. ``no_reload`` says why there is no reload."""
        if not state.lists_runtimes:
            return engines_base.Action.NONE
        if live.runtimes_unknown or live.outdated:
            return engines_base.Action.RESTART if live.outdated else engines_base.Action.NONE
        paths = {name: path or "" for name, path in state.paths().items()}
        known = {name: live.runtimes.get(name) for name in paths}
        surplus = [
            name
            for name, path in live.runtimes.items()
            if name not in paths and engines_base.is_nvidia_runtime(name, path)
        ]
        default = state.default_runtime or containerd_runtimes.BUILTIN_DEFAULT
        differs = known != paths or bool(surplus) or live.default_runtime not in (default, LEGACY_DEFAULT_NAME)
        # For runtimes of other tools, only the program is compared.
        ours = [name for name, path in paths.items() if engines_base.is_nvidia_runtime(name, path)]
        differs = differs or any(
            _set(live.entries.get(name, {})) != _set(_told_entries(state.runtimes[name])) for name in ours
        )
        switched = None not in (live.cdi, state.cdi) and live.cdi != state.cdi
        return engines_base.Action.RESTART if differs or switched else engines_base.Action.NONE

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, version: tuple[int, ...] | None
    ) -> bool:
        """Return whether containerd defines ``runtime``.

        Before 2.0, the built-in runc exists only while no file defines runtimes.
        """
        if not state.lists_runtimes or runtime in state.runtimes:
            return True
        lone = version is not None and version < BUILTIN_STAYS_SINCE and bool(state.runtimes)
        return runtime == containerd_runtimes.BUILTIN_DEFAULT and not lone

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

        told = cri.list_plugins(host.real_path(installation.socket))
        if told is None:
            return engines_base.HealthProblem("answers", f"it does not answer on {installation.socket}")
        parts = [plugin for plugin in told if plugin.serves_cri]
        broken = [f"{plugin.name}: {plugin.error}" for plugin in parts if plugin.error]
        if broken:
            return engines_base.HealthProblem("cri-loaded", f"its CRI is not loaded ({'; '.join(broken)})", final=True)
        if parts:
            # A containerd that has just started needs a moment.
            return engines_base.HealthProblem("cri-answers", f"its CRI does not answer on {installation.socket}")
        # containerd does not list a disabled CRI.
        expected = state is not None and state.lists_runtimes
        return engines_base.HealthProblem("cri-enabled", "its CRI is switched off", final=True) if expected else None

    def config_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        return self._paths(host, installation)

    # -- the program ---------------------------------------------------------------------------------------------

    def validation_command(
        self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        # Imported here because only a change needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import (  # noqa: PLC0415
            validate as containerd_validate,
        )

        return containerd_validate.validation_command(binary, folder, files, context)

    def compare_dumps(self, before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.containerd import (  # noqa: PLC0415
            validate as containerd_validate,
        )

        return containerd_validate.compare_dumps(before, after, files)


def _addresses(document: toml_document.TomlDocument) -> list[t.Any]:
    """Return the socket addresses that a file names, the one with precedence first."""
    named = [document.value(*_SOCKET_OF_PLUGIN)]
    return named if document.value("version") == 4 else [*named, document.value(*_SOCKET)]


def _in_words_of_files(entry: t.Any) -> dict[str, t.Any]:
    """Return the entries that the CRI reports for a runtime, under the names that configuration files use."""
    return {name: entry.get(told) for name, told in _TOLD.items()} if isinstance(entry, dict) else {}


def _told_entries(entry: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {name: entry.get(name) for name in _TOLD}


def _set(entry: t.Any) -> t.Any:
    """Return the entry without zero values, which the CRI may omit."""
    if not isinstance(entry, dict):
        return entry
    return {name: kept for name, kept in ((name, _set(value)) for name, value in entry.items()) if kept}


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
            raise errors.NvidiaError(f"There is no unit {self.service} on this host. Correct service, or leave it out.")
        return installation._replace(binary=None, config_path=mains[0])

    def present(self, request: engines_base.RuntimeRequest, context: engines_base.Context) -> engines_base.EnginePlan:
        """Return the plan, with a drop-in path of its own. The default drop-in belongs to the system's containerd."""
        drop_in = request.drop_in_path or posixpath.join(
            posixpath.dirname(context.path),
            f"{posixpath.splitext(self.service)[0]}.d",
            posixpath.basename(containerd_plan.DROP_IN),
        )
        return super().present(request._replace(drop_in_path=drop_in), context)


CONTAINERD = Containerd()
