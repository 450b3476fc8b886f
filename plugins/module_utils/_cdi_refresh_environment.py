# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Private to this collection: the environment file of the toolkit's refresh service: which variable says what of a CDI
# specification, and edits that leave every other line as it is.

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_edits import ALL
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_parameters import AUTO, CdiOptions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_refresh_units import ENVIRONMENT_FILE, OUTPUT
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi_request import NONE, Request
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import ConfigurationError, GpufleetError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._file_edit import FileEdit

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._engine import PlannedFile
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._record import FileRecord

    KeyPath = t.Tuple[str, ...]

# The variables that "nvidia-ctk cdi generate" reads instead of its flags (1.18 to 1.20), by fields of the request.
_PREFIX = "NVIDIA_CTK_CDI_GENERATE_"
_REQUEST_VARIABLES = {
    "vendor": f"{_PREFIX}VENDOR",
    "class_": f"{_PREFIX}CLASS",
    "device_name_strategies": f"{_PREFIX}DEVICE_NAME_STRATEGIES",
    "device_ids": f"{_PREFIX}DEVICE_IDS",
    "driver_root": "NVIDIA_CTK_DRIVER_ROOT",
    "dev_root": "NVIDIA_CTK_DEV_ROOT",
    "library_search_paths": f"{_PREFIX}LIBRARY_SEARCH_PATHS",
    "config_search_paths": f"{_PREFIX}CONFIG_SEARCH_PATHS",
    "cdi_hook_path": "NVIDIA_CTK_CDI_HOOK_PATH",
    "ldconfig_path": f"{_PREFIX}LDCONFIG_PATH",
    "feature_flags": f"{_PREFIX}FEATURE_FLAGS",
}
_FORMAT, _MODE = f"{_PREFIX}OUTPUT_FORMAT", f"{_PREFIX}MODE"
_ENABLED, _DISABLED = f"{_PREFIX}ENABLED_HOOKS", f"{_PREFIX}DISABLED_HOOKS"
_NO_ALL = f"{_PREFIX}NO_ALL_DEVICE"
# Its lists are separated so, and nothing escapes that.
_SEPARATOR = ","

_FRESH = b"# Options of nvidia-cdi-refresh.service, written by gpufleet.nvidia.\n"
_ASSIGNMENT = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*?)[ \t]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@+%=-]*")
# Within double quotes systemd takes a backslash before one of these away (EnvironmentFile= in systemd.exec(5)).
_ESCAPED = re.compile(r'(["\\$`])')


def variables(options: CdiOptions) -> dict[str, str]:
    """The variables by which the toolkit's service writes what ``options`` ask for; none for what it does anyway.

    Raises GpufleetError for values that no variable can carry.
    """
    request, usual = options.request, Request()
    found: dict[str, t.Any] = {}
    if options.path is not None:
        found[OUTPUT] = options.path
    if options.format is not None:
        found[_FORMAT] = options.format
    if options.mode != AUTO:
        found[_MODE] = options.mode
    for field, name in _REQUEST_VARIABLES.items():
        value = getattr(request, field)
        if value != getattr(usual, field):
            found[name] = value
    found.update(_hook_variables(request))
    if not request.all_device:
        found[_NO_ALL] = "true"
    return {name: _text(name, value) for name, value in found.items()}


def _hook_variables(request: Request) -> dict[str, t.Any]:
    if request.hooks == NONE:
        return {_DISABLED: ALL}
    named = {_ENABLED: request.enabled_hooks, _DISABLED: request.disabled_hooks}
    return {name: hooks for name, hooks in named.items() if hooks}


def _text(name: str, value: t.Any) -> str:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if not item.isprintable() or (isinstance(value, tuple) and _SEPARATOR in item):
            raise GpufleetError(
                f"{item!r} cannot be told to nvidia-cdi-refresh.service: {name} takes no"
                f" {'commas' if item.isprintable() else 'control characters'} in a value. Use another one, or"
                " owner: collection."
            )
    return _SEPARATOR.join(items)


class _Entry(t.NamedTuple):
    """An assignment: its first line, the one behind its last, its name and its value without quotes."""

    first: int
    end: int
    name: str
    value: str


class EnvironmentText(t.NamedTuple):
    """An environment file of systemd, line by line; of several assignments to a name the last counts."""

    path: str
    lines: tuple[str, ...]

    @classmethod
    def from_bytes(cls, path: str, content: bytes) -> EnvironmentText:
        """Raises ConfigurationError for a text that cannot be edited safely."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ConfigurationError(path, "this is not UTF-8", "Save the file as UTF-8.", line) from error
        found = cls(path, tuple(re.findall(r"[^\n]*\n|[^\n]+\Z", text)))
        found.entries()
        return found

    def to_bytes(self) -> bytes:
        return "".join(self.lines).encode("utf-8")

    def entries(self) -> list[_Entry]:
        found = []
        number = 0
        while number < len(self.lines):
            end = self._end(number)
            text = re.sub(r"\\\r?\n", "", "".join(self.lines[number:end])).rstrip("\r\n")
            match = None if text.lstrip()[:1] in ("#", ";") else _ASSIGNMENT.match(text)
            if match is not None:
                found.append(_Entry(number, end, match.group(1), self._value(number, match.group(2))))
            number = end
        return found

    def value(self, *path: str) -> str | None:
        entry = self._entry(path[-1])
        return None if entry is None else entry.value

    def has(self, *path: str) -> bool:
        return self._entry(path[-1]) is not None

    def set(self, path: KeyPath, value: t.Any) -> EnvironmentText:
        entry = self._entry(path[-1])
        if entry is not None and entry.value == value:
            return self
        return self._with(entry, (f"{path[-1]}={_spelled(value)}\n",))

    def delete(self, path: KeyPath) -> EnvironmentText:
        entry = self._entry(path[-1])
        return self if entry is None else self._with(entry, ())

    def restore(self, path: KeyPath, original: EnvironmentText) -> EnvironmentText:
        entry, former = self._entry(path[-1]), original._entry(path[-1])
        if former is None:
            return self.delete(path)
        return self._with(entry, original.lines[former.first : former.end])

    def _entry(self, name: str) -> _Entry | None:
        return next((entry for entry in reversed(self.entries()) if entry.name == name), None)

    def _with(self, entry: _Entry | None, lines: tuple[str, ...]) -> EnvironmentText:
        if entry is not None:
            return self._replace(lines=(*self.lines[: entry.first], *lines, *self.lines[entry.end :]))
        whole = not self.lines or self.lines[-1].endswith("\n")
        before = self.lines if whole else (*self.lines[:-1], self.lines[-1] + "\n")
        return self._replace(lines=(*before, *lines))

    def _end(self, number: int) -> int:
        """The line behind the one that ends what begins in line ``number``: a backslash goes on in the next."""
        while number < len(self.lines) - 1 and self.lines[number].rstrip("\r\n").endswith("\\"):
            number += 1
        return number + 1

    def _value(self, number: int, spelled: str) -> str:
        quote = spelled[:1]
        if quote not in ('"', "'"):
            return spelled
        body = re.fullmatch(r"'([^']*)'" if quote == "'" else r'"((?:[^"\\]|\\.)*)"', spelled)
        if body is None:
            raise ConfigurationError(
                self.path,
                "this value is not one string in quotes",
                "Write it on one line, in quotes that end where it ends.",
                number + 1,
            )
        return body.group(1) if quote == "'" else re.sub(r"\\(.)", r"\1", body.group(1))


def _spelled(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else '"' + _ESCAPED.sub(r"\\\1", value) + '"'


def environment_file(
    content: bytes | None, record: FileRecord | None, wanted: t.Mapping[str, str], path: str = ENVIRONMENT_FILE
) -> PlannedFile:
    """The file, links in ``path`` resolved, that says ``wanted``, and no longer what earlier runs wrote beside that."""
    edit = FileEdit(EnvironmentText.from_bytes, path, content, record, _FRESH)
    for key in edit.recorded():
        if key[-1] not in wanted:
            edit.give_back(key)
    for name, value in wanted.items():
        edit.write((name,), value)
    made_by_us = content is None or (record is not None and record.created)
    after = None if made_by_us and edit.emptied else edit.document.to_bytes()
    planned = edit.planned(after)
    if not planned.keys and record is not None and record.restorable(content):
        return planned._replace(after=record.original)
    return planned
