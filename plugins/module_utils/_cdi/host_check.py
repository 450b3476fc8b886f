# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check whether a specification fits its host: files, device numbers, driver version."""

from __future__ import annotations

import json
import os
import posixpath
import re
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import detect as gpu_detect
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    Edits = t.Mapping[str, t.Any]

    # The parts of _gpu/inventory that this file needs. An import, even a type-only one, would send that module and its
    # imports to every host whose specifications are read.
    class Gpu(t.Protocol):
        @property
        def minor(self) -> int: ...
        @property
        def mig(self) -> bool: ...
        @property
        def migs(self) -> t.Sized: ...

    class Machine(t.Protocol):
        @property
        def gpus(self) -> t.Sequence[Gpu]: ...


# The device that stands for all others.
ALL = "all"
_TYPES = {"c": stat.S_ISCHR, "u": stat.S_ISCHR, "b": stat.S_ISBLK, "p": stat.S_ISFIFO}
_LDCONFIG = "--ldconfig-path"
# The libraries whose names contain the driver's version. The second is used if the first is not mounted.
_VERSIONED = tuple(re.compile(rf"{name}\.so\.([0-9]+(?:\.[0-9]+)+)") for name in ("libcuda", "libnvidia-ml"))


class Required(t.NamedTuple):
    """What a specification must contain: device nodes, as containers see them, and a number of GPUs and MIG devices."""

    nodes: frozenset[str] = frozenset()
    devices: int = 0


class HostVerdict(t.NamedTuple):
    """Errors and warnings as messages. A specification with errors must not be written."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def required_of(machine: Machine, mig_nodes: t.Iterable[str] = ()) -> Required:
    """Return what a specification of the GPUs of ``machine`` must contain: all GPUs, their nodes and the driver's.

    A GPU in MIG mode is described by its MIG devices. These need the node of the GPU, and their own ``mig_nodes``. A
    GPU in MIG mode without MIG devices is not required.
    """
    whole = [gpu for gpu in machine.gpus if not gpu.mig]
    split = [gpu for gpu in machine.gpus if gpu.mig and gpu.migs]
    nodes = [*gpu_detect.NEEDED_NODES, *(f"/dev/nvidia{gpu.minor}" for gpu in [*whole, *split]), *mig_nodes]
    return Required(frozenset(nodes), len(whole) + sum(len(gpu.migs) for gpu in split))


def check_host(
    document: t.Mapping[str, t.Any],
    host: hostfs.HostFS,
    required: Required | None = None,
    hooks_may_come: bool = False,
    missing: t.Collection[str] = (),
) -> HostVerdict:
    """Return what prevents containers with the devices of ``document`` from starting on ``host``, and what they lack.

    required: what the document must contain; None for no requirements beyond the document itself.
    hooks_may_come: report a missing hook program as a warning, since check mode does not install the toolkit.
    missing: paths that are known to be missing. They are not reported again.
    """
    check = _Check(host, hooks_may_come, missing)
    if required is not None:
        check.required(document, required)
    for place, edits in _all_edits(document):
        check.edits(place, edits)
    return HostVerdict(tuple(check.errors), tuple(check.warnings))


def missing_paths(document: t.Mapping[str, t.Any], host: hostfs.HostFS) -> list[str]:
    """Return the document's paths that the host lacks: sources of mounts, device nodes and hook programs."""
    missing: dict[str, None] = {}
    for _place, edits in _all_edits(document):
        sources = [mount["hostPath"] for mount in edits.get("mounts", ()) if cdi_validate.is_bind(mount)]
        programs = [hook["path"] for hook in edits.get("hooks", ())]
        nodes = [_on_host(node) for node in edits.get("deviceNodes", ())]
        missing.update((path, None) for path in [*sources, *programs] if not host.exists(path))
        missing.update((path, None) for path in nodes if _status(host, path) is None)
    return [path for path in missing if path.startswith("/")]


def _all_edits(document: t.Mapping[str, t.Any]) -> list[tuple[str, Edits]]:
    devices = enumerate(document.get("devices", ()))
    return [
        (cdi_schema.EDITS, document.get(cdi_schema.EDITS, {})),
        *((f"devices[{index}].{cdi_schema.EDITS}", device.get(cdi_schema.EDITS, {})) for index, device in devices),
    ]


def _on_host(node: t.Mapping[str, t.Any]) -> str:
    return str(node.get("hostPath") or node["path"])


def _status(host: hostfs.HostFS, path: str) -> os.stat_result | None:
    """Return the status of ``path``, or None. The last link is not followed, as engines do for device nodes."""
    try:
        return os.lstat(host.real_path(path, last=False))
    except (core_errors.HostError, OSError, ValueError):
        # ValueError: the path cannot be the name of a file.
        return None


def _is_program(host: hostfs.HostFS, path: str) -> bool:
    try:
        return host.is_executable(path)
    except ValueError:
        return False


# -- comparing a document with a host ---------------------------------------------------------------------------------


class _Check:
    def __init__(self, host: hostfs.HostFS, hooks_may_come: bool, missing: t.Collection[str]) -> None:
        self._host = host
        self._missing = missing
        self._hooks_may_come = hooks_may_come
        self._majors: t.Mapping[str, int] | None = None
        # Several devices contain the same node; it is reported once.
        self._seen: set[str] = set()
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def required(self, document: t.Mapping[str, t.Any], required: Required) -> None:
        nodes = [node for _place, edits in _all_edits(document) for node in edits.get("deviceNodes", ())]
        named = {node["path"] for node in nodes} | {_on_host(node) for node in nodes}
        for path in sorted(required.nodes - named):
            self.errors.append(
                f"The specification lacks {path}. {device_nodes.fix_for_node(path)}, then generate it again."
            )
        described = _described(document)
        if described < required.devices:
            self.errors.append(
                f"The driver reports {required.devices} GPUs and MIG devices, but the specification describes"
                f" {described}. Look for nodes of the others that are missing in /dev, then generate it again."
            )

    def edits(self, place: str, edits: Edits) -> None:
        for index, node in enumerate(edits.get("deviceNodes", ())):
            if self._new("node", node):
                self._node(f"{place}.deviceNodes[{index}]", node)
        for index, mount in enumerate(edits.get("mounts", ())):
            if self._new("mount", mount):
                self._mount(f"{place}.mounts[{index}]", mount)
        for index, hook in enumerate(edits.get("hooks", ())):
            self._hook(f"{place}.hooks[{index}]", hook)

    def _new(self, kind: str, item: t.Any) -> bool:
        text = f"{kind} {json.dumps(item, sort_keys=True)}"
        if text in self._seen:
            return False
        self._seen.add(text)
        return True

    def _node(self, place: str, node: t.Mapping[str, t.Any]) -> None:
        path = _on_host(node)
        if not path.startswith("/") or path in self._missing:
            # The validation of the document reports relative paths.
            return
        status = _status(self._host, path)
        if status is None:
            self.errors.append(
                f"{_shown(path)}, the device of {place}, is not there. {device_nodes.fix_for_node(path)}."
            )
            return
        fits = _TYPES.get(node.get("type", ""))
        if fits is None and not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            self.errors.append(
                f"{_shown(path)}, the device of {place}, is no device node. Name the node itself, not a link to it."
            )
            return
        if fits is not None and not fits(status.st_mode):
            self.errors.append(
                f"{_shown(path)}, the device of {place}, is not of the type {node['type']}. {device_nodes.MAKE_AGAIN}."
            )
            return
        if self._is_of_driver(_shown(path), node["path"], status) and node.get("major"):
            # Without a major number, engines read the node's numbers from the host.
            self._numbers(_shown(path), place, node, status)

    def _is_of_driver(self, path: str, name: str, status: os.stat_result) -> bool:
        """Return whether the node ``name``, as containers see it, has the driver's numbers. Record an error if not."""
        if self._majors is None:
            self._majors = device_nodes.kernel_majors(self._host)
        numbers = device_nodes.numbers_of(name, self._majors)
        if numbers is None:
            return True
        major, minor = numbers
        found = os.major(status.st_rdev), os.minor(status.st_rdev)
        if found == (found[0] if major is None else major, minor):
            return True
        right = f"minor number is {minor}" if major is None else f"is {_colon((major, minor))}"
        self.errors.append(
            f"{path} is the device {_colon(found)}, but the driver's {right}. Remove it."
            f" {device_nodes.fix_for_node(name)}."
        )
        return False

    def _numbers(self, path: str, place: str, node: t.Mapping[str, t.Any], status: os.stat_result) -> None:
        baked = node["major"], node.get("minor", 0)
        found = os.major(status.st_rdev), os.minor(status.st_rdev)
        if baked != found:
            self.errors.append(
                f"{path} is the device {_colon(found)}, but {place} says {_colon(baked)}, and engines believe that."
                f" {device_nodes.MAKE_AGAIN}."
            )
        mode = status.st_mode & 0o777
        if node.get("fileMode", mode) & 0o777 != mode or node.get("gid", 0) != status.st_gid:
            self.warnings.append(
                f"{path} has mode {mode:04o} and group {status.st_gid}, but {place} says otherwise."
                f" {device_nodes.MAKE_AGAIN}."
            )

    def _mount(self, place: str, mount: t.Mapping[str, t.Any]) -> None:
        path = mount["hostPath"]
        if (
            cdi_validate.is_bind(mount)
            and path.startswith("/")
            and path not in self._missing
            and not self._host.exists(path)
        ):
            self.errors.append(f"{_shown(path)}, the source of {place}, is not there. {device_nodes.MAKE_AGAIN}.")

    def _hook(self, place: str, hook: t.Mapping[str, t.Any]) -> None:
        path = hook["path"]
        looked_for = path.startswith("/") and path not in self._missing and self._new("program", path)
        if looked_for and not _is_program(self._host, path):
            said = (
                f"{_shown(path)}, the program of {place}, is not there, or cannot be run: no container with these"
                " devices would start. Install the NVIDIA Container Toolkit, name the program in cdi_hook_path, or use"
                " hooks: none."
            )
            (self.warnings if self._hooks_may_come else self.errors).append(said)
        ldconfig = _ldconfig(hook.get("args", ()))
        if ldconfig and self._new("program", ldconfig) and not _is_program(self._host, ldconfig):
            self.warnings.append(
                f"{_shown(ldconfig)}, which {place} runs, is not there. Name the host's ldconfig in ldconfig_path."
            )


def _ldconfig(arguments: t.Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        name, equals, value = argument.partition("=")
        if name == _LDCONFIG:
            return value if equals else following
    return ""


def _shown(path: str) -> str:
    return path if path.isprintable() and len(path) < 200 else core_text.quoted(path)


def _colon(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}:{numbers[1]}"


def _described(document: t.Mapping[str, t.Any]) -> int:
    """Return the number of different devices. Naming strategies repeat them, and the device "all" is not counted."""
    single = [device for device in document.get("devices", ()) if device.get("name") != ALL]
    return len({json.dumps(device.get(cdi_schema.EDITS, {}), sort_keys=True) for device in single})


# -- comparing a document with a newer one ----------------------------------------------------------------------------


def same_meaning(one: t.Mapping[str, t.Any], other: t.Mapping[str, t.Any]) -> bool:
    """Return whether two documents have the same effect on containers."""
    return bool(_meaning(one) == _meaning(other))


def staleness(old: t.Mapping[str, t.Any], new: t.Mapping[str, t.Any], host: hostfs.HostFS | None = None) -> list[str]:
    """Return the reasons to replace ``old`` by ``new`` as messages; none if both have the same effect.

    With ``host``, the reasons include the paths of the old document that no longer exist.
    """
    if same_meaning(old, new):
        return []
    reasons = _changed_header(old, new)
    driver = driver_of(old), driver_of(new)
    if all(driver) and driver[0] != driver[1]:
        reasons.append(f"It is for the driver {driver[0]}; now it is {driver[1]}.")
    reasons += _changed_devices(old, new)
    reasons += _changed_numbers(old, new)
    reasons += _changed_edits("What all devices share", _common(old), _common(new))
    if host is not None:
        gone = missing_paths(old, host)
        if gone:
            reasons.append(f"Not there any more: {core_text.listed([_shown(path) for path in gone])}.")
    return reasons or ["It has other annotations."]


def _changed_header(old: t.Mapping[str, t.Any], new: t.Mapping[str, t.Any]) -> list[str]:
    reasons = []
    if old.get("kind") != new.get("kind"):
        reasons.append(f"It describes {old.get('kind')}; now it is {new.get('kind')}.")
    if _version(old) != _version(new):
        reasons.append(f"It is of CDI version {_version(old)}; now it is {_version(new)}.")
    return reasons


def _changed_devices(old: t.Mapping[str, t.Any], new: t.Mapping[str, t.Any]) -> list[str]:
    before, after = _by_name(old), _by_name(new)
    added, removed = [name for name in after if name not in before], [name for name in before if name not in after]
    reasons = []
    if added:
        reasons.append(f"It lacks the devices {core_text.listed(added)}.")
    if removed:
        reasons.append(f"It has the devices {core_text.listed(removed)}, which are gone.")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, edits in after.items():
        fields = _changed_fields(before[name], edits) if name in before else ()
        if fields:
            groups.setdefault(fields, []).append(name)
    for fields, names in groups.items():
        reasons.append(f"The devices named {core_text.listed(names)} differ in {', '.join(fields)}.")
    return reasons


def _changed_numbers(old: t.Mapping[str, t.Any], new: t.Mapping[str, t.Any]) -> list[str]:
    before, after = _numbers(old), _numbers(new)
    return [
        f"{_shown(path)} is the device {_colon(numbers)} there; now it is {_colon(after[path])}."
        for path, numbers in before.items()
        if path in after and after[path] != numbers
    ]


def _changed_edits(what: str, old: Edits, new: Edits) -> list[str]:
    fields = _changed_fields(old, new)
    reasons = []
    for field, key in (("mounts", "containerPath"), ("deviceNodes", "path")):
        before, after = _values(old, field, key), _values(new, field, key)
        for verb, names in (("lacks", after - before), ("still has", before - after)):
            if names:
                reasons.append(f"{what} {verb} {core_text.listed([_shown(name) for name in sorted(names)])}.")
                fields = tuple(name for name in fields if name != field)
    return [*reasons, f"{what} differs in {', '.join(fields)}."] if fields else reasons


def _changed_fields(old: Edits, new: Edits) -> tuple[str, ...]:
    """Return the names of the fields that differ. Device numbers are ignored: _changed_numbers() reports them."""
    before, after = _plain(old, numbered=False), _plain(new, numbered=False)
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


def _values(edits: Edits, field: str, key: str) -> frozenset[str]:
    return frozenset(str(item.get(key)) for item in edits.get(field, ()))


def _numbers(document: t.Mapping[str, t.Any]) -> dict[str, tuple[int, int]]:
    nodes = (node for _place, edits in _all_edits(document) for node in edits.get("deviceNodes", ()))
    return {node["path"]: (node.get("major", 0), node.get("minor", 0)) for node in nodes}


def _common(document: t.Mapping[str, t.Any]) -> Edits:
    common: Edits = document.get(cdi_schema.EDITS, {})
    return common


def _by_name(document: t.Mapping[str, t.Any]) -> dict[str, Edits]:
    return {device.get("name", ""): device.get(cdi_schema.EDITS, {}) for device in document.get("devices", ())}


def _version(document: t.Mapping[str, t.Any]) -> str:
    version = str(document.get("cdiVersion", ""))
    return version[1:] if version.startswith("v") else version


def driver_of(document: t.Mapping[str, t.Any]) -> str:
    """Return the version of the driver whose libraries are mounted, or an empty string."""
    names = [posixpath.basename(mount["hostPath"]) for mount in _common(document).get("mounts", ())]
    found = (pattern.fullmatch(name) for pattern in _VERSIONED for name in names)
    return next((match.group(1) for match in found if match), "")


def _meaning(document: t.Mapping[str, t.Any]) -> t.Any:
    """Return the data to compare. Empty fields and the order of devices, nodes, mounts and groups have no effect."""
    devices = {
        device.get("name", ""): (_plain(device.get(cdi_schema.EDITS, {})), device.get("annotations") or {})
        for device in document.get("devices", ())
    }
    annotations = document.get("annotations") or {}
    return document.get("kind"), _version(document), devices, _plain(_common(document)), annotations


def _plain(edits: Edits, numbered: bool = True) -> dict[str, t.Any]:
    plain = {name: value for name, value in edits.items() if value or name == "intelRdt"}
    if "deviceNodes" in plain:
        nodes = [_plain_node(node, numbered) for node in plain["deviceNodes"]]
        plain["deviceNodes"] = sorted(nodes, key=lambda node: json.dumps(node, sort_keys=True))
    for field in ("mounts", "hooks"):
        if field in plain:
            plain[field] = [{name: value for name, value in item.items() if value} for item in plain[field]]
    if "mounts" in plain:
        # Engines sort mounts by depth, and keep the order of mounts of the same depth.
        plain["mounts"].sort(key=lambda mount: posixpath.normpath(mount["containerPath"]).count("/"))
    if "additionalGids" in plain:
        plain["additionalGids"] = sorted(set(plain["additionalGids"]))
    return plain


def _plain_node(node: t.Mapping[str, t.Any], numbered: bool) -> dict[str, t.Any]:
    # Zero is a valid owner or mode. Without these fields, the node gets those of the container's process.
    plain = {name: value for name, value in node.items() if value or name in ("uid", "gid", "fileMode")}
    if plain.get("hostPath") == plain.get("path"):
        plain.pop("hostPath", None)
    if not numbered:
        plain.pop("major", None)
        plain.pop("minor", None)
    plain.setdefault("permissions", "rwm")
    return plain


_VENDOR = "nvidia.com"
PATH_MISSING = "path-missing"


def why_stale(
    document: t.Mapping[str, t.Any], host: hostfs.HostFS, driver: str | None = None
) -> tuple[list[core_errors.Problem], list[str]]:
    """Return the reasons why ``document`` does not fit ``host``, and its paths that do not exist.

    ``driver`` is the version of the loaded driver, or None if it is unknown.
    """
    missing = missing_paths(document, host)
    message = f"Not there any more: {core_text.listed([repr(path)[1:-1] for path in missing])}."
    reasons = [core_errors.Problem(PATH_MISSING, message)] if missing else []
    reasons += [
        core_errors.Problem("path-differs", error) for error in check_host(document, host, missing=missing).errors
    ]
    vendor = cdi_schema.split_kind(document.get("kind", ""))[0]
    if vendor == _VENDOR or vendor.endswith(f".{_VENDOR}"):
        there = driver_of(document)
        if there and driver and there != driver:
            reasons.append(core_errors.Problem("driver-differs", f"It is for the driver {there}; now it is {driver}."))
    return reasons, missing
