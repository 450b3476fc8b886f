# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate a specification by the rules of the CDI library.

The rules are those of the CDI library 1.1.0, which engines contain. The library stops at the first error. This module
reports all of them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
# The lowest minimum that the library computes. Specifications that state an earlier version never load.
_EARLIEST = "0.3.0"

_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
# PATH_MAX of Linux, which includes the null byte at the end.
_PATH_LIMIT = 4096


class Need(t.NamedTuple):
    """A part of a document that needs a CDI version."""

    version: str
    place: str
    what: str


class ValidationResult(t.NamedTuple):
    """The result of a validation. A document is loaded if it has no ``errors``.

    ``document`` is the data as the library reads it: correct spelling of fields, strings and numbers of the required
    types, and no null values. If there are errors, it contains the parts that could be read.
    """

    errors: tuple[cdi_schema.Problem, ...]
    warnings: tuple[cdi_schema.Problem, ...]
    minimum_version: str
    document: dict[str, t.Any]


def validate(data: t.Any) -> ValidationResult:
    """Return the CDI library's result for parsed ``data`` of any shape. Never raises, and takes limited time."""
    reader = cdi_schema.Reader()
    document: dict[str, t.Any] = {}
    try:
        read = reader.read(data)
        if read is not None:
            document = read
            _Rules(reader, document).apply()
    except cdi_schema.TooMuchError:
        pass
    return ValidationResult(tuple(reader.errors), tuple(reader.warnings), _minimum(document), document)


def minimum_version(document: t.Mapping[str, t.Any]) -> str:
    """Return the lowest version that has everything the document uses."""
    return _minimum(_as_read(document))


def version_needs(document: t.Mapping[str, t.Any]) -> list[Need]:
    """Return the parts that need more than the earliest version, in the order of the document."""
    return _needs(_as_read(document))


def version_number(version: str) -> tuple[int, ...]:
    """Return a released version as a comparable tuple. Raises ValueError for any other version."""
    plain = version[1:] if version.startswith("v") else version
    if plain not in VERSIONS:
        raise ValueError(version)
    return tuple(int(part) for part in plain.split("."))


def _as_read(document: t.Any) -> dict[str, t.Any]:
    try:
        return cdi_schema.Reader().read(document) or {}
    except cdi_schema.TooMuchError:
        return {}


# -- versions ----------------------------------------------------------------------------------------------------------


def _minimum(document: t.Mapping[str, t.Any]) -> str:
    return max((need.version for need in _needs(document)), key=version_number, default=_EARLIEST)


def _needs(document: t.Mapping[str, t.Any]) -> list[Need]:
    needs = []
    vendor, name = cdi_schema.split_kind(document.get("kind", ""))
    if vendor and "." in name:
        needs.append(Need("0.6.0", "kind", "a dot in the class"))
    for place, holder in [("", document), *_devices(document)]:
        prefix = f"{place}." if place else ""
        if holder.get("annotations"):
            needs.append(Need("0.6.0", f"{prefix}annotations", "annotations"))
        if place and "0" <= holder.get("name", "")[:1] <= "9":
            needs.append(Need("0.5.0", f"{prefix}name", "the name of a device that begins with a digit"))
        needs += _needs_of_edits(f"{prefix}{cdi_schema.EDITS}", holder.get(cdi_schema.EDITS, {}))
    return needs


def _needs_of_edits(place: str, edits: t.Mapping[str, t.Any]) -> t.Iterator[Need]:
    for index, mount in enumerate(edits.get("mounts", ())):
        if mount and mount.get("type"):
            yield Need("0.4.0", f"{place}.mounts[{index}].type", "the type of a mount")
    for index, node in enumerate(edits.get("deviceNodes", ())):
        if node and node.get("hostPath"):
            yield Need("0.5.0", f"{place}.deviceNodes[{index}].hostPath", "another path of a device on the host")
    if edits.get("additionalGids"):
        yield Need("0.7.0", f"{place}.additionalGids", "additional groups")
    cache = edits.get("intelRdt")
    if cache is not None:
        yield Need("0.7.0", f"{place}.intelRdt", "a class of Intel RDT")
        if "schemata" in cache or cache.get("enableMonitoring"):
            yield Need("1.1.0", f"{place}.intelRdt", "schemata or monitoring of Intel RDT")
    if edits.get("netDevices"):
        yield Need("1.1.0", f"{place}.netDevices", "network interfaces")


def _devices(document: t.Mapping[str, t.Any]) -> list[tuple[str, dict[str, t.Any]]]:
    return [(f"devices[{index}]", device) for index, device in enumerate(document.get("devices", ()))]


# -- rules -------------------------------------------------------------------------------------------------------------


def _overlap(one: str, other: str) -> bool:
    """Return whether two places are equal, or one is inside the other."""
    shorter, longer = sorted((one, other), key=len)
    return longer.startswith(shorter) and longer[len(shorter) :][:1] in ("", ".", "[")


class _Rules:
    """The checks of the library for a document that it could read, and checks that it lacks."""

    def __init__(self, reader: cdi_schema.Reader, document: t.Mapping[str, t.Any]) -> None:
        self._reader = reader
        self._document = document
        # These values are missing in the document. Errors about them would be duplicates.
        self._unread = [problem.place for problem in reader.errors]

    def _error(self, place: str, what: str) -> None:
        if not any(_overlap(place, unread) for unread in self._unread):
            self._reader.error(place, what)

    def apply(self) -> None:
        self._version()
        self._kind()
        self._edits(cdi_schema.EDITS, self._document.get(cdi_schema.EDITS, {}))
        self._annotations("annotations", self._document)
        devices = _devices(self._document)
        if not devices:
            self._error("devices", "is empty. A specification needs a device")
        names: dict[str, str] = {}
        for place, device in devices:
            self._device(place, device)
            name = device.get("name", "")
            if name and name in names:
                self._error(f"{place}.name", f"is {core_text.quoted(name)}, as {names[name]}.name is")
            names.setdefault(name, place)

    def _version(self) -> None:
        version = self._document.get("cdiVersion", "")
        try:
            stated = version_number(version)
        except ValueError:
            known = ", ".join(VERSIONS[VERSIONS.index(_EARLIEST) :])
            self._error("cdiVersion", f"is {core_text.quoted(version)}, which is no version of CDI. Known are {known}")
            return
        needed = _minimum(self._document)
        if version_number(needed) > stated:
            needs = [need for need in _needs(self._document) if need.version == needed]
            why = f" for {needs[0].what} ({needs[0].place})" if needs else ""
            self._error("cdiVersion", f"is {version}, but the document needs {needed}{why}")

    def _kind(self) -> None:
        kind = self._document.get("kind", "")
        problem = cdi_schema.kind_problem(kind)
        if problem:
            self._error("kind", problem)
            return
        for doubt in cdi_schema.kind_doubts(kind):
            self._reader.warn("kind", doubt)

    def _annotations(self, place: str, holder: t.Mapping[str, t.Any]) -> None:
        for doubt in cdi_schema.annotation_doubts(holder.get("annotations", {})):
            self._reader.warn(place, doubt)

    def _device(self, place: str, device: t.Mapping[str, t.Any]) -> None:
        name = device.get("name", "")
        problem = cdi_schema.device_name_problem(name)
        if problem:
            self._error(f"{place}.name", problem)
        for doubt in cdi_schema.device_name_doubts(name):
            self._reader.warn(f"{place}.name", doubt)
        self._annotations(f"{place}.annotations", device)
        edits = device.get(cdi_schema.EDITS, {})
        if not any(value or name == "intelRdt" for name, value in edits.items()):
            self._error(f"{place}.{cdi_schema.EDITS}", "is empty. A device has to change something in a container")
        self._edits(f"{place}.{cdi_schema.EDITS}", edits)

    def _edits(self, place: str, edits: t.Mapping[str, t.Any]) -> None:
        self._environment(f"{place}.env", edits.get("env", ()))
        checks = (
            ("deviceNodes", self._node),
            ("hooks", self._hook),
            ("mounts", self._mount),
            ("netDevices", self._interface),
        )
        for field, check in checks:
            for index, item in enumerate(edits.get(field, ())):
                # None stands for an item that could not be read.
                if item is not None:
                    check(f"{place}.{field}[{index}]", item)
        self._repeated(f"{place}.deviceNodes", edits.get("deviceNodes", ()), "path", self._reader.warn)
        for name in ("hostInterfaceName", "name"):
            self._repeated(f"{place}.netDevices", edits.get("netDevices", ()), name, self._error)
        if 0 in edits.get("additionalGids", ()):
            self._reader.warn(f"{place}.additionalGids", "holds the group 0, which engines leave out")
        if "intelRdt" in edits:
            self._cache(f"{place}.intelRdt", edits["intelRdt"])

    def _environment(self, place: str, variables: t.Sequence[str]) -> None:
        for index, variable in enumerate(variables):
            # The message does not contain the variable, which may be a secret.
            if variable.find("=") <= 0:
                self._error(f"{place}[{index}]", "is not of the form NAME=value")

    def _repeated(self, place: str, items: t.Sequence[t.Any], field: str, say: t.Callable[[str, str], None]) -> None:
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            text = item.get(field, "") if item else ""
            if text and text in first:
                say(f"{place}[{index}].{field}", f"is {core_text.quoted(text)}, as {place}[{first[text]}].{field} is")
            first.setdefault(text, index)

    def _filled(self, place: str, item: t.Mapping[str, t.Any], field: str) -> str:
        text = str(item.get(field, ""))
        if not text:
            self._error(f"{place}.{field}", "is empty")
        return text

    def _absolute(self, place: str, item: t.Mapping[str, t.Any], field: str) -> None:
        text = item.get(field, "")
        if text and not text.startswith("/"):
            self._reader.warn(f"{place}.{field}", f"is the relative path {core_text.quoted(text)}. Write it from / on")

    def _node(self, place: str, node: t.Mapping[str, t.Any]) -> None:
        self._filled(place, node, "path")
        self._absolute(place, node, "path")
        self._absolute(place, node, "hostPath")
        if node.get("type", "") not in _NODE_TYPES:
            self._error(
                f"{place}.type", f"is {core_text.quoted(node['type'])}. It has to be one of b, c, u, p, or left out"
            )
        if node.get("permissions", "").strip("rwm"):
            self._error(f"{place}.permissions", f"is {core_text.quoted(node['permissions'])}. It may hold r, w, and m")
        for field in ("major", "minor"):
            if node.get(field, 0) < 0:
                self._reader.warn(f"{place}.{field}", "is negative, which newer engines refuse")

    def _hook(self, place: str, hook: t.Mapping[str, t.Any]) -> None:
        name = hook.get("hookName", "")
        if name not in _HOOK_NAMES:
            self._error(
                f"{place}.hookName", f"is {core_text.quoted(name)}. It has to be one of {', '.join(_HOOK_NAMES)}"
            )
        self._filled(place, hook, "path")
        self._absolute(place, hook, "path")
        self._environment(f"{place}.env", hook.get("env", ()))
        if hook.get("timeout", 0) < 0:
            self._reader.warn(f"{place}.timeout", "is negative")

    def _mount(self, place: str, mount: t.Mapping[str, t.Any]) -> None:
        self._filled(place, mount, "hostPath")
        self._filled(place, mount, "containerPath")
        self._absolute(place, mount, "containerPath")
        if not is_bind(mount):
            # Other file systems define their own sources and options.
            return
        self._absolute(place, mount, "hostPath")
        for index, option in enumerate(mount.get("options", ())):
            if option not in cdi_schema.MOUNT_OPTIONS:
                self._reader.warn(
                    f"{place}.options[{index}]", f"is {core_text.quoted(option)}, which is no known option"
                )

    def _interface(self, place: str, interface: t.Mapping[str, t.Any]) -> None:
        self._filled(place, interface, "hostInterfaceName")
        self._filled(place, interface, "name")

    def _cache(self, place: str, cache: t.Mapping[str, t.Any]) -> None:
        name = cache.get("closID", "")
        if name == "/":
            # "/" is the root class.
            return
        too_long = len(name.encode("utf-8", "replace")) >= _PATH_LIMIT
        if too_long or name in (".", "..") or "/" in name or "\n" in name:
            self._error(f"{place}.closID", f"is {core_text.quoted(name)}, which cannot be the name of a directory")


def is_bind(mount: t.Mapping[str, t.Any]) -> bool:
    """Return whether a mount shows a file or a directory of the host instead of another file system."""
    return mount.get("type", "") in ("", "bind", "none")
