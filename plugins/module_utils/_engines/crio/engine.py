# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CRI-O on a host: unit, socket, version, whether it runs with its present files, and the validation of planned files.

This module does not parse or plan configuration files; ``config``, ``plan`` and ``hook`` do. `crio config` validates
planned files: it prints the merged configuration, in which all entries of other tools must stay equal.
"""

from __future__ import annotations

import contextlib
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import applied, nvidia_files, toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import request as engines_request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import config as crio_config
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import hook
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.crio import plan as crio_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import unix_socket
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import processes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


# The HTTP status 200.
_OK = 200
# A value for --config where there is no main file: CRI-O refuses to start if the named file is missing.
_NO_FILE = "/dev/null"
# The names of the copies that are validated.
_MAIN, _DROP_INS = "crio.conf", "crio.conf.d"


class Crio(toml_plan.TomlEngine):
    """The CRI-O of the system."""

    name = "crio"
    flavor = core_constants.SYSTEM
    key = "crio"
    program = "crio"
    no_reload = "CRI-O reports new runtimes after a reload, but pods cannot use them before a restart"
    config_path = crio_config.MAIN
    drop_in_path: str | None = f"{crio_config.CONFIG_DIR}/{crio_config.DROP_IN_NAME}"
    service = "crio.service"
    socket = "/var/run/crio/crio.sock"
    socket_flags = ("--listen",)
    default_runtime = "crun"

    @staticmethod
    def with_all_flags(unit: systemd_units.Unit) -> systemd_units.Unit:
        return crio_config.with_variables(toml_plan.TomlEngine.with_all_flags(unit))

    def live(self, host: hostfs.HostFS, installation: engines_base.Installation) -> engines_base.LiveState | None:
        """Return only whether a file has changed since the process was started.

        The CRI of CRI-O does not report runtimes, and after a reload CRI-O reports settings that no pod can use yet. So
        its report only shows that it does not use its files.
        """
        if installation.pid is None:
            return None
        outdated = self._outdated(host, installation, installation.pid)
        return engines_base.LiveState("", {}, "", runtimes_unknown=True, outdated=outdated)

    def _outdated(self, host: hostfs.HostFS, installation: engines_base.Installation, pid: int) -> bool:
        found = applied.AppliedFiles.of(host, self.key).compare(pid, self.applied_files(host, installation))
        if found in (applied.Finding.CURRENT, applied.Finding.OUTDATED):
            return found is applied.Finding.OUTDATED
        # The parent directory changes when a hook directory is created in it.
        hook_dir_parents = [posixpath.dirname(folder) for folder in _created_hook_dirs(host)]
        paths = _existing_paths(host, [*hook_dir_parents, *_config_paths(host, installation)])
        # A later process may have started with other files that were changed back since.
        return processes.changed_since_start(host, pid, paths) and (
            found is applied.Finding.UNKNOWN or self._reports_other_files(host, installation)
        )

    def _reports_other_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> bool:
        """Return whether the running CRI-O reports other runtimes, default or CDI directories than its files have."""
        reported = self._reported(host, installation)
        try:
            files = crio_config.CrioFiles.of(engines_base.HostFiles(host, self.key).as_configured(installation, None))
        except errors.NvidiaError:
            return False
        return reported is not None and not files.matches_report(reported)

    @staticmethod
    def _reported(host: hostfs.HostFS, installation: engines_base.Installation) -> dict[str, t.Any] | None:
        """Return the configuration that the running CRI-O reports, None if it reports none.

        `crio status config` sends the same request (server/inspect.go, 1.24 to 1.36).
        """
        try:
            answer = unix_socket.http_request(host.real_path(installation.socket), "GET", "/config")
            reported = toml_document.TomlDocument.from_bytes(installation.socket, answer.body).data
        except (OSError, ValueError, errors.NvidiaError):
            return None
        return reported if answer.status == _OK else None

    # -- plans ---------------------------------------------------------------------------------------------------

    def present(
        self, request: engines_request.RuntimeRequest, context: engines_base.Context
    ) -> engines_base.EnginePlan:
        return hook.CrioHooks(context).present(request)

    def absent(self, context: engines_base.Context) -> engines_base.EnginePlan:
        return hook.CrioHooks(context).absent()

    def configured(self, context: engines_base.Context) -> engines_base.ConfiguredState:
        files = crio_config.CrioFiles.of(context)
        files.check_names()
        return crio_plan.configured_state(files, context.version)

    def default_runtime_source(self, context: engines_base.Context) -> str:
        files = crio_config.CrioFiles.of(context)
        file = files.default_file()
        if context.unit is not None and files.flagged_default is not None:
            return f"the unit {context.unit.name}"
        return file.path if file is not None else context.path

    def required_action(
        self, live: engines_base.LiveState, _state: engines_base.ConfiguredState
    ) -> engines_base.Action:
        return engines_base.Action.RESTART if live.outdated else engines_base.Action.NONE

    def defines_runtime(
        self, runtime: str, state: engines_base.ConfiguredState, version: tuple[int, ...] | None
    ) -> bool:
        return runtime in (*crio_config.builtin_runtimes(version), *state.runtimes, *state.flagged_runtimes)

    def check_runtimes(
        self, host: hostfs.HostFS, installation: engines_base.Installation, runtimes: t.Sequence[str]
    ) -> tuple[list[str], list[str]]:
        reported = self._reported(host, installation)
        if reported is None:
            unknown = f"CRI-O does not report its runtimes on {installation.socket}, so they were not checked."
            return [], [unknown] if runtimes else []
        # CRI-O removes a runtime whose program is missing (ValidateRuntimes in pkg/config/config.go, 1.24 to 1.36).
        tables = toml_plan.lookup(reported, crio_config.RUNTIMES)
        missing = [name for name in runtimes if not isinstance(tables, dict) or name not in tables]
        return [f"CRI-O reports no runtime {name}. Its journal says why it ignores it" for name in missing], []

    def health_problem(
        self,
        host: hostfs.HostFS,
        installation: engines_base.Installation,
        _live: engines_base.LiveState,
        _state: engines_base.ConfiguredState | None,
    ) -> engines_base.HealthProblem | None:
        # Imported here because only a restart needs it.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._rpc import cri  # noqa: PLC0415

        answers = cri.runtime_config(host.real_path(installation.socket)) is not None
        return (
            None if answers else engines_base.HealthProblem("answers", f"it does not answer on {installation.socket}")
        )

    def config_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        directory = crio_config.config_dir(installation.unit)
        return [installation.config_path, *(host.walk(directory) if directory else [])]

    def applied_files(self, host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
        return [*self.config_files(host, installation), *_created_hook_dirs(host)]

    # -- the program ---------------------------------------------------------------------------------------------

    def validation_command(
        self, binary: str, folder: str, files: t.Sequence[core_plan.PlannedFile], context: engines_base.Context
    ) -> engines_base.ValidationCommand:
        """Return the validation command, which prints the configuration of copies of all files.

        The command in ``compare`` prints the present configuration.
        """
        planned = crio_config.CrioFiles.of(context, toml_plan.overlay_of(_without_hooks(files)))
        main, *drop_ins = planned.files
        # The drop-ins keep their names, which determine the order.
        names = {_MAIN: main, **{_DROP_INS + file.name[len(planned.directory) :]: file for file in drop_ins}}
        path = context.path if context.content is not None else _NO_FILE
        return engines_base.ValidationCommand(
            {name: file.document.to_bytes() for name, file in names.items()},
            _argv(binary, f"{folder}/{_MAIN}", f"{folder}/{_DROP_INS}"),
            _argv(binary, path, planned.directory),
            {name: file.path for name, file in names.items()},
        )

    def compare_dumps(self, before: str, after: str, files: t.Sequence[core_plan.PlannedFile]) -> str:
        """Return the entries of other tools that would change; empty if none would, or if a dump cannot be parsed."""
        files = _without_hooks(files)
        names = toml_plan.changed_tables(files, crio_config.RUNTIMES)
        defaults = {
            toml_document.TomlDocument.from_bytes(file.path, text or b"").value(*crio_config.DEFAULT)
            for file in files
            for text in (file.before, file.after)
        }
        misplaced = _misplaced(before, after)
        if not all(map(_printed_runtimes, (before, after))):
            # CRI-O prints no table as long as only the built-in runtimes are defined (pkg/config/template.go, measured
            # on 1.36.3). First 1.24.0, last without it 1.23.5.
            names.update(crio_config.builtin_runtimes(None))

        def is_own(path: tuple[str, ...]) -> bool:
            if path[: len(crio_config.RUNTIME)] == crio_config.RUNTIME and path[-1] in misplaced:
                return True
            if path[: len(crio_config.RUNTIMES)] != crio_config.RUNTIMES:
                return path == crio_config.DEFAULT and len(defaults) > 1
            # CRI-O prints a name with a dot without quotation marks.
            inner = path[len(crio_config.RUNTIMES) :]
            return any(".".join(inner[:end]) in names for end in range(1, len(inner)))

        return toml_plan.compare_dumps(before, after, is_own)

    def printed_state(self, dump: str, _version: tuple[int, ...] | None) -> engines_base.ConfiguredState | None:
        document, tables = toml_plan.parse_dump(dump), _printed_runtimes(dump)
        if document is None or not tables:
            return None
        programs = {name: {"path": path} for name, path in _programs(tables, "")}
        return engines_base.ConfiguredState(programs, document.value(*crio_config.DEFAULT))


def _printed_runtimes(dump: str) -> dict[str, t.Any]:
    document = toml_plan.parse_dump(dump)
    tables = document.value(*crio_config.RUNTIMES) if document is not None else None
    return tables if isinstance(tables, dict) else {}


def _misplaced(before: str, after: str) -> set[str]:
    """Return settings that both dumps print equally often with the same value, but perhaps in other tables.

    CRI-O prints some of its own settings, such as timezone, behind the tables of the runtimes, where they look like
    settings of the last one (pkg/config/template.go of 1.28.11 and 1.36.3).
    """
    known = set(crio_config.RUNTIME_FIELDS.names)
    printed: list[dict[str, list[t.Any]]] = [{}, {}]
    for dump, values in zip((before, after), printed):
        document = toml_plan.parse_dump(dump)
        table = document.value(*crio_config.RUNTIME) if document is not None else None
        for path, value in toml_parser.iter_leaves(table if isinstance(table, dict) else {}):
            if not known.intersection(path):
                values.setdefault(path[-1], []).append(value)
    return {key for key, values in printed[0].items() if values == printed[1].get(key)}


def _programs(tables: t.Mapping[str, t.Any], prefix: str) -> t.Iterator[tuple[str, t.Any]]:
    """Yield the name and the program of each printed runtime. The parts of a name with dots are nested tables."""
    for name, entry in tables.items():
        if isinstance(entry, dict):
            if crio_config.PROGRAM in entry:
                yield prefix + name, entry[crio_config.PROGRAM]
            yield from _programs(entry, f"{prefix}{name}.")


def _argv(binary: str, path: str, directory: str) -> list[str]:
    return [binary, "--config", path, "--config-dir", directory, "config"]


def _without_hooks(files: t.Sequence[core_plan.PlannedFile]) -> list[core_plan.PlannedFile]:
    """Return the files without OCI hooks, which are not part of the configuration that CRI-O prints."""
    return [file for file in files if posixpath.basename(file.path) != nvidia_files.HOOK_NAME]


def _config_paths(host: hostfs.HostFS, installation: engines_base.Installation) -> list[str]:
    """Return all paths that change when a configuration file is changed, added or removed."""
    directory = crio_config.config_dir(installation.unit)
    if not directory:
        return [installation.config_path]
    drop_ins = host.walk(directory)
    folders = dict.fromkeys(posixpath.dirname(path) for path in drop_ins)
    return [installation.config_path, directory, *drop_ins, *folders]


def _existing_paths(host: hostfs.HostFS, paths: list[str]) -> list[str]:
    """Return the paths, replacing each missing one by its directory, which changed when the path was removed."""
    return [path if host.exists(path) else posixpath.dirname(path) for path in paths]


def _created_hook_dirs(host: hostfs.HostFS) -> list[str]:
    """Return the hook directories that this collection created. A CRI-O that was started before does not watch them."""
    found = []
    for folder in nvidia_files.HOOK_FOLDERS:
        with contextlib.suppress(errors.HostError):
            real = host.resolve(folder)
            record = core_records.load_record(host, "crio", f"{real}/{nvidia_files.HOOK_NAME}")
            if record is not None and real in record.created_directories:
                found.append(folder)
    return found


CRIO = Crio()
