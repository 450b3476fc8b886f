# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: CRI-O, a container engine for Kubernetes alone, as it stands on a host.

from __future__ import annotations

import contextlib
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_files import (
    CONFIG_DIR,
    DROP_IN_NAME,
    CrioFiles,
    builtin_runtimes,
    config_dir,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_hook import CrioHooks
from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_plan import configured_state
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
    Action,
    Ailment,
    Installation,
    LiveState,
    Trial,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import SYSTEM
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._oci_hook import HOOK_FOLDERS, HOOK_NAME
from ansible_collections.gpufleet.nvidia.plugins.module_utils._processes import outdated, started
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_record
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toml_engine import TomlEngine

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        ConfiguredState,
        Context,
        EnginePlan,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

# Of HTTP.
_OK = 200


class Crio(TomlEngine):
    """The system's own CRI-O."""

    name = "crio"
    flavor = SYSTEM
    key = "crio"
    program = "crio"
    no_reload = "CRI-O tells of new runtimes after a reload, but no pod can use them before a restart"
    config_path = "/etc/crio/crio.conf"
    drop_in_path: str | None = f"{CONFIG_DIR}/{DROP_IN_NAME}"
    service = "crio.service"
    socket = "/var/run/crio/crio.sock"
    socket_flags = ("--listen",)
    default_runtime = "crun"

    def live(self, host: HostRoot, installation: Installation) -> LiveState | None:
        """Only whether the process has seen the files.

        Its CRI names no runtimes, and after a reload it reports settings that no pod can use yet.  So what it reports
        only counts for files that CRI-O was proven to work with before.
        """
        if installation.pid is None:
            return None
        late = self._outdated(host, installation, installation.pid)
        return LiveState("", {}, "", silent=True, outdated=late)

    def _outdated(self, host: HostRoot, installation: Installation, pid: int) -> bool:
        if outdated(host, pid, _there(host, _hook_folders(host))):
            return True
        if not outdated(host, pid, _there(host, _watched(host, installation))):
            return False
        # Only where a file is newer than the process.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._notes import (  # noqa: PLC0415
            SAME_PROCESS,
            AppliedNote,
        )

        birth, applied = started(host, pid), AppliedNote.of(host, self.key).start_of(self.sources(host, installation))
        if birth is None or applied is None:
            return True
        # A later process may have been started with other files, which were changed back since.
        return abs(birth - applied) >= SAME_PROCESS and not self._reports_files(host, installation)

    def _reports_files(self, host: HostRoot, installation: Installation) -> bool:
        """Whether the running CRI-O reports the runtimes, default and CDI directories of its files."""
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._docker_api import ask  # noqa: PLC0415

        try:
            # What `crio status config` asks (server/inspect.go, 1.24 to 1.36).
            answer = ask(host.outer(installation.socket), "GET", "/config")
            reported = TomlDocument.from_bytes(installation.socket, answer.body).data
            files = CrioFiles.of(HostFiles(host, self.key).as_configured(installation, None))
            return answer.status == _OK and files.equal_in(reported)
        except (OSError, ValueError, GpufleetError):
            return False

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(self, request: RuntimeRequest, context: Context) -> EnginePlan:
        return CrioHooks(context).present(request)

    def absent(self, context: Context) -> EnginePlan:
        return CrioHooks(context).absent()

    def configured(self, context: Context) -> ConfiguredState:
        return configured_state(CrioFiles.of(context), context.version)

    def catch_up(self, live: LiveState, _state: ConfiguredState) -> Action:
        return Action.RESTART if live.outdated else Action.NONE

    def knows(self, runtime: str, state: ConfiguredState, version: tuple[int, ...] | None) -> bool:
        return runtime in (*builtin_runtimes(version), *state.runtimes, *state.flagged_runtimes)

    def try_runtimes(
        self, host: HostRoot, installation: Installation, runtimes: t.Sequence[str], run: Runner
    ) -> tuple[list[str], list[str]]:
        # Only a restart pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._crictl import try_runtimes  # noqa: PLC0415

        return try_runtimes(host, run, installation.socket, runtimes)

    def ailment(
        self, host: HostRoot, installation: Installation, _live: LiveState, _state: ConfiguredState | None
    ) -> Ailment | None:
        # Only a restart pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._cri_api import status  # noqa: PLC0415

        answers = status(host.outer(installation.socket)) is not None
        return None if answers else Ailment("answers", f"it does not answer on {installation.socket}")

    def sources(self, host: HostRoot, installation: Installation) -> list[str]:
        directory = config_dir(installation.unit)
        return [installation.config_path, *(host.walk(directory) if directory else [])]

    # -- the program ---------------------------------------------------------------------------------------------

    def trial(self, binary: str, folder: str, files: t.Sequence[PlannedFile], context: Context) -> Trial:
        # Only a change pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_trial import trial  # noqa: PLC0415

        return trial(binary, folder, _without_hooks(files), context)

    def verdict(self, before: str, after: str, files: t.Sequence[PlannedFile]) -> str:
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._crio_trial import verdict  # noqa: PLC0415

        return verdict(before, after, _without_hooks(files))


def _without_hooks(files: t.Sequence[PlannedFile]) -> list[PlannedFile]:
    """Hooks are no part of the configuration that CRI-O prints."""
    return [file for file in files if posixpath.basename(file.path) != HOOK_NAME]


def _watched(host: HostRoot, installation: Installation) -> list[str]:
    """All that changes when a file of the configuration changes, comes, or goes."""
    directory = config_dir(installation.unit)
    found = [installation.config_path]
    if directory:
        drop_ins = host.walk(directory)
        found += [directory, *drop_ins, *dict.fromkeys(posixpath.dirname(path) for path in drop_ins)]
    return found


def _hook_folders(host: HostRoot) -> list[str]:
    return [posixpath.dirname(folder) for folder in HOOK_FOLDERS if _made_for_hooks(host, folder)]


def _there(host: HostRoot, paths: list[str]) -> list[str]:
    """A file or directory that was removed is only seen in the folder that it was in."""
    return [path if host.exists(path) else posixpath.dirname(path) for path in paths]


def _made_for_hooks(host: HostRoot, folder: str) -> bool:
    """Whether we made a folder of hooks, which a CRI-O that was started before does not see."""
    with contextlib.suppress(HostError):
        real = host.resolve(folder)
        record = load_record(host, "crio", f"{real}/{HOOK_NAME}")
        return record is not None and real in record.created_directories
    return False


CRIO = Crio()
