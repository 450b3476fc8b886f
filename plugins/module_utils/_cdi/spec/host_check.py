# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare a specification with its host: files, device numbers, programs of hooks, and what it must contain.

`validate.py` checks the rules of the CDI library, which do not depend on the host. `compare.py` compares a
specification with a newer one, and with the loaded driver.
"""

from __future__ import annotations

import json
import os
import stat
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import schema as cdi_schema
from ansible_collections.gpufleet.nvidia.plugins.module_utils._cdi.spec import validate as cdi_validate
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._gpu import device_nodes

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    # A document or a part of it, as schema.read() returns it.
    Data = t.Mapping[str, t.Any]


# The name of the device that has the edits of all other devices.
ALL = "all"
_TYPES = {"c": (stat.S_ISCHR,), "u": (stat.S_ISCHR,), "b": (stat.S_ISBLK,), "p": (stat.S_ISFIFO,)}
_ANY_TYPE = (stat.S_ISCHR, stat.S_ISBLK)
_LDCONFIG_FLAG = "--ldconfig-path"


class Required(t.NamedTuple):
    """What a specification must contain: device nodes, by their paths in containers, and the number of devices."""

    nodes: frozenset[str] = frozenset()
    devices: int = 0


class HostCheckResult(t.NamedTuple):
    """Errors and warnings as messages. After an error, containers with these devices do not start or do not work."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def check_host(
    document: Data,
    host: hostfs.HostFS,
    required: Required | None = None,
    allow_missing_hooks: bool = False,
    missing: t.Collection[str] = (),
) -> HostCheckResult:
    """Return the problems that containers with the devices of ``document`` would have on ``host``.

    required: what the document must contain; None for no requirements.
    allow_missing_hooks: report a missing hook program as a warning, since check mode does not install the toolkit.
    missing: paths that are known to be missing. They are not reported again.
    """
    checker = _Checker(host, allow_missing_hooks, missing)
    if required is not None:
        checker.check_required(document, required)
    for field, edits in all_edits(document):
        checker.check_edits(field, edits)
    return HostCheckResult(tuple(checker.errors), tuple(checker.warnings))


def missing_paths(document: Data, host: hostfs.HostFS) -> list[str]:
    """Return the document's paths that the host lacks: sources of mounts, device nodes and hook programs."""
    missing: dict[str, None] = {}
    for _field, edits in all_edits(document):
        sources = [mount["hostPath"] for mount in edits.get("mounts", ()) if cdi_validate.is_bind(mount)]
        programs = [hook["path"] for hook in edits.get("hooks", ())]
        nodes = [_host_path(node) for node in edits.get("deviceNodes", ())]
        missing.update((path, None) for path in [*sources, *programs] if not host.exists(path))
        missing.update((path, None) for path in nodes if _status(host, path) is None)
    return [path for path in missing if path.startswith("/")]


def replaceable_paths(document: Data, host: hostfs.HostFS) -> dict[str, str]:
    """Return the document's paths on the host that another user can replace, with the reasons as parts of sentences.

    Engines follow these paths as root, long after the document was written: sources of mounts, device nodes, hook
    programs, and the ldconfig that a hook runs.
    """
    paths: list[str] = []
    for _field, edits in all_edits(document):
        paths += [mount["hostPath"] for mount in edits.get("mounts", ()) if cdi_validate.is_bind(mount)]
        paths += [_host_path(node) for node in edits.get("deviceNodes", ())]
        for hook in edits.get("hooks", ()):
            paths += [hook["path"], _ldconfig(hook.get("args", ()))]
    return trusted_paths.replaceable(host, [path for path in paths if path.startswith("/")])


def replaceable_messages(reasons: t.Mapping[str, str]) -> list[str]:
    """Return the result of replaceable_paths() as messages."""
    return [
        f"The specification contains {shown(path)}, which another user could replace: {reason}."
        for path, reason in reasons.items()
    ]


def all_edits(document: Data) -> list[tuple[str, Data]]:
    """Return each containerEdits of ``document`` and its field."""
    devices = enumerate(document.get("devices", ()))
    return [
        (cdi_schema.EDITS, document.get(cdi_schema.EDITS, {})),
        *((f"devices[{index}].{cdi_schema.EDITS}", device.get(cdi_schema.EDITS, {})) for index, device in devices),
    ]


def _host_path(node: Data) -> str:
    return str(node.get("hostPath") or node["path"])


def _status(host: hostfs.HostFS, path: str) -> os.stat_result | None:
    """Return the result of lstat(2), or None. Engines do not follow a link to a device node either."""
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


class _Checker:
    def __init__(self, host: hostfs.HostFS, allow_missing_hooks: bool, missing: t.Collection[str]) -> None:
        self._host = host
        self._missing = missing
        self._allow_missing_hooks = allow_missing_hooks
        self._majors: t.Mapping[str, int] | None = None
        # Several devices may contain the same node, which is reported once.
        self._seen: set[str] = set()
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def check_required(self, document: Data, required: Required) -> None:
        nodes = [node for _field, edits in all_edits(document) for node in edits.get("deviceNodes", ())]
        named = {node["path"] for node in nodes} | {_host_path(node) for node in nodes}
        for path in sorted(required.nodes - named):
            self.errors.append(
                f"The specification lacks {path}. {device_nodes.fix_for_node(path)}, then generate the specification"
                " again."
            )
        count = device_count(document)
        if count < required.devices:
            self.errors.append(
                f"The driver reports {required.devices} GPUs and MIG devices, but the specification has {count}. Check"
                " /dev for missing device nodes, then generate the specification again."
            )

    def check_edits(self, field: str, edits: Data) -> None:
        for index, node in enumerate(edits.get("deviceNodes", ())):
            if self._is_new("node", node):
                self._check_node(f"{field}.deviceNodes[{index}]", node)
        for index, mount in enumerate(edits.get("mounts", ())):
            if self._is_new("mount", mount):
                self._check_mount(f"{field}.mounts[{index}]", mount)
        for index, hook in enumerate(edits.get("hooks", ())):
            self._check_hook(f"{field}.hooks[{index}]", hook)

    def _is_new(self, kind: str, item: t.Any) -> bool:
        text = f"{kind} {json.dumps(item, sort_keys=True)}"
        if text in self._seen:
            return False
        self._seen.add(text)
        return True

    def _check_node(self, field: str, node: Data) -> None:
        path = _host_path(node)
        if not path.startswith("/") or path in self._missing:
            # validate() reports relative paths.
            return
        status = _status(self._host, path)
        if status is None:
            self.errors.append(
                f"The device node {shown(path)} ({field}) is missing. {device_nodes.fix_for_node(path)}."
            )
            return
        kind = node.get("type", "")
        if not any(is_type(status.st_mode) for is_type in _TYPES.get(kind, _ANY_TYPE)):
            self.errors.append(
                f"{shown(path)} ({field}) is not a device node{f' of type {kind}' if kind else ''}. Use the path of the"
                " node, not of a link to it."
            )
            return
        if self._check_driver_numbers(shown(path), node["path"], status) and node.get("major"):
            # If the specification has no major number, engines read the node's numbers from the host.
            self._check_specified_numbers(shown(path), field, node, status)

    def _check_driver_numbers(self, path: str, name: str, status: os.stat_result) -> bool:
        """Return whether a node has the driver's numbers, and record an error if not.

        ``path`` is its path on the host, and ``name`` its path in containers.
        """
        if self._majors is None:
            self._majors = device_nodes.kernel_majors(self._host)
        numbers = device_nodes.device_numbers(name, self._majors)
        if numbers is None:
            return True
        major, minor = numbers
        found = os.major(status.st_rdev), os.minor(status.st_rdev)
        if found == (found[0] if major is None else major, minor):
            return True
        expected = f"minor number {minor}" if major is None else device_number((major, minor))
        self.errors.append(
            f"{path} has device number {device_number(found)}, but the driver uses {expected}. Remove {path}."
            f" {device_nodes.fix_for_node(name)}."
        )
        return False

    def _check_specified_numbers(self, path: str, field: str, node: Data, status: os.stat_result) -> None:
        specified = node["major"], node.get("minor", 0)
        found = os.major(status.st_rdev), os.minor(status.st_rdev)
        if specified != found:
            self.errors.append(
                f"{path} has device number {device_number(found)}, but {field} has {device_number(specified)}, which"
                f" engines use. {device_nodes.REGENERATE}."
            )
        mode = status.st_mode & 0o777
        if node.get("fileMode", mode) & 0o777 != mode or node.get("gid", 0) != status.st_gid:
            self.warnings.append(
                f"{path} has mode {mode:04o} and group {status.st_gid}, but {field} has other values."
                f" {device_nodes.REGENERATE}."
            )

    def _check_mount(self, field: str, mount: Data) -> None:
        path = mount["hostPath"]
        if (
            cdi_validate.is_bind(mount)
            and path.startswith("/")
            and path not in self._missing
            and not self._host.exists(path)
        ):
            self.errors.append(f"The file {shown(path)} ({field}) is missing. {device_nodes.REGENERATE}.")

    def _check_hook(self, field: str, hook: Data) -> None:
        path = hook["path"]
        check = path.startswith("/") and path not in self._missing and self._is_new("program", path)
        if check and not _is_program(self._host, path):
            message = (
                f"The hook program {shown(path)} ({field}) is missing or not executable, so containers with these"
                f" devices cannot start. Install the NVIDIA Container Toolkit, set {core_errors.option:cdi_hook_path},"
                f" or set {core_errors.option:hooks}: none."
            )
            (self.warnings if self._allow_missing_hooks else self.errors).append(message)
        ldconfig = _ldconfig(hook.get("args", ()))
        if ldconfig and self._is_new("program", ldconfig) and not _is_program(self._host, ldconfig):
            self.warnings.append(
                f"The program {shown(ldconfig)}, which {field} runs, is missing. Set"
                f" {core_errors.option:ldconfig_path} to the host's ldconfig."
            )


def _ldconfig(arguments: t.Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        name, equals, value = argument.partition("=")
        if name == _LDCONFIG_FLAG:
            return value if equals else following
    return ""


def shown(path: str) -> str:
    """Return ``path`` for a message."""
    return path if path.isprintable() and len(path) < 200 else core_text.quoted(path)


def device_number(numbers: tuple[int, int]) -> str:
    """Return a major and a minor number for a message."""
    return f"{numbers[0]}:{numbers[1]}"


def device_count(document: Data) -> int:
    """Return the number of different devices, without "all". Several names may describe the same device."""
    single = [device for device in document.get("devices", ()) if device.get("name") != ALL]
    return len({json.dumps(device.get(cdi_schema.EDITS, {}), sort_keys=True) for device in single})
