# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether the process of a container may open its device nodes.

Three parts of the kernel can deny that: the permissions of the nodes, the device cgroup, and SELinux. All functions are
pure. The rules of a device cgroup of version 2 are a program in the kernel, which is not read.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import json_data
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._explain import container as explain_container


_READ_WRITE, _READ_WRITE_FOR_ALL = 0o6, 0o666
# The major number of /dev/nvidiactl and /dev/nvidia0 to /dev/nvidia247 (kernel-open/common/inc/nv-chardev-numbers.h of
# open-gpu-kernel-modules).
_MAJOR, _CONTROL_MINOR = 195, 255
_GPU_NODE = re.compile(r"/dev/nvidia(ctl|[0-9]+)\Z")
# The domain of containers, and the types of files that it may open (container-selinux 2.2).
_CONFINED = "container_t"
_OPEN_TYPES = ("container_file_t", "svirt_sandbox_file_t")


class NodeAccess(t.NamedTuple):
    """A device node: its permission bits, owner and group, and the type in its SELinux label (empty: unknown).

    ``number`` are its major and minor number, None if they are unknown.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    label: str = ""
    number: tuple[int, int] | None = None


class Selinux(t.NamedTuple):
    """SELinux, which is enforced. ``permits`` is whether a boolean lets containers use devices; None: unknown."""

    permits: bool | None = None


def denied_by_mode(
    nodes: t.Mapping[str, NodeAccess], user: explain_container.User | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that ``user`` cannot open for reading and writing, and those for which that is unknown."""
    denied, unknown = [], []
    for path, node in nodes.items():
        if user is None:
            unknown += [path] if node.mode & _READ_WRITE_FOR_ALL != _READ_WRITE_FOR_ALL else []
        elif not user.is_root and not _permits(node, user):
            denied.append(path)
    return tuple(denied), tuple(unknown)


def _permits(node: NodeAccess, user: explain_container.User) -> bool:
    # Only the first class that matches counts (path_resolution(7)).
    shift = 6 if user.uid == node.uid else 3 if node.gid in user.gids else 0
    return node.mode >> shift & _READ_WRITE == _READ_WRITE


def denied_by_cgroup(rules: str, nodes: t.Iterable[str]) -> tuple[str, ...]:
    """Return the nodes of GPUs, and nvidiactl, that a device cgroup of version 1 does not permit.

    The major numbers of other nodes differ between hosts. ``rules`` is the file devices.list
    (Documentation/admin-guide/cgroup-v1/devices.rst of Linux); empty: unknown.
    """
    permitted = [line.split() for line in rules.splitlines()]
    numbers = {path: _minor(path) for path in nodes}
    return tuple(
        path
        for path, minor in numbers.items()
        if rules and minor is not None and not any(_matches(rule, minor) for rule in permitted)
    )


def denied_by_config(config: t.Mapping[str, t.Any] | None, made: t.Mapping[str, NodeAccess]) -> tuple[str, ...]:
    """Return the nodes in ``made`` for which the OCI config lacks a rule that permits reading and writing.

    The low-level runtime makes its device cgroup from these rules, in their order (config-linux.md of the OCI runtime
    specification). Without a first rule that denies all, nothing is known.
    """
    linux: dict[str, t.Any] = json_data.get(config or core_plan.NOTHING, "linux", {})
    resources: dict[str, t.Any] = json_data.get(linux, "resources", {})
    rules: list[t.Any] = json_data.get(resources, "devices", [])
    if not rules or not _is_for(rules[0], None) or json_data.get(rules[0], "allow", default=False):
        return ()
    denied = []
    for path, node in made.items():
        permitted: set[str] = set()
        for rule in rules:
            if _is_for(rule, node.number):
                access = set(json_data.get(rule, "access", "") or "rwm")
                allow = json_data.get(rule, "allow", default=False)
                permitted = permitted | access if allow else permitted - access
        if not set("rw") <= permitted:
            denied.append(path)
    return tuple(denied)


def _is_for(rule: t.Any, number: tuple[int, int] | None) -> bool:
    """Return whether a rule is about the character device ``number``; None: about all devices."""
    values = [json_data.get(rule, name, -1) for name in ("major", "minor")]
    if number is None:
        return values == [-1, -1] and json_data.get(rule, "type", "a") in ("a", "")
    return json_data.get(rule, "type", "a") in ("a", "c", "u", "") and all(
        value in (-1, own) for value, own in zip(values, number)
    )


def _minor(path: str) -> int | None:
    match = _GPU_NODE.match(path)
    return None if match is None else _CONTROL_MINOR if match[1] == "ctl" else int(match[1][:9])


def _matches(rule: t.Sequence[str], minor: int) -> bool:
    if len(rule) != 3 or not set("rw") <= set(rule[2]):
        return False
    major, _colon, own = rule[1].partition(":")
    return rule[0] in "ac" and major in ("*", str(_MAJOR)) and own in ("*", str(minor))


def denied_by_selinux(
    selinux: Selinux | None,
    config: t.Mapping[str, t.Any] | None,
    mounted: t.Iterable[str],
    nodes: t.Mapping[str, NodeAccess],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes that SELinux denies a container, and those for which that is unknown.

    ``config`` is its OCI config, None if that is not known.
    Only nodes that are ``mounted`` keep the label of the host. Nodes that the low-level runtime makes have that of the
    container.
    """
    process: dict[str, t.Any] = json_data.get(config or core_plan.NOTHING, "process", {})
    domain = json_data.get(process, "selinuxLabel", "").split(":")
    if selinux is None or selinux.permits or (config is not None and domain[2:3] != [_CONFINED]):
        return (), ()
    own = [path for path in mounted if path in nodes and nodes[path].label not in _OPEN_TYPES]
    labelled = tuple(path for path in own if nodes[path].label)
    if selinux.permits is None or config is None:
        return (), tuple(own)
    return labelled, tuple(path for path in own if path not in labelled)
