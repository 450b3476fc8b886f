# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the validator of an engine on planned files, and redact its output."""

from __future__ import annotations

import json
import os
import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import json_document, masking, toml_document

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import base as engines_base
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd import units as systemd_units


# dockerd's message about a setting that is both in the unit and in the file. It prints both values, of any type.
_CONFLICT = re.compile(r"\(from flag: .*\)")
_NEXT_CONFLICT = re.compile(r", ([\w.-]+): \(from flag: ")


def redact(message: str, syntax: str, contents: t.Iterable[bytes], unit: systemd_units.Unit | None) -> str:
    """Return ``message`` without the secrets in ``contents`` and in the flags of ``unit``."""
    message = _CONFLICT.sub(_without_values, message)
    secrets = set(masking.secrets_of(unit.arguments if unit is not None else ()))
    for content in contents:
        secrets.update(masking.secrets_of(_read(syntax, content)))
    spellings = {spelling for value in secrets for spelling in (value, json.dumps(value)[1:-1], value.strip())}
    for spelling in sorted(spellings - {""}, key=len, reverse=True):
        pattern = re.escape(spelling)
        # A short secret is masked only as a whole word.
        if len(spelling) < masking.SHORTEST_HIDDEN:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        message = re.sub(pattern, masking.MASK, message)
    return masking.mask_urls(message)


def _without_values(found: re.Match[str]) -> str:
    shown = f"(from flag: {masking.MASK}, from file: {masking.MASK})"
    return shown + "".join(f", {name}: {shown}" for name in _NEXT_CONFLICT.findall(found.group()))


def _read(syntax: str, content: bytes) -> t.Any:
    try:
        if syntax == "json":
            return json_document.JsonDocument.from_bytes("", content).value()

        return toml_document.TomlDocument.from_bytes("", content).value()
    except core_errors.NvidiaError:
        return None


class ConfigValidator(t.NamedTuple):
    """The validator of one engine on one host. With ``strict``, a missing validator is an error."""

    engine: engines_base.Validator
    host: hostfs.HostFS
    run: core_plan.Runner
    binary: str | None
    strict: bool

    def check(
        self,
        files: t.Sequence[core_plan.PlannedFile],
        context: engines_base.Context,
        expected: engines_base.ConfiguredState,
    ) -> None:
        """Validate ``files``, which are the planned changes.

        ``expected`` contains the requested runtimes, and the default and the CDI setting if the task sets them. Raises
        NvidiaError if the engine would not start with the files, would interpret other settings differently, or if its
        own output lacks ``expected``.
        """
        if self.binary is None or not self.host.live:
            if files:
                self._refuse_if_strict()
            return
        for group in [files] if self.engine.validates_all_files else [(file,) for file in files]:
            if group:
                self._check(self.binary, group, context, expected)

    def validation_error(self, context: engines_base.Context) -> str:
        """Return the engine's error message about its current files, empty if it reports none."""
        if self.binary is None:
            self._refuse_if_strict()
            return ""
        current = core_plan.PlannedFile(context.path, context.content, context.content)
        return self._validation_error(self.binary, (current,), context, None, None)

    def _refuse_if_strict(self) -> None:
        if self.strict:
            raise core_errors.HostError(
                f"{core_errors.option:validate} is true, but {self.engine.name} cannot be run on this host. Set"
                f" {core_errors.option:validate}: auto."
            )

    def _check(
        self,
        binary: str,
        files: t.Sequence[core_plan.PlannedFile],
        context: engines_base.Context,
        expected: engines_base.ConfiguredState,
    ) -> None:
        path = ", ".join(file.path for file in files)
        message = self._validation_error(binary, files, context, path, expected)
        if message:
            raise core_errors.NvidiaError(
                f"{path} was not changed, because {self.engine.name} refuses the new content: {message}. Correct the"
                f" file or the unit, or set {core_errors.option:validate}: false to write the file without this check."
            )

    def _validation_error(
        self,
        binary: str,
        files: t.Sequence[core_plan.PlannedFile],
        context: engines_base.Context,
        compared: str | None,
        expected: engines_base.ConfiguredState | None,
    ) -> str:
        """Return the engine's error message about ``files``, empty if it reports none.

        If the files are valid, the dumps before and after are compared, and the later one with ``expected``.
        ``compared`` names the files in the error message. None: there is no comparison.
        """
        with lock.temp_directory(self.host, "the validator") as (process_path, folder):
            command = self.engine.validation_command(binary, folder, files, context)
            for name, content in command.files.items():
                _put(process_path, name, content)
            status, output, errors = self.run(self.host.argv(command.argv))
            if not status:
                if compared is not None and expected is not None:
                    self._compare(compared, command.compare, output, files)
                    self._require(compared, expected, self.engine.printed_state(output, context.version))
                return ""
        message = errors.strip() or output.strip()
        if self.engine.validator_missing(message):
            if self.strict:
                raise core_errors.HostError(
                    f"{core_errors.option:validate} is true, but this version of {self.engine.name} has no validator."
                    f" Set {core_errors.option:validate}: auto."
                )
            return ""
        for name, real in command.original_paths.items():
            message = message.replace(f"{folder}/{name}", real)
        message = redact(message, self.engine.syntax, command.files.values(), context.unit)
        return message.rstrip(".") or f"it exits with status {status}"

    def _compare(self, path: str, argv: t.Sequence[str], after: str, files: t.Sequence[core_plan.PlannedFile]) -> None:
        if not argv:
            return
        status, before, _errors = self.run(self.host.argv(argv))
        # If the engine cannot read its current files, there is nothing to compare with.
        changed = self.engine.compare_dumps(before, after, files) if not status else ""
        if changed:
            raise core_errors.NvidiaError(
                f"{path} was not changed. The new content would also change {changed} in the configuration of"
                f" {self.engine.name}, which this task does not set. Check these settings, or set"
                f" {core_errors.option:validate}: false to write the file without this check."
            )

    def _require(
        self, path: str, expected: engines_base.ConfiguredState, printed: engines_base.ConfiguredState | None
    ) -> None:
        """Raise NvidiaError if the engine printed other values for what the task sets."""
        if printed is None:
            return
        programs = printed.paths()
        found = {
            **{
                f"runtime {name} with the program": (program, programs.get(name))
                for name, program in expected.paths().items()
            },
            "default runtime": (expected.default_runtime, printed.default_runtime),
            "CDI setting": (expected.cdi if printed.cdi is not None else None, printed.cdi),
        }
        lacking = [
            f"the {what} {wanted} (it prints {value})"
            for what, (wanted, value) in found.items()
            if wanted not in (None, value)
        ]
        if lacking:
            raise core_errors.NvidiaError(
                f"{path} was not changed. {self.engine.name} would start with the new content, but without"
                f" {', '.join(lacking)}. Check whether its version and {core_errors.option:engine_version} are the"
                " same, and whether another file overrides these settings."
            )


def _put(folder: str, name: str, content: bytes) -> None:
    path = os.path.join(folder, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content)
    except OSError as error:
        raise core_errors.os_error(
            f"A copy of {posixpath.basename(name)} in {lock.TEMP_DIR}", "written", error
        ) from error
