# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: containerd, for Kubernetes through its CRI, as it stands on a host.

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_files import ContainerdFiles, program_of
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_plan import (
    DROP_IN,
    ContainerdPlanner,
    configured_state,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_writer import BUILTIN_DEFAULT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    Ailment,
    Installation,
    LiveState,
    Trial,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import SYSTEM, UNIT_KEY
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import outdated
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import digest, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_runtime
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_engine import TomlEngine
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_plan import lookup

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        EnginePlan,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument

# How containerd 1.x calls the default that stands in the old table default_runtime.
LEGACY_DEFAULT_NAME = "default"
BUILTIN_STAYS_SINCE = (2,)
# Entries of a runtime's table that the CRI tells, and how it calls them (its Status, in all versions tried).
_TOLD = {
    "runtime_type": "runtimeType",
    "options": "options",
    "pod_annotations": "PodAnnotations",
    "container_annotations": "ContainerAnnotations",
    "privileged_without_host_devices": "privileged_without_host_devices",
}

# Where a file names the socket: a plugin's settings, which up to version 3 take precedence over the older table
# (serviceMigrate in cmd/containerd/server/config/config.go of 2.3.0).
_SOCKET, _SOCKET_OF_PLUGIN = ("grpc", "address"), ("plugins", "io.containerd.server.v1.grpc", "address")
# Whether a file may do so, or import one that does.
_NAMES_SOCKET = re.compile(
    r"^\s*(\[\s*)?[\"']?(grpc|imports)[\"']?\s*[].=]|io\.containerd\.server\.v1\.grpc", re.MULTILINE
)


class Containerd(TomlEngine):
    """The system's own containerd; other flavours are made from it."""

    name = "containerd"
    flavor = SYSTEM
    key = "containerd"
    program = "containerd"
    default_aliases: tuple[str, ...] = (LEGACY_DEFAULT_NAME,)
    no_reload = "containerd ends on the signal that others take for a reload"
    config_path = "/etc/containerd/config.toml"
    drop_in_path: str | None = DROP_IN
    service = "containerd.service"
    socket = "/run/containerd/containerd.sock"
    socket_flags = ("--address", "-a")
    default_runtime = BUILTIN_DEFAULT

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        """With the socket that its files name, unless its unit does."""
        found = super().inspect(host, service)
        if found.unit is not None and found.unit.flag_values(*self.socket_flags):
            return found
        return found._replace(socket=self._named_socket(host, found.config_path) or found.socket)

    def _named_socket(self, host: HostRoot, path: str) -> str | None:
        # Most files say nothing of sockets, and need not be parsed for that.
        if not _NAMES_SOCKET.search(host.read_text(path)):
            return None
        try:
            files = ContainerdFiles(HostFiles(host, self.key), host.resolve(path), None).files
        except GpufleetError:
            # Who plans reads them again, and is told.
            return None
        named = [address for file in reversed(files) for address in _addresses(file.document)]
        return next((address for address in named if isinstance(address, str) and address.startswith("/")), None)

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        if installation.pid is None:
            return None
        # Only where a containerd runs.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._cri_api import status, version  # noqa: PLC0415

        said = status(host.outer(installation.socket))
        if said is None:
            # A dead or disabled CRI tells nothing; what is left is whether the process has seen the files.
            late = outdated(host, installation.pid, self._paths(host, installation))
            return LiveState("", {}, "", silent=True, outdated=late)
        runtimes = lookup(said, ("containerd", "runtimes"))
        runtimes = runtimes if isinstance(runtimes, dict) else {}
        cdi = said.get("enableCDI")
        return LiveState(
            version=version(host.outer(installation.socket)),
            runtimes={name: str(program_of(entry) or "") for name, entry in runtimes.items()},
            entries={name: _in_words_of_files(entry) for name, entry in runtimes.items()},
            default_runtime=str(lookup(said, ("containerd", "defaultRuntimeName")) or ""),
            cdi=cdi if isinstance(cdi, bool) else None,
            outdated=outdated(host, installation.pid, self._written(host)),
        )

    def _written(self, host: HostRoot) -> list[str]:
        """Files made by us that are as we left them: a snapshot holds settings that the CRI does not tell."""
        made = [record for record in load_records(host, self.key) if record.created]
        return [record.path for record in made if digest(host.read(record.path)) in record.written]

    def _paths(self, host: HostRoot, installation: Installation) -> list[str]:
        try:
            files = ContainerdFiles(HostFiles(host, self.key), host.resolve(installation.config_path), None)
        except GpufleetError:
            return [installation.config_path]
        return [file.path for file in files.files]

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return ContainerdPlanner(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return ContainerdPlanner(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        return configured_state(ContainerdFiles.of(context))

    def catch_up(self, live: LiveState, state: ConfiguredState) -> Action:
        """Restart or nothing, see no_reload."""
        if not state.lists_runtimes:
            return Action.NONE
        if live.silent or live.outdated:
            return Action.RESTART if live.outdated else Action.NONE
        paths = {name: path or "" for name, path in state.paths().items()}
        known = {name: live.runtimes.get(name) for name in paths}
        surplus = [name for name, path in live.runtimes.items() if name not in paths and is_nvidia_runtime(name, path)]
        default = state.default_runtime or BUILTIN_DEFAULT
        differs = known != paths or bool(surplus) or live.default_runtime not in (default, LEGACY_DEFAULT_NAME)
        # Of others' runtimes only the programs matter here.
        ours = [name for name, path in paths.items() if is_nvidia_runtime(name, path)]
        differs = differs or any(
            _set(live.entries.get(name, {})) != _set(_told_entries(state.runtimes[name])) for name in ours
        )
        switched = None not in (live.cdi, state.cdi) and live.cdi != state.cdi
        return Action.RESTART if differs or switched else Action.NONE

    def knows(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        """Before 2.0 the runc that is built in is only there while no file has runtimes."""
        if not state.lists_runtimes or runtime in state.runtimes:
            return True
        lone = version is not None and version < BUILTIN_STAYS_SINCE and bool(state.runtimes)
        return runtime == BUILTIN_DEFAULT and not lone

    def ailment(
        self, host: HostRoot, installation: Installation, live: LiveState, state: ConfiguredState | None
    ) -> Ailment | None:
        # One that tells of its runtimes has a CRI that works.
        if not live.silent:
            return None
        # Only a restart pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_api import plugins  # noqa: PLC0415

        told = plugins(host.outer(installation.socket))
        if told is None:
            return Ailment(f"it does not answer on {installation.socket}")
        parts = [plugin for plugin in told if plugin.serves_cri]
        broken = [f"{plugin.name}: {plugin.error}" for plugin in parts if plugin.error]
        if broken:
            return Ailment(f"its CRI is not loaded ({'; '.join(broken)})", lasting=True)
        if parts:
            # One that has just started needs a moment.
            return Ailment(f"its CRI does not answer on {installation.socket}")
        # One that is switched off is not even listed.
        return Ailment("its CRI is switched off", lasting=True) if state is not None and state.lists_runtimes else None

    def sources(self, host: HostRoot, installation: Installation) -> list[str]:
        return self._paths(host, installation)

    # -- the program ---------------------------------------------------------------------------------------------

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        # Only a change pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_trial import trial  # noqa: PLC0415

        return trial(binary, folder, files, context)

    def verdict(self, before: str, after: str, files: t.Sequence[PlannedFile]) -> str:
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._containerd_trial import verdict  # noqa: PLC0415

        return verdict(before, after, files)


def _addresses(document: TomlDocument) -> list[t.Any]:
    """What a file names as the socket, the place that takes precedence first."""
    named = [document.value(*_SOCKET_OF_PLUGIN)]
    return named if document.value("version") == 4 else [*named, document.value(*_SOCKET)]


def _in_words_of_files(entry: t.Any) -> dict[str, t.Any]:
    """What the CRI tells of a runtime, under the names that files have for it."""
    return {name: entry.get(told) for name, told in _TOLD.items()} if isinstance(entry, dict) else {}


def _told_entries(entry: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {name: entry.get(name) for name in _TOLD}


def _set(entry: t.Any) -> t.Any:
    """What is set in it: zero values may be left out."""
    if not isinstance(entry, dict):
        return entry
    return {name: kept for name, kept in ((name, _set(value)) for name, value in entry.items()) if kept}


class ContainerdOfUnit(Containerd):
    """A containerd beside the system's own, known by its unit: binary, socket and file are what that names."""

    drop_in_path = None

    def __init__(self, service: str) -> None:
        self.service = service
        self.key = f"{UNIT_KEY}{service}"

    def inspect(self, host: HostRoot, service: str | None = None) -> Installation:
        """Without its unit only what was recorded tells its file: the usual one is the system's own."""
        installation = super().inspect(host, service)
        if installation.unit is not None:
            return installation
        mains = [record.main for record in load_records(host, self.key) if record.main]
        if not mains:
            raise GpufleetError(f"There is no unit {self.service} on this host. Correct service, or leave it out.")
        return installation._replace(binary=None, config_path=mains[0])

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        """The drop-in of the system's own is for that one."""
        drop_in = request.drop_in_path or posixpath.join(
            posixpath.dirname(context.path), f"{posixpath.splitext(self.service)[0]}.d", posixpath.basename(DROP_IN)
        )
        return super().present(request._replace(drop_in_path=drop_in), context)


CONTAINERD = Containerd()
