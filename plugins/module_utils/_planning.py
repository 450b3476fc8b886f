# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: what one run asks of one engine, and the plans that this makes of the files as they stand.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import parse_version
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._flavors import AUTO
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_files import HostFiles
from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import load_record, load_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import is_nvidia_program
from ansible_collections.gpufleet.nvidia.plugins.module_utils._targets import Target, resolve_target

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import (
        Context,
        Engine,
        EnginePlan,
        Installation,
        LiveState,
        PlannedFile,
    )
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._judging import Runner
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._legacy_files import Leftover
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._runtime_set import RuntimeRequest

_VERSION = re.compile(r"v?([0-9]+\.[0-9].*)")


class Options(t.NamedTuple):
    """The task's parameters; ``request`` is None for state=absent."""

    engine: str
    request: RuntimeRequest | None
    flavor: str = AUTO
    user: str | None = None
    service: str | None = None
    config_path: str | None = None
    engine_version: str | None = None
    validate: str = "auto"
    backup_dir: str | None = None
    purge_backups: bool = False
    purge_legacy: bool = False
    keep_unrecorded: bool = False
    require_runtime: bool = False


class Planning:
    """One engine of one host as this run finds it; plans are made of the files as they stand at the moment."""

    def __init__(self, options: Options, host: HostRoot, run: Runner) -> None:
        self.options = options
        self.host = host
        self.request = _checked(options.request, host)
        self.target: Target = resolve_target(host, options.engine, options.flavor, options.user, options.service)
        self.engine: Engine = self.target.load()
        if options.engine_version and parse_version(options.engine_version) is None:
            raise GpufleetError(
                f"engine_version {options.engine_version!r} is not a version. Write it in digits and dots, such as"
                " 26.1.5, or leave it out."
            )
        self._named_path = host.check_path("config_path", options.config_path) if options.config_path else None
        # What the last plan takes away for good.
        self.leftovers: tuple[Leftover, ...] = ()
        self.version = options.engine_version
        self.observe()
        self.version = self.version or ask_version(self.engine, self.installation, host, run)

    def observe(self) -> None:
        """Read how the engine is installed and what the running daemon says, which another run may change."""
        self.installation: Installation = self.engine.inspect(self.host, self.options.service)
        self.config_path = self._named_path or self.installation.config_path
        self.live: LiveState | None = self.engine.live(self.host, self.installation)
        if not self.options.engine_version and self.live is not None and self.live.version:
            self.version = self.live.version

    @property
    def removal(self) -> bool:
        return self.request is None

    @property
    def main_path(self) -> str:
        """The configuration file with all links resolved."""
        return self.host.resolve(self.config_path)

    @property
    def takes_effect(self) -> bool:
        """Whether the engine reads the file, as far as that can be known."""
        unit = self.installation.unit
        return (unit is not None and bool(unit.wrapper)) or self.main_path == self.host.resolve(
            self.installation.config_path
        )

    def plan(self) -> EnginePlan:
        return self._plan_of(self.context())

    def _plan_of(self, context: Context) -> EnginePlan:
        if not self.options.purge_legacy:
            return self._of(context)
        # Only who asks for it pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._legacy import Purge  # noqa: PLC0415

        purge = Purge(self.host, self.engine, context, self.request)
        self.leftovers = purge.leftovers
        return purge.plan(self._of)

    def _of(self, context: Context) -> EnginePlan:
        return self.engine.absent(context) if self.request is None else self.engine.present(self.request, context)

    def context(self) -> Context:
        """The files as they stand now; a removal that names no file is about all that the engine's records name."""
        path = self.main_path
        everything = self.removal and not self.options.config_path
        recorded = tuple(
            record.path
            for record in load_records(self.host, self.engine.key)
            if record.path != path and (everything or record.main == path)
        )
        files = HostFiles(self.host, self.engine.key)
        context = files.context(path, self.installation.unit, parse_version(self.version or ""), recorded)
        return context._replace(keep_unrecorded=self.options.keep_unrecorded)

    def unrecorded(self, plan: EnginePlan) -> list[str]:
        """The files that ``plan`` leaves because of ``keep_unrecorded``, and would change without it."""
        if not (self.removal and self.options.keep_unrecorded):
            return []
        context = self.context()
        try:
            full = self._plan_of(context._replace(keep_unrecorded=False))
        except GpufleetError:
            # This removal leaves the file; only one without keep_unrecorded is refused.
            return [context.path] if any(map(is_nvidia_program, plan.state.paths().values())) else []
        kept = {file.path: file.after for file in plan.files}
        return [file.path for file in full.files if file.changed and file.after != kept.get(file.path, file.before)]

    @property
    def keeps_everything(self) -> bool:
        """Whether a removal with ``keep_unrecorded`` has no record, and no interrupted change, to act on."""
        if not (self.removal and self.options.keep_unrecorded):
            return False
        # Only a removal pays for this import.
        from ansible_collections.gpufleet.nvidia.plugins.module_utils._notes import Note  # noqa: PLC0415

        notes = Note.of_changes(self.host, self.engine.key), Note.of_restart(self.host, self.engine.key)
        return not load_records(self.host, self.engine.key) and not any(note.exists() for note in notes)

    def gives_back(self, file: PlannedFile) -> bool:
        """Whether the file becomes what it was before us."""
        if file.after is None or not self.removal:
            return file.after is None
        record = load_record(self.host, self.engine.key, file.path)
        return record is not None and file.after == record.original


def ask_version(engine: Engine, installation: Installation, host: HostRoot, run: Runner) -> str | None:
    """The version that the engine's program prints; None where no program of the host may be run."""
    if not host.live or installation.binary is None:
        return None
    status, output, _errors = run(host.argv(engine.version_argv(installation.binary)))
    # The commit that follows may begin with a digit too, but has no dots.
    words = (_VERSION.match(word.strip(",")) for word in output.split())
    return next((word.group(1) for word in words if status == 0 and word is not None), None)


def _checked(request: RuntimeRequest | None, host: HostRoot) -> RuntimeRequest | None:
    """The request with its paths normalised; raises GpufleetError for one that no engine should be given."""
    if request is None:
        return None
    request.check()
    request = request._replace(runtime_dir=host.check_path("runtime_dir", request.runtime_dir))
    if request.drop_in_path is not None:
        request = request._replace(drop_in_path=host.check_path("drop_in_path", request.drop_in_path))
    return request
