# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the engine's own opinion of what would be written, asked before it is.

from __future__ import annotations

import os
import posixpath
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import GpufleetError, HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._scratch import SCRATCH, scratch_folder
from ansible_collections.gpufleet.nvidia.plugins.module_utils._validator_words import without_secrets
from ansible_collections.gpufleet.nvidia.plugins.module_utils._writing import explain

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import Context, Engine
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot

    # Runs a command, returns its exit status, standard output and standard error.
    Runner = t.Callable[[t.List[str]], t.Tuple[int, str, str]]


class Judge(t.NamedTuple):
    """One engine of one host as a judge; ``strict`` fails where it cannot judge."""

    engine: Engine
    host: HostRoot
    run: Runner
    binary: str | None
    strict: bool

    def check(self, files: t.Sequence[PlannedFile], context: Context) -> None:
        """Raises GpufleetError for files that the engine would not start with, or would misread."""
        if self.binary is None or not self.host.live:
            if files:
                self._refuse_blind()
            return
        for group in [files] if self.engine.judged_together else [(file,) for file in files]:
            if group:
                self._check(self.binary, group, context)

    def objection(self, context: Context) -> str:
        """What the engine has against its files as they stand, in its own words; empty if nothing is known."""
        if self.binary is None:
            self._refuse_blind()
            return ""
        standing = PlannedFile(context.path, context.content, context.content)
        return self._objection(self.binary, (standing,), context, None)

    def _refuse_blind(self) -> None:
        if self.strict:
            raise HostError(f"validate is true, but no {self.engine.name} of this host can be run. Use validate: auto.")

    def _check(self, binary: str, files: t.Sequence[PlannedFile], context: Context) -> None:
        path = ", ".join(file.path for file in files)
        said = self._objection(binary, files, context, path)
        if said:
            raise GpufleetError(
                f"{path}: {self.engine.name} refuses what would be written; nothing was changed. It says: {said}."
                " Correct the file or the unit; validate: false writes it unjudged."
            )

    def _objection(self, binary: str, files: t.Sequence[PlannedFile], context: Context, compared: str | None) -> str:
        """What the engine says against ``files``; if it has nothing to say they are compared under that name."""
        with scratch_folder(self.host, "the validator") as (outer, folder):
            trial = self.engine.trial(binary, folder, files, context)
            for name, content in trial.files.items():
                _put(outer, name, content)
            status, output, errors = self.run(self.host.argv(trial.argv))
            if not status:
                if compared is not None:
                    self._compare(compared, trial.compare, output, files)
                return ""
        said = errors.strip() or output.strip()
        if self.engine.validator_missing(said):
            if self.strict:
                raise HostError(
                    f"validate is true, but this {self.engine.name} cannot judge its configuration. Use validate: auto."
                )
            return ""
        for name, real in trial.stands_for.items():
            said = said.replace(f"{folder}/{name}", real)
        said = without_secrets(said, self.engine.syntax, trial.files.values(), context.unit)
        return said or f"it ends with status {status}"

    def _compare(self, path: str, argv: t.Sequence[str], after: str, files: t.Sequence[PlannedFile]) -> None:
        if not argv:
            return
        status, before, _errors = self.run(self.host.argv(argv))
        # An engine that cannot read what stands now has nothing to compare with.
        complaint = self.engine.verdict(before, after, files) if not status else ""
        if complaint:
            raise GpufleetError(
                f"{path}: with what would be written, {self.engine.name} would {complaint}; nothing was changed."
                " validate: false writes it nevertheless."
            )


def _put(folder: str, name: str, content: bytes) -> None:
    path = os.path.join(folder, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise explain(f"A copy of {posixpath.basename(name)} in {SCRATCH}", "written", error) from error
