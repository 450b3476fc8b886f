# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate a specification by the rules of the CDI library.

The rules are those of the CDI library 1.1.0, which engines contain. The library stops at the first error. This module
reports the first 100.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import versions as cdi_versions
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

if t.TYPE_CHECKING:
    Data = t.Mapping[str, t.Any]


_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
# PATH_MAX of Linux, which includes the null byte at the end.
_PATH_LIMIT = 4096


class ValidationResult(t.NamedTuple):
    """The result of a validation. A document is loaded if it has no ``errors``.

    ``document`` is the data as the library reads it: correct spelling of fields, strings and numbers of the required
    types, and no null values. If there are errors, it contains the parts that could be read.
    """

    errors: tuple[cdi_schema.SpecificationProblem, ...]
    document: dict[str, t.Any]


def validate(data: t.Any) -> ValidationResult:
    """Return the CDI library's result for parsed ``data`` with string keys. Never raises, and takes limited time."""
    reader = cdi_schema.Reader()
    document: dict[str, t.Any] = {}
    try:
        read = reader.read(data)
        if read is not None:
            document = read
            _Rules(reader, document).apply()
    except cdi_schema.LimitError:
        pass
    return ValidationResult(tuple(reader.errors), document)


def _overlap(one: str, other: str) -> bool:
    """Return whether two fields are equal, or one is inside the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer.startswith(shorter) and longer[len(shorter) :][:1] in ("", ".", "[")


class _Rules:
    """The checks of the library for a document that it could read."""

    def __init__(self, reader: cdi_schema.Reader, document: Data) -> None:
        self._reader = reader
        self._document = document
        # These values are missing in the document. Errors about them would be duplicates.
        self._unreadable_fields = [problem.field for problem in reader.errors]

    def _error(self, field: str, message: str) -> None:
        if not any(_overlap(field, unreadable) for unreadable in self._unreadable_fields):
            self._reader.error(field, message)

    def apply(self) -> None:
        self._version()
        self._kind()
        self._edits(cdi_schema.EDITS, self._document.get(cdi_schema.EDITS, {}))
        devices = cdi_schema.devices(self._document)
        if not devices:
            self._error("devices", "is empty. A specification must have a device")
        names: dict[str, str] = {}
        for field, device in devices:
            self._device(field, device)
            name = device.get("name", "")
            if name and name in names:
                self._error(f"{field}.name", f"is {core_text.quoted(name)}, the same as {names[name]}.name")
            names.setdefault(name, field)

    def _version(self) -> None:
        version = self._document.get("cdiVersion", "")
        try:
            stated = cdi_versions.version_number(version)
        except ValueError:
            known = ", ".join(cdi_versions.VERSIONS[cdi_versions.VERSIONS.index(cdi_versions.EARLIEST) :])
            self._error("cdiVersion", f"is {core_text.quoted(version)}, an unknown version. Known versions: {known}")
            return
        needs = cdi_versions.version_needs(self._document)
        needed = cdi_versions.highest_need(needs)
        if cdi_versions.version_number(needed) > stated:
            reason = next((f" for {need.what} ({need.field})" for need in needs if need.version == needed), "")
            self._error("cdiVersion", f"is {version}, but the document needs {needed}{reason}")

    def _kind(self) -> None:
        kind = self._document.get("kind", "")
        problem = cdi_schema.kind_problem(kind)
        if problem:
            self._error("kind", problem)

    def _device(self, field: str, device: Data) -> None:
        name = device.get("name", "")
        problem = cdi_schema.device_name_problem(name)
        if problem:
            self._error(f"{field}.name", problem)
        edits = device.get(cdi_schema.EDITS, {})
        if not any(value or name == "intelRdt" for name, value in edits.items()):
            self._error(f"{field}.{cdi_schema.EDITS}", "is empty. A device must change the container")
        self._edits(f"{field}.{cdi_schema.EDITS}", edits)

    def _edits(self, field: str, edits: Data) -> None:
        self._environment(f"{field}.env", edits.get("env", ()))
        checks = (
            ("deviceNodes", self._node),
            ("hooks", self._hook),
            ("mounts", self._mount),
            ("netDevices", self._interface),
        )
        for key, check in checks:
            for index, item in enumerate(edits.get(key, ())):
                # None stands for an item that could not be read.
                if item is not None:
                    check(f"{field}.{key}[{index}]", item)
        for name in ("hostInterfaceName", "name"):
            self._check_unique(f"{field}.netDevices", edits.get("netDevices", ()), name)
        if "intelRdt" in edits:
            self._rdt(f"{field}.intelRdt", edits["intelRdt"])

    def _environment(self, field: str, variables: t.Sequence[str]) -> None:
        for index, variable in enumerate(variables):
            # The message does not contain the variable, which may be a secret.
            if variable.find("=") <= 0:
                self._error(f"{field}[{index}]", "does not have the form NAME=value")

    def _check_unique(self, field: str, items: t.Sequence[t.Any], key: str) -> None:
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            text = item.get(key, "") if item else ""
            if text and text in first:
                self._error(
                    f"{field}[{index}].{key}", f"is {core_text.quoted(text)}, the same as {field}[{first[text]}].{key}"
                )
            first.setdefault(text, index)

    def _require(self, field: str, item: Data, key: str) -> None:
        if not item.get(key, ""):
            self._error(f"{field}.{key}", "is empty")

    def _node(self, field: str, node: Data) -> None:
        self._require(field, node, "path")
        if node.get("type", "") not in _NODE_TYPES:
            self._error(f"{field}.type", f"is {core_text.quoted(node['type'])}. Use b, c, u or p, or remove it")
        if node.get("permissions", "").strip("rwm"):
            self._error(
                f"{field}.permissions",
                f"is {core_text.quoted(node['permissions'])}. Only the letters r, w and m are allowed",
            )

    def _hook(self, field: str, hook: Data) -> None:
        name = hook.get("hookName", "")
        if name not in _HOOK_NAMES:
            self._error(f"{field}.hookName", f"is {core_text.quoted(name)}. Use one of {', '.join(_HOOK_NAMES)}")
        self._require(field, hook, "path")
        self._environment(f"{field}.env", hook.get("env", ()))

    def _mount(self, field: str, mount: Data) -> None:
        self._require(field, mount, "hostPath")
        self._require(field, mount, "containerPath")

    def _interface(self, field: str, interface: Data) -> None:
        self._require(field, interface, "hostInterfaceName")
        self._require(field, interface, "name")

    def _rdt(self, field: str, rdt: Data) -> None:
        name = rdt.get("closID", "")
        if name == "/":
            # The name of the root class.
            return
        too_long = len(name.encode("utf-8", "replace")) >= _PATH_LIMIT
        if too_long or name in (".", "..") or "/" in name or "\n" in name:
            self._error(f"{field}.closID", f"is {core_text.quoted(name)}, which is not a valid directory name")


def is_bind(mount: Data) -> bool:
    """Return whether a mount shows a file or a directory of the host instead of another file system."""
    return mount.get("type", "") in ("", "bind", "none")
